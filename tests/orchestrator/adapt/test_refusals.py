"""``adapt`` refuses what cannot work, before any work, and names it."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.datasets.adding import DatasetOptions
from orchestrator.util.errors import UserError
from tests.helpers.photographs import break_file, write_photographs
from tests.orchestrator.adapt.test_adapt_folder import adapt


def _one_class(place: Path) -> None:
    for name in ("BlueBottle", "03-green-plate"):
        shutil.rmtree(place / "ware" / name)


def _a_file(place: Path) -> None:
    shutil.rmtree(place / "ware")
    (place / "ware").write_text("no folder")


def _datasets(place: Path) -> None:
    (place / "ware").rename(place / "train")
    (place / "ware" / "shop").mkdir(parents=True)
    (place / "train").rename(place / "ware" / "shop" / "train")
    (place / "ware" / "other" / "test" / "a").mkdir(parents=True)


def _bytes_for_a_name(place: Path) -> None:
    os.rename(bytes(place / "ware" / "red_mug"), bytes(place / "ware") + b"/\xff\xfe")


def _broken_link(place: Path) -> None:
    (place / "ware" / "red_mug" / "x.jpg").symlink_to("x.jpg")


def _broken(place: Path) -> None:
    break_file(place / "ware" / "red_mug" / "000.jpg")


def _bomb(place: Path) -> None:
    (place / "ware" / "red_mug" / "x.ppm").write_bytes(b"P6\n60000 60000\n255\n")


@pytest.mark.parametrize(
    ("spoil", "changes", "named"),
    [
        (_one_class, {}, "only one class"),
        (_a_file, {}, "no folder of images"),
        (_datasets, {}, "folder of datasets"),
        (_bytes_for_a_name, {}, "not UTF-8"),
        (_broken_link, {}, "x.jpg: OSError"),
        (_bomb, {}, "x.ppm: DecompressionBomb"),
        (_broken, {}, "--exclude-broken"),
        (None, {"folder": "nothing"}, "no folder"),
        (None, {"model": "empty"}, "there already"),
        (None, {"methods": ("zeroshot",)}, "did you mean 'zero_shot'"),
        (None, {"methods": ("bolt",)}, "--sources"),
        (None, {"methods": ("zero_shot", "maple"), "form": "huggingface"}, "--as: maple learns tokens"),
        (None, {"model": "ware/model"}, "-o: "),
        (None, {"model": "file/model"}, "-o: "),
        (None, {"model": "taken"}, "-o: "),
        (None, {"store_url": "ware/red_mug/runs"}, "--store: "),
        (None, {"store_url": "file"}, "--store: "),
        (None, {"data_root": "nowhere"}, "--data-root: "),
        (None, {"sources": "nowhere"}, "aerial"),
        (None, {"sources": "empty", "methods": ("bolt_pooled",)}, "no checkpoint"),
        (None, {"sources": "twins", "methods": ("bolt_pooled",)}, "both named a: rename one"),
        (None, {"sources": "glyphs"}, "none of the methods reads source models"),
        (None, {"images": DatasetOptions(templates=("no place",))}, "--template: "),
        (None, {"methods": ("zero_shot", "zero_shot")}, "twice"),
        (None, {"methods": ("zero_shot(",)}, "--methods: "),
        (None, {"methods": ("linear_probe(learning_rate=0.01)",)}, "linear_probe.learning_rate has no effect"),
    ],
)
def test_wrong_folders_and_options_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None] | None,
    changes: dict[str, object],
    named: str,
) -> None:
    write_photographs(tmp_path / "ware", 2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "twins").mkdir()
    for name in ("a.pt", "a.safetensors"):
        (tmp_path / "twins" / name).touch()
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "taken.html").mkdir()
    if spoil is not None:
        spoil(tmp_path)
    monkeypatch.chdir(tmp_path)
    given: dict[str, object] = {"methods": ("zero_shot",), **changes}
    paths = {"folder", "model", "store_url", "data_root"} & changes.keys()
    given |= {key: tmp_path / str(changes[key]) for key in paths}
    with pytest.raises(UserError, match=re.escape(named)) as refused:
        adapt(tmp_path, **given)  # type: ignore[arg-type]
    assert "runs/adapt" not in str(refused.value), "the user's folder is named, not the links to it"
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "runs" / "held_out").exists()
