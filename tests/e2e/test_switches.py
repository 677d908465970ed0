"""Every value of every switch of the protocol goes through a grid, its report and MLflow, by user's commands."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml

from bolt.protocol import STRICT, SWITCHES, Protocol
from tests.conftest import GiveDatabase
from tests.helpers.command import invoke

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
NEEDS_FILES = {("support_draw", "listed")}
"""Switches that read lists which a lab keeps beside its data."""


def test_every_switch_goes_through_a_grid_and_mlflow(tmp_path: Path, give_database: GiveDatabase) -> None:
    hints = get_type_hints(Protocol)
    changes = [
        (switch, value)
        for switch in SWITCHES
        for value in get_args(hints[switch]) or (False, True)
        if value != getattr(STRICT, switch) and (switch, value) not in NEEDS_FILES
    ]
    assert {switch for switch, _ in changes} == set(SWITCHES)
    block = {
        "track": "fewshot", "backbones": ["tiny-clip"], "datasets": ["glyph-digits"], "shots": [1], "seeds": [1],
        "methods": ["zero_shot", {"linear_probe": {"epochs": 2}}],
    }  # fmt: skip
    protocols = [{"name": "strict"}, *({"name": "strict", switch: value} for switch, value in changes)]
    grid = {"title": "Switches", "blocks": [{**block, "protocol": protocol} for protocol in protocols]}
    path, store = tmp_path / "switches.yaml", str(tmp_path / "runs")
    path.write_text(yaml.safe_dump(grid))
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    assert "MLflow could not" not in invoke("grid", path, "--local", "--store", store)
    assert "MLflow: 0 runs added" in invoke("sync", path, "--store", store)
    effects = (tmp_path / "runs" / "reports" / "switches" / "tables" / "effects.csv").read_text()
    assert all(f"{switch} = {value}" in effects for switch, value in changes)
