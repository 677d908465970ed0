"""The number of cases, and the hypothesis strategies that the fuzz tests share.

``make test`` tries the same cases every time. ``make fuzz`` sets ``BOLT_FUZZ``, which tries ten times as many random
cases. A failing case is printed so that it can be repeated; add it to its test as an ``@example`` when it is fixed.
"""

import os
from collections.abc import Callable
from copy import deepcopy
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from orchestrator.util.errors import UserError

WIDE = "BOLT_FUZZ" in os.environ
Test = TypeVar("Test", bound=Callable[..., Any])
HEALTH = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large)


def cases(count: int) -> settings:
    """Return the hypothesis settings of a test that tries ``count`` cases in ``make test``."""
    return settings(
        max_examples=10 * count if WIDE else count,
        derandomize=not WIDE,
        database=None,
        deadline=None,
        suppress_health_check=HEALTH,
        print_blob=True,
    )


NAN, INF = float("nan"), float("inf")
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 10**9, 10**30, -(2**63), 0.0, 0.5, -0.0, 1e308, 1e-320, NAN, INF,
    "", " ", "1", "4.0", "null", "../x", "/etc/passwd", "..", ".", "a/../b", "a\0b", "a\\b", "x" * 3000, "-", "--help",
    "zero_shot", "glyph-digits", "glyph-digit", "Glyph-Digits", "tiny-clip", "strict", "open_clip.create", "<script>",
    "{}", "{0.__class__}", "%s", "$HOME", "é", "\u202egnp", "\U0001f40d", "\ud7ff", "ﬁ", "İ", "a\nb", "\t",
    [], [[]], [None], [1], [1, 1], ["glyph-digits"] * 2, {}, {"name": {}}, {"": 1}, {1: 2}, {"a": {"b": []}},
    (1, 2), date(2026, 1, 1), b"\x00\xff", {"x", "y"},
)  # fmt: skip
"""Values of unexpected types and ranges."""
odd = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=8)


@st.composite
def damaged(draw: st.DrawFn, whole: Any, most: int = 3) -> Any:
    """Draw plain data with up to ``most`` changes: a value replaced, removed, wrapped or copied, or a key renamed."""
    data = deepcopy(whole)
    for _ in range(draw(st.integers(0, most))):
        places = list(_places(data))
        if not places:
            return data
        container, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(("replace", "replace", "remove", "wrap", "rename", "copy"))):
            case "replace":
                container[key] = deepcopy(draw(odd))
            case "remove":
                del container[key]
            case "wrap":
                container[key] = [container[key]]
            case "rename" if isinstance(container, dict):
                container[draw(near(str(key)))] = container.pop(key)
            case _:
                other, from_ = draw(st.sampled_from(places))
                if from_ in other if isinstance(other, dict) else from_ < len(other):
                    container[key] = deepcopy(other[from_])
    return data


def _places(data: Any) -> Any:
    """Yield every (collection, key) in a tree of dictionaries and lists."""
    if isinstance(data, dict | list):
        for key in list(data) if isinstance(data, dict) else range(len(data)):
            yield data, key
            yield from _places(data[key])


@st.composite
def near(draw: st.DrawFn, word: str) -> str:
    """Draw a misspelling of ``word``: a letter removed, added or replaced, or the word in capitals or with an ``s``."""
    at = draw(st.integers(0, max(0, len(word) - 1)))
    other = draw(st.sampled_from("abz_- 0é/."))
    return draw(st.sampled_from((word[:at] + word[at + 1 :], word[:at] + other + word[at:], word.upper(), word + "s")))


@st.composite
def spoiled(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw damaged bytes: truncated, flipped, removed, repeated, inserted or zeroed; never equal to ``content``."""
    at = draw(st.integers(0, len(content)))
    to = draw(st.integers(at, min(len(content), at + 40)))
    match draw(st.sampled_from(("cut", "flip", "drop", "double", "insert", "zero"))):
        case "cut":
            made = content[:at]
        case "flip":
            spot = min(at, len(content) - 1)
            made = content[:spot] + bytes([content[spot] ^ (1 << draw(st.integers(0, 7)))]) + content[spot + 1 :]
        case "drop":
            made = content[:at] + content[to:]
        case "double":
            made = content[:to] + content[at:]
        case "insert":
            made = content[:at] + draw(st.binary(min_size=1, max_size=6)) + content[at:]
        case _:
            made = content[:at] + bytes(to - at) + content[to:]
    return made if made != content else content[:-1]


def check_message(error: UserError) -> None:
    """Check that an error names the place and the problem, has no traceback, and is short enough to read."""
    text = str(error)
    assert error.where, text
    assert error.what, text
    assert len(text) < 2000, f"{len(text)} characters: {text[:300]}"
    assert "Traceback" not in text


def written(folder: Path, data: Any, name: str = "case.yaml") -> Path:
    """Write data as a YAML file, and bytes as they are. Data that YAML cannot represent is written as its ``repr``."""
    path = folder / name
    if isinstance(data, bytes):
        path.write_bytes(data)
        return path
    try:
        path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except (yaml.YAMLError, UnicodeEncodeError):
        path.write_text(repr(data).encode("ascii", "replace").decode())
    return path
