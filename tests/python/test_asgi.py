"""The ASGI middleware conforms to the specification with any application."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from guards import PEER, left

import penstock
from penstock._web.guard import Guard
from penstock._web.identity import by_user
from penstock.asgi import PenstockMiddleware
from penstock.identity import shared

if TYPE_CHECKING:
    from conftest import MakeLimiter

Message = dict[str, Any]
ALLOWED = {
    "ratelimit-policy": '"PerAddress";q=2;w=60',
    "ratelimit": '"PerAddress";r=1;t=30',
}


class Answer:
    """The response that a server receives from an application."""

    def __init__(
        self, app: Any, *headers: tuple[str, str], left: bool = False, **scope: Any
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "method": "GET",
            "path": "/",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers],
            "client": (PEER, 50000),
            **scope,
        }
        self.sent: list[Message] = []
        self.raised: Exception | None = None
        self._left = left
        try:
            asyncio.run(app(self.scope, self.receive, self.send))
        except ValueError as error:
            self.raised = error

    async def receive(self) -> Message:
        kind = self.scope["type"]
        if self._left:
            return {"type": f"{kind}.disconnect"}
        if kind == "http":
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "websocket.connect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def fields(self) -> list[tuple[str, str]]:
        return [(k.decode(), v.decode()) for k, v in self.sent[0].get("headers", ())]

    @property
    def headers(self) -> dict[str, str]:
        assert len(self.fields) == len(dict(self.fields))
        return dict(self.fields)

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def decision(self) -> Any:
        return self.scope["state"]["penstock"]


async def plain(scope: Any, receive: Any, send: Any) -> None:
    """Respond with a greeting."""
    headers = [(b"content-type", b"text/plain")]
    await send(
        {"type": "http.response.start", "status": scope.get("answer", 200), "headers": headers}
    )
    await send({"type": "http.response.body", "body": b"hel", "more_body": True})
    await send({"type": "http.response.body", "body": b"lo"})


@pytest.mark.parametrize("kind", ["lifespan", "a kind of the future"])
def test_other_scopes_pass_unchanged(limiter: penstock.Limiter, kind: str) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([dict(scope), receive, send])

    async def receive() -> Any: ...
    async def send(message: Any) -> None: ...

    limited = PenstockMiddleware(app, limiter, limit="PerAddress")
    asyncio.run(limited({"type": kind, "state": {}}, receive, send))
    assert seen == [{"type": kind, "state": {}}, receive, send]


def test_message_of_the_application_is_unchanged(limiter: penstock.Limiter) -> None:
    kept = {"type": "http.response.start", "status": 200, "headers": [(b"x-mine", b"1")]}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(kept)

    limited = PenstockMiddleware(app, limiter, limit="PerUser")
    for _ in range(2):
        assert list(Answer(limited).headers) == ["x-mine", "ratelimit-policy", "ratelimit"]
    assert kept == {"type": "http.response.start", "status": 200, "headers": [(b"x-mine", b"1")]}


@pytest.mark.parametrize("options", [{}, {"deduct_when": lambda response: response.headers == []}])
def test_response_without_headers_gets_some(
    limiter: penstock.Limiter, options: dict[str, Any]
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})

    limited = PenstockMiddleware(app, limiter, limit="PerAddress", **options)
    assert Answer(limited).headers == ALLOWED


def test_state_of_the_request_is_its_own(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerAddress")
    given = {"pool": object()}
    first, second = Answer(limited, state=dict(given)), Answer(limited, state=dict(given))
    assert (first.decision.remaining, second.decision.remaining) == (1, 0)
    assert first.scope["state"]["pool"] is given["pool"]
    assert "penstock" not in given


def test_lines_of_a_repeated_header_are_one_list_in_order(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerAddress", trusted_proxies=[PEER])
    limiter.spend("PerAddress", "198.51.100.1", 2)
    lines = [("X-Forwarded-For", "198.51.100.2"), ("X-Forwarded-For", "198.51.100.1")]
    assert Answer(limited, *lines).status == 429
    assert Answer(limited, *reversed(lines)).status == 200


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded"])
def test_enormous_header_does_not_name_another_client(limiter: penstock.Limiter, name: str) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerAddress", trusted_proxies=[PEER])
    node = "for=198.51.100.1" if name == "Forwarded" else "198.51.100.1"
    noise = "for=" * 40_000 if name == "Forwarded" else "9" * 160_000
    assert Answer(limited, (name, f"{noise}, {node}")).status == 200
    assert left(limiter, id="198.51.100.1") == 1
    lines = [(name, noise[:1000])] * 200
    assert Answer(limited, *lines, (name, node)).status == 200
    assert left(limiter, id="198.51.100.1") == 0
    # A chain with a malformed end has no client.
    assert Answer(limited, (name, noise)).status == 400


@pytest.mark.parametrize(
    ("user", "id"),
    [
        ("ada", "ada"),
        (7, "7"),
        ({"id": "ada"}, "ada"),
        ({"name": "ada"}, f"address:{PEER}"),
        (None, f"address:{PEER}"),
        (type("User", (), {"id": 9})(), "9"),
        (type("User", (), {"id": UUID(int=9)})(), str(UUID(int=9))),
        ({"id": UUID(int=9)}, str(UUID(int=9))),
        (type("User", (), {"id": object(), "username": "ada"})(), "ada"),
        (type("User", (), {"is_authenticated": False, "id": 9})(), f"address:{PEER}"),
        (type("User", (), {"is_authenticated": True})(), f"address:{PEER}"),
    ],
)
def test_user_is_that_of_the_scope(limiter: penstock.Limiter, user: object, id: str) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerUser", id=by_user)
    Answer(limited, user=user)
    assert left(limiter, "PerUser", id) == 4


def test_middlewares_of_one_guard_write_one_set_of_headers(limiter: penstock.Limiter) -> None:
    guard = Guard(limiter)
    inner = PenstockMiddleware(plain, guard, limit="PerUser", id=shared("ada"))
    outer = PenstockMiddleware(inner, limiter, limit="PerAddress")
    answer = Answer(outer)
    assert answer.headers == {
        "content-type": "text/plain",
        "ratelimit-policy": '"PerAddress";q=2;w=60, "PerUser";q=5;w=3600',
        "ratelimit": '"PerAddress";r=1;t=30, "PerUser";r=4;t=720',
    }
    for _ in range(4):
        limiter.spend("PerUser", "ada")
    refused = Answer(outer)
    assert (refused.status, refused.headers["retry-after"]) == (429, "720")
    assert refused.headers["ratelimit"] == '"PerAddress";r=0;t=30, "PerUser";r=0;t=720'


def test_bucket_of_two_middlewares_is_charged_once(limiter: penstock.Limiter) -> None:
    inner = PenstockMiddleware(plain, limiter, limit="PerAddress")
    answer = Answer(PenstockMiddleware(inner, limiter, limit="PerAddress"))
    assert answer.headers["ratelimit"] == '"PerAddress";r=1;t=30'
    assert left(limiter) == 1


def test_middlewares_of_two_limiters_write_their_own(
    limiter: penstock.Limiter, make_limiter: MakeLimiter
) -> None:
    other = make_limiter({"Other": "9/minute", "Third": "7/minute"})
    app = PenstockMiddleware(plain, limiter, limit="PerUser", id=shared("ada"))
    app = PenstockMiddleware(app, other, limit="Third")
    app = PenstockMiddleware(app, limiter, limit="PerAddress")
    app = PenstockMiddleware(app, other, limit="Other")
    ratelimits = [value for name, value in Answer(app).fields if name == "ratelimit"]
    assert ratelimits == [
        '"PerAddress";r=1;t=30, "PerUser";r=4;t=720',
        '"Other";r=8;t=7, "Third";r=6;t=9',
    ]


def test_middleware_without_a_limit_writes_for_those_inside(limiter: penstock.Limiter) -> None:
    guard = Guard(limiter, headers="github")
    inner = PenstockMiddleware(plain, guard, limit="PerAddress")
    assert "x-ratelimit-limit" in Answer(PenstockMiddleware(inner, guard)).headers
    assert Answer(PenstockMiddleware(plain, guard)).headers == {"content-type": "text/plain"}


async def later(_: object) -> str:
    return "too many"


def test_on_denied_can_be_awaited(limiter: penstock.Limiter) -> None:
    limited = PenstockMiddleware(plain, limiter, limit="PerAddress", on_denied=later)
    *_, refused = (Answer(limited) for _ in range(3))
    assert (refused.status, refused.body) == (429, b"too many")
    assert refused.headers["content-type"].startswith("text/plain")


def test_invalid_option_is_an_error_at_startup(limiter: penstock.Limiter) -> None:
    with pytest.raises(penstock.ConfigError, match="limit"):
        PenstockMiddleware(plain, limiter, id=shared("ada"))
    with pytest.raises(penstock.ConfigError, match="hops"):
        PenstockMiddleware(plain, Guard(limiter), limit="PerAddress", hops=1)
