"""Whether methods differ over datasets at all, which of them, and the diagram that shows it.

Friedman's test ranks the methods on every dataset and asks whether the average ranks differ more than chance would
have them. Where they do, Nemenyi's test says how far two average ranks must lie apart: the critical difference. (As
Demsar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006.) Ranks depend on which methods
take part, so the paired tests of ``statistics.compare``, which do not, can say otherwise of a single pair.

Shapes: M methods, N datasets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import MIN_DATASETS, MIN_SEEDS, SIGNIFICANCE, average_ranks
from orchestrator.report.figures.drawing import INK, FigureFile, canvas, finished
from orchestrator.report.tables.comparison import Styles, panel_slug

MIN_METHODS = 3
"""Two methods are a pair, which has a paired test of its own."""


@dataclass(frozen=True)
class CriticalDifference:
    """Methods over the datasets that all of them have, at one k of a panel.

    Attributes:
        ranks: average rank of each method, best first; 1 is the best there can be.
        p: of Friedman's test.
        distance: average ranks that lie less than this apart do not differ, by Nemenyi's test at ``alpha``.
        cliques: the largest groups of neighbours, two methods at least, within which no two differ; all methods where
            Friedman's test finds no difference.
        seeds: what each accuracy is a mean over, the least; 0 where no method draws anything.
    """

    ranks: Mapping[str, float]
    p: float
    distance: float
    cliques: tuple[tuple[str, ...], ...]
    datasets: int
    seeds: int
    alpha: float = SIGNIFICANCE

    @property
    def differ(self) -> bool:
        """Whether Friedman's test finds that the methods are not all alike."""
        return self.p < self.alpha


def friedman(scores: Mapping[str, Sequence[float]]) -> float:
    """p of Friedman's test over datasets, with ties and in the form of Iman and Davenport (1980).

    chi2 is SciPy's, corrected for ties; F = (N - 1) chi2 / (N (M - 1) - chi2) has (M - 1) and (M - 1)(N - 1) degrees of
    freedom, and is the less conservative of the two with few datasets. 1.0 where all methods tie everywhere.

    Args:
        scores: of at least three methods over the same datasets.
    """
    from scipy import stats

    scores_MN = np.round(np.array([list(own) for own in scores.values()], dtype=float), 9)
    methods, datasets = scores_MN.shape
    if (scores_MN == scores_MN[0]).all():
        return 1.0
    chi2 = float(stats.friedmanchisquare(*scores_MN).statistic)
    return float(stats.f.sf(davenport(chi2, methods, datasets), methods - 1, (methods - 1) * (datasets - 1)))


def davenport(chi2: float, methods: int, datasets: int) -> float:
    """Iman and Davenport's F of Friedman's chi2; infinite where every dataset has the methods in one order."""
    rest = datasets * (methods - 1) - chi2
    return (datasets - 1) * chi2 / rest if rest > 1e-9 else math.inf


def critical_distance(methods: int, datasets: int, alpha: float = SIGNIFICANCE) -> float:
    """Nemenyi's critical difference of average ranks: q sqrt(M (M + 1) / (6 N)).

    q is the studentized range's upper quantile for M means and infinitely many degrees of freedom, over sqrt(2).
    """
    from scipy import stats

    q = float(stats.studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * datasets))


def cliques(ranks: Mapping[str, float], distance: float) -> tuple[tuple[str, ...], ...]:
    """The longest runs of neighbouring ranks that are less than ``distance`` wide; runs inside another are left out."""
    order = sorted(ranks, key=lambda method: ranks[method])
    runs: list[tuple[int, int]] = []
    for start, first in enumerate(order):
        stop = max(i for i, method in enumerate(order) if ranks[method] - ranks[first] < distance)
        if stop > start and (not runs or stop > runs[-1][1]):
            runs.append((start, stop))
    return tuple(tuple(order[start : stop + 1]) for start, stop in runs)


