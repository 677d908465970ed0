"""Damaged grid files are refused with a reason, or expand to valid cells."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from bolt.methods import METHODS
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell
from orchestrator.grid import Grid, load_grid
from orchestrator.tracks import TRACKS
from orchestrator.util.errors import UserError
from tests.fuzz.cases import cases, check_message, damaged, near, odd, spoiled, written
from tests.helpers.quick_settings import quick_settings

WHOLE: dict[str, Any] = {
    "title": "Mini",
    "description": "Two tracks.",
    "protocol": {"name": "strict", "short_classes": "take_all"},
    "fine_tuning": {"epochs": 2, "batch_size": 32, "learning_rate": 5.0e-4, "warmup_steps": 5},
    "blocks": [
        {
            "track": "fewshot",
            "backbones": ["tiny-clip"],
            "datasets": ["glyph-digits", "glyph-inks"],
            "sources": {"rule": "leave_one_out", "datasets": ["glyph-digits", "glyph-inks", "glyph-capitals"]},
            "shots": [1, 4],
            "seeds": [1, 2],
            "methods": ["zero_shot", {"linear_probe": {"epochs": 2}}, "tip_adapter", {"bolt": {"epochs": 2}}],
        },
        {
            "track": "tta",
            "backbones": ["tiny-clip"],
            "domains": ["glyphs"],
            "sources": "leave_one_out",
            "seeds": [1],
            "methods": ["zero_shot", {"bolt": {"epochs": 2}}],
        },
    ],
}  # fmt: skip
TEXT = yaml.safe_dump(WHOLE, sort_keys=False)


@cache
def catalog() -> Catalog:
    """Return the project's catalog. A fixture would make hypothesis print the catalog with each failing test."""
    return load_catalog()


def check_grid(path: Path, **options: Any) -> Grid | None:
    """Return the grid of a file after checking its cells; ``None`` if the file is refused with a proper message."""
    try:
        grid = load_grid(path, catalog(), **options)
    except UserError as error:
        check_message(error)
        return None
    ids = [cell.id for cell in grid.cells]
    assert ids
    assert len(set(ids)) == len(ids)
    assert [cell.id for cell in load_grid(path, catalog(), **options).cells] == ids
    for cell in grid.cells:
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell
        assert "/" not in cell.id
        assert ".." not in cell.id
        assert len(cell.id) < 200
        assert isinstance(grid.label(cell), str)
        assert all(source in grid.sources or source.dataset in grid.datasets for source in cell.sources)
        assert cell.dataset.name in grid.datasets
    return grid


def test_the_undamaged_file_is_a_grid(tmp_path: Path) -> None:
    grid = check_grid(written(tmp_path, WHOLE))
    assert len(grid.cells) == 2 * (1 + 3 * 4) + 8 * 2


@cases(150)
@given(data=damaged(WHOLE))
def test_a_grid_with_changed_values_is_refused_or_valid(tmp_path: Path, data: Any) -> None:
    check_grid(written(tmp_path, data))


@cases(75)
@given(content=spoiled(TEXT.encode()))
@example(content=b"")
@example(content=b"\xef\xbb\xbf")
@example(content=b"[" * 100_000)
@example(content=b"title: " + b"{a: " * 3000)
@example(content=b"title: !!python/object/apply:os.system ['true']\n")
@example(content=b"title: !!map [1]\n")
@example(content=b"title: !!int ''\n")
@example(content=b"title: !!bool perhaps\n")
@example(content=b"title: !!timestamp perhaps\n")
@example(content=b"title: 0x" + b"f" * 6000)
@example(content=b"title: 2026-99-99\n")
@example(content=b"title: &a [*a]\n")
@example(content=b"title: x\ntitle: y\n")
@example(content=b"<<: {title: x}\nblocks: []\n")
@example(content=b"title: x\ninclude: case\n")
@example(content=b"title: x\ninclude: [./case.yaml]\n")
@example(content=b"title: x\ninclude: [../../../../etc/passwd.yaml]\n")
@example(content=b"title: x\ninclude: [" + b"a" * 5000 + b".yaml]\n")
@example(content=b'title: x\ninclude: ["a\\0.yaml"]\n')
@example(content=b"title: " + b"9" * 10_000)
@example(content=b"\x00\x01\x02\xff" * 100)
def test_a_grid_file_with_changed_bytes_is_refused_or_valid(tmp_path: Path, content: bytes) -> None:
    check_grid(written(tmp_path, content))


