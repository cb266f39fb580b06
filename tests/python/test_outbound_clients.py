"""Every client library against a real server on this machine: the same for each."""

from __future__ import annotations

import asyncio
import functools
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar

import aiohttp
import httpx
import httpx2
import pytest
import requests
from services import START, in_loops_time, in_time

import penstock
import penstock.aiohttp
import penstock.httpx
import penstock.httpx2
import penstock.requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import MakeLimiter


class Handler(BaseHTTPRequestHandler):
    """Answers as scripted; then refuses what is above its own limit, and says no more than that."""

    answers: ClassVar[list[tuple[int, dict[str, str]]]] = []
    limiter: ClassVar[penstock.Limiter | None] = None
    seen: ClassVar[list[tuple[str, str, bytes]]] = []

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, body))
        if self.answers:
            status, headers = self.answers.pop(0)
        else:
            is_allowed = self.limiter is None or self.limiter.spend("own", "all").allowed
            status, headers = (200 if is_allowed else 429), {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    do_GET = do_PUT = do_POST = answer  # noqa: N815  the parent's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the parent's name
        pass


@pytest.fixture
def address() -> Iterator[str]:
    """A server on this machine."""
    Handler.answers, Handler.seen, Handler.limiter = [], [], None
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Client:
    """A client of one library, whose calls are the same for all."""

    timeout_error: Any
    turn_timeout: Any

    def __init__(self, limiter: penstock.Limiter, **options: Any) -> None:
        self.limiter, self.options = limiter, options

    def statuses(self, *calls: tuple[str, str, Any], waits: bool = True) -> list[int]:
        """Make calls, one after the other: each a method, a URL and a body.

        The clock moves during them, unless `waits` is false.
        """
        raise NotImplementedError


class InThread(Client):
    def statuses(self, *calls: tuple[str, str, Any], waits: bool = True) -> list[int]:
        clock: Any = self.limiter.clock
        with self.open() as client:
            asks = [functools.partial(self.ask, client, *call) for call in calls]
            return [in_time(clock, ask) if waits else ask() for ask in asks]

    def open(self) -> Any:
        raise NotImplementedError

    def ask(self, client: Any, method: str, url: str, body: Any) -> int:
        status: int = client.request(method, url, content=body).status_code
        return status


class Httpx(InThread):
    library: Any = httpx
    ours: Any = penstock.httpx
    timeout_error: Any = httpx.PoolTimeout
    turn_timeout: Any = penstock.httpx.TurnTimeout

    def open(self) -> Any:
        transport = self.ours.Transport(self.limiter, "PartnerApi", **self.options)
        return self.library.Client(transport=transport, follow_redirects=True)


class Httpx2(Httpx):
    library = httpx2
    ours = penstock.httpx2
    timeout_error = httpx2.PoolTimeout
    turn_timeout = penstock.httpx2.TurnTimeout


class Requests(InThread):
    timeout_error = requests.exceptions.ConnectTimeout
    turn_timeout = penstock.requests.TurnTimeout

    def open(self) -> requests.Session:
        session = requests.Session()
        adapter = penstock.requests.Adapter(self.limiter, "PartnerApi", **self.options)
        session.mount("http://", adapter)
        return session

    def ask(self, client: Any, method: str, url: str, body: Any) -> int:
        status: int = client.request(method, url, data=body).status_code
        return status


class InTask(Client):
    def statuses(self, *calls: tuple[str, str, Any], waits: bool = True) -> list[int]:
        clock: Any = self.limiter.clock

        async def main() -> list[int]:
            async with self.open() as client:
                asks = [functools.partial(self.ask, client, *call) for call in calls]
                return [await (in_loops_time(clock, ask()) if waits else ask()) for ask in asks]

        return asyncio.run(main())

    def open(self) -> Any:
        raise NotImplementedError

    async def ask(self, client: Any, method: str, url: str, body: Any) -> int:
        response = await client.request(method, url, content=body)
        status: int = response.status_code
        return status


class AsyncHttpx(InTask):
    timeout_error = httpx.PoolTimeout
    turn_timeout = penstock.httpx.TurnTimeout

    def open(self) -> httpx.AsyncClient:
        transport = penstock.httpx.AsyncTransport(self.limiter, "PartnerApi", **self.options)
        return httpx.AsyncClient(transport=transport, follow_redirects=True)


class Aiohttp(InTask):
    timeout_error = aiohttp.ServerTimeoutError
    turn_timeout = penstock.aiohttp.TurnTimeout

    def open(self) -> aiohttp.ClientSession:
        middleware = penstock.aiohttp.Middleware(self.limiter, "PartnerApi", **self.options)
        return aiohttp.ClientSession(middlewares=[middleware])

    async def ask(self, client: Any, method: str, url: str, body: Any) -> int:
        async with client.request(method, url, data=body) as response:
            assert await response.read() == b"hello"
            status: int = response.status
            return status


@pytest.fixture(params=[Httpx, Httpx2, AsyncHttpx, Requests, Aiohttp])
def client_class(request: pytest.FixtureRequest) -> type[Client]:
    """A client library."""
    found: type[Client] = request.param
    return found


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
    return make_limiter({"PartnerApi": "2 per 10 seconds", "Fast": "1000/second"})


async def _read(parts: list[bytes]) -> Any:
    for part in parts:
        yield part


def get(address: str, path: str = "/") -> tuple[str, str, Any]:
    return "GET", f"{address}{path}", None


def test_requests_wait_for_their_turn(
    client_class: type[Client],
    limiter: penstock.Limiter,
    clock: penstock.ManualClock,
    address: str,
) -> None:
    assert client_class(limiter).statuses(*[get(address)] * 4) == [200] * 4
    assert clock.now() - START >= 10
    assert limiter.check("PartnerApi", "127.0.0.1", 0).id == "127.0.0.1"


def test_service_is_left_alone_until_it_says(
    client_class: type[Client],
    limiter: penstock.Limiter,
    clock: penstock.ManualClock,
    address: str,
) -> None:
    Handler.answers = [(429, {"Retry-After": "20"})]
    client = client_class(limiter, retries=1)
    assert client.statuses(("PUT", f"{address}/a", b"body"), get(address, "/b")) == [200, 200]
    assert clock.now() - START >= 20
    assert Handler.seen == [("PUT", "/a", b"body")] * 2 + [("GET", "/b", b"")]


def test_method_that_is_not_idempotent_is_sent_once(
    client_class: type[Client], limiter: penstock.Limiter, address: str
) -> None:
    Handler.answers = [(503, {"Retry-After": "1"})]
    client = client_class(limiter, retries=3)
    assert client.statuses(("POST", address, b"body")) == [503]
    assert len(Handler.seen) == 1


def test_redirect_waits_for_a_turn_of_its_own(
    client_class: type[Client], limiter: penstock.Limiter, address: str
) -> None:
    Handler.answers = [(302, {"Location": "/to"})]
    assert client_class(limiter).statuses(get(address)) == [200]
    assert limiter.check("PartnerApi", "127.0.0.1", 0).remaining == 0


def test_turn_that_comes_too_late_is_an_error_of_the_library(
    client_class: type[Client], limiter: penstock.Limiter, address: str
) -> None:
    client = client_class(limiter, timeout=0)
    with pytest.raises(client.timeout_error) as caught:
        client.statuses(*[get(address)] * 3, waits=False)
    assert isinstance(caught.value, client.turn_timeout)
    assert isinstance(caught.value, penstock.RateLimited)
    assert caught.value.decision.retry_after == 5
    assert len(Handler.seen) == 2


def test_limit_that_the_service_does_not_state_is_found(
    client_class: type[Client],
    make_limiter: MakeLimiter,
    clock: penstock.ManualClock,
    address: str,
) -> None:
    Handler.limiter = penstock.Limiter({"own": "1 per 5 seconds"}, clock=clock)
    limiter = make_limiter({"PartnerApi": "1000/second"})
    client = client_class(limiter, pace="auto", timeout=None)
    statuses = client.statuses(*[get(address)] * 20)
    # Without a pace, all but the first are refused.
    assert statuses.count(200) >= 12


def test_mistakes_are_found_at_once(client_class: type[Client], limiter: penstock.Limiter) -> None:
    for options in ({"retries": -1}, {"pace": "fast"}, {"retry": 1}):
        with pytest.raises(penstock.ConfigError):
            client_class(limiter, **options).statuses()


def test_stream_is_not_sent_again_by_aiohttp(limiter: penstock.Limiter, address: str) -> None:
    Handler.answers = [(503, {"Retry-After": "1"})]
    client = Aiohttp(limiter, retries=3)

    async def main() -> int:
        async with client.open() as session:
            # With a length, because the server does not read chunks.
            headers = {"Content-Length": "4"}
            call = session.put(address, data=_read([b"bo", b"dy"]), headers=headers)
            async with call as response:
                return response.status

    assert asyncio.run(main()) == 503
    assert [body for _, _, body in Handler.seen] == [b"body"]
