"""Cells: pinned identities, exact round trips, and ids that differ exactly when a field does."""

import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt.protocol import PROTOCOLS, PUBLISHED, STRICT
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, MethodRef, SourceRef
from orchestrator.util.identity import canonical_json

TARGET = DatasetRef("digits", "d1d1d1d1")
CELL = Cell(
    track="fewshot",
    protocol=STRICT,
    backbone=BackboneRef("tiny-clip", "b0b0b0b0"),
    domain="glyphs",
    dataset=TARGET,
    evaluate_on=(TARGET,),
    sources_rule="leave_one_out",
    sources=(SourceRef("capitals", "a1a1a1a1"), SourceRef("inks", "a2a2a2a2")),
    shots=4,
    method=MethodRef("bolt", 1, (("alphas", (1.0, 3.0)), ("learning_rate", 0.01), ("top_k", 12))),
    seed=1,
)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
refs = st.builds(DatasetRef, words, words)
values = st.one_of(
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
    st.lists(st.floats(0, 10), max_size=3).map(tuple),
)
cells = st.builds(
    Cell,
    track=st.sampled_from(["fewshot", "ood", "tta"]),
    protocol=st.sampled_from([*PROTOCOLS.values(), STRICT.with_switches(short_classes="take_all")]),
    backbone=st.builds(BackboneRef, words, words),
    domain=words,
    dataset=refs,
    evaluate_on=st.lists(refs, min_size=1, max_size=3).map(tuple),
    sources_rule=st.sampled_from(["leave_one_out", "leave_group_out", "none"]),
    sources=st.lists(st.builds(SourceRef, words, words), max_size=3).map(tuple),
    shots=st.integers(0, 16),
    method=st.builds(
        MethodRef,
        words,
        st.integers(1, 3),
        st.dictionaries(words, values, max_size=3).map(lambda d: tuple(sorted(d.items()))),
    ),
    seed=st.integers(0, 5),
)


def test_identities_are_pinned() -> None:
    """A change of these names renames every stored result. If intended, raise FORMAT in orchestrator.util.identity."""
    assert CELL.id == "fewshot.tiny-clip.digits.k4.bolt.s1--cedde211"
    # The protocol ``published`` no longer pads the basis, so its cells have new names.
    assert dataclasses.replace(CELL, protocol=PUBLISHED).id == "fewshot.tiny-clip.digits.k4.bolt.s1--aaf4a5b2"
    plain = dataclasses.replace(CELL, method=MethodRef("zero_shot", 1, ()), shots=0, seed=0, sources=())
    assert plain.id == "fewshot.tiny-clip.digits.k0.zero_shot.s0--55275714"


@pytest.mark.parametrize("missing", ["track", "method", "sources"])
def test_what_is_not_a_cell_is_refused(missing: str) -> None:
    data = {key: value for key, value in CELL.to_dict().items() if key != missing}
    with pytest.raises((KeyError, TypeError)):
        Cell.from_dict(data)


@pytest.mark.parametrize(
    "change",
    [
        {"track": "ood"},
        {"protocol": PUBLISHED},
        {"backbone": BackboneRef("tiny-clip", "b0b0b0b1")},
        {"domain": "aerial"},
        {"dataset": DatasetRef("digits", "d1d1d1d2")},
        {"evaluate_on": (TARGET, TARGET)},
        {"sources_rule": "leave_group_out"},
        {"sources": CELL.sources[::-1]},
        {"shots": 8},
        {"seed": 2},
        {"method": dataclasses.replace(CELL.method, version=2)},
        {"method": MethodRef("bolt", 1, (("learning_rate", 0.001),))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_part_of_the_identity(change: dict[str, Any]) -> None:
    changed = dataclasses.replace(CELL, **change)
    assert changed.id.rpartition("--")[2] != CELL.id.rpartition("--")[2]


@settings(max_examples=60, deadline=None)
@given(cells, cells)
def test_a_cell_survives_json_and_ids_differ_exactly_when_contents_do(one: Cell, other: Cell) -> None:
    again = Cell.from_dict(json.loads(canonical_json(one)))
    assert (again, again.id) == (one, one.id)
    assert (canonical_json(one) == canonical_json(other)) == (one == other)
    assert (one.id == other.id) == (one == other)


def test_a_method_is_pickled_without_its_hash() -> None:
    """The hash of a text differs between processes."""
    method = MethodRef("bolt", 1, (("rank", 8),))
    before = pickle.dumps(method)
    assert hash(method) == hash(MethodRef("bolt", 1, (("rank", 8.0),)))
    assert pickle.dumps(method) == before
    assert pickle.loads(before) == method
