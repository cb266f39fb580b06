"""What services say in the header fields of their responses, as clients obey it."""

from __future__ import annotations

import math
import time
from email.utils import formatdate
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Limiter, ManualClock
from penstock.headers import STYLES
from penstock.outbound.received import wait_ns

# 14 November 2023, 22:13:20.
START = 1_700_000_000
SECOND = 1_000_000_000
DAY = 24 * 60 * 60
NONE_LEFT = {"X-RateLimit-Remaining": "0"}


def seconds(headers: dict[str, str] | list[tuple[str, str]], status: int = 429) -> float:
    """Return how long a response asks to wait, at the time `START`."""
    fields = headers.items() if isinstance(headers, dict) else headers
    return wait_ns(status, fields, START * SECOND) / SECOND


def date(after: int) -> str:
    """Return the date that is some seconds after now."""
    return formatdate(START + after, usegmt=True)


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", 120),
        (" 120 ", 120),
        ("00000000000005", 5),
        ("0" * 5000 + "5", 5),
        ("86401", DAY),
        ("9" * 5000, DAY),
        # Decimals are rounded up.
        ("45.5", 46),
        ("2.0", 2),
        ("0.001", 1),
        # The longest of several.
        ("5, 120, 7", 120),
        (f"5, {date(90)}, 7", 90),
        (f"{date(5)},{date(90)}", 90),
        (f"soon, 7, {date(-5)}", 7),
        (date(90), 90),
        ("Tue, 14 Nov 2023 22:14:50 GMT", 90),
        ("Tuesday, 14-Nov-23 22:14:50 GMT", 90),
        ("Tue Nov 14 22:14:50 2023", 90),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY),
        # As if the field was absent.
        *((text, 0) for text in ["0", "0.0", "0" * 5000, "-5", "1_000", "1e3", "٣", "soon", ""]),
        *((text, 0) for text in [date(0), date(-90), "Fri, 99 Dec 1999 23:59:59 GMT", "5 minutes"]),
        ("5" + " " * 9000 + "5", 0),
    ],
)
def test_retry_after_is_read(value: str, wait: int) -> None:
    assert seconds({"Retry-After": value}) == wait
    assert seconds({"Retry-After": value}, 404) == wait
    assert seconds({"Retry-After": value}, 503) == wait
    # Of another response, it means something else.
    assert seconds({"Retry-After": value}, 202) == 0


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Date": date(0), "Retry-After": date(90)}, 90),
        # The service's clock is an hour ahead of ours.
        ({"Date": date(3600), "Retry-After": date(3690)}, 90),
        ({"Date": "yesterday", "Retry-After": date(90)}, 90),
        ({"RETRY-AFTER": "9"}, 9),
        # It takes precedence, if it can be read.
        ({"Retry-After": "9", "RateLimit": '"a";r=0;t=99'}, 9),
        ({"Retry-After": "99", "RateLimit": '"a";r=0;t=9'}, 99),
        ({"Retry-After": "0", "RateLimit": '"a";r=0;t=9'}, 9),
        ({"Retry-After": "soon", "RateLimit": '"a";r=0;t=9'}, 9),
        # After a cache, only quotas are those of another request.
        ({"Retry-After": "9", "Age": "5"}, 9),
    ],
)
def test_retry_after_beside_other_fields(headers: dict[str, str], wait: int) -> None:
    assert seconds(headers) == wait


