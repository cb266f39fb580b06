// A field above each table in `.filtered` that hides the rows without the words typed into it.
function addFilters() {
  for (const box of document.querySelectorAll(".filtered:not([data-ready])")) {
    box.dataset.ready = "";
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = "Filter the options, such as redis";
    field.setAttribute("aria-label", "Filter the table");
    const rows = [...box.querySelectorAll("tbody tr")];
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().replaceAll("penstock_", "").split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    box.prepend(field);
  }
}

// On a phone, the rows of a table that is too wide become paragraphs, in which each cell begins with the head of its column.
const phone = matchMedia("(max-width: 44.9375em)");

function stackTables() {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    table.removeAttribute("data-stacked");
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    // A comparison of many columns is better read as a table that scrolls.
    const room = table.closest("details, article").clientWidth;
    if (!phone.matches || heads.length > 4 || table.scrollWidth <= room) continue;
    table.dataset.stacked = "";
    for (const row of table.tBodies[0].rows)
      for (const [index, cell] of [...row.cells].entries()) cell.dataset.head = heads[index];
  }
}

function prepareTables() {
  addFilters();
  stackTables();
}

prepareTables();
phone.addEventListener("change", stackTables);
document.addEventListener("toggle", stackTables, true);
// The theme may replace the page without loading it again.
if (window.document$) window.document$.subscribe(prepareTables);
