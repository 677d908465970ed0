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


@pytest.mark.parametrize("value", [Path("x"), {1, 2}, b"x", object(), Point, 1j, {"a": Path("x")}])
def test_unknown_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot fingerprint"):
        encode(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan]])
def test_numbers_without_identity_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="has no identity"):
        encode(value)


def test_only_text_keys_have_an_order() -> None:
    with pytest.raises(TypeError, match="only text keys"):
        encode({1: "a"})


@settings(max_examples=80, deadline=None)
@given(plain)
def test_what_json_gives_back_has_the_same_fingerprint(value: Any) -> None:
    assert fingerprint(json.loads(canonical_json(value))) == fingerprint(value)


@dataclass(frozen=True)
class Setting:
    value: Any


@dataclass(frozen=True)
class Measurement:
    setting: Setting
    others: tuple[Setting, ...] = ()


def test_parts_that_are_equal_in_python_only_keep_texts_of_their_own() -> None:
    """The cached texts of frozen parts must differ although ``1 == 1.0 == True``."""
    texts = [canonical_json(Measurement(Setting(one), (Setting(one),))) for one in (1, 1.0, True, 1)]
    assert texts == [
        f'{{"others":[{{"value":{one}}}],"setting":{{"value":{one}}}}}' for one in ("1", "1.0", "true", "1")
    ]


def test_a_part_that_changes_gets_its_new_text() -> None:
    """Only the texts of frozen parts are cached."""
    part, within = [1], {"x": 2}
    assert canonical_json(Measurement(part, (within,))) == '{"others":[{"x":2}],"setting":[1]}'  # type: ignore[arg-type]
    part[0], within["x"] = 3, 4
    assert canonical_json(Measurement(part, (within,))) == '{"others":[{"x":4}],"setting":[3]}'  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=5))
def test_the_order_of_keys_means_nothing(mapping: dict[str, int]) -> None:
    assert fingerprint(dict(reversed(mapping.items()))) == fingerprint(mapping)


@settings(max_examples=80, deadline=None)
@given(st.text())
def test_a_slug_is_a_safe_file_name(text: str) -> None:
    name = slug(text)
    assert name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_=,+-")
    assert slug(name) == name


def test_an_address_reads_and_names() -> None:
    assert address("ViT-B/32", "k4", 1, of={"a": 1}) == f"vit-b-32.k4.1--{fingerprint({'a': 1})}"
    assert address("..", "/etc", of=1) == f"x.etc--{fingerprint(1)}"
