"""A bundle: one zip file with a grid's results and the tables made from them, which anybody can check.

docs/results.md describes bundles.

Results and failures are the stored records, unchanged. Rows, tables and verdicts are computed from these records alone,
so that a check can compute them again. The manifest has the size and the checksum of every other file. The archive's
comment is the checksum of all bytes before the comment, which also detects changed bytes between the files.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from bolt.util.json_text import parse_json
from orchestrator import __version__
from orchestrator.analysis import CostKind
from orchestrator.analysis.raced_places import grid_races
from orchestrator.analysis.rows import labels_of
from orchestrator.artifacts.head import EqualClasses
from orchestrator.core.cell import Cell
from orchestrator.core.recipes import SourceRecipe
from orchestrator.planning.plan import Plan
from orchestrator.report.analysis import GridResults
from orchestrator.report.grid_report import text_limits
from orchestrator.report.registry import report_tables
from orchestrator.report.tables.formats import FILE_FORMATS
from orchestrator.report.write import all_of, rows_csv, table_files, verdict_file
from orchestrator.sharing.frames import COLUMNS, check_finished
from orchestrator.store import Store
from orchestrator.store.files import LARGEST
from orchestrator.store.predictions import StoredPredictions, checked_predictions
from orchestrator.store.results import Failure, Result, failed_for_good
from orchestrator.tracks import MetricName
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.errors import UserError
from orchestrator.util.identity import slug

FORMAT = 1
MANIFEST, CELLS, TEXT_LIMITS = "manifest.json", "cells.json", "text_limits.json"
MOST_GROWTH = 100
"""A file that unpacks to more than this many times its size is no bundle. The bundle of the largest grid unpacks to 20
times its size."""

MOST_BYTES = 2**32
"""The largest size of a bundle in bytes, packed or unpacked. A file in a bundle has at most :data:`LARGEST` bytes."""

_COMMENT = b"sha256:"
_COMMENT_SIZE = len(_COMMENT) + 64
_DATE = (1980, 1, 1, 0, 0, 0)
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError)


@dataclass
class Bundle:
    """The content of a bundle, as far as it can be read.

    Attributes:
        manifest: the content of ``manifest.json``; empty if the file cannot be read.
        files: name -> content of every other file that is intact.
        problems: name of a file, or ``archive`` for the whole bundle -> what is wrong.
        cells: cell id -> the cell and its label, in the order of the grid.
        results: the results of the finished cells, in the same order.
        predictions: cell id -> the predictions on each test split.
        failures: the failures of the cells without a result.
        text_limits: the classes that the text tower cannot tell apart.
        version: the version of the project that wrote the bundle. Tables of another version may have other columns.
    """

    manifest: Mapping[str, Any]
    files: Mapping[str, bytes]
    problems: dict[str, str] = field(default_factory=dict)
    cells: dict[str, tuple[Cell, str]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    predictions: dict[str, tuple[StoredPredictions, ...]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    text_limits: tuple[EqualClasses, ...] = ()

    @property
    def version(self) -> str:
        project = self.manifest.get("project")
        return str(project.get("version", "?")) if isinstance(project, dict) else "?"

    def read_records(self) -> Bundle:
        """Read the records from the files, note damaged and missing files as problems, and return this object."""
        try:
            self.cells = _read_cells(self.files[CELLS])
            self.text_limits = TypeAdapter(tuple[EqualClasses, ...]).validate_json(self.files[TEXT_LIMITS])
        except KeyError as missing:
            self.problems.setdefault(missing.args[0], "it is missing")
        except ValueError as error:
            self.problems[TEXT_LIMITS if self.cells else CELLS] = str(error)
        results = {}
        for name in self.files if self.cells else ():
            if not name.startswith("results/") or not name.endswith(".json"):
                continue
            cell_id, at = name.removeprefix("results/").removesuffix(".json"), name
            try:
                result = Result.of_cell(cell_id, self.files[name])
                if cell_id not in self.cells or result.cell != self.cells[cell_id][0]:
                    raise ValueError(f"{CELLS} has no such cell")
                at = f"results/{cell_id}.npz"
                if predictions := checked_predictions(self.files.get(at), result):
                    self.predictions[cell_id] = predictions
                results[cell_id] = result
            except ValueError as error:
                self.problems[at] = str(error)
        self.results = [results[cell_id] for cell_id in self.cells if cell_id in results]
        for name in (name for name in self.files if name.startswith("failures/")):
            try:
                self.failures.append(Failure.from_json(self.files[name]))
            except ValueError as error:
                self.problems[name] = str(error)
        return self

    def derived_files(self) -> dict[str, bytes]:
        """Return ``rows.csv``, ``verdict.json`` and the report's tables, ``tables/*.csv``, made from the records.

        Tables of source models and of the paper's numbers are left out: they need more than results and failures.
        """
        cells, metric = [cell for cell, _ in self.cells.values()], self.manifest["metric"]
        smallest, failed = float(self.manifest["smallest_difference"]), self.manifest["raced"]

        def label_of(cell: Cell) -> str:
            return self.cells[cell.id][1]

        def read(asked: Sequence[Result]) -> dict[str, tuple[StoredPredictions, ...]]:
            return {one.cell.id: self.predictions[one.cell.id] for one in asked if one.cell.id in self.predictions}

        races = grid_races(cells, label_of, self.results, failed, metric, read, smallest) if failed is not None else ()
        arranged = GridResults(
            results=self.results,
            failures=self.failures,
            planned=cells,
            label_of=label_of,
            read_predictions=read,
            text_limits=self.text_limits,
            smallest_difference=smallest,
            saves=self.manifest["cost"],
            metric=metric,
            raced=races,
        )
        tables = all_of(report_tables(arranged))
        return {
            "rows.csv": rows_csv(arranged.rows, COLUMNS),
            "verdict.json": verdict_file(arranged.verdict_records()),
            **table_files({slug(table.name): table for table in tables}, {"csv": FILE_FORMATS["csv"]}),
        }


def make_bundle(
    plan: Plan, grid_files: Iterable[Path], store: Store, path: Path, overrides: Sequence[str] = ()
) -> tuple[int, int]:
    """Write the bundle of a grid to ``path``, and return its numbers of results and failures.

    ``grid_files``: the grid's file, and the files that it includes; ``overrides``: values of ``--set``. Raises
    ``UserError`` if no cell has finished, or if the file cannot be written.
    """
    check_finished(plan.done, plan.grid.given, store)
    names = [f"results/{result.cell.id}.{ending}" for result in plan.done for ending in ("json", "npz")]
    records = zip(names, store.files.read_many(names), strict=True)
    files = {
        **{f"grid/{number}-{file.name}": file.read_bytes() for number, file in enumerate(grid_files)},
        **({"grid/set.txt": "\n".join(overrides).encode()} if overrides else {}),
        "catalog.json": _json(_catalog_entries(plan)),
        CELLS: _json(_cell_records(plan)),
        TEXT_LIMITS: _json([asdict(limit) for limit in text_limits(plan, store)]),
        **{name: record for name, record in records if record is not None},
        **{f"failures/{failure.id}.json": failure.to_json().encode() for failure in plan.failed},
    }
    bundle = Bundle(_manifest(plan), files).read_records()
    write_bundle(path, bundle.manifest, files | bundle.derived_files())
    return len(bundle.results), len(plan.failed)


def write_bundle(path: Path, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a bundle atomically. With the same version of zlib, equal arguments give equal bytes.

    Raises ``UserError`` if the file cannot be written.
    """
    listed = {name: {"size": len(content), "sha256": _digest(content)} for name, content in sorted(files.items())}
    text = _json({"format": FORMAT, **manifest, "files": listed})
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in [(MANIFEST, text), *sorted(files.items())]:
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
        # These dashes make room for the checksum. The archive stores their length before them, so it is covered too.
        archive.comment = b"-" * _COMMENT_SIZE
    body = stream.getvalue()[:-_COMMENT_SIZE]
    with writing("the bundle", f"-o {path}"), replacing(path) as partial:
        partial.write_bytes(body + _COMMENT + _digest(body).encode())


