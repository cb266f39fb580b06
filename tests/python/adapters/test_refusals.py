"""Responses to clients: header fields, bodies, and behavior when the store fails."""

from __future__ import annotations

import json
import re
from gettext import NullTranslations
from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Reply, Request, Route, limited
from adapters.drivers import Wsgi, only, with_refusals
from guards import PEER

import penstock
from penstock.headers import STYLES

if TYPE_CHECKING:
    from adapters.case import Driver
    from adapters.conftest import Serve

    from penstock.adapter import Outcome

LIMITED = Route("/", (limited("PerAddress"),))
ORDERS = Route("/", (limited("Orders"),))


def test_styles_may_be_combined_or_left_out(serve: Serve) -> None:
    both = serve(LIMITED, headers=["ietf", "sharkey"]).ask()
    assert set(both.limit_fields) == {
        "ratelimit-policy",
        "ratelimit",
        "x-ratelimit-remaining",
        "x-ratelimit-clear",
    }
    app = serve(Route("/none", LIMITED.stack), headers=None)
    assert app.ask("/none").limit_fields == {}
    assert set(app.ask("/none").limit_fields) == {"retry-after", "cache-control"}


def test_scripts_of_other_origins_may_read_the_fields(serve: Serve) -> None:
    def view(_: Request) -> Reply:
        return Reply(headers={"Access-Control-Expose-Headers": "X-Total"})

    app = serve(Route("/", LIMITED.stack, view), expose_headers=True)
    ours = "RateLimit-Policy, RateLimit, Retry-After"
    assert app.ask().header("Access-Control-Expose-Headers") == f"X-Total, {ours}"
    app.ask()
    assert app.ask().header("Access-Control-Expose-Headers") == ours


@only(lambda driver: driver is Wsgi)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("options", "spread"), [({"block_for": "1h"}, 0.0), ({}, 1.0), ({"cost": 2}, 0.0)]
)
def test_no_field_of_a_refusal_names_a_time_before_retry_after(
    serve: Serve, style: str, options: dict[str, Any], spread: float
) -> None:
    app = serve(Route("/", (limited("PerAddress", **options),)), headers=style, spread=spread)
    refused = denied(app)
    fields = " ".join(
        f"{name}={value}"
        for name, value in refused.headers
        if "ratelimit" in name.lower() and "policy" not in name.lower()
    )
    times = re.findall(r"(?:;t|reset|Reset|Clear)=([0-9.]+)", fields)
    assert times
    now = 1_000_000_000 if style == "github" else 0
    assert all(float(time) - now > int(refused.header("Retry-After")) - 1 for time in times)
    left = re.findall(r"(?:;r|emaining)=([0-9]+)", fields)
    assert [int(number) < options.get("cost", 1) for number in left] == [True]


def test_limits_documentation_is_linked(serve: Serve) -> None:
    app = serve(ORDERS)
    answers = [app.ask() for _ in range(3)]
    links = [answer.header("Link") for answer in answers]
    assert links == [None, None, '<https://example.org/limits>; rel="help"']


def denied(app: Driver, accept: str | None = None) -> Any:
    """Return the first refusal."""
    headers = {} if accept is None else {"Accept": accept}
    return next(a for a in (app.ask(headers=headers) for _ in range(9)) if a.status != 200)


@with_refusals
@pytest.mark.parametrize(
    ("accept", "content_type", "start"),
    [
        (None, "application/problem+json", b"{"),
        ("application/json", "application/problem+json", b"{"),
        ("text/html,*/*;q=0.8", "text/html; charset=utf-8", b"<!doctype html>"),
        ("text/plain", "text/plain; charset=utf-8", b"Too many"),
    ],
)
def test_body_has_the_form_that_the_client_accepts(
    serve: Serve, accept: str | None, content_type: str, start: bytes
) -> None:
    answer = denied(serve(ORDERS), accept)
    assert answer.header("Content-Type") == content_type
    assert answer.header("Content-Length") in (None, str(len(answer.body)))
    assert answer.body.lower().startswith(start.lower())


@with_refusals
@pytest.mark.parametrize("accept", ["application/json", "text/html", "text/plain"])
def test_body_says_that_too_many_requests_are_in_flight(
    serve: Serve, clock: penstock.ManualClock, accept: str
) -> None:
    limiter = penstock.Limiter({"Exports": "1 in flight", "Rate": "1/minute"}, clock=clock)
    app = serve(Route("/", (limited("Exports", "Rate"),)), limiter=limiter)
    held = limiter.reserve("Exports", PEER)
    refused = app.ask(headers={"Accept": accept})
    detail = (
        b"Too many requests at the same time. The limit is 1. Try again when one of them has ended."
    )
    assert detail in refused.body
    # A rate that denies, too, says when to try again.
    limiter.spend("Rate", PEER)
    refused = app.ask(headers={"Accept": accept})
    assert b"at the same time" not in refused.body
    assert b"at most 1 per minute. Try again at " in refused.body
    assert refused.header("Retry-After") == "60"
    held.release()


