"""A limiter and its bound limits: every method, from construction until they are closed."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from core_limits import FILE, LIMITED

import penstock
from penstock import Limit, Limiter, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import MakeLimiter


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(penstock.Limits.parse(FILE), clock=clock)


def test_unlimited_allows_everything_and_stores_nothing(limiter: Limiter) -> None:
    for cost in (0, 1, 2**63 - 1):
        decision = limiter.spend("Free", "ada", cost)
        assert (decision.allowed, decision.unlimited) == (True, True)
        assert decision.remaining == 2**63 - 1
        assert (decision.retry_after_ns, decision.reset_after_ns) == (0, 0)
    assert limiter.reset("Free", "ada") is False
    assert len(limiter) == 0


def test_bound_limit_and_limiter_have_the_same_buckets(limiter: Limiter) -> None:
    orders = limiter.limit("Orders")
    assert limiter.limit("Orders") is orders
    assert (orders.name, repr(orders)) == ("Orders", "<BoundLimit 'Orders'>")
    assert orders.spend("ada", 3).remaining == 1
    assert limiter.check("Orders", "ada", 0).remaining == 1
    assert orders.refund("ada", 2).remaining == 3
    assert orders.check("ada", 0) == limiter.check("Orders", "ada", 0)
    assert orders.reset("ada") is True
    assert [len(orders.spend_each(["ada"] * 3)), len(limiter)] == [3, 1]


def test_defaults_are_memory_and_the_system_clock() -> None:
    limiter = Limiter({"Orders": "4/second"})
    assert limiter.store == "memory://"
    assert isinstance(limiter.clock, penstock.SystemClock)
    assert limiter.spend("Orders", "ada").allowed
    assert limiter
    assert repr(limiter) == "<Limiter of 1 limit at memory://>"


def test_clock_is_the_argument(clock: ManualClock) -> None:
    limiter = Limiter({"Orders": "4/second"}, clock=clock)
    assert limiter.clock is clock
    assert limiter.spend("Orders", "ada").now_ns == clock.now_ns()


@pytest.mark.parametrize("clock", [5, "system", ManualClock, lambda: 5, object()], ids=type)
def test_clock_of_another_kind_is_a_type_error(clock: Any) -> None:
    with pytest.raises(TypeError, match=r"^clock"):
        Limiter({}, clock=clock)


@pytest.mark.parametrize(
    "store",
    [
        "",
        "memory",
        "memory:///",
        "memory://localhost",
        "Memory://",
        "file:///tmp/store",
        "memory://?",
        "memory://?buckets=5",
        "memory://?max_buckets=5&max_buckets=5",
        *(
            f"memory://?max_buckets={number}"
            for number in ("", "0", "-1", "1.5", "1_000", "+-1", "five", " 5", "5\n", "9" * 30)
        ),
    ],
    ids=repr,
)
def test_store_url_is_parsed_as_a_whole_or_refused(store: str) -> None:
    with pytest.raises(penstock.ConfigError) as raised:
        Limiter({}, store=store)
    assert (raised.value.file, raised.value.limit_name) == (None, None)


def test_store_that_is_not_a_text_is_a_type_error() -> None:
    wrong: Any
    for wrong in (5, None, b"memory://"):
        with pytest.raises(TypeError):
            Limiter({}, store=wrong)


HOURLY = [
    Limit.token_bucket(burst=2, count=2, period="1h"),
    Limit.leaky_bucket(size=2, drip_rate="30m"),
    Limit.fixed_window(count=2, period="1h"),
    Limit.fixed_rate_window(count=1, period="1h", burst=1),
]


@pytest.mark.parametrize(("overflow", "let_through"), [("share", 2), ("deny", 0)])
@pytest.mark.parametrize("limit", HOURLY, ids=repr)
def test_full_store_resets_no_client(
    make_limiter: MakeLimiter, clock: ManualClock, limit: Limit, overflow: str, let_through: int
) -> None:
    store = f"memory://?max_buckets=10&overflow={overflow}"
    limiter = make_limiter({"Orders": limit}, store=store)
    limiter.spend_each("Orders", range(10), 2)
    assert sum(limiter.spend_each("Orders", range(10, 110)).allowed.tolist()) == let_through
    assert not limiter.check("Orders", "new")
    assert not any(limiter.spend("Orders", id) for id in range(10))
    stats = limiter.stats()
    assert (len(limiter), stats["evicted"]) == (10, 0)
    assert stats["shared" if overflow == "share" else "refused"] == 101
    denied = limiter.spend("Orders", "new")
    assert (denied.allowed, denied.remaining) == (False, 0)
    clock.advance(3 * denied.retry_after)
    assert limiter.spend("Orders", "new")


@pytest.mark.parametrize("query", ["overflow=share", "max_buckets=9&overflow=drop"])
def test_overflow_is_for_bounded_stores_and_one_of_three(
    make_limiter: MakeLimiter, query: str
) -> None:
    with pytest.raises(penstock.ConfigError, match="overflow must be"):
        make_limiter({"Orders": "4/hour"}, store=f"memory://?{query}")


def test_stats_count_live_and_forgotten_buckets(
    make_limiter: MakeLimiter, clock: ManualClock
) -> None:
    limiter = make_limiter({"Orders": "4/second"})
    assert limiter.stats() == {
        "store": "memory://",
        "buckets": 0,
        "capacity": None,
        "slots": 0,
        "bytes": limiter.stats()["bytes"],
        "forgotten": 0,
        "evicted": 0,
        "shared": 0,
        "refused": 0,
        "recovered_locks": None,
    }
    limiter.spend_each("Orders", range(10_000))
    full = limiter.stats()
    assert (len(limiter), full["buckets"], full["forgotten"]) == (10_000, 10_000, 0)
    assert (full["bytes"] or 0) >= 16 * (full["slots"] or 0) >= 16 * 10_000
    # All are full again, so they go as others come.
    clock.advance(60)
    limiter.spend_each("Orders", range(10_000, 20_000))
    later = limiter.stats()
    assert 1_000 < (later["forgotten"] or 0) <= 10_000
    assert later["buckets"] == 10_000
    assert later["evicted"] == 0


def test_every_call_of_a_closed_limiter_raises_store_error(limiter: Limiter) -> None:
    orders = limiter.limit("Orders")
    with limiter as entered:
        assert entered is limiter
        assert orders.spend("ada").allowed
    calls: list[Callable[[], object]] = [
        # A limit that was asked for before, and ones that were not.
        *(lambda name=name, verb=verb: getattr(limiter, verb)(name, "ada")
          for name in ("Orders", *LIMITED, "Free")
          for verb in ("spend", "check", "refund", "reset")),
        lambda: orders.spend("ada"),
        lambda: orders.check("ada"),
        lambda: orders.refund("ada"),
        lambda: orders.reset("ada"),
        lambda: orders.spend_each(["ada"]),
        lambda: limiter.spend_each("Watch", ["ada"]),
        lambda: limiter.limit("Orders"),
        lambda: limiter.limit("Accounts"),
        lambda: limiter.define("More", "1/second"),
        lambda: limiter.reload({}),
        lambda: limiter.spend_all([]),
        lambda: limiter.check_all([("Orders", "ada")]),
        lambda: limiter.refund_all([("Orders", "ada")]),
        limiter.stats,
        lambda: len(limiter),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(penstock.StoreError, match="the limiter is closed"):
            call()
    limiter.close()
    assert list(limiter.limits)
    assert limiter.store == "memory://"
    assert limiter


def test_context_manager_closes_and_propagates_exceptions(limiter: Limiter) -> None:
    with pytest.raises(KeyError), limiter:
        raise KeyError
    with pytest.raises(penstock.StoreError):
        limiter.spend("Orders", "ada")


def test_peek_shows_the_bucket_as_it_is_and_takes_nothing(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": "2/minute"})
    assert [limiter.peek("Orders", "ada").remaining for _ in range(2)] == [2, 2]
    limiter.spend("Orders", "ada", 2)
    peek = limiter.limit("Orders").peek("ada")
    assert (peek.allowed, peek.remaining, peek.cost) == (True, 0, 0)


def test_reset_all_clears_buckets_or_none(make_limiter: MakeLimiter) -> None:
    limits = "A: {burst: 1, count: 1, period: 1h}\nB: {burst: 1, count: 1, period: 1h, id: regId}"
    limiter = make_limiter(penstock.Limits.parse(limits))
    for name, id in (("A", "x"), ("B", 7)):
        limiter.spend(name, id)
    for second, error in (
        (("B", "y"), penstock.InvalidId),
        (("C", "y"), penstock.UnknownLimit),
        ("A", TypeError),
    ):
        wrong: Any = [("A", "x"), second]
        with pytest.raises(error):
            limiter.reset_all(wrong)
    assert len(limiter) == 2
    assert limiter.reset_all([("A", "x"), ("A", "y"), ("B", "007")]) == 2
    assert limiter.counts()["A"]["checks"]["allowed"] == 0


@pytest.fixture
def both(make_limiter: MakeLimiter) -> list[Any]:
    """A limiter and one of its limits, each with its coroutines."""
    limiter = make_limiter()
    awaited = penstock.AsyncLimiter(limiter)
    return [limiter, limiter.limit("Orders"), awaited, awaited.limit("Orders")]


@pytest.mark.parametrize("name", ["hit", "allow", "consume", "test", "wait", "try_acquire"])
def test_names_of_other_libraries_lead_to_ours(both: list[Any], name: str) -> None:
    for thing in (*both, penstock.Limiter):
        owner = thing if isinstance(thing, type) else type(thing)
        message = rf"{owner.__name__}.*use (spend|check|acquire)\(\)"
        with pytest.raises(AttributeError, match=message):
            getattr(thing, name)
        assert not hasattr(thing, name)


def test_completion_offers_only_what_works(both: list[Any]) -> None:
    for thing in both:
        names = [name for name in dir(thing) if not name.startswith("__")]
        assert {"spend", "acquire"} <= set(names)
        assert [name for name in names if not hasattr(thing, name)] == []


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_objects_that_cannot_be_pickled_suggest_an_alternative(
    both: list[Any], copied: Callable[[object], object]
) -> None:
    with both[0].reserve("Orders", "ada") as reservation:
        for thing in (*both, reservation, ManualClock()):
            with pytest.raises(TypeError, match=type(thing).__name__):
                copied(thing)
    assert copied(penstock.SystemClock())


@pytest.mark.parametrize("store", ["memory://", "memory://?max_buckets=8", "shm://{}/table"])
def test_reset_of_all_buckets_refills_them(store: str, tmp_path: Path) -> None:
    limits: dict[str, penstock.Limit | str] = {
        "Orders": "1/minute",
        "Mails": penstock.Limit.fixed_window(count=1, period="1h"),
    }
    clock = penstock.ManualClock(start=1_000_000)
    with penstock.Limiter(limits, store=store.format(tmp_path), clock=clock) as limiter:
        for _ in range(2):
            # More ids than a bounded store has buckets: some share one.
            ids = [f"client-{index}" for index in range(12 if "max" in store else 300)]
            first = [limiter.spend(name, id).allowed for name in limits for id in ids[:2]]
            assert all(first)
            for id in ids:
                limiter.spend("Orders", id)
            assert not limiter.spend("Orders", ids[0])
            assert limiter.reset_all() > 0
            assert limiter.stats()["buckets"] == 0
