"""The core against an oracle: a second implementation of the rules, in exact fractions.

The core keeps one timestamp or one count for each bucket and computes in integers; the oracle keeps
the tokens and the time of the last change, or the requests and the time of the last drip, and finds
waits by searching. Both must return the same numbers, for any calls, in any order and at any time.
A reservation that is settled for more than its estimate is a charge, which may leave a debt.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import penstock

MS = 1_000_000
START = 1_700_000_000_123_456_789


class Answer(NamedTuple):
    """The expected answer of a call."""

    allowed: bool
    remaining: int
    retry_after_ns: int
    reset_after_ns: int


@dataclass(frozen=True)
class Tokens:
    """A token bucket; its memory is the number of tokens after the last spend."""

    burst: int
    count: int
    period: int

    def limit(self) -> penstock.Limit:
        return penstock.Limit.token_bucket(
            burst=self.burst, count=self.count, period=f"{self.period}ns"
        )

    @property
    def most(self) -> int:
        return self.burst

    @property
    def each(self) -> int:
        return math.floor(Fraction(self.period, self.count))

    def level(self, memory: Any, now: int) -> Fraction:
        if memory is None:
            return Fraction(self.burst)
        at, tokens = memory
        level: Fraction = tokens + Fraction(now - at, self.each)
        return min(Fraction(self.burst), level)

    def answer(self, allowed: bool, left: Fraction, wanted: int) -> Answer:
        wait = math.ceil(max(Fraction(0), wanted - left) * self.each)
        full = math.ceil((self.burst - left) * self.each)
        return Answer(allowed, max(0, math.floor(left)), wait, full)

    def spend(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any, Any]:
        """Return the answer, the memory after a spend, and the memory after a check."""
        level = self.level(memory, now)
        if level >= cost:
            left = level - cost
            return self.answer(True, left, cost), (now, left) if cost else memory, memory
        return self.answer(False, level, cost), memory, memory

    def refund(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any]:
        level = self.level(memory, now)
        after = min(Fraction(self.burst), level + cost)
        moved = after != level
        answer = self.answer(moved, after, 0)._replace(retry_after_ns=0)
        return answer, (now, after) if moved else memory

    def charge(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any]:
        """Return the answer and the memory after a charge, whose debt is at most one burst."""
        level = self.level(memory, now)
        taken = min(cost, max(0, math.floor(level + self.burst)))
        return self.answer(taken == cost, level - taken, 0), (now, level - taken)

    def taken_over(self, memory: Any, before: Any) -> Any:
        """Convert the memory of a bucket that was filled under another limit."""
        if memory is None:
            return None
        at, tokens = memory
        # The time at which the bucket is full is kept.
        return at + (before.burst - tokens) * before.each, Fraction(self.burst)


@dataclass(frozen=True)
class Leaks:
    """A leaky bucket; its memory is the level and the time of the last drip."""

    size: int
    rate: int
    drip: int

    def limit(self) -> penstock.Limit:
        return penstock.Limit.leaky_bucket(
            size=self.size, drip_rate=f"{self.rate}ns", drip_size=self.drip
        )

    @property
    def most(self) -> int:
        return self.size

    def with_factor(self, factor: Fraction) -> Leaks:
        return replace(self, size=max(math.ceil(self.size / factor), 1))

    def dripped(self, memory: Any, now: int) -> tuple[int, int]:
        if memory is not None:
            level, tick = memory
            while level > 0 and tick + self.rate <= now:
                level, tick = level - self.drip, tick + self.rate
            if level > 0:
                return level, tick
        return 0, now - now % MS

    def answer(self, allowed: bool, level: int, tick: int, cost: int, now: int) -> Answer:
        drips, rest = 0, level
        while rest + cost > self.size:
            drips, rest = drips + 1, max(rest - self.drip, 0)
        until_empty, rest = 0, level
        while rest > 0:
            until_empty, rest = until_empty + 1, rest - self.drip
        wait = tick + drips * self.rate - now if drips else 0
        return Answer(allowed, max(self.size - level, 0), wait, until_empty * self.rate)

    def spend(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any, Any]:
        level, tick = self.dripped(memory, now)
        if level + cost > self.size:
            return self.answer(False, level, tick, cost, now), memory, memory
        answer = self.answer(True, level + cost, tick, cost, now)
        return answer, (level + cost, tick) if cost else memory, memory

    def refund(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any]:
        level, tick = self.dripped(memory, now)
        after = max(level - cost, 0)
        answer = self.answer(after != level, after, tick, 0, now)._replace(retry_after_ns=0)
        return answer, (after, tick) if after != level else memory

    def charge(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any]:
        level, tick = self.dripped(memory, now)
        taken = min(cost, max(0, 2 * self.size - level))
        after = level + taken
        return self.answer(taken == cost, after, tick, 0, now), (after, tick)

    def taken_over(self, memory: Any, _: Any) -> Any:
        return memory


@dataclass(frozen=True)
class Windows:
    """A fixed window or, with `early`, a fixed-rate window."""

    count: int
    period: int
    early: int | None
    phase: int | str | None

    def limit(self) -> penstock.Limit:
        options: dict[str, Any] = {"count": self.count, "period": f"{self.period}ns"}
        if self.phase is not None:
            phase = self.phase if isinstance(self.phase, str) else f"{self.phase}ns"
            options |= {"anchor": "aligned", "phase": phase}
        if self.early is None:
            return penstock.Limit.fixed_window(**options)
        return penstock.Limit.fixed_rate_window(**options, burst=self.early)

    @property
    def most(self) -> int:
        return self.count if self.early is None else self.early + 1

    def for_key(self, key: str) -> Windows:
        if self.phase != "per-key":
            return self
        first = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        return replace(self, phase=first % (self.period // MS) * MS)

    def window(self, memory: Any, now: int) -> tuple[int, int]:
        if memory is not None and now < memory[0] + self.period:
            start, used = memory
            return int(start), int(used)
        if self.phase is None:
            return now - now % MS, 0
        assert isinstance(self.phase, int)
        return now - (now - self.phase) % self.period, 0

    def opens(self, start: int, slot: int) -> int:
        return math.ceil(start + Fraction(slot * self.period, self.count))

    def slot(self, start: int, now: int) -> int:
        return max((k for k in range(self.count) if self.opens(start, k) <= now), default=0)

    def room(self, used: int, slot: int) -> int:
        """Return how much is available at once, after `used` tokens and in slot `slot`."""
        if self.early is None:
            return self.count - used
        return slot + 1 + self.early - max(used, slot)

    def answer(self, allowed: bool, start: int, used: int, cost: int, now: int) -> Answer:
        slot = self.slot(start, now)
        end = start + self.period
        if self.early is None:
            left, wait = self.count - used, 0 if used + cost <= self.count else end - now
        else:
            left = self.count + self.early - max(used, slot)
            later = (
                now if k == slot else self.opens(start, k)
                for k in range(slot, self.count)
                if cost <= self.room(max(used, slot), k)
            )
            wait = next(later, end) - now
        return Answer(allowed, max(left, 0), wait, end - now)

    def spend(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any, Any]:
        start, used = self.window(memory, now)
        slot = self.slot(start, now)
        if cost > self.room(used, slot):
            return self.answer(False, start, used, cost, now), memory, memory
        after = used + cost if self.early is None else max(used, slot) + cost
        answer = self.answer(True, start, after, cost, now)
        return answer, (start, after) if cost else memory, memory

    def refund(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any]:
        start, used = self.window(memory, now)
        floor = 0 if self.early is None else self.slot(start, now)
        after = max(used - cost, min(floor, used))
        answer = self.answer(after != used, start, after, 0, now)._replace(retry_after_ns=0)
        return answer, (start, after) if after != used else memory

    def charge(self, memory: Any, cost: int, now: int) -> tuple[Answer, Any]:
        start, used = self.window(memory, now)
        used = used if self.early is None else max(used, self.slot(start, now))
        taken = min(cost, max(0, 2 * (self.count + (self.early or 0)) - used))
        return self.answer(taken == cost, start, used + taken, 0, now), (start, used + taken)

    def taken_over(self, memory: Any, _: Any) -> Any:
        return memory


Rule = Tokens | Leaks | Windows

small = st.integers(1, 8)
# Periods that divide evenly, ones that do not, and ones of a single nanosecond a token.
periods = st.sampled_from([7, 1_000, 3 * MS, 10 * MS + 1, 999 * MS, 1_000 * MS, 60_000 * MS])
milliseconds = st.sampled_from([1, 3, 10, 999, 1_000, 60_000]).map(lambda number: number * MS)


@st.composite
def token_buckets(draw: st.DrawFn) -> Tokens:
    period = draw(periods)
    count = draw(st.integers(1, 8 if period > 1_000 else 1))
    return Tokens(draw(small), count, period)


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    period = draw(milliseconds)
    anchors = st.sampled_from([None, 0, "per-key"]) | st.integers(0, period // MS - 1).map(
        lambda number: number * MS
    )
    return Windows(draw(small), period, draw(st.none() | st.integers(0, 4)), draw(anchors))


leaky_buckets = st.builds(Leaks, small, milliseconds, st.integers(1, 10))

RULES: dict[str, st.SearchStrategy[Any]] = {
    "Orders": token_buckets(),
    "Notes": leaky_buckets,
    "Pages": windows().map(lambda rule: replace(rule, early=None)),
    "Calls": windows().map(lambda rule: replace(rule, early=rule.early or 0)),
}
names = st.sampled_from(sorted(RULES))
ids = st.sampled_from(["ada", "grace", "eve"])
costs = st.integers(0, 8)
kinds = st.sampled_from(["spend", "check", "spend_only"])
factors = st.sampled_from([None, None, None, "1", "1/3", "0.5", "2", "7/3"])


@dataclass
class Oracle:
    """All limits, and the memory of each bucket."""

    rules: dict[str, Any]
    memory: dict[tuple[str, str], Any] = field(default_factory=dict)

    def rule(self, name: str, id: str, factor: str | None = None) -> Any:
        rule = self.rules[name]
        if isinstance(rule, Windows):
            return rule.for_key(f"{name}:{id}")
        return rule.with_factor(Fraction(factor)) if factor else rule

    def spend(self, name: str, id: str, cost: int, now: int, factor: str | None = None) -> Answer:
        rule = self.rule(name, id, factor)
        answer, after, otherwise = rule.spend(self.memory.get((name, id)), cost, now)
        self.memory[name, id] = after if answer.allowed else otherwise
        return Answer(*answer)

    def check(self, name: str, id: str, cost: int, now: int, factor: str | None = None) -> Answer:
        rule = self.rule(name, id, factor)
        return Answer(*rule.spend(self.memory.get((name, id)), cost, now)[0])

    def refund(self, name: str, id: str, cost: int, now: int, factor: str | None = None) -> Answer:
        rule = self.rule(name, id, factor)
        answer, self.memory[name, id] = rule.refund(self.memory.get((name, id)), cost, now)
        return Answer(*answer)

    def charge(self, name: str, id: str, cost: int, now: int, factor: str | None = None) -> Answer:
        rule = self.rule(name, id, factor)
        answer, self.memory[name, id] = rule.charge(self.memory.get((name, id)), cost, now)
        return Answer(*answer)

    def spend_all(self, members: list[tuple[str, str, int, str]], now: int) -> list[Answer] | None:
        """Return each answer as of a check, or `None` if all are spent."""
        found = []
        for name, id, cost, _ in members:
            found.append(self.rule(name, id).spend(self.memory.get((name, id)), cost, now))
        allowed = all(
            answer.allowed for (answer, _, _), member in zip(found, members, strict=True)
            if member[3] != "spend_only"
        )  # fmt: skip
        for (answer, after, otherwise), (name, id, _, kind) in zip(found, members, strict=True):
            if kind != "check":
                self.memory[name, id] = after if allowed and answer.allowed else otherwise
        return [answer for answer, _, _ in found] if allowed else None

    def reload(self, rules: dict[str, Any]) -> None:
        for (name, id), memory in self.memory.items():
            self.memory[name, id] = rules[name].taken_over(memory, self.rules[name])
        self.rules = rules


def numbers(decision: penstock.Decision) -> Answer:
    """Return the numbers that the oracle computes."""
    return Answer(
        decision.allowed, decision.remaining, decision.retry_after_ns, decision.reset_after_ns
    )


class Machine(RuleBasedStateMachine):
    """Random calls to both implementations."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = penstock.ManualClock()
        self.clock.set_ns(START)
        self.denied: tuple[str, str, int, int] | None = None
        self.compared = 0

    @initialize(rules=st.fixed_dictionaries(RULES))
    def begin(self, rules: dict[str, Any]) -> None:
        self.oracle = Oracle(rules)
        limits = {name: rule.limit() for name, rule in rules.items()}
        self.limiter = penstock.Limiter(limits, clock=self.clock)

    @property
    def now(self) -> int:
        return self.clock.now_ns()

    def cost(self, name: str, id: str, cost: int, factor: str | None = None) -> int:
        most: int = self.oracle.rule(name, id, factor).most
        return min(cost, most)

    @rule(
        verb=st.sampled_from(["spend", "spend", "check", "refund"]),
        name=names,
        id=ids,
        cost=costs,
        factor=factors,
        bound=st.booleans(),
    )
    def call(  # noqa: PLR0917  one for each part of a call
        self, verb: str, name: str, id: str, cost: int, factor: str | None, bound: bool
    ) -> None:
        factor = factor if name == "Notes" else None
        cost = self.cost(name, id, cost, factor)
        expected: Answer = getattr(self.oracle, verb)(name, id, cost, self.now, factor)
        if bound:
            decision = getattr(self.limiter.limit(name), verb)(id, cost, factor)
        else:
            decision = getattr(self.limiter, verb)(name, id, cost, factor)
        assert numbers(decision) == expected, (numbers(decision), expected)
        self.compared += 1
        is_denied = verb == "spend" and cost and not factor and not decision.allowed
        self.denied = (name, id, cost, decision.retry_after_ns) if is_denied else None

    @rule(name=names, id=ids, estimate=costs, more=st.integers(-8, 30), factor=factors)
    def settle(self, name: str, id: str, estimate: int, more: int, factor: str | None) -> None:
        factor = factor if name == "Notes" else None
        estimate = self.cost(name, id, estimate, factor)
        expected = self.oracle.spend(name, id, estimate, self.now, factor)
        reservation = self.limiter.reserve(name, id, estimate, factor=factor)
        assert numbers(reservation.decision) == expected
        self.denied = None
        if not expected.allowed:
            return
        more = max(more, -estimate)
        settled = numbers(reservation.settle(estimate + more))
        if more > 0:
            assert settled == self.oracle.charge(name, id, more, self.now, factor)
        else:
            after = self.oracle.refund(name, id, -more, self.now, factor)
            assert settled[1:] == after[1:]

    @rule(name=names, calls=st.lists(st.tuples(ids, costs), max_size=6))
    def each(self, name: str, calls: list[tuple[str, int]]) -> None:
        calls = [(id, self.cost(name, id, cost)) for id, cost in calls]
        expected = [self.oracle.spend(name, id, cost, self.now) for id, cost in calls]
        decisions = self.limiter.spend_each(name, [id for id, _ in calls], [c for _, c in calls])
        found = [numbers(decision) for decision in decisions]
        assert found == expected, (found, expected)
        self.denied = None

    @rule(
        verb=st.sampled_from(["spend_all", "check_all"]),
        members=st.lists(
            st.tuples(names, ids, costs, kinds),
            min_size=1,
            max_size=5,
            unique_by=lambda member: member[:2],
        ),
    )
    def several(self, verb: str, members: list[tuple[str, str, int, str]]) -> None:
        members = [(name, id, self.cost(name, id, cost), kind) for name, id, cost, kind in members]
        before = dict(self.oracle.memory)
        expected = self.oracle.spend_all(members, self.now)
        if verb == "check_all":
            self.oracle.memory = before
        transactions: Any = members
        decision = getattr(self.limiter, verb)(transactions)
        deciding = [index for index, member in enumerate(members) if member[3] != "spend_only"]
        assert decision.allowed is (expected is not None)
        if expected is not None:
            assert [numbers(part) for part in decision.parts] == expected
        if deciding:
            # The strictest: denied, then the longer wait, then the fewer left, then the later.
            parts = decision.parts
            strictest = max(
                deciding,
                key=lambda index: (
                    not parts[index].allowed,
                    parts[index].retry_after_ns,
                    -parts[index].remaining,
                    index,
                ),
            )
            assert numbers(decision) == numbers(parts[strictest])
            assert (decision.name, decision.id) == members[strictest][:2]
        else:
            assert decision.unlimited
        self.denied = None

    @rule(members=st.lists(st.tuples(names, ids, costs), max_size=5, unique_by=lambda m: m[:2]))
    def refund_several(self, members: list[tuple[str, str, int]]) -> None:
        members = [(name, id, self.cost(name, id, cost)) for name, id, cost in members]
        expected = [self.oracle.refund(*member, self.now) for member in members]
        decision = self.limiter.refund_all(members)
        assert [numbers(part) for part in decision.parts] == expected
        self.denied = None

    @rule(name=names, id=ids)
    def reset(self, name: str, id: str) -> None:
        was_used = self.oracle.memory.pop((name, id), None) is not None
        assert self.limiter.reset(name, id) is was_used
        self.denied = None

    @rule(by=st.integers(0, 20) | st.integers(0, 5_000 * MS) | st.integers(0, 200_000 * MS))
    def wait(self, by: int) -> None:
        self.clock.advance_ns(by)
        self.denied = None

    @precondition(lambda self: self.denied is not None)
    @rule()
    def wait_for_what_was_denied(self) -> None:
        assert self.denied is not None
        name, id, cost, wait = self.denied
        self.denied = None
        self.clock.advance_ns(wait - 1)
        early = self.limiter.check(name, id, cost)
        assert (early.allowed, early.retry_after_ns) == (False, 1)
        assert self.oracle.check(name, id, cost, self.now) == numbers(early)
        self.clock.advance_ns(1)
        assert self.limiter.check(name, id, cost).allowed

    @rule(by=st.integers(1, 20) | st.integers(1, 5_000 * MS))
    def go_back(self, by: int) -> None:
        self.clock.set_ns(max(self.now - by, START - 10**15), allow_backwards=True)
        self.denied = None

    @rule(rules=st.fixed_dictionaries(RULES))
    def reload(self, rules: dict[str, Any]) -> None:
        # A reload drops expired buckets. Without a reset, slower limits would change full ones.
        for name, id in self.oracle.memory.keys() - self.in_use():
            del self.oracle.memory[name, id]
            self.limiter.reset(name, id)
        self.oracle.reload(rules)
        self.limiter.reload({name: rule.limit() for name, rule in rules.items()})
        self.denied = None

    def in_use(self) -> set[tuple[str, str]]:
        """Return the buckets that decide unlike full ones."""
        full = Oracle(self.oracle.rules)
        calls = {key: (*key, 0, self.now) for key in self.oracle.memory}
        return {key for key, call in calls.items() if self.oracle.check(*call) != full.check(*call)}

    @invariant()
    def buckets_in_use_are_counted(self) -> None:
        if hasattr(self, "limiter"):
            written = [memory for memory in self.oracle.memory.values() if memory is not None]
            assert len(self.in_use()) <= len(self.limiter) <= len(written)