def read_bundle(path: Path) -> Bundle:
    """Read a bundle, and check every byte and every record. Raises ``UserError`` if the file cannot be read."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            return Bundle({}, {}, {"archive": f"this is no bundle: the file has {size / 2**30:.0f} GiB"})
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"the bundle cannot be read: {error.strerror or error}", where=str(path)) from None
    found, problems = {}, {}
    try:
        for name, member in _members(content):
            if isinstance(member, bytes):
                found[name] = member
            else:
                problems[name] = f"it is damaged: {member}"
    except _UNREADABLE as error:
        return Bundle({}, {}, {"archive": f"this is no bundle, or its table of contents is damaged: {error}"})
    if not (manifest := _read_manifest(found.pop(MANIFEST, b""))):
        problems.setdefault(MANIFEST, "the file is missing, or is not the manifest of a bundle")
    listed = manifest.get("files", {})
    for name in listed.keys() | found.keys() if listed else ():
        if name not in found:
            problems.setdefault(name, "the manifest lists this file, but the file is missing")
        elif name not in listed:
            problems[name] = "the manifest does not list this file"
        elif listed[name] != {"size": len(found[name]), "sha256": _digest(found[name])}:
            problems[name] = "the file's checksum is not the one in the manifest"
    if not problems and content[-_COMMENT_SIZE:] != _COMMENT + _digest(content[:-_COMMENT_SIZE]).encode():
        problems["archive"] = "bytes between the files were changed, but not the files themselves"
    intact = {name: member for name, member in found.items() if name not in problems}
    return Bundle(manifest, intact, problems).read_records()


def _members(content: bytes) -> Iterator[tuple[str, bytes | Exception]]:
    """Yield the name of every file in an archive, with its content or with the error of reading it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if (size := sum(entry.file_size for entry in entries)) > min(MOST_GROWTH * len(content), MOST_BYTES):
            raise ValueError(f"it unpacks to {size} bytes: over {MOST_BYTES} or {MOST_GROWTH} times its packed size")
        for entry in entries:
            try:
                if entry.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
                    raise ValueError("bundles use no such compression")  # other methods may unpack without limit
                if entry.file_size > LARGEST:
                    raise ValueError(f"the file has {entry.file_size / 2**20:.0f} MiB, more than any file of a bundle")
                with archive.open(entry) as stream:
                    yield entry.filename, stream.read(entry.file_size)
            except _UNREADABLE as error:
                yield entry.filename, error


