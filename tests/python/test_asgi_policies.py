"""Policies after the response, awaited callables, and WebSockets before they are accepted."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from guards import PEER, left

import penstock
from penstock.adapter import Guard
from penstock.asgi import PenstockMiddleware, Response
from penstock.identity import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    App = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]

Message = dict[str, Any]
SCOPES: dict[str, dict[str, Any]] = {
    "http": {"type": "http", "method": "GET"},
    "websocket": {"type": "websocket"},
    "websocket with denial": {
        "type": "websocket",
        "extensions": {"websocket.http.response": {}},
    },
}


def ask(
    app: App,
    kind: str = "http",
    *,
    received: str | None = None,
    fails: type[Exception] | None = None,
    **scope: Any,
) -> list[Message]:
    """Send a request; return the messages of the response, and the exception."""
    whole = {**SCOPES[kind], "path": "/", "headers": [], "client": (PEER, 50000), **scope}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": received or f"{whole['type']}.connect"}

    async def send(message: Message) -> None:
        if fails is not None:
            raise fails
        sent.append(message)

    try:
        asyncio.run(app(whole, receive, send))
    except (ValueError, OSError, asyncio.CancelledError) as error:
        sent.append({"type": "raised", "error": error})
    return sent


def answering(status: int, *, headers: bool = True) -> App:
    """Return an application that responds with a status."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kind = "http" if scope["type"] == "http" else "websocket.http"
        fields = {"headers": [(b"x-mine", b"1")]} if headers else {}
        await send({"type": f"{kind}.response.start", "status": status, **fields})
        await send({"type": f"{kind}.response.body", "body": b""})

    return app


