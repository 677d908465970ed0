"""The paper's tables: every printed number in every format, measured ones beside them, and LaTeX that compiles."""

import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import pytest

from orchestrator.analysis.seed_means import summarize
from orchestrator.catalog.location import grids_folder
from orchestrator.report.analysis import GridResults
from orchestrator.report.paper.measured import measured_protocols
from orchestrator.report.paper.paper_tables import paper_tables, published_tables
from orchestrator.report.paper.published import AVERAGE, printed_tables, published_footnotes
from orchestrator.report.published_report import write_published
from orchestrator.report.registry import report_tables
from orchestrator.report.styles import DASH
from orchestrator.report.tables.formats import to_csv, to_html, to_markdown
from orchestrator.report.tables.latex import latex_escape, to_latex, to_latex_document
from orchestrator.report.tables.table import Entry, Table, number
from orchestrator.report.write import all_of
from orchestrator.util.errors import UserError
from tests.helpers.command import invoke
from tests.helpers.latex_reading import problems
from tests.helpers.synthetic_results import everything
from tests.helpers.waiting import TIMEOUT

Key = tuple[str, str, str, str, str, str]
"""Table, domain, backbone, k, method and dataset, as in ``results.csv``."""
TITLES = {
    "Zero-shot CLIP": "zero_shot", "Linear probe": "linear_probe", "LoRA": "lora", "Tip-Adapter": "tip_adapter",
    "LP++": "lp_plus_plus", "aTLAS": "atlas", "BOLT": "bolt", "LayerNorm": "layer_norm",
}  # fmt: skip
SIGMA = "\N{GREEK SMALL LETTER SIGMA}"
DOMAINS = {"General datasets": "general", "Remote-sensing datasets": "remote_sensing"}


def printed() -> dict[Key, str]:
    """Return the file itself, read without the project's code."""
    with open(grids_folder() / "published" / "results.csv", encoding="utf-8", newline="") as stream:
        axes = itemgetter("domain", "backbone", "k", "method", "dataset")
        return {
            (row["table"].removeprefix("tab:"), *axes(row)): f"{float(row['accuracy']):.2f}"
            for row in csv.DictReader(stream)
        }


def place(table: str, line: dict[str, str], title: str) -> Key:
    """Return where a number of a rendered table belongs, by its line's words and its column's title."""
    method = TITLES[line["method"]]
    if table == "fewshot_general_rs_multicol":
        domain, shots = re.fullmatch(r"(.*) (\d+)-shot", title).groups()
        return table, DOMAINS[domain], "mean", "0" if method == "zero_shot" else shots, method, AVERAGE
    if table == "ood_vitb32_k16":
        return table, "imagenet", "ViT-B/32", "16", method, title
    if table == "OOD_extend_result":
        backbone, dataset = title.split(" ")
        return table, "imagenet", backbone, "16", method, dataset
    if table == "tta_general":
        return table, "general", title, "", method, AVERAGE
    if table == "tta_general_ufm":
        return table, "general", line["backbone"], "", method, title
    domain = "general" if table == "fewshot_general_detailed" else "remote_sensing"
    return table, domain, line["backbone"], line["k"], method, title


def lines_of_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def lines_of_markdown(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in (lines[0], *lines[2:])]
    return [[re.sub(r"<sup>.*?</sup>|</?ins>|\*\*|\\", "", cell).strip(" |") for cell in line] for line in cells]


def lines_of_html(text: str) -> list[list[str]]:
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", body)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    return [[re.sub(r"<sup>.*?</sup>|<[^>]*>", "", cell) for cell in row] for row in cells]


def lines_of_latex(text: str) -> list[list[str]]:
    start = re.search(r"\\endlastfoot", text) or re.search(r"\\midrule", text)
    body = re.split(r"\\bottomrule|\\end\{longtable\}", text[start.end() :])[0]
    body = re.sub(r"\\midrule|\\cmidrule\(lr\)\{[^}]*\}", "", body)
    lines, before = [], [""] * 3
    for row in filter(None, map(str.strip, body.split(r"\\"))):
        cells = [re.sub(r"\$\^\{.*?\}\$|\\textbf|\\underline|[{}]", "", cell).strip() for cell in row.split("&")]
        cells[:2] = [cell or above for cell, above in zip(cells[:2], before[:2], strict=True)]
        lines.append(cells)
        before = cells
    return lines


