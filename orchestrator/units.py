"""Quantities in words."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
