"""The verdict in sentences: which method is best at each k, by how much, and whether a test supports its lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import MIN_SEEDS, SIGNIFICANCE, Pair
from orchestrator.report.notation import signed
from orchestrator.util.units import pluralize

Support = Literal["supported", "unsettled", "too_small", "untested"]
SUPPORT_TEXTS: dict[Support, str] = {
    "supported": "supported by the test",
    "unsettled": "not settled",
    "too_small": "too few datasets to settle",
    "untested": "cannot be judged",
}


@dataclass(frozen=True)
class Verdict:
    """The best method at one k of a panel.

    Attributes:
        best: the methods with the highest mean as printed; more than one if they tie.
        accuracy: the highest mean.
        gain: its gain over zero-shot, in points.
        lead: a sentence on the lead over the runner-up; empty without a runner-up.
        support, reason: whether a test supports the lead, and a sentence that says why.
        rank: the winner's average rank, as text.
        unranked: the methods without a complete mean, as text.
    """

    k: int
    best: tuple[str, ...]
    accuracy: Summary
    gain: float | None
    lead: str
    support: Support
    reason: str
    rank: str
    unranked: str


def verdicts_of(panel: Panel) -> list[Verdict]:
    """One verdict for every k at which at least one method has all datasets."""
    return [verdict for k in panel.ks if (verdict := _verdict(panel, k)) is not None]


def _verdict(panel: Panel, k: int) -> Verdict | None:
    ranking = panel.ranking(k)
    if not ranking:
        return None
    (first, accuracy), *others = ranking
    lead, reason = "", "There is no other complete method to compare it with."
    support: Support = "untested"
    if others:
        second, runner_up = others[0]
        pair = panel.pair(k, first, second)
        assert pair is not None, "two methods with complete means have every dataset in common"
        lead = _lead(panel, second, accuracy, runner_up, pair)
        support, reason = _support(panel, k, pair)
    means = {method: panel.mean(method, k) for method in panel.methods}
    ranks, count = panel.ranks(k)
    average_rank = f"average rank {ranks[first]:.2f} of {len(ranks)} over {pluralize(count, 'dataset')}"
    return Verdict(
        k=k,
        best=tuple(method for method, summary in ranking if round(summary.mean, 2) == round(accuracy.mean, 2)),
        accuracy=accuracy,
        gain=gain.mean if (gain := means[first].gain) else None,
        lead=lead,
        support=support,
        reason=reason,
        rank=average_rank if len(ranks) > 1 and count else "",
        unranked=", ".join(
            f"{method} ({mean.available} of {mean.expected} datasets)"
            for method, mean in means.items()
            if mean.accuracy is None
        ),
    )


def _lead(panel: Panel, second: str, accuracy: Summary, runner_up: Summary, pair: Pair) -> str:
    """The lead in points, compared with the deviation over seeds, with wins, ties and losses over datasets."""
    points = accuracy.mean - runner_up.mean
    counts = (
        f"against it, {pluralize(pair.wins, 'win')}, {pluralize(pair.ties, 'tie')} and {pair.losses} "
        f"{'loss' if pair.losses == 1 else 'losses'} over {pluralize(pair.datasets, 'dataset')}"
    )
    if round(points, 2) == 0:
        return f"Level with {second}; {counts}."
    one_seed = accuracy.std is None and pair.first in panel.seeded
    deviation = 0.0 if one_seed else max(accuracy.std or 0.0, runner_up.std or 0.0)
    times = f", {points / deviation:.1f} times the larger standard deviation over seeds" if deviation >= 0.005 else ""
    return f"{points:.2f} points ahead of {second}{times}; {counts}."


def _support(panel: Panel, k: int, pair: Pair) -> tuple[Support, str]:
    """Whether the test supports the winner's lead over the runner-up, and why."""
    if pair.p is None or pair.p_holm is None:
        if 0 < pair.seeds < MIN_SEEDS:
            return "untested", "One seed: another draw of the support could reverse the lead, so nothing is claimed."
        return (
            "untested",
            f"Only {pluralize(pair.datasets, 'dataset')}: too few for a test across them, so nothing is claimed.",
        )
    tested = sum(other.p is not None for other in panel.pairs(k))
    seeds = f", means over {pair.seeds} seeds" if pair.seeds else ""
    test = (
        f"paired Wilcoxon test over {pair.datasets} datasets{seeds}: p = {_p(pair.p)}, "
        f"{_p(pair.p_holm)} after Holm's correction for {tested} pair{'s' if tested > 1 else ''}"
    )
    if pair.significant:
        return "supported", f"The lead over the runner-up is significant ({test})."
    sentence = f"The lead over the runner-up is not significant ({test})."
    smallest = min(1.0, tested * 2 / 2**pair.datasets)
    if smallest < SIGNIFICANCE:
        return "unsettled", sentence
    return "too_small", (
        f"{sentence} With {pair.datasets} datasets and {tested} pairs even a win on every dataset would only reach "
        f"{_p(smallest)}: this grid is too small to settle it."
    )


def _p(value: float) -> str:
    return "below 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def headline(verdicts: Sequence[Verdict]) -> str:
    """One sentence that summarizes the verdicts of one track and protocol."""
    if not verdicts:
        return "There is nothing to compare yet."
    wins = Counter(method for verdict in verdicts for method in verdict.best)
    most = max(wins.values())
    names = sorted(method for method, count in wins.items() if count == most)
    supported = sum(verdict.support == "supported" for verdict in verdicts)
    total = len(verdicts)
    comparisons = f"{total} comparison{'s' if total > 1 else ''} (domain and k)"
    if total == 1:
        level = f"{' and '.join(names)} are level at the highest mean accuracy"
        winner = level if len(names) > 1 else f"{names[0]} has the highest mean accuracy"
    elif len(names) > 1:
        winner = f"{' and '.join(names)} share the lead: each has the highest mean in {most} of {comparisons}"
    else:
        winner = f"{names[0]} has the highest mean accuracy in {most} of {comparisons}"
    if supported == 0 and {verdict.support for verdict in verdicts} <= {"too_small", "untested"}:
        return f"{winner}; the grid is too small for a test to support any lead."
    test = {0: "none of the leads is", total: "every lead is" if total > 1 else "the lead is"}
    return f"{winner}; {test.get(supported, f'{supported} of the leads are')} supported by the test."


@dataclass(frozen=True)
class VerdictGroup:
    """The panels of one track and protocol, which share a headline. ``title`` is empty if it is the only group."""

    title: str
    headline: str
    panels: list[Panel]

    @property
    def selects_on_test(self) -> bool:
        """Whether test labels may have chosen a setting in any panel."""
        return any(panel.selects_on_test for panel in self.panels)


def verdict_groups(panels: Sequence[Panel]) -> list[VerdictGroup]:
    """The panels by track and protocol, without those of ablations and of changed protocols."""
    groups: dict[tuple[str, str], list[Panel]] = {}
    for panel in panels:
        if not (panel.key.ablations or panel.of_changed_protocol):
            groups.setdefault((panel.track.title, panel.key.protocol), []).append(panel)
    return [
        VerdictGroup(
            title=f"{track}, {protocol}" if len(groups) > 1 else "",
            headline=headline([verdict for panel in own for verdict in verdicts_of(panel)]),
            panels=own,
        )
        for (track, protocol), own in groups.items()
    ]


def gain_text(gain: float | None) -> str:
    """The gain over zero-shot in words."""
    if gain is None or round(gain, 2) == 0:
        return "equal to zero-shot"
    return f"{signed(gain)} points over zero-shot"
