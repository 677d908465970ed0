"""The page, the folder that it is written into, and the summary in the terminal."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchestrator.analysis.rows import SourceRow
from orchestrator.catalog import load_catalog
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.report import write as report_write
from orchestrator.report.grid_report import read_finished_results
from orchestrator.report.tables.formats import to_csv
from orchestrator.report.write import verdict_file
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from tests.helpers.small_results import DATASETS, arrange, cell, failure, grid, result, terminal, write
from tests.helpers.synthetic_results import everything
from tests.orchestrator.report.test_claims import page_html, table_of


class Loads(HTMLParser):
    """Collects the addresses that a browser would fetch, and checks that elements close."""

    VOID = frozenset({"meta", "link", "input", "br", "img", "path", "use", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.ids += [own["id"] or ""] if "id" in own else []
        if tag != "a":
            self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.slow
def test_the_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    results = grid({"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0})
    results += grid({"bolt": 58.0, "linear_probe": 59.0, "zero_shot": 0.0}, domain="remote_sensing")
    sources = [SourceRow("tiny", "general", name, 50.0, 90.0, 500) for name in DATASETS]
    file = write(tmp_path, results, sources=sources, published_of=lambda row: 59.0 if row.k == 4 else None)
    page = file.read_text(encoding="utf-8")
    parser = Loads()
    parser.feed(page)
    assert parser.open == []
    assert all(target.startswith(("#", "data:")) for target in parser.fetched)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert len(set(parser.ids)) == len(parser.ids)
    for words in ("90.00", "+40.00", "Beside the published", "sigma_sign = free", "c0ffee123456", "torch 2.8.0"):
        assert words in page
    assert "all 144 cells are finished" in page
    tables, figures = (list((tmp_path / kind).iterdir()) for kind in ("tables", "figures"))
    assert {path.suffix for path in tables} == {".csv", ".md", ".tex"}
    assert {path.suffix for path in figures} == {".pdf", ".png", ".svg"}
    assert all(path.stat().st_size > 0 for path in (*tables, *figures, tmp_path / "rows.csv"))
    assert len(json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8"))) == 6
    for target in re.findall(r'<li><a href="([^"]+)"', page):
        assert target.startswith("#") or (tmp_path / target).is_file()


def test_every_failure_and_every_missing_cell_is_shown() -> None:
    complete = grid({"bolt": 60.0, "linear_probe": 55.0})
    results, lacking = complete[:-5], [r.cell for r in complete[-5:]]
    failures = [failure(c.id) for c in lacking[:2]] + [failure("features--0badf00d")]
    arranged = arrange(results, failures, planned=[r.cell for r in complete])
    page = page_html(arranged)
    for f in failures:
        assert f.id in page
        assert f.log in page
    assert page.count("RuntimeError: &lt;loss&gt; is not finite") == 3
    assert "<loss>" not in page
    assert "3 planned cells were not run" in page
    listed = to_csv(table_of(arranged, "cells_without_result"))
    assert all(c.id in listed for c in lacking)
    assert "features--0badf00d" in listed


def test_page_terminal_and_json_say_the_same() -> None:
    accuracies = {"bolt": 60.0, "linear_probe": 55.0, "zero_shot": 0.0}
    results = grid(accuracies) + grid(accuracies, domain="aerial", datasets=DATASETS[:4])
    arranged = arrange(results, smallest_difference=2.5)
    records = json.loads(verdict_file(arranged.verdict_records()))
    places = [(record["domain"], record["k"], record["n"]) for record in records]
    assert places == [(domain, k, n) for domain, n in (("general", 8), ("aerial", 4), (None, 12)) for k in (1, 4)]
    assert {record["outcome"] for record in records} == {"best", "undecided"}
    assert {record["smallest_difference"] for record in records} == {2.5}
    said, page = terminal(arranged, verbose=True), html.unescape(page_html(arranged))
    for record in records:
        for text in (said, page):
            assert record["statement"] in text
            assert record["recommendation"][1:] in text  # the page begins with a capital letter
    assert said.index(records[0]["recommendation"]) < said.index("Accuracy by method")


def test_no_results_and_a_single_one_still_make_a_page(tmp_path: Path) -> None:
    assert "no results yet" in write(tmp_path, []).read_text(encoding="utf-8")
    page = write(tmp_path, [result(cell("bolt"), 60.0)]).read_text(encoding="utf-8")
    assert "one method only" in page
    assert "60.00" in page
    planned = [r.cell for r in grid({"bolt": 60.0})]
    page = page_html(arrange([], [failure(planned[0].id)], planned=planned))
    assert "32 cells are planned, 1 failed" in page
    assert planned[0].id in page


@pytest.mark.slow
def test_a_failed_report_leaves_the_old_one_and_a_new_one_cleans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(tmp_path, grid({"bolt": 60.0}))
    page, tables = before.read_bytes(), list((tmp_path / "tables").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(report_write, "render_page", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(tmp_path, grid({"bolt": 70.0}))
    assert before.read_bytes() == page
    assert all(path.is_file() for path in tables)
    assert not list(tmp_path.glob(".building-*"))
    new = write(tmp_path / "new", grid({"bolt": 60.0}, ks=(4,)))
    needed = {path.name for path in tmp_path.glob("new/tables/*")}
    changed, folder, *others = sorted(path for path in tables if path.name not in needed)
    assert others
    changed.write_text("changed by the user")
    folder.unlink()
    folder.mkdir()
    (tmp_path / "tables" / "own.csv").write_text("the user's")
    write(tmp_path, grid({"bolt": 60.0}, ks=(4,)))
    assert new.read_bytes() == before.read_bytes(), "equal results make equal pages"
    assert {path.name for path in tmp_path.glob("tables/*")} == {*needed, changed.name, folder.name, "own.csv"}


def test_a_report_that_cannot_be_written_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"{tmp_path}/file: the report cannot be written"):
        write(tmp_path / "file", grid({"bolt": 60.0}))


def test_the_terminal_shows_domains_failures_and_what_is_missing() -> None:
    results = grid({"bolt": 60.0, "zero_shot": 0.0})
    planned = [*(r.cell for r in results), cell("linear_probe")]
    text = terminal(arrange(results, [failure("x--0")], planned=planned), width=100)
    for words in ("BOLT", "k = 4", "±", "x--0", "1 of 41 planned cells"):
        assert words in text
    assert "no results yet" in terminal(arrange([]))


def test_the_terminal_has_a_line_for_each_domain_and_one_table_unless_verbose() -> None:
    accuracies = {"bolt": 60.0, "lora": 60.0, "linear_probe": 40.0}
    results = grid(accuracies) + grid(accuracies, domain="aerial", datasets=DATASETS[:1])
    short, whole = (terminal(arrange(results), width=100, verbose=verbose) for verbose in (False, True))
    line = next(line for line in short.splitlines() if line.startswith("general"))
    assert line.split() == ["general", "LoRA", "(1", "of", "2)", "at", "k", "=", "1,", "4"]  # it needs no source models
    assert (short.count("Accuracy by method"), whole.count("Accuracy by method")) == (1, 2)
    assert "1 more table" in short
    assert len(short.splitlines()) < 16 < len(whole.splitlines())


def test_the_terminal_of_the_demo_has_at_most_forty_lines() -> None:
    """On a terminal of 80 columns; the session adds two empty lines and four of where to look."""
    assert terminal(everything("demo"), width=80).count("\n") + 6 <= 40


@pytest.mark.parametrize("width", [50, 80])
def test_a_narrow_terminal_cuts_off_neither_names_nor_numbers(width: int) -> None:
    arranged = arrange(grid({"bolt": 40.0, "linear_probe": 39.0, "an_own_method": 38.0}, ks=(1, 2, 4, 8, 16)))
    said, (group,) = terminal(arranged, width=width), arranged.groups
    assert "…" not in said
    for label in group.methods:
        lines = [line for line in said.splitlines() if line.startswith(f"│ {arranged.display_names[label]} ")]
        means = [mean for k in group.ks if (mean := group.mean(label, k))]
        printed = [number.split()[0] for line in lines for number in line.split("│")[2:-1]]
        assert printed == [f"{mean.mean:.2f}" for mean in means]


def test_a_report_of_no_finished_cell_is_refused_and_the_old_page_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    page = tmp_path / "runs" / "reports" / "smoke" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("good")
    catalog = load_catalog()
    with pytest.raises(UserError, match="no cell of the grid is finished"):
        read_finished_results(make_plan(load_grid("smoke", catalog), catalog, store), store)
    assert page.read_text() == "good"


def test_a_long_name_is_broken_in_the_first_table_too() -> None:
    page = page_html(arrange(grid({"a method whose name says each of its many settings": 60.0, "lora": 55.0})))
    answer = page[: page.index("Results by domain")]
    assert answer.count('<th scope="row" class="long"') == answer.count("many settings</th>") > 0
