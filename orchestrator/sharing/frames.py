"""Results for Python code and other programs: data frames, arrays of predictions, verdicts, and tables as files."""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from orchestrator.analysis.rows import ROW_FIELDS, Row, row_list
from orchestrator.analysis.scores import check_scored, scores_of, unscored_sentence
from orchestrator.core.settings import RunSettings
from orchestrator.planning.cell_counts import damaged_sentence
from orchestrator.progress.status_file import last_run, set_values, was_raced
from orchestrator.sharing.grid_listing import GridListing, absent_files, expand_grid, list_grid
from orchestrator.store import Store
from orchestrator.store.predictions import StoredPredictions
from orchestrator.store.results import Result
from orchestrator.tracks import MetricName
from orchestrator.util.errors import UserError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.analysis.verdict_series import VerdictSeries

Records = list[dict[str, Any]]
"""The rows of a table: name of a column -> value. All rows have the same columns."""

PathOrUrl = str | os.PathLike[str]

COLUMNS = tuple(name for name in ROW_FIELDS if name not in ("published", "delta"))
"""The columns of :func:`results`. A report's ``rows.csv`` has the paper's numbers too."""
METRIC_PLACE = ("track", "protocol", "backbone", "domain", "dataset", "evaluated_on", "k", "method", "seed", "total",
                "cell_id", "accuracy")  # fmt: skip
"""The columns of :func:`metric_records` before the metrics."""
_OPTIONAL = ("score_zero_shot", "accuracy_own_classes", "accuracy_zero_shot_own_classes")


def results(
    store: PathOrUrl,
    grid: PathOrUrl,
    *,
    catalog: Sequence[PathOrUrl] = (),
    data_root: PathOrUrl | None = None,
    set_: Sequence[str] | None = None,
    metric: MetricName | None = None,
) -> pd.DataFrame:
    """Return the results of a grid, one row for each finished cell and test split.

    Args:
        store: folder or URL of a store.
        grid: a grid's name, or the path of a grid file.
        catalog: your own catalog files that the grid needs.
        data_root: the folder of your own datasets.
        set_: values of ``--set``, such as ``"shots=[1]"``; by default those of the grid's last run in the store.
        metric: the metric of the column ``score``; by default that of the grid or, if it has none, of each track.
            Results that lack the predictions for this metric are left out, with a warning.

    Returns:
        A frame with the columns of docs/results.md: accuracies in per cent, times in seconds, memory in MiB.

    Raises ``UserError`` if the grid, the catalog or the metric is not valid, or if no cell has finished, and
    ``TypeError`` if ``catalog`` or ``set_`` is a text, not a list.
    """
    import pandas as pd

    rows, unscored = result_rows(*_asked(store, grid, catalog, data_root, set_, metric), metric)
    if unscored:
        warnings.warn(unscored, stacklevel=2)
    return pd.DataFrame(row_records(rows)).astype(dict.fromkeys(_OPTIONAL, float))  # None becomes NaN


def predictions(
    store: PathOrUrl,
    grid: PathOrUrl,
    *,
    catalog: Sequence[PathOrUrl] = (),
    data_root: PathOrUrl | None = None,
    set_: Sequence[str] | None = None,
) -> dict[tuple[str, str], StoredPredictions]:
    """Return the predictions of a grid's cells on every test image.

    Returns:
        A map from ``(cell_id, evaluated_on)``, two columns of :func:`results`, to the arrays ``labels``, ``predicted``
        and ``probability``, (N,) for N test images. Cells that were measured without predictions are left out.

    Arguments and errors are those of :func:`results`.
    """
    opened, listing = Store(store), list_grid(*_asked(store, grid, catalog, data_root, set_))
    by_cell = opened.read_predictions(finished_results(opened, os.fspath(grid), listing)[0])
    return {(cell_id, split.dataset): split for cell_id, splits in by_cell.items() for split in splits}


def verdict(
    store: PathOrUrl,
    grid: PathOrUrl,
    *,
    catalog: Sequence[PathOrUrl] = (),
    data_root: PathOrUrl | None = None,
    set_: Sequence[str] | None = None,
    metric: MetricName | None = None,
) -> tuple[VerdictSeries, ...]:
    """Return the verdicts of a grid's report: which methods may be the best.

    Returns:
        A series for each track, protocol, domain and backbone. ``series.at(4).best_set`` names the methods at k = 4,
        and ``series.records()`` gives the fields of ``verdict.json``.

    Arguments and errors are those of :func:`results`.
    """
    from orchestrator.planning.plan import Plan
    from orchestrator.report.grid_report import read_grid_results

    opened = Store(store)
    given, settings, overrides = _asked(store, grid, catalog, data_root, set_, metric)
    loaded, entries = expand_grid(given, settings, overrides)
    asked = replace(loaded, metric=metric or loaded.metric)
    raced = was_raced(last_run(opened.files, grid), asked.race)
    plan = Plan(asked, entries, None, asked.cells, sources={}, raced=raced).with_outcomes(opened)
    check_finished(plan.done, given, opened, absent_files(asked, settings.data_folder))
    return read_grid_results(plan, opened).verdicts


