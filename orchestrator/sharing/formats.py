"""Rows of results as CSV, JSON or Parquet, without pandas, which takes half a second to import."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import get_type_hints

from orchestrator.analysis.rows import Row
from orchestrator.sharing.frames import COLUMNS, records


def to_csv(rows: Sequence[Row]) -> bytes:
    """A header and one line for each row; a missing value is an empty field."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records(rows))
    return stream.getvalue().encode()


def to_json(rows: Sequence[Row]) -> bytes:
    """A list of objects, one for each row; a missing value is ``null``."""
    return json.dumps(records(rows), indent=1, ensure_ascii=False).encode() + b"\n"


def to_parquet(rows: Sequence[Row]) -> bytes:
    """An Apache Parquet file with one column for each name of ``COLUMNS``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}
    hints = get_type_hints(Row)
    schema = pa.schema([(name, types.get(hints[name], pa.float64())) for name in COLUMNS])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records(rows), schema), sink)
    return sink.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[Row]], bytes]] = {"csv": to_csv, "json": to_json, "parquet": to_parquet}
