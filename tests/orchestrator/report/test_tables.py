"""Tables in every format, the registry of tables, and the frontier of costs."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.analysis.seed_means import summarize
from orchestrator.report import registry
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.costs import accuracy_against_costs, data_efficiency_table, frontier_table
from orchestrator.report.styles import signed
from orchestrator.report.tables.accuracy import main_table
from orchestrator.report.tables.changes import variants_tables
from orchestrator.report.tables.formats import to_csv, to_html, to_markdown
from orchestrator.report.tables.latex import latex_escape, to_latex
from orchestrator.report.tables.table import Entry, Table, highlighted, measured
from orchestrator.report.tables.verdict import verdict_tables
from tests.helpers.small_results import arrange, cell, grid, is_cell, result, write
from tests.orchestrator.report.test_claims import page_html, table_of


def sample() -> Table:
    rows = [
        [Entry("a_b & 50%"), measured(summarize([70.0, 72.0]), gain=-1.5)],
        [Entry("x|y"), measured(summarize([65.0]), seeds=2)],
        [Entry("none"), measured(None, missing="(1/8)")],
    ]
    column = highlighted([row[1] for row in rows])
    return Table(
        "sample", "A title", "A note.", ("method", "k = 1"), tuple((r[0], e) for r, e in zip(rows, column, strict=True))
    )


def test_latex_is_escaped_and_highlighted() -> None:
    text = to_latex(sample())
    assert r"a\_b \& 50\% & \textbf{71.00}{\scriptsize$\,\pm\,$1.41} {\scriptsize($-$1.50)} \\" in text
    assert r"x\textbar{}y & \underline{65.00} {\scriptsize[n = 1]} \\" in text
    assert r"none & -- (1/8) \\" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert latex_escape(r"\ { } ~ ^ # $") == (r"\textbackslash{} \{ \} \textasciitilde{} \textasciicircum{} \# \$")


def test_csv_holds_numbers_in_columns_of_their_own() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(sample()))))
    assert rows[0] == ["method", "k = 1", "k = 1 std", "k = 1 n", "k = 1 gain"]
    assert rows[1] == ["a_b & 50%", "71", "1.414214", "2", "-1.5"]
    assert rows[3] == ["none", "", "", "", ""]


def test_markdown_marks_and_escapes() -> None:
    text = to_markdown(sample())
    assert f"**71.00 ± 1.41 ({signed(-1.5)})**" in text
    assert "<ins>65.00" in text
    assert r"x\|y" in text


def test_html_is_escaped() -> None:
    table = Table("t", "<i>", "", ("<b>",), ((Entry("<script>alert(1)</script>", tooltip='"'),),))
    html = to_html(table)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert 'title="&#34;"' in html


def test_a_long_name_may_be_broken_on_the_page() -> None:
    """The column of names stays in sight, so that a long name once hid the numbers of a phone's page."""
    long, short = (str(to_html(Table("t", "", "", ("",), ((Entry(name),),)))) for name in ("method " * 6, "method"))
    assert '<th scope="row" class="long">' in long
    assert '<th scope="row">' in short


def test_marks_follow_the_printed_digits() -> None:
    entries = [Entry("", value=value) for value in (70.001, 70.004, 69.0, 60.0)]
    assert [e.highlight for e in highlighted(entries)] == ["best", "best", "second", ""]
    assert [e.highlight for e in highlighted([Entry("", value=1.0)])] == [""]
    assert [e.highlight for e in highlighted([Entry("", value=1.0), Entry("", value=1.0)])] == ["", ""]


def test_the_verdict_table_compares_every_method_with_the_first() -> None:
    arranged = arrange(grid({"linear_probe": 55.0, "bolt": 60.0, "zero_shot": 0.0}))
    table = list(verdict_tables(arranged, arranged.groups[0]))[1]
    (bolt, probe, zero_shot) = table.rows
    assert [row[0].text for row in table.rows] == ["BOLT", "Linear probe", "Zero-shot"]
    assert "out" not in bolt[1].text
    assert "BOLT" in probe[1].text
    assert [entry.value for entry in probe[2:]] == [pytest.approx(v) for v in (63.85, -5.0, -5.0, -5.0, 8, 2)]
    assert zero_shot[-1].value is None
    assert arranged.verdicts[0].verdicts[1].statement() in table.note
    assert list(verdict_tables(arranged)) == []