def _read_manifest(content: bytes) -> dict[str, Any]:
    """Return the manifest with defaults for the fields that earlier versions lack; empty if it is not valid."""
    try:
        manifest = parse_json(content)
        smallest = manifest.setdefault("smallest_difference", 0)
        known = manifest["format"] == FORMAT and isinstance(manifest["files"], dict)
        known &= manifest.setdefault("cost", "operations") in get_args(CostKind)
        known &= manifest.setdefault("metric", None) in (None, *get_args(MetricName))
        known &= isinstance(manifest.setdefault("raced", None), list | None)
        return dict(manifest) if known and type(smallest) in (int, float) and smallest > 0 else {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _manifest(plan: Plan) -> dict[str, Any]:
    """Return the manifest without the list of files.

    Its entry ``measured_with`` lists each combination of commit, packages, device and threads of the results once.
    """
    fields, grid = ("commit", "dirty", "versions", "device", "threads"), plan.grid
    measured_with = dict.fromkeys(
        json.dumps({name: getattr(result.manifest, name) for name in fields}) for result in plan.done
    )
    return {
        "grid": grid.name,
        "title": grid.title,
        "description": grid.description,
        "smallest_difference": grid.smallest_difference,
        "cost": grid.saves,
        "metric": grid.metric,
        "raced": sorted(failed_for_good(plan.failed)) if plan.raced else None,
        "project": {"name": "bolt-orchestrator", "version": __version__},
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "measured_with": [json.loads(text) for text in measured_with],
    }


def _catalog_entries(plan: Plan) -> dict[str, Any]:
    """Return the catalog's entries that the grid uses, by section and key."""
    grid = plan.grid
    domains = dict.fromkeys(cell.domain for cell in grid.cells)
    return {
        "domains": {name: plan.catalog.domain(name).model_dump(mode="json") for name in domains},
        "datasets": {name: entry.model_dump(mode="json") for name, entry in grid.datasets.items()},
        "backbones": {name: entry.model_dump(mode="json") for name, entry in grid.backbones.items()},
        "checkpoints": [entry.model_dump(mode="json", exclude={"file"}) for entry in grid.adopted_checkpoints],
    }


def _cell_records(plan: Plan) -> dict[str, Any]:
    """Return the content of ``cells.json``: the cells with their labels, and the source models.

    A source model has a recipe or, if it was adopted, the checksum of its checkpoint.
    """
    labels = labels_of(plan.grid.cells, plan.grid.label)
    sources = [
        {
            "dataset": ref.dataset,
            "digest": ref.digest,
            "backbone": source.backbone.name,
            "precision": source.backbone.precision,
            "recipe": asdict(source.recipe) if isinstance(source.recipe, SourceRecipe) else None,
            "adopted": None if isinstance(source.recipe, SourceRecipe) else source.recipe.sha256,
        }
        for ref, source in plan.grid.sources.items()
    ]
    cells = [{"id": cell.id, "label": labels[cell.id], "cell": cell.to_dict()} for cell in plan.grid.cells]
    return {"cells": cells, "sources": sources}


def _read_cells(content: bytes) -> dict[str, tuple[Cell, str]]:
    """Return id -> (cell, label) from ``cells.json``. Raises ``ValueError`` if the file is damaged or has no cell."""
    try:
        found = {}
        for record in json.loads(content)["cells"]:
            cell = Cell.from_dict(record["cell"])
            if cell.id != record["id"]:
                raise ValueError(f"the record named {record['id']} describes the cell {cell.id}")
            found[cell.id] = cell, str(record["label"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the file cannot be read: {type(error).__name__} {error}") from None
    if not found:
        raise ValueError("it names no cells")
    return found


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