@cases(40)
@given(levels=st.integers(2, 40), width=st.integers(2, 12), field=st.sampled_from(("title", "fine_tuning", "blocks")))
def test_aliases_cannot_make_a_file_large(tmp_path: Path, levels: int, width: int, field: str) -> None:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    lines += ["title: x", f"{field}: *a{levels - 1}"]
    text = "\n".join(lines[:-2] + lines[-1:] if field == "title" else lines)
    assert check_grid(written(tmp_path, text.encode())) is None


@st.composite
def blocks(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a block whose fields have the right types but may contradict each other."""
    track = draw(st.sampled_from(tuple(TRACKS)))
    datasets = (
        "glyph-digits", "glyph-inks", "glyph-capitals", "aerial-land", "aerial-land-sketch", "handwritten-digits",
    )  # fmt: skip
    few = st.lists(st.integers(1, 6), min_size=1, max_size=3)

    def method(name: str) -> Any:
        tiny = {key: list(v) if isinstance(v, tuple) else v for key, v in quick_settings(name).items()}
        return draw(st.sampled_from((name, {name: tiny}, {name: {**tiny, "as": draw(st.text(max_size=6))}})))

    block: dict[str, Any] = {"track": track, "backbones": ["tiny-clip"], "datasets": draw(_some(datasets))}
    block["methods"] = [method(name) for name in draw(_some(tuple(METHODS)))]
    block["seeds"] = draw(few)
    if TRACKS[track].gives_support:
        block["shots"] = draw(few)
    if TRACKS[track].scores_variants:
        block["evaluate_on"] = draw(_some(datasets))
    if draw(st.booleans()):
        rule = draw(st.sampled_from(("leave_one_out", "leave_group_out")))
        pools: tuple[dict[str, Any], ...] = ({"domain": "glyphs"}, {"datasets": draw(_some(datasets))}, {})
        block["sources"] = {"rule": rule, **draw(st.sampled_from(pools))}
    if draw(st.booleans()):
        block["protocol"] = draw(st.sampled_from(("strict", "published")))
    return block


def _some(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)


@cases(75)
@given(made=st.lists(blocks(), min_size=1, max_size=2))
def test_grids_with_known_fields_are_refused_or_valid(tmp_path: Path, made: Any) -> None:
    check_grid(written(tmp_path, {"title": "Made", "blocks": made}))


@cases(40)
@given(names=st.lists(st.sampled_from(("demo", "dmeo", "../x", "a/b.yaml", ".", "case.yaml", "")) | odd, max_size=3))
def test_an_included_file_is_a_grid_or_refused(tmp_path: Path, names: list[Any]) -> None:
    check_grid(written(tmp_path, {**WHOLE, "include": [name for name in names if name != "demo"]}))


FIELDS = (
    "shots", "seeds", "track", "datasets", "methods", "protocol.flips", "protocol", "fine_tuning.epochs",
    "bolt.epochs",
)  # fmt: skip
VALUES = (
    "1", "[1,4]", "[]", "{}", "glyph-digits", "nan", ".nan", "-1", "1e9", "[[", "&a [*a]", "", "!!int x", "*",
    "9" * 5000,
)  # fmt: skip
KEYS = ("method", "k", "seed", "dataset", "label", "x", "")
WORDS = ("bolt", "1", "4,1", ",", "B", "blot", "glyph-inks")
fields = st.sampled_from(FIELDS)


def pairs(keys: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("{}={}".format, keys, values)


@cases(75)
@given(
    set_=st.lists(pairs(fields | fields.flatmap(near), st.sampled_from(VALUES) | odd.map(str)) | st.text(max_size=10),
                  max_size=2),
    only=st.lists(pairs(st.sampled_from(KEYS), st.sampled_from(WORDS) | st.text(max_size=5)), max_size=2),
    limit=st.none() | st.integers(-2, 50),
)  # fmt: skip
def test_overrides_are_refused_or_give_valid_cells(
    tmp_path: Path, set_: list[str], only: list[str], limit: int | None
) -> None:
    check_grid(written(tmp_path, WHOLE), set_=set_, only=only, limit=limit)
