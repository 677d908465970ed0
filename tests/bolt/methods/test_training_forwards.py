"""The operations of a training step that methods state are those that they take."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.task.task import Task
from tests.helpers.towers import RandomSources, make_task, random_backbone

IMAGES = 32


@pytest.fixture(scope="module")
def wide() -> Backbone:
    """Return a tower in which, as in ViT-B, products with the tokens take most operations."""
    return random_backbone(width=192, heads=3, layers=2, embed=128, patch_size=4)


def operations(task: Task, name: str, **settings: Any) -> int:
    method = METHODS[name]
    with FlopCounterMode(display=False) as counter:
        method.adapt(task, method.configure(settings))
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [("full_finetune", {}), ("bitfit", {}), ("lora", {}), ("lora_xs", {}), ("vera", {}), ("bolt", {"alphas": (3.0,)})],
)
def test_an_epoch_takes_the_stated_operations(name: str, settings: dict[str, Any], wide: Backbone) -> None:
    task = make_task(wide, shots=8, classes=4, sources=RandomSources(wide))
    with FlopCounterMode(display=False) as counter:
        wide.encode_images(torch.zeros(IMAGES, 3, 32, 32, dtype=torch.uint8))
    one, two = (operations(task, name, epochs=epochs, **settings) for epochs in (1, 2))
    assert (two - one) / counter.get_total_flops() == pytest.approx(METHODS[name].training_forwards, rel=0.12)