@pytest.fixture(scope="module")
def alone() -> dict[str, Table]:
    return {table.name.removeprefix("paper_"): table for table in published_tables()}


@pytest.mark.parametrize(
    ("render", "read"),
    [
        (to_csv, lines_of_csv),
        (to_markdown, lines_of_markdown),
        (lambda table: str(to_html(table)), lines_of_html),
        (to_latex, lines_of_latex),
    ],
    ids=["csv", "markdown", "html", "latex"],
)
def test_every_printed_number_is_rendered(
    alone: dict[str, Table], render: Callable[[Table], str], read: Callable[[str], list[list[str]]]
) -> None:
    rendered: dict[Key, str] = {}
    for name, table in alone.items():
        if name.endswith("_detail"):
            continue
        lines = read(render(table))
        lines = lines[1:] if lines[0][0] in table.header else lines
        assert len(lines) == len(table.rows)
        for cells in lines:
            words = dict(zip(table.header, cells[: table.text_columns], strict=False))
            for title, cell in zip(table.full_header[table.text_columns :], cells[table.text_columns :], strict=True):
                key = place(name, words, title)
                assert rendered.setdefault(key, f"{float(cell):.2f}") == f"{float(cell):.2f}"
    assert rendered == printed()
    assert len(rendered) == 3434


