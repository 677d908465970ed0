"""Fixtures of the library's tests."""

import pytest

from bolt.clip.backbone import Backbone
from tests.helpers.towers import random_backbone


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return random_backbone()
