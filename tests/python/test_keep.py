"""Headroom: spends that must leave some tokens for more important requests."""

from __future__ import annotations

import asyncio
import random

import pytest

import penstock
from penstock import AsyncLimiter, CostTooHigh, Decision, Limit, Limiter, ManualClock, Transaction

SECOND = 1_000_000_000
START = 1_700_000_000
LIMITS = {
    "Tokens": Limit.token_bucket(burst=10, count=10, period="10s"),
    "Drips": Limit.leaky_bucket(size=10, drip_rate=1, drip_size=2),
    "Window": Limit.fixed_window(count=10, period="10s"),
    "Slots": Limit.fixed_rate_window(count=10, period="10s", burst=6),
    "Days": Limit.calendar_window(count=10, period="day"),
}
every_limit = pytest.mark.parametrize("name", LIMITS)


@pytest.fixture
def limiter(any_store: str, clock: ManualClock) -> Limiter:
    return Limiter(LIMITS, store=any_store, clock=clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


def numbers(decision: Decision) -> tuple[bool, int, int, int]:
    return (decision.allowed, decision.remaining, decision.retry_after_ns, decision.reset_after_ns)


@every_limit
def test_a_spend_leaves_the_tokens_to_keep(limiter: Limiter, clock: ManualClock, name: str) -> None:
    bound = limiter.limit(name)
    most = LIMITS[name].max_cost
    kept = 3
    for left in reversed(range(most - kept)):
        # A window that spaces its requests counts the slots that have not opened yet.
        later = 9 if name == "Slots" else 0
        assert limiter.spend(name, "ada", keep=kept).remaining == left + later
    refused = bound.spend("ada", keep=kept)
    assert not refused.allowed
    assert refused.retry_after == bound.check("ada", 1 + kept).retry_after
    # Requests that keep nothing, or less, still have what is left.
    assert bound.check("ada", keep=kept - 1).allowed
    assert [bound.spend("ada").allowed for _ in range(kept + 1)] == [True] * kept + [False]
    # One nanosecond before the wait ends, the same request is denied.
    wait = bound.check("ada", keep=kept).retry_after_ns
    clock.advance_ns(wait - 1)
    assert not bound.check("ada", keep=kept).allowed
    clock.advance_ns(1)
    assert bound.spend("ada", keep=kept).allowed


@every_limit
def test_random_traffic_agrees_with_a_model(
    limiter: Limiter, clock: ManualClock, name: str
) -> None:
    """A spend that keeps tokens is allowed if cost and keep fit, and takes the cost alone."""
    chance = random.Random(name)  # noqa: S311  one that can be repeated
    model = Limiter(LIMITS, clock=clock)
    most = LIMITS[name].max_cost
    outcomes = {True: 0, False: 0}
    for _ in range(400):
        cost = chance.randrange(most + 1)
        keep = chance.randrange(most - cost + 1)
        both = model.check(name, "ada", cost + keep)
        peek = model.peek(name, "ada")
        verb = chance.choice(["spend", "check", "batch", "each", "reserve"])
        if verb == "batch":
            decision = limiter.spend_all([Transaction(name, "ada", cost, keep=keep)]).parts[0]
        elif verb == "each":
            row = limiter.spend_each(name, ["ada"], cost, keep=keep)
            decision = row[0]
        elif verb == "reserve":
            reservation = limiter.reserve(name, "ada", cost, keep=keep)
            decision = reservation.decision
            if reservation:
                reservation.settle(cost)
        else:
            decision = getattr(limiter.limit(name), verb)("ada", cost, keep=keep)
        assert decision.allowed == both.allowed
        if not decision.allowed:
            assert decision.retry_after_ns == both.retry_after_ns
            assert decision.remaining == max(peek.remaining - keep, 0)
        else:
            after = peek.remaining - cost if verb == "check" else None
            if verb != "check":
                after = model.spend(name, "ada", cost).remaining
            assert after is not None
            assert decision.remaining == max(after - keep, 0)
        assert limiter.peek(name, "ada").remaining == model.peek(name, "ada").remaining
        # A smaller keep is never denied where a larger one is allowed.
        allowed = [bool(limiter.check(name, "ada", cost, keep=k)) for k in range(most - cost + 1)]
        assert allowed == sorted(allowed, reverse=True)
        outcomes[decision.allowed] += 1
        clock.advance_ns(chance.randrange(3 * SECOND) if chance.random() < 0.5 else 0)
        if name == "Days" and chance.random() < 0.1:
            clock.advance("1day")
    assert min(outcomes.values()) > 40


def test_random_slots_agree_with_a_model(any_store: str, clock: ManualClock) -> None:
    most = 5
    limiter = Limiter({"Slots": Limit.in_flight(most)}, store=any_store, clock=clock)
    chance = random.Random("slots")  # noqa: S311  one that can be repeated
    held: list[tuple[int, penstock.Reservation]] = []
    outcomes = {True: 0, False: 0}
    for _ in range(200):
        cost = chance.randrange(1, most + 1)
        keep = chance.randrange(most - cost + 1)
        free = most - sum(slots for slots, _ in held)
        assert bool(limiter.check("Slots", "ada", cost, keep=keep)) == (cost + keep <= free)
        reservation = limiter.reserve("Slots", "ada", cost, keep=keep)
        assert bool(reservation) == (cost + keep <= free)
        outcomes[bool(reservation)] += 1
        if reservation:
            held.append((cost, reservation))
            free -= cost
        assert reservation.decision.remaining == max(free - keep, 0)
        while held and chance.random() < 0.6:
            held.pop(chance.randrange(len(held)))[1].cancel()
    for _, reservation in held:
        reservation.cancel()
    assert min(outcomes.values()) > 40
    assert limiter.check("Slots", "ada", most).allowed


@every_limit
def test_keeping_nothing_is_as_before(name: str, clock: ManualClock) -> None:
    limiter, plain = (Limiter(LIMITS, clock=clock) for _ in range(2))
    chance = random.Random(name)  # noqa: S311  one that can be repeated
    for _ in range(200):
        cost = chance.randrange(3)
        kept, as_before = limiter.spend(name, "ada", cost, keep=0), plain.spend(name, "ada", cost)
        assert kept.as_dict() == as_before.as_dict()
        clock.advance_ns(chance.randrange(SECOND))


@every_limit
def test_more_than_the_limit_can_hold_is_an_error(name: str) -> None:
    limiter = Limiter(LIMITS)
    most = LIMITS[name].max_cost
    assert limiter.check(name, "ada", 0, keep=most).allowed
    message = (
        f"{name}: cost and keep together must be at most {most}, which is all this limit can ever "
        f"hold, found 1 and {most}"
    )
    calls = (
        lambda: limiter.spend(name, "ada", keep=most),
        lambda: limiter.limit(name).check("ada", keep=most),
        lambda: limiter.reserve(name, "ada", keep=most),
        lambda: limiter.spend_all([Transaction(name, "ada", keep=most)]),
        lambda: limiter.spend_each(name, ["ada"], keep=most),
    )
    for call in calls:
        with pytest.raises(CostTooHigh) as caught:
            call()
        assert str(caught.value) == message
        with pytest.raises(penstock.CostNegative, match="keep must be at least 0, found -1"):
            limiter.spend(name, "ada", keep=-1)
    with pytest.raises(TypeError, match="at most 3 arguments"):
        limiter.spend(name, "ada", 1, None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="keep"):
        limiter.spend(name, "ada", keep=0.5)  # type: ignore[arg-type]


def test_a_batch_has_a_keep_for_each_transaction(limiter: Limiter) -> None:
    batch = [Transaction("Tokens", "ada", 3, keep=6), Transaction("Window", "ada", 3, keep=5)]
    assert [part.remaining for part in limiter.spend_all(batch).parts] == [1, 2]
    refused = limiter.spend_all(batch)
    assert (refused.allowed, refused.binding) == (False, "Window")
    assert limiter.peek("Tokens", "ada").remaining == limiter.peek("Window", "ada").remaining == 7
    assert repr(batch[0]) == "Transaction('Tokens', 'ada', cost=3, kind='spend', keep=6)"
    assert batch[0] != Transaction("Tokens", "ada", 3)


def test_headers_show_the_part_that_the_request_may_use(limiter: Limiter) -> None:
    decision = limiter.spend("Window", "ada", keep=4)
    assert decision.headers()["RateLimit-Policy"] == '"Window";q=6;w=10'
    assert decision.headers()["RateLimit"] == '"Window";r=5;t=10'
    assert decision.limit == Limit.fixed_window(count=6, period="10s")
    assert limiter.check("Window", "ada").limit == LIMITS["Window"]


def test_a_limit_in_shadow_mode_counts_whom_headroom_would_deny(clock: ManualClock) -> None:
    limits = penstock.Limits.parse("Tokens: {burst: 10, count: 10, period: 10s, mode: shadow}")
    limiter = Limiter(limits, clock=clock)
    decisions = [limiter.spend("Tokens", "ada", 4, keep=4) for _ in range(2)]
    assert [decision.allowed for decision in decisions] == [True, True]
    assert [decision.would_deny for decision in decisions] == [False, True]
    assert limiter.peek("Tokens", "ada").remaining == 6


def test_a_factor_applies_before_the_tokens_to_keep(clock: ManualClock) -> None:
    limiter = Limiter(LIMITS, clock=clock)
    assert limiter.spend("Drips", "ada", 1, factor=2, keep=3).remaining == 1


def test_settling_may_take_the_tokens_that_a_reservation_kept(limiter: Limiter) -> None:
    reservation = limiter.reserve("Tokens", "ada", 4, keep=6)
    assert reservation.decision.remaining == 0
    assert reservation.settle(9).remaining == 1
    assert not limiter.reserve("Tokens", "ada", 1, keep=1)


def test_coroutines_keep_tokens(any_store: str, clock: ManualClock) -> None:
    async def run() -> None:
        async with AsyncLimiter(LIMITS, store=any_store, clock=clock) as limiter:
            assert (await limiter.spend("Tokens", "ada", 4, keep=5)).remaining == 1
            assert not await limiter.limit("Tokens").spend("ada", 4, keep=5)
            assert not await limiter.check("Tokens", "ada", 4, keep=5)
            assert not await limiter.reserve("Tokens", "ada", 4, keep=5)
            assert not await limiter.spend_all([Transaction("Tokens", "ada", 4, keep=5)])
            each = await limiter.spend_each("Tokens", ["ada", "grace"], 4, keep=5)
            assert each.allowed.tolist() == [False, True]

    asyncio.run(run())
