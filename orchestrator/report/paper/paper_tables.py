"""The paper's tables in the paper's layout: published accuracies alone, or measured ones beside them.

``LAYOUTS`` says what the lines and columns of each table are. The numbers and their order come from ``published``. With
measured accuracies, a method has up to three lines: measured, published and their difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

from orchestrator.report.analysis import GridResults
from orchestrator.report.paper.measured import Measured, measured_protocols
from orchestrator.report.paper.published import Position, notes_on, printed_tables, published_datasets
from orchestrator.report.tables.table import Entry, Table, difference, measured, number, with_dagger, with_highlights
from orchestrator.util.grouping import grouped
from orchestrator.util.identity import slug

Axis = Literal["domain", "backbone", "shots", "method", "dataset"]
AXES: tuple[Axis, ...] = ("domain", "backbone", "shots", "method", "dataset")


@dataclass(frozen=True)
class Layout:
    """How one table of accuracies is laid out. An axis is what lines or columns differ in, such as the backbone.

    Attributes:
        label: the table's label in the paper's source, without ``tab:``.
        rows: the axes that name a line; the last one is the method.
        columns: the axis of the columns. If columns are in groups, the axis of the groups comes before it.
        split: the axis by which a table with measured accuracies is split, because it has three lines for each line of
            the paper: measured, published and their difference. Each value on the axis gets its own table.
            ``None``: the table is not split.
    """

    label: str
    title: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    split: Axis | None = None

    def part_of(self, position: Position) -> str:
        """Return the value of a position on the axis ``split``; empty if the table is not split."""
        return str(getattr(position, self.split)) if self.split else ""


_BY_DATASET: tuple[Axis, ...] = ("backbone", "shots", "method")

LAYOUTS = (
    Layout("fewshot_general_rs_multicol", "Few-shot accuracy by domain", ("method",), ("domain", "shots")),
    Layout("ood_vitb32_k16", "Accuracy out of distribution, ViT-B/32", ("method",), ("dataset",)),
    Layout("OOD_extend_result", "Accuracy out of distribution, larger backbones", ("method",), ("backbone", "dataset")),
    Layout("tta_general", "Accuracy after test-time adaptation", ("method",), ("backbone",)),
    Layout("tta_general_ufm", "Accuracy after test-time adaptation by dataset", ("backbone", "method"), ("dataset",)),
    Layout("fewshot_general_detailed", "Few-shot accuracy by dataset, general", _BY_DATASET, ("dataset",), "backbone"),
    Layout(
        "fewshot_remote_detailed", "Few-shot accuracy by dataset, remote sensing", _BY_DATASET, ("dataset",), "backbone"
    ),
)

_DOMAINS = {"general": "General datasets", "remote_sensing": "Remote-sensing datasets", "imagenet": "ImageNet"}

Values: TypeAlias = Mapping[Axis, Any]
"""Values on some axes."""


def value_title(axis: Axis, value: str | int) -> str:
    """Return the title of a column, or of a group of columns, for one value of an axis."""
    if axis == "domain":
        return _DOMAINS.get(str(value), str(value))
    return f"{value}-shot" if axis == "shots" else str(value)


Kind = Literal["measured", "published", "difference"]
"""What the numbers of a line are."""
_KINDS: tuple[Kind, ...] = ("measured", "published", "difference")

_MANY_COLUMNS = 12
"""With more columns, numbers are printed without deviations and titles are turned upright."""
_SUBSTITUTE = (
    "Measured, at least in part, under a changed protocol, because this protocol plans no such cell. rows.csv names "
    "the changed protocol."
)
_FEWER_SEEDS = "Over fewer seeds than the other numbers; the CSV says how many."


def published_tables() -> Iterator[Table]:
    """Yield every table of the paper with the printed numbers, and with footnotes that explain some of them."""
    nothing = Measured("", GridResults(results=(), label_of=str))
    for layout in LAYOUTS:
        yield _PaperTable(layout, printed_tables()[layout.label], nothing).table()
    yield from dataset_tables()


def paper_tables(grid: GridResults) -> Iterator[Table]:
    """Yield the paper's tables that the grid has results for, with measured beside published accuracies."""
    for protocol, layout in product(measured_protocols(grid), LAYOUTS):
        printed = printed_tables()[layout.label]
        for part, positions in grouped(printed, layout.part_of).items():
            made = _PaperTable(layout, {at: printed[at] for at in positions}, protocol, part)
            if any(made.is_measured(label, block) for label, _ in made.methods() for block in made.blocks):
                yield made.table()
    yield from dataset_tables(grid)


