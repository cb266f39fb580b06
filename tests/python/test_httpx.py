"""Transports for httpx and for httpx2: the same, with errors of the one or the other."""

from __future__ import annotations

import asyncio
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest
from services import START, in_loops_time, in_time

import penstock
import penstock.httpx
import penstock.httpx2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import MakeLimiter

URL = "https://api.example.com/orders"


@pytest.fixture(
    params=[(httpx, penstock.httpx), (httpx2, penstock.httpx2)], ids=["httpx", "httpx2"]
)
def libraries(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A client library, and ours for it."""
    found: tuple[Any, Any] = request.param
    return found


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
    return make_limiter({"PartnerApi": "2 per 10 seconds"})


class Service:
    """Service with scripted answers, which records when it was asked."""

    def __init__(self, library: Any, clock: penstock.ManualClock, *answers: Any) -> None:
        self.library = library
        self.clock = clock
        self.answers = list(answers)
        self.times: list[float] = []
        self.bodies: list[bytes] = []

    def __call__(self, request: Any) -> Any:
        self.times.append(self.clock.now() - START)
        self.bodies.append(request.read())
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        return self.library.Response(status, headers=headers, content=b"answer")

    async def asked(self, request: Any) -> Any:
        await request.aread()
        return self(request)


def test_client_waits_for_its_turn(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries
    service = Service(library, clock)
    transport = ours.Transport(limiter, "PartnerApi", transport=library.MockTransport(service))
    with library.Client(transport=transport) as client:
        for _ in range(4):
            assert in_time(clock, lambda: client.get(URL)).text == "answer"
    assert service.times[:2] == [0, 0]
    assert service.times[2] >= 5
    assert service.times[3] >= 10


def test_async_client_waits_for_its_turn_without_blocking_others(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries
    service = Service(library, clock, (429, {"Retry-After": "3"}))

    async def main() -> list[int]:
        inner = library.MockTransport(service.asked)
        transport = ours.AsyncTransport(limiter, "PartnerApi", transport=inner)
        async with library.AsyncClient(transport=transport) as client:
            first = await client.get(URL)
            # The loop must go on, or the clock would never be moved.
            calls = asyncio.gather(*(client.get(URL) for _ in range(3)))
            answers = await in_loops_time(clock, _awaited(calls))
            return [first.status_code, *(answer.status_code for answer in answers)]

    assert asyncio.run(main()) == [429, 200, 200, 200]
    assert all(time >= 3 for time in service.times[1:])
    assert service.times[3] >= 10


async def _awaited(calls: Any) -> Any:
    return await calls


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.anyio
async def test_async_transport_takes_either_limiter(
    libraries: tuple[Any, Any],
    limiter: penstock.Limiter,
    clock: penstock.ManualClock,
    *,
    wrapped: bool,
) -> None:
    library, ours = libraries
    inner = library.MockTransport(Service(library, clock).asked)
    given = penstock.AsyncLimiter(limiter) if wrapped else limiter

    transport = ours.AsyncTransport(given, "PartnerApi", transport=inner)
    async with library.AsyncClient(transport=transport) as client:
        await client.get(URL)
    assert limiter.check("PartnerApi", "api.example.com", 0).remaining == 1


def test_turn_that_comes_too_late_is_an_error_of_the_client_library(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries
    service = Service(library, clock)
    inner = library.MockTransport(service)
    transport = ours.Transport(limiter, "PartnerApi", timeout=0, transport=inner)
    with library.Client(transport=transport) as client:
        client.get(URL)
        client.get(URL)
        with pytest.raises(library.PoolTimeout) as caught:
            client.get(URL)
    error = caught.value
    assert isinstance(error, ours.TurnTimeout)
    assert isinstance(error, penstock.RateLimited)
    assert isinstance(error, library.TransportError)
    assert str(error.request.url) == URL
    assert error.decision.retry_after == 5
    assert str(error) == "denied by PartnerApi: the turn would come in 5 s, too late"
    assert len(service.times) == 2


@pytest.mark.anyio
async def test_turn_that_comes_too_late_is_an_error_in_a_task_too(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries
    service = Service(library, clock, (503, {"Retry-After": "60"}))

    inner = library.MockTransport(service.asked)
    transport = ours.AsyncTransport(limiter, "PartnerApi", timeout=0, transport=inner)
    async with library.AsyncClient(transport=transport) as client:
        await client.get(URL)
        with pytest.raises(library.PoolTimeout, match="60 s, too late") as caught:
            await client.get(URL)
        assert caught.value.decision.retry_after == 60
    assert len(service.times) == 1


def test_error_is_made_of_its_message_and_decision(
    libraries: tuple[Any, Any], limiter: penstock.Limiter
) -> None:
    _, ours = libraries
    error = ours.TurnTimeout("too late", limiter.check("PartnerApi", "ada"))
    assert str(error) == "too late"
    assert error.args == ("too late", error.decision)
    with pytest.raises(RuntimeError, match="request"):
        _ = error.request


def test_busy_answer_is_retried_with_its_body(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries
    service = Service(library, clock, (503, {"Retry-After": "2"}))
    inner = library.MockTransport(service)
    transport = ours.Transport(limiter, "PartnerApi", retries=1, transport=inner)
    with library.Client(transport=transport) as client:
        answer = in_time(clock, lambda: client.put(URL, content=b"body"))
    assert answer.status_code == 200
    assert service.bodies == [b"body", b"body"]
    assert service.times[1] >= 2


def test_stream_is_not_sent_again(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries

    def refuse(request: Any) -> Any:
        # As a real transport reads it, leaving nothing behind.
        sent.append(b"".join(request.stream))
        return library.Response(503, headers={"Retry-After": "2"})

    sent: list[bytes] = []
    inner = library.MockTransport(refuse)
    inner.handle_request = refuse
    transport = ours.Transport(limiter, "PartnerApi", retries=3, transport=inner)
    with library.Client(transport=transport) as client:
        answer = in_time(clock, lambda: client.put(URL, content=iter([b"bo", b"dy"])))
    assert answer.status_code == 503
    assert sent == [b"body"]


def test_async_busy_answer_is_retried(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries
    service = Service(library, clock, (503, {"Retry-After": "2"}))

    async def main() -> int:
        inner = library.MockTransport(service.asked)
        transport = ours.AsyncTransport(limiter, "PartnerApi", retries=1, transport=inner)
        async with library.AsyncClient(transport=transport) as client:
            answer = await in_loops_time(clock, client.put(URL, content=b"body"))
        status: int = answer.status_code
        return status

    assert asyncio.run(main()) == 200
    assert service.bodies == [b"body", b"body"]


def test_answer_that_is_returned_after_retries_can_be_read(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries
    service = Service(library, clock, (429, {"Retry-After": "1"}))
    inner = library.MockTransport(service)
    transport = ours.Transport(limiter, "PartnerApi", retries=1, timeout=3, transport=inner)
    limiter.spend("PartnerApi", "api.example.com")
    with library.Client(transport=transport) as client:
        answer = in_time(clock, lambda: client.get(URL))
        assert (answer.status_code, answer.text) == (429, "answer")
        assert len(service.times) == 1


def test_redirects_wait_for_a_turn_of_their_own(
    libraries: tuple[Any, Any], limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    library, ours = libraries
    service = Service(library, clock, (302, {"Location": "/a"}), (302, {"Location": "/b"}))
    inner = library.MockTransport(service)
    transport = ours.Transport(limiter, "PartnerApi", transport=inner)
    with library.Client(transport=transport, follow_redirects=True) as client:
        assert in_time(clock, lambda: client.get(URL)).status_code == 200
    assert service.times[:2] == [0, 0]
    assert service.times[2] >= 5


def test_failure_to_send_is_the_callers(
    libraries: tuple[Any, Any], limiter: penstock.Limiter
) -> None:
    library, ours = libraries

    def fail(request: Any) -> Any:
        raise library.ConnectError("connection refused", request=request)

    transport = ours.Transport(
        limiter, "PartnerApi", retries=3, transport=library.MockTransport(fail)
    )
    with library.Client(transport=transport) as client, pytest.raises(library.ConnectError):
        client.get(URL)
    # It may have reached them: the turn is used.
    assert limiter.check("PartnerApi", "api.example.com", 0).remaining == 1


class Closing:
    """A transport that says whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.is_closed = True


def test_transport_within_is_closed(libraries: tuple[Any, Any], limiter: penstock.Limiter) -> None:
    library, ours = libraries
    inner = Closing()
    with library.Client(transport=ours.Transport(limiter, "PartnerApi", transport=inner)):
        pass
    assert inner.is_closed

    async def main() -> bool:
        inner = Closing()
        transport = ours.AsyncTransport(limiter, "PartnerApi", transport=inner)
        async with library.AsyncClient(transport=transport):
            pass
        return inner.is_closed

    assert asyncio.run(main())


def test_mistakes_are_found_at_once(libraries: tuple[Any, Any], limiter: penstock.Limiter) -> None:
    _, ours = libraries
    for make in (ours.Transport, ours.AsyncTransport):
        with pytest.raises(penstock.ConfigError, match="did you mean 'PartnerApi'"):
            make(limiter, "PartnerAPI")
        with pytest.raises(penstock.ConfigError, match=r"must be a penstock\.Limiter, found {}"):
            make({}, "PartnerApi")


class Busy(BaseHTTPRequestHandler):
    """Answers the first request with a 429."""

    seen = 0

    def do_GET(self) -> None:
        Busy.seen += 1
        self.send_response(429 if Busy.seen == 1 else 200)
        self.send_header("Content-Length", "0")
        if Busy.seen == 1:
            self.send_header("Retry-After", "5")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the parent's name
        pass


@pytest.fixture
def address() -> Iterator[str]:
    """A server on this machine."""
    Busy.seen = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_real_server_is_left_alone_until_it_says(
    libraries: tuple[Any, Any],
    limiter: penstock.Limiter,
    clock: penstock.ManualClock,
    address: str,
) -> None:
    library, ours = libraries
    with library.Client(transport=ours.Transport(limiter, "PartnerApi", retries=1)) as client:
        assert in_time(clock, lambda: client.get(address)).status_code == 200
    assert clock.now() - START >= 5

    async def main() -> int:
        transport = ours.AsyncTransport(limiter, "PartnerApi", id="all")
        async with library.AsyncClient(transport=transport) as client:
            answer = await client.get(address)
        status: int = answer.status_code
        return status

    assert asyncio.run(main()) == 200
    assert Busy.seen == 3
