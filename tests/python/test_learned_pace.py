"""The pace `"auto"`, which is learned from the responses of a service."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from services import Scripted, Server

from penstock import Limit, Limiter, ManualClock, RateLimited
from penstock.outbound.steps import Pace

if TYPE_CHECKING:
    from conftest import MakeLimiter


class Limited(Server):
    """A service that refuses requests above its limit, without further information."""

    def __init__(self, clock: ManualClock, limit: str) -> None:
        super().__init__(clock)
        self.limiter = Limiter({"own": limit}, clock=clock)
        self.statuses: Counter[int] = Counter()

    def send(self, pace: Pace) -> Any:
        status = 200 if self.limiter.spend("own", "all") else 429
        self.statuses[status] += 1
        self.answers = [status]
        return super().send(pace)


@pytest.fixture
def auto(make_limiter: MakeLimiter) -> Pace:
    """A pace without a limit except the learned one."""
    limiter = make_limiter({"PartnerApi": "1000/second"})
    return Pace(limiter, "PartnerApi", Scripted(), pace="auto", timeout=None)


@pytest.mark.parametrize(
    ("limit", "per_second"), [("5/second, burst 1", 5), ("50/second", 50), ("60/minute", 1)]
)
def test_limit_that_a_service_does_not_state_is_found(
    auto: Pace, clock: ManualClock, limit: str, per_second: float
) -> None:
    server = Limited(clock, limit)
    server.repeat(auto, 1000)
    began, server.statuses = clock.now(), Counter()
    server.repeat(auto, 1000)
    accepted = server.statuses[200] / (clock.now() - began)
    assert 0.6 * per_second <= accepted <= 1.01 * per_second
    # Without a learned pace, nearly every request would be refused.
    assert server.statuses[429] <= 60


def test_fixed_windows_of_a_service_are_found(
    auto: Pace, make_limiter: MakeLimiter, clock: ManualClock
) -> None:
    server = Limited(clock, "100/second")
    server.limiter = make_limiter({"own": Limit.fixed_window(count=60, period="1m")})
    began = clock.now()
    server.repeat(auto, 3000)
    assert server.statuses[200] / (clock.now() - began) >= 0.5
    assert server.statuses[429] <= 600


def test_requests_are_not_delayed_before_the_first_refusal(auto: Pace, clock: ManualClock) -> None:
    server, began = Limited(clock, "500/second"), clock.now()
    server.repeat(auto, 500)
    assert clock.now() == began


def test_refusal_halves_the_rate_and_responses_raise_it_again(
    auto: Pace, clock: ManualClock
) -> None:
    server = Server(clock, *[200] * 7, 429)
    server.repeat(auto, 8)
    # Eight requests in one second were too many: four a second, then slowly more.
    server.repeat(auto, 101)
    gaps = [after - before for before, after in zip(server.sent[7:], server.sent[8:], strict=False)]
    assert gaps[0] == pytest.approx(1 / 4)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[50] == pytest.approx(1 / 8, rel=0.03)


def test_refusals_of_requests_that_were_sent_together_count_once(
    auto: Pace, clock: ManualClock
) -> None:
    request = SimpleNamespace(method="GET", url=SimpleNamespace(host="api.example.com"))
    refused = SimpleNamespace(status_code=429, headers={})
    started = [auto.steps(request) for _ in range(4)]
    for steps in started:
        assert next(steps)[0] == "acquire"
        assert steps.send(None) == ("send",)
    for steps in started:
        with pytest.raises(StopIteration):
            steps.send(refused)
    server = Server(clock)
    server.drive(auto)
    assert server.sent == [pytest.approx(1 / 2)]


def test_outage_is_probed_every_minute_and_soon_forgotten(auto: Pace, clock: ManualClock) -> None:
    server = Server(clock, *[200] * 9, *[503] * 60)
    server.repeat(auto, 69)
    assert server.sent[68] - server.sent[67] == pytest.approx(60)
    recovered = clock.now()
    server.repeat(auto, 200)
    assert clock.now() - recovered < 200


def test_stated_quota_is_spread_when_less_than_half_remains(auto: Pace, clock: ManualClock) -> None:
    headers = [
        {"RateLimit-Policy": '"hour";q=10;w=60', "RateLimit": f'"hour";r={left};t=40'}
        for left in (6, 5, 4, 2)
    ]
    server = Server(clock, *[(200, each) for each in headers])
    server.repeat(auto, 6)
    assert server.sent == [0, 0, 0, 0, 10, 30]


def test_stated_limits_of_a_service_are_not_estimated(auto: Pace, clock: ManualClock) -> None:
    exhausted = (429, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "20"})
    renewed = (200, {"X-RateLimit-Limit": "9", "X-RateLimit-Remaining": "8"})
    server = Server(clock, exhausted, renewed)
    server.repeat(auto, 4)
    assert server.sent == [0, 20, 20, 20]


def test_turn_beyond_the_timeout_is_refused_and_not_taken(
    make_limiter: MakeLimiter, clock: ManualClock
) -> None:
    limiter = make_limiter({"PartnerApi": "1000/second"})
    pace = Pace(limiter, "PartnerApi", Scripted(), pace="auto", timeout=1)
    server = Server(clock, 429)
    server.drive(pace)
    with pytest.raises(RateLimited) as caught:
        server.drive(pace)
    assert caught.value.decision.retry_after == 2
    clock.advance(1)
    server.drive(pace)
    assert server.sent == [0, 2]


def test_hosts_are_learned_apart(auto: Pace, clock: ManualClock) -> None:
    server = Server(clock, 429)
    server.drive(auto)
    for number in range(1100):
        server.drive(auto, host=f"{number}.example.com")
    assert clock.now() == server.sent[0] + 1_000_000_000


def test_learned_pace_never_exceeds_the_limit(
    make_limiter: MakeLimiter, clock: ManualClock
) -> None:
    limiter = make_limiter({"PartnerApi": "2 per 10 seconds"})
    pace = Pace(limiter, "PartnerApi", Scripted(), pace="auto")
    server = Server(clock)
    server.repeat(pace, 4)
    assert server.sent == [0, 0, 5, 10]
