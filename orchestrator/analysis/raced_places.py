"""Races the methods at each place of a grid: lists the cells that a race still needs, and those that it leaves out.

A place is a track, protocol, backbone, domain and k. It has a race if at least two of its methods may take part in
verdicts, and if at least two looks are planned. A look is a moment at which the race may decide. Cells without a race
are wanted from the start.

All decisions are computed from the planned cells, their scores and their failures. So a run that was killed makes the
same decisions when it is continued.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from orchestrator.analysis.comparable import ablations_of, changed_places, seedless_methods
from orchestrator.analysis.metrics import METRICS
from orchestrator.analysis.race import Race, planned_looks, race
from orchestrator.analysis.rows import labels_of, row_list
from orchestrator.analysis.scores import ReadPredictions, scores_of
from orchestrator.core.cell import Cell, LabelOf, Place
from orchestrator.store.results import Result
from orchestrator.tracks import MetricName, stored_track
from orchestrator.util.grouping import grouped
from orchestrator.util.identity import fingerprint
from orchestrator.util.units import pluralize


@dataclass(frozen=True)
class RacedPlace:
    """The race of one place, with the names of its methods and its cells.

    Attributes:
        methods: labels of the methods. ``race`` refers to a method by its position in this tuple.
        cells: the cell at each (method, dataset, seed) position. A method without seeds has one cell for all seeds.
    """

    place: Place
    k: int
    methods: tuple[str, ...]
    race: Race
    cells: Mapping[tuple[int, int, int], Cell]

    @cached_property
    def wanted(self) -> frozenset[str]:
        """Ids of the cells that past decisions of the race used or that its next decision needs."""
        last = [out_at or self.race.next or self.race.at for out_at in self.race.out_at]
        return frozenset(cell.id for (m, d, s), cell in self.cells.items() if (look := last[m]) and look.uses(d, s))

    @cached_property
    def left_out(self) -> frozenset[str]:
        """Ids of the cells that the race will not need, whatever the other cells show."""
        last = [out_at or (None if self.race.next else self.race.at) for out_at in self.race.out_at]
        later = (cell.id for (m, d, s), cell in self.cells.items() if (look := last[m]) and not look.uses(d, s))
        return frozenset(later) - self.wanted

    def ahead(self, looks: int) -> frozenset[str]:
        """Return the ids of the cells that the next look or one of the ``looks`` looks after it uses.

        It is assumed that no further method goes out of the race. If the race is over, there are no such cells.
        """
        if self.race.next is None:
            return frozenset()
        _, datasets, seeds = (1 + max(position) for position in zip(*self.cells, strict=True))
        planned = planned_looks(datasets, seeds)
        last = planned[min(planned.index(self.race.next) + looks, len(planned) - 1)]
        out_at = self.race.out_at
        return frozenset(cell.id for (m, d, s), cell in self.cells.items() if out_at[m] is None and last.uses(d, s))

    @property
    def decisions(self) -> dict[str, tuple[str, float]]:
        """The methods that the race has excluded: label -> the label of the better method, and the p-value."""
        both = zip(self.methods, self.race.beaten_by_M, self.race.p_M, strict=True)
        return {method: (self.methods[rival], float(p)) for method, rival, p in both if rival >= 0}

    @property
    def line(self) -> str:
        """The state of the race, in a sentence."""
        track, _, backbone, domain = self.place
        at = f" at k = {self.k}" if self.k else ""
        where = f"{domain}, {track}, {backbone}{at}"
        done = self.race.at
        after = f" after {pluralize(done.datasets, 'dataset')}" if done else ""
        seeds = f" and {done.seeds} seeds" if done and done.seeds > 1 else ""
        ended = "" if self.race.next else "; settled" if len(self.race.left) == 1 or self.race.level else "; complete"
        return f"{where}: {len(self.decisions)} of {pluralize(len(self.methods), 'method')} out{after}{seeds}{ended}"


def grid_races(
    cells: Sequence[Cell],
    label_of: LabelOf,
    results: Sequence[Result],
    failed: Collection[str],
    metric: MetricName | None,
    read_predictions: ReadPredictions,
    smallest_difference: float,
) -> tuple[RacedPlace, ...]:
    """Return the races of a grid from its results, one for each place where there is something to decide.

    Args:
        cells: all planned cells.
        failed: ids of the cells that will have no result.
        metric: the metric by which methods are compared; ``None`` for the metric of each track.
    """
    labels = labels_of(cells, label_of)
    rows = row_list(results, labels, scores_of(results, metric, read_predictions))
    scores = {row.cell_id: METRICS[row.metric].sign * row.score for row in rows if row.averaged}
    ended = {*failed, *(result.cell.id for result in results)}  # even if the result has no score
    return raced_places(cells, labels, scores, ended, smallest_difference=smallest_difference)


def raced_places(
    cells: Sequence[Cell],
    labels: Mapping[str, str],
    scores: Mapping[str, float],
    ended: Collection[str],
    *,
    smallest_difference: float,
) -> tuple[RacedPlace, ...]:
    """Return the races of a grid from the known scores, one for each place where there is something to decide.

    Args:
        cells: all planned cells; ``labels`` has their labels, by id.
        scores: cell id -> the score that a verdict would count; higher is better.
        ended: ids of the cells that have a result, or will have none.
        smallest_difference: in points; methods that differ by less are level.
    """
    ablations = ablations_of(cells, labels)
    compared = (cell for cell in cells if (cell.place, labels[cell.id]) not in ablations)
    by_place = grouped(filter(_is_one_number, compared), lambda cell: cell.place)
    changed = changed_places(by_place)
    found = []
    for place, own in by_place.items():
        fixed = seedless_methods((labels[cell.id], cell.shots, cell.seed) for cell in own)
        for k in [] if place in changed else sorted({cell.shots for cell in own} - {0}) or [0]:
            at_k = [cell for cell in own if cell.shots == k or labels[cell.id] in fixed]
            methods = list(dict.fromkeys(labels[cell.id] for cell in at_k))
            # The datasets' order must be fixed before the first measurement, and must not depend on their properties.
            datasets = sorted({cell.dataset.name for cell in at_k}, key=fingerprint)
            seeds = sorted({cell.seed for cell in at_k if labels[cell.id] not in fixed}) or [0]
            if len(methods) < 2 or len(planned_looks(len(datasets), len(seeds))) < 2:
                continue  # there is nothing to decide
            by_position = {
                (methods.index(labels[cell.id]), datasets.index(cell.dataset.name), s): cell
                for cell in at_k
                for s in (range(len(seeds)) if labels[cell.id] in fixed else [seeds.index(cell.seed)])
            }
            scores_MDS = np.full((len(methods), len(datasets), len(seeds)), np.nan)
            known_MDS = np.ones(scores_MDS.shape, dtype=bool)
            for position, cell in by_position.items():
                scores_MDS[position] = scores.get(cell.id, np.nan)
                known_MDS[position] = cell.id in scores or cell.id in ended
            raced = race(scores_MDS, known_MDS, smallest_difference=smallest_difference)
            found.append(RacedPlace(place, k, tuple(methods), raced, by_position))
    return tuple(found)


def wanted_cells(cells: Iterable[Cell], places: Sequence[RacedPlace]) -> frozenset[str]:
    """Return the ids of the cells that may be measured now: those that a race wants, and those that are in no race.

    A race wants the cells that its past decisions used, and those that its next decision needs.
    """
    raced = {cell.id for place in places for cell in place.cells.values()}
    return frozenset(cell.id for cell in cells if cell.id not in raced).union(*(place.wanted for place in places))


def left_out_cells(places: Sequence[RacedPlace]) -> frozenset[str]:
    """Return the ids of the cells that no place needs any more."""
    needed = {cell.id for place in places for cell in place.cells.values() if cell.id not in place.left_out}
    return frozenset().union(*(place.left_out for place in places)) - needed


def _is_one_number(cell: Cell) -> bool:
    """Return whether a verdict uses exactly one score of the cell.

    Other cells do not race, because a race counts every dataset as one unit of the sample.
    """
    return stored_track(cell.track).group_mean is not None or cell.evaluate_on == (cell.dataset,)
