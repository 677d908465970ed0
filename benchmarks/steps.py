"""The training steps of a method on a task with random weights and images, one at a time. Not a command."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, TypeVar, cast

import open_clip
import torch
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.methods import METHODS
from bolt.protocol import STRICT
from bolt.spectral.bases import Basis
from bolt.spectral.directions import Directions, directions_per_source
from bolt.spectral.sources import PooledBasis, Sources
from bolt.task.task import ClassText, Support, Task

MODELS = {"B/32": "ViT-B-32", "B/16": "ViT-B-16", "L/14": "ViT-L-14", "S/32": "ViT-S-32"}
"""Names of open_clip's configurations."""
CLASSES, SOURCES = 100, 16
BATCHES = 100
"""Batches of an epoch: so many that the end of an epoch costs nothing."""

Value = TypeVar("Value")
Script = Generator[None, list[Tensor], Value]
"""What is done between the steps of a training. Each ``yield`` takes one step, and returns the trained tensors."""


class _Enough(Exception):
    """The script has ended; its result is the argument."""


def during(training: Callable[[], object], script: Script[Value]) -> Value:
    """Train as the script says, and return its result; the training is not finished.

    Raises ``RuntimeError`` if the training ends before the script.
    """

    def after_step(optimiser: Optimizer, *_: object) -> None:
        try:
            script.send([tensor for group in optimiser.param_groups for tensor in group["params"]])
        except StopIteration as end:
            raise _Enough(end.value) from None

    next(script)
    handle = register_optimizer_step_post_hook(after_step)
    try:
        training()
    except _Enough as enough:
        return cast(Value, enough.args[0])
    finally:
        handle.remove()
    raise RuntimeError("the training ended before all steps were measured")


def settings_of(name: str, batch: int) -> Any:
    """Return a method's settings for batches of this size. BOLT's scale is given, so that it is not chosen."""
    return METHODS[name].configure({"batch_size": batch, **({"alphas": (1.0,)} if name == "bolt" else {})})


def training_of(name: str, task: Task, batch: int) -> Callable[[], object]:
    """Return a method's training on the task, as a cell runs it."""
    return lambda: METHODS[name].adapt(task, settings_of(name, batch))


class RandomSources(Sources):
    """Sources with random task vectors, and random bases of the size that these sources would give."""

    names = tuple(map(str, range(SOURCES)))

    def __init__(self, tower: ImageTower) -> None:
        self._shapes = {name: tensor.shape for name, tensor in tower.state_dict_open_clip().items()}
        self._device, self._kept = tower.class_embedding.device, dict[Hashable, Any]()

    def task_vector(self, source: str) -> Mapping[str, Tensor]:
        generator = torch.Generator(self._device).manual_seed(int(source))
        return {name: 1e-3 * self._normal(generator, *shape) for name, shape in self._shapes.items()}

    def directions(self, matrix: str, top_k: int) -> Sequence[Directions]:
        raise AssertionError("the basis is random, so that no method needs the directions")

    def pooled_basis(self, matrix: str, top_k: int) -> PooledBasis:
        m, n = self._shapes[matrix]
        rank = SOURCES * directions_per_source(top_k, min(m, n), SOURCES)
        generator = torch.Generator(self._device).manual_seed(1)
        u, v = (torch.linalg.qr(self._normal(generator, size, rank))[0] for size in (m, n))
        return PooledBasis(Basis(u, v), 0.05 * self._normal(generator, rank))

    def cached(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self._kept:
            self._kept[key] = make()
        return cast(Value, self._kept[key])

    def _normal(self, generator: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self._device, generator=generator)


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def random_backbone(model: str, device: str, blocks: int | None = None) -> Backbone:
    """Return a CLIP with random weights. With ``blocks``, both towers have that share of their blocks."""
    config: Any = open_clip.get_model_config(MODELS[model])
    vision, text = config["vision_cfg"], config["text_cfg"]
    if blocks:
        vision["layers"], text["layers"] = blocks, max(1, text["layers"] * blocks // vision["layers"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip = open_clip.CLIP(**config, quick_gelu=True)
    return Backbone.from_open_clip(clip, SimpleTokenizer(), model).to(device)


def random_task(backbone: Backbone, batch: int, pixels: Callable[[int, Tensor], Tensor] | None = None) -> Task:
    """Return a task of 100 class names. ``pixels``: as in ``Support``; by default all batches have the same images."""
    generator, size, side = torch.Generator().manual_seed(2), batch * BATCHES, backbone.image_size
    images = torch.randint(256, (batch, 3, side, side), generator=generator, dtype=torch.uint8).to(backbone.device)
    support = Support(
        labels_N=torch.randint(CLASSES, (size,), generator=generator),
        indices_N=torch.arange(size),
        pixels=pixels or (lambda view, rows: images),
        features=lambda view: torch.randn(size, backbone.embed_dim, generator=generator),
        order=lambda epoch: torch.arange(size),
    )
    head_CD = F.normalize(torch.randn(CLASSES, backbone.embed_dim, generator=generator), dim=-1).to(backbone.device)
    words = ClassText(tuple(f"thing number {number}" for number in range(CLASSES)), ("a photo of a {}.",))
    return Task(backbone, head_CD, support, RandomSources(backbone.tower), STRICT, "benchmark", 1, text=words)
