"""The on-premises file from end to end: some ten minutes, so only when asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.on_premises import run_all, say
from tests.helpers.hosts import missing

ASKED = "BOLT_TEST_ON_PREMISES"


@pytest.mark.skipif(ASKED not in os.environ, reason=f"takes minutes and root; {ASKED}=1 asks for it")
def test_up_run_lose_and_down(tmp_path: Path) -> None:
    if why := missing():
        pytest.fail(why)
    run_all(tmp_path, say)
