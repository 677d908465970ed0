"""Measures a report of the size of the paper's whole grid: time to write, size of the page, time to answer a search.

    python benchmarks/report.py                   # every cell of grid full with a method of the paper: about 12,400
    python benchmarks/report.py full              # every cell of grid full: about 30,000
    python benchmarks/report.py fewshot k=4,16    # of another grid, filtered as by --only

Results are made up (tests/helpers/synthetic_results.py), everything else is real. Limits: 30 s to write, 15 MB, and
200 ms from a key in a search field to the new layout, for the slowest of all tables and of five searches. The last
needs Chromium and Playwright, and is skipped without them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PAPER = "method=zero_shot,linear_probe,tip_adapter,lp_plus_plus,lora,atlas,bolt_pooled,bolt,layer_norm,full_finetune"
PAPER += ",meta_init"
SECONDS, MEGABYTES, MILLISECONDS = 30.0, 15.0, 200.0

# Every table with a search field: the slowest answer to a search, and to a click on a heading.
ANSWERS = """async () => {
  const settled = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const timed = async (table, act) => {
    const start = performance.now();
    act();
    table.getBoundingClientRect();
    await settled();
    return performance.now() - start;
  };
  const slowest = { search: 0, sort: 0 };
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const figure = table.closest("figure"), search = figure.querySelector("input[type=search]");
    for (let fold = figure.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    await settled();
    if (!search) continue;
    for (const words of ["a", "bolt", "16", "zzzz", ""]) {
      const type = () => { search.value = words; search.dispatchEvent(new Event("input")); };
      slowest.search = Math.max(slowest.search, await timed(table, type));
    }
    for (const heading of [...table.querySelectorAll("th button")].slice(0, 3))
      slowest.sort = Math.max(slowest.sort, await timed(table, () => heading.click()));
  }
  return slowest;
}"""


def show(what: str, measured: float, limit: float, unit: str) -> None:
    print(f"{what:42} {measured:8.1f} {unit:2}   {measured / limit:5.2f} of the limit, {limit:g} {unit}", flush=True)


def main() -> None:
    # Here, because the processes that draw figures import this module again.
    from orchestrator.report import write_report
    from tests.helpers.synthetic_results import everything

    grid, *only = sys.argv[1:] or ("full", PAPER)
    drawn = everything(grid, only=only, failing=100, missing=300)
    print(f"grid {grid}: {len(drawn.results):,} results, 100 failures, 300 missing; {len(drawn.sources)} sources")
    with tempfile.TemporaryDirectory(prefix="bolt-report-") as folder:
        start = time.perf_counter()
        page = write_report(drawn.study(), Path(folder))
        seconds = time.perf_counter() - start
        tables, figures = (len(list((page.parent / kind).iterdir())) for kind in ("tables", "figures"))
        show(f"writing {tables} files of tables, {figures} of figures", seconds, SECONDS, "s")
        show("the page", page.stat().st_size / 1e6, MEGABYTES, "MB")
        browse(page)


def browse(page_file: Path) -> None:
    """Open the page and type into every search field."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        chromium = None
    if chromium is None:
        print("answering a search: not measured, because Chromium or Playwright is missing")
        return
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        start = time.perf_counter()
        page.goto(page_file.as_uri())
        print(f"{'opening the page':42} {time.perf_counter() - start:8.1f} s")
        slowest: dict[str, Any] = page.evaluate(ANSWERS)
        show("the slowest search", slowest["search"], MILLISECONDS, "ms")
        show("the slowest sort", slowest["sort"], MILLISECONDS, "ms")
        browser.close()


if __name__ == "__main__":
    main()
