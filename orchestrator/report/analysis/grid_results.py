"""All results of a grid, arranged so that every table, figure and sentence reads the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from orchestrator.analysis import SMALLEST_DIFFERENCE, CostKind
from orchestrator.analysis.comparable import ablations_of, changed_places, comparable_rows, plain_labels
from orchestrator.analysis.display_names import display_names, summaries, title_of
from orchestrator.analysis.raced_places import RacedPlace, left_out_cells
from orchestrator.analysis.rows import NamesOf, PublishedOf, Row, SourceRow, labels_of, row_list
from orchestrator.analysis.scores import ReadPredictions, scores_of, unscored_sentence
from orchestrator.analysis.verdict_series import VerdictSeries, verdicts_of
from orchestrator.artifacts.head import EqualClasses
from orchestrator.core.cell import Cell, LabelOf, Place
from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.styles import SELECTED, styles_of
from orchestrator.store.results import Failure, Result
from orchestrator.tracks import TRACKS, MetricName, stored_track
from orchestrator.util.grouping import grouped


@dataclass(frozen=True, kw_only=True)
class GridResults:
    """The results of a grid, and everything that a report derives from them.

    Attributes:
        name, title, description: of the grid.
        results: in the order of the plan. If a cell is given several results, the last one counts.
        label_of: gives the label of a cell's method with its settings.
        published_of: gives the accuracy that the paper prints for a row. Rows of a method's variants get none.
        names_of: gives the paper's names of backbones and datasets; without it, the paper's tables are left out.
        text_limits: the classes whose text vectors are equal, for each backbone and dataset that has such classes.
        read_predictions: reads the stored predictions of results. Most metrics need it, and so do verdicts on single
            datasets.
        smallest_difference, saves: arguments of :func:`orchestrator.analysis.verdict_series.verdicts_of`.
        metric: the metric by which methods are compared; ``None`` for the metric of each track.
        raced: the races that decided which cells were measured.
    """

    results: Sequence[Result]
    label_of: LabelOf
    failures: Sequence[Failure] = ()
    planned: Sequence[Cell] = ()
    name: str = ""
    title: str = ""
    description: str = ""
    published_of: PublishedOf | None = None
    names_of: NamesOf | None = None
    sources: Sequence[SourceRow] = ()
    text_limits: Sequence[EqualClasses] = ()
    read_predictions: ReadPredictions | None = None
    smallest_difference: float = SMALLEST_DIFFERENCE
    saves: CostKind = "operations"
    metric: MetricName | None = None
    raced: Sequence[RacedPlace] = ()

    def __post_init__(self) -> None:
        by_id = {result.cell.id: result for result in self.results}
        object.__setattr__(self, "results", tuple(by_id[id_] for id_ in self.cells if id_ in by_id))

    @cached_property
    def cells(self) -> Mapping[str, Cell]:
        """Every planned or measured cell by its id."""
        return {cell.id: cell for cell in (*self.planned, *(result.cell for result in self.results))}

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The label of every cell by the cell's id."""
        return labels_of(self.cells.values(), self.label_of)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The labels in the order of the plan."""
        return tuple(dict.fromkeys(self.labels[id_] for id_ in self.cells))

    @cached_property
    def method_names(self) -> Mapping[str, str]:
        """Method label -> the method's identifier."""
        return {self.labels[id_]: cell.method.name for id_, cell in self.cells.items()}

    @cached_property
    def plain(self) -> frozenset[str]:
        """The labels that stand for a method as it was published; others name variants."""
        return plain_labels(self.method_names)

    @cached_property
    def rows(self) -> Sequence[Row]:
        """A row for each result and test split with a score."""
        scores = scores_of(self.results, self.metric, self.read_predictions)
        published_of = self.published_of or (lambda row: None)
        return row_list(
            self.results, self.labels, scores, lambda row: published_of(row) if row.method in self.plain else None
        )

    @property
    def unscored(self) -> str:
        """A sentence on the results whose score needs predictions that the store lacks; empty if there are none."""
        return unscored_sentence(self.results, {row.cell_id for row in self.rows})

    @cached_property
    def finished(self) -> frozenset[str]:
        """The ids of the cells that have a result."""
        return frozenset(result.cell.id for result in self.results)

    @cached_property
    def failed(self) -> frozenset[str]:
        """The ids of the cells that have a failure. A cell may have finished since."""
        return frozenset(failure.id for failure in self.failures)

    @cached_property
    def left_out(self) -> list[Cell]:
        """The planned cells that the races no longer need, and that have neither a result nor a failure."""
        unneeded = left_out_cells(self.raced) - self.finished - self.failed
        return [cell for cell in self.planned if cell.id in unneeded]

    @cached_property
    def missing(self) -> list[Cell]:
        """The planned cells that have neither a result nor a failure, and that no race leaves out."""
        return [cell for cell in self.without_result if cell.id not in self.failed]

    @cached_property
    def without_result(self) -> list[Cell]:
        """The planned cells that have no result, and that no race leaves out."""
        settled = self.finished.union(cell.id for cell in self.left_out)
        return [cell for cell in self.planned if cell.id not in settled]

    @cached_property
    def _ablations(self) -> frozenset[tuple[Place, str]]:
        return ablations_of(self.cells.values(), self.labels)

    @cached_property
    def verdicts(self) -> tuple[VerdictSeries, ...]:
        """Which methods may be the best, for each track, protocol, domain and backbone.

        Ablations and changed protocols are left out.
        """
        return verdicts_of(
            comparable_rows(self.rows, self._ablations),
            results=self.results,
            read_predictions=self.read_predictions,
            smallest_difference=self.smallest_difference,
            saves=self.saves,
            raced=self.raced,
        )

    @cached_property
    def groups(self) -> tuple[ComparisonGroup, ...]:
        """The groups that have rows, sorted by track. Groups of the same track are in the order of the plan.

        Ablations get a separate group. The domain's group has means over all datasets of the domain. An ablation is
        planned on only some of these datasets, so it would have no mean in the domain's group. For comparison, the
        separate group also has the rows of the unchanged method on the datasets, k and seeds of its ablations.
        """
        found = grouped(self.rows, lambda row: (row.place, (row.place, row.method) in self._ablations))
        planned = ((cell.place, False) for cell in self.cells.values())
        by_key = {key: found.get(key, []) for key in (*planned, *found)}

        def position(row: Row) -> tuple[str, str, int, int]:
            return row.method_name, row.test, row.k, row.seed

        for place in [place for place, ablations in by_key if ablations]:
            covered = {position(row) for row in by_key[place, True]}
            by_key[place, True] += [row for row in by_key[place, False] if position(row) in covered]
        order = {name: i for i, name in enumerate(TRACKS)}
        keys = [key for key, own in by_key.items() if own]
        keys.sort(key=lambda key: order.get(key[0].track, len(order)))
        places = [place for place, _ in keys]
        changed = changed_places(places)
        curves = {
            result.cell.id: result.curves["accuracy"]
            for result in self.results
            if stored_track(result.cell.track).scored_after_epochs and "accuracy" in result.curves
        }
        return tuple(
            ComparisonGroup(
                place, _title(place, places) + " · ablations" * ablations, by_key[place, ablations], self.methods,
                ablations=ablations, curves=curves, of_changed_protocol=place in changed,
            )
            for place, ablations in keys
        )  # fmt: skip

    @property
    def main_groups(self) -> tuple[ComparisonGroup, ...]:
        """The groups whose protocol is not a changed protocol.

        ``strict+sigma_sign=relu``, for example, is a changed protocol if ``strict`` was measured on the same track,
        backbone and domain.
        """
        return tuple(group for group in self.groups if not group.of_changed_protocol)

    @property
    def tracks(self) -> tuple[str, ...]:
        """The names of the tracks that have results, in the order of the groups."""
        return tuple(dict.fromkeys(group.place.track for group in self.groups))

    @property
    def test_splits(self) -> int:
        """The number of scored test splits. Means over class groups are not counted."""
        scored = ((result.cell, evaluation.dataset) for result in self.results for evaluation in result.evaluations)
        return len({(cell.domain, cell.dataset.name, dataset) for cell, dataset in scored})

    @cached_property
    def shown_verdicts(self) -> tuple[VerdictSeries, ...]:
        """The verdicts to read first: over datasets or, if a domain has only one dataset, about this dataset."""
        over_datasets = [series for series in self.verdicts if not series.dataset]
        alone = {series.place for series in over_datasets if all(v.n == 1 for v in series.verdicts)}
        alone &= {series.place for series in self.verdicts if series.dataset}
        return tuple(series for series in self.verdicts if bool(series.dataset) == (series.place in alone))

    def verdicts_about(self, group: ComparisonGroup) -> tuple[VerdictSeries, ...]:
        """Return the verdicts about a group; none for ablations and changed protocols, which verdicts leave out."""
        if group.ablations or group.of_changed_protocol:
            return ()
        return tuple(series for series in self.verdicts if series.place == group.place)

    def verdict_title(self, series: VerdictSeries) -> str:
        """Return the title of a series: the title of its group, and the dataset if the verdicts are about a single one.

        If the series has no domain, the title has ``all domains`` in its place.
        """
        place = series.place._replace(domain=series.place.domain or "all domains")
        title = _title(place, [group.place for group in self.groups])
        return " ".join(filter(None, (title, series.dataset, SELECTED if self.selects_on_test(series) else "")))

    def verdict_records(self) -> list[dict[str, Any]]:
        """Return the records of ``verdict.json`` (docs/verdict.md).

        Each record is a verdict. Its ``text_limits`` name the classes that the text vectors do not tell apart, for each
        dataset that the verdict is about.
        """
        records: list[dict[str, Any]] = []
        by_place = grouped(self.rows, lambda row: row.place)
        for series in self.verdicts:
            about = (row for place, own in by_place.items() if series.is_about(place) for row in own)
            compared = [row for row in about if series.dataset in ("", row.test)]
            datasets = {name for row in compared for name in (row.dataset, row.evaluated_on)}
            limits = [limit for limit in self.text_limits if limit.backbone == series.place.backbone]
            own = [asdict(limit) for limit in limits if limit.dataset in datasets]
            more = {"selects_on_test": self.selects_on_test(series), "text_limits": own}
            records += [{**record, **more} for record in series.records(self.display_names)]
        return records

    def selects_on_test(self, series: VerdictSeries) -> bool:
        """Return whether test labels may have chosen a setting of any result that the series compares."""
        return any(group.selects_on_test for group in self.groups if series.is_about(group.place))

    @cached_property
    def styles(self) -> Mapping[str, Mapping[str, str]]:
        """How every method label is drawn: matplotlib's ``color``, ``marker`` and ``linestyle``."""
        return styles_of(self.method_names)

    @cached_property
    def display_names(self) -> Mapping[str, str]:
        """Method label -> name on pages, in figures and on the terminal, such as ``LP++`` or ``BOLT (rank 3)``."""
        return display_names(self.method_names)

    @cached_property
    def summaries(self) -> Mapping[str, str]:
        """Method label -> one line that says what the method does."""
        return summaries(self.method_names)

    @property
    def titled_summaries(self) -> Mapping[str, str]:
        """Title of each method -> one line that says what the method does. A method and its variants share a title."""
        return {title_of(self.method_names[label]): summary for label, summary in self.summaries.items()}

    @property
    def sources_by_backbone(self) -> Mapping[tuple[str, str], Sequence[SourceRow]]:
        """The source models of each domain and backbone."""
        return grouped(self.sources, lambda source: (source.domain, source.backbone))


def _title(place: Place, places: Sequence[Place]) -> str:
    """Return the title of a place: its domain, then what distinguishes it from the other places of the report."""
    tracks, protocols, backbones, _ = map(set, zip(*places, strict=True))
    parts = [place.domain.replace("_", " ")]
    if len(backbones) > 1:
        parts.append(place.backbone)
    if len(tracks) > 1 or stored_track(place.track).named_in_titles:
        parts.append(stored_track(place.track).title)
    if len(protocols) > 1 or place.protocol != "strict":
        parts.append(place.protocol)
    return " · ".join(parts)
