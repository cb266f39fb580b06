"""The steps of an outbound request, without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from services import Scripted, Server

import penstock
from penstock import ConfigError, ManualClock, RateLimited
from penstock.outbound.steps import Cooldowns, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import MakeLimiter

    Start = Callable[..., tuple[Server, Pace]]

SECOND = 1_000_000_000


@pytest.fixture
def start(make_limiter: MakeLimiter, clock: ManualClock) -> Start:
    """Starts a service with scripted responses, and makes the pace of its client."""

    def start(*answers: Any, **options: Any) -> tuple[Server, Pace]:
        settings: dict[str, Any] = {
            "limiter": make_limiter({"PartnerApi": "2 per 10 seconds", "Other": "1/second"}),
            "name": "PartnerApi",
            "messages": Scripted(),
        }
        return Server(clock, *answers), Pace(**{**settings, **options})

    return start


def test_hosts_are_paced_apart(start: Start) -> None:
    server, pace = start()
    for _ in range(2):
        server.drive(pace, host="one.example")
        server.drive(pace, host="two.example")
    assert server.sent == [0, 0, 0, 0]


@pytest.mark.parametrize("id", ["partner", 7, lambda request: f"{request.method}"], ids=type)
def test_id_may_be_constant_or_depend_on_the_request(start: Start, id: Any) -> None:
    server, pace = start(id=id)
    for host in ("one.example", "two.example", "three.example"):
        server.drive(pace, host=host)
    assert server.sent == [0, 0, 5]


def test_cost_may_depend_on_the_request(start: Start) -> None:
    server, pace = start(cost=lambda request: 2 if request.method == "POST" else 0)
    for method in ("POST", "GET", "GET", "POST"):
        server.drive(pace, method)
    assert server.sent == [0, 0, 0, 10]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_delays_further_requests_of_the_id(start: Start, status: int) -> None:
    server, pace = start((status, {"Retry-After": "20"}))
    assert server.drive(pace) == status
    assert server.drive(pace, host="other.example") == 200
    assert server.drive(pace) == 200
    assert server.sent == [0, 0, 20]


BUSY_3_S = (503, {"Retry-After": "3"})
BUSY_9_S = (429, {"Retry-After": "9"})
ASKED = {"Retry-After": "20"}
NONE_LEFT = {"RateLimit": '"default";r=0;t=20'}


@pytest.mark.parametrize(
    ("answers", "options", "statuses", "sent"),
    [
        # At the rate of the limit.
        ([], {}, [200] * 5, [0, 0, 5, 10, 15]),
        # No timeout waits as long as it takes.
        ([(429, {"Retry-After": "7200"})], {"timeout": None}, [429, 200], [0, 7200]),
        # Only a refusal has a `Retry-After` to wait for.
        ([(301, {"Retry-After": "20"})], {}, [301, 200], [0, 0]),
        # After a hold, requests are still paced.
        ([200, (429, {"Retry-After": "2"})], {}, [200, 429, 200, 200], [0, 0, 5, 10]),
        # A response without remaining quota delays further requests.
        ([(200, NONE_LEFT)], {}, [200, 200], [0, 20]),
        ([(404, NONE_LEFT)], {}, [404, 200], [0, 20]),
        ([(429, NONE_LEFT)], {}, [429, 200], [0, 20]),
        ([(200, {**NONE_LEFT, "Age": "120"})], {}, [200, 200], [0, 0]),
        # So does a response that asks for it, although only a refusal is retried.
        *(([(status, ASKED)], {}, [status, 200], [0, 20]) for status in (400, 403, 500, 599)),
        ([(403, ASKED)], {"retries": 3}, [403], [0]),
        ([(429, {"Retry-After": "9.5"})], {}, [429, 200], [0, 10]),
        # A refusal is retried after its `Retry-After`; the last one is returned.
        ([BUSY_3_S, BUSY_9_S], {"retries": 2}, [200], [0, 3, 12]),
        ([BUSY_3_S, BUSY_9_S, BUSY_9_S], {"retries": 2}, [429], [0, 3, 12]),
    ],
)
def test_requests_are_sent_at_their_times(
    start: Start,
    answers: list[Any],
    options: dict[str, Any],
    statuses: list[int],
    sent: list[float],
) -> None:
    server, pace = start(*answers, **options)
    assert server.repeat(pace, len(statuses)) == statuses
    assert server.sent == sent
    # A response that is retried is read before.
    assert server.verbs.count("read") == len(sent) - len(statuses)


def test_cooldown_beyond_the_timeout_is_refused_immediately_with_its_wait(
    start: Start, clock: ManualClock
) -> None:
    server, pace = start((429, {"Retry-After": "60"}), timeout="30s")
    server.drive(pace)
    clock.advance(20)
    with pytest.raises(RateLimited, match="40 s, too late") as caught:
        server.drive(pace)
    assert caught.value.decision.retry_after == 40
    assert not caught.value.decision
    clock.advance(10)
    assert server.drive(pace) == 200
    assert server.sent == [0, 60]


def test_request_whose_host_is_held_while_it_waits_returns_its_turn(
    start: Start, clock: ManualClock
) -> None:
    class Holding(Server):
        def acquire(self, pace: Pace, id: str, cost: int, timeout: float | None) -> None:
            super().acquire(pace, id, cost, timeout)
            if self.verbs.count("acquire") == 1:
                pace.cooldowns.hold(id, clock.now_ns() + 20 * SECOND)

    (_, pace), server = start(), Holding(clock)
    assert server.drive(pace) == 200
    assert server.verbs == ["acquire", "refund", "wait", "acquire", "send"]
    assert server.sent == [20]
    assert pace.limiter.check("PartnerApi", "api.example.com", 0).remaining == 1


def test_hold_is_never_shortened(start: Start, clock: ManualClock) -> None:
    answers = [(429, {"Retry-After": "20"}), (429, {"Retry-After": "5"})]
    server, pace = start(*answers)
    pace.cooldowns.hold("api.example.com", clock.now_ns() + 25 * SECOND)
    pace.cooldowns.hold("api.example.com", clock.now_ns() + 5 * SECOND)
    server.drive(pace)
    assert server.sent == [25]


def test_cooldowns_of_many_hosts_are_rarely_searched() -> None:
    class Counted:
        searches = 0

        def steady_ns(self) -> int:
            self.searches += 1
            return 0

    clock: Any = Counted()
    holds = Cooldowns(clock)
    for index in range(20_000):
        holds.hold(f"{index}.example", SECOND)
    assert holds.until_ns("0.example") == SECOND
    assert 1 <= clock.searches <= 5


def test_expired_cooldowns_are_forgotten(clock: ManualClock) -> None:
    holds = Cooldowns(clock)
    for number in range(2000):
        holds.hold(f"host-{number}", clock.now_ns() + SECOND)
        clock.advance(1)
    remembered = sum(holds.until_ns(f"host-{number}") > 0 for number in range(2000))
    assert remembered <= 1025
    assert holds.until_ns("host-1999") == clock.now_ns()


@pytest.mark.parametrize("value", [None, "0", "0.0", "soon", "-1", "Fri, 31 Dec 1999 23:59:59 GMT"])
@pytest.mark.parametrize("status", [429, 503])
def test_refusal_without_a_usable_retry_after_is_retried_with_backoff(
    start: Start, make_limiter: MakeLimiter, status: int, value: str | None
) -> None:
    limiter = make_limiter({"PartnerApi": "100/second"})
    refusal = status, {} if value is None else {"Retry-After": value}
    server, pace = start(refusal, refusal, refusal, retries=3, limiter=limiter)
    assert server.drive(pace) == 200
    waits = [after - before for before, after in zip(server.sent, server.sent[1:], strict=False)]
    assert len(waits) == 3
    for wait, most in zip(waits, [1, 2, 4], strict=True):
        assert most / 2 <= wait <= most


@pytest.mark.parametrize("value", [None, "0", "soon"])
def test_too_many_requests_pause_all_of_the_id(start: Start, value: str | None) -> None:
    headers = {} if value is None else {"Retry-After": value}
    # A 503 may concern a single resource.
    for status, least, most in ((429, 0.5, 1), (503, 0, 0)):
        server, pace = start((status, headers))
        assert server.repeat(pace, 2) == [status, 200]
        first, second = server.sent
        assert least <= second - first <= most


@pytest.mark.parametrize(
    ("method", "sent"), [("GET", 2), ("PUT", 2), ("DELETE", 2), ("POST", 1), ("PATCH", 1)]
)
def test_only_idempotent_requests_are_retried(start: Start, method: str, sent: int) -> None:
    server, pace = start((429, {"Retry-After": "1"}), retries=1)
    server.drive(pace, method)
    assert len(server.sent) == sent


def test_a_request_whose_body_cannot_be_sent_again_is_not_retried(start: Start) -> None:
    server, pace = start(BUSY_3_S, retries=1, messages=Scripted(is_replayable=False))
    server.drive(pace, "PUT")
    assert server.sent == [0]


def test_answer_is_returned_if_a_retry_would_pass_the_timeout(start: Start) -> None:
    server, pace = start((429, {"Retry-After": "31"}), retries=1)
    assert server.drive(pace) == 429
    assert "read" not in server.verbs
    # The turn would come too late, not the response of the service.
    server, pace = start((429, {"Retry-After": "1"}), retries=1, timeout=3)
    pace.limiter.spend("PartnerApi", "api.example.com")
    assert server.drive(pace) == 429
    assert len(server.sent) == 1


def test_failing_store_sends_requests_unpaced_and_is_logged_once(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server, pace = start()
    server.store_fails = True
    assert server.repeat(pace, 3) == [200] * 3
    server.store_fails = False
    server.drive(pace)
    assert server.sent == [0, 0, 0, 0]
    assert len(caplog.messages) == 2
    assert "out of reach" in caplog.messages[0]


def test_store_that_fails_may_raise(start: Start) -> None:
    server, pace = start(on_store_error="raise")
    server.store_fails = True
    with pytest.raises(penstock.StoreUnavailable):
        server.drive(pace)
    assert server.sent == []


async def coroutine() -> str:
    return "id"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"name": "PartnerAPI"}, "no limit is named 'PartnerAPI'; did you mean 'PartnerApi'?"),
        ({"timeout": "30"}, 'timeout: a duration must have a unit, found "30"; use 30s or 30ms'),
        (
            {"timeout": -1},
            "timeout must be finite and at least 0, or None to wait as long as necessary, found -1",
        ),
        ({"timeout": True}, "seconds or a timedelta, found bool True"),
        ({"retries": -1}, "retries must be a whole number from 0 to 100, found -1"),
        ({"retries": True}, "retries must be a whole number from 0 to 100, found True"),
        ({"cost": -1}, "cost must be a whole number from 1 or a callable, found -1"),
        ({"cost": 0}, "cost must be a whole number from 1 or a callable, found 0"),
        (
            {"timeout": float("inf")},
            "timeout must be finite and at least 0, or None to wait as long as",
        ),
        ({"cost": 3}, "PartnerApi: cost must be at most 2, found 3, which could never be allowed"),
        ({"cost": coroutine}, "cost must be an ordinary function, found <function coroutine"),
        ({"id": coroutine}, "id must be an ordinary function, found <function coroutine"),
        ({"id": ""}, "id must not be empty"),
        ({"id": 1.5}, "PartnerApi: "),
        ({"on_store_error": "deny"}, "on_store_error must be 'allow' or 'raise', found 'deny'"),
    ],
)
def test_invalid_options_are_refused(start: Start, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(**options)
    assert fault in str(caught.value)