TestOracle = Machine.TestCase
TestOracle.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_oracle_agrees_with_the_example_of_the_style_guide() -> None:
    rule = Tokens(burst=4, count=2, period=1_000 * MS)
    oracle = Oracle({"Orders": rule})
    half = 500 * MS
    assert oracle.spend("Orders", "ada", 1, 0) == (True, 3, 0, half)
    assert oracle.spend("Orders", "ada", 3, 0) == (True, 0, 3 * half, 4 * half)
    assert oracle.spend("Orders", "ada", 1, 0) == (False, 0, half, 4 * half)
    assert oracle.spend("Orders", "ada", 1, half) == (True, 0, half, 4 * half)


@settings(max_examples=40)
@given(
    st.fixed_dictionaries(RULES),
    st.lists(
        st.tuples(
            st.sampled_from(["spend", "spend", "check", "refund"]),
            names,
            ids,
            costs,
            st.integers(0, 20) | st.integers(0, 5_000 * MS),
        ),
        max_size=30,
    ),
)
def test_calls_on_other_buckets_have_no_effect(
    rules: dict[str, Any], calls: list[tuple[str, str, str, int, int]]
) -> None:
    clock = penstock.ManualClock()
    clock.set_ns(START)
    limits = {name: rule.limit() for name, rule in rules.items()}
    alone, among_others = (penstock.Limiter(limits, clock=clock) for _ in range(2))
    for turn, (verb, name, id, tokens, wait) in enumerate(calls):
        # So many others that buckets are forgotten, those of the three ids among them.
        for other in limits:
            among_others.spend_each(other, range(turn * 500, turn * 500 + 500))
        cost = min(tokens, rules[name].most)
        one = getattr(alone, verb)(name, id, cost)
        assert numbers(getattr(among_others, verb)(name, id, cost)) == numbers(one)
        clock.advance_ns(wait)
    assert alone.stats()["forgotten"] == 0


def test_forgotten_bucket_decides_as_a_full_bucket() -> None:
    clock = penstock.ManualClock()
    clock.set_ns(START)
    limits = {
        "Orders": Tokens(4, 2, 1_000 * MS).limit(),
        "Notes": Leaks(4, 1_000 * MS, 1).limit(),
        "Pages": Windows(4, 1_000 * MS, None, 0).limit(),
        "Calls": Windows(4, 1_000 * MS, 3, "per-key").limit(),
    }
    fresh, used = (penstock.Limiter(limits, clock=clock) for _ in range(2))
    for name in limits:
        used.spend_each(name, range(1_000), 4)
    clock.advance(60)
    for name in limits:
        used.spend_each(name, range(1_000, 20_000))
    assert (used.stats()["forgotten"] or 0) > 2_000
    for name in limits:
        expected = fresh.spend_each(name, range(1_000), 2)
        decisions = used.spend_each(name, range(1_000), 2)
        assert list(map(numbers, decisions)) == list(map(numbers, expected))
