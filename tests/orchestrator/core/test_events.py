"""What a cell may request."""

from __future__ import annotations

import pytest

from orchestrator.core.events import Resources


@pytest.mark.parametrize("wrong", [{"cpus": -1.0}, {"cpus": 0.0}, {"gpus": 1.5}])
def test_impossible_requests_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Resources(**wrong)
