"""Arguments of the calls about one bucket: ids, names, costs and factors of every kind."""

from __future__ import annotations

import asyncio
import datetime
import functools
import inspect
import ipaddress
from collections import UserString
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy
import pytest
from core_limits import FILE, LIMITED

import penstock
from penstock import Limit, Limiter, ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from conftest import MakeLimiter

CALLS = ["spend", "check", "refund"]


class Who(StrEnum):
    ADA = "ada"


class Account(IntEnum):
    ADA = 7


class Level(float, Enum):
    HALF = 0.5


class Half(str, Enum):  # noqa: UP042  as it was written before there was a StrEnum
    HALF = "0.5"


class Text(str):  # noqa: SLOT000  as careless code derives
    """A text whose `str` and `repr` differ from its value."""

    def __str__(self) -> str:
        return "something else"


class Number(int):
    """A number whose `str` and `repr` differ from its value."""

    def __str__(self) -> str:
        return "something else"

    __repr__ = __str__


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(penstock.Limits.parse(FILE), clock=clock)


@pytest.mark.parametrize(
    ("id", "canonical"),
    [
        ("ada", "ada"),
        ("Ada", "Ada"),
        (" ada ", "ada".center(5)),
        ("größe", "größe"),
        ("名前\x00", "名前\x00"),
        ("a" * 100_000, "a" * 100_000),
        (b"ada", "ada"),
        ("größe".encode(), "größe"),
        (0, "0"),
        (-1, "-1"),
        (2**63 - 1, str(2**63 - 1)),
        (2**63, str(2**63)),
        (-(2**63), str(-(2**63))),
        (10**40, str(10**40)),
        (ipaddress.ip_address("192.0.2.1"), "192.0.2.1"),
        (ipaddress.ip_address("2001:DB8::1"), "2001:db8::1"),
        (Text("grace"), "grace"),
        (Number(5), "5"),
        (Number(10**30), str(10**30)),
        (Who.ADA, "ada"),
        (Account.ADA, "7"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r:.30}",
)
def test_id_is_known_by_its_text(limiter: Limiter, id: Any, canonical: str) -> None:
    decision = limiter.spend("Orders", id)
    assert (decision.id, decision.remaining) == (canonical, 3)
    assert limiter.limit("Orders").spend(canonical).remaining == 2
    assert limiter.spend("Orders", canonical.encode()).remaining == 1
    assert limiter.refund("Orders", id).remaining == 2
    assert limiter.spend_all([("Orders", id)]).remaining == 1
    assert limiter.limits.explain("Orders", id).bucket_key == f"Orders:{canonical}"
    assert limiter.reset("Orders", id) is True


def test_spellings_of_one_id_share_a_bucket(limiter: Limiter) -> None:
    ids: list[str | int | bytes] = ["7", 7, b"007", "0000007"]
    decisions = [limiter.spend("Accounts", id) for id in ids]
    assert [decision.remaining for decision in decisions] == [3, 2, 1, 0]
    assert {decision.id for decision in decisions} == {"7"}
    assert len(limiter) == 1


@pytest.mark.parametrize(
    "id",
    [True, False, None, 1.0, 1j, bytearray(b"a"), memoryview(b"a"), ["a"], ("a",), {"a"},
     UserString("a"), object(), str, ipaddress.ip_network("10.0.0.0/8")],
    ids=lambda id: type(id).__name__,
)  # fmt: skip
@pytest.mark.parametrize("verb", ["spend", "check", "refund", "reset"])
def test_id_of_another_kind_is_a_type_error(limiter: Limiter, verb: str, id: Any) -> None:
    with pytest.raises(
        TypeError, match=f"id must be .*, found {type(id).__name__.removesuffix('Type')}"
    ):
        getattr(limiter, verb)("Orders", id)
    with pytest.raises(TypeError, match="id must be"):
        getattr(limiter.limit("Orders"), verb)(id)
    assert len(limiter) == 0


@pytest.mark.parametrize("id", ["\udc80", "a\ud800", b"\xff", b"a\x80", "", b""], ids=repr)
@pytest.mark.parametrize("verb", ["spend", "check", "refund", "reset"])
def test_id_that_cannot_be_is_refused(limiter: Limiter, verb: str, id: Any) -> None:
    with pytest.raises(penstock.InvalidId, match="id must"):
        getattr(limiter, verb)("Orders", id)
    with pytest.raises(penstock.InvalidId, match="id must"):
        getattr(limiter.limit("Orders"), verb)(id)


def test_number_with_too_many_digits_is_a_value_error(limiter: Limiter) -> None:
    with pytest.raises(ValueError, match="4300 digits"):
        limiter.spend("Orders", 10**5000)


def test_id_that_fits_no_format_is_refused(limiter: Limiter) -> None:
    ids: list[str | int] = ["ada", "-1", -1, 2**64, "1.0", " 1"]
    for id in ids:
        with pytest.raises(penstock.InvalidId, match=r"^Accounts: "):
            limiter.spend("Accounts", id)
    assert len(limiter) == 0


@pytest.mark.parametrize("verb", ["spend", "check", "refund", "reset"])
def test_unknown_name_is_an_error_that_lists_the_known_names(limiter: Limiter, verb: str) -> None:
    message = r"'Order'; did you mean 'Orders'\? .* Accounts, Calls, .*, Orders, Pages, Watch"
    with pytest.raises(penstock.UnknownLimit, match=message):
        getattr(limiter, verb)("Order", "ada")
    with pytest.raises(penstock.UnknownLimit, match=message):
        limiter.limit("Order")
    with pytest.raises(penstock.UnknownLimit, match=message):
        limiter.spend_all([("Orders", "ada"), ("Order", "ada")])


@pytest.mark.parametrize("name", [5, None, b"Orders", 1.5, ["Orders"]], ids=repr)
@pytest.mark.parametrize("verb", ["spend", "check", "refund", "reset"])
def test_name_of_another_kind_is_a_type_error(limiter: Limiter, verb: str, name: Any) -> None:
    with pytest.raises(TypeError, match="name must be a str, found"):
        getattr(limiter, verb)(name, "ada")
    with pytest.raises(TypeError, match="name must be a str, found"):
        limiter.limit(name)


def test_long_and_strange_names_are_shown_in_part(limiter: Limiter) -> None:
    with pytest.raises(penstock.UnknownLimit) as caught:
        limiter.spend("x" * 1_000_000, "ada")
    assert len(str(caught.value)) < 400
    for name in ("", "\x00", "\u202e", "Orders "):
        with pytest.raises(penstock.UnknownLimit):
            limiter.spend(name, "ada")
    with pytest.raises((penstock.UnknownLimit, ValueError)):
        limiter.spend("\udc80", "ada")


def test_name_may_be_any_text_of_its_letters(limiter: Limiter) -> None:
    assert limiter.spend(Text("Orders"), "ada").name == "Orders"
    assert limiter.spend("orders".title(), "ada").remaining == 2


@pytest.mark.parametrize("cost", [True, 1.0, "1", b"1", [1], 1j, None], ids=repr)
@pytest.mark.parametrize("verb", ["spend", "check", "refund"])
def test_cost_of_another_kind_is_a_type_error(limiter: Limiter, verb: str, cost: Any) -> None:
    kind = type(cost).__name__.removesuffix("Type")
    message = f"cost must be an int, found {kind}"
    with pytest.raises(TypeError, match=message):
        getattr(limiter, verb)("Orders", "ada", cost)
    with pytest.raises(TypeError, match=message):
        getattr(limiter.limit("Orders"), verb)("ada", cost=cost)
    with pytest.raises(TypeError, match=message):
        getattr(limiter, f"{verb}_all")([("Orders", "ada", cost)])
    assert len(limiter) == 0


@pytest.mark.parametrize("cost", [-1, -(2**63), -(10**30)])
@pytest.mark.parametrize("verb", ["spend", "check", "refund", "reserve"])
def test_negative_cost_is_refused(limiter: Limiter, verb: str, cost: int) -> None:
    for name in (*LIMITED, "Free"):
        with pytest.raises(penstock.CostNegative) as caught:
            getattr(limiter, verb)(name, "ada", cost)
        assert (caught.value.cost, caught.value.limit_name) == (cost, name)


@pytest.mark.parametrize("cost", [5, 2**63 - 1, 2**63, 10**30])
@pytest.mark.parametrize("verb", ["spend", "check", "refund", "reserve"])
def test_cost_that_can_never_be_allowed_is_refused(limiter: Limiter, verb: str, cost: int) -> None:
    for name in LIMITED:
        with pytest.raises(penstock.CostTooHigh) as caught:
            getattr(limiter, verb)(name, "ada", cost)
        assert (caught.value.cost, caught.value.limit_name) == (cost, name)
    assert len(limiter) == 0


async def outcome(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@pytest.mark.parametrize("cost", [2**63, 10**30, -(10**30)])
def test_errors_about_a_cost_beyond_64_bits_show_it(limiter: Limiter, cost: int) -> None:
    tasks = penstock.AsyncLimiter(limiter)
    several: list[Any] = [("Free", "ada", 10**40), ("Orders", "ada", cost)]
    calls: list[Callable[[], Any]] = [
        lambda: limiter.acquire("Orders", "ada", cost),
        lambda: limiter.reserve("Orders", "ada", cost, timeout=1),
        lambda: asyncio.run(tasks.acquire("Orders", "ada", cost)),
        lambda: asyncio.run(outcome(tasks.reserve("Orders", "ada", cost, timeout=1))),
        lambda: limiter.spend_each("Orders", ["ada"], cost),
        lambda: limiter.spend_each("Orders", ["ada", "eve"], [1, cost]),
    ]
    verbs = ("spend_all", "check_all", "reserve_all", "acquire_all", "refund_all")
    calls.extend(functools.partial(getattr(limiter, verb), several) for verb in verbs)
    calls.append(lambda: limiter.acquire_all(several, timeout=1))
    calls.append(lambda: asyncio.run(tasks.acquire_all(several)))
    for call in calls:
        with pytest.raises(penstock.CostError, match=rf"(?m)found {cost}$") as caught:
            call()
        assert (caught.value.cost, caught.value.limit_name) == (cost, "Orders")
    assert len(limiter) == 0


def test_highest_cost_is_that_of_the_limit(limiter: Limiter) -> None:
    for name in LIMITED:
        most = limiter.limits.resolve(name, "ada").max_cost
        assert most == 4
        assert limiter.check(name, "ada", most).allowed


def test_text_of_an_int_subclass_is_ignored(limiter: Limiter) -> None:
    assert limiter.spend("Orders", "ada", Number(3)).remaining == 1
    assert limiter.limit("Orders").refund("ada", Number(2)).remaining == 3


@pytest.mark.parametrize("verb", CALLS)
def test_arguments_by_position_and_by_name_mean_the_same(
    make_limiter: MakeLimiter, verb: str
) -> None:
    def answer(call: Callable[[Any, Any], penstock.Decision]) -> penstock.Decision:
        limiter = make_limiter(penstock.Limits.parse(FILE))
        limiter.spend("Notes", "ada", 4)
        return call(getattr(limiter, verb), getattr(limiter.limit("Notes"), verb))

    expected = answer(lambda call, _: call("Notes", "ada", 2, factor="1/2"))
    ways: list[Callable[[Any, Any], penstock.Decision]] = [
        lambda call, _: call("Notes", "ada", factor="1/2", cost=2),
        lambda call, _: call("Notes", id="ada", cost=2, factor="1/2"),
        lambda call, _: call(factor="1/2", cost=2, id="ada", name="Notes"),
        lambda call, _: call(*["Notes", "ada"], cost=2, factor="1/2"),
        lambda _, bound: bound("ada", 2, factor="1/2"),
        lambda _, bound: bound(id="ada", cost=2, factor="1/2"),
        lambda _, bound: bound(factor="1/2", id="ada", cost=2),
    ]
    assert [answer(way) for way in ways] == [expected] * len(ways)


@pytest.mark.parametrize("verb", CALLS)
def test_defaults_are_cost_one_and_no_factor(limiter: Limiter, verb: str) -> None:
    method, bound = getattr(limiter, verb), getattr(limiter.limit("Notes"), verb)
    assert method("Notes", "ada").cost == bound("ada").cost == 1
    assert bound("ada", factor=None).limit.size == 4
    # A refund leaves more tokens, never fewer.
    keep = "" if verb == "refund" else ", keep=0"
    assert str(inspect.signature(bound)) == f"(id, cost=1, *, factor=None{keep})"
    assert str(inspect.signature(method)) == f"(name, id, cost=1, *, factor=None{keep})"


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize(
    ("arguments", "keywords", "word"),
    [
        (("Notes",), {}, "id"),
        (("Notes",), {"cost": 1}, "id"),
        (("Notes", "ada", 1, None), {}, "2|3"),
        (("Notes", "ada"), {"tokens": 1}, "tokens"),
        (("Notes", "ada"), {"Cost": 1}, "Cost"),
        (("Notes", "ada"), {"": 1}, "argument"),
        (("Notes", "ada", 1), {"cost": 1}, "cost"),
        (("Notes", "ada", 1, None), {"factor": 1}, "factor|2|3"),
        (("Notes", "ada"), {"id": "ada"}, "id"),
        (("Notes", "ada"), {"name": "Notes"}, "name"),
        (("Notes", "ada"), {"\udc80": 1}, "argument|udc80"),
    ],
    ids=repr,
)
def test_wrong_arguments_are_type_errors(
    limiter: Limiter,
    verb: str,
    arguments: tuple[Any],
    keywords: dict[str, Any],
    word: str,
) -> None:
    with pytest.raises(TypeError, match=word):
        getattr(limiter, verb)(*arguments, **keywords)
    with pytest.raises(TypeError, match=word):
        getattr(limiter.limit("Notes"), verb)(*arguments[1:], **keywords)
    for without_name in ({}, {"id": "ada"}):
        with pytest.raises(TypeError, match="name"):
            getattr(limiter, verb)(**without_name)
    assert len(limiter) == 0


@pytest.mark.parametrize("verb", ["spend", "check"])
def test_method_of_one_class_takes_no_other_self(limiter: Limiter, verb: str) -> None:
    of_limiter: Any = getattr(Limiter, verb)
    of_bound: Any = getattr(penstock.BoundLimit, verb)
    assert of_limiter(limiter, "Orders", "ada").allowed
    assert of_bound(limiter.limit("Orders"), "ada").allowed
    calls: list[Callable[[], object]] = [
        lambda: of_limiter(limiter.limit("Orders"), "Orders", "ada"),
        lambda: of_bound(limiter, "ada"),
        lambda: of_limiter("Orders", "Orders", "ada"),
        of_limiter,
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


def test_methods_have_the_names_and_docs_of_methods() -> None:
    for owner in (Limiter, penstock.BoundLimit):
        for verb in ("spend", "check"):
            method: Any = vars(owner)[verb]
            assert (method.__name__, method.__objclass__) == (verb, owner)
            assert method.__qualname__ == f"{owner.__name__}.{verb}"
            assert method.__doc__


@pytest.mark.parametrize(
    ("factor", "size"),
    [
        (None, 4),
        (1, 4),
        (0.5, 8),
        ("1/2", 8),
        (Fraction(1, 2), 8),
        (Decimal("0.5"), 8),
        (Decimal("5E-1"), 8),
        # 4 / 0.1 is 40, and so is 4 divided by the shortest decimal of the float nearest to 0.1.
        (0.1, 40),
        (Fraction(1, 3), 12),
        (3, 2),
        (100, 1),
        (10**40, 1),
        (1e300, 1),
        (Decimal("1e400"), 1),
        (numpy.float64(0.5), 8),
        (Number(2), 2),
        (Half("0.5"), 8),
        (Level.HALF, 8),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r}",
)
def test_factor_divides_the_size_exactly(limiter: Limiter, factor: Any, size: int) -> None:
    notes = limiter.limit("Notes")
    for decision in (
        limiter.check("Notes", "ada", 0, factor=factor),
        limiter.spend("Notes", "ada", 0, factor=factor),
        notes.check("ada", 0, factor=factor),
        notes.refund("ada", 0, factor=factor),
        limiter.check_all([penstock.Transaction("Notes", "ada", 0, factor=factor)]),
    ):
        assert (decision.limit.size, decision.remaining) == (size, size)


@pytest.mark.parametrize("factor", [0, "0", 0.0, -0.0, "0/5", Decimal(0), Fraction(0)], ids=repr)
def test_factor_of_zero_lifts_the_limit(limiter: Limiter, factor: Any) -> None:
    decision = limiter.spend("Notes", "ada", 1_000, factor=factor)
    assert (decision.allowed, decision.unlimited) == (True, True)
    assert decision.limit == penstock.Limit.unlimited()
    assert len(limiter) == 0


@pytest.mark.parametrize(
    "factor",
    [-1, "-1/3", -1e-300, 1e-9, 1e-300, "", "half", "1/2/3", " 1", "1_0", float("nan"),
     float("inf"), Decimal("NaN"), Decimal("-Infinity"), "1/0", "1" * 30, Fraction(1, 10**30)],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("verb", CALLS)
def test_factor_that_cannot_be_is_refused(limiter: Limiter, verb: str, factor: Any) -> None:
    with pytest.raises(penstock.LimitError) as caught:
        getattr(limiter, verb)("Notes", "ada", 1, factor=factor)
    assert caught.value.field == "factor"
    assert len(limiter) == 0


@pytest.mark.parametrize("factor", [True, b"1", [1], 1j, object], ids=repr)
@pytest.mark.parametrize("verb", CALLS)
def test_factor_of_another_kind_is_a_type_error(limiter: Limiter, verb: str, factor: Any) -> None:
    message = "factor must be an int, str, float, Decimal or Fraction, found"
    with pytest.raises(TypeError, match=message):
        getattr(limiter, verb)("Notes", "ada", 1, factor=factor)


@pytest.mark.parametrize("name", ["Orders", "Pages", "Calls"])
def test_factor_applies_only_to_leaky_buckets(limiter: Limiter, name: str) -> None:
    with pytest.raises(penstock.LimitError) as caught:
        limiter.spend(name, "ada", 1, factor=1)
    assert caught.value.field == "factor"
    assert limiter.spend("Free", "ada", 1, factor=1).unlimited


@pytest.mark.parametrize("length", [2**40, 2**61, 2**63 - 1])
def test_length_that_is_wrong_is_not_asked(limiter: Limiter, length: int) -> None:
    class Table(dict[str, str]):
        def __len__(self) -> int:
            return length

    class Rows(list[Any]):
        def __len__(self) -> int:
            return length

    table = Table(A="1/second")
    assert list(penstock.Limits(table)) == list(Limiter(table).limits) == ["A"]
    assert list(penstock.Limits(table) | table) == list(table | penstock.Limits(table)) == ["A"]
    with Limiter({}) as other:
        other.reload(table)
    decision = limiter.spend("Orders", "ada")
    assert decision.replace(parts=Rows([decision])).parts == (decision,)


def test_near_name_is_suggested_among_many() -> None:
    many = Limiter(
        {f"Limit{index:03}": "1/second" for index in range(300)} | {"Orders": "1/second"}
    )
    with pytest.raises(penstock.UnknownLimit, match=r"'Ordres'; did you mean 'Orders'\? .* more$"):
        many.spend("Ordres", "ada")
    with pytest.raises(penstock.UnknownLimit, match=r"'Unlike'; expected one of .* and 291 more$"):
        many.spend("Unlike", "ada")


def test_integers_of_numpy_are_ids_and_costs(limiter: Limiter) -> None:
    number: Any = numpy.int64(2)
    assert limiter.spend("Orders", number, number).remaining == 2
    assert limiter.peek("Orders", 2).remaining == 2
    for wrong in (numpy.bool_(True), numpy.float64(1.0)):
        with pytest.raises(TypeError, match="cost must be an int, found"):
            limiter.spend("Orders", "ada", wrong)  # type: ignore[arg-type]


def test_store_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="store must be a str, found object"):
        Limiter({}, store=object())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("guess", "hint"),
    [
        (lambda: Limit("10/minute"), "Limit.parse('10/minute')"),  # type: ignore[arg-type]
        (lambda: Limit(burst=1), "Limit.token_bucket("),  # type: ignore[arg-type]
        (lambda: Limiter("10/minute"), "{'Orders': '10/minute'}"),
        (lambda: Limiter("5 in flight"), "{'Orders': '5 in flight'}"),
        (lambda: Limiter({}, storage="memory://"), "use store="),  # type: ignore[call-arg]
        (lambda: Limiter({}, redis_url="redis://a"), "use store="),  # type: ignore[call-arg]
        (lambda: Limiter({}, rate="1/minute"), "limits, store and clock"),  # type: ignore[call-arg]
        (
            lambda: penstock.ManualClock(datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)),  # type: ignore[arg-type]
            "timestamp()",
        ),
        (lambda: Limiter({}).spend("Orders", "ada", 1, 2), "factor="),  # type: ignore[call-arg]
    ],
)
def test_first_guesses_name_what_to_write(guess: Callable[[], object], hint: str) -> None:
    with pytest.raises((TypeError, penstock.ConfigError)) as caught:
        guess()
    assert hint in str(caught.value)
