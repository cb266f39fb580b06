"""The exceptions: their bases, attributes and messages, and that they can be pickled."""

from __future__ import annotations

import datetime
import inspect
import pickle
import re
import tomllib
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Limit, Limiter, Limits, ManualClock, errors

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception)
}

# Each class, the one it is below, and the built-in one that a reader may expect.
BASES: dict[str, tuple[str, type[Exception]]] = {
    "Error": ("Exception", Exception),
    "ConfigError": ("Error", ValueError),
    "LimitError": ("Error", ValueError),
    "UnknownLimit": ("Error", KeyError),
    "InvalidId": ("Error", ValueError),
    "CostError": ("Error", ValueError),
    "CostNegative": ("CostError", ValueError),
    "CostTooHigh": ("CostError", ValueError),
    "TransactionError": ("Error", ValueError),
    "ReservationError": ("Error", RuntimeError),
    "StoreError": ("Error", RuntimeError),
    "StoreUnavailable": ("StoreError", RuntimeError),
    "StoreTimeout": ("StoreError", RuntimeError),
    "RateLimited": ("Error", Exception),
}

LIMITER = Limiter(
    Limits.parse(
        """
        Orders: {burst: 1, count: 1, period: 1s, id: regId}
        Notes: {algorithm: leaky-bucket, size: 4}
        """
    ),
    clock=ManualClock(),
)


def closed() -> Limiter:
    """Return a closed limiter."""
    limiter = Limiter({})
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


DENIED = denied()
# What the calls of the table may use.
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

# How each is raised, and its attributes.
RAISED: dict[str, tuple[Callable[[], object], dict[str, object]]] = {
    "ConfigError": (
        lambda: Limits.parse("Orders:\n  burst: 0\n  count: 1\n  period: 1s"),
        {
            "file": None,
            "line": 2,
            "limit_name": "Orders",
            "problems": ("<defaults>:2: Orders: burst must be at least 1, found 0",),
        },
    ),
    "LimitError": (
        lambda: Limit.token_bucket(burst=0, count=1, period=1),
        {"field": "burst"},
    ),
    "UnknownLimit": (lambda: LIMITER.spend("Order", 7), {"limit_name": "Order"}),
    "InvalidId": (lambda: LIMITER.spend("Orders", "ada"), {"limit_name": "Orders"}),
    "CostNegative": (lambda: LIMITER.spend("Orders", 7, -1), {"cost": -1, "limit_name": "Orders"}),
    "CostTooHigh": (lambda: LIMITER.spend("Orders", 7, 2), {"cost": 2, "limit_name": "Orders"}),
    "TransactionError": (
        lambda: LIMITER.spend_all([("Notes", "ada"), ("Notes", "ada")]),
        {"limit_name": "Notes", "bucket_key": "Notes:ada"},
    ),
    "ReservationError": (lambda: settled().settle(0), {}),
    "StoreError": (lambda: closed().stats(), {}),
    "RateLimited": (DENIED.raise_if_denied, {"decision": DENIED}),
}
# Raised by stores over a network and by nothing in this module's reach.
NOT_RAISED = {"Error", "CostError", "StoreUnavailable", "StoreTimeout"}


def caught(name: str) -> penstock.Error:
    """Return a raised exception of a class."""
    with pytest.raises(penstock.Error) as info:
        RAISED[name][0]()
    return info.value


def test_every_class_is_looked_at() -> None:
    assert set(CLASSES) == set(BASES) == set(errors.__all__) == set(RAISED) | NOT_RAISED
    assert {name for name in penstock.__all__ if name in CLASSES} == set(CLASSES)
    for name, value in CLASSES.items():
        assert getattr(penstock, name) is value
        assert value.__doc__


@pytest.mark.parametrize("name", BASES)
def test_exception_is_below_ours_and_below_the_built_in(name: str) -> None:
    above, built_in = BASES[name]
    parents = {parent.__name__ for parent in CLASSES[name].__bases__}
    assert above in parents
    assert issubclass(CLASSES[name], built_in)
    assert issubclass(CLASSES[name], penstock.Error)
    # And of no other built-in class, so that no other `except` clause catches it by mistake.
    ours = {ValueError, KeyError, LookupError, RuntimeError} & set(CLASSES[name].__mro__)
    assert ours <= {built_in, *built_in.__mro__}


