"""Quantities in words."""

from __future__ import annotations


def counted(count: int | str, what: str) -> str:
    """A number of things named in the singular: ``1 dataset``, ``8 datasets``, ``3 / 4 test sets``."""
    return f"{count} {what}" if str(count) == "1" else f"{count} {what}s"


def human_bytes(count: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
