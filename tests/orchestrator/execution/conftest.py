"""One Ray instance for all tests of this folder."""

from collections.abc import Iterator

import pytest

from orchestrator.core.events import Resources
from orchestrator.execution.cluster import connect


@pytest.fixture(scope="package")
def cluster() -> Iterator[Resources]:
    """An instance with two CPUs and two GPUs. The GPUs are only declared: nothing computes on them."""
    with connect(None, cpus=2, gpus=2) as connected:
        yield connected
