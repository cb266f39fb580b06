"""Reports of decisions: `on_decision`, the log of refusals, the count near a limit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from adapters.case import Route, limited
from guards import PEER

from penstock.identity import by_header, everyone

if TYPE_CHECKING:
    import pytest
    from adapters.case import Driver
    from adapters.conftest import Serve

    import penstock


def test_each_decision_is_reported_with_the_request_of_the_framework(
    serve: Serve, driver: type[Driver]
) -> None:
    seen: list[tuple[str | None, bool, int, str]] = []

    def note(decision: penstock.Decision, native: Any) -> None:
        path = driver.request(native).path
        seen.append((decision.name, decision.allowed, decision.remaining, path))

    app = serve(Route("/", (limited("PerAddress"),)), Route("/free"), on_decision=note)
    assert app.statuses(3) == [200, 200, 429]
    assert app.statuses(1, "/free") == [200]
    assert seen == [
        ("PerAddress", True, 1, "/"),
        ("PerAddress", True, 0, "/"),
        ("PerAddress", False, 0, "/"),
    ]


def test_observer_that_raises_does_not_fail_the_request(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def note(*_: object) -> None:
        raise ValueError

    app = serve(Route("/", (limited("PerAddress"),)), on_decision=note)
    assert app.statuses(3) == [200, 200, 429]
    (record,) = {each.msg for each in caplog.records if each.name == "penstock" and each.exc_info}
    assert record


def refusals(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return the records of refusals."""
    return [each for each in caplog.records if each.name == "penstock.refusals"]


def test_refusals_are_logged_with_their_facts(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.refusals")
    app = serve(Route("/", (limited("PerAddress"),)))
    assert app.statuses(3) == [200, 200, 429]
    (record,) = refusals(caplog)
    facts = [getattr(record, name) for name in ("status", "reason", "limit", "id", "retry_after")]
    assert facts == [429, "denied", "PerAddress", PEER, 30]
    assert (record.method, record.suppressed) == ("GET", 0)
    assert app.ask(peer=None).status == 400
    assert (refusals(caplog)[1].status, refusals(caplog)[1].reason) == (400, "request")


def test_log_of_refusals_is_limited_itself(
    serve: Serve, caplog: pytest.LogCaptureFixture, clock: penstock.ManualClock
) -> None:
    caplog.set_level(logging.INFO, "penstock.refusals")
    app = serve(Route("/", (limited("Large", id=everyone, cost=100),)))
    assert app.ask().status == 200
    app.statuses(103)
    assert len(refusals(caplog)) == 100
    clock.advance(0.1)
    app.ask()
    assert refusals(caplog)[-1].suppressed == 3


def test_client_input_is_truncated_in_logs(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.refusals")
    app = serve(Route("/", (limited("PerAddress", id=by_header("X-Account")),)))
    account = "a" * 50_000
    assert app.statuses(3, headers={"X-Account": account})[2] == 429
    (record,) = refusals(caplog)
    assert 64 <= len(record.id) < 300
    assert account.startswith(record.id)
    assert len(record.getMessage()) < 1000
