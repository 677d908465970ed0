"""The recommendation: a sentence that names, at each k, the cheapest of the methods that may be the best."""

import math
from collections.abc import Mapping, Sequence

from orchestrator.analysis.costs import FELT, cheapest, kinds
from orchestrator.analysis.verdict import Verdict
from orchestrator.util.grouping import grouped
from orchestrator.util.units import pluralize

LISTED = 3
"""The sentence of a recommendation names at most this many methods besides the recommended one."""


def recommend(verdicts: Sequence[Verdict], display_names: Mapping[str, str] | None = None) -> str:
    """Return the sentence on the recommended methods over all k of one track, protocol, domain and backbone."""
    shown = display_names or {}
    ordered = sorted(verdicts, key=lambda verdict: verdict.k)
    ks = [verdict.k for verdict in ordered]
    recommended = [(verdict, method) for verdict in ordered if (method := verdict.recommended) is not None]
    groups = grouped(recommended, lambda pair: (shown.get(pair[1], pair[1]), _reason(*pair, shown)))
    clauses = (
        f"use {name}{_at([verdict.k for verdict, _ in own], ks)}{reason}{_loss([verdict for verdict, _ in own])}"
        for (name, reason), own in groups.items()
    )
    return "; ".join(clauses) or "nothing to recommend: no method was measured"


def _loss(verdicts: Sequence[Verdict]) -> str:
    """Return a text in brackets with the largest :attr:`Verdict.loss`; empty if the loss of a verdict is unknown."""
    losses = [verdict.loss for verdict in verdicts]
    known = [loss for loss in losses if loss is not None]
    if not known or len(known) < len(losses):
        return ""
    largest = math.ceil(round(10 * max(known), 6)) / 10  # round() keeps a tiny error from adding 0.1
    return f" (at 95 %, it is at most {pluralize(f'{largest:g}', 'point')} behind the best)"


def _reason(verdict: Verdict, method: str, shown: Mapping[str, str]) -> str:
    """Return the reason why the method is recommended at one k, as the end of a clause."""
    if verdict.outcome == "single":
        return ": no other method was measured"
    rivals = [other for other in verdict.close if other != method]
    if not (others := rivals or [other for other in verdict.best_set if other != method]):
        return ""
    names, more = [shown.get(other, other) for other in others], len(others) - LISTED
    listed = _listed([*names[:LISTED], f"{more} more"] if more > 0 else names)
    verb = "may be" if verdict.outcome != "level" else "is" if len(others) == 1 else "are"
    advantage = f": it {_advantage(verdict, method, rivals)}, and" if rivals else ", but"
    return f"{advantage} {listed} {verb} as good"


_WORDS = {
    "sources": ("needs no source models", ""),
    "operations": ("takes no passes through the tower to adapt", "takes {} times fewer operations to adapt"),
    "memory": ("needs no memory", "needs {} times less memory"),
    "parameters": ("has no trainable parameters", "has {} times fewer trainable parameters"),
}
"""Kind of cost -> two texts about the advantage over a rival: for a method without this cost, and for a method that has
less of it."""


def _advantage(verdict: Verdict, method: str, rivals: Sequence[str]) -> str:
    """Return in words how much less the method costs than the cheapest rival.

    Only one kind of cost is named: the first of ``kinds`` in which the method is cheaper by more than the factor
    ``FELT``.
    """
    own, other = verdict.cost(method), verdict.cost(cheapest(rivals, verdict.costs, verdict.saves))
    for kind in kinds(verdict.saves):
        mine, theirs = own.of(kind), other.of(kind)
        if FELT * mine < theirs < math.inf:
            nothing, ratio = _WORDS[kind]
            times = theirs / mine if mine else 0.0
            return ratio.format(f"{times:,.0f}" if times >= 9.95 else f"{times:.1f}") if mine else nothing
    return "costs no more"


def _at(own: list[int], ks: list[int]) -> str:
    """Return in words which of all ``ks`` are in ``own``: ``at every k``, ``up to k = 4``, ``at k = 1, 2 and 8``."""
    if ks == [0]:
        return ""
    if len(own) == 1:
        return f" at k = {own[0]}"
    if len(own) == len(ks):
        return " at every k"
    if own == ks[: len(own)]:
        return f" up to k = {own[-1]}"
    if own == ks[-len(own) :]:
        return f" from k = {own[0]} on"
    return f" at k = {_listed([str(k) for k in own])}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