class _PaperTable:
    """One table of a layout.

    Attributes:
        printed: the accuracies that the paper prints; of a split layout, only those of ``part``.
        measured: the accuracies measured under one protocol. Without any, the table has the published ones alone.
        axes: the values on every axis, in the paper's order.
        columns: for each column, its values on the layout's column axes.
        blocks: for each block of lines, its values on the layout's row axes, without the axis of methods.
    """

    def __init__(self, layout: Layout, printed: Mapping[Position, float], measured: Measured, part: str = "") -> None:
        self.layout, self.printed, self.measured, self.part = layout, printed, measured, part
        self.track = next(iter(printed)).track
        self.axes: dict[Axis, list[Any]] = {
            axis: list(dict.fromkeys(getattr(at, axis) for at in printed)) for axis in AXES
        }
        if len(self.axes["shots"]) > 1:
            self.axes["shots"] = [k for k in self.axes["shots"] if k]  # zero-shot, k = 0, is printed at each k
        self.columns = self._combinations(layout.columns)
        self.blocks = self._combinations([axis for axis in layout.rows if axis != "method"])
        self.row_axes = tuple(axis for axis in layout.rows if not part or axis != layout.split)
        self.many_columns = len(self.columns) > _MANY_COLUMNS

    def table(self) -> Table:
        """Return the finished table."""
        rows: list[tuple[Entry, ...]] = []
        first_rows: list[int] = []
        for block in self.blocks:
            first_rows.append(len(rows))
            rows += self._block_rows(block)
        titles = ["k" if axis == "shots" else axis for axis in self.row_axes] + (["accuracy"] if self.measured else [])
        *group_axes, last = self.layout.columns
        groups: list[tuple[str, int]] = []
        for axis in group_axes:
            width = len(self.axes[last])
            groups = [("", len(titles)), *((value_title(axis, value), width) for value in self.axes[axis])]
        noted = [self._notes({"dataset": column.get("dataset")}) for column in self.columns]
        name, title = f"paper_{self.layout.label}", f"{self.layout.title} (published)"
        if self.measured:
            protocol = self.measured.protocol
            name = slug("_".join(filter(None, (name, self.part, protocol))).lower())
            title = ", ".join(filter(None, (self.layout.title, self.part, f"{protocol} protocol beside published")))
        return Table(
            name=name,
            title=title,
            note=self._note(),
            header=(*titles, *(value_title(last, column[last]) for column in self.columns)),
            rows=tuple(rows),
            text_columns=len(titles),
            column_groups=tuple(groups),
            header_notes=(*(() for _ in titles), *noted) if any(noted) else (),
            notes=self._notes({}),
            merged_columns=len(self.row_axes) if self.measured else len(self.row_axes) - 1,
            ruled_rows=tuple(first_rows[1:]),
            hide_std=self.many_columns,
            upright_titles=last == "dataset" and self.many_columns,
        )

    def methods(self) -> list[tuple[str, str]]:
        """Return each method's label and name: zero-shot, then the paper's methods in its order, then all others."""
        labels: dict[str, str] = {}
        for domain in self.axes["domain"]:
            labels |= self.measured.labels.get((self.track, domain), {})
        own = list(labels.items())
        methods = [pair for pair in own if pair[1] == "zero_shot"]
        for name in self.axes["method"]:
            methods += [pair for pair in own if pair[1] == name] or [(name, name)]
        return list(dict.fromkeys([*methods, *own]))

    def _combinations(self, axes: Sequence[Axis]) -> list[Values]:
        """Return every combination of the values on some axes."""
        return [dict(zip(axes, values, strict=True)) for values in product(*(self.axes[axis] for axis in axes))]

    def _positions(self, label: str, block: Values) -> list[Position]:
        """Return the positions of a line's numbers. An axis in neither lines nor columns has one value."""
        only = {axis: own[0] for axis, own in self.axes.items()}
        return [Position(self.track, **{**only, **block, **column, "method": label}) for column in self.columns]

    def _notes(self, values: Mapping[str, object]) -> tuple[str, ...]:
        return notes_on(self.layout.label, values)

    def is_measured(self, label: str, block: Values) -> bool:
        """Return whether any number of a method in a block is measured. One part of a mean is enough."""
        positions = self._positions(label, block)
        return any(self.measured.rows(part) for position in positions for part in self.measured.parts(position))

    def _block_rows(self, block: Values) -> list[tuple[Entry, ...]]:
        """Return the lines of all methods in a block, with best and second best highlighted in each column."""
        from bolt.methods import METHODS  # imports torch

        lines: dict[tuple[str, str, Kind], list[Entry]] = {}
        for label, name in self.methods():
            printed = name in self.axes["method"]
            if not printed and not (name in METHODS and self.is_measured(label, block)):
                continue
            kinds: tuple[Kind, ...] = ("published",) if not self.measured else _KINDS if printed else _KINDS[:1]
            for kind in kinds:
                lines[label, name, kind] = [self._entry(kind, at, name) for at in self._positions(label, block)]
        for kind in ("measured", "published"):
            own = [key for key in lines if key[2] == kind]
            lines.update(zip(own, with_highlights([lines[key] for key in own], 0), strict=True))
        rows = []
        for (label, name, kind), entries in lines.items():
            texts = [Entry(str(block[axis])) for axis in self.row_axes if axis != "method"]
            texts.append(Entry(METHODS[name].title if label == name else label, notes=self._notes({"method": name})))
            texts += [Entry(kind)] if self.measured else []
            rows.append(with_dagger((*texts, *entries), self.measured.selects_on_test and kind != "published"))
        return rows

    def _entry(self, kind: Kind, position: Position, name: str) -> Entry:
        """Return an entry with its footnotes: a measured accuracy, a published one or their difference.

        Args:
            position: the position of the measured accuracy; its ``method`` is the method's label.
            name: the method's name. In ``position``, it replaces the label when the published accuracy is looked up.
        """
        printed = replace(position, method=name)
        zero_shot = self.printed.get(replace(printed, shots=0))  # the paper prints one zero-shot number, valid at all k
        published = self.printed.get(printed, zero_shot)
        if kind == "published":
            return replace(number(published), notes=self._notes(vars(printed)))
        summary = self.measured.summary(position)
        if kind == "difference":
            return difference(summary.mean - published if summary is not None and published is not None else None)
        if summary is None:
            return measured(None, missing=self.measured.missing_text(position))
        seeds = 1 if (self.track, position.method) in self.measured.fixed else self.measured.seeds
        entry = measured(summary, seeds=seeds)
        notes = [_SUBSTITUTE] if self.measured.has_substitutes(position) else []
        if self.many_columns and entry.remark:  # a footnote is narrower than a remark
            entry, notes = replace(entry, remark=""), [*notes, _FEWER_SEEDS]
        return replace(entry, notes=tuple(notes))

    def _note(self) -> str:
        """Return the note below the table, which says how to read it."""
        note = "Accuracy in per cent."
        if self.measured:
            std = "; deviations are in the CSV" if self.many_columns else ", ± sample standard deviation"
            seeds = self.measured.seeds
            note += (
                f" Measured: {f'mean over n = {seeds} seeds{std}' if seeds > 1 else 'one seed'}. A mean over "
                "datasets uses the seeds that have every dataset of the paper. If no seed has all of them, a dash is "
                "printed, with how many were measured. Difference: measured minus published, in points."
            )
        if "zero_shot" in self.axes["method"] and "shots" in self.layout.columns:
            note += " Zero-shot has the same number at every k."
        return note


