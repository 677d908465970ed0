"""The recommendation: of the methods that may be the best at each k, the cheapest, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.comparison import Comparison

LISTED = 3
"""The sentence names at most this many of the methods beside the recommended one."""


@dataclass(frozen=True)
class Cost:
    """What one run of a method costs; ``None`` if it was not measured.

    Attributes:
        trainable_parameters: how many the method has.
        seconds: time to adapt.
        memory: largest memory in bytes.
    """

    trainable_parameters: int | None = None
    seconds: float | None = None
    memory: int | None = None

    @property
    def order(self) -> tuple[float, float, float]:
        """What costs are compared by, in this order: the attributes. Unknown costs are the highest."""
        costs = (self.trainable_parameters, self.seconds, self.memory)
        parameters, seconds, memory = (math.inf if cost is None else cost for cost in costs)
        return parameters, seconds, memory


@dataclass(frozen=True)
class Verdict:
    """A comparison of methods at one k, and what they cost.

    Attributes:
        k: images per class; 0 on a track without k.
        comparison: the methods and which of them may be the best; methods are labels.
        costs: what one run of each method costs, median over the cells of the comparison.
    """

    k: int
    comparison: Comparison
    costs: Mapping[str, Cost]

    @property
    def recommended(self) -> str | None:
        """The cheapest of the methods that may be the best and whose accuracy is close to the first one's.

        Close means at most the smallest difference that matters behind the first method of the comparison. Without this
        limit, the cheapest method would win wherever the data are too few to exclude it. ``None`` if no method was
        measured.
        """
        return min(_close(self), key=lambda method: self.cost(method).order, default=None)

    def cost(self, method: str) -> Cost:
        """Return what one run of a method costs."""
        return self.costs.get(method, Cost())

    def statement(self, display_names: Mapping[str, str] | None = None) -> str:
        """Return the outcome in a few words: ``best: bolt``."""
        return self.comparison.statement(display_names)


def recommend(verdicts: Sequence[Verdict], display_names: Mapping[str, str] | None = None) -> str:
    """One sentence: the recommended methods over all k of one track, protocol, domain and backbone."""
    shown = display_names or {}
    ordered = sorted(verdicts, key=lambda verdict: verdict.k)
    ks = [verdict.k for verdict in ordered]
    groups: dict[tuple[str, str], list[int]] = {}
    for verdict in ordered:
        if (method := verdict.recommended) is not None:
            clause = shown.get(method, method), _reason(verdict, method, shown)
            groups.setdefault(clause, []).append(verdict.k)
    clauses = (f"use {name}{_at(own, ks)}{reason}" for (name, reason), own in groups.items())
    return "; ".join(clauses) or "nothing to recommend: no method was measured"


def _close(verdict: Verdict) -> list[str]:
    comparison = verdict.comparison
    return [
        score.method
        for score in comparison.methods
        if score.in_best_set and -(score.difference or 0.0) <= comparison.smallest_difference
    ]


def _reason(verdict: Verdict, method: str, shown: Mapping[str, str]) -> str:
    """Why the method is recommended at one k: the end of a clause."""
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


def _advantage(verdict: Verdict, method: str, rivals: Sequence[str]) -> str:
    """How much cheaper the method is than the cheapest rival, in the first kind of cost in which they differ."""
    own, other = verdict.cost(method), min(map(verdict.cost, rivals), key=lambda cost: cost.order)
    kinds = (
        (
            own.trainable_parameters,
            other.trainable_parameters,
            "has no trainable parameters",
            "has {} times fewer trainable parameters",
        ),
        (own.seconds, other.seconds, "takes no time", "takes {} times less time"),
        (own.memory, other.memory, "needs no memory", "needs {} times less memory"),
    )
    for mine, theirs, nothing, ratio in kinds:
        if mine is not None and theirs is not None and 1.05 * mine < theirs:  # less would read "1.0 times"
            times = theirs / mine if mine else 0.0
            return ratio.format(f"{times:,.0f}" if times >= 9.95 else f"{times:.1f}") if mine else nothing
    return "costs no more"


def _at(own: list[int], ks: list[int]) -> str:
    """Return the k of one clause in words, given all k: ``at every k``, ``up to k = 4``, ``at k = 1, 2 and 8``."""
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
