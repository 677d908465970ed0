"""The paper's tables in the paper's layout: the published numbers alone, or measured beside published.

A layout says which axes name a line and which a column; the numbers, and their order, come from ``published``. Beside
measured numbers every method has up to three lines: measured, published and their difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from bolt.methods import METHODS
from orchestrator.report.analysis.study import Study
from orchestrator.report.paper.measured import Measured, Spot, measured_of
from orchestrator.report.paper.published import (
    PublishedFootnote,
    PublishedRow,
    published_datasets,
    published_footnotes,
    published_table,
)
from orchestrator.report.tables.table import Entry, Table, difference, flagged, marked, measured, number, word
from orchestrator.util.identity import slug

Axis = Literal["domain", "backbone", "shots", "method", "dataset"]
Line = Literal["measured", "published", "difference"]

DOMAINS = {"general": "General datasets", "remote_sensing": "Remote-sensing datasets", "imagenet": "ImageNet"}
_HEADS: dict[Axis, str] = {"backbone": "backbone", "shots": "k", "method": "method", "dataset": "dataset"}


@dataclass(frozen=True)
class Layout:
    """How one table of the paper is laid out.

    Attributes:
        label: of the table in the paper's source, without ``tab:``.
        rows: the axes that name a line; the method is the last of them.
        columns: the axis of the columns, before it that of the groups over them if there are some.
        split: the axis that makes a table of its own per value where measured numbers triple the lines.
    """

    label: str
    title: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    split: Axis | None = None


LAYOUTS = (
    Layout("fewshot_general_rs_multicol", "Few-shot accuracy by domain", ("method",), ("domain", "shots")),
    Layout("ood_vitb32_k16", "Accuracy out of distribution, ViT-B/32", ("method",), ("dataset",)),
    Layout("OOD_extend_result", "Accuracy out of distribution, larger backbones", ("method",), ("backbone", "dataset")),
    Layout("tta_general", "Accuracy after test-time adaptation", ("method",), ("backbone",)),
    Layout(
        "tta_general_ufm", "Accuracy after test-time adaptation by dataset", ("backbone", "method"), ("dataset",)
    ),
    Layout(
        "fewshot_general_detailed", "Few-shot accuracy by dataset, general", ("backbone", "shots", "method"),
        ("dataset",), split="backbone",
    ),
    Layout(
        "fewshot_remote_detailed", "Few-shot accuracy by dataset, remote sensing", ("backbone", "shots", "method"),
        ("dataset",), split="backbone",
    ),
)  # fmt: skip
SOURCES = (
    ("general_detail", "general", "General datasets and their fine-tuned models"),
    ("rs_detail", "remote_sensing", "Remote-sensing datasets and their fine-tuned models"),
)
"""The tables of datasets: label, domain and title."""

Key = tuple[str | int, ...]


def published_alone() -> Iterator[Table]:
    """Every table of the paper, with its printed numbers and why they may differ from what one would measure."""
    for layout in LAYOUTS:
        yield _Builder(layout, None).table()
    for label, domain, title in SOURCES:
        yield sources_table(label, domain, title, {})


def paper_tables(study: Study) -> Iterator[Table]:
    """The paper's tables that anything of the study belongs into, measured beside published."""
    for found in measured_of(study):
        for layout in LAYOUTS:
            yield from _beside(layout, found)
    if study.names_of is None:
        return
    tuned = {study.names_of(s.backbone, s.dataset): s.fine_tuned_accuracy for s in study.sources}
    for label, domain, title in SOURCES:
        printed = {(row.backbone, row.dataset) for row in published_datasets() if row.domain == domain}
        if own := {(str(b), str(d)): value for (b, d), value in tuned.items() if (b, d) in printed}:
            yield sources_table(label, domain, title, own)


def _beside(layout: Layout, found: Measured) -> Iterator[Table]:
    printed = published_table(f"tab:{layout.label}")
    if not any((row.track, row.domain) in found.places for row in printed):
        return
    values = list(dict.fromkeys(getattr(row, layout.split) for row in printed)) if layout.split else [None]
    for value in values:
        builder = _Builder(layout, found, value)
        if builder.any_measured:
            yield builder.table()


