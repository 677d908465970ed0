"""Canonical encoding: it never changes, ignores the order of mappings, and refuses unknown types."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.util.identity import address, canonical_json, encode, fingerprint, slug

plain = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@dataclass(frozen=True)
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("value", "text", "digits"),
    [
        (None, "null", "8e0ba1bd"),
        (1, "1", "d6b5915c"),
        (1.0, "1.0", "518f842c"),
        (1e-05, "1e-05", "82dadffa"),
        (True, "true", "d7918e19"),
        ({"b": 1, "a": [1, (2, 3)]}, '{"a":[1,[2,3]],"b":1}', "60094e8c"),
        (Point(1, 2.5), '{"x":1,"y":2.5}', "e635b897"),
        (frozenset({"b", "a"}), '["a","b"]', "d1a9f2e7"),
        ("é\n", '"\\u00e9\\n"', "5bb1d0d5"),
    ],
)
def test_encodings_are_pinned(value: Any, text: str, digits: str) -> None:
    assert canonical_json(value) == text
    assert fingerprint(value) == digits


UNKNOWN = [Path("x"), {1, 2}, b"x", object(), Point, 1j, {"a": Path("x")}]


@pytest.mark.parametrize(
    ("error", "says", "value"),
    [
        *((TypeError, "cannot fingerprint", value) for value in UNKNOWN),
        *((ValueError, "has no identity", value) for value in (math.nan, math.inf, -math.inf, [math.nan])),
        (TypeError, "only text keys", {1: "a"}),
    ],
)
def test_what_has_no_identity_is_refused(error: type[Exception], says: str, value: Any) -> None:
    with pytest.raises(error, match=says):
        encode(value)


@settings(max_examples=80, deadline=None)
@given(plain, st.dictionaries(st.text(max_size=5), st.integers(), max_size=5))
def test_what_json_gives_back_or_has_another_order_has_the_same_fingerprint(value: Any, mapping: Any) -> None:
    assert fingerprint(json.loads(canonical_json(value))) == fingerprint(value)
    assert fingerprint(dict(reversed(mapping.items()))) == fingerprint(mapping)


@dataclass(frozen=True)
class Setting:
    value: Any


@dataclass(frozen=True)
class Measurement:
    setting: Setting
    others: tuple[Setting, ...] = ()


def test_parts_that_are_equal_in_python_only_keep_texts_of_their_own() -> None:
    """The cached texts of frozen parts must differ although ``1 == 1.0 == True``."""
    for value, text in ((1, "1"), (1.0, "1.0"), (True, "true"), (1, "1")):
        found = canonical_json(Measurement(Setting(value), (Setting(value),)))
        assert found == f'{{"others":[{{"value":{text}}}],"setting":{{"value":{text}}}}}'


def test_a_part_that_changes_gets_its_new_text() -> None:
    """Only the texts of frozen parts are cached."""
    part, within = [1], {"x": 2}
    assert canonical_json(Measurement(part, (within,))) == '{"others":[{"x":2}],"setting":[1]}'  # type: ignore[arg-type]
    part[0], within["x"] = 3, 4
    assert canonical_json(Measurement(part, (within,))) == '{"others":[{"x":4}],"setting":[3]}'  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(st.text())
def test_a_slug_is_a_safe_file_name_and_part_of_an_address(text: str) -> None:
    name = slug(text)
    assert name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_=,+-")
    assert slug(name) == name
    assert address("ViT-B/32", "k4", 1, of={"a": 1}) == f"vit-b-32.k4.1--{fingerprint({'a': 1})}"
    assert address("..", "/etc", of=1) == f"x.etc--{fingerprint(1)}"
