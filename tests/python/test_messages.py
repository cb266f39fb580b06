"""The wording of error messages, compared with one table, and the rules that all of them follow."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Limit, Limits

LIMITER = penstock.Limiter(
    Limits.parse(
        """
        Orders: {burst: 1, count: 1, period: 1s, id: regId}
        Notes: {algorithm: leaky-bucket, size: 4}
        """
    ),
    clock=penstock.ManualClock(),
)


def closed() -> penstock.Limiter:
    """Return a closed limiter."""
    limiter = penstock.Limiter({})
    limiter.close()
    return limiter


def settled() -> penstock.Reservation:
    """Return a reservation that has been settled."""
    reservation = LIMITER.reserve("Notes", "ada", 0)
    reservation.settle(0)
    return reservation


def denied() -> penstock.Decision:
    """Return a denied decision."""
    LIMITER.spend("Orders", 7)
    return LIMITER.spend("Orders", 7)


CALLABLE = {
    "LIMITER": LIMITER,
    "Limit": Limit,
    "Limits": Limits,
    "closed": closed,
    "datetime": datetime,
    "denied": denied,
    "penstock": penstock,
    "settled": settled,
}
TABLE = Path(__file__).parent.parent / "data" / "messages.toml"
MESSAGES: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["message"]


@pytest.mark.parametrize("case", MESSAGES, ids=lambda case: case["call"])
def test_call_raises_the_error_with_the_message_of_the_table(case: dict[str, Any]) -> None:
    with pytest.raises(getattr(penstock, case["error"])) as caught:
        eval(case["call"], CALLABLE)  # noqa: S307  from our own table
    error = caught.value
    assert type(error).__name__ == case["error"]
    assert str(error) == case["message"]
    assert getattr(error, "field", None) == case.get("field")


def test_no_message_begins_with_a_capital_or_ends_in_a_full_stop() -> None:
    for case in MESSAGES:
        summary = re.sub("^(Orders|Notes): ", "", case["message"].partition("\n")[0])
        assert summary.startswith("M is ") or not summary[0].isupper()
        assert not summary.endswith(".")
