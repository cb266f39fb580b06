"""Views that fail, that raise an answer, or whose body breaks, in every framework."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Reply, Request, Route, limited
from adapters.drivers import InDjango, only, with_routes
from guards import left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.case import Driver
    from adapters.conftest import Serve

    import penstock


@with_routes
@pytest.mark.parametrize("status", [403, 404])
def test_answer_that_a_view_raises_is_not_refunded(
    serve: Serve, driver: type[Driver], limiter: penstock.Limiter, status: int
) -> None:
    def view(_: Request) -> Reply:
        raise driver.raised(status)

    app = serve(Route("/", (limited("Large", refund_on_error=True),), view))
    answer = app.ask()
    assert (answer.status, answer.header("RateLimit")) == (
        status,
        # Without the middleware, Django makes the response outside of the decorator.
        '"Large";r=99;t=1' if driver.starts else None,
    )
    assert left(limiter, "Large") == 99


class Reset(io.BytesIO):
    """A body whose connection was reset."""

    def read(self, size: int | None = -1) -> bytes:
        raise ConnectionResetError(size)

    readline = readinto = read  # type: ignore[assignment]


@only(lambda driver: driver.is_wsgi)
def test_client_that_leaves_while_its_body_is_read_is_not_refunded(
    serve: Serve, driver: type[Driver], limiter: penstock.Limiter
) -> None:
    """Otherwise it could make any view fail after its work. ASGI has cases of its own."""

    def view(request: Request) -> Reply:
        try:
            driver.form(request.native)["b"]
        except Exception as error:
            # As a library may, so that the adapter does not see an answer of the framework.
            raise ValueError from error
        return Reply()

    app = serve(Route("/", (limited("Large", refund_on_error=True),), view))
    form = "application/x-www-form-urlencoded"
    bodies = [io.BytesIO(b"a=1&b=2"), io.BytesIO(b"a=1&c=2"), Reset()]
    counts = []
    for body in bodies:
        app.environ |= {"wsgi.input": body, "CONTENT_LENGTH": "7", "CONTENT_TYPE": form}
        app.ask(method="POST")
        counts.append(left(limiter, "Large"))
    # The second client sent its whole body, and the view failed for another reason.
    assert counts == [99, 99, 98]


@only(lambda driver: driver.sees_errors)
@pytest.mark.parametrize("refund", [True, False])
def test_stream_that_breaks_is_refunded_on_request(
    serve: Serve, limiter: penstock.Limiter, *, refund: bool
) -> None:
    closed: list[str] = []

    def view(request: Request) -> Reply:
        def parts() -> Iterator[str]:
            try:
                yield "some"
                if "bad" in request.query:
                    raise LookupError
                yield "all"
            finally:
                closed.append(request.path)

        return Reply(parts())

    app = serve(Route("/", (limited("Large", refund_on_error=refund),), view))
    whole = app.ask()
    assert (whole.body, whole.header("RateLimit")) == (b"someall", '"Large";r=99;t=1')
    assert left(limiter, "Large") == 99
    with suppress(LookupError):
        app.ask(query={"bad": 1})
    assert left(limiter, "Large") == (99 if refund else 98)
    assert closed == ["/", "/"]


@only(lambda driver: driver.has_routes and driver.starts)
def test_denial_in_a_view_without_limits_is_a_refusal(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    def view(_: Request) -> Reply:
        limiter.spend("PerUser", "ada", 5).raise_if_denied()
        return Reply()

    app = serve(Route("/", view=view))
    assert app.ask().status == 200
    refused = app.ask()
    assert refused.status == 429
    assert refused.limit_fields == {
        "ratelimit-policy": '"PerUser";q=5;w=3600',
        "ratelimit": '"PerUser";r=0;t=3600',
        "retry-after": "3600",
        "cache-control": "no-store",
    }


def exposed(answer: Any) -> list[str]:
    return [name.strip() for name in answer.header("Access-Control-Expose-Headers").split(",")]


def test_list_fields_of_a_view_are_extended(serve: Serve, driver: type[Driver]) -> None:
    def view(_: Request) -> Reply:
        own = {"Access-Control-Expose-Headers": "X-Mine", "RateLimit": '"upstream";r=7'}
        return Reply(headers=own)

    route = Route("/", (limited("PerAddress"),), view)
    answer = serve(route, headers=["ietf", "sharkey"], expose_headers=True).ask()
    assert exposed(answer)[0] == "X-Mine"
    assert {"RateLimit", "X-RateLimit-Clear", "Retry-After"} <= {*exposed(answer)}
    ours = '"PerAddress";r=1;t=30'
    # In Django, the field may come from the cache, which kept it for another client.
    expected = ours if issubclass(driver, InDjango) else f'"upstream";r=7, {ours}'
    assert answer.header("RateLimit") == expected
