"""Responses whose body is generated while it is sent, and can fail then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from django.http.response import HttpResponseBase

    from penstock.web.outcome import Outcome


def refund_broken_stream(response: HttpResponseBase, outcome: Outcome) -> None:
    """Refund a request whose streamed body fails, if one of its limits has `refund_on_error`."""
    # The server sends files itself.
    if not isinstance(response, StreamingHttpResponse) or hasattr(response, "file_to_stream"):
        return
    if outcome.refunds_on_error:
        wrap: Any = _async if response.is_async else _sync
        response.streaming_content = wrap(response.streaming_content, outcome)


def _sync(body: Iterator[bytes], outcome: Outcome) -> Iterator[bytes]:
    try:
        yield from body
    except Exception:
        outcome.refund_all()
        raise


async def _async(body: AsyncIterator[bytes], outcome: Outcome) -> AsyncIterator[bytes]:
    try:
        async for part in body:
            yield part
    except Exception:
        if outcome.is_remote:
            await sync_to_async(outcome.refund_all)()
        else:
            outcome.refund_all()
        raise
