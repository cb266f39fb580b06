// A click on a head sorts by its column, descending first: large values matter most.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
    const up = head.getAttribute("aria-sort") === "descending", index = head.cellIndex;
    const value = row => row.cells[index].dataset.value ?? row.cells[index].textContent;
    const order = (a, b) => isNaN(value(a)) || isNaN(value(b))
      ? value(a).localeCompare(value(b)) : value(a) - value(b);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...[...body.rows].sort((a, b) => up ? order(a, b) : order(b, a)));
  });
}