def test_the_tables_of_datasets_are_those_of_the_file(alone: dict[str, Table]) -> None:
    with open(grids_folder() / "published" / "datasets.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = []
    for name, domain in (("general_detail", "general"), ("rs_detail", "remote_sensing")):
        header, *lines = lines_of_csv(to_csv(alone[name]))
        for line in lines:
            found += [(domain, line[0], int(line[1]), b, float(a)) for b, a in zip(header[2:], line[2:], strict=True)]
    assert found == [(r["domain"], r["printed_as"], int(r["classes"]), r["backbone"], float(r["finetuned_accuracy"]))
                     for r in rows]  # fmt: skip


def test_best_is_bold_and_second_underlined_among_the_methods_of_a_block(alone: dict[str, Table]) -> None:
    table = alone["fewshot_general_detailed"]
    block = [row[table.header.index("Flowers102")] for row in table.rows[:6]]
    order = sorted(block, key=lambda entry: -(entry.value or 0))
    assert [entry.highlight for entry in order[:3]] == ["best", "second", ""]
    assert order[0].text == "68.86"
    assert r"\textbf{68.86}" in to_latex(table)
    assert r"\underline{64.69}" in to_latex(table)


def test_every_footnote_stands_under_the_tables_that_it_names(alone: dict[str, Table]) -> None:
    for note in published_footnotes():
        for name in note.tables:
            assert note.text in [text for _, text in alone[name].footnotes], (name, note.text)
    for table in alone.values():
        letters = [letter for letter, _ in table.footnotes if letter]
        assert letters == sorted(set(letters))
        used = {mark for row in table.rows for entry in row for mark in table.letters(entry.notes).split(",")}
        used |= {mark for notes in table.header_notes for mark in table.letters(notes).split(",")}
        assert used - {""} == set(letters)


def test_what_is_said_to_be_untrained_has_one_number_and_nothing_else_has() -> None:
    accuracies: dict[tuple[str, str], dict[int, float]] = {}
    for label, at, accuracy in (
        (label, *printed) for label, own in printed_tables().items() for printed in own.items()
    ):
        if (at.method, at.backbone, at.track) == ("atlas", "ViT-L/14", "fewshot") and at.dataset != AVERAGE:
            accuracies.setdefault((label, at.dataset), {})[at.shots] = accuracy
    notes = [note for note in published_footnotes() if note.text.startswith("Not trained")]
    said = {
        (table, d): set(n.shots) for n in notes for table in n.tables for d in n.datasets if (table, d) in accuracies
    }
    assert len(said) == 8 + 11
    for place_, by_shots in accuracies.items():
        same = {k for k in by_shots if by_shots[k] == by_shots[1]}
        assert same == said.get(place_, {1}), place_


@pytest.fixture(scope="module")
def fewshot() -> GridResults:
    only = ["backbone=vit-b-32", "domain=general", "shots=0,4,16"]
    return everything("fewshot", only=only, missing=50)


@pytest.fixture(scope="module")
def beside(fewshot: GridResults) -> dict[str, Table]:
    return {table.name: table for table in paper_tables(fewshot)}


def entry_of(table: Table, line: dict[str, str], title: str) -> Entry:
    (row,) = [row for row in table.rows if all(row[table.header.index(k)].text == v for k, v in line.items())]
    return row[table.full_header.index(title)]


def test_measured_published_and_difference_are_below_each_other(fewshot: GridResults, beside: dict[str, Table]) -> None:
    table = beside["paper_fewshot_general_detailed_vit-b-32_strict"]
    line = {"k": "4", "method": "BOLT"}
    measured, published, difference = (
        entry_of(table, {**line, "accuracy": kind}, "DTD") for kind in ("measured", "published", "difference")
    )
    rows = [row for row in fewshot.rows if (row.dataset, row.k, row.method) == ("dtd", 4, "bolt")]
    by_hand = summarize([row.accuracy for row in rows])
    assert (measured.value, measured.std, measured.n) == (by_hand.mean, by_hand.std, by_hand.n)
    assert published.value == 55.64
    assert difference.value == pytest.approx(by_hand.mean - 55.64)
    nothing = entry_of(table, {"k": "1", "method": "BOLT", "accuracy": "measured"}, "DTD")
    assert (nothing.value, nothing.plain) == (None, DASH)


def test_a_mean_is_over_datasets_and_complete_seeds(fewshot: GridResults, beside: dict[str, Table]) -> None:
    table = beside["paper_fewshot_general_detailed_vit-b-32_strict"]
    datasets = set(table.header[3:]) - {AVERAGE}
    assert len(datasets) == 17
    for label, title in (("linear_probe", "Linear probe"), ("bolt", "BOLT"), ("lora", "LoRA")):
        by_seed: dict[int, dict[str, float]] = {}
        for row in fewshot.rows:
            if (row.k, row.method) == (16, label):
                by_seed.setdefault(row.seed, {})[row.dataset] = row.accuracy
        means = [sum(own.values()) / 17 for own in by_seed.values() if len(own) == 17]
        entry = entry_of(table, {"k": "16", "method": title, "accuracy": "measured"}, AVERAGE)
        if means:
            assert entry.value == pytest.approx(summarize(means).mean)
            assert entry.n == len(means)
        else:
            assert entry.plain == f"{DASH} (no whole seed)"


def test_numbers_of_a_switch_stand_in_where_the_protocol_has_no_cell(beside: dict[str, Table]) -> None:
    table = beside["paper_fewshot_general_detailed_vit-b-32_strict"]
    line = {"method": "BOLT", "accuracy": "measured"}
    entry = entry_of(table, {**line, "k": "16"}, "Flowers102")
    note = entry.notes[0]
    assert entry.value is not None
    assert "under a changed protocol" in note
    assert note not in entry_of(table, {**line, "k": "4"}, "Flowers102").notes
    mean = entry_of(table, {**line, "k": "16", "method": "Tip-Adapter"}, AVERAGE)
    assert mean.value is None or note in mean.notes


def test_a_mean_over_backbones_that_are_not_there_is_a_dash_with_how_much_there_is(beside: dict[str, Table]) -> None:
    table = beside["paper_fewshot_general_rs_multicol_strict"]
    line = {"method": "BOLT", "accuracy": "measured"}
    assert entry_of(table, line, "General datasets 4-shot").plain == f"{DASH} (17/51)"
    assert entry_of(table, line, "Remote-sensing datasets 4-shot").plain == DASH


def test_only_tables_that_something_belongs_into_are_made(beside: dict[str, Table], fewshot: GridResults) -> None:
    assert set(beside) == {
        "paper_fewshot_general_rs_multicol_strict",
        "paper_fewshot_general_detailed_vit-b-32_strict",
        "paper_general_detail_beside",
    }
    (found,) = measured_protocols(fewshot)
    assert found.protocol == "strict"
    assert list(paper_tables(everything("demo-fewshot", only=["seed=0,1"]))) == []


def test_variants_of_a_method_stay_out_and_zero_shot_stands_at_every_k() -> None:
    made = everything("ablations", only=["dataset=dtd,mnist,aid"])
    tables = {table.name: table for table in paper_tables(made)}
    table = tables["paper_fewshot_general_detailed_vit-b-32_strict"]
    assert {row[1].text for row in table.rows} == {"Zero-shot CLIP", *TITLES} - {"LayerNorm"}
    zero = [entry_of(table, {"k": k, "method": "Zero-shot CLIP"}, "MNIST").value for k in ("1", "16")]
    assert zero == [48.25, 48.25]
    printed = {row.method for row in made.rows if row.published is not None}
    assert printed == {"linear_probe", "tip_adapter", "lp_plus_plus", "lora", "atlas", "bolt"} & set(made.methods)
    assert {"bolt", "rank 3"} <= set(made.methods)


@pytest.fixture(scope="module")
def small() -> list[Table]:
    """Return every table of a small grid with failures, variants, shift and epochs."""
    made = everything("full", only=["dataset=dtd,flowers102,imagenet", "backbone=vit-b-32"], failing=40)
    tables = all_of(report_tables(made))
    return [table for table in tables if table.rows]


def test_latex_is_well_formed(alone: dict[str, Table], small: list[Table]) -> None:
    for table in (*alone.values(), *small):
        assert problems(to_latex(table)) == [], table.name


def test_the_check_itself_sees_what_is_wrong(alone: dict[str, Table]) -> None:
    text = to_latex(alone["tta_general"])
    assert problems(text) == []
    for before, after, words in (
        (r"\end{tabular}", "", "tabular is left open"),
        ("61.55 &", "61.55", "3 cells in 4 columns"),
        (r"\textbf{69.92}", r"\textbf{69.92", "left open"),
        ("LayerNorm", "Layer_Norm", "a bare _"),
        ("LayerNorm", "λ", "not ASCII"),
        ("LayerNorm", r"\layernorm", "unknown command"),
        ("LayerNorm", "$x", "mathematics"),
    ):
        assert before in text
        assert any(words in found for found in problems(text.replace(before, after, 1))), words


def test_names_that_latex_would_read_as_commands_print_as_themselves() -> None:
    nasty = ["a_b", "50%", r"\end{table}", "{x}", "$5", "#1", "~", "^", "[x]", "*y", "<&>", 'a"b', SIGMA, "日", "a|b"]
    table = Table("nasty", "A title & more", "", ("name", "value"), tuple((Entry(n), number(1.0)) for n in nasty))
    text = to_latex(table)
    assert problems(text) == []
    assert "{}[x] & 1.00" in text
    assert latex_escape(f"{SIGMA}日") == r"$\sigma$[U+65E5]"


@pytest.mark.parametrize(
    ("rows", "package", "other"), [(20, "adjustbox", "longtable"), (300, "longtable", "adjustbox")]
)
def test_a_wide_table_is_shrunk_and_a_long_one_runs_over_pages(rows: int, package: str, other: str) -> None:
    header = ("method", *(f"column {i}" for i in range(26)))
    lines = tuple((Entry("bolt"), *[Entry("71.23", value=71.23, std=0.45, n=3)] * 26) for _ in range(rows))
    text = to_latex(Table("wide", "Wide", "A note.", header, lines))
    assert problems(text) == []
    assert f"% needs \\usepackage{{{package}}}" in text
    assert other not in text
    assert text.count("0.45") == (rows * 26 if rows == 20 else 0)  # the caption says that they are left out
    assert ("landscape" in text) == ("Deviations are left out" in text) == (rows == 300)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_every_table_compiles(alone: dict[str, Table], small: list[Table], tmp_path: Path) -> None:
    (tmp_path / "all.tex").write_text(to_latex_document([*alone.values(), *small]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "all.pdf").stat().st_size > 50_000


def test_the_published_tables_are_written_without_a_grid(tmp_path: Path) -> None:
    page = write_published(tmp_path)
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert len(names) == 10 * 4
    assert len(json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8"))) == 30
    assert (tmp_path / "tables.tex").is_file()
    text = page.read_text(encoding="utf-8")
    assert text.count("<table") == 10
    assert "http" not in text.replace("http-equiv", "")


def test_the_command_takes_a_grid_or_the_published_tables(tmp_path: Path) -> None:
    assert invoke("report", "--published", "-o", tmp_path / "out").strip().endswith("out/index.html")
    for words, says in (
        ((), "either a grid or --published"),
        (("demo", "--published"), "either a grid or --published"),
        (("--published", "-o", str(tmp_path / "out" / "index.html")), "is not a folder"),
    ):
        with pytest.raises(UserError, match=says):
            invoke("report", *words)
