"""The WSGI middleware: exact by PEP 3333, whatever the application does."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

import penstock
from penstock.web.identity import per_route
from penstock.wsgi import PenstockMiddleware, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from conftest import MakeLimiter

Headers = list[tuple[str, str]]
ALLOWED = {
    "RateLimit-Policy": '"PerAddress";q=2;w=60',
    "RateLimit": '"PerAddress";r=1;t=30',
}


class Answer:
    """What a server got from an application."""

    def __init__(self, app: Any, **environ: object) -> None:
        self.environ: dict[str, Any] = {
            "REMOTE_ADDR": "203.0.113.7",
            "QUERY_STRING": "",
            **environ,
        }
        setup_testing_defaults(self.environ)
        self.status = ""
        self.headers: Headers = []
        self.written: list[bytes] = []
        self.raised: BaseException | None = None
        body = app(self.environ, self._start)
        try:
            self.body = b"".join(body)
        except ValueError as error:
            self.raised = error
        finally:
            if hasattr(body, "close"):
                body.close()

    def _start(
        self, status: str, headers: Headers, exc_info: object = None
    ) -> Callable[[bytes], object]:
        assert exc_info is not None or not self.status
        self.status, self.headers = status, headers
        return self.written.append


def plain(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer with a greeting."""
    start_response(environ.get("status", "200 OK"), [("Content-Type", "text/plain")])
    return [b"hello"]


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
    return make_limiter({"PerAddress": "2/minute", "PerUser": "5/hour"})


def test_served_response_has_the_headers_and_the_decision(limiter: penstock.Limiter) -> None:
    answer = Answer(PenstockMiddleware(plain, limiter, limit="PerAddress"))
    assert answer.status == "200 OK"
    assert dict(answer.headers) == {"Content-Type": "text/plain", **ALLOWED}
    assert answer.body == b"hello"
    assert answer.environ["penstock.decision"].remaining == 1


def test_refused_request_never_reaches_the_application(limiter: penstock.Limiter) -> None:
    calls: list[object] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        calls.append(environ)
        return plain(environ, start_response)

    limited = PenstockMiddleware(app, limiter, limit="PerAddress")
    for _ in range(2):
        Answer(limited)
    answer = Answer(limited)
    assert len(calls) == 2
    assert answer.status == "429 Too Many Requests"
    assert dict(answer.headers) == {
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(answer.body)),
        "RateLimit-Policy": '"PerAddress";q=2;w=60',
        "RateLimit": '"PerAddress";r=0;t=30',
        "Retry-After": "30",
        "Cache-Control": "no-store",
    }
    assert json.loads(answer.body)["violated-policies"] == ["PerAddress"]


def test_several_limits_are_one_decision(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit=["PerAddress", "PerUser"], id="everyone")
    assert (
        dict(Answer(limited).headers)["RateLimit"] == '"PerAddress";r=1;t=30, "PerUser";r=4;t=720'
    )


def test_text_is_a_limit_called_default(clock: penstock.ManualClock) -> None:
    answer = Answer(PenstockMiddleware(plain, limit="5/minute", clock=clock))
    assert dict(answer.headers)["RateLimit-Policy"] == '"default";q=5;w=60'


def test_client_behind_a_proxy_is_counted_by_its_own_address(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(
        plain, limiter, limit="PerAddress", trusted_proxies=["203.0.113.7"]
    )
    for _ in range(2):
        Answer(limited, HTTP_X_FORWARDED_FOR="spoofed, 198.51.100.1")
    assert Answer(limited, HTTP_X_FORWARDED_FOR="other, 198.51.100.1").status[:3] == "429"
    assert Answer(limited, HTTP_X_FORWARDED_FOR="198.51.100.2").status[:3] == "200"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deduct_when": lambda _: True},
        {"refund_on_error": True},
        {"on_denied": lambda _: plain},
    ],
)
def test_server_and_application_see_nothing_but_wsgi(
    limiter: penstock.Limiter, options: dict[str, Any]
) -> None:
    limited = validator(
        PenstockMiddleware(validator(plain), limiter, limit="PerAddress", **options)
    )
    assert [Answer(limited).status[:3] for _ in range(2)] == ["200", "200"]
    refused = "200" if "on_denied" in options else "429"
    assert Answer(limited).status[:3] == refused
    assert Answer(limited, REQUEST_METHOD="HEAD").body == b"" or "on_denied" in options


def test_headers_of_the_application_are_left_as_they_are(limiter: penstock.Limiter) -> None:
    kept: Headers = [("Content-Type", "text/plain")]

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", kept)
        return []

    for _ in range(2):
        Answer(PenstockMiddleware(app, limiter, limit="PerUser"))
    assert kept == [("Content-Type", "text/plain")]


def test_iterable_of_the_application_is_handed_on_and_closed(limiter: penstock.Limiter) -> None:
    class Body:
        closed = False

        def __iter__(self) -> Iterator[bytes]:
            yield b"a"
            yield b"b"

        def close(self) -> None:
            self.closed = True

    for options in ({}, {"refund_on_error": True}, {"deduct_when": lambda _: False}):
        body = Body()

        def app(_: dict[str, Any], start_response: Any, body: Body = body) -> Iterable[bytes]:
            start_response("200 OK", [])
            return body

        answer = Answer(PenstockMiddleware(app, limiter, limit="PerUser", **options))
        assert answer.body == b"ab"
        assert body.closed


