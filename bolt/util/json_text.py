"""Parses JSON from untrusted sources."""

import json
from pathlib import Path
from typing import Any

_LARGEST = 256 * 2**20


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ``ValueError`` for other text, and for lists or objects that are nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises ``OSError``, or ``ValueError`` for a file that is not JSON or exceeds 256 MiB."""
    if (size := path.stat().st_size) > _LARGEST:
        raise ValueError(f"it has {size / 2**20:.0f} MiB; at most {_LARGEST // 2**20} MiB are read")
    return parse_json(path.read_text(encoding="utf-8"))
