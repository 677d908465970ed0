"""The verdict in plain words: which method is best where, by how much, and whether to believe it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import MIN_SEEDS, SIGNIFICANCE, Pair, Summary
from orchestrator.report.text import signed
from orchestrator.util.units import pluralize

Belief = Literal["supported", "unsettled", "too_small", "untested"]
BELIEF_WORDS: dict[Belief, str] = {
    "supported": "supported by the test",
    "unsettled": "not settled",
    "too_small": "too few datasets to settle",
    "untested": "cannot be judged",
}


@dataclass(frozen=True)
class Verdict:
    """The answer at one k of a panel.

    Attributes:
        best: the methods with the highest mean as printed; more than one if they tie.
        gain: of the best over zero-shot, in points; ``None`` if it is the zero-shot classifier itself.
        lead: the sentence about the runner-up.
        belief, why: whether the lead may be believed, and the sentence that says why.
        left_out: methods that lack datasets and so could not be ranked.
    """

    k: int
    best: tuple[str, ...]
    accuracy: Summary
    gain: float | None
    lead: str
    belief: Belief
    why: str
    rank: str
    left_out: str


def verdicts_of(panel: Panel) -> list[Verdict]:
    """One verdict per k that has at least one complete method."""
    return [verdict for k in panel.ks if (verdict := _verdict(panel, k)) is not None]


def _verdict(panel: Panel, k: int) -> Verdict | None:
    ranking = panel.ranking(k)
    if not ranking:
        return None
    first, accuracy = ranking[0]
    best = tuple(method for method, summary in ranking if round(summary.mean, 2) == round(accuracy.mean, 2))
    gain = panel.mean(first, k).gain
    incomplete = [(m, panel.mean(m, k)) for m in panel.methods if panel.mean(m, k).accuracy is None]
    left_out = ", ".join(f"{method} ({mean.have} of {mean.of} datasets)" for method, mean in incomplete)
    rest = [item for item in ranking if item[0] != first]
    ranks, count = panel.ranks(k)
    rank = ""
    if len(ranks) > 1 and count:
        rank = f"average rank {ranks[first]:.2f} of {len(ranks)} over {pluralize(count, 'dataset')}"
    if not rest:
        why = "There is no other complete method to compare it with."
        return Verdict(k, best, accuracy, gain.mean if gain else None, "", "untested", why, rank, left_out)
    second, runner_up = rest[0]
    pair = panel.pair(k, first, second)
    if pair is None:
        raise AssertionError("two complete methods share every dataset")
    lead = _lead(panel, second, accuracy, runner_up, pair)
    belief, why = _belief(panel, k, pair)
    return Verdict(k, best, accuracy, gain.mean if gain else None, lead, belief, why, rank, left_out)


def _lead(panel: Panel, second: str, accuracy: Summary, runner_up: Summary, pair: Pair) -> str:
    """How far ahead of the runner-up, against the spread over seeds, and on how many datasets."""
    ahead = accuracy.mean - runner_up.mean
    record = (
        f"against it, {_count(pair.wins, 'win')}, {_count(pair.ties, 'tie')} and {_count(pair.losses, 'loss')} over "
        f"{_count(pair.datasets, 'dataset')}"
    )
    alone = accuracy.std is None and pair.first in panel.repeatable
    spread = 0.0 if alone else max(accuracy.std or 0.0, runner_up.std or 0.0)
    if round(ahead, 2) == 0:
        return f"Level with {second}; {record}."
    size = f", {ahead / spread:.1f} times the larger standard deviation over seeds" if spread >= 0.005 else ""
    return f"{ahead:.2f} points ahead of {second}{size}; {record}."


def _count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def _belief(panel: Panel, k: int, pair: Pair) -> tuple[Belief, str]:
    tested = sum(other.p is not None for other in panel.pairs(k))
    if pair.p is None or pair.p_holm is None:
        if 0 < pair.seeds < MIN_SEEDS:
            return "untested", "One seed: another draw of the support could turn it around, so nothing is claimed."
        return (
            "untested",
            f"Only {_count(pair.datasets, 'dataset')}: too few for a test across them, so nothing is claimed.",
        )
    seeds = f", means over {pair.seeds} seeds" if pair.seeds else ""
    test = (
        f"paired Wilcoxon test over {pair.datasets} datasets{seeds}: p = {_p(pair.p)}, "
        f"{_p(pair.p_holm)} after Holm's correction for {tested} pair{'s' if tested > 1 else ''}"
    )
    if pair.claimed:
        return "supported", f"The lead over the runner-up is significant ({test})."
    reachable = min(1.0, tested * 2 / 2**pair.datasets)
    if reachable >= SIGNIFICANCE:
        limit = (
            f" With {pair.datasets} datasets and {tested} pairs even a win on every dataset would only reach "
            f"{_p(reachable)}: this grid is too small to settle it."
        )
        return "too_small", f"The lead over the runner-up is not significant ({test}).{limit}"
    return "unsettled", f"The lead over the runner-up is not significant ({test})."


def _p(value: float) -> str:
    return "below 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def headline(verdicts: Sequence[Verdict]) -> str:
    """One sentence over all panels."""
    if not verdicts:
        return "There is nothing to compare yet."
    leaders = Counter(method for verdict in verdicts for method in verdict.best)
    most = max(leaders.values())
    names = sorted(method for method, count in leaders.items() if count == most)
    supported = sum(verdict.belief == "supported" for verdict in verdicts)
    total = len(verdicts)
    places = f"{total} comparison{'s' if total > 1 else ''} (domain and k)"
    if total == 1:
        level = f"{' and '.join(names)} are level at the highest mean accuracy"
        who = level if len(names) > 1 else f"{names[0]} has the highest mean accuracy"
    elif len(names) > 1:
        who = f"{' and '.join(names)} share the lead: each has the highest mean in {most} of {places}"
    else:
        who = f"{names[0]} has the highest mean accuracy in {most} of {places}"
    if supported == 0 and {verdict.belief for verdict in verdicts} <= {"too_small", "untested"}:
        return f"{who}; the grid is too small for a test to support any lead."
    test = {0: "none of the leads is", total: "every lead is" if total > 1 else "the lead is"}
    return f"{who}; {test.get(supported, f'{supported} of the leads are')} supported by the test."


def gain_words(gain: float | None) -> str:
    """The gain over zero-shot as words."""
    if gain is None or round(gain, 2) == 0:
        return "equal to zero-shot"
    return f"{signed(gain)} points over zero-shot"
