"""Responses: the fields of limits on every one, and refusals."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

from penstock._web.headers import encoded

if TYPE_CHECKING:
    from penstock._web.guard import Guard
    from penstock._web.outcome import Outcome
    from penstock.asgi.request import Receive, Scope, Send

STARTS: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)
"""The messages that carry header fields."""

_DENIAL: Final = "websocket.http.response"
# RFC 6455, section 7.4, and its registry: "try again later", "policy violation".
_TRY_AGAIN_LATER: Final = 1013
_POLICY_VIOLATION: Final = 1008
_BAD_REQUEST: Final = 400


async def refuse(
    guard: Guard, outcome: Outcome, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send a refusal; `send` adds the fields of limits.

    A WebSocket is refused before it is accepted: with a response if the server supports that,
    otherwise by closing it.

    Raises:
        ConfigError: `on_denied` returned something that cannot be sent.
    """
    is_socket = scope["type"] == "websocket"
    if is_socket and _DENIAL not in (scope.get("extensions") or ()):
        code = _POLICY_VIOLATION if outcome.status == _BAD_REQUEST else _TRY_AGAIN_LATER
        await send({"type": "websocket.close", "code": code, "reason": outcome.problem.title})
        return
    answer = guard.custom_response(outcome)
    if inspect.isawaitable(answer):
        answer = await answer
    if callable(answer):
        await answer(scope, receive, send)
        return
    fields, body = outcome.body(answer, "an ASGI application")
    kind = _DENIAL if is_socket else "http.response"
    headers = encoded([*fields, ("Content-Length", str(len(body)))])
    await send({"type": f"{kind}.start", "status": outcome.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})
