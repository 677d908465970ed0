"""Numbers of the official codes of ProKeR, APE, StatA, EM-Dirichlet, DMN, ZERO, MTA, LiNeS, Consensus and KnOTS.

``third.safetensors`` holds what the official codes give for a small world of six classes: unit text and image features
of width 16, and twelve views of each of forty test images. They ran on the CPU in float64.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.protocol import STRICT
from bolt.task.task import Support, Task
from tests.helpers.frozen_tasks import frozen_task


@cache
def _tensors() -> dict[str, Tensor]:
    return load_file(Path(__file__).with_name("third.safetensors"))


def vector(name: str) -> Tensor:
    """A tensor of the file by its name, such as ``proker/logits``."""
    found = _tensors()[name]
    return found.long() if found.dtype in (torch.int16, torch.uint8) else found.clone()


def world_task(backbone: Backbone, features: Tensor | None = None) -> Task:
    """The task of the small world: four images of six classes, whose views are all alike."""
    support = vector("world/support") if features is None else features
    return frozen_task(backbone, lambda view: support, vector("world/labels"), vector("world/text"), STRICT)


def with_test_as_validation(task: Task) -> Support:
    """The test images as validation images, on which the official codes of the vectors search."""
    features, labels = vector("world/test"), vector("world/test_labels")

    def none(*arguments: object) -> Tensor:
        raise AssertionError("only features are read")

    return Support(labels, torch.arange(len(labels)), none, lambda view: features, none)


def close(value: Tensor, name: str, atol: float = 1e-5, scale: float = 1.0) -> None:
    """Compare with a vector of the file."""
    torch.testing.assert_close(value.double() / scale, vector(name).double(), rtol=1e-4, atol=atol)
