"""Prints and parses quantities: counts, bytes, durations and lists of names."""

import re
from collections.abc import Sequence

from orchestrator.util.errors import UserError, short_repr


def pluralize(count: int | str, what: str) -> str:
    """Return a count with a noun in the singular or plural: ``1 dataset``, ``8 datasets``, ``3 / 4 test sets``."""
    return f"{count} {what}" if str(count) == "1" else f"{count} {what}s"


def listed(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first ``most`` texts, joined, and the number of further texts: ``a, b and 3 more``."""
    more = len(texts) - most
    return separator.join(texts[:most]) + (f"{separator.replace(',', '')}and {more} more" if more > 0 else "")


def first_lines(text: str, most: int = 21) -> str:
    """Return the first ``most`` lines of a text. If there are more, a last line says how many."""
    lines = text.splitlines()
    more = len(lines) - most
    return "\n".join([*lines[:most], *([f"    and {more} more"] if more > 0 else [])])


def human_bytes(count: float) -> str:
    """Return a number of bytes with a binary unit: ``512 B``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_duration(seconds: float) -> str:
    """Return a duration for people: ``45 s``, ``3 h 05 min``, ``2 d 4 h``, ``20 d`` or ``3 years``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if (minutes := round(seconds / 60)) < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    if days < 14:
        return f"{days} d {hours} h"
    return f"{days} d" if days < 730 else f"{days / 365.25:,.0f} years"


def parse_bytes(text: str, where: str) -> int:
    """Return the bytes of a size such as ``200GB`` (10^9) or ``1.5TiB`` (2^40). Raises ``UserError`` with ``where``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?))?B?\s*", text.upper())
    if found is None or not 0 < float(found[1]) < 1e15:
        raise UserError(f"{short_repr(text)} is not a size", where=where, hint="for example 200GB, 1.5TB or 500GiB")
    base, power = 1024 if found[3] else 1000, "BKMGT".index(found[2] or "B")
    return int(float(found[1]) * base**power)


def parse_duration(text: str, where: str) -> float:
    """Return the seconds of ``90s``, ``45min``, ``6h`` or ``2d``. A bare number is in seconds. Raises ``UserError``."""
    if (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?\s*", text.lower())) is None:
        raise UserError(f"{short_repr(text)} is not a duration", where=where, hint="for example 90s, 45min, 6h or 2d")
    return float(found[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2] or "s"]
