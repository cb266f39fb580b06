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

addFilters();
// The theme may replace the page without loading it again.
if (window.document$) window.document$.subscribe(addFilters);
