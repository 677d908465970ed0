"""The few-shot benchmark in small, made once for all tests of this folder."""

from pathlib import Path

import pytest

from tools import eleven_mini


@pytest.fixture(scope="session")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    eleven_mini.make(root, imagenet_classes=3)
    return root
