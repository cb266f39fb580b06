"""Enforcement without a framework: a decision, its response, and its settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from guards import PEER, asks, left, request

import penstock
from penstock import Limiter, Limits, ManualClock
from penstock._web.guard import Guard
from penstock._web.rule import make_rule
from penstock.adapter import admit, reset_guards
from penstock.identity import by_header
from penstock.messages import MALFORMED_COST, MISSING_ID

if TYPE_CHECKING:
    from conftest import MakeLimiter

    from penstock._web.rule import RuleOptions


@pytest.fixture
def guard(limiter: Limiter) -> Guard:
    return Guard(limiter)


def test_bucket_with_two_spellings_is_charged_once(clock: ManualClock) -> None:
    limits = Limits.parse("PerAddress: {burst: 5, count: 5, period: 1m, id: ipAddress}")
    limiter = Limiter(limits, clock=clock)
    one = make_rule(["PerAddress"], "a", {"id": lambda: "2001:db8::1"})
    two = make_rule(["PerAddress"], "b", {"id": lambda: "2001:DB8:0::1"})
    outcome = admit(Guard(limiter).route_limits([one, two]), request())
    assert len(outcome.parts) == 1
    assert limiter.check("PerAddress", "2001:db8::1", 0).remaining == 4


def test_bucket_of_an_earlier_outcome_is_not_spent_again(guard: Guard, limiter: Limiter) -> None:
    earlier = asks(guard, "Large")(request())
    outcome = asks(guard, "Large", "PerUser")(request(), earlier)
    assert left(limiter, "Large") == 99
    assert dict(outcome.headers())["RateLimit"] == '"Large";r=99;t=1, "PerUser";r=4;t=720'
    again = asks(guard, "Large")(request(), outcome)
    assert again is outcome
    assert left(limiter, "Large") == 99


def test_field_with_one_value_describes_the_strictest_outcome(
    limiter: Limiter,
) -> None:
    guard = Guard(limiter, headers="github")
    strict, roomy = asks(guard, "PerAddress"), asks(guard, "Large")
    both = roomy(request(), strict(request()))
    assert dict(both.headers())["X-RateLimit-Resource"] == "PerAddress"
    strict(request())
    refused = strict(request(), roomy(request()))
    assert refused.refusal == "denied"
    assert dict(refused.headers())["X-RateLimit-Resource"] == "PerAddress"


def test_earlier_outcome_is_settled_with_the_later(guard: Guard, limiter: Limiter) -> None:
    earlier = asks(guard, "PerUser", deduct_when=lambda response: response == 401)(request())
    outcome = asks(guard, "Large")(request(), earlier)
    assert outcome.needs_response
    outcome.settle(401)
    assert left(limiter, "PerUser") == 4


def test_each_deducted_limit_spends_the_tokens_it_has(guard: Guard, limiter: Limiter) -> None:
    ask = asks(guard, "PerAddress", "PerUser", deduct_when=lambda _: True, reserve=False)
    outcome = ask(request())
    # Other requests emptied one of the two before the response.
    limiter.spend("PerAddress", PEER, 2)
    outcome.settle("response")
    assert left(limiter, "PerUser") == 4
    fields = dict(outcome.headers())
    assert fields["RateLimit"] == '"PerAddress";r=0;t=30, "PerUser";r=4;t=720'
    assert "Retry-After" not in fields


def test_refund_happens_once_and_only_with_the_option(guard: Guard, limiter: Limiter) -> None:
    kept = make_rule(["PerUser"], "a", {})
    given_back = make_rule(["Large"], "b", {"refund_on_error": True, "cost": 10})
    outcome = admit(guard.route_limits([kept, given_back]), request())
    limiter.spend("Large", PEER, 50)
    outcome.refund()
    outcome.refund()
    assert left(limiter, "Large") == 50
    assert left(limiter, "PerUser") == 4
    assert '"Large";r=50;t=1' in dict(outcome.headers())["RateLimit"]


@pytest.mark.parametrize("with_other", [False, True])
@pytest.mark.parametrize("reserve", [False, True])
def test_shadow_limit_with_deduct_when_counts(
    guard: Guard, limiter: Limiter, *, with_other: bool, reserve: bool
) -> None:
    options: RuleOptions = {"deduct_when": lambda _: True, "reserve": reserve, "mode": "shadow"}
    shadow = make_rule(["PerAddress"], "a", options)
    other = [make_rule(["PerUser"], "b", {})] if with_other else []
    plan = guard.route_limits([shadow, *other])
    outcomes = []
    for _ in range(4):
        outcomes.append(admit(plan, request()))
        outcomes[-1].settle("response")
    assert [outcome.refusal for outcome in outcomes] == [None] * 4
    fields = dict(outcomes[-1].headers())
    beside = ', "PerUser";r=1;t=720' if with_other else ""
    assert fields["RateLimit"] == f'"PerAddress";r=0;t=30{beside}'
    assert left(limiter, "PerAddress") == 0
    assert left(limiter, "PerUser") == (1 if with_other else 5)


def test_request_without_an_id_is_refused(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    ask = asks(guard, "PerAddress")
    *_, refused = [ask(request(REMOTE_ADDR="")) for _ in range(3)]
    assert (refused.refusal, refused.status) == ("request", 400)
    assert refused.problem.detail == MISSING_ID
    assert refused.headers() == [("Cache-Control", "no-store")]
    # Once, so that clients cannot fill the log.
    (record,) = [each for each in caplog.records if each.name == "penstock"]
    assert "PerAddress" in record.getMessage()


def test_missing_id_refuses_unless_its_limit_is_in_shadow_mode(
    guard: Guard, limiter: Limiter
) -> None:
    ordinary = make_rule(["PerUser"], "a", {})
    missing = make_rule(["Large"], "b", {"id": by_header("X-Tenant")})
    assert admit(guard.route_limits([ordinary, missing]), request()).status == 400
    assert left(limiter, "PerUser") == 5
    shadow = make_rule(["Large"], "b", {"id": by_header("X-Tenant"), "mode": "shadow"})
    outcome = admit(guard.route_limits([ordinary, shadow]), request())
    assert outcome.refusal is None
    assert dict(outcome.headers())["RateLimit"] == '"PerUser";r=4;t=720'


@pytest.mark.parametrize("others", [[], ["PerUser"]])
def test_id_that_does_not_fit_is_a_bad_request(clock: ManualClock, others: list[str]) -> None:
    plain = "{burst: 1, count: 1, period: 1m}"
    text = f"PerAccount: {{burst: 1, count: 1, period: 1m, id: regId}}\nPerUser: {plain}"
    guard = Guard(Limiter(Limits.parse(text), clock=clock))
    refused = asks(guard, "PerAccount", *others, id=by_header("X-Account"))(
        request(HTTP_X_ACCOUNT="ada")
    )
    assert (refused.refusal, refused.status) == ("request", 400)
    shadow = asks(guard, "PerAccount", *others, id=by_header("X-Account"), mode="shadow")
    assert shadow(request(HTTP_X_ACCOUNT="ada")).refusal is None


def test_random_extra_wait_is_never_negative(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": "1/hour"})
    ask = asks(Guard(limiter, spread=0.03), "Orders")
    ask(request())
    waits = set()
    for _ in range(200):
        refused = ask(request())
        assert refused.retry_after == refused.retry_after
        waits.add(int(dict(refused.headers())["Retry-After"]))
    assert min(waits) >= 3600
    assert max(waits) <= 3708
    assert len(waits) > 10


def test_text_is_named_after_its_view_with_a_number_for_further_ones(
    guard: Guard, limiter: Limiter
) -> None:
    ask = asks(guard, "30/minute", "100/hour")
    assert dict(ask(request()).headers())["RateLimit-Policy"] == (
        '"views.search";q=30;w=60, "views.search-2";q=100;w=3600'
    )
    asks(guard, penstock.Limit.parse("5/day"))  # type: ignore[arg-type]  # a limit, not a text
    assert {"views.search", "views.search-2", "views.search-3"} <= set(limiter.limits)


def test_two_guards_of_one_limiter_share_the_text_of_one_view(limiter: Limiter) -> None:
    for _ in range(2):
        asks(Guard(limiter), "2/minute")(request())
    assert asks(Guard(limiter), "2/minute")(request()).refusal == "denied"
    assert "views.search-2" not in limiter.limits


def test_rule_that_is_compiled_twice_is_defined_once(guard: Guard, limiter: Limiter) -> None:
    rule = make_rule(["2/minute"], "views.search", {})
    for _ in range(3):
        guard.route_limits([rule])
    assert "views.search-2" not in limiter.limits


@pytest.mark.parametrize(
    "cost", [-1, -(10**5000), 1.5, "3", None, True, [2]], ids=lambda cost: type(cost).__name__
)
def test_malformed_cost_is_a_bad_request(
    guard: Guard, limiter: Limiter, cost: object, caplog: pytest.LogCaptureFixture
) -> None:
    # A client may have chosen it, so it is not a bug of the application.
    refused = asks(guard, "Large", "PerUser", cost=lambda: cost)(request())
    assert (refused.refusal, refused.status) == ("request", 400)
    assert refused.problem.detail == MALFORMED_COST
    assert "the cost callable must return" in caplog.text
    assert left(limiter, "Large") == 100
    watched = asks(guard, "Large", mode="shadow", cost=lambda: cost)
    assert watched(request()).refusal is None


class Awaitable:
    """An awaitable result of a callable."""

    def __await__(self) -> None:
        """Be awaitable."""


def test_awaitable_exemption_is_an_error(guard: Guard) -> None:
    # An object is true, so every request would be exempt.
    with pytest.raises(TypeError, match="exempt_when"):
        asks(guard, "PerAddress", exempt_when=lambda _: Awaitable())(request())


def test_awaitable_answer_of_deduct_when_is_an_error(guard: Guard) -> None:
    outcome = asks(guard, "PerAddress", deduct_when=lambda _: Awaitable())(request())
    with pytest.raises(TypeError, match="deduct_when"):
        outcome.settle(None)


def test_tests_skip_guards_whose_limiter_is_closed() -> None:
    closed, used = Guard(limits={"Orders": "9/hour"}), Guard(limits={"Orders": "9/hour"})
    closed.limiter.close()
    used.limiter.spend("Orders", "ada", 9)
    reset_guards()
    assert used.limiter.check("Orders", "ada", 0).remaining == 9


def test_tests_skip_guards_of_applications_that_are_garbage() -> None:
    """Applications are cycles, so that of an earlier test stays until the collector finds it."""
    # A server that does not answer.
    application: list[object] = [Guard(limits={"Orders": "9/hour"}, store="redis://127.0.0.1:1")]
    application.append(application)
    with pytest.raises(penstock.StoreError):
        reset_guards()
    used = Guard(limits={"Orders": "9/hour"})
    used.limiter.spend("Orders", "ada", 9)
    del application
    reset_guards()
    assert used.limiter.check("Orders", "ada", 0).remaining == 9
