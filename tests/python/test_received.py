"""Headers of other services, as `penstock.headers.parse` reads them."""

from __future__ import annotations

import json
from time import process_time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.headers import STYLES, ReceivedLimit, parse

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, []),
        ({"Retry-After": "5"}, []),
        (
            {
                "RateLimit-Policy": '"burst";q=100;w=60, "daily";q=1000;w=86400;pk=:cHNjaA==:',
                "RateLimit": '"burst";r=50;t=30,  "daily" ; r=7',
            },
            [ReceivedLimit("burst", 100, 60, 50, 30), ReceivedLimit("daily", 1000, 86400, 7, None)],
        ),
        ({"RateLimit": '"a\\"b";r=1'}, [ReceivedLimit('a"b', remaining=1)]),
        ({"RateLimit": '"only";r=1, "policy"'}, [ReceivedLimit("only", remaining=1)]),
        (
            [("ratelimit", '"a";r=1'), ("RateLimit", '"b";r=2')],
            [ReceivedLimit("a", remaining=1), ReceivedLimit("b", remaining=2)],
        ),
        (
            {"RateLimit-Policy": "100;w=60", "RateLimit": "limit=100, remaining=50, reset=5"},
            [ReceivedLimit(None, 100, 60, 50, 5)],
        ),
        (
            {
                "RateLimit-Limit": "10, 10;w=1, 1000;w=3600",
                "RateLimit-Remaining": "3",
                "RateLimit-Reset": "1",
            },
            [ReceivedLimit(None, 10, 1, 3, 1)],
        ),
        (
            {
                "X-RateLimit-Limit": "60",
                "X-RateLimit-Remaining": "56",
                "X-RateLimit-Reset": str(int(NOW) + 30),
            },
            [ReceivedLimit(None, 60, None, 56, 30.0)],
        ),
        (
            {
                "x-rate-limit-limit": "900",
                "x-rate-limit-remaining": "0",
                "x-rate-limit-reset": str(int(NOW) - 5),
            },
            [ReceivedLimit(None, 900, None, 0, 0.0)],
        ),
        (
            {"X-RateLimit-Remaining": "9", "X-RateLimit-Clear": "1.500"},
            [ReceivedLimit(None, None, None, 9, 1.5)],
        ),
        # A malformed field is ignored as a whole.
        ({"RateLimit": '"a";r=1,'}, []),
        ({"RateLimit": '"a";r=1 "b";r=2'}, []),
        ({"RateLimit": '"a;r=1'}, []),
        ({"RateLimit": '"a";R=1'}, []),
        ({"RateLimit": '"a";r=-1'}, []),
        ({"RateLimit": '"a";r="1"'}, []),
        ({"RateLimit": "é" * 5}, []),
        ({"RateLimit": '"' + "a" * 9000 + '";r=1'}, []),
        ({"X-RateLimit-Remaining": "-1"}, []),
        ({"X-RateLimit-Remaining": "many", "X-RateLimit-Limit": "all"}, []),
    ],
)
def test_headers_are_read_or_ignored(headers: Any, expected: list[ReceivedLimit]) -> None:
    assert parse(headers, NOW) == expected


def test_reset_that_is_an_instant_needs_the_time() -> None:
    headers = {"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "1700000030"}
    assert parse(headers) == [ReceivedLimit(remaining=1)]


@pytest.mark.parametrize("style", STYLES)
def test_own_headers_read_back(style: str, root: Path) -> None:
    read = 0
    for scenario in json.loads((root / "tests/data/vectors/headers.json").read_text()):
        for step in scenario["steps"]:
            written = step.get("headers", {}).get(style, {})
            if written.keys() - {"Retry-After"}:
                assert parse(written, 0.0), (style, written)
                read += 1
    assert read or style in ("draft-11", "sharkey-always")


def test_parsed_headers_equal_the_decision(clock: penstock.ManualClock) -> None:
    limiter = penstock.Limiter({'A "b" c': "6/minute, burst 3"}, clock=clock)
    decision = limiter.spend('A "b" c', "ada")
    assert parse(decision.headers()) == [ReceivedLimit('A "b" c', 3, 30, 2, 10)]


@given(
    st.dictionaries(
        st.sampled_from(["RateLimit", "RateLimit-Policy", "X-RateLimit-Limit"]), st.text()
    )
)
def test_any_text_is_read_or_ignored(headers: dict[str, str]) -> None:
    for limit in parse(headers):
        assert limit.remaining is None or limit.remaining >= 0


@pytest.mark.parametrize("pattern", ["-", "a", "1", '"', "\\", ";", " ", "=", ":a", "a=1;", '";'])
def test_time_grows_with_the_length_of_a_field(pattern: str) -> None:
    def seconds(length: int) -> float:
        text = pattern * (length // len(pattern))
        fields = {"RateLimit": text, "RateLimit-Policy": text, "X-RateLimit-Limit": text}

        def once() -> float:
            started = process_time()
            parse(fields)
            return process_time() - started

        return min(once() for _ in range(5))

    # Ten times as long; a quadratic search would take a hundred times as long.
    assert seconds(8000) < 40 * max(seconds(800), 2e-5)