def test_fields_of_the_same_name_are_read_together() -> None:
    assert seconds([("Retry-After", "5"), ("retry-after", "120"), ("Retry-After", "7")]) == 120
    assert seconds([("RateLimit", '"a";r=1;t=99'), ("ratelimit", '"b";r=0;t=9')]) == 9


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"RateLimit": '"default";r=0;t=20'}, 20),
        ({"RateLimit": '"default" ; r=0 ; t=20'}, 20),
        ({"RateLimit": '"default";t=20;r=0;pk=:cHNjaA==:'}, 20),
        ({"RateLimit": "token;r=0;t=20;other=?1"}, 20),
        ({"RateLimit": '"second";r=0;t=1,\t"day";r=0;t=20, "hour";r=9;t=99'}, 20),
        ({"RateLimit": '"a\\"b;r=1, ";r=0;t=20'}, 20),
        ({"RateLimit": '"policy", "only";r=0;t=20'}, 20),
        ({"RateLimit": '"a";r=0;t=86401'}, DAY),
        ({"RateLimit": '"a";r=0;t=99999999'}, DAY),
        ({"RateLimit": "limit=100, remaining=0, reset=20"}, 20),
        ({"RateLimit": "limit=100,remaining=0,reset=20", "RateLimit-Policy": "100;w=60"}, 20),
        ({"RateLimit-Limit": "9", "RateLimit-Remaining": "0", "RateLimit-Reset": "20"}, 20),
        # Others count from the Unix time there, too.
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": str(START + 20)}, 20),
        ({"x-rate-limit-remaining": "0", "x-rate-limit-reset": str(START + 20)}, 20),
        ({"x-ratelimit-remaining": "0.0", "x-ratelimit-reset": "20"}, 20),
        ({**NONE_LEFT, "X-RateLimit-Reset": "19.5"}, 20),
        ({**NONE_LEFT, "X-RateLimit-Reset": str(START + 20)}, 20),
        ({**NONE_LEFT, "X-RateLimit-Reset": f"{START + 19}.123"}, 20),
        ({**NONE_LEFT, "X-RateLimit-Reset": f"{START + 20}000"}, 20),
        ({**NONE_LEFT, "X-RateLimit-Reset": f"{START + 19}001"}, 20),
        ({**NONE_LEFT, "X-RateLimit-Reset": str(START + 20), "Date": date(5)}, 15),
        ({**NONE_LEFT, "X-RateLimit-Reset": str(START + 2 * DAY)}, DAY),
        ({**NONE_LEFT, "X-RateLimit-Reset": str(START + 99), "X-RateLimit-Reset-After": "20"}, 20),
        ({**NONE_LEFT, "X-RateLimit-Clear": "20"}, 20),
        # The strictest of several spellings.
        ({**NONE_LEFT, "X-RateLimit-Reset": "20", "RateLimit": '"a";r=5;t=99'}, 20),
    ],
)
def test_nothing_is_left(headers: dict[str, str], wait: int) -> None:
    assert {seconds(headers, status) for status in (200, 301, 404, 429)} == {wait}
    for age in ("1", "120", "0.5", "9" * 5000):
        assert seconds({**headers, "Age": age}) == 0
    for age in ("0", "-1", "old", ""):
        assert seconds({**headers, "Age": age}) == wait


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"RateLimit": '"default";r=1;t=20'},
        {"RateLimit": '"default";r=0'},
        {"RateLimit": '"default";t=20'},
        {"RateLimit": '"a, remaining=0, reset=9";r=5;t=9'},
        {"RateLimit": "limit=100, remaining=1, reset=20"},
        {"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "20"},
        {"X-RateLimit-Limit": "100", "X-RateLimit-Reset": "20"},
        {"X-RateLimit-Remaining": "0"},
        {"X-RateLimit-Remaining": "0", "RateLimit-Reset": "20"},
        # It has passed.
        {**NONE_LEFT, "X-RateLimit-Reset": str(START - 5)},
        {**NONE_LEFT, "X-RateLimit-Reset": f"{START - 5}000"},
        # Not an instant: microseconds, nanoseconds, anything.
        *(
            {**NONE_LEFT, "X-RateLimit-Reset": f"{START + 20}{zeros}"}
            for zeros in ["0" * 6, "0" * 9]
        ),
        *({**NONE_LEFT, "X-RateLimit-Reset": nines} for nines in ["9" * 10, "9" * 15, "9" * 5000]),
        {"RateLimit": '"a";r=0;t=999999999999999'},
        # A malformed field is ignored as a whole.
        {"RateLimit": '"a";r=0;t=20,'},
        {"RateLimit": '"a";r=0;t=20 "b";r=0;t=20'},
        {"RateLimit": '"a;r=0;t=20'},
        {"RateLimit": '"a";R=0;t=20'},
        {"RateLimit": '"a";r=-1;t=20'},
        {"RateLimit": '"a";r="0";t=20'},
        {"RateLimit": '"a";r=0;t=-20'},
        {"RateLimit": '"a";r=0;t=9999999999999999'},
        {"RateLimit": "é" * 5},
        {"RateLimit": '"' + "a" * 9000 + '";r=0;t=20'},
        {"X-RateLimit-Remaining": "-1", "X-RateLimit-Reset": "20"},
        {"X-RateLimit-Remaining": "none", "X-RateLimit-Reset": "20"},
        {**NONE_LEFT, "X-RateLimit-Reset": "tomorrow"},
    ],
)
def test_something_is_left_or_nothing_is_said(headers: dict[str, str]) -> None:
    assert seconds(headers) == 0