def test_all_domains_together_have_their_own_verdict_tables() -> None:
    accuracies = {"bolt": 60.0, "linear_probe": 55.0}
    arranged = arrange(grid(accuracies) + grid(accuracies, domain="aerial"))
    tables = list(verdict_tables(arranged))
    assert [len(table.rows) for table in tables] == [2, 2]
    assert {row[6].value for table in tables for row in table.rows} == {16}
    assert len({table.name for group in arranged.groups for table in verdict_tables(arranged, group)}) == 4


def test_variants_of_a_method_stand_in_the_order_of_the_grid() -> None:
    results = [
        result(cell("bolt", dataset, k, seed, settings=(("rate", 0.001), ("top_k", rank))), 50.0 + rank + seed)
        for rank in (12, 3, 24)
        for dataset in ("ants", "bees")
        for k in (1, 4)
        for seed in (0, 1)
    ]
    named = GridResults(
        results=results[::-1],
        failures=(),
        planned=[r.cell for r in results],
        label_of=lambda c: f"BOLT, rank {c.method.settings_dict()['top_k']}",
    )
    (table,) = variants_tables(named, named.groups[0])
    assert table.header == ("variant", "top k", "k = 1", "k = 4")
    assert [(row[0].text, row[1].text) for row in table.rows] == [(f"BOLT, rank {r}", str(r)) for r in (12, 3, 24)]
    assert [row[3].plain for row in table.rows] == [f"{50.5 + r:.2f} ± 0.71 (+{0.5 + r:.2f})" for r in (12, 3, 24)]
    assert [row[3].highlight for row in table.rows] == ["second", "", "best"]
    plain = arrange(grid({"bolt": 60.0, "linear_probe": 55.0}))
    assert list(variants_tables(plain, plain.groups[0])) == []


def test_short_classes_are_counted_and_shown() -> None:
    results = grid({"bolt": 60.0})
    short = [replace(r, details={"short_classes": 1}) if is_cell(r, "bolt", "cats", 4) else r for r in results]
    arranged = arrange(short)
    page = page_html(arranged)
    assert "cats: 1 of 1 classes has fewer than 4 training images; all of these were taken." in page
    listed = to_csv(table_of(arranged, "short_classes")).splitlines()
    assert listed == ["dataset,domain,protocol,k,short classes,classes", "cats,general,strict,4,1,1"]
    assert "training images; all of these were taken" not in page_html(arrange(results))


PARAMETERS = {"zero_shot": 0, "linear_probe": 9, "bolt": 700, "lora": 7000}


def results() -> list:  # type: ignore[type-arg]
    """BOLT is better than LoRA and has fewer parameters; the linear probe has fewest of those that are trained."""
    made = grid({"zero_shot": 50.0, "linear_probe": 55.0, "bolt": 62.0, "lora": 61.0}, ks=(1, 4, 16))
    return [replace(one, trainable_parameters=PARAMETERS[one.cell.method.name]) for one in made]


def test_the_frontier_is_named_in_table_and_figures() -> None:
    arranged = arrange(results())
    (group,) = arranged.groups
    table = frontier_table(arranged, group, 16)
    frontier = {row[0].code for row in table.rows if "parameters" in row[1].text}
    assert frontier == {"Zero-shot", "Linear probe", "BOLT"}
    assert [row[0].code for row in table.rows][:2] == ["BOLT", "lora"]
    operations, others = accuracy_against_costs(arranged, group)
    assert "fewer operations: " in operations.caption
    assert "fewer trainable parameters: Zero-shot" in others.caption


def test_images_for_the_same_score_are_counted() -> None:
    """BOLT gains 3 points from k = 1 to 4 and 12 from 4 to 16; LoRA has one point less at 16."""
    arranged = arrange(results())
    (group,) = arranged.groups
    table = data_efficiency_table(arranged, group)
    by_method = {row[0].code: row for row in table.rows}
    column = table.header.index("images for BOLT")
    found = by_method["lora"][column].value
    assert found is not None
    assert abs(found - 4 * 2 ** (2 * 11 / 12)) < 0.5
    assert by_method["lora"][column].text.startswith(f"{found:.2g} (")


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
def test_another_table_stands_beside_the_main_table(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the table of variants may take the main table's place."""

    def copy(results: GridResults, group: ComparisonGroup) -> Table:
        return replace(main_table(results, group), name="copy", title="A copy of the main table")

    line = registry.Kind(copy, section)
    monkeypatch.setattr(registry, "GROUP_TABLES", [*registry.GROUP_TABLES, line])
    arranged = arrange(grid({"bolt": 60.0, "linear_probe": 55.0}, ks=(4,)))
    (group,) = arranged.groups
    page = page_html(arranged)
    assert main_table(arranged, group).title in page
    assert "A copy of the main table" in page
