"""Limits decide requests in the same way in every framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Reply, Request, Route, hello, limited
from adapters.drivers import InRestFramework, only, with_routes
from guards import left

import penstock
from penstock.identity import shared

if TYPE_CHECKING:
    from adapters.case import Driver
    from adapters.conftest import Serve

with_defaults = only(lambda driver: driver.has_routes and driver.starts)
POLICY = {"ratelimit-policy": '"PerAddress";q=2;w=60'}


def decided(limiter: penstock.Limiter) -> int:
    """Return how often a limit has decided."""
    spends = [counts["spends"] for counts in limiter.counts().values()]
    return sum(each["allowed"] + each["denied"] for each in spends)


def test_route_is_served_until_its_limit_denies(serve: Serve, clock: penstock.ManualClock) -> None:
    app = serve(Route("/", (limited("PerAddress"),)))
    first = app.ask()
    assert (first.status, first.body) == (200, b"hello")
    assert first.limit_fields == {**POLICY, "ratelimit": '"PerAddress";r=1;t=30'}
    assert app.ask().status == 200
    denied = app.ask()
    assert denied.status == 429
    assert denied.limit_fields == {
        **POLICY,
        "ratelimit": '"PerAddress";r=0;t=30',
        "retry-after": "30",
        "cache-control": "no-store",
    }
    clock.advance(29.999)
    assert app.ask().limit_fields["retry-after"] == "1"
    clock.advance(0.001)
    assert app.ask().status == 200


def test_denied_request_never_reaches_the_view(serve: Serve) -> None:
    reached: list[str] = []

    def view(request: Request) -> Reply:
        reached.append(request.path)
        return Reply()

    app = serve(Route("/", (limited("PerAddress"),), view))
    assert app.statuses(4) == [200, 200, 429, 429]
    assert reached == ["/", "/"]


def test_view_sees_its_decision(serve: Serve) -> None:
    def view(request: Request) -> Reply:
        assert request.decision is not None
        return Reply(body=f"{request.decision.remaining} left")

    app = serve(Route("/", (limited("PerAddress"),), view))
    assert [app.ask().body for _ in range(2)] == [b"1 left", b"0 left"]


def test_route_without_limits_has_no_fields(serve: Serve, limiter: penstock.Limiter) -> None:
    def view(request: Request) -> Reply:
        return Reply(f"{request.decision}")

    app = serve(Route("/free", view=view), Route("/", (limited("PerAddress"),)))
    free = app.ask("/free")
    # Without a middleware on the route, nothing sets a decision.
    assert free.body in {b"<Decision: allowed, unlimited>", b"None"}
    assert free.limit_fields == {}
    assert decided(limiter) == 0


@with_routes
def test_unknown_page_has_no_fields(serve: Serve, limiter: penstock.Limiter) -> None:
    answer = serve(Route("/", (limited("PerAddress"),))).ask("/nowhere")
    assert (answer.status, answer.limit_fields) == (404, {})
    assert decided(limiter) == 0


def test_several_limits_are_one_decision(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(Route("/", (limited("PerAddress", "PerUser", "Large"),)))
    assert app.ask().header("RateLimit") == (
        '"PerAddress";r=1;t=30, "PerUser";r=4;t=720, "Large";r=99;t=1'
    )
    assert app.statuses(3) == [200, 429, 429]
    # All or nothing: denied requests take no tokens from the other limits.
    assert (left(limiter, "PerUser"), left(limiter, "Large")) == (3, 98)


@with_routes
def test_stacked_limits_are_one_decision(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(Route("/", (limited("PerAddress"), limited("PerUser", "Large"))))
    assert app.ask().header("RateLimit") == (
        '"PerAddress";r=1;t=30, "PerUser";r=4;t=720, "Large";r=99;t=1'
    )
    assert app.statuses(3) == [200, 429, 429]
    assert (left(limiter, "PerUser"), left(limiter, "Large")) == (3, 98)


@with_defaults
def test_default_and_route_are_one_decision(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(
        Route("/", (limited("PerAddress"),)), Route("/other"), default=limited("Large", cost=2)
    )
    assert app.ask().header("RateLimit") == '"Large";r=98;t=1, "PerAddress";r=1;t=30'
    assert app.statuses(3) == [200, 429, 429]
    assert left(limiter, "Large") == 96
    assert app.ask("/other").header("RateLimit") == '"Large";r=94;t=1'


@with_routes
def test_bucket_of_default_and_route_is_charged_once_with_the_cost_of_the_route(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    app = serve(Route("/", (limited("Large", cost=5),)), default=limited("Large"))
    assert app.ask().header("RateLimit") == '"Large";r=95;t=1'
    assert left(limiter, "Large") == 95


def test_cost_may_be_a_number_or_follow_from_the_request(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    def cost(request: Request) -> Any:
        return int(request.query["rows"])

    app = serve(
        Route("/fixed", (limited("Large", cost=7),)), Route("/rows", (limited("Large", cost=cost),))
    )
    assert app.ask("/fixed").header("RateLimit") == '"Large";r=93;t=1'
    assert app.ask("/rows", query={"rows": 90}).header("RateLimit") == '"Large";r=3;t=1'
    assert app.ask("/rows", query={"rows": 5}).header("Retry-After") == "2"
    assert app.ask("/rows", query={"rows": 0}).status == 200
    assert left(limiter, "Large") == 3


@pytest.mark.parametrize("cost", [101, "7"])
def test_cost_that_cannot_be_allowed_is_a_bad_request(
    serve: Serve, limiter: penstock.Limiter, cost: Any
) -> None:
    answer = serve(Route("/", (limited("Large", cost=lambda _: cost),))).ask()
    assert answer.status == 400
    assert answer.limit_fields == {"cache-control": "no-store"}
    assert left(limiter, "Large") == 100


def test_only_the_named_methods_count(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(Route("/", (limited("Large", methods=["POST"]),)))
    assert app.ask().limit_fields == {}
    assert app.ask(method="POST").header("RateLimit") == '"Large";r=99;t=1'
    assert left(limiter, "Large") == 99


def test_get_includes_head(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(Route("/", (limited("PerAddress", methods=["get"]),)))
    assert app.ask(method="HEAD").status in {200, 405}
    assert app.ask().header("RateLimit") == '"PerAddress";r=0;t=30'
    assert app.ask(method="HEAD").status == 429
    assert app.ask(method="POST").limit_fields == {}


@only(lambda driver: driver.is_wsgi)
def test_method_in_small_letters_counts(serve: Serve) -> None:
    """Test clients send methods in capitals; some servers pass on any spelling."""
    app = serve(Route("/", (limited("PerAddress", methods=["POST"]),)))
    app.environ["REQUEST_METHOD"] = "post"
    assert app.statuses(3) == [200, 200, 429]


def test_exempt_request_does_not_count(serve: Serve, limiter: penstock.Limiter) -> None:
    def is_staff(request: Request) -> bool:
        return "X-Staff" in request.headers

    app = serve(Route("/", (limited("Large", exempt_when=is_staff),)))
    assert app.ask(headers={"X-Staff": "yes"}).limit_fields == {}
    assert left(limiter, "Large") == 100
    assert app.ask().header("RateLimit") == '"Large";r=99;t=1'


def break_or_answer(request: Request) -> Reply:
    """Raise, or respond with the status in the query."""
    if "status" not in request.query:
        raise ValueError
    return Reply(status=int(request.query["status"]))


@pytest.mark.parametrize("refund", [True, False])
def test_view_that_raises_is_refunded_on_request(
    serve: Serve, driver: type[Driver], limiter: penstock.Limiter, *, refund: bool
) -> None:
    stack = (limited("PerUser", "Large", refund_on_error=refund),)
    app = serve(Route("/", stack, break_or_answer))
    assert app.ask().status == 500
    refunded = int(refund and driver.sees_errors)
    assert (left(limiter, "PerUser"), left(limiter, "Large")) == (4 + refunded, 99 + refunded)
    # A response is not an exception, regardless of its status.
    assert app.statuses(1, query={"status": 404}) == [404]
    assert app.statuses(1, query={"status": 503}) == [503]
    assert (left(limiter, "PerUser"), left(limiter, "Large")) == (2 + refunded, 97 + refunded)


@with_routes
def test_default_is_refunded_too(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(
        Route("/", (limited("PerAddress"),), break_or_answer),
        default=limited("Large", refund_on_error=True),
    )
    assert app.ask().status == 500
    assert (left(limiter, "PerAddress"), left(limiter, "Large")) == (1, 100)


@pytest.mark.parametrize("stack", [limited("PerAddress", mode="shadow"), limited("Watched")])
def test_limit_in_shadow_mode_is_evaluated_and_never_denies(serve: Serve, stack: Any) -> None:
    app = serve(Route("/", (stack,)))
    name = stack[0][0]
    answers = [app.ask() for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert (answers[-1].header("RateLimit") or "").startswith(f'"{name}";r=0')
    assert answers[-1].header("Retry-After") is None


@pytest.mark.parametrize("stack", [limited("PerAddress", mode="shadow"), limited("Watched")])
def test_decision_in_shadow_mode_is_the_same_for_a_route_and_a_file(
    serve: Serve, stack: Any
) -> None:
    seen: list[tuple[bool, ...]] = []

    def view(request: Request) -> Reply:
        decision = request.decision
        assert decision is not None
        decision.raise_if_denied()
        seen.append((decision.allowed, bool(decision), decision.would_deny, decision.shadow_mode))
        return Reply()

    assert serve(Route("/", (stack,), view)).statuses(4) == [200] * 4
    assert (seen[0], seen[-1]) == ((True, True, False, True), (True, True, True, True))


@with_routes
def test_decision_over_several_limits_includes_those_in_shadow_mode(serve: Serve) -> None:
    seen: list[Any] = []

    def view(request: Request) -> Reply:
        seen.append(request.decision)
        return Reply()

    stack = (limited("Large"), limited("PerAddress", mode="shadow"))
    assert serve(Route("/", stack, view)).statuses(3) == [200] * 3
    assert [decision.would_deny for decision in seen] == [False, False, True]
    parts = seen[-1].parts
    assert [(part.name, part.allowed, part.would_deny) for part in parts] == [
        ("Large", True, False),
        ("PerAddress", True, True),
    ]


def test_limit_may_be_a_text_or_a_limit(serve: Serve) -> None:
    limit = penstock.Limit.parse("1/hour")
    app = serve(Route("/text", (limited("1/minute"),)), Route("/limit", (limited(limit),)))
    text = app.ask("/text").header("RateLimit-Policy") or ""
    assert text.endswith('";q=1;w=60')
    assert app.ask("/text").header("Retry-After") == "60"
    assert app.ask("/limit").status == 200
    assert app.ask("/limit").header("Retry-After") == "3600"


def test_text_may_hold_several_limits_and_windows(serve: Serve) -> None:
    app = serve(
        Route("/both", (limited("2/second; 9/hour, burst 3; 30/day"),)),
        Route("/window", (limited("2 per minute, fixed window"),)),
    )
    policy = app.ask("/both").header("RateLimit-Policy") or ""
    assert [item.partition(";")[2] for item in policy.split(", ")] == [
        "q=2;w=1",
        "q=3;w=1200",
        "q=30;w=86400",
    ]
    assert app.statuses(3, "/window") == [200, 200, 429]
    assert app.ask("/window").header("Retry-After") == "60"


@with_routes
def test_text_belongs_to_its_view(serve: Serve) -> None:
    app = serve(
        Route("/one", (limited("1/minute", "9/hour"),)), Route("/two", (limited("1/minute"),))
    )
    assert app.statuses(2, "/one") == [200, 429]
    assert app.statuses(2, "/two") == [200, 429]
    names = [item.partition(";")[0] for item in app.ask("/one").header("RateLimit").split(", ")]  # type: ignore[union-attr]
    assert names[1] == f'{names[0][:-1]}-2"'


# The limit of a throttle belongs to its class: two of one name are one limit.
@only(lambda driver: driver.has_routes and driver is not InRestFramework)
def test_equal_texts_with_different_ids_are_two_limits(serve: Serve) -> None:
    """A mail counts for its sender and, apart from that, for its recipient."""

    def sender(request: Request) -> str:
        return request.query["sender"]

    def recipient(request: Request) -> str:
        return request.query["recipient"]

    app = serve(Route("/", (limited("2/minute", id=sender), limited("2/minute", id=recipient))))

    def mail(sender: str, recipient: str) -> int:
        return app.ask(query={"sender": sender, "recipient": recipient}).status

    assert [mail(sender, "grace") for sender in ("ada", "joan", "linus")] == [200, 200, 429]
    assert [mail("grace", recipient) for recipient in ("ada", "joan", "linus")] == [200, 200, 429]


def test_reload_changes_the_limits_of_a_running_app(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    app = serve(Route("/", (limited("PerUser"),)), Route("/text", (limited("1/minute"),)))
    assert app.statuses(2, "/text") == [200, 429]
    assert app.ask().header("RateLimit-Policy") == '"PerUser";q=5;w=3600'
    limiter.reload(penstock.Limits({"PerUser": "1/hour"}))
    assert app.ask().header("RateLimit-Policy") == '"PerUser";q=1;w=3600'
    # A limit of the code survives a reload of the file.
    assert app.ask("/text").status == 429


def test_reload_without_a_limit_of_a_route_keeps_the_old_one(
    serve: Serve,
    limiter: penstock.Limiter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A limit must neither vanish nor answer each request of the route with an error."""
    app = serve(
        Route("/", (limited("PerAddress"),)),
        Route("/both", (limited("Large", "PerUser"),)),
        Route("/later", (limited("PerUser", id=shared("ada")),)),
    )
    assert app.statuses(1) == [200]
    limiter.reload(penstock.Limits({"Large": "90/minute"}))
    assert app.statuses(2) == [200, 429]
    assert app.ask("/both").header("RateLimit") == '"Large";r=89;t=1, "PerUser";r=4;t=720'
    assert app.statuses(6, "/later") == [200] * 5 + [429]
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert ["PerAddress" in message for message in errors] == [True, False]
    # A later reload that has the limit applies.
    limiter.reload(penstock.Limits({"Large": "90/minute", "PerAddress": "9/minute"}))
    assert app.ask(peer="198.51.100.7").header("RateLimit") == '"PerAddress";r=8;t=7'