_DATASET_TABLES = (
    ("general_detail", "general", "General datasets and their fine-tuned models"),
    ("rs_detail", "remote_sensing", "Remote-sensing datasets and their fine-tuned models"),
)
"""Label, domain and title of each table."""


def dataset_tables(grid: GridResults | None = None) -> Iterator[Table]:
    """Yield the paper's tables of datasets and of the accuracy of fine-tuned models.

    Without ``grid``, they have the printed numbers alone. With ``grid``, they also have the accuracies of the grid's
    source models; tables without any of these models are left out.
    """
    names_of, sources = (grid.names_of, grid.sources) if grid else (None, ())
    measured = {names_of(s.backbone, s.dataset): s.fine_tuned_accuracy for s in sources} if names_of else {}
    for label, domain, title in _DATASET_TABLES:
        printed = {(row.backbone, row.dataset): row for row in published_datasets() if row.domain == domain}
        if grid is not None and measured.keys().isdisjoint(printed):
            continue
        backbones = list(dict.fromkeys(backbone for backbone, _ in printed))
        rows = []
        for dataset in dict.fromkeys(dataset for _, dataset in printed):
            first = printed[backbones[0], dataset]
            entries = [Entry(first.printed_as, notes=notes_on(label, {"dataset": dataset})), number(first.classes, "d")]
            for backbone in backbones:
                accuracy, ours = printed[backbone, dataset].finetuned_accuracy, measured.get((backbone, dataset))
                lead = difference(None if ours is None else ours - accuracy)
                entries += [number(ours), number(accuracy), lead] if measured else [number(accuracy)]
            rows.append(tuple(entries))
        note = "Number of classes and accuracy of the fine-tuned model in per cent, as printed"
        columns = [kind for _ in backbones for kind in _KINDS] if measured else backbones
        yield Table(
            name=f"paper_{label}" + ("_beside" if measured else ""),
            title=title + (", measured beside published" if measured else " (published)"),
            note=f"{note}, beside ours and the difference in points." if measured else f"{note}.",
            header=("dataset", "classes", *columns),
            rows=tuple(rows),
            column_groups=(("", 2), *((backbone, 3) for backbone in backbones)) if measured else (),
            notes=notes_on(label, {}),
        )