@pytest.mark.parametrize("style", STYLES)
def test_own_headers_are_obeyed(style: str) -> None:
    limiter = Limiter({"A": "1 per 30 seconds"}, clock=ManualClock(start=START))
    decision = limiter.spend("A", "ada")
    assert seconds(decision.headers(style), 200) == 30


SOME_NUMBER = st.one_of(
    st.integers(0, 10**18).map(str),
    st.decimals(0, 10**12, places=3).map(str),
    st.sampled_from([str(START), f"{START}000", "0", "00", "-1", "1e9", "inf", "nan", "9" * 4400]),
)
SOME_DATE = st.integers(-(10**10), 10**11).map(lambda at: formatdate(at, usegmt=True))
SOME_ITEM = st.builds('"{}";r={};t={}'.format, st.text(max_size=3), SOME_NUMBER, SOME_NUMBER)
SOME_PAIRS = st.builds("limit=9, remaining={}, reset={}".format, SOME_NUMBER, SOME_NUMBER)
SOME_VALUE = st.one_of(
    SOME_NUMBER,
    SOME_DATE,
    SOME_ITEM,
    SOME_PAIRS,
    st.text(),
    st.text('0123456789 ,;:=+-.GMTadnuvo"'),
)
SOME_NAME = st.sampled_from(
    [
        f"{prefix}{name}"
        for prefix in ("RateLimit-", "X-RateLimit-", "x-rate-limit-")
        for name in ("Limit", "Remaining", "Reset", "Reset-After", "Clear", "Policy")
    ]
    + ["Retry-After", "RateLimit", "Date", "Age"]
)
SOME_FIELDS = st.lists(
    st.tuples(SOME_NAME, st.lists(SOME_VALUE, min_size=1, max_size=3).map(", ".join)), max_size=8
)


@given(SOME_FIELDS, st.sampled_from([200, 301, 403, 429, 503]))
def test_any_fields_ask_for_a_wait_of_at_most_a_day(
    fields: list[tuple[str, str]], status: int
) -> None:
    assert 0 <= seconds(fields, status) <= DAY


@given(
    st.decimals(0, 2 * DAY, places=3),
    st.lists(SOME_DATE | st.integers(0, DAY).map(str), max_size=3),
    SOME_FIELDS,
    st.sampled_from([400, 403, 429, 500, 503]),
)
def test_no_request_is_earlier_than_a_retry_after(
    wanted: object, others: list[str], fields: list[tuple[str, str]], status: int
) -> None:
    plain = [(name, value) for name, value in fields if name != "Retry-After"]
    value = ", ".join([*others, str(wanted)])
    expected = min(math.ceil(float(str(wanted))), DAY)
    assert seconds([*plain, ("Retry-After", value)], status) >= expected


@pytest.mark.parametrize("pattern", ["-", "a", "1", '"', "\\", ";", " ", "=", ":a", "a=1;", '";'])
def test_time_grows_with_the_length_of_a_field(pattern: str) -> None:
    def cost(length: int) -> float:
        text = pattern * (length // len(pattern))
        names = ("RateLimit", "Retry-After", "Date", "Age", "X-RateLimit-Remaining")
        fields = {**dict.fromkeys(names, text), "X-RateLimit-Reset": text}

        def once() -> float:
            started = process_time()
            seconds(fields)
            return process_time() - started

        return min(once() for _ in range(5))

    # Ten times as long; a quadratic search would take a hundred times as long.
    assert cost(8000) < 40 * max(cost(800), 2e-5)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="a zone of its own")
def test_a_date_without_a_zone_is_in_utc_wherever_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    dates = [time.asctime(time.gmtime(START + 90)), formatdate(START + 90)]
    assert dates[1].endswith(" -0000")
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        waits = [seconds({"Retry-After": date}) for date in dates]
    time.tzset()
    assert waits == [90, 90]
