"use strict";
// What is folded on the screen is not hidden on paper.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));
// Sorting, filtering and searching of every table marked data-sortable; the page reads the same without it.
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, i) => row.cells[i].dataset.v === undefined ? null : Number(row.cells[i].dataset.v);
  const text = (row, i) => row.cells[i].textContent.trim();

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
      const keyed = rows.map((row) => [numeric ? value(row, i) : text(row, i).toLowerCase(), row]);
      // What is missing stays at the end whichever way the rest is sorted.
      keyed.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : a < b ? -way : a > b ? way : 0);
      body.append(...keyed.map(([, row]) => row));
    });
  });

  if (rows.length <= 12) continue;
  table.closest(".scroll").classList.add("tall");
  const bar = document.createElement("div"), count = document.createElement("span");
  bar.className = "filters";
  count.className = "count";
  count.setAttribute("aria-live", "polite");
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "search";
  search.setAttribute("aria-label", "search the table");
  const lowered = rows.map((row) => row.textContent.toLowerCase()), chosen = new Map();
  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, n) => {
      const fits = words.every((word) => lowered[n].includes(word)) &&
        [...chosen].every(([i, wanted]) => wanted === "" || text(row, i) === wanted);
      row.hidden = !fits;
      shown += fits;
    });
    count.textContent = `${shown} of ${rows.length}`;
  };
  search.addEventListener("input", apply);
  bar.append(search);
  for (const i of table.dataset.filters.split(",").filter(Boolean).map(Number)) {
    const options = [...new Set(rows.map((row) => text(row, i)))];
    if (options.length < 2) continue;
    const label = document.createElement("label"), select = document.createElement("select");
    select.append(new Option("all", ""), ...options.map((option) => new Option(option, option)));
    select.addEventListener("change", () => { chosen.set(i, select.value); apply(); });
    label.append(heads[i].textContent + " ", select);
    bar.append(label);
  }
  bar.append(count);
  apply();
  table.closest("figure").prepend(bar);
}