def critical_difference(panel: Panel, k: int) -> CriticalDifference | str:
    """The comparison at ``k``, or the sentence that says why there is none."""
    scores, seeds = panel.common_scores(k)
    datasets = len(next(iter(scores.values()), ()))
    if len(scores) < MIN_METHODS:
        return f"No critical difference: it compares {MIN_METHODS} methods or more, and {len(scores)} can be ranked."
    if datasets < MIN_DATASETS:
        return f"No critical difference: {datasets} of the {MIN_DATASETS} datasets that it takes to tell methods apart."
    if seeds < MIN_SEEDS and panel.repeatable & set(scores):
        return "No critical difference: one seed, and another draw of the support could turn the ranks around."
    p, distance = friedman(scores), critical_distance(len(scores), datasets)
    ranks = average_ranks(scores)
    ranks = {method: ranks[method] for method in sorted(ranks, key=lambda method: ranks[method])}
    alike = cliques(ranks, distance) if p < SIGNIFICANCE else (tuple(ranks),)
    return CriticalDifference(ranks, p, distance, alike, datasets, seeds)


def critical_difference_words(found: CriticalDifference) -> str:
    """What the diagram shows and how it was made."""
    p = "p < 0.0001" if found.p < 0.0001 else f"p = {found.p:.4f}"
    seeds = f", means over {found.seeds} seeds" if found.seeds else ""
    friedman_says = f"Friedman's test over {found.datasets} datasets{seeds} ({p}, Iman and Davenport's form)"
    if not found.differ:
        return (
            f"Average ranks, 1 is best. {friedman_says} finds no difference among these methods, so one bar joins all."
        )
    joined = "Bars join methods that do not differ" if found.cliques else "No two neighbours are too close to differ"
    return (
        f"Average ranks, 1 is best. {friedman_says} finds differences. {joined} by Nemenyi's test at alpha = "
        f"{found.alpha:g}: their ranks lie less than CD = {found.distance:.2f} apart. Ranks depend on which methods "
        "take part; the tests of single pairs do not."
    )


def critical_difference_figure(panel: Panel, k: int, styles: Styles) -> FigureFile | None:
    """The diagram at ``k``; ``None`` where :func:`critical_difference` gives a reason instead."""
    found = critical_difference(panel, k)
    if isinstance(found, str):
        return None
    names = list(found.ranks)
    left = names[: (len(names) + 1) // 2]
    right = names[len(left) :][::-1]
    step, top = 0.3, 0.45 + 0.16 * len(found.cliques)
    depth = top + step * len(left)
    with canvas(7.2, 0.75 + depth * 0.8) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        low, high = 1.0, float(len(names))
        margin = 0.42 * (high - low)
        axes.set_xlim(low - margin, high + margin)
        axes.set_ylim(depth, -0.62)
        axes.plot([low, high], [0, 0], color=INK, linewidth=1.0)
        for tick in range(1, len(names) + 1):
            axes.plot([tick, tick], [0, -0.08], color=INK, linewidth=1.0)
            axes.text(tick, -0.13, str(tick), ha="center", va="bottom", fontsize=8)
        axes.plot([low, low + found.distance], [-0.46, -0.46], color=INK, linewidth=1.0)
        for end in (low, low + found.distance):
            axes.plot([end, end], [-0.51, -0.41], color=INK, linewidth=1.0)
        axes.text(low - 0.02 * (high - low), -0.46, f"CD = {found.distance:.2f}", ha="right", va="center", fontsize=8)
        for level, clique in enumerate(found.cliques):
            y = 0.2 + 0.16 * level
            ends = (found.ranks[clique[0]] - 0.03, found.ranks[clique[-1]] + 0.03)
            axes.plot(ends, [y, y], color=INK, linewidth=3.2, solid_capstyle="round")
        for side, own in ((-1, left), (1, right)):
            for place, method in enumerate(own):
                y, x = top + step * place, low - 0.05 if side < 0 else high + 0.05
                rank, style = found.ranks[method], styles[method]
                axes.plot([rank, rank, x], [0, y, y], color=style.colour, linewidth=1.3)
                axes.plot([rank], [0], color=style.colour, marker=style.marker or "o", markersize=5, clip_on=False)
                gap = side * 0.02 * (high - low)
                text = f"{method}  {rank:.2f}" if side < 0 else f"{rank:.2f}  {method}"
                axes.text(x + gap, y, text, ha="right" if side < 0 else "left", va="center", fontsize=8.5)
        at = f" at k = {k}" if k else ""
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"critical_difference_{panel_slug(panel)}_k{k}",
            title=f"Average ranks and their critical difference{at}, {panel.title}",
            caption=critical_difference_words(found),
        )