@with_refusals
def test_body_of_a_refusal_says_what_it_depends_on(serve: Serve) -> None:
    answer = denied(serve(ORDERS))
    assert "accept" in (answer.header("Vary") or "").lower().replace(" ", "").split(",")
    assert answer.header("Content-Language") == "en"
    own = denied(serve(ORDERS, on_denied=lambda _: "slowly"))
    assert own.header("Content-Language") is None


class InLanguage(NullTranslations):
    """Translations selected by the request, like those of a framework."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._language = language

    def get_language(self) -> str:
        """Return the language code of the request."""
        return self._language

    def gettext(self, message: str) -> str:
        """Translate into languages that begin with `de`."""
        return message.upper() if self._language.startswith("de") else message


@with_refusals
@pytest.mark.parametrize(
    ("code", "sent"), [("de-at", "de-at"), ("de\r\nX-Mine: 1", None), ("fr", "en")]
)
def test_translated_body_has_its_language(serve: Serve, code: str, sent: str | None) -> None:
    answer = denied(serve(ORDERS, translations=InLanguage(code)))
    assert "accept-language" in (answer.header("Vary") or "").lower()
    assert (answer.header("Content-Language"), answer.header("X-Mine")) == (sent, None)


@only(lambda driver: driver.has_routes and driver.writes_refusals)
@pytest.mark.parametrize(
    "watching",
    [limited("Watched"), limited("PerUser", mode="shadow", cost=5)],
    ids=["file", "route"],
)
def test_problem_document_names_no_limit_in_shadow_mode(serve: Serve, watching: Any) -> None:
    app = serve(Route("/", (watching, limited("PerAddress"))))
    assert json.loads(denied(app).body)["violated-policies"] == ["PerAddress"]


@pytest.mark.parametrize(
    "id", ["/ " * 5000, "* " * 5000, "user:" * 5000, "\x1b[31m", "\u202e", "\ud800"]
)
def test_refusal_of_an_odd_id_is_a_refusal(serve: Serve, id: str) -> None:
    app = serve(Route("/", (limited("PerAddress", id=lambda _: id),)))
    expected = [400] * 3 if id == "\ud800" else [200, 200, 429]
    assert app.statuses(3) == expected


def test_refusal_of_a_head_request_has_no_body(serve: Serve) -> None:
    app = serve(LIMITED)
    app.statuses(2)
    answer = app.ask(method="HEAD")
    assert (answer.status, answer.body) == (429, b"")
    assert answer.header("Retry-After") == "30"


def test_fields_of_the_view_stay(serve: Serve) -> None:
    def view(_: Request) -> Reply:
        return Reply("made", 201, {"X-Mine": "1", "Link": "<https://example.org>"})

    answer = serve(Route("/", LIMITED.stack, view)).ask()
    assert (answer.status, answer.body) == (201, b"made")
    assert (answer.header("X-Mine"), answer.header("Link")) == ("1", "<https://example.org>")
    assert answer.header("RateLimit") == '"PerAddress";r=1;t=30'


def test_field_with_one_value_replaces_that_of_the_view(serve: Serve) -> None:
    def view(_: Request) -> Reply:
        of_upstream = {"X-RateLimit-Remaining": "4999", "x-ratelimit-limit": "5000"}
        return Reply(headers={**of_upstream, "Retry-After": "7"})

    answer = serve(Route("/", LIMITED.stack, view), headers="github").ask()
    assert (answer.header("X-RateLimit-Remaining"), answer.header("X-RateLimit-Limit")) == (
        "1",
        "2",
    )
    assert answer.header("Retry-After") == "7"


@with_refusals
def test_refusal_has_each_field_with_one_value_once(serve: Serve, driver: type[Driver]) -> None:
    def answer(_: Outcome) -> Any:
        response = driver.response(418, "no")
        response.headers["Retry-After"] = "60"
        response.headers["Cache-Control"] = "max-age=60"
        return response

    app = serve(LIMITED, on_denied=answer)
    answers = [app.ask() for _ in range(3)]
    assert answers[-1].status == 418
    assert answers[-1].header("Retry-After") == "30"
    assert answers[-1].header("Cache-Control") == "no-store"


@with_refusals
def test_on_denied_may_answer_with_a_document(serve: Serve) -> None:
    app = serve(LIMITED, on_denied=lambda outcome: {"wait": outcome.retry_after})
    app.statuses(2)
    answer = app.ask()
    assert (answer.status, json.loads(answer.body)) == (429, {"wait": 30})
    assert (answer.header("Content-Type") or "").startswith("application/json")


@with_refusals
def test_on_denied_may_answer_with_a_text(serve: Serve) -> None:
    def refuse(outcome: Outcome) -> str:
        return f"wait {outcome.retry_after} s"

    answer = denied(serve(LIMITED, on_denied=refuse))
    assert (answer.status, answer.body) == (429, b"wait 30 s")
    assert answer.header("Content-Type").startswith("text/")
    assert (answer.header("Retry-After"), answer.header("Cache-Control")) == ("30", "no-store")


@with_refusals
def test_on_denied_may_answer_with_a_response(serve: Serve, driver: type[Driver]) -> None:
    app = serve(LIMITED, on_denied=lambda _: driver.response(420, "calm"))
    answer = denied(app)
    assert (answer.status, answer.body) == (420, b"calm")
    assert answer.header("Retry-After") == "30"


@with_refusals
def test_on_denied_that_answers_as_if_served_is_logged_once(
    serve: Serve, driver: type[Driver], caplog: pytest.LogCaptureFixture
) -> None:
    # As `jsonify(error="slow down")` in Flask.
    app = serve(LIMITED, on_denied=lambda _: driver.response(200, "calm"))
    assert [app.ask().body == b"calm" for _ in range(4)] == [False, False, True, True]
    has_status = hasattr(driver.response(200, "calm"), "status_code")
    assert caplog.text.count("P008: on_denied") == has_status


@with_refusals
def test_on_denied_may_leave_the_usual_answer(serve: Serve) -> None:
    answer = denied(serve(LIMITED, on_denied=lambda _: None))
    assert answer.header("Content-Type") == "application/problem+json"


@with_refusals
def test_on_denied_that_returns_no_answer_is_an_error(serve: Serve) -> None:
    assert denied(serve(LIMITED, on_denied=lambda _: object())).status == 500


# Failures of the store


def fail(limiter: penstock.Limiter, app: Driver) -> None:
    """Make the store fail after the app has served a request of another client."""
    app.ask(peer="198.51.100.1")
    limiter.close()


@pytest.mark.parametrize(("policy", "status"), [("allow", 200), ("deny", 503), ("raise", 500)])
def test_failing_store_is_answered_by_the_policy(
    serve: Serve, limiter: penstock.Limiter, policy: str, status: int
) -> None:
    app = serve(LIMITED, on_store_error=policy)
    assert app.ask().header("RateLimit") == '"PerAddress";r=1;t=30'
    limiter.close()
    answer = app.ask()
    assert answer.status == status
    assert answer.limit_fields == ({"cache-control": "no-store"} if status == 503 else {})


def test_failing_store_may_be_replaced_by_the_process(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    route = Route("/", (limited("PerUser"),))
    app = serve(route, on_store_error="local", expected_processes=5)
    fail(limiter, app)
    assert app.statuses(2) == [200, 429]


@with_refusals
def test_policy_may_differ_by_limit(serve: Serve, limiter: penstock.Limiter) -> None:
    routes = LIMITED, Route("/user", (limited("PerUser"),))
    app = serve(*routes, on_store_error={"PerUser": "deny"})
    app.ask("/user")
    fail(limiter, app)
    assert app.ask().status == 200
    refused = app.ask("/user")
    assert (refused.status, json.loads(refused.body)["status"]) == (503, 503)


def test_shadow_limit_never_refuses_when_the_store_fails(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    app = serve(Route("/", (limited("PerAddress", mode="shadow"),)), on_store_error="deny")
    fail(limiter, app)
    assert app.ask().status == 200


@pytest.mark.parametrize("options", [{"deduct_when": bool}, {"refund_on_error": True}])
@pytest.mark.parametrize("broken", [True, False])
def test_store_may_fail_while_a_view_runs(
    serve: Serve, limiter: penstock.Limiter, options: dict[str, Any], *, broken: bool
) -> None:
    def view(request: Request) -> Reply:
        limiter.close()
        if broken:
            raise LookupError
        return Reply()

    app = serve(Route("/", (limited("PerAddress", **options),), view))
    assert app.ask().status == (500 if broken else 200)
