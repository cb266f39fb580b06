"""The adapter for requests, with an inner adapter that answers as scripted."""

from __future__ import annotations

from typing import Any

import pytest
import requests
import requests.adapters

import penstock
from penstock.requests import Adapter, TurnTimeout


class Service(requests.adapters.BaseAdapter):
    """Answers with scripted statuses and headers, then with 200."""

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.sent = 0

    def send(self, request: Any, **_: Any) -> requests.Response:  # type: ignore[override]
        self.sent += 1
        response = requests.Response()
        response.status_code, headers = self.answers.pop(0) if self.answers else (200, {})
        response.headers.update(headers)
        response.request, response.url = request, request.url
        response._content = b"orders"
        return response

    def close(self) -> None:
        """Nothing to close."""


def session(service: Service, clock: penstock.ManualClock, **options: Any) -> requests.Session:
    """Return a session whose requests are paced."""
    limiter = penstock.Limiter({"PartnerApi": "2 per 10 seconds"}, clock=clock)
    made = requests.Session()
    made.mount("https://", Adapter(limiter, "PartnerApi", adapter=service, **options))
    return made


def test_request_beyond_the_timeout_is_not_sent(clock: penstock.ManualClock) -> None:
    service = Service()
    client = session(service, clock, timeout=0)
    assert [client.get("https://api.example.com/x").text for _ in range(2)] == ["orders"] * 2
    with pytest.raises(requests.exceptions.ConnectTimeout) as caught:
        client.get("https://api.example.com/y")
    assert isinstance(caught.value, TurnTimeout)
    assert isinstance(caught.value, penstock.RateLimited)
    assert caught.value.decision.retry_after == 5
    assert service.sent == 2
    # Hosts are paced separately.
    assert client.get("https://other.example.com").status_code == 200


def test_retry_after_holds_further_requests_back(clock: penstock.ManualClock) -> None:
    service = Service((429, {"Retry-After": "60"}))
    client = session(service, clock)
    assert client.get("https://api.example.com").status_code == 429
    with pytest.raises(TurnTimeout):
        client.get("https://api.example.com")
    clock.advance(60)
    assert client.get("https://api.example.com").status_code == 200


def test_only_a_body_that_can_be_sent_again_is_repeated(clock: penstock.ManualClock) -> None:
    busy = (503, {"Retry-After": "0"})
    service = Service(busy)
    assert session(service, clock, retries=1).put("https://a.example", b"x").status_code == 200
    assert service.sent == 2
    service = Service(busy)
    stream = iter([b"x"])
    assert session(service, clock, retries=1).put("https://a.example", stream).status_code == 503
    assert service.sent == 1


def test_mistake_is_found_at_once(clock: penstock.ManualClock) -> None:
    with pytest.raises(penstock.ConfigError):
        session(Service(), clock, retries=-1)
