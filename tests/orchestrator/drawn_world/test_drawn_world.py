"""The drawn world: repeatable images, and a tiny CLIP that classifies them above chance."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional

from orchestrator.datasets.copies import find_copies, small_version
from orchestrator.drawn_world.drawing import draw_split as draw
from orchestrator.drawn_world.tasks import TASKS, VARIANTS, GlyphTask, sizes

GRIDS = Path(__file__).parents[3] / "grids"
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


TRAINABLE = [name for name in TASKS if name not in VARIANTS]


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_splits_have_their_sizes_and_balanced_labels(name: str) -> None:
    for split, count in sizes(name).items():
        images, labels = drawn(name, split)
        assert images.shape == (count, 32, 32, 3)
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
        if count == 0:
            assert (name in VARIANTS, split) == (True, "train")
            continue
        shares = np.bincount(labels, minlength=len(TASKS[name].class_names))
        assert len(shares) == len(TASKS[name].class_names)
        assert shares.max() - shares.min() <= 1
        assert shares.min() >= 20
        assert not np.array_equal(labels, np.sort(labels)), "an ordered split would bias any partial read of it"


@pytest.mark.parametrize("name", ["glyph-inks", "aerial-land", "aerial-water", *VARIANTS])
def test_drawing_a_task_is_repeatable_and_leaves_the_global_generators_alone(name: str) -> None:
    def state_of_numpy() -> Any:
        return np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002

    torch.rand(3)  # changes the state of the global generator, which must not matter
    torch_state, numpy_state = torch.random.get_rng_state(), state_of_numpy()
    (images, labels), before = draw(name, "test"), drawn(name, "test")
    assert np.array_equal(images, before[0])
    assert np.array_equal(labels, before[1])
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(state_of_numpy(), numpy_state)


@pytest.mark.parametrize("name", TRAINABLE)
def test_no_test_image_is_in_the_training_split(name: str) -> None:
    images = drawn(name, "train")[0]
    train, test = ({image.tobytes() for image in drawn(name, split)[0]} for split in ("train", "test"))
    assert len(train) == sizes(name)["train"]
    assert not train & test
    looks = [small_version(Image.fromarray(pixels)) for pixels in images[:100]]
    assert find_copies([str(number).encode() for number in range(100)], looks) == [], "nor a copy that looks alike"


@pytest.mark.parametrize(("name", "target"), VARIANTS.items())
def test_a_variant_has_the_classes_of_its_target_and_other_images(name: str, target: str) -> None:
    variant, original = catalog()[name], catalog()[target]
    assert set(variant["class_names"]) <= set(original["class_names"])
    for field in ("domain", "prompts"):
        assert variant[field] == original[field]
    seen = {image.tobytes() for split in ("train", "test") for image in drawn(target, split)[0]}
    assert not seen & {image.tobytes() for image in drawn(name, "test")[0]}


def test_the_catalog_matches_the_registry() -> None:
    toys = {name: entry for name, entry in catalog().items() if entry["route"]["kind"] == "toy"}
    assert [entry["route"]["task"] for entry in toys.values()] == list(TASKS)
    for name, entry in toys.items():
        task = TASKS[entry["route"]["task"]]
        assert name == task.name
        assert tuple(entry["class_names"]) == task.class_names
        assert entry["classes"] == len(task.class_names)
        assert entry["domain"] == ("glyphs" if isinstance(task, GlyphTask) else "aerial")
        assert entry["sizes"] == sizes(task.name)


def test_the_weights_match_their_config_and_are_small() -> None:
    tensors = load_file(WEIGHTS)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert WEIGHTS.stat().st_size <= 8 * 1024 * 1024
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert sum(p.numel() for p in tiny_clip().visual.parameters()) == 474_048
    assert tiny_clip().logit_scale.exp().item() <= 100.5


@cache
def zero_shot_hits(name: str, head_of: str) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return whether the tiny CLIP classifies each test picture correctly, (N,), with the classes of ``head_of``."""
    import open_clip

    model, entry = tiny_clip(), catalog()[head_of]
    tokenizer = open_clip.SimpleTokenizer(context_length=model.context_length)
    images, labels = drawn(name, "test")
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD))
    pixels = (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255.0 - mean) / std
    with torch.no_grad():
        texts = ([prompt.format(word) for prompt in entry["prompts"]] for word in entry["class_names"])
        head = torch.stack([functional.normalize(model.encode_text(tokenizer(text)), dim=-1).mean(0) for text in texts])
        guesses = (model.encode_image(pixels) @ functional.normalize(head, dim=-1).T).argmax(-1)
    place = np.array([entry["class_names"].index(word) for word in TASKS[name].class_names])
    return np.asarray(guesses.numpy() == place[labels], dtype=np.bool_)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_the_tiny_clip_is_well_above_chance(name: str) -> None:
    target = VARIANTS.get(name, name)
    chance = 1.0 / len(TASKS[target].class_names)
    spread = math.sqrt(chance * (1.0 - chance) / sizes(name)["test"])
    assert zero_shot_hits(name, target).mean() > max(1.5 * chance, chance + 5 * spread)


def test_a_rendition_is_harder_than_its_target_and_a_second_draw_is_not() -> None:
    def share_and_error(name: str) -> tuple[float, float]:
        hits = zero_shot_hits(name, "aerial-land")
        return float(hits.mean()), float(hits.std()) / math.sqrt(len(hits))

    share, error = share_and_error("aerial-land")
    for name in VARIANTS:
        other, other_error = share_and_error(name)
        errors = (share - other) / math.hypot(error, other_error)
        if name == "aerial-land-again":
            assert abs(errors) < 3
        else:
            assert errors > 4
