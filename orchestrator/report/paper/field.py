"""Tables of what the literature has measured on the eleven usual few-shot datasets, alone or beside a grid's results.

A source is a publication here. Several sources may have a number for the same method and dataset. A number is first
hand if the source's authors measured it themselves. Numbers that a source has reprinted are shown only if asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

from pydantic import TypeAdapter

from orchestrator.analysis.display_names import title_of
from orchestrator.analysis.seed_means import seed_means, summarize
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.catalog.location import Location, grids_folder
from orchestrator.catalog.validation import StrictModel, validated
from orchestrator.catalog.yaml_files import read_mapping
from orchestrator.report.analysis import GridResults
from orchestrator.report.paper.published import Position, published_verdicts, read_published
from orchestrator.report.styles import DASH
from orchestrator.report.tables.table import Entry, Table, measured
from orchestrator.tracks.base_to_new import BASE_CLASSES, HARMONIC_MEAN, NEW_CLASSES, harmonic_mean
from orchestrator.util.identity import slug

Setting = Literal["zero_shot", "few_shot", "base_to_new", "cross_dataset", "domain_generalisation", "test_time"]
Metric = Literal["accuracy", "base", "new", "H"]

SETTINGS: Mapping[Setting, str] = {
    "zero_shot": "Zero-shot",
    "few_shot": "Few-shot",
    "base_to_new": "Base to new classes",
    "cross_dataset": "From ImageNet to the ten other datasets",
    "domain_generalisation": "From ImageNet to its variants",
    "test_time": "At test time",
}
"""A setting of the literature -> its title."""

_SETTINGS_OF_TRACKS: Mapping[str, Setting] = {
    "fewshot": "few_shot",
    "base_to_new": "base_to_new",
    "cross_dataset": "cross_dataset",
    "ood": "domain_generalisation",
    "tta": "test_time",
    "tta_stream": "test_time",
    "tta_image": "test_time",
}
_METRICS: Mapping[str, Metric] = {BASE_CLASSES: "base", NEW_CLASSES: "new", HARMONIC_MEAN: "H"}

IMAGENET = "eleven_imagenet"
TEN = tuple(f"eleven_{name}" for name in (
    "caltech101", "oxford_pets", "stanford_cars", "flowers102", "food101", "fgvc_aircraft", "sun397", "dtd", "eurosat",
    "ucf101",
))  # fmt: skip
VARIANTS = tuple(f"eleven_imagenet_{name}" for name in ("v2", "sketch", "a", "r"))
AVERAGES: Mapping[str, tuple[str, ...]] = {
    "average of 11": (IMAGENET, *TEN),
    "average of 10": TEN,
    "average of 5": (IMAGENET, *VARIANTS),
    "average of 4": VARIANTS,
}
"""Name of a mean that the literature prints -> the datasets of the mean."""

_HOW_TO_READ = (
    "Each line has one source, and grids/published/field.yaml says which. Protocols differ, so two "
    "lines may differ for other reasons than the method."
)
_HOW_TO_COMPARE = (
    "Methods measured here see no validation images, and see other views of the training images than the authors "
    "used. Published numbers follow their authors' protocols, as the footnotes say. So two lines may differ although "
    "both are right. "
    "docs/field-benchmark.md says what is the same."
)
_COLUMNS = (IMAGENET, *TEN, *VARIANTS, *AVERAGES)
_HERE = "measured here"


@dataclass(frozen=True)
class FieldNumber:
    """One published number, in per cent, as a row of ``grids/published/field.csv``.

    Attributes:
        source: the key of the publication in ``field.yaml``.
        method: the name in print.
        dataset: key of a dataset in the catalog, or one of ``AVERAGES``.
        validation: which labels chose the method's settings: none, those of a validation set that is drawn like the
            support (``drawn``), those of a whole validation split (``whole``), those of the test set (``test``), or
            unknown ones (``not stated``).
        note: any other peculiarity of the protocol.
    """

    source: str
    setting: Setting
    metric: Metric
    backbone: str
    k: int
    method: str
    dataset: str
    accuracy: float
    validation: Literal["none", "drawn", "whole", "test", "not stated"]
    note: str

    @property
    def table(self) -> TableKey:
        """The table that the number belongs to."""
        return self.setting, self.metric, self.backbone

    @property
    def first_hand(self) -> bool:
        """Whether the source's authors measured the number themselves."""
        return self.method in field_sources().sources[self.source].own


TableKey: TypeAlias = tuple[Setting, Metric, str]
"""What the numbers of one table share: setting, metric and backbone."""

Line: TypeAlias = tuple[int, str, str, Mapping[str, Entry]]
"""A line of a table: k, method, source, and entries by dataset or average."""

Scores: TypeAlias = Mapping[str, Mapping[int, float]]
"""Accuracies by dataset and seed."""


