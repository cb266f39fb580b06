"""A decision: its values, which no later call changes."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from core_limits import FILE
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Decision, Limit, Limiter, ManualClock
from penstock._core import unlimited_decision
from penstock.headers import values

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import MakeLimiter


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(penstock.Limits.parse(FILE), clock=clock)


PROPERTIES = [
    name
    for name, value in vars(Decision).items()
    if not name.startswith("_") and type(value).__name__ == "getset_descriptor"
]


def values_of(decision: Decision) -> tuple[object, ...]:
    """Return all values of a decision, as immutable copies."""
    return (
        *(getattr(decision, name) for name in PROPERTIES if name != "parts"),
        tuple((part.name, part.id, part.remaining, part.cost) for part in decision.parts),
        values(decision),
        bool(decision),
        repr(decision),
        hash(decision),
        tuple(decision.headers().items()),
    )


def test_every_property_is_looked_at() -> None:
    assert {"allowed", "remaining", "parts", "now_ns", "limit", "shadow_mode"} <= {*PROPERTIES}
    assert len(PROPERTIES) >= 18


def test_allowed_decision_has_every_number(limiter: Limiter, clock: ManualClock) -> None:
    decision = limiter.spend("Orders", "ada", 3)
    assert decision.allowed is True
    assert bool(decision) is True
    assert decision.remaining == 1
    assert (decision.retry_after, decision.retry_after_ns) == (1.0, 1_000_000_000)
    assert (decision.reset_after, decision.reset_after_ns) == (1.5, 1_500_000_000)
    assert decision.next_token_after_ns == 500_000_000
    assert decision.now_ns == clock.now_ns()
    assert decision.limit == Limit.token_bucket(burst=4, count=2, period=1)
    assert (decision.name, decision.id, decision.cost) == ("Orders", "ada", 3)
    assert (decision.unlimited, decision.degraded, decision.would_deny) == (False, None, False)
    assert (decision.retry_at, decision.reset_at) == (clock.now() + 1, clock.now() + 1.5)
    assert decision.description == "orders of one account"
    assert decision.docs == "https://example.com/limits#orders"
    assert decision.binding == "Orders"
    assert decision.parts == (decision,)
    assert decision.parts[0] is decision
    assert repr(decision) == "<Decision Orders ada: allowed, remaining=1, reset_after=1s500ms>"


def test_denied_decision_has_the_wait(limiter: Limiter) -> None:
    limiter.spend("Orders", "ada", 4)
    decision = limiter.spend("Orders", "ada", 3)
    assert (decision.allowed, bool(decision), decision.remaining) == (False, False, 0)
    assert (decision.retry_after, decision.reset_after) == (1.5, 2.0)
    assert repr(decision).startswith(
        "<Decision Orders ada: denied, remaining=0, retry_after=1s500ms"
    )


def test_unlimited_decision_is_marked(limiter: Limiter) -> None:
    decision = limiter.spend("Free", "ada")
    assert (decision.allowed, decision.unlimited, decision.binding) == (True, True, None)
    assert (decision.name, decision.id, decision.limit) == ("Free", "ada", Limit.unlimited())
    assert (decision.remaining, decision.next_token_after_ns) == (2**63 - 1, 0)
    assert (decision.description, decision.docs, decision.headers()) == (None, None, {})
    assert repr(decision) == "<Decision Free ada: allowed, unlimited>"


def test_limit_in_shadow_mode_allows_and_reports_would_deny(limiter: Limiter) -> None:
    first, second = limiter.spend("Watch", "ada"), limiter.spend("Watch", "ada")
    assert (first.allowed, first.would_deny, bool(first)) == (True, False, True)
    assert (second.allowed, second.would_deny, bool(second)) == (True, True, True)
    first.raise_if_denied()
    second.raise_if_denied()
    assert "allowed (would deny), remaining=0, retry_after=" in repr(second)
    nothing = limiter.refund("Watch", "grace")
    assert (nothing.allowed, nothing.would_deny) == (False, False)


def test_denied_raises_with_the_decision_and_the_wait(limiter: Limiter) -> None:
    limiter.spend("Orders", "ada", 4).raise_if_denied()
    denied = limiter.spend("Orders", "ada")
    with pytest.raises(penstock.RateLimited) as caught:
        denied.raise_if_denied()
    assert caught.value.decision is denied
    assert "Orders" in str(caught.value)
    assert isinstance(caught.value, penstock.Error)
    several = limiter.spend_all([("Orders", "ada"), ("Notes", "ada")])
    with pytest.raises(penstock.RateLimited, match="denied by Orders"):
        several.raise_if_denied()


def test_an_unbounded_remaining_is_null_in_json(clock: ManualClock) -> None:
    limiter = Limiter({"Free": Limit.unlimited(), "Orders": "2/minute"}, clock=clock)
    free = limiter.spend("Free", "ada")
    assert free.remaining == 2**63 - 1
    both = limiter.spend_all([("Free", "ada"), ("Orders", "ada")])
    fields = json.loads(json.dumps([free.as_dict(), both.as_dict(), both.parts[0].as_dict()]))
    assert [decision["remaining"] for decision in fields] == [None, 1, None]
    assert both.as_dict()["parts"][0]["remaining"] is None


@pytest.mark.parametrize(
    ("passed_ns", "wait"),
    [(0, "20s"), (5_898_899, "19s995ms"), (1, "20s"), (19_999_999_999, "1ms")],
)
def test_texts_have_milliseconds_rounded_up(clock: ManualClock, passed_ns: int, wait: str) -> None:
    limiter = Limiter({"Orders": "3/minute, burst 1"}, clock=clock)
    limiter.spend("Orders", "ada")
    clock.advance_ns(passed_ns)
    denied = limiter.spend("Orders", "ada")
    assert f"retry_after={wait}, reset_after={wait}>" in repr(denied)
    with pytest.raises(penstock.RateLimited, match=rf"denied by Orders; retry in {wait}$"):
        denied.raise_if_denied()


def test_decision_as_dict_can_be_written_as_json(limiter: Limiter) -> None:
    decision = limiter.spend_all([("Orders", "ada", 2), ("Watch", "ada")])
    fields = json.loads(json.dumps(decision.as_dict()))
    assert len(fields.pop("parts")) == 2
    assert fields == {name: getattr(decision, name) for name in fields}
    assert {"allowed", "would_deny", "name", "id", "remaining", "retry_after"} <= set(fields)
    assert "parts" not in decision.parts[0].as_dict()


def test_long_and_strange_ids_are_shown_in_part(limiter: Limiter) -> None:
    assert len(repr(limiter.spend("Orders", "x" * 1_000_000))) < 200
    assert limiter.spend("Orders", "x" * 1_000_000).id == "x" * 1_000_000
    for id in ("a\nb", "\x1b[2J", "\u202e", "a\x00b"):
        shown = repr(limiter.spend("Orders", id))
        assert shown.isprintable(), id


def test_decisions_are_equal_if_their_values_are(make: Callable[[], Limiter]) -> None:
    one, other = make().spend("Orders", "ada"), make().spend("Orders", "ada")
    assert one == other
    assert one is not other
    assert hash(one) == hash(other)
    different = [
        make().spend("Orders", "grace"),
        make().spend("Orders", "ada", 2),
        make().spend("Accounts", 5),
        make().spend("Free", "ada"),
        make().refund("Orders", "ada"),
        None,
        True,
        "<Decision>",
    ]
    assert [two for two in different if two == one] == []
    assert [two for two in different if not two != one] == []  # noqa: SIM202  the operator itself
    assert len({one, other}) == 1


@pytest.fixture
def make(clock: ManualClock) -> Callable[[], Limiter]:
    limits = penstock.Limits.parse(FILE)
    return lambda: Limiter(limits, clock=clock)


def test_decision_cannot_be_created_or_changed(limiter: Limiter) -> None:
    made: Any = Decision
    with pytest.raises(TypeError):
        made()
    decision: Any = limiter.spend("Orders", "ada")
    for name in ("allowed", "remaining", "added", "__class__"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(decision, name, True)
    assert not hasattr(decision, "__dict__")


def test_headers_are_those_of_the_headers_module(limiter: Limiter) -> None:
    from penstock._web.headers import headers  # noqa: PLC0415  not imported before it is used

    decision = limiter.spend("Orders", "ada")
    assert decision.headers() == headers(decision, "ietf") != {}
    assert decision.headers("github") == decision.headers(style="github")
    assert decision.headers(["ietf", "github"]) == headers(decision, ["ietf", "github"])
    with pytest.raises(penstock.ConfigError):
        decision.headers("nothing")
    wrong: Any
    for wrong in (None, 5):
        with pytest.raises((TypeError, penstock.ConfigError)):
            decision.headers(wrong)


def test_copies_of_a_decision_are_equal(limiter: Limiter) -> None:
    for decision in (
        limiter.spend("Orders", "ada", 3),
        limiter.spend("Accounts", 7),
        limiter.spend("Notes", "ada", 1, factor="1/2"),
        limiter.spend("Free", "ada"),
        limiter.spend("Watch", "ada"),
        limiter.spend("Watch", "ada"),
        limiter.spend_all([]),
        limiter.spend_all([("Orders", "ada", 4), ("Notes", "ada"), ("Free", 7)]),
        limiter.spend_each("Accounts", ["007", 7])[1],
    ):
        kept = values_of(decision)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            again = pickle.loads(pickle.dumps(decision, protocol))  # noqa: S301  made just now
            assert (again, values_of(again)) == (decision, kept)
        assert values_of(copy.copy(decision)) == values_of(copy.deepcopy(decision)) == kept


# The core reuses the object of a decision when there are no other references to it. A program that
# holds one, in any way, must not notice.


WAYS = ["parts", "generator", "exception", "method", "key", "cycle"]


def keep(decision: Decision, way: str) -> Callable[[], Decision]:
    """Keep the only reference to a decision in one way; return a function that returns it."""
    match way:
        case "parts":
            # Those of a single call are the decision itself.
            parts = decision.parts if decision.parts[0] is decision else (decision,)
            return lambda: parts[0]
        case "generator":
            generator = itertools.repeat(decision)
            return lambda: next(generator)
        case "exception":
            error = penstock.RateLimited("denied", decision)
            return lambda: error.decision
        case "method":
            method: Any = decision.raise_if_denied
            return lambda: method.__self__
        case "key":
            keys = {decision: None}
            return lambda: next(iter(keys))
        case _:
            cycle: list[Any] = [decision]
            cycle.append(cycle)
            return lambda: cycle[1][1][0]


def test_decision_is_reused_only_without_references(limiter: Limiter) -> None:
    orders = limiter.limit("Orders")
    ids = set()
    for _ in range(100):
        ids.add(id(orders.check("ada")))
    held = [orders.check("ada") for _ in range(100)]
    assert len({id(decision) for decision in held}) == 100
    # The point of it: without a holder a loop goes on with the same object or two.
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        assert len(ids) <= 2


KINDS = st.sampled_from(["spend", "check", "refund", "limiter", "all", "each", "error", "forget"])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            KINDS,
            st.sampled_from(["Orders", "Watch", "Notes", "Free", "Accounts"]),
            st.integers(0, 4),
            st.integers(0, 2),
            st.sampled_from([None, *WAYS]),
            st.integers(0, 2_000_000_000),
        ),
        min_size=1,
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
def test_kept_decisions_do_not_change(
    calls: list[tuple[str, str, int, int, str | None, int]], random: Any
) -> None:
    # The collector then looks at the objects of this history alone.
    gc.freeze()
    clock = ManualClock(1)
    limiter = Limiter(penstock.Limits.parse(FILE), clock=clock)
    held: list[tuple[tuple[object, ...], Callable[[], Decision]]] = []
    for kind, name, tokens, id, way, wait in calls:
        bound = limiter.limit(name)
        cost = min(tokens, limiter.limits.resolve(name, id).max_cost)
        match kind:
            case "limiter":
                decision = limiter.spend(name, str(id), cost)
            case "all":
                decision = limiter.spend_all([(name, id, cost), ("Orders", "other", 1)])
            case "each":
                decision = bound.spend_each([id, id], [cost, 0])[-1]
            case "error":
                with pytest.raises(penstock.Error):
                    bound.spend(id, -1)
                continue
            case "forget":
                if held:
                    before, get = held.pop(random.randrange(len(held)))
                    assert values_of(get()) == before
                continue
            case _:
                decision = getattr(bound, kind)(id, cost)
        if way is not None:
            held.append((values_of(decision), keep(decision, way)))
        del decision
        clock.advance_ns(wait)
    gc.collect()
    gc.unfreeze()
    assert [values_of(get()) for _, get in held] == [before for before, _ in held]


def test_decision_does_not_change_after_reload_and_close(limiter: Limiter) -> None:
    orders = limiter.limit("Orders")
    decision = orders.spend("ada")
    before = values_of(decision)
    limiter.reload({"Orders": Limit.leaky_bucket(size=1), "Other": "1/second"})
    orders.spend("ada")
    orders.spend("ada")
    assert values_of(decision) == before
    limiter.reload({})
    limiter.close()
    assert values_of(decision) == before
    del orders, limiter
    gc.collect()
    assert values_of(decision) == before


def test_nested_call_gets_a_separate_decision(limiter: Limiter) -> None:
    orders = limiter.limit("Orders")
    inner: list[tuple[Decision, tuple[object, ...]]] = []

    class Id(str):
        """An id that makes a call when the core releases it."""

        __slots__ = ()

        def __del__(self) -> None:
            decision = orders.spend("inner", 0)
            inner.append((decision, values_of(decision)))

    outer = []
    for number in range(50):
        decision = orders.spend(Id(f"outer-{number % 5}"), 1)
        outer.append((decision, values_of(decision)) if number % 3 else None)
        del decision
    assert len(inner) >= 10
    for decision, before in [*inner, *filter(None, outer)]:
        assert values_of(decision) == before


def test_decisions_held_by_other_threads_do_not_change(limiter: Limiter) -> None:
    orders = limiter.limit("Orders")
    switch = sys.getswitchinterval()
    changed: list[object] = []
    held_by_all = 0

    def work(number: int) -> None:
        nonlocal held_by_all
        held: list[tuple[Decision, tuple[object, ...]]] = []
        for turn in range(400):
            decision = orders.spend(f"{number}-{turn % 7}", turn % 3)
            mine = decision.id == f"{number}-{turn % 7}" and decision.cost == turn % 3
            if not mine:
                changed.append(decision)
            if turn % 2:
                held.append((decision, values_of(decision)))
            if turn % 50 == 0:
                changed.extend(one for one, before in held if values_of(one) != before)
                held_by_all += len(held)
                del held[::2]

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(switch)
    assert changed == []
    assert held_by_all > 1_000


def test_degraded_decision_is_marked_everywhere(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": "4/second", "Mails": "1/second"})
    for decision in (
        limiter.spend("Orders", "ada"),
        limiter.spend_all([("Orders", "ada"), ("Mails", "ada")]),
    ):
        degraded = decision.replace(degraded="down")
        assert (decision.degraded, degraded.degraded) == (None, "down")
        assert degraded != decision
        assert degraded == decision.replace(degraded="down")
        assert degraded.replace(degraded=None) == decision
        assert (degraded.name, degraded.id, degraded.cost) == (decision.name, "ada", 1)
        assert degraded.parts == (decision.parts if len(decision.parts) > 1 else (degraded,))
        assert pickle.loads(pickle.dumps(degraded)) == degraded  # noqa: S301  its own
        assert pickle.loads(pickle.dumps(degraded)).degraded == "down"  # noqa: S301  its own
        assert ": allowed (degraded), remaining=" in repr(degraded)
        assert "allowed (degraded)" in degraded._repr_html_()
        assert "degraded" not in repr(decision)


def test_a_request_that_no_limit_counts_is_unlimited(make_limiter: MakeLimiter) -> None:
    expected = make_limiter({}).spend_all([])
    decision = unlimited_decision(expected.now_ns)
    assert decision == expected
    assert decision.unlimited
    assert (decision.parts, decision.headers(), decision.degraded) == ((), {}, None)
    assert unlimited_decision(5, "down").degraded == "down"
    assert unlimited_decision(5, "down").now_ns == 5


def test_parts_have_no_parts(limiter: penstock.Limiter) -> None:
    decision = limiter.spend("Orders", "ada")
    both = decision.replace(parts=[decision, decision])
    assert both.parts == (decision, decision)
    with pytest.raises(ValueError, match="parts must be decisions on one limit"):
        decision.replace(parts=[both])


def test_degraded_copy_is_not_taken_into_use_again(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter()
    for _ in range(5):
        limiter.spend("Orders", "ada").replace(degraded="down")
        assert not limiter.spend("Orders", "ada").degraded
