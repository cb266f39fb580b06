"""The site of the docs in a real browser: pages fit a phone, and ask no other host."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from browser import running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
# Text and pictures beyond the right edge, but in code and in tables of many columns, which scroll.
CUT = """
[...document.querySelectorAll("article :is(p, li, h1, h2, h3, img, dt, dd, td, input)")]
  .filter(e => !e.closest("pre, table:has(th:nth-child(5))"))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.outerHTML.slice(0, 120))
"""
# The first cells of wide tables, which stay in view when the table is scrolled to its end.
MOVED = """
[...document.querySelectorAll("table:has(th:nth-child(5)) tbody td:first-child")].filter(cell => {
  const box = cell.closest(".md-typeset__scrollwrap");
  box.scrollLeft = 0;
  const before = cell.getBoundingClientRect().left;
  box.scrollLeft = box.scrollWidth;
  const after = cell.getBoundingClientRect().left;
  return box.scrollWidth > box.clientWidth && (after < 0 || after > before);
}).map(cell => cell.textContent)
"""


def test_pages_fit_a_phone(root: Path, tmp_path: Path) -> None:
    # In a folder of its own, as `make docs` may build the site at the same time.
    shutil.copy(root / "mkdocs.yml", tmp_path)
    for name in ("docs", "python"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so"))
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    site = tmp_path / "site"
    pages = sorted(site.rglob("index.html"))
    assert len(pages) > 30
    faults: dict[str, object] = {}
    asked: set[str] = set()
    with running(tmp_path / "chromium") as browser:
        session = browser.open(pages[0])
        browser.ask("Emulation.setDeviceMetricsOverride", session, **PHONE)
        for page in pages:
            browser.go(session, page)
            asked |= {
                event["params"]["request"]["url"]
                for event in browser.seen
                if event.get("method") == "Network.requestWillBeSent"
            }
            width = browser.value(session, "document.documentElement.scrollWidth")
            cut = browser.value(session, CUT)
            moved = browser.value(session, MOVED)
            if width != PHONE["width"] or cut or moved:
                faults[str(page.relative_to(site))] = (width, cut, moved)
    assert not faults
    assert len(asked) > len(pages)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