class FieldSource(StrictModel):
    """A publication of numbers, and the methods (``own``) that its authors measured themselves."""

    title: str
    own: tuple[str, ...]


class FieldSources(StrictModel):
    """The sources of the numbers, and the methods that this project has too.

    Attributes:
        sources: key -> source.
        methods: printed name -> name in this project.
    """

    sources: dict[str, FieldSource]
    methods: dict[str, str]


@cache
def field_numbers() -> tuple[FieldNumber, ...]:
    """Return every published number. Raises ``UserError`` if the file cannot be read."""
    return TypeAdapter(tuple[FieldNumber, ...]).validate_python(read_published("field.csv"))


@cache
def field_sources() -> FieldSources:
    """Return the sources of the numbers. Raises ``UserError`` if the file is missing or not valid."""
    path = grids_folder() / "published" / "field.yaml"
    return validated(FieldSources, read_mapping(path), Location.of(path))


def field_tables(*, reprinted: bool = False) -> list[Table]:
    """Return the published numbers, a table for each setting, metric and backbone."""
    order = list(SETTINGS)
    ordered = sorted(_published_lines(reprinted).items(), key=lambda item: order.index(item[0][0]))
    return [_table(key, lines) for key, lines in ordered]


def sources_table() -> Table:
    """Return the table of the publications, each with the methods that its authors have measured themselves."""
    rows = [
        (Entry(key), Entry(source.title), Entry(", ".join(source.own)))
        for key, source in field_sources().sources.items()
    ]
    note = "Own methods: those that the authors measured themselves. All other numbers are reprinted."
    return Table("field_sources", "Sources", note, ("source", "what it is", "own methods"), tuple(rows), text_columns=3)


def tables_beside_measured(grid: GridResults) -> list[Table]:
    """Return a table for each setting, metric and backbone of which both the grid and the literature have numbers.

    The setting ``zero_shot`` gets no table. For each method, the numbers of the grid come before the published ones.
    """
    tables, published = [], _published_lines(reprinted=False)
    for key, lines in _measured_lines(grid).items():
        if key in published and key[0] != "zero_shot":
            both = [*lines, *published[key]]
            order = list(dict.fromkeys(method for _, method, *_ in both))
            both.sort(key=lambda line: (line[0], order.index(line[1]), not line[2].startswith(_HERE)))
            tables.append(_table(key, both))
    return tables


def field_verdicts(*, reprinted: bool = False) -> tuple[VerdictSeries, ...]:
    """Return which methods may be the best by published numbers: a series for each setting and backbone.

    If several sources have a number for the same method and dataset, the first number in the file counts.
    """
    accuracies: dict[Position, float] = {}
    for number in _shown(reprinted):
        if number.dataset not in AVERAGES and number.metric in ("accuracy", "H"):
            at = Position(number.setting, "eleven", number.backbone, number.k, number.method, number.dataset)
            accuracies.setdefault(at, number.accuracy)

    def about(series: VerdictSeries) -> VerdictSeries:
        adapted_once = series.place.track in ("cross_dataset", "domain_generalisation", "test_time")
        verdicts = (replace(verdict, same_supports=adapted_once and verdict.k > 0) for verdict in series.verdicts)
        return replace(series, verdicts=tuple(verdicts))

    return tuple(map(about, published_verdicts(accuracies)))


def _shown(reprinted: bool) -> Iterator[FieldNumber]:
    return (number for number in field_numbers() if reprinted or number.first_hand)


def _published_lines(reprinted: bool) -> dict[TableKey, list[Line]]:
    """Return the published lines by setting, metric and backbone, by increasing k."""
    lines: dict[TableKey, dict[tuple[int, str, str], dict[str, Entry]]] = {}
    for number in _shown(reprinted):
        name = field_sources().methods.get(number.method)
        method = title_of(name) if name else number.method
        source = number.source if number.first_hand else f"{number.source}, reprinted"
        chosen = number.validation == "test"
        entry = Entry(f"{number.accuracy:.2f}", number.accuracy, selected=chosen, notes=_remarks(number))
        lines.setdefault(number.table, {}).setdefault((number.k, method, source), {})[number.dataset] = entry
    return {
        key: sorted(((*line, entries) for line, entries in own.items()), key=lambda line: line[0])
        for key, own in lines.items()
    }


def _remarks(number: FieldNumber) -> tuple[str, ...]:
    validation = {
        "none": "",
        "drawn": "settings chosen on validation images that were drawn in the same way as the support",
        "whole": "settings chosen on the whole validation split",
        "test": "settings chosen on the test set",
        "not stated": "how the settings were chosen is not stated",
    }[number.validation]
    return tuple(filter(None, [validation, number.note]))


