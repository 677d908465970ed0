"""One Ray instance for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.execution.cluster import Cluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """An instance with two CPUs and two GPUs. The GPUs are only declared: nothing computes on them."""
    with Cluster.connect(None, cpus=2, gpus=2) as connected:
        yield connected
