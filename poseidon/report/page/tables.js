// Tables that sort by the column whose heading is pressed: first one way, then the other.

function sortable(table) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      // Figures are mostly looked through from the greatest, names from the first.
      const first = heading.classList.contains("num") ? "descending" : "ascending";
      const other = first === "descending" ? "ascending" : "descending";
      const way = heading.getAttribute("aria-sort") === first ? other : first;
      headings.forEach((one) => one.setAttribute("aria-sort", one === heading ? way : "none"));
      const rows = [...body.rows].filter((row) => !row.classList.contains("sum"));
      const sums = [...body.rows].filter((row) => row.classList.contains("sum"));
      const sign = way === "ascending" ? 1 : -1;
      rows.sort((left, right) => sign * compare(keyOf(left.cells[column]), keyOf(right.cells[column])));
      body.append(...rows, ...sums);
    });
  });
}

function keyOf(cell) {
  const key = cell.dataset.key;
  return key === undefined ? cell.textContent : Number(key);
}

function compare(left, right) {
  if (typeof left === "number" && typeof right === "number") return left - right;
  return String(left).localeCompare(String(right), undefined, { numeric: true });
}
