"""Damaged catalog files are refused with a reason, or give entries that can be used."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given

from orchestrator import catalog as catalogs
from orchestrator.catalog.yaml_files import parse_yaml, write_entries
from orchestrator.util.errors import UserError
from tests.fuzz.cases import cases, check_message, damaged, spoiled, written

DATASET: dict[str, Any] = {
    "title": "Cats",
    "domain": "pictures",
    "class_names": ["tabby", "tortoiseshell"],
    "prompts": ["a photo of a {} cat."],
    "classes": 2,
    "sizes": {"train": 20, "test": 10},
    "smallest_class": 10,
    "splits": {"recipe": "official"},
    "licence": "CC0",
}
ROUTES: dict[str, Any] = {
    "cats": {"kind": "folder", "folder": "cats"},
    "more-cats": {"kind": "manifest", "folder": "b/cats", "file": "all.csv", "columns": {"path": "a", "label": "b"}},
    "torch-cats": {"kind": "torchvision", "dataset": "MNIST", "arguments": {"train": [{"train": True}], "test": [{}]}},
    "hub-cats": {"kind": "huggingface", "repo": "a/b", "splits": {"train": "train", "test": "test"}},
    "zip-cats": {"kind": "archive", "url": "https://example.org/a.zip", "layout": "cub"},
    "hand-cats": {"kind": "manual", "instructions": "by hand"},
    "toy-cats": {"kind": "toy", "task": "glyph-digits"},
}
WHOLE: dict[str, Any] = {
    "domains": {"pictures": {"title": "Pictures"}},
    "prompts": {"mine": ["a {}."], "theirs": {"source": "open_clip.SIMPLE_IMAGENET_TEMPLATES"}},
    "datasets": {name: {**DATASET, "route": route} for name, route in ROUTES.items()},
    "backbones": {
        "big": {
            "title": "Big", "architecture": "ViT-B-32", "weights": {"pretrained": "openai"}, "quick_gelu": True,
            "image_size": 224, "embed_dim": 512, "width": 768, "layers": 12, "patch": 32, "gflops_per_image": 8.8,
            "parameters": 87849216,
        }
    },
    "checkpoints": {"big": {"cats": {"file": "cats.pt", "sha256": "0" * 64}}},
}  # fmt: skip
TEXT = yaml.safe_dump(WHOLE, sort_keys=False)


def check_catalog(path: Path, root: Path) -> bool:
    """Return whether a catalog file is valid.

    Checks the error of an invalid file, and that the entries of a valid file can be used.
    """
    try:
        catalog = catalogs.load_catalog([path])
    except UserError as error:
        check_message(error)
        return False
    calls: list[Callable[[], object]] = []
    for entry in (entry for name, entry in catalog.datasets.items() if catalog.files["datasets", name] == str(path)):
        assert catalogs.dataset_folder(entry, root).resolve().is_relative_to(root.resolve())
        calls.append(partial(catalogs.dataset_ref, entry, root))
        calls += [partial(of, entry) for of in (catalogs.prompt_templates, catalogs.class_names_of)]
        missing = catalogs.missing_data(entry, root)
        assert missing is None or entry.name in str(missing)
    for name, backbone in catalog.backbones.items():
        if catalog.files["backbones", name] == str(path):
            calls += [partial(of, backbone) for of in (catalogs.backbone_ref, catalogs.missing_weights)]
    calls += [partial(catalogs.missing_checkpoint, checkpoint) for checkpoint in catalog.checkpoints.values()]
    for call in calls:
        with suppress(UserError):  # and nothing else may be raised
            call()
    return True


def test_the_undamaged_file_is_a_catalog(tmp_path: Path) -> None:
    assert check_catalog(written(tmp_path, WHOLE), tmp_path)


@cases(60)
@given(data=damaged(WHOLE))
def test_a_catalog_with_changed_values_is_refused_or_usable(tmp_path: Path, data: Any) -> None:
    check_catalog(written(tmp_path, data), tmp_path)


@cases(30)
@given(content=spoiled(TEXT.encode()))
@example(content=b"datasets: {cats: {name: cats}}")
@example(content=b"datasets: &a {cats: *a}")
@example(content=b"checkpoints: {tiny-clip: {glyph-inks: {file: " + b"a" * 5000 + b", sha256: x}}}")
@example(content=b"checkpoints: {tiny-clip: [1]}\n")
@example(content=b"checkpoints: {1: {2: {}}}\n")
@example(content=b"prompts: {a: 1}\n")
@example(content=b"prompts: {a: ['{0.__class__}']}\n")
@example(content=b"datasets: {" + b"a" * 5000 + b": {}}\n")
def test_a_catalog_file_with_changed_bytes_is_refused_or_usable(tmp_path: Path, content: bytes) -> None:
    check_catalog(written(tmp_path, content), tmp_path)


@cases(50)
@given(content=spoiled(TEXT.encode()))
def test_adding_to_a_catalog_keeps_the_other_entries_or_changes_nothing(tmp_path: Path, content: bytes) -> None:
    path, new = written(tmp_path, content), {"new": {**DATASET, "route": ROUTES["cats"]}}
    try:
        write_entries(path, {"datasets": new})
    except UserError as error:
        check_message(error)
        assert path.read_bytes() == content
        return
    before = parse_yaml(content.decode(), "before") or {}
    assert parse_yaml(path.read_text(), "after") == {**before, "datasets": {**(before.get("datasets") or {}), **new}}
