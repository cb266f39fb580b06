"""Limits that are replaced or added while a limiter is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Limit, Limiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import MakeLimiter


def test_buckets_stay_and_bound_limits_go_on(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": "4/second", "Mails": "2/second"})
    orders = limiter.limit("Orders")
    assert orders.spend("ada", 3).remaining == 1
    limiter.reload({"Orders": "10/second, burst 10"})
    assert list(limiter.limits) == ["Orders"]
    # 750 ms are missing, which is 8 of the new tokens.
    assert orders.check("ada", 0).remaining == 2
    assert limiter.limit("Orders") is orders
    assert orders.check("ada").limit.burst == 10


def test_bound_limit_works_again_after_its_limit_is_restored(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": "4/second", "Mails": "2/second"})
    mails = limiter.limit("Mails")
    assert mails.spend("ada").remaining == 1
    limiter.reload({"Orders": "4/second"})
    calls: list[Callable[[], object]] = [
        lambda: mails.spend("ada"),
        lambda: mails.check("ada"),
        lambda: mails.refund("ada"),
        lambda: mails.reset("ada"),
        lambda: mails.spend_each(["ada"]),
        lambda: limiter.spend("Mails", "ada"),
        lambda: limiter.limit("Mails"),
        lambda: limiter.spend_all([("Orders", "ada"), ("Mails", "ada")]),
    ]
    for call in calls:
        with pytest.raises(penstock.UnknownLimit, match=r"'Mails'; .*Orders$"):
            call()
    assert len(limiter) == 1
    limiter.reload({"Mails": "2/second"})
    assert mails.spend("ada").remaining == 0
    assert limiter.limit("Mails") is mails


def test_limit_that_changes_its_algorithm_starts_afresh(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": "4/second"})
    orders = limiter.limit("Orders")
    orders.spend("ada", 4)
    limiter.reload({"Orders": Limit.fixed_window(count=4, period=1)})
    assert orders.spend("ada").remaining == 3
    limiter.reload({"Orders": "4/second"})
    assert orders.check("ada", 0).remaining == 0


def test_limit_renamed_under_its_number_keeps_its_buckets(make_limiter: MakeLimiter) -> None:
    fields = "{burst: 4, count: 2, period: 1s, number: 6}"
    limiter = make_limiter(penstock.Limits.parse(f"Orders: {fields}"))
    limiter.spend("Orders", "ada", 3)
    limiter.reload(penstock.Limits.parse(f"NewOrders: {fields}"))
    assert limiter.check("NewOrders", "ada", 0).remaining == 1


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"Orders": "5/moth"}, penstock.LimitError),
        ({"7": "5/second"}, penstock.ConfigError),
        ({"Orders": 5}, TypeError),
        (5, TypeError),
        (None, TypeError),
        ({"Orders": "1/second", "Defined": "1/second"}, penstock.ConfigError),
    ],
    ids=repr,
)
def test_failed_reload_leaves_the_limits_active(
    make_limiter: MakeLimiter, limits: Any, problem: type[Exception]
) -> None:
    limiter = make_limiter({"Orders": "4/second"})
    limiter.define("Defined", "3/second")
    before, orders = limiter.limits, limiter.limit("Orders")
    orders.spend("ada")
    with pytest.raises(problem):
        limiter.reload(limits)
    assert limiter.limits == before
    assert orders.spend("ada").remaining == 2
    assert limiter.spend("Defined", "ada").remaining == 2


def test_reload_does_not_leave_a_limit_with_overrides_only(make_limiter: MakeLimiter) -> None:
    overrides = "- Orders: {burst: 9, count: 9, period: 1s, ids: [acme]}"
    limiter = make_limiter(penstock.Limits.parse("Orders: 2/second", overrides))
    limiter.spend("Orders", "ada")
    # As by a misspelled name in the limits file: all clients but acme would be unlimited.
    with pytest.raises(penstock.ConfigError, match=r"^Orders: .*unlimited") as caught:
        limiter.reload(penstock.Limits.parse("Oders: 2/second", overrides))
    assert caught.value.limit_name == "Orders"
    assert limiter.spend("Orders", "ada").remaining == 0
    limiter.reload(penstock.Limits.parse("Orders: {algorithm: unlimited}", overrides))
    assert limiter.spend("Orders", "ada").unlimited


def test_defined_limit_is_added_to_the_loaded_ones_and_outlives_a_reload(
    make_limiter: MakeLimiter,
) -> None:
    limiter = make_limiter({"Orders": "4/second"})
    mails = limiter.define("Mails", Limit.token_bucket(burst=2, count=1, period=1))
    assert mails is limiter.limit("Mails")
    assert limiter.define("Pages", "3/minute").spend("ada").remaining == 2
    assert list(limiter.limits) == ["Orders", "Mails", "Pages"]
    assert mails.spend("ada").remaining == 1
    limiter.reload({"Notes": "1/second"})
    assert set(limiter.limits) == {"Notes", "Mails", "Pages"}
    assert mails.spend("ada").remaining == 0
    limiter.reload(limiter.limits | {"Notes": "9/second"})
    assert limiter.limits["Notes"].count == 9
    limiter.reload({})
    assert set(limiter.limits) == {"Mails", "Pages"}


@pytest.mark.parametrize("name", ["Orders", "Defined"])
def test_name_that_is_taken_is_refused(make_limiter: MakeLimiter, name: str) -> None:
    limiter = make_limiter({"Orders": "4/second"})
    limiter.define("Defined", "3/second")
    with pytest.raises(penstock.ConfigError, match=name) as caught:
        limiter.define(name, "1/second")
    assert caught.value.limit_name == name
    assert limiter.spend("Orders", "ada").remaining == 3
    assert limiter.spend("Defined", "ada").remaining == 2


@pytest.mark.parametrize(
    ("name", "limit", "problem"),
    [
        ("a:b", "1/second", penstock.ConfigError),
        ("7", "1/second", penstock.ConfigError),
        ("", "1/second", penstock.ConfigError),
        ("Mails", "1/moth", penstock.LimitError),
        ("Mails", 5, TypeError),
        ("Mails", None, TypeError),
        (5, "1/second", TypeError),
    ],
    ids=repr,
)
def test_invalid_definition_changes_nothing(
    make_limiter: MakeLimiter, name: Any, limit: Any, problem: type[Exception]
) -> None:
    limiter = make_limiter({"Orders": "4/second"})
    with pytest.raises(problem):
        limiter.define(name, limit)
    assert list(limiter.limits) == ["Orders"]


def test_limits_that_change_while_costs_are_read_apply_to_the_whole_batch(
    make_limiter: MakeLimiter,
) -> None:
    limiter = make_limiter({"Orders": "4/second"})

    def costs() -> Iterator[int]:
        yield 1
        limiter.reload({"Orders": "8/second"})
        yield 2

    decisions = limiter.spend_each("Orders", ["ada", "eve"], costs())
    assert [decision.limit.burst for decision in decisions] == [8, 8]
    assert [decision.remaining for decision in decisions] == [7, 6]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda limiter: limiter.close(), penstock.StoreError),
        (lambda limiter: limiter.reload({}), penstock.UnknownLimit),
    ],
    ids=["close", "reload"],
)
def test_limit_removed_while_costs_are_read_is_an_error(
    make_limiter: MakeLimiter, change: Callable[[Limiter], None], error: type[Exception]
) -> None:
    limiter = make_limiter({"Orders": "4/second"})

    def costs() -> Iterator[int]:
        change(limiter)
        yield 1

    with pytest.raises(error):
        limiter.spend_each("Orders", ["ada"], costs())
