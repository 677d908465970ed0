"use strict";
// What is folded on the screen is not hidden on paper.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));
// Sorting, filtering and searching of every table marked data-sortable; the page reads the same without it.
const PIECE = 150;  // rows of a long table that are shown before more are asked for: laying out thousands takes seconds
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0], heads = [...[...table.tHead.rows].at(-1).cells], scroll = table.closest(".scroll");
  const number = (cell) => cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  const text = (cell) => cell.textContent.trim();
  const lines = [...body.rows].map((row) => ({ row, searched: row.textContent.toLowerCase() }));
  const chosen = new Map();
  let words = [], limit = PIECE, more = null, count = null;

  const show = () => {
    const fitting = lines.filter((line) =>
      words.every((word) => line.searched.includes(word)) &&
      [...chosen].every(([i, wanted]) => wanted === "" || text(line.row.cells[i]) === wanted));
    body.replaceChildren(...fitting.slice(0, limit).map((line) => line.row));
    if (count) count.textContent = `${fitting.length} of ${lines.length}`;
    if (more) {
      more.hidden = fitting.length <= limit;
      more.firstChild.textContent = `The first ${limit} of ${fitting.length} rows are shown. `;
    }
  };

  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    const numeric = head.classList.contains("num");
    button.addEventListener("click", () => {
      const was = head.getAttribute("aria-sort");
      const way = was ? (was === "ascending" ? -1 : 1) : numeric ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      for (const line of lines) line.key = numeric ? number(line.row.cells[i]) : text(line.row.cells[i]).toLowerCase();
      // What is missing stays at the end whichever way the rest is sorted.
      lines.sort(({ key: a }, { key: b }) =>
        a === null || b === null ? (a === null) - (b === null) : a < b ? -way : a > b ? way : 0);
      show();
    });
  });

  if (lines.length <= 12) continue;
  scroll.classList.add("tall");
  const bar = document.createElement("div"), search = document.createElement("input");
  count = document.createElement("span");
  bar.className = "filters";
  count.className = "count";
  count.setAttribute("aria-live", "polite");
  search.type = "search";
  search.placeholder = "search";
  search.setAttribute("aria-label", "search the table");
  search.addEventListener("input", () => {
    words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    show();
  });
  bar.append(search);
  for (const i of table.dataset.filters.split(",").filter(Boolean).map(Number)) {
    const options = [...new Set(lines.map((line) => text(line.row.cells[i])))];
    if (options.length < 2) continue;
    const label = document.createElement("label"), select = document.createElement("select");
    select.setAttribute("aria-label", text(heads[i]));
    select.append(new Option("all", ""), ...options.map((option) => new Option(option, option)));
    select.addEventListener("change", () => { chosen.set(i, select.value); show(); });
    label.append(text(heads[i]) + " ", select);
    bar.append(label);
  }
  bar.append(count);
  if (lines.length > PIECE) {
    const all = document.createElement("button");
    more = document.createElement("p");
    more.className = "more small";
    all.textContent = "show all";
    all.addEventListener("click", () => { limit = Infinity; show(); });
    more.append(document.createTextNode(""), all);
    scroll.after(more);
  }
  table.closest("figure").prepend(bar);
  show();
}
