"""Methods that fail, among methods that work."""

from pathlib import Path

from orchestrator.store import Store
from tests.conftest import GiveDatabase
from tests.helpers.grid_run import scores
from tests.helpers.warm_process import COMMAND_LINE, run_forked

GRID = """
title: Faulty methods
description: Methods that raise, return NaN, or use up memory, among methods that work.
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [glyph-digits]
    sources: leave_one_out
    shots: [1]
    seeds: [1]
    methods:
      - zero_shot
      - faulty: {fault: raises, as: raises}
      - faulty: {fault: nan, as: nan}
      - faulty: {fault: uses_up_memory, as: memory}
      - linear_probe: {epochs: 2}
"""
WITH_THE_METHOD = f"from tests.helpers.faulty_method import register_method; register_method(); {COMMAND_LINE}"


def test_a_faulty_method_stops_no_other(tmp_path: Path, give_database: GiveDatabase) -> None:
    store, file = tmp_path / "store", tmp_path / "odd.yaml"
    file.write_text(GRID)
    give_database(store / "mlflow" / "mlflow.db")
    ended = run_forked(["grid", str(file), "--local", "--store", str(store)], WITH_THE_METHOD)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert len(scores(store)) == 2
    errors = sorted(failure.error for failure in Store(store).read_failures().values())
    assert len(errors) == 3
    for error, expected in zip(errors, ("MemoryError", "NonFiniteLogits", "made to fail"), strict=True):
        assert expected in error