def test_body_without_close_is_no_trouble(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerUser", refund_on_error=True)
    assert Answer(limited).body == b"hello"


def test_generator_that_starts_late_has_the_headers(limiter: penstock.Limiter) -> None:
    def app(_: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"late"

    answer = Answer(PenstockMiddleware(app, limiter, limit="PerAddress"))
    assert dict(answer.headers) == ALLOWED


def test_write_of_the_server_is_handed_to_the_application(limiter: penstock.Limiter) -> None:
    def app(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])(b"written")
        return []

    assert Answer(PenstockMiddleware(app, limiter, limit="PerAddress")).written == [b"written"]


@pytest.mark.parametrize("options", [{}, {"deduct_when": lambda _: True}])
def test_application_may_start_again_to_tell_of_an_error(
    limiter: penstock.Limiter, options: dict[str, Any]
) -> None:
    def app(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("X-Was", "fine")])
        try:
            raise ValueError  # noqa: TRY301  as applications do
        except ValueError:
            start_response("500 Internal Server Error", [("X-Was", "not")], sys.exc_info())
        return [b"sorry"]

    answer = Answer(PenstockMiddleware(app, limiter, limit="PerAddress", **options))
    assert answer.status == "500 Internal Server Error"
    assert dict(answer.headers) == {"X-Was": "not", **ALLOWED}
    # It was counted once.
    assert limiter.check("PerAddress", "203.0.113.7", 0).remaining == 1


def test_deduct_when_sees_the_head_of_the_response(limiter: penstock.Limiter) -> None:
    seen: list[Response] = []

    def failed(response: Response) -> bool:
        seen.append(response)
        return response.status_code == 401

    limited = PenstockMiddleware(plain, limiter, limit="PerAddress", deduct_when=failed)
    fine = Answer(limited)
    # It was only checked: this is what a counted request would have left.
    assert dict(fine.headers)["RateLimit"] == '"PerAddress";r=1;t=30'
    assert limiter.check("PerAddress", "203.0.113.7", 0).remaining == 2
    wrong = Answer(limited, status="401 Unauthorized")
    assert dict(wrong.headers)["RateLimit"] == '"PerAddress";r=1;t=30'
    assert limiter.check("PerAddress", "203.0.113.7", 0).remaining == 1
    assert seen[1] == Response(401, [("Content-Type", "text/plain")])


def raises_at_once(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    raise ValueError


def raises_on_the_way(_: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [])
    yield b"some"
    raise ValueError


@pytest.mark.parametrize("refund", [False, True])
def test_request_whose_application_raises_is_given_back_if_so_said(
    limiter: penstock.Limiter, *, refund: bool
) -> None:
    for app in (raises_at_once, raises_on_the_way):
        limiter.reset("PerAddress", "203.0.113.7")
        limited = PenstockMiddleware(app, limiter, limit="PerAddress", refund_on_error=refund)
        try:
            raised = Answer(limited).raised
        except ValueError as error:
            raised = error
        assert isinstance(raised, ValueError)
        left = limiter.check("PerAddress", "203.0.113.7", 0).remaining
        assert left == (2 if refund else 1)


def test_refusal_can_be_the_applications_own(limiter: penstock.Limiter) -> None:
    def say(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("420 Enhance Your Calm", [("Content-Type", "text/plain")])
        return [b"calm"]

    limited = PenstockMiddleware(plain, limiter, limit="PerAddress", on_denied=lambda _: say)
    for _ in range(2):
        Answer(limited)
    answer = Answer(limited)
    assert (answer.status, answer.body) == ("420 Enhance Your Calm", b"calm")
    assert dict(answer.headers)["Retry-After"] == "30"


def test_refusal_can_be_a_text_or_the_usual_one(limiter: penstock.Limiter) -> None:
    answers = iter(["too many", None])
    limited = PenstockMiddleware(
        plain, limiter, limit="PerAddress", on_denied=lambda _: next(answers)
    )
    for _ in range(2):
        Answer(limited)
    text, usual = Answer(limited), Answer(limited)
    assert (text.status, text.body) == ("429 Too Many Requests", b"too many")
    assert dict(text.headers)["Content-Type"] == "text/plain; charset=utf-8"
    assert dict(usual.headers)["Content-Type"] == "application/problem+json"


def test_refusal_that_is_no_answer_is_an_error(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerAddress", on_denied=lambda _: 429)
    for _ in range(2):
        Answer(limited)
    with pytest.raises(penstock.ConfigError, match="on_denied must return"):
        Answer(limited)


def test_request_without_an_address_is_refused(limiter: penstock.Limiter) -> None:
    answer = Answer(PenstockMiddleware(plain, limiter, limit="PerAddress"), REMOTE_ADDR="")
    assert answer.status == "400 Bad Request"


def test_failing_store_can_refuse(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerAddress", on_store_error="deny")
    limiter.close()
    assert Answer(limited).status == "503 Service Unavailable"


def test_switched_off_it_is_not_there(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerAddress", enabled=False)
    assert [dict(Answer(limited).headers) for _ in range(3)] == [{"Content-Type": "text/plain"}] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "Unknown"}, "no limit is named 'Unknown'"),
        ({"limit": "PerAddress", "id": per_route()}, "needs the route"),
        ({"limit": "PerAddress", "key": "ip"}, "no option 'key'"),
        ({"limit": []}, "at least one"),
    ],
)
def test_mistake_is_an_error_at_start(
    limiter: penstock.Limiter, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(penstock.ConfigError, match=message):
        PenstockMiddleware(plain, limiter, **options)