@pytest.mark.parametrize("name", RAISED)
def test_exception_is_shown_by_its_public_name_and_message(name: str) -> None:
    error = caught(name)
    assert type(error) is CLASSES[name]
    last = traceback.format_exception_only(error)[-1]
    # A sentence, and not the repr of one as KeyError shows it.
    assert last.strip() == f"penstock.errors.{name}: {error}"


@pytest.mark.parametrize("name", RAISED)
def test_exception_has_attributes_for_programs(name: str) -> None:
    error, (_, attributes) = caught(name), RAISED[name]
    assert {key: getattr(error, key) for key in attributes} == attributes
    documented = {line.split(":")[0].strip() for line in (CLASSES[name].__doc__ or "").splitlines()}
    assert set(attributes) <= documented | {"cost", "limit_name"}


@pytest.mark.parametrize(
    "call",
    [
        lambda: Limiter({"Orders": "5/moth"}),
        lambda: Limiter({}).define("Orders", "5/moth"),
        lambda: Limits({"Orders": "\udc80"}),
    ],
)
def test_invalid_limit_has_its_name(call: Callable[[], object]) -> None:
    with pytest.raises(penstock.LimitError) as info:
        call()
    assert info.value.limit_name == "Orders"


def test_problem_of_a_file_has_attributes(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("Orders: {burst: 0, count: 1, period: 1s}\nMails: 5/moth\n")
    with pytest.raises(penstock.ConfigError) as info:
        Limits.load(file)
    first, second = info.value.problems
    assert (first.file, first.line, first.limit_name) == (str(file), 1, "Orders")
    assert first.message == "burst must be at least 1, found 0"
    assert first == f"{file}:1: Orders: {first.message}"
    assert (second.line, second.limit_name) == (2, "Mails")
    assert info.value.file == str(file)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Limits.parse("\udc80"), penstock.ConfigError),
        (lambda: Limits.parse("", "\udc80"), penstock.ConfigError),
        (lambda: Limits({"\udc80": "5/minute"}), penstock.ConfigError),
        (lambda: Limiter({}).define("\udc80", "5/minute"), penstock.ConfigError),
        (lambda: Limiter({}, store="\udc80"), penstock.ConfigError),
        (lambda: Limit.parse("\udc80"), penstock.LimitError),
        (
            lambda: Limit.token_bucket(burst=1, count=1, period="\udc80"),
            penstock.LimitError,
        ),
        (lambda: LIMITER.spend("Notes", "ada", factor="\udc80"), penstock.LimitError),
        (lambda: LIMITER.spend("\udc80", "ada"), penstock.UnknownLimit),
        (lambda: LIMITER.spend("Notes", "\udc80"), penstock.InvalidId),
    ],
)
def test_text_that_is_not_utf8_is_an_error_of_the_package(
    call: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"UTF-8|no limit is named"):
        call()


def test_text_that_is_not_utf8_is_no_address() -> None:
    assert LIMITER.limits.address_id("Notes", "\udc80") is None
    assert LIMITER.limit("Notes").address_id("\udc80") is None


@pytest.mark.parametrize("name", RAISED)
def test_exception_survives_pickle_with_all_it_carries(name: str) -> None:
    error = caught(name)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301  made just now
        assert type(again) is type(error)
        assert (str(again), again.args) == (str(error), error.args)
        for key in RAISED[name][1]:
            assert getattr(again, key) == getattr(error, key)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("ConfigError", {"file": None, "line": None, "limit_name": None, "problems": ()}),
        ("LimitError", {"field": None}),
        ("CostTooHigh", {"cost": 0, "limit_name": ""}),
    ],
)
def test_exception_created_by_a_user_has_all_attributes(
    name: str, attributes: dict[str, object]
) -> None:
    error = CLASSES[name]("made by hand")
    assert {key: getattr(error, key) for key in attributes} == attributes
    assert str(error) == "made by hand"


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
