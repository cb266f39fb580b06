"""The style of a page, and its script, which sorts tables."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #566273; --faint: #b4bdc9;
  --line: #e3e7ed; --accent: #0a5a8f;
  --allowed: #0072b2; --denied: #d55e00; --level: #00875f;
  --letters: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --fixed: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #10151c; --card: #182029; --ink: #e7ecf2; --soft: #9fabba; --faint: #55616f;
    --line: #2a3440; --accent: #7cc4f2;
    --allowed: #3f9fd8; --denied: #f0803c; --level: #2bb98a;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 var(--letters); }
main, header, footer { max-width: 1040px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; padding-bottom: 8px; }
.mark { margin: 0; color: var(--accent); font-weight: 600; letter-spacing: .02em; }
h1 { margin: 4px 0; font-size: 30px; line-height: 1.2; font-weight: 650; overflow-wrap: anywhere; }
h2, h3 { overflow-wrap: anywhere; }
h2, section > h3:first-child { margin: 0 0 4px; font-size: 18px; font-weight: 650; }
h2.limit { margin-top: 36px; font-size: 22px; }
h3 { margin: 20px 0 4px; font-size: 15px; font-weight: 650; }
.soft, .lead { color: var(--soft); overflow-wrap: anywhere; }
.lead { margin: 6px 0 0; font-size: 16px; }
p { margin: 4px 0 12px; }
section { margin: 20px 0; padding: 22px 24px; background: var(--card);
  border: 1px solid var(--line); border-radius: 12px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(146px, 1fr)); gap: 12px;
  margin: 24px 0 20px; padding: 0; }
.tiles div { padding: 14px 16px; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 2px 0 0; font-size: 24px; line-height: 1.2; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.tiles dd small { display: block; margin-top: 2px; color: var(--soft); font-size: 13px;
  font-weight: 400; }
.tiles .denied dd { color: var(--denied); }
figure { margin: 10px 0 0; overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 10px; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; }
th:first-child, td:first-child, .facts td, .facts th, .texts td, .texts th { text-align: left; }
thead th { color: var(--soft); font-size: 13px; font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; overflow-wrap: anywhere; }
.texts td { overflow-wrap: anywhere; }
tbody tr:last-child > * { border-bottom: 0; }
.facts th { width: min(190px, 34%); color: var(--soft); font-weight: 500;
  overflow-wrap: break-word; }
.id { min-width: 15ch; font-family: var(--fixed); font-size: 13px; overflow-wrap: anywhere; }
th button { all: unset; cursor: pointer; }
th button:hover { color: var(--ink); }
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px;
  border-radius: 3px; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.share { display: inline-block; width: 64px; height: 8px; margin-left: 8px; border-radius: 4px;
  background: var(--line); overflow: hidden; vertical-align: middle; }
td:has(.share) { white-space: nowrap; }
.share i { display: block; height: 100%; background: var(--denied); }
pre { margin: 10px 0 0; padding: 14px 16px; overflow-x: auto; background: var(--paper);
  border: 1px solid var(--line); border-radius: 8px; font: 13px/1.5 var(--fixed); }
pre.copy { user-select: all; }
details { margin-top: 12px; }
summary { cursor: pointer; color: var(--accent); }
footer { padding-top: 8px; padding-bottom: 48px; color: var(--soft); font-size: 13px; }
@media screen and (max-width: 640px) {
  main, header, footer { padding-left: 12px; padding-right: 12px; }
  section { padding: 16px 14px; }
  /* Wide enough for readable labels; the figure scrolls. */
  figure svg { width: 640px; }
}
@media print {
  body { background: none; }
  section, .tiles div { break-inside: avoid; }
}
"""

# A click on a head sorts by its column, descending first: large values matter most.
SCRIPT: Final = """
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
"""
