// Sorts and filters the tables of a page; without it they are there whole, in the order written.
"use strict";
const bodies = [...document.querySelectorAll("tbody")];
const input = document.getElementById("filter");

function value(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.replaceAll(",", "");
}

function compare(a, b) {
  const difference = Number(a) - Number(b);
  return Number.isNaN(difference) ? a.localeCompare(b) : difference;
}

function sort(body, head, column) {
  const direction = head.ariaSort === "ascending" ? -1 : 1;
  for (const other of head.parentNode.cells) other.ariaSort = null;
  head.ariaSort = direction === 1 ? "ascending" : "descending";
  const rows = [...body.rows];
  rows.sort((a, b) => direction * compare(value(a, column), value(b, column)));
  body.append(...rows);
}

function filter() {
  const words = input.value.toLowerCase().split(" ").filter(Boolean);
  let shown = 0, all = 0;
  for (const body of bodies) {
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
      all += 1;
    }
  }
  document.querySelector("output").textContent = words.length ? `${shown} of ${all} rows` : "";
}

for (const body of bodies) {
  [...body.parentNode.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(body, head, column));
    head.append(button);
  });
}
input.addEventListener("input", filter);
input.closest("p").hidden = false;
