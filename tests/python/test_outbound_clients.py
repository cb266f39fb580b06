"""The same tests for every client library, with a real server on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ClassVar

import aiohttp
import httpx
import httpx2
import pytest
import requests
from loops import turn_over
from servers import free_port
from services import START, in_loops_time, in_time

import penstock
import penstock.aiohttp
import penstock.httpx
import penstock.httpx2
import penstock.requests
from penstock import Limiter, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from conftest import MakeLimiter


# The server does not read chunks.
LENGTH = {"Content-Length": "4"}


class Handler(BaseHTTPRequestHandler):
    """Responds as scripted, then with success."""

    answers: ClassVar[list[tuple[int, dict[str, str]]]] = []
    seen: ClassVar[list[tuple[str, str, bytes]]] = []
    # The end of a response to `/slow` follows when this is set.
    goes_on: ClassVar[Event] = Event()
    has_arrived: ClassVar[Event] = Event()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, body))
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "5")
        self.end_headers()
        if self.path == "/slow":
            self.has_arrived.set()
            self.wfile.write(b"he")
            self.goes_on.wait(30)
            with contextlib.suppress(ConnectionError):
                self.wfile.write(b"llo")
            return
        if self.path == "/broken":
            self.wfile.write(b"he")
            self.close_connection = True
            return
        self.wfile.write(b"hello")

    do_GET = do_PUT = do_POST = answer  # noqa: N815  the parent's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the parent's name
        pass


class Server(ThreadingHTTPServer):
    # The default of 5 makes clients that connect at once wait for seconds.
    request_queue_size = 128


@pytest.fixture
def address() -> Iterator[str]:
    """A server on this machine."""
    Handler.answers, Handler.seen = [], []
    Handler.goes_on.clear()
    Handler.has_arrived.clear()
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            Handler.goes_on.set()
            server.shutdown()
            thread.join()


class Client:
    """A client of one library, whose calls are the same for all."""

    ours: Any
    timeout_error: Any
    inner_option = "transport"
    body_option = "content"

    def __init__(
        self,
        limiter: Limiter | penstock.AsyncLimiter,
        name: Any = "PartnerApi",
        **options: Any,
    ) -> None:
        self.limiter, self.name, self.options = limiter, name, options

    def statuses(self, *calls: tuple[str, str, Any], waits: bool = True) -> list[int]:
        """Send requests in order, each given by a method, a URL and a body.

        The clock moves during them, unless `waits` is false.
        """
        raise NotImplementedError

    def open(self) -> Any:
        """Return a client of the library, with ours in it."""
        raise NotImplementedError

    def streamed(self, client: Any, url: str) -> Any:
        """Request a URL, without reading the response."""
        return client.stream("GET", url)

    def receive(self, url: str, during: Callable[[], object], *, reads: bool) -> None:
        """Request a URL, call `during` when the headers have arrived, then read or close."""
        raise NotImplementedError

    def stream(self) -> Any:
        """Return a body that can be sent once."""
        return iter([b"bo", b"dy"])


class InThread(Client):
    def statuses(self, *calls: tuple[str, str, Any], waits: bool = True) -> list[int]:
        with self.open() as client:
            clock: Any = self.limiter.clock
            asks = [functools.partial(self.ask, client, *call) for call in calls]
            return [in_time(clock, ask) if waits else ask() for ask in asks]

    def receive(self, url: str, during: Callable[[], object], *, reads: bool) -> None:
        with self.open() as client, self.streamed(client, url) as response:
            during()
            if reads:
                Handler.goes_on.set()
                assert b"".join(self.parts(response)) == b"hello"
                during()

    def parts(self, response: Any) -> Iterable[bytes]:
        parts: Iterable[bytes] = response.iter_bytes()
        return parts

    def ask(self, client: Any, method: str, url: str, body: Any) -> int:
        given = {self.body_option: body}
        response = client.request(method, url, **given, headers=LENGTH if body else {})
        assert response.text == "hello"
        status: int = response.status_code
        return status


class Httpx(InThread):
    library: Any = httpx
    ours: Any = penstock.httpx
    timeout_error: Any = httpx.PoolTimeout

    def open(self) -> Any:
        transport = self.ours.Transport(self.limiter, self.name, **self.options)
        return self.library.Client(transport=transport, follow_redirects=True)


class Httpx2(Httpx):
    library = httpx2
    ours = penstock.httpx2
    timeout_error = httpx2.PoolTimeout


class Requests(InThread):
    ours = penstock.requests
    timeout_error = requests.exceptions.ConnectTimeout
    inner_option = "adapter"
    body_option = "data"

    def open(self) -> requests.Session:
        session = requests.Session()
        adapter = penstock.requests.Adapter(self.limiter, self.name, **self.options)  # type: ignore[arg-type]  # a mistake of one test
        session.mount("http://", adapter)
        return session

    def streamed(self, client: Any, url: str) -> Any:
        return client.get(url, stream=True)

    def parts(self, response: Any) -> Iterable[bytes]:
        parts: Iterable[bytes] = response.iter_content(2)
        return parts


class InTask(Client):
    def statuses(self, *calls: tuple[str, str, Any], waits: bool = True) -> list[int]:
        async def main() -> list[int]:
            async with self.open() as client:
                clock: Any = self.limiter.clock
                asks = [functools.partial(self.ask, client, *call) for call in calls]
                return [await (in_loops_time(clock, ask()) if waits else ask()) for ask in asks]

        return asyncio.run(main())

    def receive(self, url: str, during: Callable[[], object], *, reads: bool) -> None:
        async def main() -> None:
            async with self.open() as client, self.streamed(client, url) as response:
                during()
                if reads:
                    Handler.goes_on.set()
                    assert await self.content(response) == b"hello"
                    during()

        asyncio.run(main())

    async def content(self, response: Any) -> bytes:
        content: bytes = await response.aread()
        return content

    async def ask(self, client: Any, method: str, url: str, body: Any) -> int:
        raise NotImplementedError

    async def stream(self) -> Any:
        yield b"bo"
        yield b"dy"


class AsyncHttpx(InTask):
    library: Any = httpx
    ours: Any = penstock.httpx
    timeout_error: Any = httpx.PoolTimeout

    def open(self) -> Any:
        transport = self.ours.AsyncTransport(self.limiter, self.name, **self.options)
        return self.library.AsyncClient(transport=transport, follow_redirects=True)

    async def ask(self, client: Any, method: str, url: str, body: Any) -> int:
        headers = LENGTH if body else {}
        response = await client.request(method, url, content=body, headers=headers)
        assert response.text == "hello"
        status: int = response.status_code
        return status


class AsyncHttpx2(AsyncHttpx):
    library = httpx2
    ours = penstock.httpx2
    timeout_error = httpx2.PoolTimeout


class Aiohttp(InTask):
    ours = penstock.aiohttp
    timeout_error = aiohttp.ServerTimeoutError

    def open(self) -> aiohttp.ClientSession:
        middleware = penstock.aiohttp.Middleware(self.limiter, self.name, **self.options)
        return aiohttp.ClientSession(middlewares=[middleware])

    def streamed(self, client: Any, url: str) -> Any:
        return client.get(url)

    async def content(self, response: Any) -> bytes:
        content: bytes = await response.read()
        return content

    async def ask(self, client: Any, method: str, url: str, body: Any) -> int:
        headers = LENGTH if body else {}
        async with client.request(method, url, data=body, headers=headers) as response:
            assert await response.text() == "hello"
            status: int = response.status
            return status


IN_TASKS = [AsyncHttpx, AsyncHttpx2, Aiohttp]


@pytest.fixture(params=[Httpx, Httpx2, Requests, *IN_TASKS])
def client_class(request: pytest.FixtureRequest) -> type[Client]:
    """A client library."""
    found: type[Client] = request.param
    return found


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> Limiter:
    return make_limiter({"PartnerApi": "2 per 10 seconds"})


def get(address: str, path: str = "/") -> tuple[str, str, Any]:
    return "GET", f"{address}{path}", None


def test_requests_wait_for_their_turn(
    client_class: type[Client], limiter: Limiter, clock: ManualClock, address: str
) -> None:
    assert client_class(limiter).statuses(*[get(address)] * 4) == [200] * 4
    assert clock.now() - START >= 10
    assert limiter.check("PartnerApi", "127.0.0.1", 0).id == "127.0.0.1"


def test_service_is_paced_only_after_a_refusal(
    client_class: type[Client], limiter: Limiter, clock: ManualClock, address: str
) -> None:
    Handler.answers = [(429, {"Retry-After": "20"})]
    client = client_class(limiter, retries=1)
    assert client.statuses(("PUT", f"{address}/a", b"body"), get(address, "/b")) == [200, 200]
    assert clock.now() - START >= 20
    assert Handler.seen == [("PUT", "/a", b"body")] * 2 + [("GET", "/b", b"")]


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_requests_with_unrepeatable_bodies_are_sent_once(
    client_class: type[Client], limiter: Limiter, address: str, method: str
) -> None:
    Handler.answers = [(503, {"Retry-After": "1"})]
    client = client_class(limiter, retries=3)
    # A method that is not idempotent, or a stream.
    body = b"body" if method == "POST" else client.stream()
    assert client.statuses((method, address, body)) == [503]
    assert [body for _, _, body in Handler.seen] == [b"body"]


def test_answer_can_be_read_if_its_retry_would_come_too_late(
    client_class: type[Client], limiter: Limiter, address: str
) -> None:
    Handler.answers = [(429, {"Retry-After": "1"})]
    limiter.spend("PartnerApi", "127.0.0.1")
    assert client_class(limiter, retries=1, timeout=3).statuses(get(address)) == [429]
    assert len(Handler.seen) == 1


def test_redirect_waits_for_a_turn_of_its_own(
    client_class: type[Client], limiter: Limiter, address: str
) -> None:
    Handler.answers = [(302, {"Location": "/to"})]
    assert client_class(limiter).statuses(get(address)) == [200]
    assert limiter.check("PartnerApi", "127.0.0.1", 0).remaining == 0


def test_late_turn_is_a_timeout_error_of_the_library(
    client_class: type[Client], limiter: Limiter, address: str
) -> None:
    client = client_class(limiter, timeout=0)
    with pytest.raises(client.timeout_error) as caught:
        client.statuses(*[get(address)] * 3, waits=False)
    error: Any = caught.value
    assert isinstance(error, client.ours.TurnTimeout)
    assert isinstance(error, penstock.RateLimited)
    assert error.decision.retry_after == 5
    assert error.args == (str(error), error.decision)
    assert len(Handler.seen) == 2
    if isinstance(client, Httpx | AsyncHttpx):
        assert str(caught.value.request.url).startswith(address)


def test_failure_to_send_is_the_callers(client_class: type[Client], limiter: Limiter) -> None:
    client = client_class(limiter, retries=3)
    with pytest.raises(Exception, match=r"(?i)connect|refused") as caught:
        client.statuses(get(f"http://127.0.0.1:{free_port()}"), waits=False)
    assert not isinstance(caught.value, penstock.Error)
    # It may have reached them: the turn is used.
    assert limiter.check("PartnerApi", "127.0.0.1", 0).remaining == 1


@pytest.mark.parametrize("client_class", IN_TASKS)
def test_asynchronous_client_takes_an_async_limiter(
    client_class: type[Client], limiter: Limiter, address: str
) -> None:
    assert client_class(penstock.AsyncLimiter(limiter)).statuses(get(address)) == [200]
    assert limiter.check("PartnerApi", "127.0.0.1", 0).remaining == 1


def test_invalid_options_are_refused(client_class: type[Client], limiter: Limiter) -> None:
    options: dict[str, Any]
    for options in ({"retries": -1}, {"pace": "auto"}, {"retry": 1}, {"limiter": {}}):
        given: dict[str, Any] = {"limiter": limiter, **options}
        with pytest.raises(penstock.ConfigError):
            client_class(**given).statuses()


LIMITS = {"PartnerApi": "2 per 10 seconds", "Calls": "1 in flight"}
BOTH = ["PartnerApi", "Calls"]


@pytest.mark.parametrize("reads", [True, False])
def test_slot_is_held_until_the_response_is_read_or_closed(
    client_class: type[Client], make_limiter: MakeLimiter, address: str, *, reads: bool
) -> None:
    limiter, free = make_limiter(LIMITS), []
    client_class(limiter, "Calls").receive(
        f"{address}/slow",
        lambda: free.append(limiter.peek("Calls", "127.0.0.1").remaining),
        reads=reads,
    )
    assert free == ([0, 1] if reads else [0])
    assert limiter.peek("Calls", "127.0.0.1").remaining == 1


def test_rates_and_slots_are_decided_together(
    client_class: type[Client], make_limiter: MakeLimiter, address: str
) -> None:
    limiter = make_limiter(LIMITS)
    client = client_class(limiter, BOTH, timeout=0)
    with limiter.reserve("Calls", "127.0.0.1"), pytest.raises(client.timeout_error) as caught:
        client.statuses(get(address), waits=False)
    assert caught.value.decision.name == "Calls"
    assert not Handler.seen
    assert limiter.peek("PartnerApi", "127.0.0.1").remaining == 2
    # The third waits for the rate.
    before = limiter.clock.now()
    assert client_class(limiter, BOTH).statuses(*[get(address)] * 3) == [200] * 3
    assert limiter.clock.now() - before >= 5
    assert limiter.peek("Calls", "127.0.0.1").remaining == 1


@pytest.mark.parametrize("name", [BOTH, "Calls"])
def test_a_request_waits_for_a_slot(
    client_class: type[Client],
    make_limiter: MakeLimiter,
    clock: ManualClock,
    address: str,
    name: Any,
) -> None:
    limiter = make_limiter(LIMITS)
    held = limiter.reserve("Calls", "127.0.0.1")
    clock.set_timer(clock.now_ns() + 5_000_000_000, held.release)
    assert client_class(limiter, name).statuses(get(address)) == [200]
    assert clock.now() - START >= 5
    assert limiter.peek("Calls", "127.0.0.1").remaining == 1


def test_the_wait_for_a_slot_ends_at_the_timeout(
    client_class: type[Client], make_limiter: MakeLimiter, clock: ManualClock, address: str
) -> None:
    limiter = make_limiter(LIMITS)

    def refused() -> Any:
        with pytest.raises(client_class.ours.TurnTimeout) as caught:
            client_class(limiter, BOTH, timeout=3).statuses(get(address), waits=False)
        return caught.value.decision

    with limiter.reserve("Calls", "127.0.0.1"):
        decision = in_time(clock, refused)
    assert (decision.name, decision.allowed) == ("Calls", False)
    assert clock.now() - START >= 3
    assert not Handler.seen
    assert limiter.peek("PartnerApi", "127.0.0.1").remaining == 2


@pytest.mark.parametrize("client_class", IN_TASKS)
def test_requests_get_slots_in_order_of_arrival(
    client_class: type[InTask], make_limiter: MakeLimiter, address: str
) -> None:
    limiter = make_limiter({**LIMITS, "PartnerApi": "100/second"})
    sender = client_class(limiter, BOTH)

    async def main() -> None:
        async with sender.open() as client:
            held, tasks = limiter.reserve("Calls", "127.0.0.1"), []
            for index in range(5):
                asking = sender.ask(client, *get(address, f"/{index}"))
                tasks.append(asyncio.create_task(asking))
                await turn_over()
            assert not Handler.seen
            held.release()
            assert await asyncio.gather(*tasks) == [200] * 5

    asyncio.run(main())
    assert [path for _, path, _ in Handler.seen] == [f"/{index}" for index in range(5)]


def test_a_retry_and_a_failure_to_send_return_the_slot(
    client_class: type[Client], make_limiter: MakeLimiter, address: str
) -> None:
    limiter = make_limiter(LIMITS)
    Handler.answers = [(503, {"Retry-After": "1"}), (200, {})]
    assert client_class(limiter, BOTH, retries=1).statuses(get(address)) == [200]
    with pytest.raises((OSError, httpx.ConnectError, httpx2.ConnectError)):
        client_class(limiter, "Calls").statuses(get(f"http://127.0.0.1:{free_port()}"), waits=False)
    assert limiter.peek("Calls", "127.0.0.1").remaining == 1


def test_a_response_that_breaks_before_its_retry_returns_the_slot(
    client_class: type[Client], make_limiter: MakeLimiter, address: str
) -> None:
    limiter = make_limiter(LIMITS)
    Handler.answers = [(503, {"Retry-After": "1"})]
    broken = (OSError, httpx.HTTPError, httpx2.HTTPError, aiohttp.ClientError)
    with pytest.raises(broken) as caught:
        client_class(limiter, BOTH, retries=1).statuses(get(address, "/broken"), waits=False)
    # While the exception refers to the response.
    assert caught.tb is not None
    assert limiter.peek("Calls", "127.0.0.1").remaining == 1


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("client_class", IN_TASKS)
def test_a_cancelled_request_returns_its_slot(
    client_class: type[InTask], make_limiter: MakeLimiter, address: str, retries: int
) -> None:
    limiter = make_limiter(LIMITS)
    # Read before a retry, or by the client.
    Handler.answers = [(503, {})]

    async def main() -> None:
        async with client_class(limiter, "Calls", retries=retries).open() as client:
            task = asyncio.create_task(client_class(limiter).ask(client, *get(address, "/slow")))
            assert await asyncio.to_thread(Handler.has_arrived.wait, 30)
            for _ in range(20):
                await turn_over()
            assert limiter.peek("Calls", "127.0.0.1").remaining == 0
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert caught.tb is not None
            assert limiter.peek("Calls", "127.0.0.1").remaining == 1

    asyncio.run(main())


def test_limit_that_has_become_one_on_requests_in_flight_sends_nothing(
    client_class: type[Client], limiter: Limiter, address: str
) -> None:
    class Reloaded(client_class):  # type: ignore[misc,valid-type]
        def open(self) -> Any:
            client = super().open()
            limiter.reload({"PartnerApi": "1 in flight"})
            return client

    with pytest.raises(penstock.LimitError, match=r"PartnerApi.*reserve"):
        Reloaded(limiter).statuses(get(address), waits=False)
    assert not Handler.seen


class Recording(httpx.BaseTransport, httpx.AsyncBaseTransport, requests.adapters.BaseAdapter):
    """A transport or adapter that records what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __enter__(self) -> Any:
        self.calls.append("enter")

    def __exit__(self, *error: object) -> None:
        self.calls.append("exit")

    async def __aenter__(self) -> Any:
        self.calls.append("enter")

    async def __aexit__(self, *error: object) -> None:
        self.calls.append("exit")

    def close(self) -> None:
        self.calls.append("close")

    async def aclose(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("client_class", [Httpx, Httpx2, AsyncHttpx, AsyncHttpx2, Requests])
def test_inner_transport_is_entered_and_closed_as_without_ours(
    client_class: type[Client], limiter: Limiter
) -> None:
    inner = Recording()
    assert client_class(limiter, **{client_class.inner_option: inner}).statuses() == []
    assert inner.calls == (["close"] if client_class is Requests else ["enter", "exit"])


@pytest.mark.parametrize("client_class", [Httpx, Httpx2, AsyncHttpx, AsyncHttpx2])
def test_inner_transport_is_closed_by_close(client_class: Any, limiter: Limiter) -> None:
    inner = Recording()
    client = client_class(limiter, transport=inner).open()
    client.close() if issubclass(client_class, InThread) else asyncio.run(client.aclose())
    assert inner.calls == ["close"]


@pytest.mark.parametrize(
    "url",
    ["/orders", "https://", "https:///orders", "mailto:ada@example.com", "://", "", "http://["],
)
def test_a_url_without_a_host_is_an_error_of_the_library(
    client_class: type[Client], make_limiter: MakeLimiter, url: str
) -> None:
    limiter = make_limiter(LIMITS)

    def error(client: Client) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011  which one depends on the library
            client.statuses(get(url), waits=False)
        return repr(caught.value)

    class Bare(client_class):  # type: ignore[misc,valid-type]
        def open(self) -> Any:
            if client_class is Aiohttp:
                return aiohttp.ClientSession()
            client = super().open()
            if client_class is Requests:
                client.mount("http://", requests.adapters.HTTPAdapter())
            else:
                client._transport = client._transport.transport
            return client

    assert error(client_class(limiter, BOTH)) == error(Bare(limiter))
    assert limiter.peek("Calls", "127.0.0.1").remaining == 1


def test_a_closed_client_is_an_error_of_the_library(
    client_class: type[Any], limiter: Limiter, address: str
) -> None:
    client = client_class(limiter)

    async def in_task() -> None:
        opened = client.open()
        await (opened.close() if client_class is Aiohttp else opened.aclose())
        await client.ask(opened, *get(address))

    def in_thread() -> None:
        opened = client.open()
        opened.close()
        client.ask(opened, *get(address))

    # A closed session of requests opens its connections again.
    is_error = client_class is not Requests
    with pytest.raises(RuntimeError, match="closed") if is_error else contextlib.nullcontext():
        asyncio.run(in_task()) if client_class in IN_TASKS else in_thread()