class _Builder:
    """One table from one layout: its keys in the paper's order, then its lines."""

    def __init__(self, layout: Layout, found: Measured | None, part: str | None = None) -> None:
        self.layout, self.found, self.part = layout, found, part
        rows = published_table(f"tab:{layout.label}")
        self.rows = [row for row in rows if part is None or layout.split is None or getattr(row, layout.split) == part]
        self.track = self.rows[0].track
        self.axes: dict[Axis, list[str | int]] = {
            axis: list(dict.fromkeys(_value(row, axis) for row in self.rows)) for axis in _axes()
        }
        if len(self.axes["shots"]) > 1:
            self.axes["shots"] = [k for k in self.axes["shots"] if k]  # zero-shot, which has none, stands at each
        self.printed = {_key(row): row.accuracy for row in self.rows}
        self.columns = list(product(*(self.axes[axis] for axis in layout.columns)))
        self.notes = [note for note in published_footnotes() if layout.label in note.tables]
        self.letters: dict[str, str] = {}

    @property
    def any_measured(self) -> bool:
        """Whether any number of the table is measured, means apart."""
        return any(self.spots(method, where) for method, _ in self.methods() for where in self.blocks())

    def spots(self, method: str, where: Mapping[Axis, str | int]) -> bool:
        """Whether ``method`` has anything measured in a block of lines."""
        spots = (self.spot({**where, **self.column(column)}, method) for column in self.columns)
        assert self.found is not None
        return any(self.found.rows(part) for spot in spots for part in self.found.parts(spot))

    def methods(self) -> list[tuple[str, str]]:
        """Label and name of each method: the baseline, those of the paper in its order, those that only we have."""
        names = [str(name) for name in self.axes["method"]]
        labels: dict[str, str] = {}
        if self.found is not None:
            for domain in self.axes["domain"]:
                labels.update(self.found.methods.get((self.track, str(domain)), {}))
        own = list(labels.items())
        found: list[tuple[str, str]] = [pair for pair in own if pair[1] == "zero_shot"]
        for name in names:
            found += [pair for pair in own if pair[1] == name] or [(name, name)]
        return list(dict.fromkeys([*found, *own]))

    def blocks(self) -> list[dict[Axis, str | int]]:
        """The values of the axes that name a line, the method apart."""
        axes = [axis for axis in self.layout.rows if axis != "method"]
        return [dict(zip(axes, values, strict=True)) for values in product(*(self.axes[axis] for axis in axes))]

    def column(self, values: Sequence[str | int]) -> dict[Axis, str | int]:
        """A column as the axes that it stands for."""
        return dict(zip(self.layout.columns, values, strict=True))

    def spot(self, at: Mapping[Axis, str | int], method: str) -> Spot:
        """The place of a number; what no axis of the layout says is the one thing the whole table is about."""
        value = {axis: at.get(axis, self.axes[axis][0]) for axis in _axes()}
        return Spot(
            self.track, str(value["domain"]), str(value["backbone"]), int(value["shots"]), method, str(value["dataset"])
        )

    def published(self, spot: Spot) -> float | None:
        """The printed accuracy; zero-shot's stands at every k."""
        key: Key = (spot.domain, spot.backbone, spot.shots, spot.method, spot.dataset)
        return self.printed.get(key, self.printed.get((*key[:2], 0, *key[3:])))

    def table(self) -> Table:
        """The finished table."""
        rows: list[tuple[Entry, ...]] = []
        breaks: list[int] = []
        for where in self.blocks():
            breaks += [len(rows)] if rows else []
            rows += self.block(where)
        beside = self.found is not None
        heads = [_HEADS[axis] for axis in self._row_axes] + (["accuracy"] if beside else [])
        *outer, last = self.layout.columns
        groups: list[tuple[str, int]] = []
        if outer:
            width = len(self.axes[last])
            groups = [("", len(heads)), *((_title(outer[0], value), width) for value in self.axes[outer[0]])]
        column_marks = [self.column_marks(self.column(column)) for column in self.columns]
        name = f"paper_{self.layout.label}"
        title = f"{self.layout.title} (published)"
        if self.found is not None:
            name = slug("_".join(filter(None, (name, str(self.part or ""), self.found.protocol))).lower())
            title = ", ".join(
                filter(None, (self.layout.title, self.part, f"{self.found.protocol} protocol beside published"))
            )
        return Table(
            name=name,
            title=title,
            note=self.note(),
            header=(*heads, *(_title(last, column[-1]) for column in self.columns)),
            rows=tuple(rows),
            words=len(heads),
            groups=tuple(groups),
            header_marks=(*("" for _ in heads), *column_marks) if any(column_marks) else (),
            footnotes=_footnotes(self.notes, self.letters),
            merged=len(self._row_axes) if beside else len(self._row_axes) - 1,
            breaks=tuple(breaks),
            compact=self.compact,
            turned=last == "dataset" and len(self.columns) > _MANY,
        )

    @property
    def compact(self) -> bool:
        """Whether deviations are left to the CSV."""
        return len(self.columns) > _MANY

    @property
    def _row_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.layout.rows if self.part is None or axis != self.layout.split)

    def block(self, where: Mapping[Axis, str | int]) -> list[tuple[Entry, ...]]:
        """The lines of all methods at one value of the other axes, best and second marked in each column."""
        methods = [pair for pair in self.methods() if self.shown(*pair, where)]
        lines: dict[tuple[str, Line], list[Entry]] = {}
        for label, name in methods:
            self.marks(method=name)  # gives its notes their letters before those of single numbers
            for line in self.lines(label, name, where):
                lines[label, line] = [
                    self.entry(line, label, name, {**where, **self.column(column)}) for column in self.columns
                ]
        for kind in ("measured", "published"):
            keys = [key for key in lines if key[1] == kind]
            for column in range(len(self.columns)):
                for key, entry in zip(keys, marked([lines[key][column] for key in keys]), strict=True):
                    lines[key][column] = entry
        names = dict(methods)
        rows = []
        for (label, line), entries in lines.items():
            title = METHODS[names[label]].title if label == names[label] else label
            words = [word(str(where[axis])) for axis in self._row_axes if axis != "method"]
            words.append(Entry(title, marks=self.marks(method=names[label])))
            words += [word(line)] if self.found is not None else []
            selected = line != "published" and self.found is not None and self.found.selects_on_test
            rows.append(flagged((*words, *entries), selected))
        return rows

    def shown(self, label: str, name: str, where: Mapping[Axis, str | int]) -> bool:
        """Whether a method has anything in a block, printed or measured."""
        return name in self.axes["method"] or (name in METHODS and self.spots(label, where))

    def lines(self, label: str, name: str, where: Mapping[Axis, str | int]) -> tuple[Line, ...]:
        """Which lines a method has in a block."""
        if self.found is None:
            return ("published",)
        if name not in self.axes["method"]:
            return ("measured",)
        return ("measured", "published", "difference")

    def entry(self, line: Line, label: str, name: str, at: Mapping[Axis, str | int]) -> Entry:
        """One number of one line."""
        spot = self.spot(at, label)
        printed = self.published(replace(spot, method=name))
        if line == "published":
            return replace(number(printed), marks=self.marks(spot=replace(spot, method=name)))
        assert self.found is not None
        summary = self.found.summary(spot)
        if line == "difference":
            return difference(summary.mean - printed if summary is not None and printed is not None else None)
        if summary is None:
            return measured(None, missing=self.found.lacking(spot))
        seeds = 1 if (self.track, label) in self.found.fixed else self.found.seeds
        entry = measured(summary, seeds=seeds)
        texts = [_BORROWED] if self.found.borrowed(spot) else []
        if self.compact and entry.aside:  # a footnote is narrower
            entry, texts = replace(entry, aside=""), [*texts, _FEWER]
        return replace(entry, marks=",".join(map(self.letter, texts)))

    def note(self) -> str:
        """How to read the table."""
        words = "Accuracy in per cent."
        if self.found is not None:
            spread = "; deviations stand in the CSV" if self.compact else ", ± sample standard deviation"
            over = f"mean over n = {self.found.seeds} seeds{spread}" if self.found.seeds > 1 else "one seed"
            words += (
                f" Measured: {over}. Means over datasets are taken for each "
                "seed that has every dataset of the paper; a dash where none has, with how many have anything. "
                "Difference: measured minus published, in points."
            )
        if "zero_shot" in self.axes["method"] and "shots" in self.layout.columns:
            words += " Zero-shot has one number, which stands at every k."
        return words

    def column_marks(self, at: Mapping[Axis, str | int]) -> str:
        """The letters of the notes about a column's dataset alone."""
        dataset = at.get("dataset")
        own = [note for note in self.notes if _keys(note) == {"dataset"} and dataset in note.datasets]
        return ",".join(self.letter(note.text) for note in own)

    def marks(self, *, method: str = "", spot: Spot | None = None) -> str:
        """The letters of the notes about a method alone, or about one number."""
        if spot is None:
            found = [note for note in self.notes if _keys(note) == {"method"} and method in note.methods]
        else:
            found = [note for note in self.notes if len(_keys(note)) > 1 and _matches(note, spot)]
        return ",".join(dict.fromkeys(self.letter(note.text) for note in found))

    def letter(self, text: str) -> str:
        """The letter of a note, the next free one at its first use."""
        return self.letters.setdefault(text, chr(ord("a") + len(self.letters)))


