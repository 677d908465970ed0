"""Fixtures of the library's tests."""

from collections.abc import Iterator

import pytest
import torch

from bolt.clip.backbone import Backbone
from tests.helpers.towers import random_backbone


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads, and bits would depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return random_backbone()
