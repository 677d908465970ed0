"""Methods that see a stream of test images: a prediction is made once, and later images do not change it."""

from dataclasses import replace

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from tests.helpers.towers import make_task

STREAM = sorted(name for name, method in METHODS.items() if "tta_stream" in method.tracks and method.uses_support)


def test_there_are_such_methods() -> None:
    assert set(STREAM) >= {"tda", "dmn"}


@pytest.mark.parametrize("name", STREAM)
def test_later_images_change_no_prediction(name: str, backbone: Backbone) -> None:
    method = METHODS[name]
    settings = method.configure(method.test_settings, "tta_stream")
    task = make_task(backbone, unlabelled=True)
    images, features = task.test_images, task.test_images.features()
    order = torch.arange(len(images))
    first = replace(images, order=lambda stream, number, count: order)
    seen = len(images) // 2
    other = replace(first, features=lambda: torch.cat([features[:seen], features[seen:].flip(0) * -1]))
    whole = method.adapt(replace(task, unlabelled=first), settings).fixed_NC
    changed = method.adapt(replace(task, unlabelled=other), settings).fixed_NC
    assert whole is not None
    assert changed is not None
    assert torch.equal(whole[:seen], changed[:seen])
    assert not torch.equal(whole[seen:], changed[seen:])
