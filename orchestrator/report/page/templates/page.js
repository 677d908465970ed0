"use strict";
// Printing opens all folded parts.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
// Makes every table marked data-sortable sortable and, if it is long, searchable. The page is complete without it.
// So many rows of a long table are shown until the reader asks for all. The layout of thousands of rows takes seconds.
const FIRST_ROWS = 30;
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0], headers = [...[...table.tHead.rows].at(-1).cells], scroll = table.closest(".scroll");
  const number = (cell) => cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  const text = (cell) => cell.textContent.trim();
  const entries = [...body.rows].map((row) => ({ row, searched: row.textContent.toLowerCase() }));
  const chosen = new Map();
  let terms = [], limit = FIRST_ROWS, more = null, count = null;

  const show = () => {
    const matching = entries.filter((entry) =>
      terms.every((term) => entry.searched.includes(term)) &&
      [...chosen].every(([i, value]) => value === "" || text(entry.row.cells[i]) === value));
    body.replaceChildren(...matching.slice(0, limit).map((entry) => entry.row));
    if (count) count.textContent = `${matching.length} of ${entries.length}`;
    if (more) {
      more.hidden = matching.length <= limit;
      more.firstChild.textContent = `${matching.length - limit} more rows. `;
    }
  };

  headers.forEach((header, i) => {
    const button = document.createElement("button");
    button.textContent = header.textContent;
    header.replaceChildren(button);
    const numeric = header.classList.contains("num");
    button.addEventListener("click", () => {
      const was = header.getAttribute("aria-sort");
      const direction = was ? (was === "ascending" ? -1 : 1) : numeric ? -1 : 1;
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      const key = (cell) => numeric ? number(cell) : text(cell).toLowerCase();
      for (const entry of entries) entry.key = key(entry.row.cells[i]);
      // Missing values stay at the end in both directions.
      entries.sort(({ key: a }, { key: b }) =>
        a === null || b === null ? (a === null) - (b === null) : a < b ? -direction : a > b ? direction : 0);
      show();
    });
  });

  if (table.dataset.filters === undefined) continue;
  const bar = document.createElement("div"), search = document.createElement("input");
  count = document.createElement("span");
  bar.className = "filters";
  count.className = "count";
  count.setAttribute("aria-live", "polite");
  search.type = "search";
  search.placeholder = "search";
  search.setAttribute("aria-label", "search the table");
  search.addEventListener("input", () => {
    terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    show();
  });
  bar.append(search);
  for (const i of table.dataset.filters.split(",").filter(Boolean).map(Number)) {
    const options = [...new Set(entries.map((entry) => text(entry.row.cells[i])))];
    if (options.length < 2) continue;
    const label = document.createElement("label"), select = document.createElement("select");
    select.setAttribute("aria-label", text(headers[i]));
    select.append(new Option("all", ""), ...options.map((option) => new Option(option, option)));
    select.addEventListener("change", () => { chosen.set(i, select.value); show(); });
    label.append(text(headers[i]) + " ", select);
    bar.append(label);
  }
  bar.append(count);
  if (entries.length > FIRST_ROWS) {
    const all = document.createElement("button");
    more = document.createElement("p");
    more.className = "more small";
    all.textContent = "show all";
    all.addEventListener("click", () => { limit = Infinity; scroll.classList.add("tall"); show(); });
    more.append(document.createTextNode(""), all);
    scroll.after(more);
  }
  table.closest("figure").prepend(bar);
  show();
}

// A hint above every table and figure that is wider than its box.
const watch = new ResizeObserver((boxes) => {
  for (const { target: box } of boxes) box.previousElementSibling.style.display =
    box.scrollWidth > box.clientWidth + 1 ? "block" : "none";
});
for (const box of document.querySelectorAll(".scroll")) {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.textContent = "Scroll sideways for more \u2192";
  box.before(hint);
  watch.observe(box);
}

// A number made of cells leads to the page of each cell, or to the command that makes it.
const stored = document.getElementById("data");
const inspected = new Set(stored ? JSON.parse(stored.textContent).inspected : []);
const part = (name, text) => Object.assign(document.createElement(name), { textContent: text });
document.addEventListener("click", (event) => {
  const number = event.target.closest("td[data-c]");
  if (!number) return;
  const dialog = document.createElement("dialog"), form = document.createElement("form");
  dialog.setAttribute("aria-label", "cells of this number");
  for (const id of number.dataset.c.split(" ")) {
    if (inspected.has(id)) {
      const link = part("a", id);
      link.href = `../cells/${id}.html`;
      dialog.append(link);
    } else {
      dialog.append(part("span", "To look inside this cell:"));
    }
    dialog.append(part("code", `python -m orchestrator inspect ${id}`));
  }
  form.method = "dialog";
  form.append(part("button", "close"));
  dialog.append(form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
});
