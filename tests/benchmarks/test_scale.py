"""The benchmark of large grids, at a few cells."""

import contextlib
import sys
from pathlib import Path

import pytest

from benchmarks import scale
from tests.conftest import GiveDatabase

CELLS = 20


@pytest.mark.ray
def test_a_small_sweep_is_resumed_from_its_half_and_counted(
    tmp_path: Path, give_database: GiveDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is run in this process, and starts the process of its size."""
    give_database(tmp_path / "store" / "mlflow" / "mlflow.db")
    monkeypatch.setattr(scale, "scratch", lambda: contextlib.nullcontext(tmp_path))
    monkeypatch.setattr(sys, "argv", ["scale.py", "--sizes", str(CELLS)])
    scale.main()
    row = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [str(CELLS)])
    found = dict(zip(scale.COLUMNS, map(float, row.split()[1:]), strict=True))
    assert found["added"] >= CELLS // 2
    assert found["start_s"] > 0
    assert found["peak_mib"] > 100