def _asked(
    store: PathOrUrl, grid: PathOrUrl, catalog: Sequence[PathOrUrl], data_root: PathOrUrl | None,
    set_: Sequence[str] | None, metric: str | None = None,
) -> tuple[str, RunSettings, Sequence[str]]:  # fmt: skip
    """Return the grid, the settings and the values of ``--set`` for the arguments of a public function."""
    if alone := next((each for each in (catalog, set_) if isinstance(each, str | os.PathLike)), None):
        raise TypeError(f"catalog and set_ are lists, such as [{os.fspath(alone)!r}]")
    if metric is not None and metric not in get_args(MetricName):
        raise unknown_name("metric", metric, get_args(MetricName))
    root = None if data_root is None else os.path.expanduser(data_root)
    settings = RunSettings(os.fspath(store), root, catalog_files=tuple(map(os.path.expanduser, catalog)))
    return os.fspath(grid), settings, set_values(last_run(Store(store).files, grid), set_)


def finished_results(store: Store, grid: str, listing: GridListing) -> tuple[list[Result], str]:
    """Return the results of a grid's finished cells, and a sentence about damaged ones and about absent files.

    Raises ``UserError`` if no cell has finished.
    """
    done, damaged = store.read_results(listing.labels)
    check_finished(done, grid, store, listing.absent)
    return done, "; ".join(filter(None, (damaged_sentence(damaged), listing.absent)))


def check_finished(done: Collection[Result], grid: str, store: Store, absent: str = "") -> None:
    """Raise ``UserError`` if none of a grid's cells has finished. ``absent``: the sentence of :func:`absent_files`."""
    if not done:
        hint = absent or f"python -m orchestrator grid {grid}"
        raise UserError(f"no cell of {grid} has finished", where=store.url, hint=hint)


def result_rows(
    grid: str, settings: RunSettings, overrides: Sequence[str] = (), metric: MetricName | None = None
) -> tuple[list[Row], str]:
    """Return the rows of a grid's finished cells, and a sentence about results without a row.

    Damaged results and results without a score have no row. The sentence is empty if there are no such results.

    ``overrides``: values of ``--set``; ``metric``: by default the metric of the grid or, if it has none, of each track.

    Raises ``UserError`` if no cell has finished, or if no finished cell has a score.
    """
    listing, store = list_grid(grid, settings, overrides), Store(settings.store_url)
    done, damaged = finished_results(store, grid, listing)
    chosen = metric or listing.metric
    rows = row_list(done, listing.labels, scores_of(done, chosen, store.read_predictions))
    check_scored(rows, chosen, listing.name)
    unscored = unscored_sentence(done, {row.cell_id for row in rows})
    return rows, "; ".join(filter(None, (damaged, unscored)))


def metric_records(grid: str, settings: RunSettings, overrides: Sequence[str] = ()) -> tuple[Records, str]:
    """Return the metrics of all stored predictions, and a sentence about results without metrics.

    There is a record for each finished cell and test split. Results without metrics are damaged, or have no stored
    predictions. The sentence is empty if there are no such results.

    Raises ``UserError`` if no cell has finished, or if no finished cell has predictions.
    """
    store = Store(settings.store_url)
    listing = list_grid(grid, settings, overrides)
    done, damaged = finished_results(store, grid, listing)
    predictions = store.read_predictions(done)
    rows = {(row.cell_id, row.evaluated_on): row for row in row_list(done, listing.labels, scores_of(done))}
    check_scored(predictions, None, listing.name)
    records = [
        {name: getattr(rows[cell_id, split.dataset], name) for name in METRIC_PLACE} | _with_intervals(split)
        for cell_id, splits in predictions.items()
        for split in splits
    ]
    return records, "; ".join(filter(None, (damaged, unscored_sentence(done, predictions))))


def _with_intervals(split: StoredPredictions) -> dict[str, float]:
    """Return the value of every metric, and the ends of the metric's 95 % interval if it has one."""
    from orchestrator.analysis.metric_intervals import intervals
    from orchestrator.analysis.metrics import METRICS, Answers

    answers = Answers.of(split)
    found: dict[str, float] = {}
    for name, interval in intervals(answers).items():
        if name != "accuracy":  # the record has the accuracy already
            found[name] = METRICS[name].of(answers)
        if interval is not None:
            found |= {f"{name}_low": interval[0], f"{name}_high": interval[1]}
    return found


# -- tables as files, without pandas, which takes half a second to import --------------------------------------------


def to_csv(records: Records) -> bytes:
    """Return the records as CSV with a header. A missing value is an empty field."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue().encode()


def _to_json(records: Records) -> bytes:
    return json.dumps(records, indent=1, ensure_ascii=False).encode() + b"\n"


def _to_parquet(records: Records) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {str: pa.string(), MetricName: pa.string(), int: pa.int64(), bool: pa.bool_()}
    hints = get_type_hints(Row)
    schema = pa.schema([(name, types.get(hints.get(name, float), pa.float64())) for name in records[0]])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records, schema), sink)
    return sink.getvalue()


def row_records(rows: Sequence[Row]) -> Records:
    """Return the rows with the columns of :data:`COLUMNS`."""
    return [{name: getattr(row, name) for name in COLUMNS} for row in rows]


FORMATS: Mapping[str, Callable[[Records], bytes]] = {"csv": to_csv, "json": _to_json, "parquet": _to_parquet}
"""Format -> the function that turns records into the content of a file."""
