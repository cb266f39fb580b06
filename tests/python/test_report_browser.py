"""A report in a real browser: it makes no requests, and its content is visible."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import SECONDS, Browser, running
from colors import contrast, luminance

from penstock.simulate import Trace, compare, recommend, simulate, traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Write


pytestmark = pytest.mark.slow

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    trace = traffic.mix(
        traffic.poisson(2, "10m", clients=30, seed=1, prefix="client"),
        traffic.poisson(5, "2m", clients=1, seed=2, prefix=HOSTILE, start=120.0),
        name=HOSTILE,
    )
    simulation, page = simulate({"Orders": "10/minute"}, trace), folder / "simulation.html"
    comparison = compare({"today": "10/minute", HOSTILE: "20/minute, burst 60"}, trace)
    return {
        "simulation": simulation.report(page, recommendation=recommend(trace)),
        "comparison": comparison.report(folder / "comparison.html"),
    }


@pytest.mark.parametrize("kind", ["simulation", "comparison"])
def test_page_loads_without_requests_and_errors(
    browser: Browser, pages: dict[str, Path], kind: str
) -> None:
    session = browser.open(pages[kind])
    # Event attributes would take effect after the page has loaded.
    browser.value(session, "new Promise(done => requestAnimationFrame(done))")
    assert browser.requested() == [pages[kind].as_uri()]
    assert browser.faults() == []
    assert browser.value(session, "document.title") != "owned"
    assert browser.value(session, "document.querySelectorAll('img, iframe, object').length") == 0
    assert browser.value(session, "document.scripts.length") == 0


@pytest.mark.parametrize(("kind", "least"), [("simulation", 3), ("comparison", 5)])
def test_charts_are_visible_and_labeled(
    browser: Browser, pages: dict[str, Path], kind: str, least: int
) -> None:
    session = browser.open(pages[kind])
    charts = "[...document.querySelectorAll('figure .desk svg')]"
    assert browser.value(session, f"{charts}.length") >= least
    assert browser.value(
        session, f"{charts}.every(each => each.getBoundingClientRect().width > 500)"
    )
    assert browser.value(session, f"{charts}.every(each => each.getAttribute('aria-label'))")
    ids = "[...document.querySelectorAll('[id]')].map(each => each.id)"
    assert browser.value(session, f"{ids}.length === new Set({ids}).size")
    # Every element that a drawing refers to exists.
    assert browser.value(
        session,
        "[...document.querySelectorAll('use')].every(each => "
        "document.getElementById(each.getAttribute('xlink:href').slice(1)))",
    )


def test_id_with_markup_is_shown_as_text(browser: Browser, pages: dict[str, Path]) -> None:
    session = browser.open(pages["simulation"])
    texts = "[...document.querySelectorAll('tbody .id')].map(each => each.textContent)"
    assert f"{HOSTILE}-1" in browser.value(session, texts)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_of_charts_has_enough_contrast(
    browser: Browser, pages: dict[str, Path], scheme: str
) -> None:
    session = browser.open(pages["simulation"])
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.ask("Emulation.setEmulatedMedia", session, features=features)
    ink = "getComputedStyle(document.querySelector('figure .desk svg text')).fill"
    card = "getComputedStyle(document.querySelector('section')).backgroundColor"
    lights = [
        luminance(*map(int, re.findall(r"\d+", browser.value(session, color))[:3]))
        for color in (ink, card)
    ]
    assert contrast(*lights) > 7


def test_a_page_that_makes_a_request_is_detected(browser: Browser, write: Write) -> None:
    html = "<!DOCTYPE html><script>console.error('seen')</script><img src='there.png'>"
    session = browser.open(Path(write("calls.html", html)))
    browser.value(session, "1")
    assert len(browser.requested()) == 2
    assert browser.faults()


def test_page_of_long_ids_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    trace = Trace([0.0] * 9, ["x" * 250] * 9, name="y" * 250)
    page = compare({"z" * 90: "2/minute", "two": "1/minute"}, trace).report(tmp_path / "out.html")
    session = browser.open(page)
    browser.ask(
        "Emulation.setDeviceMetricsOverride", session,
        width=375, height=800, deviceScaleFactor=1, mobile=True,
    )  # fmt: skip
    assert browser.value(session, "document.documentElement.scrollWidth") == 375
    # Texts in drawings are not too small.
    charts = "[...document.querySelectorAll('figure .phone svg')]"
    assert browser.value(session, f"{charts}.every(each => each.getScreenCTM().a * 10 >= 8)")
    # Drawings are not cut, and those for a wide page are not shown.
    edges = f"{charts}.map(each => each.getBoundingClientRect())"
    assert browser.value(session, f"{edges}.every(each => each.left >= 0 && each.right <= 375)")
    wide = "[...document.querySelectorAll('figure .desk')]"
    assert browser.value(session, f"{wide}.every(each => each.offsetHeight === 0)")
    # Words in row heads are not broken.
    head = "[...document.querySelectorAll('.facts th')].find(e => e.textContent == 'events')"
    lines = f"(line => (line.selectNodeContents({head}), line.getClientRects().length))"
    assert browser.value(session, f"{lines}(document.createRange())") == 1


def test_tables_fit_on_paper(browser: Browser, tmp_path: Path) -> None:
    trace = traffic.mix(
        traffic.poisson(2, "10m", clients=30, seed=1, prefix="2001:db8:0:448::"),
        traffic.poisson(5, "2m", clients=1, seed=2, prefix="2001:db8:0:666::"),
    )
    found = recommend(trace)
    page = simulate("10/minute", trace).report(tmp_path / "out.html", recommendation=found)
    session = browser.open(page)
    browser.ask("Emulation.setEmulatedMedia", session, media="print")
    # The width of A4 between the margins.
    browser.ask(
        "Emulation.setDeviceMetricsOverride", session,
        width=718, height=1000, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    tables = "[...document.querySelectorAll('.wide')]"
    heads = "[...document.querySelectorAll('.wide thead th')].map(each => each.textContent)"
    assert "suffices for" in browser.value(session, heads)
    assert browser.value(session, f"{tables}.every(each => each.scrollWidth <= each.clientWidth)")


def test_pictures_of_the_docs_can_be_taken_again(root: Path, tmp_path: Path) -> None:
    script = root / "docs/images/report.py"
    done = subprocess.run([sys.executable, script, tmp_path], check=False, timeout=4 * SECONDS)
    assert done.returncode == 0
    taken = sorted(tmp_path.iterdir())
    assert [file.name for file in taken] == ["report-desk.png", "report-phone.png"]
    for file, width in zip(taken, (1280, 390), strict=True):
        header = file.read_bytes()[:24]
        # The size in the header of a PNG.
        assert struct.unpack(">II", header[16:]) == (width, 900)
        kept = (root / "docs/images" / file.name).read_bytes()[:24]
        assert kept == header