def test_limit_that_a_reload_has_left_out_keeps_its_overrides(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    limits = penstock.Limits.parse(
        "Orders: {number: 6, burst: 1, count: 1, period: 1h, id: ipAddress}",
        overrides="- Orders: {burst: 3, count: 3, period: 1h, ids: [{id: 198.51.100.7}]}",
    )
    limiter = penstock.Limiter(limits, clock=clock)
    app = serve(Route("/", (limited("Orders"),)), limiter=limiter)
    assert app.statuses(1, peer="198.51.100.7") == [200]
    limiter.reload(penstock.Limits.parse("Mails: {burst: 9, count: 9, period: 1h}"))
    # The bucket is the same, too.
    assert app.statuses(3, peer="198.51.100.7") == [200, 200, 429]
    assert app.statuses(2, peer="198.51.100.8") == [200, 429]
    # Its number may be that of another limit now.
    limiter.reload(penstock.Limits.parse("Mails: {number: 6, burst: 9, count: 9, period: 1h}"))
    assert app.statuses(4, peer="198.51.100.7") == [200, 200, 200, 429]


def test_override_of_an_address_applies(serve: Serve, clock: penstock.ManualClock) -> None:
    limits = penstock.Limits.parse(
        "Orders: {burst: 1, count: 1, period: 1m, id: ipAddress}",
        overrides="""
- Orders: {burst: 3, count: 3, period: 1m, ids: [{id: 198.51.100.7}]}
- Orders: {algorithm: unlimited, ids: [{id: 2001:db8::/32}]}
""",
    )
    app = serve(Route("/", (limited("Orders"),)), limiter=penstock.Limiter(limits, clock=clock))
    assert app.statuses(2) == [200, 429]
    assert app.statuses(4, peer="198.51.100.7") == [200, 200, 200, 429]
    answers = [app.ask(peer="2001:db8::7") for _ in range(3)]
    assert [(answer.status, answer.limit_fields) for answer in answers] == [(200, {})] * 3


def test_switched_off_it_limits_nothing(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(Route("/", (limited("PerAddress"),)), enabled=False)
    answers = [app.ask() for _ in range(3)]
    assert [(answer.status, answer.limit_fields) for answer in answers] == [(200, {})] * 3
    assert decided(limiter) == 0


@with_routes
def test_limit_that_a_view_checks_itself_denies_like_any_other(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    def view(request: Request) -> Reply:
        limiter.spend("PerUser", "ada", 3).raise_if_denied()
        return hello(request)

    app = serve(Route("/", (limited("Large", refund_on_error=True),), view))
    assert app.ask().status == 200
    denied = app.ask()
    assert denied.status == 429
    assert denied.limit_fields == {
        "ratelimit-policy": '"Large";q=100;w=60, "PerUser";q=5;w=3600',
        "ratelimit": '"Large";r=98;t=1, "PerUser";r=2;t=720',
        "retry-after": "720",
        "cache-control": "no-store",
    }
