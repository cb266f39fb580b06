"""Bodies and headers of refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import Page

from penstock import Limit, Limiter, Limits, ManualClock
from penstock._web.headers import wait_ns
from penstock._web.problem import Problem, bad_request, quota_exceeded, reduced_capacity
from penstock.messages import Translator, describe_limit, format_duration

if TYPE_CHECKING:
    from conftest import MakeLimiter

LIMITS = """
Orders:
  burst: 2
  count: 1
  period: 90s
  description: orders
  docs: https://example.org/limits?of=orders&by=address
Plain: {burst: 1, count: 1, period: 1h}
"""
ENGLISH = Translator()
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


def refused(limiter: Limiter, name: str = "Orders", id: str = "192.0.2.1") -> Problem:
    """Return the problem of the first request that is refused."""
    decision = limiter.spend(name, id)
    while decision:
        decision = limiter.spend(name, id)
    return quota_exceeded(decision, decision.parts, wait_ns(decision), ENGLISH)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(Limits.parse(LIMITS), clock=clock)


def test_document_has_the_facts_for_programs_and_people(limiter: Limiter) -> None:
    fields, body = refused(limiter).body()
    content_type = dict(fields)["Content-Type"]
    assert content_type == "application/problem+json"
    assert json.loads(body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests",
        "status": 429,
        "detail": (
            "Too many orders for 192.0.2.1: at most 1 per 1 minute 30 seconds, 2 at once. "
            "Try again at 2001-09-09 01:48:10 UTC. "
            "See https://example.org/limits?of=orders&by=address"
        ),
        "violated-policies": ["Orders"],
    }


def test_limit_without_a_description_mentions_requests(limiter: Limiter) -> None:
    assert refused(limiter, "Plain").detail == (
        "Too many requests for 192.0.2.1: at most 1 per hour. Try again at 2001-09-09 02:46:40 UTC."
    )


def test_time_to_retry_is_rounded_up(limiter: Limiter, clock: ManualClock) -> None:
    clock.advance_ns(1)
    assert "01:48:11 UTC" in refused(limiter).detail


def test_headers_forbid_caching_and_link_to_help(limiter: Limiter) -> None:
    assert refused(limiter).headers() == [
        ("Cache-Control", "no-store"),
        ("Link", '<https://example.org/limits?of=orders&by=address>; rel="help"'),
    ]
    assert refused(limiter, "Plain").headers() == [("Cache-Control", "no-store")]


@pytest.mark.parametrize(
    "docs", ["https://example.org/a b", "https://example.org/>;", "https://example.org/é", "limits"]
)
def test_unsafe_url_is_not_a_link(docs: str) -> None:
    assert Problem(429, "t", "d", docs=docs).headers() == [("Cache-Control", "no-store")]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, "application/problem+json"),
        ("", "application/problem+json"),
        ("*/*", "application/problem+json"),
        ("application/json", "application/problem+json"),
        ("application/problem+json", "application/problem+json"),
        ("image/png", "application/problem+json"),
        (BROWSER, "text/html; charset=utf-8"),
        ("TEXT/HTML", "text/html; charset=utf-8"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("text/*;q=0.5, text/html;q=0.1", "text/plain; charset=utf-8"),
        ("text/html;q=0, */*", "application/problem+json"),
        ("application/json;q=0.2, text/html;q=0.8", "text/html; charset=utf-8"),
        ("text/html;q=high", "text/html; charset=utf-8"),
        ("application/json, text/html", "application/problem+json"),
        (";;;,,,=;q=;", "application/problem+json"),
    ],
)
def test_client_gets_the_type_that_it_prefers(
    limiter: Limiter, accept: str | None, content_type: str
) -> None:
    assert dict(refused(limiter).body(accept)[0])["Content-Type"] == content_type


def test_text_is_the_sentence(limiter: Limiter) -> None:
    problem = refused(limiter)
    assert problem.body("text/plain")[1].decode() == f"{problem.detail}\n"


def test_page_shows_the_sentence_and_links_to_help(limiter: Limiter) -> None:
    problem = refused(limiter)
    page = Page(problem.body("text/html")[1].decode())
    assert problem.detail in "".join(page.texts)
    plain = Page(refused(limiter, "Plain").body("text/html")[1].decode())
    assert plain.links == []
    assert page.links == ["https://example.org/limits?of=orders&by=address"]


def test_page_shows_an_id_and_never_runs_it(limiter: Limiter) -> None:
    hostile = refused(limiter, id="<script>alert(1)</script>")
    page = Page(hostile.body("text/html")[1].decode())
    assert hostile.detail in "".join(page.texts)
    assert "for <script>alert(1)</script>:" in hostile.detail
    assert "script" not in page.tags


@pytest.mark.parametrize("id", ["12345678:example.com", "2001:db8::", "ada@example.org", "x" * 100])
def test_id_is_shown_whole(limiter: Limiter, id: str) -> None:
    assert f" for {id}: at most" in refused(limiter, id=id).detail


@pytest.mark.parametrize("id", ["x" * 101, "two\nlines", "\x1b[31mred"])
def test_unprintable_id_is_not_shown(limiter: Limiter, id: str) -> None:
    assert refused(limiter, id=id).detail.startswith("Too many orders: at most")


def test_problem_names_the_denying_limits(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"A": "1/minute", "B": "1/hour", "C": "9/minute"})
    calls = [("A", "ada"), ("B", "ada"), ("C", "ada")]
    limiter.spend_all(calls)
    decision = limiter.spend_all(calls)
    problem = quota_exceeded(decision, decision.parts, wait_ns(decision), ENGLISH)
    assert problem.policies == ("A", "B")
    assert "at most 1 per hour" in problem.detail


def test_failing_store_is_a_503() -> None:
    document = json.loads(reduced_capacity(ENGLISH).body()[1])
    assert document["status"] == 503
    assert document["type"].endswith("#temporary-reduced-capacity")
    assert "violated-policies" not in document


def test_bad_request_has_a_detail() -> None:
    document = json.loads(bad_request("This request has no client id.", ENGLISH).body()[1])
    assert document == {
        "type": "about:blank",
        "title": "Bad request",
        "status": 400,
        "detail": "This request has no client id.",
    }


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit.parse("100/minute"), "100 per minute"),
        (Limit.parse("10 per 5 minutes, burst 20"), "10 per 5 minutes, 20 at once"),
        (Limit.leaky_bucket(size=60, drip_rate=1, drip_size=2), "60 at once, 2 more every second"),
        (Limit.fixed_window(count=5, period="1d"), "5 per day"),
        (Limit.fixed_rate_window(count=5, period=1), "5 per second, evenly spaced"),
        (
            Limit.fixed_rate_window(count=5, period="90m", burst=2),
            "5 per 1 hour 30 minutes, evenly spaced, 2 early",
        ),
        (
            Limit.calendar_window(count=10_000, period="month", zone="Europe/Berlin"),
            "10,000 per calendar month (Europe/Berlin)",
        ),
        (Limit.unlimited(), "no limit"),
    ],
)
def test_limit_is_described(limit: Limit, words: str) -> None:
    assert describe_limit(limit) == words


def test_duration_is_exact() -> None:
    assert format_duration(604_800_000_000_000) == "week"
    assert format_duration(2 * 604_800_000_000_000) == "2 weeks"
    assert format_duration(1_500_000_000) == "1 second 500 milliseconds"
    assert format_duration(250_001_007) == "250 milliseconds 1 microsecond 7 nanoseconds"


@given(accept=st.text(max_size=300))
def test_no_accept_header_breaks_the_response(accept: str) -> None:
    fields, body = bad_request("why", ENGLISH).body(accept)
    content_type = dict(fields)["Content-Type"]
    assert content_type.split(";")[0] in {"application/problem+json", "text/html", "text/plain"}
    assert body
