"use strict";
// A number sorts by its exact value in data-sort, cells without one go last either way, all else as text.
const keyOf = (row, column) => {
  const cell = row.cells[column];
  const text = cell.dataset.sort ?? cell.textContent.trim();
  const number = text === "" ? NaN : Number(text);
  return { text, number, none: text === "" || (cell.matches(".lack") && !("sort" in cell.dataset)) };
};
const compare = (a, b, sign) => {
  if (a.none || b.none) return a.none - b.none;
  if (!Number.isNaN(a.number) && !Number.isNaN(b.number)) return sign * (a.number - b.number);
  return sign * a.text.localeCompare(b.text, "en", { numeric: true });
};
const sortBy = (table, head) => {
  const column = head.cellIndex;
  const next = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", next);
  const sign = next === "ascending" ? 1 : -1;
  const keyed = [...table.tBodies[0].rows].map((row) => [keyOf(row, column), row]);
  keyed.sort((a, b) => compare(a[0], b[0], sign));
  table.tBodies[0].append(...keyed.map((pair) => pair[1]));
};
const sortable = (table) => {
  for (const head of table.tHead.rows[0].cells)
    head.querySelector("button").addEventListener("click", () => sortBy(table, head));
};
document.querySelectorAll("table.sortable").forEach(sortable);
// One variant's answer at a time; a link to another's, or to a line of it, chooses that one.
const chooser = document.querySelector("#choose select");
const choose = () => {
  for (const each of document.querySelectorAll("[data-variant]")) {
    each.hidden = each.dataset.variant !== chooser.value;
    if (!each.hidden && each.dataset.part) fill(each);
  }
};
if (chooser) {
  chooser.closest("p").hidden = chooser.options.length < 2;
  chooser.addEventListener("change", () => {
    choose();
    history.replaceState(null, "", `#${document.querySelector("article[data-variant]:not([hidden])").id}`);
  });
}
