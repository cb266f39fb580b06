"""What is sent to a client: the fields of limits on every response, and the refusal."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

from penstock.web.adapter import refusal_body

if TYPE_CHECKING:
    from penstock.asgi.request import Message, Receive, Scope, Send
    from penstock.web.guard import Guard
    from penstock.web.outcome import Outcome

STARTS: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)
"""The messages that carry header fields."""

_DENIAL: Final = "websocket.http.response"
# RFC 6455, section 7.4, and its registry: "try again later", "policy violation".
_TRY_AGAIN_LATER: Final = 1013
_POLICY_VIOLATION: Final = 1008
_BAD_REQUEST: Final = 400


class _Names(dict[str, bytes]):
    """The fields' names as ASGI wants them: each made once."""

    def __missing__(self, name: str) -> bytes:
        raw = self[name] = name.lower().encode()
        return raw


_NAMES: Final = _Names()


def with_fields(message: Message, outcome: Outcome) -> Message:
    """Give a message with the fields of an answer after its own."""
    own = message.get("headers")
    headers = [*own] if own else []
    # A handler of the application may have put a refusal's fields on its answer itself.
    told = () if outcome.refusal is None else frozenset(headers)
    for name, value in outcome.headers():
        # Names and values are ASCII, as `headers.py` makes them.
        field = (_NAMES[name], value.encode())
        if not told or field not in told:
            headers.append(field)
    # A new message: an application may send one response again and again.
    return {**message, "headers": headers}


async def refuse(
    guard: Guard, outcome: Outcome, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send a refusal; the fields of limits are added on its way.

    A WebSocket is refused before it opens, by a response where the server can send one, and else by
    being closed.

    Raises:
        ConfigError: `on_denied` gives nothing that can be sent.
    """
    is_socket = scope["type"] == "websocket"
    if is_socket and _DENIAL not in (scope.get("extensions") or ()):
        code = _POLICY_VIOLATION if outcome.status == _BAD_REQUEST else _TRY_AGAIN_LATER
        closing = {"type": "websocket.close", "code": code, "reason": outcome.problem.title}
        await send(closing)
        return
    answer = guard.custom_response(outcome)
    if inspect.isawaitable(answer):
        answer = await answer
    if callable(answer):
        await answer(scope, receive, send)
        return
    content_type, body = refusal_body(outcome, answer, "an ASGI application")
    kind = _DENIAL if is_socket else "http.response"
    headers = [
        (b"content-type", content_type.encode("latin-1")),
        (b"content-length", str(len(body)).encode("latin-1")),
    ]
    await send({"type": f"{kind}.start", "status": outcome.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})