async def accepting(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": "welcome"})
    await send({"type": "websocket.close", "code": 1000})


async def closing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.close", "code": 1008})


@pytest.mark.parametrize(("status", "tokens"), [(400, 2), (200, 1)])
def test_id_is_read_once_if_other_processes_share_the_store(
    tmp_path: Path, status: int, tokens: int
) -> None:
    calls: list[str] = []

    def find(scope: Any) -> str | None:
        calls.append(scope["path"])
        return PEER if status == 200 else None

    with penstock.Limiter({"PerAddress": "2/minute"}, f"shm://{tmp_path}/table") as limiter:
        limited = PenstockMiddleware(answering(200), limiter, limit="PerAddress", id=find)
        assert ask(limited)[0]["status"] == status
        assert calls == ["/"]
        assert left(limiter) == tokens


# Deductions


def test_method_in_small_letters_counts(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(answering(200), limiter, limit="PerAddress", methods=["POST"])
    # Some servers pass on the method as the client sent it.
    assert [ask(limited, method="post")[0]["status"] for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    ("app", "status"), [(accepting, 101), (closing, 403), (answering(401), 401)]
)
def test_deduct_when_sees_how_a_websocket_was_answered(
    limiter: penstock.Limiter, app: App, status: int
) -> None:
    seen: list[int] = []

    def counts(response: Response) -> bool:
        seen.append(response.status_code)
        return True

    limited = PenstockMiddleware(app, limiter, limit="PerAddress", deduct_when=counts)
    ask(limited, "websocket")
    # Once, although an accepted WebSocket is closed as well.
    assert seen == [status]
    assert left(limiter) == 1


async def reading(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    raise ValueError


async def cancelled(scope: Any, receive: Any, send: Any) -> None:
    raise asyncio.CancelledError


def test_request_that_fails_after_it_was_read_is_refunded(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(reading, limiter, limit="PerAddress", refund_on_error=True)
    *_, last = ask(limited)
    assert isinstance(last["error"], ValueError)
    assert left(limiter) == 2


@pytest.mark.parametrize(
    ("app", "how"),
    [
        (reading, {"received": "http.disconnect"}),
        (reading, {"received": "websocket.disconnect", "kind": "websocket"}),
        (answering(200), {"fails": OSError}),
        (cancelled, {}),
    ],
)
def test_request_of_a_disconnected_client_is_not_refunded(
    limiter: penstock.Limiter, app: App, how: dict[str, Any]
) -> None:
    limited = PenstockMiddleware(app, limiter, limit="PerAddress", refund_on_error=True)
    assert ask(limited, **how)[-1]["type"] == "raised"
    assert left(limiter) == 1


@pytest.mark.parametrize("kind", ["http.response.pathsend", "http.response.body"])
def test_response_that_was_sent_is_not_refunded(limiter: penstock.Limiter, kind: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": kind, "path": "/orders.txt"})
        raise ValueError

    limited = PenstockMiddleware(app, limiter, limit="PerAddress", refund_on_error=True)
    ask(limited)
    assert left(limiter) == 1


@pytest.mark.parametrize("outer", [{"limit": "PerAddress"}, {}], ids=["limit", "fields"])
def test_response_that_a_middleware_holds_back_is_settled(
    limiter: penstock.Limiter, outer: dict[str, Any]
) -> None:
    def holding(app: App) -> App:
        async def hold(scope: Any, receive: Any, send: Any) -> None:
            held: list[Message] = []

            async def keep(message: Message) -> None:
                held.append(message)

            await app(scope, receive, keep)
            for message in held:
                await send(message)

        return hold

    def failed(response: Response) -> bool:
        return response.status_code == 401

    for status, remaining in ((200, 5), (401, 4)):
        inner = PenstockMiddleware(
            answering(status), limiter, limit="PerUser", id=shared("ada"), deduct_when=failed
        )
        start, _ = ask(PenstockMiddleware(holding(inner), Guard(limiter), **outer))
        assert b'"PerUser";r=%d' % remaining in dict(start["headers"])[b"ratelimit"]
        assert left(limiter, "PerUser", "ada") == remaining


def test_disconnect_within_nested_middleware_leaves_no_objects(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    guard = Guard(limiter)

    def limited(app: App) -> App:
        inner = PenstockMiddleware(
            app, guard, limit="PerUser", id=shared("ada"), deduct_when=lambda _: True
        )
        return PenstockMiddleware(inner, guard, limit="Large")

    ask(limited(cancelled))
    # Reservations that nothing has settled are released after ten minutes.
    clock.advance(601)
    ask(limited(answering(200)))
    assert left(limiter, "PerUser", "ada") == 3


@pytest.mark.parametrize("policy", ["allow", "deny", "local"])
def test_a_request_that_meets_a_store_error_is_freed_without_the_garbage_collector(
    policy: Any,
) -> None:
    class Scope(dict[str, Any]):
        """A scope that can be watched."""

    url = "redis://127.0.0.1:1"
    limited = PenstockMiddleware(answering(200), limit="2/minute", store=url, on_store_error=policy)

    async def serve() -> weakref.ref[Scope]:
        scope = Scope(SCOPES["http"], path="/", headers=[], client=(PEER, 50000))

        async def nothing(*_: object) -> Any:
            """Receive and send nothing."""

        await limited(scope, nothing, nothing)
        return weakref.ref(scope)

    async def serve_twice() -> weakref.ref[Scope]:
        # The error of the first one is in the log.
        await serve()
        return await serve()

    gc.disable()
    try:
        assert asyncio.run(serve_twice())() is None
    finally:
        gc.enable()


# Awaited callables


async def user(scope: Any) -> Any:
    await asyncio.sleep(0)  # noqa: TID251  a turn of the loop, no time
    return scope.get("user")


class Prices:
    """A callable object that returns a cost."""

    async def __call__(self) -> int:
        return 2


def test_id_and_cost_can_be_awaited(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(
        answering(200), limiter, limit="PerUser", id=user, cost=Prices(), refund_on_error=True
    )
    ask(limited, user="ada")
    assert left(limiter, "PerUser", "ada") == 3
    ask(limited, user="grace")
    assert left(limiter, "PerUser", "grace") == 3


@pytest.mark.parametrize("id", [None, ""])
def test_awaited_id_that_is_missing_is_a_bad_request(limiter: penstock.Limiter, id: object) -> None:
    limited = PenstockMiddleware(answering(200), limiter, limit="PerUser", id=user)
    assert ask(limited, user=id)[0]["status"] == 400
    lenient = PenstockMiddleware(
        answering(200), limiter, limit="PerUser", id=user, on_missing_id=shared("unknown")
    )
    assert ask(lenient, user=id)[0]["status"] == 200
    assert left(limiter, "PerUser", "unknown") == 4


def test_request_that_does_not_count_is_not_read_further(limiter: penstock.Limiter) -> None:
    read: list[str] = []

    async def exempt(scope: Any) -> bool:
        read.append("exempt_when")
        return bool(scope["path"] == "/health")

    def id(scope: Any) -> str:
        read.append("id")
        return "ada"

    async def cost() -> int:
        read.append("cost")
        return 1

    limited = PenstockMiddleware(
        answering(200),
        limiter,
        limit="PerUser",
        methods=["GET"],
        exempt_when=exempt,
        id=id,
        cost=functools.partial(cost),
    )
    ask(limited, method="POST")
    assert read == []
    ask(limited, path="/health")
    assert read == ["exempt_when"]
    ask(limited)
    assert read == ["exempt_when", "exempt_when", "id", "cost"]
    assert left(limiter, "PerUser", "ada") == 4


@pytest.mark.anyio
async def test_concurrent_requests_have_their_own_values(limiter: penstock.Limiter) -> None:
    gates = {name: asyncio.Event() for name in ("ada", "grace")}

    async def slow(scope: Any) -> str:
        await gates[scope["user"]].wait()
        return str(scope["user"])

    limited = PenstockMiddleware(answering(200), limiter, limit="PerUser", id=slow)
    decisions: dict[str, penstock.Decision] = {}

    async def one(name: str) -> None:
        scope = {**SCOPES["http"], "path": "/", "headers": [], "user": name}

        async def nothing(_: object = None) -> Any: ...

        await limited(scope, nothing, nothing)
        decisions[name] = scope["state"]["penstock"]

    tasks = [asyncio.create_task(one(name)) for name in gates]
    await asyncio.sleep(0)  # noqa: TID251  a turn of the loop, no time
    gates["grace"].set()
    await tasks[1]
    assert list(decisions) == ["grace"]
    gates["ada"].set()
    await tasks[0]
    assert {name: decision.id for name, decision in decisions.items()} == {
        "ada": "ada",
        "grace": "grace",
    }


def test_awaited_callable_is_checked_at_startup(limiter: penstock.Limiter) -> None:
    async def two(scope: Any, more: Any) -> str:
        return ""

    wrong: Any = two

    with pytest.raises(penstock.ConfigError, match=r"^id "):
        PenstockMiddleware(answering(200), limiter, limit="PerUser", id=wrong)


# WebSockets


def test_websocket_is_served_with_headers(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(accepting, limiter, limit="PerAddress")
    accept, *rest = ask(limited, "websocket")
    assert accept == {
        "type": "websocket.accept",
        "headers": [
            (b"ratelimit-policy", b'"PerAddress";q=2;w=60'),
            (b"ratelimit", b'"PerAddress";r=1;t=30'),
        ],
    }
    assert rest == [
        {"type": "websocket.send", "text": "welcome"},
        {"type": "websocket.close", "code": 1000},
    ]


def test_refused_websocket_is_closed_before_it_is_accepted(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(accepting, limiter, limit="PerAddress")
    *_, refused = (ask(limited, "websocket") for _ in range(3))
    assert refused == [{"type": "websocket.close", "code": 1013, "reason": "Too many requests"}]


def test_refused_websocket_gets_a_response_if_the_server_supports_it(
    limiter: penstock.Limiter,
) -> None:
    limited = PenstockMiddleware(accepting, limiter, limit="PerAddress")
    *_, (start, body) = (ask(limited, "websocket with denial") for _ in range(3))
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    headers = dict(start["headers"])
    assert headers[b"retry-after"] == b"30"
    assert headers[b"ratelimit"] == b'"PerAddress";r=0;t=30'
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert body["type"] == "websocket.http.response.body"
    assert json.loads(body["body"])["status"] == 429


def test_websocket_without_an_id_violates_the_policy(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(accepting, limiter, limit="PerAddress")
    (refused,) = ask(limited, "websocket", client=None)
    assert refused == {"type": "websocket.close", "code": 1008, "reason": "Bad request"}
    start, _ = ask(limited, "websocket with denial", client=None)
    assert start["status"] == 400


def test_websocket_can_retry_while_the_store_fails(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(accepting, limiter, limit="PerAddress", on_store_error="deny")
    limiter.close()
    assert ask(limited, "websocket")[0]["code"] == 1013
