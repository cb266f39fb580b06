"""Several limits in one decision: all or nothing, the kinds, and the strictest part."""

from __future__ import annotations

import copy
import ipaddress
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from core_limits import FILE

import penstock
from penstock import Limiter, ManualClock, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(penstock.Limits.parse(FILE), clock=clock)


def left(limiter: Limiter, *names: str) -> list[int]:
    """Return how much is left to Ada under each limit."""
    return [limiter.check(name, "ada", 0).remaining for name in names]


def test_parts_are_in_order_with_their_own_decisions(limiter: Limiter) -> None:
    decision = limiter.spend_all(
        [
            ("Notes", "ada", 2),
            Transaction("Free", "ada"),
            ("Pages", "ada", 4),
            ("Accounts", "007", 0),
        ]
    )
    assert [part.name for part in decision.parts] == ["Notes", "Free", "Pages", "Accounts"]
    assert [part.cost for part in decision.parts] == [2, 1, 4, 0]
    assert [part.id for part in decision.parts] == ["ada", "ada", "ada", "7"]
    assert [part.unlimited for part in decision.parts] == [False, True, False, False]
    assert [part.remaining for part in decision.parts] == [2, 2**63 - 1, 0, 4]
    assert decision.binding == "Pages"
    for part in decision.parts:
        assert part.parts == (part,)


def test_refunds_are_each_on_its_own(limiter: Limiter) -> None:
    limiter.spend("Orders", "ada", 2)
    refund = limiter.refund_all([("Orders", "ada", 2), ("Mails", "ada", 1), ("Notes", "ada")])
    # No tokens were taken from the others, so their buckets are unchanged.
    assert [part.allowed for part in refund.parts] == [True, False, False]
    assert left(limiter, "Orders", "Mails", "Notes") == [4, 2, 4]
    limiter.spend("Orders", "ada", 2)
    checked = limiter.refund_all([("Orders", "ada", 2, "check")])
    assert not checked.allowed
    assert left(limiter, "Orders") == [2]
    assert limiter.refund_all([("Orders", "ada", 2, "spend_only")]).allowed
    assert left(limiter, "Orders") == [4]


@pytest.mark.parametrize("verb", ["spend_all", "check_all", "refund_all"])
@pytest.mark.parametrize(
    "transactions",
    [[], (), [("Free", "ada")], [("Free", "ada"), ("Free", "ada")]],
    ids=repr,
)
def test_batch_without_a_deciding_limit_is_unlimited(
    limiter: Limiter, verb: str, transactions: list[Any]
) -> None:
    decision = getattr(limiter, verb)(transactions)
    assert (decision.allowed, decision.unlimited, decision.binding) == (True, True, None)
    assert (decision.remaining, decision.retry_after_ns, decision.reset_after_ns) == (
        2**63 - 1,
        0,
        0,
    )
    assert len(decision.parts) == len(transactions)
    assert decision.now_ns == limiter.clock.now_ns()
    assert decision.limit == penstock.Limit.unlimited()
    assert decision.headers() == {}
    assert (decision.name, decision.id) == (None, None)
    assert "unlimited" in repr(decision)


def test_limit_in_shadow_mode_is_counted_and_never_denies(limiter: Limiter) -> None:
    transactions: list[Any] = [("Watch", "ada"), ("Orders", "ada")]
    assert limiter.spend_all(transactions).binding == "Orders"
    assert left(limiter, "Watch", "Orders") == [0, 3]
    decision = limiter.spend_all(transactions)
    assert (decision.allowed, decision.binding, decision.would_deny) == (True, "Orders", True)
    assert [(part.allowed, part.would_deny, bool(part)) for part in decision.parts] == [
        (True, True, True),
        (True, False, True),
    ]
    assert left(limiter, "Orders") == [2]
    alone = limiter.spend_all([("Watch", "ada")])
    assert (bool(alone), alone.unlimited, alone.would_deny) == (True, True, True)


@pytest.mark.parametrize(
    ("transactions", "key"),
    [
        ([("Orders", "ada"), ("Orders", "ada")], "Orders:ada"),
        ([("Orders", "ada"), ("Mails", "ada"), ("Orders", b"ada", 0, "check")], "Orders:ada"),
        ([("Accounts", 7), ("Accounts", "0007")], "6:7"),
    ],
)
@pytest.mark.parametrize("verb", ["spend_all", "check_all", "refund_all"])
def test_one_bucket_twice_is_an_error_and_nothing_is_spent(
    limiter: Limiter, verb: str, transactions: list[Any], key: str
) -> None:
    positions = f"as transactions 0 and {len(transactions) - 1}"
    with pytest.raises(penstock.TransactionError, match=f"{key}.*{positions}"):
        getattr(limiter, verb)(transactions)
    assert len(limiter) == 0
    assert limiter.spend_all([("Orders", "ada"), ("Orders", "grace"), ("Mails", "ada")])


