"""The report's page in a real browser: its script, dark mode, a phone's width, and printing.

Skipped if there is no Chromium on the machine, or Playwright is not installed.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report import write_report
from tests.helpers.synthetic_results import everything

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
# Contrast between text and background (WCAG 2) of every element that has text of its own; the three lowest.
CONTRASTS = """() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3 && node.textContent.trim());
    if (!texts.length || !element.checkVisibility() || element.closest("script, style")) continue;
    const style = getComputedStyle(element), drawn = element.closest("svg");
    if (drawn && style.fill === "rgb(0, 0, 0)") continue;  // a number on a pale square of a heat map
    const colour = parse(drawn ? style.fill : style.color);
    const [a, b] = [light(colour), light(behind(element))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), element.tagName + "." + element.className + ": " + texts[0].textContent]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 3);
}"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a drawn few-shot grid on one backbone and one domain, with failed and missing cells."""
    drawn = everything("fewshot", only=["backbone=vit-b-32", "k=4,16", "domain=general"], failing=13, missing=89)
    return write_report(drawn, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any, page_file: Path) -> Iterator[Any]:
    """A function that opens the page. After the test, the console must be empty, and no request may have been sent."""
    pages, messages, requests = [], [], []

    def opened(width: int = 1280, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.as_uri())
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert messages == []
    assert {url for url in requests if not url.startswith("data:")} == {page_file.as_uri()}


def column(page: Any, table: str, number: int) -> list[str]:
    """Return the texts in one column of the visible rows."""
    found: list[str] = page.eval_on_selector_all(
        f"#{table} tbody tr:not([hidden])", f"rows => rows.map(row => row.cells[{number}].textContent.trim())"
    )
    return found


def show_all_rows(page: Any, table: str) -> None:
    """Show the rows of a long table that are hidden at first."""
    page.locator(f"figure:has(#{table}) .more button").click()


def numbers(texts: list[str]) -> list[float | None]:
    """Return the leading number of each text, ``None`` for a dash."""
    return [float(text.split()[0]) if text[0].isdigit() else None for text in texts]


def test_a_click_or_the_enter_key_sorts_by_number_with_missing_values_last(open_page: Any) -> None:
    page = open_page()
    heads = page.locator("#explorer_fewshot-table thead th")
    names = [name.strip() for name in heads.all_text_contents()]
    show_all_rows(page, "explorer_fewshot-table")
    place = names.index("Zero-shot CLIP")  # one cell for each dataset, and some of them failed
    button = heads.nth(place).locator("button")
    button.click()
    assert heads.nth(place).get_attribute("aria-sort") == "descending"
    values = numbers(column(page, "explorer_fewshot-table", place))
    known = [value for value in values if value is not None]
    assert None in values
    assert values[: len(known)] == sorted(known, reverse=True)
    button.focus()
    page.keyboard.press("Enter")
    assert heads.nth(place).get_attribute("aria-sort") == "ascending"
    values = numbers(column(page, "explorer_fewshot-table", place))
    assert values[: len(known)] == sorted(known)
    assert page.locator("#explorer_fewshot-table th[aria-sort]").count() == 1


def test_search_and_filters_work_together_and_show_the_number_of_rows(open_page: Any) -> None:
    page = open_page()
    figure = page.locator("figure:has(#explorer_fewshot-table)")
    count = figure.locator(".count")
    first = len(column(page, "explorer_fewshot-table", 0))
    more = figure.locator(".more").text_content()
    show_all_rows(page, "explorer_fewshot-table")
    total = len(column(page, "explorer_fewshot-table", 0))
    assert first < total
    assert more.startswith(f"{total - first} more rows")
    assert count.text_content() == f"{total} of {total}"
    figure.get_by_label("search the table").fill("cifar")
    assert set(column(page, "explorer_fewshot-table", 0)) == {"cifar10", "cifar100"}
    figure.get_by_label("k", exact=True).select_option("16")
    assert column(page, "explorer_fewshot-table", 0) == ["cifar10", "cifar100"]
    assert count.text_content() == f"2 of {total}"
    figure.get_by_label("search the table").fill("")
    figure.get_by_label("k", exact=True).select_option("")
    assert count.text_content() == f"{total} of {total}"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_first_screen_recommends_a_method_and_shows_the_matrix(open_page: Any, width: int) -> None:
    page = open_page(width=width)
    assert page.locator("#verdict .headline").first.bounding_box()["y"] < 400
    assert page.locator("#verdict .matrix .in-best-set:visible").first.bounding_box()["y"] < 800
    assert page.evaluate("document.documentElement.scrollWidth") == width
    matrix = page.locator("#verdict .matrix:visible .scroll").first
    hidden = matrix.evaluate("box => box.scrollWidth > box.clientWidth + 1")
    assert matrix.locator("xpath=../p[@class='hint']").is_visible() == hidden


def test_numbers_and_failures_lead_to_what_is_behind_them(open_page: Any) -> None:
    page = open_page()
    number = page.locator("#explorer_fewshot-table td[data-c]").first
    number.click()
    ids = number.get_attribute("data-c").split()
    commands = page.locator("dialog code").all_text_contents()
    assert [command.split()[-1] for command in commands] == ids
    page.locator("dialog button").click()
    assert page.locator("dialog").count() == 0
    failed = page.locator(".facts .bad a")
    assert "failed" in failed.text_content()
    failed.click()
    assert page.evaluate("location.hash") == "#gaps"
    assert page.locator("#gaps .failure").count() == int(failed.locator("b").text_content().replace(",", ""))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast_in_figures_and_in_dark_mode_too(open_page: Any, scheme: str) -> None:
    page = open_page(scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    worst = page.evaluate(CONTRASTS)
    assert worst[0][0] >= 4.5, worst
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert dark == (scheme == "dark")


def test_on_a_phone_tables_scroll_and_the_page_does_not(open_page: Any) -> None:
    page = open_page(width=390)
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = page.locator(".scroll:has(#explorer_fewshot-table)")
    assert wide.evaluate("box => box.scrollWidth > box.clientWidth")
    wide.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("box => box.scrollLeft > 0", arg=wide.element_handle())


def test_in_print_nothing_is_folded_or_cut(open_page: Any, tmp_path: Path) -> None:
    page = open_page(scheme="dark")
    page.pdf(path=tmp_path / "page.pdf", prefer_css_page_size=True)
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 1031, "height": 700})  # A4 landscape inside its margins, at 96 dpi
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    widths = page.eval_on_selector_all(
        "figure table", "tables => tables.map(t => [t.scrollWidth, t.caption.textContent]).sort((a, b) => b[0] - a[0])"
    )
    assert widths[0][0] <= 1031, widths[:3]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1031


def test_tables_figures_and_controls_have_names_for_screen_readers(open_page: Any) -> None:
    page = open_page()
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("svg:not([role=img][aria-label])").count() == 0
    assert page.locator("th:not([scope])").count() == 0
    for control in page.locator("input, select").all():
        assert control.evaluate("c => c.labels.length > 0 || c.hasAttribute('aria-label')")
    names = page.eval_on_selector_all("[role=region]", "regions => regions.map(r => r.ariaLabel)")
    assert all(len(name) > len("table: ") for name in names)
