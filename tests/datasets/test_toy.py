"""The drawn world: pictures that never change by themselves, and a tiny CLIP that can read them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.nn import functional

from orchestrator.datasets.toy import TASKS, draw
from orchestrator.datasets.toy.handwritten import load
from orchestrator.datasets.toy.picture_book import SHARES, draw_pairs
from orchestrator.datasets.toy.tasks import SIZES

GRIDS = Path(__file__).parents[2] / "grids"
CONFIG = GRIDS / "backbones" / "tiny-clip.json"
WEIGHTS = GRIDS / "backbones" / "tiny-clip.safetensors"

drawn = cache(draw)


@cache
def catalog() -> dict[str, Any]:
    entries: dict[str, Any] = yaml.safe_load((GRIDS / "datasets" / "toy.yaml").read_text())["datasets"]
    return entries


@cache
def tiny_clip() -> Any:
    from open_clip.model import CLIP

    model = CLIP(**json.loads(CONFIG.read_text()))
    model.load_state_dict(load_file(WEIGHTS), strict=True)
    return model.eval()


@pytest.mark.parametrize("name", TASKS)
def test_splits_have_their_sizes_and_balanced_labels(name: str) -> None:
    for split, count in SIZES.items():
        images, labels = drawn(name, split)
        assert images.shape == (count, 32, 32, 3)
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
        shares = np.bincount(labels, minlength=len(TASKS[name].class_names))
        assert len(shares) == len(TASKS[name].class_names)
        assert shares.max() - shares.min() <= 1
        assert shares.min() >= 20
        assert not np.array_equal(labels, np.sort(labels)), "an ordered split would bias any partial read of it"


@pytest.mark.parametrize("name", ["glyph-inks", "aerial-land"])
def test_a_task_is_drawn_the_same_again(name: str) -> None:
    torch.rand(3)  # the global generator's state must not matter
    images, labels = draw(name, "test")
    assert np.array_equal(images, drawn(name, "test")[0])
    assert np.array_equal(labels, drawn(name, "test")[1])


def test_drawing_leaves_the_global_generators_alone() -> None:
    torch_state = torch.random.get_rng_state()
    numpy_state = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    draw("aerial-water", "test")
    draw_pairs(64, seed=3)
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], numpy_state)  # noqa: NPY002


@pytest.mark.parametrize("name", TASKS)
def test_no_test_picture_is_in_the_training_split(name: str) -> None:
    train = {image.tobytes() for image in drawn(name, "train")[0]}
    test = {image.tobytes() for image in drawn(name, "test")[0]}
    assert len(train) == SIZES["train"]
    assert not train & test


def test_the_catalog_repeats_the_registry() -> None:
    toys = {name: entry for name, entry in catalog().items() if entry["route"]["kind"] == "toy"}
    assert [entry["route"]["task"] for entry in toys.values()] == list(TASKS)
    for name, entry in toys.items():
        task = TASKS[entry["route"]["task"]]
        assert name == task.name
        assert tuple(entry["class_names"]) == task.class_names
        assert entry["classes"] == len(task.class_names)
        assert entry["domain"] == task.domain
        assert entry["sizes"] == SIZES


def test_listing_the_tasks_does_not_import_the_drawing_kit() -> None:
    check = "import sys, orchestrator.datasets.toy; print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=GRIDS.parent)
    assert done.stdout.strip() == "[]"


def test_the_picture_book_tells_what_it_shows() -> None:
    images, captions = draw_pairs(400, seed=1)
    assert images.shape == (400, 32, 32, 3)
    assert len(captions) == 400
    again, same = draw_pairs(400, seed=1)
    assert np.array_equal(images, again)
    assert captions == same
    assert not np.array_equal(images, draw_pairs(400, seed=2)[0])
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert all(caption.endswith(".") for caption in captions)
    assert any("aerial" in caption for caption in captions)
    assert any("hand" in caption for caption in captions)


def test_the_handwritten_digits_are_white_on_black() -> None:
    images, labels = load()
    assert images.shape == (1797, 8, 8, 3)
    assert images.dtype == np.uint8
    assert (images[:, 0, 0] == 0).mean() > 0.9
    assert images.max() == 255
    assert set(labels.tolist()) == set(range(10))


def test_the_weights_fit_their_config_and_the_repository() -> None:
    tensors = load_file(WEIGHTS)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert WEIGHTS.stat().st_size <= 8 * 1024 * 1024
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert sum(p.numel() for p in tiny_clip().visual.parameters()) == 474_048
    assert tiny_clip().logit_scale.exp().item() <= 100.5


def zero_shot_accuracy(name: str) -> float:
    """Share of the test split that the tiny CLIP names right, with the catalog's prompts."""
    import open_clip

    model, entry = tiny_clip(), catalog()[name]
    tokenizer = open_clip.SimpleTokenizer(context_length=model.context_length)
    images, labels = drawn(name, "test")
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD))
    pixels = (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255.0 - mean) / std
    with torch.no_grad():
        head = torch.stack(
            [
                functional.normalize(
                    model.encode_text(tokenizer([prompt.format(word) for prompt in entry["prompts"]])), dim=-1
                ).mean(0)
                for word in entry["class_names"]
            ]
        )
        guesses = (model.encode_image(pixels) @ functional.normalize(head, dim=-1).T).argmax(-1)
    return float((guesses.numpy() == labels).mean())


@pytest.mark.parametrize("name", TASKS)
def test_the_tiny_clip_is_well_above_chance(name: str) -> None:
    chance = 1.0 / len(TASKS[name].class_names)
    spread = math.sqrt(chance * (1.0 - chance) / SIZES["test"])
    assert zero_shot_accuracy(name) > max(1.5 * chance, chance + 5 * spread)
