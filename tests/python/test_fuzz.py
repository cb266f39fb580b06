"""Arbitrary values as arguments of every call raise only the documented errors.

A panic of the core would be a `PanicException`, which is below `BaseException` alone and so fails
every test here.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import fractions
import inspect
import ipaddress
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from core_limits import EACH
from hypothesis import example, given
from hypothesis import strategies as st

import penstock
from penstock import Limit, Limiter, Limits, ManualClock, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

EXPECTED = (penstock.Error, TypeError, ValueError)

FORMATS = [
    "any",
    "ipAddress",
    "ipv6RangeCIDR",
    "ipv6RangeCIDR/56",
    "regId",
    "identValue",
    "domainOrCIDR",
    "domainOrCIDR/exact",
    "fqdnSet",
    "regId:domain",
    "regId:identValue",
    "regId:fqdnSet",
]
FILE = "\n".join(
    f"Limit {index}: {{burst: 4, count: 2, period: 1s, id: '{kind}'}}"
    for index, kind in enumerate(FORMATS)
)
LIMITS = Limits.parse(FILE)

# Texts that have broken parsers before, and almost valid texts.
pieces = st.sampled_from(
    """
    0 1 7 10 18446744073709551616 9223372036854775807 -1 +1 1.5 1e9 \u0661 ½ / per , ; : . - _ * #
    & ! burst count period second minute hour day week month s ms us ns m h d w M NaN inf null true
    ~ yes { } [ ] " ' | > @ % \\ \\x00 << !!str a.b. xn-- xn--a example.com co.uk localhost
    192.0.2.1 ::1 2001:db8::/48 ::ffff:1.2.3.4 fe80::1%eth0 [::1]:80 300.1.1.1 1.2.3 /32 /128 /0
    memory:// ?max_buckets= redis:// 12345678 Orders Orders:7 1/3 0.35 5e-1 é 名前 \u202e \ufeff
    """.split()  # noqa: SIM905  a table of words
)
blanks = st.sampled_from(["", "", "", " ", "\t", "\n", "\r\n", "\x00", "\x1b", "\x85", "\u2028"])
texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.tuples(pieces, blanks), max_size=8).map(lambda two: "".join(map("".join, two))),
    st.builds(lambda piece, times: piece * times, pieces, st.sampled_from([1, 2, 100, 1_000])),
    st.sampled_from(["\udc80", "a\ud800", "\x00", "", " ", "\ufeff", "\U0010ffff"]),
)
numbers = st.one_of(
    st.integers(),
    st.sampled_from([0, 1, -1, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**5_000]),
    st.booleans(),
    st.floats(),
    st.decimals(),
    st.fractions(),
    st.timedeltas(),
    st.complex_numbers(),
)
things = st.one_of(
    texts,
    numbers,
    st.binary(max_size=20),
    st.none(),
    st.ip_addresses(),
    st.just(object()),
    st.sampled_from([int, Limit, [], {}, (), set(), ..., NotImplemented, range(3), b"\xff", len]),
    st.lists(texts, max_size=3),
    st.tuples(texts, numbers),
    st.dictionaries(texts, texts, max_size=2),
    st.sampled_from([Limit.unlimited(), LIMITS, ManualClock(), Transaction("Limit 0", "ada")]),
    st.just(float("nan")),
    st.datetimes(),
)


class Hostile:
    """An object whose attributes and conversions all raise."""

    def refuse(self, *_: object, **__: object) -> Any:
        raise ValueError("nothing can be asked of this")

    __repr__ = __str__ = __hash__ = __eq__ = __len__ = __iter__ = __index__ = __int__ = refuse
    __getitem__ = __call__ = __bool__ = __float__ = __fspath__ = __getattr__ = refuse


def soft(call: Callable[..., object], *arguments: Any, **keywords: Any) -> object:
    """Call a function; return its result, or the error if it is an expected one."""
    try:
        return call(*arguments, **keywords)
    except EXPECTED as error:
        return error


def parameters(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Generate values of all kinds for parameters, any of which may be missing."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, things))


@given(things)
def test_one_argument_of_any_kind(thing: Any) -> None:
    for call in (Limit.parse, Limits, Limits.parse, Limiter, ManualClock, Limits.load):
        if not (call is Limits.load and isinstance(thing, str)):
            soft(call, thing)
    clock = ManualClock()
    for move in (clock.advance, clock.advance_ns, clock.set_ns):
        soft(move, thing)
    assert clock.now_ns() >= 0


CONSTRUCTORS = {
    name: tuple(inspect.signature(getattr(Limit, name)).parameters)
    for name in ("leaky_bucket_from", *(algorithm.replace("-", "_") for algorithm in EACH))
}


@given(st.sampled_from([*CONSTRUCTORS]), st.data())
def test_constructors(constructor: str, data: st.DataObject) -> None:
    options = data.draw(parameters(*CONSTRUCTORS[constructor]))
    found = soft(getattr(Limit, constructor), **options)
    if isinstance(found, Limit):
        assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301  made just now


whole = st.integers(-1, 2**64) | st.integers(1, 1_000)
nanoseconds = st.integers(1, 10**19).map("{}ns".format)
lengths = st.one_of(st.floats(), st.integers(-1, 10**11), st.timedeltas(), texts, nanoseconds)


@given(whole, whole, whole, lengths, lengths, st.data())
def test_every_valid_limit_decides_at_any_time(  # noqa: PLR0917  what is drawn
    one: int, two: int, three: int, length: Any, other: Any, data: st.DataObject
) -> None:
    made = [
        soft(Limit.token_bucket, burst=one, count=two, period=length),
        soft(Limit.leaky_bucket, size=one, drip_rate=length, drip_size=two),
        soft(Limit.leaky_bucket_from, max=one, duration=length, min_interval=other),
        soft(Limit.fixed_window, count=one, period=length),
        soft(Limit.fixed_window, count=one, period=length, anchor="aligned", phase=other),
        soft(Limit.fixed_rate_window, count=one, period=length, burst=two),
        soft(
            Limit.fixed_rate_window,
            count=one, period=length, burst=three, anchor="aligned", phase="per-key",
        ),
    ]  # fmt: skip
    limits = {
        f"Limit {index}": limit for index, limit in enumerate(made) if isinstance(limit, Limit)
    }
    clock = ManualClock()
    limiter = Limiter(limits, clock=clock)
    instants = st.sampled_from([0, 1, 999_999, 2**43 * 10**6, 2**63 - 2, 2**63 - 1])
    for now in data.draw(st.lists(instants | st.integers(0, 2**63 - 1), max_size=4)):
        clock.set_ns(now, allow_backwards=True)
        for name, limit in limits.items():
            for cost in (0, 1, limit.max_cost, data.draw(whole)):
                for verb in (limiter.spend, limiter.check, limiter.refund, limiter.spend):
                    decision = soft(verb, name, "ada", cost)
                    if isinstance(decision, penstock.Decision):
                        assert decision.remaining >= 0
                        assert decision.retry_after_ns >= 0
                        assert decision.reset_after_ns >= 0
                        assert decision.next_token_after_ns >= 0
                        decision.headers(["ietf", "github"])
        limiter.spend_all([(name, "eve", 0) for name in limits])


@given(
    st.sampled_from(["spend", "check", "refund"]),
    st.lists(things, max_size=5),
    parameters("name", "id", "cost", "factor", "x"),
)
def test_calls_about_one_bucket(verb: str, arguments: list[Any], keywords: dict[str, Any]) -> None:
    limiter = Limiter(LIMITS, clock=ManualClock(1))
    for call in (getattr(limiter, verb), getattr(limiter.limit("Limit 0"), verb)):
        soft(call, *arguments, **keywords)
        soft(call, "Limit 0", *arguments, **keywords)
        soft(call, "ada", **keywords)
    soft(limiter.reset, *arguments)
    soft(limiter.limit, *arguments)
    soft(limiter.define, *arguments)


@given(things, things)
def test_calls_about_many_buckets(one: Any, other: Any) -> None:
    limiter = Limiter(LIMITS, clock=ManualClock(1))
    for call in (limiter.spend_all, limiter.check_all, limiter.refund_all):
        for given_ in (one, [one], [one, other], [("Limit 0", one, other)], [(one, other, 1, one)]):
            soft(call, given_)
    for ids, costs in ((one, other), ([one], None), ([one, other], 1), (["ada"], one)):
        soft(limiter.spend_each, "Limit 0", ids, costs)
    decisions = limiter.spend_each("Limit 0", ["ada", "eve"])
    for look_up in (decisions.column, decisions.__getitem__):
        with contextlib.suppress(KeyError, IndexError):
            soft(look_up, one)
    soft(Transaction, one, other)
    soft(Transaction, "Limit 0", one, other)
    soft(Transaction, "Limit 0", "ada", 1, one, other)
    soft(limiter.reload, one)
    assert list(limiter.limits) == list(LIMITS) or isinstance(one, dict | Limits)


@given(texts | st.floats() | st.decimals() | st.fractions() | st.integers())
@example("1e" + "9" * 1_000)
@example("1/" + "9" * 1_000)
@example("0." + "0" * 10_000 + "1")
@example(5e-324)
@example(decimal.Decimal("1E+1000000"))
@example(fractions.Fraction(1, 10**4_000))
def test_factors(factor: Any) -> None:
    limiter = Limiter({"Notes": Limit.leaky_bucket(size=1_000)}, clock=ManualClock(1))
    found = soft(limiter.spend, "Notes", "ada", 1, factor=factor)
    if isinstance(found, penstock.Decision) and not found.unlimited:
        assert 1 <= found.limit.size <= 1_048_575


@given(texts | st.builds("memory://?max_buckets={}".format, texts | st.integers(-1, 2**70)))
@example("redis://0")
def test_store_addresses(store: str) -> None:
    found = soft(Limiter, {"Orders": "4/second"}, store)
    if isinstance(found, Limiter):
        assert found.store == store
        # A server may be away, which the first call tells.
        assert store.startswith("redis") or found.spend("Orders", "ada").allowed


HOSTILE: list[Callable[[Any, Limiter], object]] = [
    lambda thing, limiter: limiter.spend(thing, "ada"),
    lambda thing, limiter: limiter.spend("Limit 0", thing),
    lambda thing, limiter: limiter.spend("Limit 0", "ada", thing),
    lambda thing, limiter: limiter.spend("Limit 0", "ada", 1, factor=thing),
    lambda thing, limiter: limiter.refund("Limit 0", "ada", thing, factor=thing),
    lambda thing, limiter: limiter.reset("Limit 0", thing),
    lambda thing, limiter: limiter.spend_all(thing),
    lambda thing, limiter: limiter.spend_all([thing]),
    lambda thing, limiter: limiter.spend_all([("Limit 0", thing, thing, thing)]),
    lambda thing, limiter: limiter.spend_each("Limit 0", thing),
    lambda thing, limiter: limiter.spend_each("Limit 0", [thing]),
    lambda thing, limiter: limiter.spend_each("Limit 0", ["ada"], thing),
    lambda thing, limiter: limiter.spend_each("Limit 0", ["ada"], [thing]),
    lambda thing, limiter: limiter.spend_each("Limit 0", ["ada"])[thing],
    lambda thing, limiter: limiter.reload(thing),
    lambda thing, limiter: limiter.define("x", thing),
    lambda thing, limiter: limiter.limits.explain("Limit 0", thing),
    lambda thing, limiter: limiter.spend("Limit 0", "ada").headers(thing),
    lambda thing, _: Limiter(thing),
    lambda thing, _: Limiter({}, thing),
    lambda thing, _: Limiter({}, clock=thing),
    lambda thing, _: Limits({"x": thing}),
    lambda thing, _: Limits.load(thing),
    lambda thing, _: Limits.load("x", thing),
    lambda thing, _: Limits.parse("{}", names=thing),
    lambda thing, _: Limit.parse(thing),
    lambda thing, _: Limit.token_bucket(burst=thing, count=1, period=1),
    lambda thing, _: Limit.token_bucket(burst=1, count=1, period=thing),
    lambda thing, _: Limit.fixed_window(count=1, period=1, anchor=thing),
    lambda thing, _: Limit.fixed_window(count=1, period=1, anchor="aligned", phase=thing),
    lambda thing, _: ManualClock(thing),
    lambda thing, _: ManualClock().advance_ns(thing),
    lambda thing, _: Transaction("x", thing),
    lambda thing, _: Transaction("x", "ada", thing, thing, thing),
    lambda thing, _: hash(Transaction("x", "ada", 1)) == hash(thing),
]


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_object_whose_attributes_raise_is_refused(index: int) -> None:
    limiter = Limiter(LIMITS, clock=ManualClock(1))
    with pytest.raises(EXPECTED):
        HOSTILE[index](Hostile(), limiter)
    assert len(limiter) <= 1


class Changing(str):
    """A name that changes between two readings."""

    __slots__ = ()
    looked_at = 0

    def __hash__(self) -> int:
        type(self).looked_at += 1
        return type(self).looked_at if type(self).looked_at % 3 else super().__hash__()

    def __eq__(self, other: object) -> bool:
        type(self).looked_at += 1
        return bool(type(self).looked_at % 2) and super().__eq__(other)


def test_name_that_changes_between_readings_is_safe() -> None:
    limiter = Limiter({"Orders": "400/second", "Mails": "1/second"}, clock=ManualClock(1))
    held = []
    for turn in range(300):
        limiter.spend("Orders", "ada")
        held.append(soft(limiter.limit, Changing("Orders")))
        held.append(soft(limiter.spend, Changing("Orders"), "ada", 0))
        if turn % 10 == 0:
            held.clear()
        # Fill the places that were perhaps freed.
        held.extend(bytes(200) for _ in range(5))
    assert limiter.limit("Orders").name == "Orders"
    assert limiter.check("Orders", "ada", 0).remaining == 100


def test_objects_of_other_types_are_not_limits() -> None:
    for thing in (ipaddress.ip_address("::1"), datetime.date(2001, 9, 9), datetime.timedelta(1)):
        wrong: Any = thing
        with pytest.raises(TypeError):
            Limits({"Orders": wrong})
