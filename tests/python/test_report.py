"""The report page: its content, and that ids and names are escaped."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from sample_log import write_access_log

import penstock
from penstock.simulate import Trace, compare, recommend, simulate, traffic

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.simulate import Comparison, Simulation

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traffic.mix(
        traffic.poisson(1, "10m", clients=20, seed=1),
        traffic.poisson(3, "2m", clients=1, seed=2, prefix=HOSTILE, start=60.0),
        name=HOSTILE,
    )


def read(html: str) -> str:
    """Return the visible text of a page."""
    body = re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture
def page_of(tmp_path: Path) -> Any:
    """A function that writes the report of a simulation or of a comparison, and returns it."""

    def page_of(results: Simulation | Comparison, **options: Any) -> str:
        return results.report(tmp_path / "out.html", **options).read_text("utf-8")

    return page_of


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
def test_a_page_is_written_into_a_pipe_that_exists(trace: Trace, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(pipe.read_text, "utf-8")
        simulate("10/minute", trace).report(pipe)
        assert reader.result(10).rstrip().endswith("</html>")


def test_page_shows_the_input_and_the_result(trace: Trace, page_of: Any) -> None:
    simulation = simulate({"Orders": "10/minute"}, trace)
    said = read(page_of(simulation))
    summary = simulation.summary()
    for words in (
        "Orders: 10 per minute",
        "10 at once, then 1 every 6 seconds",
        f"{summary.events:,} events of {summary.clients:,} clients",
        f"{summary.denied:,}",
        f"of {summary.clients:,}",
        "Traffic over time",
        "Waits of denied events",
        "Clients denied most",
        f"penstock {penstock.__version__}",
        "NumPy",
    ):
        assert words in said
    assert "Recommended for" not in said
    assert "Lines left out" not in said


def test_names_and_ids_are_escaped(trace: Trace, page_of: Any) -> None:
    limits = {HOSTILE: "10/minute", "b": "20/minute"}
    html = page_of(compare(limits, trace))
    assert HOSTILE not in html
    assert f"{HOSTILE}-1" in read(html)
    assert "<script" not in html


def test_page_forbids_everything_but_its_own_style(trace: Trace, page_of: Any) -> None:
    html = page_of(simulate("10/minute", trace))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    # The names of XML namespaces are never fetched.
    addresses = set(re.findall(r"https?://[^\s\"'<]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert " on" not in "".join(re.findall(r"<[a-z]+( on\w+=)", html))


def test_tables_have_heads_and_drawings_have_names(trace: Trace, page_of: Any) -> None:
    html = page_of(simulate("10/minute", trace))
    assert html.count("<h1>") == 1
    assert len(re.findall(r"<th(?![a-z])", html)) == len(re.findall(r"<th scope=", html))
    drawings = re.findall(r"<svg[^>]*>", html)
    # The traffic, a bucket and the waits, each for a wide page and for a phone.
    assert len(drawings) == 6
    assert all(re.search(r'role="img" aria-label="[^"]+"', drawing) for drawing in drawings)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for named in re.findall(r'(?:url\(#|href="#|aria-labelledby=")([^")]+)', html):
        assert named in ids


def test_page_has_the_recommended_limit_as_yaml(trace: Trace, page_of: Any) -> None:
    found = recommend(trace)
    for limits, name in (("10/minute", "Requests"), ({"Orders": "10/minute"}, "Orders")):
        page = page_of(simulate(limits, trace), recommendation=found)
        (text,) = re.findall(r'<pre class="copy">(.*?)</pre>', page, re.DOTALL)
        assert penstock.Limits.parse(unescape(text)).resolve(name, "a") == found.limit


def test_page_about_a_log_shows_lines_left_out(tmp_path: Path, page_of: Any) -> None:
    log = write_access_log(tmp_path / "access.log", events=500, seed=1)
    log.write_text(f"{HOSTILE}\n{log.read_text('utf-8')}", "utf-8")
    html = page_of(simulate("10/minute", Trace.from_log(log)))
    said = read(html)
    assert "did not parse 1 of 501 lines" in said
    assert HOSTILE in said
    assert HOSTILE not in html
    clean = write_access_log(tmp_path / "clean.log", events=500, seed=1)
    html = page_of(simulate("10/minute", Trace.from_log(clean)))
    assert "None of 500 lines." in read(html)


def test_page_without_events_or_denials_is_valid(page_of: Any) -> None:
    empty = page_of(simulate("10/minute", Trace([])))
    assert "0 events" in read(empty)
    calm = page_of(simulate("10/minute", [0.0, 1.0]))
    assert "Most active clients" in read(calm)


def test_same_simulation_is_the_same_page(trace: Trace, page_of: Any) -> None:
    simulation = simulate("10/minute", trace)
    assert page_of(simulation) == page_of(simulation)


def test_comparison_has_a_row_for_each_limit(trace: Trace, page_of: Any) -> None:
    table = compare({"today": "10/minute", "proposal": "20/minute, burst 60"}, trace)
    said = read(page_of(table))
    assert "today and proposal" in said
    for row in table.rows():
        share = f"{100 * row['denied_share']:.3g} %"
        assert f"{row['limit']} {share} {row['clients_denied']:,} " in said


def test_headings_of_a_limit_are_below_its_title(trace: Trace, page_of: Any) -> None:
    page = page_of(compare({"one": "10/minute", "two": "20/minute"}, trace))
    levels = re.findall(r"<h([1-6])[ >]", page)
    found = "".join(levels)
    # The page, the comparison with what changes, each limit with its sections, and the input.
    assert re.fullmatch(r"123(23+){2}2", found), found


def test_one_event_is_one_event_of_one_client(page_of: Any) -> None:
    simulation = simulate("10/minute", Trace([1.8e9], ["ada"]))
    assert repr(simulation) == "<Simulation: 1 event, 0 % denied>"
    said = read(page_of(simulation))
    assert "1 event of 1 client, from" in said
    # An axis of a microsecond, or of years, is useless.
    assert "events per second" in said
    assert "microsecond" not in said
    assert not re.search(r"\b2026\b", said)


def test_page_has_no_control_characters(page_of: Any) -> None:
    hostile = "a\x1b[31m\0\u202eb"
    trace = Trace([0.0] * 5, [hostile] * 5, name=hostile)
    text = page_of(compare({hostile: "2/minute"}, trace))
    assert {letter for letter in text if not letter.isprintable()} == {"\n"}
