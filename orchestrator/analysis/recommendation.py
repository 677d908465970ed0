"""The recommendation: a sentence that names, at each k, the cheapest of the methods that may be the best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis import CostKind
from orchestrator.analysis.comparison import Comparison
from orchestrator.analysis.costs import FELT, Cost, cheapest, kinds
from orchestrator.util.units import pluralize

LISTED = 3
"""The sentence of a recommendation names at most this many methods besides the recommended one."""


@dataclass(frozen=True)
class Verdict:
    """A comparison of methods at one k, and their costs.

    Attributes:
        k: images per class; 0 on a track without k.
        comparison: the comparison of the methods, which are given by their labels.
        costs: the costs of one run of each method, medians over the cells of the comparison.
        saves: the kind of cost that is compared second, after the need for source models.
    """

    k: int
    comparison: Comparison
    costs: Mapping[str, Cost]
    saves: CostKind = "operations"

    @property
    def recommended(self) -> str | None:
        """The cheapest method of the best set that is close to the first method; ``None`` if no method was measured.

        A method is close if it is behind the first method of the comparison by at most the smallest difference that
        matters. Without this limit, the cheapest method would win if the data are too few to exclude it.
        """
        close = _close(self)
        return cheapest(close, self.costs, self.saves) if close else None

    @property
    def loss(self) -> float | None:
        """An upper limit, at 95 %, of the points by which the recommended method is behind the best method.

        Each other method of the best set has a lead over the recommended method, and each lead has an interval. The
        loss is the largest upper end of these intervals. ``None`` if the recommended method is alone in the best set,
        or if the data are too few for an interval.
        """
        pairs = [pair for pair in self.comparison.pairs if self.recommended in (pair.first, pair.second)]
        ends = []
        for pair in pairs:
            if pair.interval is None:
                return None
            ends.append(0.0 - pair.interval[0] if pair.first == self.recommended else pair.interval[1])
        return max(0.0, *ends) if ends else None

    def cost(self, method: str) -> Cost:
        """Return the costs of one run of a method."""
        return self.costs.get(method, Cost())

    def statement(self, display_names: Mapping[str, str] | None = None) -> str:
        """Return the outcome in a few words, such as ``best: bolt``."""
        return self.comparison.statement(display_names)


def recommend(verdicts: Sequence[Verdict], display_names: Mapping[str, str] | None = None) -> str:
    """Return the sentence on the recommended methods over all k of one track, protocol, domain and backbone."""
    shown = display_names or {}
    ordered = sorted(verdicts, key=lambda verdict: verdict.k)
    ks = [verdict.k for verdict in ordered]
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in ordered:
        if (method := verdict.recommended) is not None:
            groups.setdefault((shown.get(method, method), _reason(verdict, method, shown)), []).append(verdict)
    clauses = (
        f"use {name}{_at([verdict.k for verdict in own], ks)}{reason}{_loss(own)}"
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


def _close(verdict: Verdict) -> list[str]:
    """Return the comparison's first method, and the methods of the best set that are close to it.

    :attr:`Verdict.recommended` says what close means. A method whose difference is unknown is left out.
    """
    methods, most = verdict.comparison.methods, verdict.comparison.smallest_difference
    close = [s for s in methods[1:] if s.in_best_set and s.difference is not None and -s.difference <= most]
    return [score.method for score in (*methods[:1], *close)]


def _reason(verdict: Verdict, method: str, shown: Mapping[str, str]) -> str:
    """Return the reason why the method is recommended at one k, as the end of a clause."""
    comparison = verdict.comparison
    if comparison.outcome == "single":
        return ": no other method was measured"
    rivals = [other for other in _close(verdict) if other != method]
    others = rivals or [other for other in comparison.best_set if other != method]
    if not others:
        return ""
    names, more = [shown.get(other, other) for other in others], len(others) - LISTED
    listed = _listed([*names[:LISTED], f"{more} more"] if more > 0 else names)
    verb = "may be" if comparison.outcome != "level" else "is" if len(others) == 1 else "are"
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