def _measured_lines(grid: GridResults) -> dict[TableKey, list[Line]]:
    """Return the lines that the grid has measured, by setting, metric and backbone.

    Variants of a method have separate lines, and so have several protocols. As in print, a method that is scored on
    other datasets has adapted to ImageNet, and a test set with only some of its classes is scored among these.
    """
    labels = {(_SETTINGS_OF_TRACKS.get(c.track), c.method.name, grid.labels[id_]) for id_, c in grid.cells.items()}
    counts = Counter((setting, name) for setting, name, _ in labels)
    several, chosen = len({group.place.protocol for group in grid.groups}) > 1, set[tuple[int, str, str]]()
    scores: dict[TableKey, dict[tuple[int, str, str], dict[str, dict[int, float]]]] = {}
    for group in grid.groups:
        setting = _SETTINGS_OF_TRACKS.get(group.place.track)
        if setting is None or group.ablations:
            continue
        for row in group.rows:
            backbone = grid.names_of(row.backbone, "")[0] if grid.names_of else None
            metric = _METRICS.get(row.evaluated_on, "accuracy")
            dataset = row.evaluated_on if metric == "accuracy" else row.dataset
            if setting in ("cross_dataset", "domain_generalisation") and row.dataset != IMAGENET:
                continue
            if backbone is not None and dataset in _COLUMNS and (metric != "accuracy" or setting != "base_to_new"):
                by_line = scores.setdefault((setting, metric, backbone), {})
                alone = counts[setting, row.method_name] == 1
                method = title_of(row.method_name) if alone else grid.display_names[row.method]
                line = row.k, method, f"{_HERE}, {row.protocol}" if several else _HERE
                chosen |= {line} if row.selects_on_test else set()
                accuracy = row.accuracy if row.accuracy_own_classes is None else row.accuracy_own_classes
                by_line.setdefault(line, {}).setdefault(dataset, {})[row.seed] = accuracy
    found: dict[TableKey, list[Line]] = {}
    for (setting, metric, backbone), lines in scores.items():
        parts: tuple[Metric, ...] = ("base", "new") if metric == "H" else ()
        found[setting, metric, backbone] = [
            (*line, _entries(own, *(scores[setting, part, backbone][line] for part in parts), chosen=line in chosen))
            for line, own in lines.items()
        ]
    return found


def _entries(own: Scores, *halves: Scores, chosen: bool) -> dict[str, Entry]:
    """Return the entries of a line, by dataset or average.

    ``own``: the line's numbers. ``chosen``: whether test labels may have chosen them.

    ``halves``: the base and the new accuracies if the line has their harmonic mean H. The H of an average is computed
    as in print: from the average base accuracy and the average new accuracy.
    """
    entries = {name: measured(summarize([*by_seed.values()]), selected=chosen) for name, by_seed in own.items()}
    for name, datasets in AVERAGES.items():
        means = seed_means(own, datasets)
        if halves:
            base, new = (seed_means(half, datasets) for half in halves)
            means = {seed: harmonic_mean(base[seed], new[seed]) for seed in means}
        if means:
            entries[name] = measured(summarize(list(means.values())), selected=chosen)
    return entries


def _table(key: TableKey, lines: Sequence[Line]) -> Table:
    setting, metric, backbone = key
    published = [entries for *_, source, entries in lines if not source.startswith(_HERE)]
    columns = [name for name in _COLUMNS if any(name in entries for entries in published)]
    rows = []
    for k, method, source, entries in lines:
        remarks = {entry.notes for entry in entries.values()}
        of_line: tuple[str, ...] = ()
        if len(remarks) == 1:  # a footnote about all numbers is printed at the line's source
            (of_line,) = remarks
            entries = {name: replace(entry, notes=()) for name, entry in entries.items()}
        numbers = (entries.get(name, Entry(DASH)) for name in columns)
        rows.append((Entry(str(k)), Entry(method), Entry(source, notes=of_line), *numbers))
    here = any(source.startswith(_HERE) for _, _, source, _ in lines)
    of = {
        "H": "Harmonic mean of base and new accuracy",
        "base": "Accuracy on base classes",
        "new": "Accuracy on new classes",
    }
    table = Table(
        name=slug(f"field_{setting}_{metric}_{backbone}").replace("-", "_"),
        title=f"{SETTINGS[setting]}, {backbone}" + (f": {metric}" if metric != "accuracy" else ""),
        note=f"{of.get(metric, 'Accuracy')} in per cent. " + (_HOW_TO_COMPARE if here else _HOW_TO_READ),
        header=("k", "method", "source", *(name.removeprefix("eleven_").replace("_", " ") for name in columns)),
        rows=tuple(rows),
        text_columns=3,
        merged_columns=2,
        first_notes=tuple(text for *_, entries in lines for entry in entries.values() for text in entry.notes),
        upright_titles=True,
        hide_std=True,
        dash_note="A dash: not published, or not measured.",
    )
    return table.without_constant_columns(0, 1)
