"""The WSGI middleware conforms to PEP 3333 with any application."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import flask
import pytest
from guards import PEER, left
from hello import hello_wsgi
from werkzeug.test import Client

import penstock
from penstock.flask import Penstock
from penstock.identity import shared
from penstock.wsgi import PenstockMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


Headers = list[tuple[str, str]]
ALLOWED = {
    "RateLimit-Policy": '"PerAddress";q=2;w=60',
    "RateLimit": '"PerAddress";r=1;t=30',
}


class Answer:
    """The response that a server receives from an application."""

    def __init__(self, app: Any, **environ: object) -> None:
        self.environ: dict[str, Any] = {
            "REMOTE_ADDR": PEER,
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
    """Respond with a greeting."""
    start_response(environ.get("status", "200 OK"), [("Content-Type", "text/plain")])
    return [b"hello"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deduct_when": lambda _: True},
        {"refund_on_error": True},
        {"on_denied": lambda _: plain},
    ],
)
def test_server_and_application_see_only_wsgi(
    limiter: penstock.Limiter, options: dict[str, Any]
) -> None:
    limited = validator(
        PenstockMiddleware(validator(plain), limiter, limit="PerAddress", **options)
    )
    assert [Answer(limited).status[:3] for _ in range(2)] == ["200", "200"]
    refused = "200" if "on_denied" in options else "429"
    assert Answer(limited).status[:3] == refused
    assert Answer(limited, REQUEST_METHOD="HEAD").body == b"" or "on_denied" in options


def test_headers_of_the_application_are_unchanged(limiter: penstock.Limiter) -> None:
    kept: Headers = [("Content-Type", "text/plain")]

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", kept)
        return []

    for _ in range(2):
        Answer(PenstockMiddleware(app, limiter, limit="PerUser"))
    assert kept == [("Content-Type", "text/plain")]


def test_iterable_of_the_application_is_passed_on_and_closed(limiter: penstock.Limiter) -> None:
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


def test_body_can_have_no_close(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerUser", refund_on_error=True)
    assert Answer(limited).body == b"hello"


def test_generator_that_starts_late_has_the_headers(limiter: penstock.Limiter) -> None:
    def app(_: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"late"

    answer = Answer(PenstockMiddleware(app, limiter, limit="PerAddress"))
    assert dict(answer.headers) == ALLOWED


def test_write_of_the_server_is_passed_to_the_application(limiter: penstock.Limiter) -> None:
    def app(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])(b"written")
        return []

    assert Answer(PenstockMiddleware(app, limiter, limit="PerAddress")).written == [b"written"]


@pytest.mark.parametrize("options", [{}, {"deduct_when": lambda _: True}])
def test_application_can_start_again_to_report_an_error(
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
    assert left(limiter) == 1


def raises_before_it_starts(_: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    yield from ()
    raise ValueError


def never_starts(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    return []


@pytest.mark.parametrize("app", [raises_before_it_starts, never_starts])
def test_response_that_never_starts_is_settled(
    limiter: penstock.Limiter, clock: penstock.ManualClock, app: Any
) -> None:
    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        return (app if environ["PATH_INFO"] == "/broken" else plain)(environ, start_response)

    limited = PenstockMiddleware(
        serve, limiter, limit="PerUser", id=shared("ada"), deduct_when=lambda _: True
    )
    Answer(limited, PATH_INFO="/broken")
    # Reservations that nothing has settled are released after ten minutes.
    clock.advance(601)
    Answer(limited)
    assert left(limiter, "PerUser", "ada") == 3


def lazy(app: Any) -> Any:
    """Return an application that calls another when its body is read."""

    def generator(environ: dict[str, Any], start: Any) -> Iterator[bytes]:
        body = app(environ, start)
        try:
            yield from body
        finally:
            getattr(body, "close", int)()

    return generator


@pytest.mark.parametrize("layer", [lambda app: app, lazy], ids=["direct", "lazy"])
@pytest.mark.parametrize("text", ["10/minute", "1 in flight"])
def test_two_middlewares_with_one_limiter_charge_a_bucket_once(text: str, layer: Any) -> None:
    limiter = penstock.Limiter({"A": text, "B": "9/minute"}, clock=penstock.ManualClock())
    inner = layer(PenstockMiddleware(hello_wsgi, limiter, limit=["A", "B"], id=shared("all")))
    other = PenstockMiddleware(inner, limits={"Other": "5/minute"}, limit="Other", id=shared("all"))
    client = Client(PenstockMiddleware(layer(other), limiter, limit="A", id=shared("all")))
    for count in range(1, 4):
        response = client.get("/", buffered=True)
        fields = response.headers.getlist("RateLimit")
        assert [field.count('"A"') for field in fields if '"A"' in field] == [1]
        assert [field.count('"B"') for field in fields if '"B"' in field] == [1]
        assert response.status_code == 200
        assert limiter.peek("B", "all").remaining == 9 - count
        assert limiter.peek("A", "all").remaining == (10 - count if "minute" in text else 1)


def test_inner_middleware_that_refuses_leaves_the_outer_its_charge() -> None:
    limiter = penstock.Limiter({"A": "9/minute", "B": "1/minute"}, clock=penstock.ManualClock())
    inner = PenstockMiddleware(hello_wsgi, limiter, limit="B", id=shared("all"))
    client = Client(PenstockMiddleware(inner, limiter, limit="A", id=shared("all")))
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]
    assert limiter.peek("A", "all").remaining == 7
    assert client.get("/").headers.getlist("RateLimit") == ['"A";r=6;t=7, "B";r=0;t=60']


@pytest.mark.parametrize("text", ["10/minute", "1 in flight"])
def test_flask_within_a_middleware_with_its_limiter_charges_a_bucket_once(text: str) -> None:
    limits = {"A": text, "B": "9/minute", "C": "9/minute"}
    limiter = penstock.Limiter(limits, clock=penstock.ManualClock())
    app = flask.Flask("shop")
    extension = Penstock(app, limiter)
    extension.default("C", id=shared("all"))
    app.get("/")(extension.limit("A", "B", id=shared("all"))(lambda: "hello"))
    app.wsgi_app = PenstockMiddleware(app.wsgi_app, limiter, limit="A", id=shared("all"))  # type: ignore[method-assign]
    for count in range(1, 4):
        response = app.test_client().get("/", buffered=True)
        assert response.status_code == 200
        (field,) = response.headers.getlist("RateLimit")
        assert [field.count(f'"{name}"') for name in limits] == [1, 1, 1]
        left = [limiter.peek(name, "all").remaining for name in limits]
        assert left == [10 - count if "minute" in text else 1, 9 - count, 9 - count]
    # Without limits of Flask, the middleware writes its own.
    (field,) = app.test_client().get("/none", buffered=True).headers.getlist("RateLimit")
    assert field.startswith('"A"')


@pytest.mark.parametrize(
    "options",
    [
        {"id": lambda _: None},
        {"id": lambda _: ""},
        {"store": "redis://127.0.0.1:1", "on_store_error": "allow"},
        {"store": "redis://127.0.0.1:1", "on_store_error": "deny"},
    ],
    ids=["no id", "empty id", "allowed without the store", "denied without the store"],
)
def test_a_request_that_meets_an_error_is_freed_without_the_garbage_collector(
    options: dict[str, Any],
) -> None:
    class Environ(dict[str, Any]):
        """An environ that can be watched."""

    app = PenstockMiddleware(hello_wsgi, limit="2/minute", **options)

    def ask() -> weakref.ref[Environ]:
        environ = Environ(REMOTE_ADDR=PEER, QUERY_STRING="")
        setup_testing_defaults(environ)
        body = app(environ, lambda *_: lambda _: None)
        assert b"".join(body)
        if hasattr(body, "close"):
            body.close()
        return weakref.ref(environ)

    gc.disable()
    try:
        # The error of the first one is in the log.
        assert [ask() for _ in range(2)][1]() is None
    finally:
        gc.enable()