# Arguments of no transaction, as a tuple or as an object.
INVALID = [
    ((), TypeError),
    (("Orders",), TypeError),
    ((5, "grace"), TypeError),
    (("Orders", True), TypeError),
    (("Orders", None), TypeError),
    (("Orders", 1.5), TypeError),
    (("Orders", "grace", True), TypeError),
    (("Orders", "grace", 1.0), TypeError),
    (("Orders", "grace", None), TypeError),
    (("Orders", "grace", 1, "take"), ValueError),
    (("Orders", "grace", 1, ""), ValueError),
    (("Orders", "grace", 1, None), TypeError),
    (("Orders", "grace", 1, 5), TypeError),
    (("Orders", "grace", 1, "spend", True), TypeError),
]


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        *INVALID,
        (("Nothing", "ada"), penstock.UnknownLimit),
        (("Accounts", "ada"), penstock.InvalidId),
        (("Orders", ""), penstock.InvalidId),
        (("Orders", b"\xff"), penstock.InvalidId),
        (("Orders", "grace", -1), penstock.CostNegative),
        (("Orders", "grace", 5), penstock.CostTooHigh),
        # A factor and tokens to keep need an object.
        (("Orders", "grace", 1, "spend", None, None), TypeError),
        (("Orders", "grace", 1, "spend", None, 0, 0), TypeError),
        (["Orders", "grace"], TypeError),
        ("Orders", TypeError),
        (None, TypeError),
        ({"name": "Orders", "id": "grace"}, TypeError),
        (Transaction("Orders", "grace", factor=2), penstock.LimitError),
        (Transaction("Notes", "grace", factor="-1/2"), penstock.LimitError),
    ],
    ids=repr,
)
@pytest.mark.parametrize("verb", ["spend_all", "check_all", "refund_all"])
def test_one_wrong_member_spends_nothing(
    limiter: Limiter, verb: str, member: Any, problem: type[Exception]
) -> None:
    limiter.spend("Orders", "ada", 2)
    with pytest.raises(problem):
        getattr(limiter, verb)([("Orders", "ada"), member, ("Mails", "ada")])
    assert left(limiter, "Orders", "Mails") == [2, 2]
    assert len(limiter) == 1


@pytest.mark.parametrize(
    "transactions", [None, 5, "Orders", Transaction("Orders", "ada"), ("Orders", "ada")], ids=repr
)
def test_transactions_that_are_not_iterable_are_a_type_error(
    limiter: Limiter, transactions: Any
) -> None:
    with pytest.raises(TypeError):
        limiter.spend_all(transactions)


@pytest.mark.parametrize(
    "make", [list, tuple, iter, lambda two: (one for one in two), dict.fromkeys]
)
def test_any_iterable_of_transactions_is_accepted(
    limiter: Limiter, make: Callable[[Iterable[Any]], Iterable[Any]]
) -> None:
    two: list[Any] = [("Orders", "ada"), Transaction("Mails", ipaddress.ip_address("192.0.2.1"))]
    assert [part.name for part in limiter.spend_all(make(two)).parts] == ["Orders", "Mails"]


def test_failing_iterable_spends_no_tokens(limiter: Limiter) -> None:
    def broken() -> Iterable[Any]:
        yield "Orders", "ada"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        limiter.spend_all(broken())
    assert len(limiter) == 0


def test_many_transactions_are_decided_as_one(limiter: Limiter) -> None:
    many: list[Any] = [("Orders", id, 4) for id in range(3_000)]
    assert limiter.spend_all(many).allowed
    assert len(limiter) == 3_000
    assert not limiter.spend_all([("Orders", "fresh"), ("Orders", 2_999)])
    assert len(limiter) == 3_000


def test_each_transaction_has_its_factor(limiter: Limiter) -> None:
    twice = Transaction("Notes", "ada", 8, factor="1/2")
    decision = limiter.spend_all([twice, ("Orders", "ada")])
    assert (decision.allowed, decision.parts[0].remaining) == (True, 0)
    free = limiter.spend_all([Transaction("Notes", "eve", 1_000, factor=0)])
    assert free.unlimited


def test_transaction_has_its_arguments_as_attributes() -> None:
    transaction = Transaction("Orders", "ada", 2, "check", "1/2")
    assert (transaction.name, transaction.id, transaction.cost) == ("Orders", "ada", 2)
    assert (transaction.kind, transaction.factor) == ("check", "1/2")
    plain = Transaction(id=7, name="Orders")
    assert (plain.cost, plain.kind, plain.factor, plain.id) == (1, "spend", None, 7)
    assert repr(plain) == "Transaction('Orders', 7, cost=1, kind='spend')"
    for one in (transaction, plain):
        assert eval(repr(one), {"Transaction": Transaction}) == one  # noqa: S307  our own repr


def test_transactions_are_equal_if_their_arguments_are() -> None:
    transaction = Transaction("Orders", "ada", 2, "check", 2)
    same = Transaction(name="Orders", id="ada", cost=2, kind="check", factor=2)
    assert transaction == same
    assert hash(transaction) == hash(same)
    others = [
        Transaction("Orders", "ada", 2, "check"),
        Transaction("Orders", "ada", 2, "spend", 2),
        Transaction("Orders", "ada", 1, "check", 2),
        Transaction("Orders", "eve", 2, "check", 2),
        Transaction("Mails", "ada", 2, "check", 2),
        ("Orders", "ada", 2, "check"),
        None,
    ]
    assert [other for other in others if other == transaction] == []
    assert len({transaction, same, *others}) == len(others) + 1


def test_transaction_survives_pickle_and_copy() -> None:
    for transaction in (
        Transaction("Orders", "ada"),
        Transaction("Orders", ipaddress.ip_address("192.0.2.1"), 2, "spend_only", 0.5),
    ):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            again = pickle.loads(pickle.dumps(transaction, protocol))  # noqa: S301  made just now
            assert again == transaction
        assert copy.copy(transaction) == copy.deepcopy(transaction) == transaction


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [*INVALID, (("Orders", "ada", 1, "spend", "half"), penstock.LimitError)],
    ids=repr,
)
def test_invalid_transaction_is_refused_at_creation(
    arguments: tuple[Any, ...], problem: type[Exception]
) -> None:
    made: Any = Transaction
    with pytest.raises(problem):
        made(*arguments)
