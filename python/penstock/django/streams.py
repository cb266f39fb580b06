"""Responses whose body is made while it is sent, and may fail on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import StreamingHttpResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from django.http.response import HttpResponseBase

    from penstock.web.outcome import Outcome

__all__ = ["refunding"]


def refunding(response: HttpResponseBase, outcome: Outcome) -> None:
    """Have a body give back what its request took, should it fail, where a limit says so."""
    # A file is sent by the server, as fast as it can, and is left alone.
    if not isinstance(response, StreamingHttpResponse) or hasattr(response, "file_to_stream"):
        return
    if outcome.refunds_on_error:
        body: Any = response.streaming_content
        is_async = response.is_async
        response.streaming_content = _later(body, outcome) if is_async else _now(body, outcome)


def _now(body: Iterator[bytes], outcome: Outcome) -> Iterator[bytes]:
    try:
        yield from body
    except Exception:
        give_back(outcome)
        raise


async def _later(body: AsyncIterator[bytes], outcome: Outcome) -> AsyncIterator[bytes]:
    try:
        async for part in body:
            yield part
    except Exception:
        give_back(outcome)
        raise


def give_back(outcome: Outcome) -> None:
    """Give back what a request took under all limits that were asked."""
    for answer in outcome.history:
        answer.refund()
