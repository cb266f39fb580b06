"""Responses whose body is generated while it is sent, and can fail then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import StreamingHttpResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from django.http.response import HttpResponseBase

    from penstock.django.request import DjangoVisit


def watch_response(response: HttpResponseBase, visit: DjangoVisit) -> None:
    """Refund a request whose streamed body fails, and give its slots back when it has been sent."""
    # Django calls them when the server closes the response; it has no public way.
    response._resource_closers.append(visit.release)  # type: ignore[attr-defined]  # noqa: SLF001
    # The server sends files itself.
    if isinstance(response, StreamingHttpResponse) and not hasattr(response, "file_to_stream"):
        wrap: Any = _async if response.is_async else _sync
        response.streaming_content = wrap(response.streaming_content, visit)


def _sync(body: Iterator[bytes], visit: DjangoVisit) -> Iterator[bytes]:
    try:
        yield from body
    except Exception:
        visit.failed(head=None)
        raise


async def _async(body: AsyncIterator[bytes], visit: DjangoVisit) -> AsyncIterator[bytes]:
    try:
        async for part in body:
            yield part
    except Exception:
        await visit.failed_async(head=None)
        raise
    finally:
        # Under ASGI, the response of a client that has left is not closed.
        visit.release(waits=False)
