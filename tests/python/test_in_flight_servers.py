"""Slots of requests in flight on real servers: streams, files, hang-ups, exceptions, kills."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from servers import SECONDS_TO_ANSWER, ask, free_port, gunicorn, running, uvicorn
from servers import wait_until_it_answers as wait_for

import penstock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

# Larger than the buffers of the sockets and the servers.
PART = 1_000_000
PARTS = 40
LIMITS = "Exports: {algorithm: in-flight, count: 2, lease: 2s}"
# Streams wait for nothing but their client, so what a client has not read is not sent.
WSGI = f"""
from penstock.wsgi import PenstockMiddleware, shared

PART, PARTS = b"x" * {PART}, {PARTS}

def serve(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/raises":
        raise ValueError
    start_response("200 OK", [("Content-Type", "text/plain")])
    if path == "/file":
        return environ["wsgi.file_wrapper"](open("large.bin", "rb"))
    return parts(path) if path.startswith("/stream") else [b"hello"]

def parts(path):
    for number in range(PARTS):
        if path == "/stream-raises" and number == 2:
            raise ValueError
        yield PART

limited = PenstockMiddleware(
    serve, limits="limits.yaml", store="shm://FOLDER/table", limit="Exports", id=shared("all")
)

def app(environ, start_response):
    return (serve if environ["PATH_INFO"] == "/nowhere" else limited)(environ, start_response)
"""
ASGI = f"""
import asyncio
from penstock.asgi import PenstockMiddleware, shared

PART, PARTS = b"x" * {PART}, {PARTS}

async def serve(scope, receive, send):
    path = scope["path"]
    if scope["type"] == "websocket":
        await receive()
        await send({{"type": "websocket.accept"}})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        return
    if path == "/raises":
        raise ValueError
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    for number in range(PARTS if path.startswith("/stream") else 1):
        if path == "/stream-raises" and number == 2:
            raise ValueError
        await send({{"type": "http.response.body", "body": PART, "more_body": True}})
    await send({{"type": "http.response.body", "body": b""}})
    if path == "/background":
        await asyncio.sleep(3600)

limited = PenstockMiddleware(
    serve, limits="limits.yaml", store="shm://FOLDER/table", limit="Exports", id=shared("all")
)

async def app(scope, receive, send):
    if scope["type"] in ("http", "websocket"):
        await (serve if scope["path"] == "/nowhere" else limited)(scope, receive, send)
"""


def waitress(port: int) -> list[str]:
    return [sys.executable, "-m", "waitress", f"--listen=127.0.0.1:{port}"]


def hypercorn(port: int) -> list[str]:
    options = ["--graceful-timeout", "1", "--bind", f"127.0.0.1:{port}"]
    return [sys.executable, "-m", "hypercorn", *options]


ASGI_SERVERS = {"uvicorn", "hypercorn"}
# Requests of tests may still run when the server ends.
GUNICORN = ["--workers", "1", "--graceful-timeout", "1"]
WEBSOCKET = """Connection: Upgrade\r
Upgrade: websocket\r
Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r
Sec-WebSocket-Version: 13"""


class Site:
    """A running server.

    Attributes:
        process: Its process.
        port: Its port.
        limiter: A limiter on the same store.
        is_wsgi: Whether it serves WSGI.
    """

    def __init__(
        self, name: str, process: subprocess.Popen[str], port: int, limiter: penstock.Limiter
    ) -> None:
        self.is_wsgi = name not in ASGI_SERVERS
        self.process = process
        self.port = port
        self.limiter = limiter

    @property
    def held(self) -> int:
        """The slots that are held."""
        return 2 - self.limiter.peek("Exports", "all").remaining

    def wait_until_held(self, number: int) -> None:
        """Wait until a number of slots is held."""
        clock = penstock.SystemClock()
        deadline = clock.now() + SECONDS_TO_ANSWER
        while self.held != number:
            assert clock.now() < deadline, self.held

    def open(
        self, path: str, fields: str = "Connection: close", status: int = 200
    ) -> socket.socket:
        """Send a request, and read the status of its response."""
        connection = socket.create_connection(("127.0.0.1", self.port), SECONDS_TO_ANSWER)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode())
        assert connection.recv(12) == f"HTTP/1.1 {status}".encode()
        return connection


SERVERS = ["sync", "gthread", "waitress", "uvicorn", "hypercorn"]


@pytest.fixture(scope="module", params=SERVERS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    yield from served(request.param, tmp_path_factory.mktemp("server"))


def served(name: str, folder: Path) -> Iterator[Site]:
    if name == "waitress":
        pytest.importorskip(name)
    port = free_port()
    commands = {
        "sync": gunicorn(port, folder, *GUNICORN),
        "gthread": gunicorn(port, folder, *GUNICORN, "--threads", "4"),
        "waitress": waitress(port),
        "uvicorn": uvicorn(port, "--timeout-graceful-shutdown", "1"),
        "hypercorn": hypercorn(port),
    }
    (folder / "limits.yaml").write_text(LIMITS)
    app = ASGI if name in ASGI_SERVERS else WSGI
    (folder / "shop.py").write_text(app.replace("FOLDER", str(folder)))
    (folder / "large.bin").write_bytes(b"x" * PART * PARTS)
    with running([*commands[name], "shop:app"], folder) as process:
        wait_for(process, port)
        limits = penstock.Limits.load(folder / "limits.yaml")
        with penstock.Limiter(limits, f"shm://{folder}/table") as limiter:
            yield Site(name, process, port, limiter)


def read_all(connection: socket.socket) -> int:
    with closing(connection):
        return sum(iter(lambda: len(connection.recv(PART)), 0))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_slot_is_free_after_a_response(site: Site, method: str) -> None:
    assert [ask(site.port, "/plain", method=method)[0].status for _ in range(3)] == [200] * 3
    site.wait_until_held(0)


def test_slot_is_held_until_a_stream_has_been_sent(site: Site) -> None:
    stream = site.open("/stream")
    assert site.held == 1
    assert read_all(stream) > PART * (PARTS - 1)
    site.wait_until_held(0)


def test_slot_is_held_until_a_file_has_been_sent(site: Site) -> None:
    if not site.is_wsgi:
        pytest.skip("servers of ASGI send no files themselves")
    stream = site.open("/file")
    assert site.held == 1
    assert read_all(stream) > PART * (PARTS - 1)
    site.wait_until_held(0)


def test_slot_is_free_after_the_client_has_left(site: Site) -> None:
    stream = site.open("/stream")
    assert site.held == 1
    stream.close()
    site.wait_until_held(0)


def test_slot_is_free_after_an_exception(site: Site) -> None:
    assert ask(site.port, "/raises")[0].status == 500
    site.wait_until_held(0)
    with closing(site.open("/stream-raises")):
        site.wait_until_held(0)


def test_background_task_holds_no_slot(site: Site) -> None:
    if site.is_wsgi:
        pytest.skip("WSGI has no background tasks")
    with closing(site.open("/background")):
        site.wait_until_held(0)


def test_websocket_holds_a_slot_until_it_closes(site: Site) -> None:
    if site.is_wsgi:
        pytest.skip("WSGI has no WebSockets")
    first = site.open("/socket", WEBSOCKET, 101)
    assert site.held == 1
    with closing(site.open("/socket", WEBSOCKET, 101)):
        with closing(site.open("/socket", WEBSOCKET, 429)):
            assert site.held == 2
        first.close()
        site.wait_until_held(1)
        site.open("/socket", WEBSOCKET, 101).close()
    site.wait_until_held(0)


@pytest.mark.parametrize("name", ["sync", "gthread", "uvicorn"])
@pytest.mark.parametrize("is_read", [True, False])
def test_slots_of_a_terminated_server_are_given_back_or_expire(
    name: str, is_read: bool, tmp_path: Path
) -> None:
    for site in served(name, tmp_path):
        # A slot of another process, which reaches the count, must not be given back.
        with site.limiter.reserve("Exports", "all"), closing(site.open("/stream")) as stream:
            assert site.held == 2
            site.process.terminate()
            if is_read:
                assert read_all(stream) > PART * (PARTS - 1)
            site.process.wait(SECONDS_TO_ANSWER)
            # A server that stops waiting for its client leaves the slot to its lease.
            assert site.held == 1 or not is_read
            site.wait_until_held(1)
            with site.limiter.reserve("Exports", "all"):
                assert not site.limiter.check("Exports", "all")


def test_slots_of_a_killed_process_are_free_after_two_leases(tmp_path: Path) -> None:
    for site in served("sync", tmp_path):
        with closing(site.open("/stream")):
            assert site.held == 1
            (worker,) = children(site.process.pid)
            os.kill(worker, signal.SIGKILL)
            # Still counted: at least one lease.
            assert site.held == 1
            site.wait_until_held(0)


def children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in listed.split()]
