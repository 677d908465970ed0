"""The registry of tables and figures: the example in the docs runs, and tracks name what there is."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.report import registry
from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.report.tables.accuracy import main_table
from orchestrator.report.tables.table import Table
from tests.helpers.small_results import arrange, grid, write

ROOT = Path(__file__).resolve().parents[3]


def test_the_table_of_the_page_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "adding-a-report-table.md").read_text(), re.DOTALL)
    assert code is not None
    monkeypatch.setattr(registry, "GROUP_TABLES", list(registry.GROUP_TABLES))
    exec(compile(code[1], "adding-a-report-table.md", "exec"), {})
    results = grid({"bolt": 60.0, "linear_probe": 55.0}, ks=(4,))
    file = write(tmp_path, results)
    (path,) = tmp_path.glob("tables/seed_range_*.csv")
    rows = {row["method"]: row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}
    accuracies = [r.evaluations[0].accuracy for r in results if r.cell.method.name == "bolt"]
    assert float(rows["BOLT"]["lowest"]) == pytest.approx(min(accuracies))
    assert float(rows["BOLT"]["range"]) == pytest.approx(max(accuracies) - min(accuracies))
    page = file.read_text(encoding="utf-8")
    assert "Range over seeds and datasets at k = 4" in page
    assert f"tables/{path.name}" in page


@pytest.mark.parametrize("section", ["variants", "datasets", "verdict"])
def test_another_table_stands_beside_the_main_table(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the table of variants may take the main table's place."""

    def copy(results: GridResults, group: ComparisonGroup) -> Table:
        return replace(main_table(results, group), name="copy", title="A copy of the main table")

    line = registry.Kind("copy", copy, section)
    monkeypatch.setattr(registry, "GROUP_TABLES", [*registry.GROUP_TABLES, line])
    results = grid({"bolt": 60.0, "linear_probe": 55.0}, ks=(4,))
    arranged = arrange(results)
    (group,) = arranged.groups
    page = write(tmp_path, results).read_text(encoding="utf-8")
    assert main_table(arranged, group).title in page
    assert "A copy of the main table" in page
