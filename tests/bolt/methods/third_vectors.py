"""Numbers of official codes: ProKeR to KnOTS on features, KgCoOp, TPT, MaPLe, PromptSRC and CLIPFit in small towers.

``third.safetensors`` holds what the official codes give for a small world of six classes: unit text and image features
of width 16, and twelve views of each of forty test images. They ran on the CPU in float64.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.feature_tower import image_tower_of
from bolt.methods.common.prompts import TrainedText
from bolt.protocol import STRICT
from bolt.task.task import Adapted, ClassText, Support, Task
from tests.helpers.frozen_tasks import frozen_task


@cache
def _tensors() -> dict[str, Tensor]:
    return load_file(Path(__file__).with_name("third.safetensors"))


def vector(name: str) -> Tensor:
    """Return a tensor of the file by its name, such as ``proker/logits``."""
    found = _tensors()[name]
    return found.long() if found.dtype in (torch.int16, torch.uint8) else found.clone()


def names(prefix: str) -> list[str]:
    """Return the names in the file that begin with a prefix, without the prefix."""
    return [name.removeprefix(prefix) for name in _tensors() if name.startswith(prefix)]


def world_task(backbone: Backbone, features: Tensor | None = None) -> Task:
    """Return the task of the small world: four images of each of six classes, whose views are all equal."""
    support = vector("world/support") if features is None else features
    return frozen_task(backbone, lambda view: support, vector("world/labels"), vector("world/text"), STRICT)


def with_test_as_validation(task: Task) -> Support:
    """Return the test images as validation images, on which the official codes search."""
    features, labels = vector("world/test"), vector("world/test_labels")

    def none(*arguments: object) -> Tensor:
        raise AssertionError("only features are read")

    return Support(labels, torch.arange(len(labels)), none, lambda view: features, none)


def close(value: Tensor, name: str, atol: float = 1e-5, scale: float = 1.0, rtol: float = 1e-4) -> None:
    """Compare a tensor with a tensor of the file."""
    torch.testing.assert_close(value.double() / scale, vector(name).double(), rtol=rtol, atol=atol)


NAMES = ("w0", "w1_w2", "w3", "w4_w5_w6", "w7", "w8")
"""The class names of the small towers."""


def small_tokens(prompts: list[str]) -> Tensor:
    """Return token numbers: start 62, end 63, ``a`` 1, ``photo`` 2, ``of`` 3, full stop 5, ``wJ`` 10 + J."""
    rows = torch.zeros(len(prompts), 12, dtype=torch.long)
    known = {"a": 1, "photo": 2, "of": 3, ".": 5} | {f"w{j}": 10 + j for j in range(9)}
    for row, prompt in zip(rows, prompts, strict=True):
        numbers = [62, *(known[word] for word in prompt.replace("_", " ").replace(".", " .").split()), 63]
        row[: len(numbers)] = torch.tensor(numbers)
    return rows


def chirp(shape: tuple[int, ...], number: int, size: float) -> Tensor:
    """Return the numbers of a tensor of the small towers, float64 of the given shape."""
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return size * torch.sin(0.013 * i.square() + 1.7 * i + 0.37 * number).view(shape)


def small_backbone(dtype: torch.dtype = torch.float32) -> Backbone:
    """Return a CLIP of two blocks in each tower, width 32 and joint width 16, with the weights of :func:`chirp`.

    A backbone that users load is float32. The official numbers were computed in float64.
    """
    vision = {"image_size": 12, "patch_size": 4, "layers": 2, "width": 32, "head_width": 16}
    text = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    model = open_clip.CLIP(16, vision, text, quick_gelu=True).to(dtype)
    own = dict(model.named_parameters())
    sizes = {"token_embedding": 0.3, "positional_embedding": 0.1, "class_embedding": 0.3, "conv1": 0.3, "in_proj": 0.25,
             "out_proj": 0.2, "c_fc": 0.25, "c_proj": 0.15, "text_projection": 0.3, "visual.proj": 0.3}  # fmt: skip
    with torch.no_grad():
        for number, name in enumerate(sorted(own.keys() - {"logit_scale"})):
            size = next((size for part, size in sizes.items() if part in name), 0.1)
            values = chirp(tuple(own[name].shape), number, 0.05 if name.endswith("bias") else size)
            is_gain = ".ln_" in f".{name}" and name.endswith("weight")
            own[name].copy_(values + is_gain)
            torch.testing.assert_close(
                own[name].flatten()[-1].float(), vector("towers/first_values")[number], rtol=1e-4, atol=1e-5
            )
        own["logit_scale"].copy_(torch.tensor(100.0).log())
    return Backbone("small", image_tower_of(model), lambda: model, small_tokens, 100.0, (0.5,) * 3, (0.5,) * 3)


SMALL_IMAGES = chirp((4, 3, 12, 12), 200, 1.5)
"""Normalised images for the small towers, one of each of the first four classes."""


def small_task(monkeypatch: pytest.MonkeyPatch, curve: dict[str, list[float]], head_CD: Tensor | None = None) -> Task:
    """The task of these images in float64: pixels are row numbers, which are normalised to the images.

    Args:
        curve: gets the losses and the learning rates of the epochs, as ``losses`` and ``lr``.
        head_CD: the text head; zeros by default.
    """

    def report(epoch: int, row: Mapping[str, float]) -> None:
        curve.setdefault("losses", []).append(row["train_loss"])
        curve.setdefault("lr", []).append(row["learning_rate"])

    monkeypatch.setattr(Backbone, "normalise", lambda self, rows: SMALL_IMAGES[rows])
    head_CD = torch.zeros(6, 16) if head_CD is None else head_CD
    task = frozen_task(small_backbone(torch.float64), lambda view: torch.zeros(4, 16), torch.arange(4), head_CD)
    support = replace(task.support, pixels=lambda view, rows: rows)
    return replace(task, support=support, text=ClassText(NAMES, ("a photo of a {}.",)), report=report)


def trained_text(adapted: Adapted) -> TrainedText:
    """Return the text side that a method has trained."""
    text = getattr(adapted.embed_classes, "__self__", None)
    assert isinstance(text, TrainedText)
    return text


def exact(value: Tensor, name: str) -> None:
    """Compare a tensor that was computed in float64 with a tensor of the file."""
    close(value, name, atol=1e-5, rtol=1e-5)