_MANY = 12
"""Columns beyond which numbers stand without their deviations, under upright titles."""
_BORROWED = (
    "Measured, in part at least, under a change of this protocol, which plans no such cell itself: rows.csv says under "
    "which."
)


_FEWER = "Over fewer seeds than the rest; the CSV says how many."


def _footnotes(notes: Sequence[PublishedFootnote], letters: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What holds for the whole table, then what its letters stand for."""
    whole = (("", note.text) for note in notes if not _keys(note))
    return (*whole, *((letter, text) for text, letter in letters.items()))


def _axes() -> tuple[Axis, ...]:
    return ("domain", "backbone", "shots", "method", "dataset")


def _value(row: PublishedRow, axis: Axis) -> str | int:
    value: str | int | None = getattr(row, axis)
    return 0 if value is None else value


def _key(row: PublishedRow) -> Key:
    return tuple(_value(row, axis) for axis in _axes())


def _title(axis: Axis, value: str | int) -> str:
    if axis == "domain":
        return DOMAINS.get(str(value), str(value))
    return f"{value}-shot" if axis == "shots" else str(value)


def _keys(note: PublishedFootnote) -> set[str]:
    keys = {"method": note.methods, "backbone": note.backbones, "dataset": note.datasets, "shots": note.shots}
    return {key for key, values in keys.items() if values}


def _matches(note: PublishedFootnote, spot: Spot) -> bool:
    pairs = ((note.methods, spot.method), (note.backbones, spot.backbone), (note.datasets, spot.dataset),
             (note.shots, spot.shots))  # fmt: skip
    return all(not values or value in values for values, value in pairs)


def sources_table(label: str, domain: str, title: str, tuned: Mapping[tuple[str, str], float]) -> Table:
    """Datasets with the paper's class counts and fine-tuned accuracies, beside the measured ones where there are any.

    Args:
        tuned: measured accuracy by the paper's names of backbone and dataset; empty for the paper's table alone.
    """
    rows = [row for row in published_datasets() if row.domain == domain]
    backbones = list(dict.fromkeys(row.backbone for row in rows))
    printed = {(row.backbone, row.dataset): row for row in rows}
    notes = [note for note in published_footnotes() if label in note.tables]
    letters: dict[str, str] = {}
    lines = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        first = printed[backbones[0], dataset]
        own = [note.text for note in notes if dataset in note.datasets]
        marks = ",".join(letters.setdefault(text, chr(ord("a") + len(letters))) for text in own)
        entries = [Entry(first.printed_as, marks=marks), number(first.classes, "d")]
        for backbone in backbones:
            accuracy, value = printed[backbone, dataset].finetuned_accuracy, tuned.get((backbone, dataset))
            if tuned:
                entries += [number(value), number(accuracy), difference(None if value is None else value - accuracy)]
            else:
                entries.append(number(accuracy))
        lines.append(tuple(entries))
    words = "Number of classes and accuracy of the fine-tuned model in per cent, as printed"
    words += ", beside ours and the difference in points." if tuned else "."
    own_columns = ("measured", "published", "difference")
    header = [column for _ in backbones for column in own_columns] if tuned else backbones
    return Table(
        name=f"paper_{label}" + ("_beside" if tuned else ""),
        title=title + (", measured beside published" if tuned else " (published)"),
        note=words,
        header=("dataset", "classes", *header),
        rows=tuple(lines),
        groups=(("", 2), *((backbone, 3) for backbone in backbones)) if tuned else (),
        footnotes=_footnotes(notes, letters),
    )
