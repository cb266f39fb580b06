"""Objects are freed when they are no longer used, and not before."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import ipaddress
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Limiter, ManualClock, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILE = """
Orders: {burst: 4, count: 2, period: 1s}
Notes: {algorithm: leaky-bucket, size: 4, drip_rate: 1s}
Pages: {algorithm: fixed-window, count: 4, period: 1s, anchor: aligned, phase: per-key}
Free: {algorithm: unlimited}
Accounts: {burst: 4, count: 2, period: 1s, id: regId, number: 6}
"""
LIMITS = penstock.Limits.parse(FILE)

TURNS = 2_000


class Counted:
    """Base of classes that count their living instances."""

    alive = 0

    def __init__(self, *_: object) -> None:
        type(self).alive += 1

    def __del__(self) -> None:
        type(self).alive -= 1


class CountedText(Counted, str):
    """An id that is counted."""

    __slots__ = ()
    alive = 0


class CountedNumber(Counted, int):
    """A number that is counted."""

    alive = 0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(LIMITS, clock=clock)


def swallow(call: Callable[[], object]) -> None:
    """Call a function, and drop its result or error."""
    with contextlib.suppress(penstock.Error, TypeError, ValueError):
        call()


def calls(limiter: Limiter, name: Any, id: Any, cost: Any, factor: Any) -> Iterator[Any]:
    """Return calls of every kind, good and bad, with the same objects in all."""
    bound = limiter.limit(name)
    for verb in ("spend", "check", "refund"):
        yield lambda verb=verb: getattr(limiter, verb)(name, id, cost)
        yield lambda verb=verb: getattr(limiter, verb)(cost=cost, id=id, name=name)
        yield lambda verb=verb: getattr(bound, verb)(id, cost)
        yield lambda verb=verb: getattr(bound, verb)(id, cost=cost, factor=None)
        yield lambda verb=verb: getattr(limiter, verb)("Notes", id, cost, factor=factor)
        yield lambda verb=verb: getattr(limiter, verb)("Free", id, cost)
        yield lambda verb=verb: getattr(limiter, verb)("Pages", id, cost)
        # And the wrong ones.
        yield lambda verb=verb: getattr(limiter, verb)(name, id, -1)
        yield lambda verb=verb: getattr(limiter, verb)(name, id, cost, factor=factor)
        yield lambda verb=verb: getattr(limiter, verb)("Nothing", id, cost)
        yield lambda verb=verb: getattr(limiter, verb)(id, name, cost, name)
        yield lambda verb=verb: getattr(limiter, verb)("Accounts", id, cost)
        yield lambda verb=verb: getattr(limiter, verb)(name, factor)
        yield lambda verb=verb: getattr(bound, verb)(id, id)
        yield lambda verb=verb: getattr(bound, verb)(id, cost, id=id)
        yield lambda verb=verb: getattr(bound, verb)(id, nothing=cost)
    yield lambda: limiter.reset(name, id)
    yield lambda: limiter.reset("Nothing", id)
    yield lambda: limiter.spend_all(
        [(name, id, cost), Transaction("Notes", id, cost, factor=factor)]
    )
    yield lambda: limiter.spend_all([(name, id), (name, id)]).parts
    nothing: Any = "nothing"
    yield lambda: limiter.refund_all([(name, id, cost), (name, id, cost, nothing)])
    yield lambda: limiter.check_all([(name, id)]).parts[0].id
    yield lambda: list(limiter.spend_each(name, [id, id], [cost, 0]))
    yield lambda: limiter.spend_each(name, [id, factor], cost)
    yield lambda: limiter.spend_each(name, [id], [cost, cost])
    yield lambda: limiter.spend_each(name, [id]).__arrow_c_stream__()
    yield lambda: limiter.spend_each(name, [id]).column("allowed")[0]
    yield lambda: limiter.spend_each(name, [id]).remaining[0]
    yield lambda: limiter.limits.explain(name, id)
    yield lambda: limiter.limits.resolve("Accounts", id)
    yield lambda: hash(bound.check(id)) == hash(bound.check(id, cost))
    yield lambda: (bound.spend(id).headers(), repr(bound.spend(id)), bound.spend(id).limit)
    yield lambda: bound.spend(id, 4).raise_if_denied()
    yield lambda: bound.spend(id) == bound.spend(id, 0)
    yield lambda: Transaction(name, id, cost, "check", factor) == Transaction(name, id)
    yield lambda: limiter.define(name, "1/second")
    yield limiter.stats


def test_no_call_keeps_a_reference(limiter: Limiter) -> None:
    # Not interned, not immortal, and each of a kind that is read in its own way.
    name = "".join(["Or", "ders"])  # noqa: FLY002  a text of its own
    id, cost, factor = "".join(["a", "da"]), 3, "".join(["1", "/2"])  # noqa: FLY002  as above
    cost = int("1" * 30) // int("3" * 30) + 3
    watched: list[Any] = [
        name,
        id,
        factor,
        b"ada-%d" % 5,
        10**30,
        ipaddress.ip_address("192.0.2.1"),
        limiter,
        limiter.clock,
        limiter.limits,
        {"Orders": "1/second"},
    ]
    ids = [id, *watched[3:6]]

    def work(turns: int) -> None:
        for turn in range(turns):
            for call in calls(limiter, name, ids[turn % len(ids)], cost, factor):
                swallow(call)

    work(8)
    gc.collect()
    before = [sys.getrefcount(one) for one in watched]
    work(80)
    gc.collect()
    after = [sys.getrefcount(one) for one in watched]
    # The last two decisions of each of the four limits may still be kept to be used again.
    assert all(one <= other + 8 for one, other in zip(after, before, strict=True)), (before, after)


def test_ids_and_costs_are_freed(limiter: Limiter) -> None:
    bound = limiter.limit("Orders")
    for number in range(TURNS):
        limiter.spend("Orders", CountedText(f"{number}"), CountedNumber(1))
        bound.check(CountedText(f"{number}"))
        swallow(lambda number=number: bound.spend(CountedText(f"{number}"), CountedNumber(9)))  # type: ignore[misc]
        limiter.spend_all([("Orders", CountedText(f"{number}")), ("Notes", CountedText("a"))])
        bound.spend_each([CountedText(f"{number}")] * 2, [CountedNumber(1)] * 2)
        Transaction("Orders", CountedText("a"), CountedNumber(2))
    # At most two for each of two limits.
    assert CountedText.alive <= 4
    assert CountedNumber.alive <= 4


def test_caches_are_freed_with_the_limiter(clock: ManualClock) -> None:
    CountedText.alive = 0
    limiter = Limiter(LIMITS, clock=clock)
    for number in range(10):
        limiter.spend("Orders", CountedText(f"{number}"))
        limiter.limit("Notes").check(CountedText(f"{number}"))
    del limiter
    gc.collect()
    assert CountedText.alive == 0


def references(thing: object) -> int:
    """Count who has a thing, once all that can be collected is."""
    gc.collect()
    return sys.getrefcount(thing)


def test_limiter_is_freed_when_it_is_dropped(clock: ManualClock) -> None:
    before = references(clock)
    limiter = Limiter(LIMITS, clock=clock)
    assert references(clock) > before
    limiter.spend("Orders", "ada")
    limiter.define("Defined", "1/second").spend("ada")
    limiter.reload(LIMITS)
    limiter.spend_all([("Orders", "ada"), ("Notes", "ada")])
    del limiter
    assert references(clock) == before


def growth_after(work: Callable[[], object], *, before: Callable[[], object]) -> int:
    """Return the bytes that this process has more after `work` than after `before`."""
    sizes = []
    for step in (before, work):
        step()
        gc.collect()
        # What is free may stay in this process otherwise: that depends on earlier tests.
        ctypes.CDLL(None).malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        sizes.append(pages * 4096)
    return sizes[1] - sizes[0]


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="the memory of a process is measured with /proc and glibc",
)


@needs_proc
def test_kept_decisions_do_not_keep_the_limiter(clock: ManualClock) -> None:
    answers: list[object] = []

    def work(turns: int) -> None:
        # Each limiter has 50,000 buckets in more than 1 MB: twenty of them could not be overlooked.
        for _ in range(turns):
            limiter = Limiter(LIMITS, clock=clock)
            limiter.spend_each("Orders", range(50_000))
            answers.extend(
                [
                    limiter.spend("Orders", "ada"),
                    limiter.spend_all([("Orders", "ada"), ("Notes", "ada")]),
                    limiter.spend_each("Orders", ["ada"]),
                    limiter.spend_each("Orders", ["ada"]).__arrow_c_stream__(),
                    (limiter.limits, limiter.clock, limiter.store),
                ]
            )

    assert growth_after(lambda: work(20), before=lambda: work(5)) < 8_000_000
    assert len(answers) == 25 * 5


def test_bound_limit_keeps_the_buckets_but_not_the_limiter(clock: ManualClock) -> None:
    before = references(clock)
    limiter = Limiter(LIMITS, clock=clock)
    orders = limiter.limit("Orders")
    orders.spend("ada")
    del limiter
    # It still decides, on the same buckets and clock.
    assert references(clock) <= before + 1
    assert orders.spend("ada").remaining == 2
    clock.advance(10)
    assert orders.check("ada", 0).remaining == 4


@needs_proc
def test_calls_of_every_kind_leave_memory_as_it_was(limiter: Limiter) -> None:
    def work(turns: int) -> None:
        for turn in range(turns):
            for call in calls(limiter, "Orders", f"id-{turn % 100}", turn % 4, "1/2"):
                swallow(call)
            limiter.reload(LIMITS)
            limiter.limits.to_yaml()
            penstock.Limits.parse(FILE)

    # 77 calls in each of 1,000 turns: at 32 bytes lost in a single kind of call it would be seen.
    assert growth_after(lambda: work(1_000), before=lambda: work(200)) < 1_000_000


@needs_proc
def test_names_that_are_not_there_are_not_remembered(limiter: Limiter) -> None:
    def work(first: int, count: int) -> None:
        for number in range(first, first + count):
            name = f"{'x' * 200}-{number}"
            swallow(lambda name=name: limiter.spend(name, "ada"))  # type: ignore[misc]
            swallow(lambda name=name: limiter.limit(name))  # type: ignore[misc]
            swallow(lambda name=name: limiter.spend_all([(name, "ada")]))  # type: ignore[misc]

    grown = growth_after(lambda: work(2_000, 20_000), before=lambda: work(0, 2_000))
    assert grown < 2_000_000


@needs_proc
def test_returned_slots_keep_no_long_id() -> None:
    limiter = Limiter({"Calls": "1 in flight"})

    def work(slots: int) -> None:
        ids = [f"{number:x>2000000}" for number in range(slots)]
        held = [limiter.reserve("Calls", id) for id in ids]
        assert all(one.release() for one in held)

    # Slots that were held at once keep a place each: 30 ids of 2 MB could not be overlooked.
    assert growth_after(lambda: work(30), before=lambda: work(1)) < 20_000_000


@needs_proc
def test_returned_slots_keep_no_limits_that_were_replaced() -> None:
    limiter = Limiter({"Calls": "100 in flight"})

    def work(turns: int) -> None:
        for turn in range(turns, 0, -1):
            rows = [("Calls", f"user-{number}", f"{turn} in flight") for number in range(10_000)]
            limits, _ = penstock.Limits({"Calls": "100 in flight"}).with_overrides(rows)
            limiter.reload(limits)
            held = [limiter.reserve("Calls", "ada") for _ in range(turn)]
            assert all(one.release() for one in held)

    # Each turn leaves one place behind. 10,000 overrides take 3 MB.
    assert growth_after(lambda: work(20), before=lambda: work(3)) < 15_000_000


def test_bucket_takes_sixteen_bytes_and_little_more(limiter: Limiter) -> None:
    limiter.spend_each("Orders", range(200_000))
    stats = limiter.stats()
    assert stats["buckets"] == 200_000
    assert 16 * 200_000 <= (stats["bytes"] or 0) <= 40 * 200_000


@pytest.mark.parametrize(
    "call",
    [
        lambda limiter: limiter.limit("Orders").spend(object()),
        lambda limiter: limiter.spend("Orders", "ada", "1"),
        lambda limiter: limiter.check("Orders", "ada", tokens=1),
        lambda limiter: limiter.limit("Orders").check("ada", 1, 1),
    ],
    ids=["id", "cost", "keyword", "too many"],
)
def test_refused_call_keeps_no_reference(call: Callable[[Any], object], limiter: Limiter) -> None:
    before = sys.getrefcount(TypeError)
    for _ in range(200):
        with pytest.raises(TypeError):
            call(limiter)
    assert sys.getrefcount(TypeError) < before + 100


class Client(str):  # noqa: SLOT000  it has an attribute on purpose
    """An id that refers to its last decision."""

    decision: penstock.Decision


def test_decision_is_in_no_cycle_with_its_id(limiter: Limiter) -> None:
    freed: list[int] = []
    client: Client | None = None
    for number in range(20):
        client = Client(f"user-{number}")
        client.decision = limiter.spend("Orders", client)
        assert client.decision.id == client
        weakref.finalize(client, freed.append, number)
    client = None
    gc.collect()
    assert freed


@pytest.mark.parametrize("call", ["spend", "check"])
def test_an_id_beyond_64_bits_leaves_nothing_behind(limiter: Limiter, call: str) -> None:
    spend = getattr(limiter, call)
    for _ in range(10):
        spend("Orders", 2**127)
    before = sys.getallocatedblocks()
    for _ in range(10_000):
        spend("Orders", 2**127)
    # The interpreter itself allocates some hundred blocks now and then.
    assert sys.getallocatedblocks() - before < 1_000
