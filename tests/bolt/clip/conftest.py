"""A small frozen tower, and a CLIP whose tower was fine-tuned from it."""

import open_clip
import pytest
import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.seeds import torch_generator
from tests.helpers.towers import random_clip


@pytest.fixture(scope="session")
def frozen() -> ImageTower:
    return ImageTower.from_open_clip(random_clip(quick_gelu=True).visual)


@pytest.fixture(scope="session")
def tuned(frozen: ImageTower) -> dict[str, Tensor]:
    generator = torch_generator("tuned")
    return {n: t + 0.02 * torch.randn(t.shape, generator=generator) for n, t in frozen.state_dict_open_clip().items()}


@pytest.fixture(scope="session")
def tuned_clip(tuned: dict[str, Tensor]) -> open_clip.CLIP:
    model = random_clip(quick_gelu=True)
    model.visual.load_state_dict(tuned)
    return model
