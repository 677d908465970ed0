"""The on-premises file from end to end. It takes about ten minutes, so it runs only when asked for."""

import os
from pathlib import Path

import pytest

from tests.cluster.on_premises import log, run_all
from tests.helpers.hosts import missing

ASKED = "BOLT_TEST_ON_PREMISES"


@pytest.mark.skipif(ASKED not in os.environ, reason=f"takes minutes and root; {ASKED}=1 asks for it")
def test_up_run_lose_and_down(tmp_path: Path) -> None:
    if why := missing():
        pytest.fail(why)
    run_all(tmp_path, log)
