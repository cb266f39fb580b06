"""Responses whose body is generated while it is sent, and can fail then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import StreamingHttpResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from django.http.response import HttpResponseBase

    from penstock.django.request import State


def refund_broken_stream(response: HttpResponseBase, state: State) -> None:
    """Refund a request whose streamed body fails, if one of its limits has `refund_on_error`."""
    # The server sends files itself.
    if not isinstance(response, StreamingHttpResponse) or hasattr(response, "file_to_stream"):
        return
    if state.entered is not None and state.entered.refunds_on_error:
        wrap: Any = _async if response.is_async else _sync
        response.streaming_content = wrap(response.streaming_content, state)


def _sync(body: Iterator[bytes], state: State) -> Iterator[bytes]:
    try:
        yield from body
    except Exception:
        state.failed(head=None)
        raise


async def _async(body: AsyncIterator[bytes], state: State) -> AsyncIterator[bytes]:
    try:
        async for part in body:
            yield part
    except Exception:
        await state.failed_async(head=None)
        raise
