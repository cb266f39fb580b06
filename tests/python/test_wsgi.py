"""The WSGI middleware conforms to PEP 3333 with any application."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from guards import PEER, left

from penstock.wsgi import PenstockMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import penstock


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
        serve, limiter, limit="PerUser", id="ada", deduct_when=lambda _: True
    )
    Answer(limited, PATH_INFO="/broken")
    # Reservations that nothing has settled are released after ten minutes.
    clock.advance(601)
    Answer(limited)
    assert left(limiter, "PerUser", "ada") == 3
