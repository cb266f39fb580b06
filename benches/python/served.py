"""FastAPI on a real server: what limits over Redis do to an event loop that serves requests.

Each variant of one application is served by uvicorn in a process of its own, with uvloop and
httptools, and answers 16 connections that each send the next request when they have the response.
The variants take turns, in rounds; the figures are medians over rounds. The processor time of the
server's process per request does not depend on what else the machine does, the 99th percentile of
the response times does: compare it with that of the route without limits. The server's garbage
collector works as usual.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fastapi
import harness
import slowapi
import slowapi.util
import uvicorn
import uvloop
from fastapi.responses import PlainTextResponse

import penstock.asgi
import penstock.fastapi

sys.path.append(str(Path(__file__).parents[2] / "tests" / "python"))
from redis_servers import HOST, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Large enough that no request is refused.
PLENTY: Final = "1000000000/hour"
CONNECTIONS: Final = 16
REQUEST: Final = b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n"
BODY: Final = b"hello"


def _bare(_: str) -> Any:
    app = fastapi.FastAPI()
    app.get("/")(_hello)
    return app


async def _hello() -> PlainTextResponse:
    return PlainTextResponse(BODY)


def _dependency(store: str) -> Any:
    app = fastapi.FastAPI()
    penstock.fastapi.install(app, limits={"Requests": PLENTY}, store=store)
    limit = fastapi.Depends(penstock.fastapi.RateLimit("Requests"))
    app.get("/", dependencies=[limit])(_hello)
    return app


def _middleware(store: str) -> Any:
    limits = {"Requests": PLENTY}
    return penstock.asgi.PenstockMiddleware(
        _bare(store), limit="Requests", limits=limits, store=store
    )


def _slowapi(store: str) -> Any:
    app = fastapi.FastAPI()
    limiter = slowapi.Limiter(
        key_func=slowapi.util.get_remote_address, headers_enabled=True, storage_uri=store
    )
    app.state.limiter = limiter

    @app.get("/")
    @limiter.limit(PLENTY)
    async def limited(request: fastapi.Request) -> PlainTextResponse:
        return PlainTextResponse(BODY)

    return app


APPS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "bare": (_bare, ""),
    "dependency, memory": (_dependency, "memory://"),
    "middleware, memory": (_middleware, "memory://"),
    # A long timeout: a slow call on a loaded machine must not fail.
    "dependency, Redis": (_dependency, "redis?deadline=10s"),
    "middleware, Redis": (_middleware, "redis?deadline=10s"),
    "slowapi, Redis": (_slowapi, "redis"),
}


def serve(variant: str, listener: socket.socket, redis_url: str, *, frozen: bool) -> None:
    """Serve a variant until the process is ended."""
    make, store = APPS[variant]
    app = make(store.replace("redis", redis_url, 1))
    config = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level=40)
    if frozen:
        gc.collect()
        gc.freeze()
    uvicorn.Server(config).run(sockets=[listener])


class Round(NamedTuple):
    """Measurements of one round of one variant."""

    per_second: float
    cpu_us: float
    """Processor time of the server's process per request, in microseconds."""
    p99_ms: float


class _Connection(asyncio.Protocol):
    """Sends requests, one after another, and keeps the response times."""

    def __init__(self) -> None:
        self.took: list[int] = []
        self.has_answer: Final = asyncio.Event()
        self._received = b""
        self._sent = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self) -> None:
        self._sent = time.perf_counter_ns()
        self._transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(BODY):
            assert self._received.startswith(b"HTTP/1.1 200 "), self._received
            self._received = b""
            self.has_answer.set()
            self.took.append(time.perf_counter_ns() - self._sent)
            self.send()


class Served:
    """A process that serves a variant."""

    def __init__(self, variant: str, redis_url: str, *, frozen: bool = False) -> None:
        with socket.create_server((HOST, 0), backlog=CONNECTIONS) as listener:
            self.port: Final[int] = listener.getsockname()[1]
            options = ["--frozen"] if frozen else []
            self._process: Final = subprocess.Popen(
                [sys.executable, __file__, "--serve", variant, redis_url, *options],
                pass_fds=[listener.fileno()],
                env={**os.environ, "SERVED_FD": str(listener.fileno())},
            )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    async def run(self, connections: int, seconds: float) -> Round:
        """Send requests over several connections at the same time."""
        loop = asyncio.get_running_loop()
        # A client for each connection.
        opened = [
            await loop.create_connection(
                _Connection, HOST, self.port, local_addr=(f"127.0.1.{number + 1}", 0)
            )
            for number in range(connections)
        ]
        clients = [client for _, client in opened]
        for client in clients:
            client.send()
        # The first requests are not measured: the server may still be starting.
        await asyncio.gather(*(client.has_answer.wait() for client in clients))
        await asyncio.sleep(seconds / 5)
        for client in clients:
            client.took.clear()
            client.has_answer.clear()
        cpu, started = harness.cpu_ns(self.pid), time.perf_counter()
        await asyncio.sleep(seconds)
        # A short run on a busy machine may have no answer yet.
        await asyncio.gather(*(client.has_answer.wait() for client in clients))
        cpu, elapsed = harness.cpu_ns(self.pid) - cpu, time.perf_counter() - started
        took = sorted(itertools.chain.from_iterable(client.took for client in clients))
        for transport, _ in opened:
            transport.close()
        count = len(took)
        return Round(count / elapsed, cpu / count / 1e3, took[count * 99 // 100] / 1e6)


async def measure(
    variants: Mapping[str, Served], rounds: int, seconds: float
) -> dict[str, list[Round]]:
    """Run each variant in turn, `rounds` times, after a warm-up."""
    for served in variants.values():
        await served.run(CONNECTIONS, seconds / 5)
    found: dict[str, list[Round]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, served in variants.items():
            found[name].append(await served.run(CONNECTIONS, seconds))
    return found


def show(table: harness.Table, found: Mapping[str, list[Round]]) -> None:
    """Add the rows of all variants."""
    bare = found["bare"]
    for name, rounds in found.items():
        speed = statistics.median(each.per_second for each in rounds)
        cpu = statistics.median(each.cpu_us for each in rounds)
        p99 = statistics.median(each.p99_ms for each in rounds)
        what = f"{speed:,.0f} per second, {cpu:.1f} us of processor time, p99 {p99:.2f} ms"
        table.seen("", f"FastAPI, {name}", what)
        if name == "bare":
            continue
        pairs = list(zip(rounds, bare, strict=True))
        added = [mine.cpu_us - without.cpu_us for mine, without in pairs]
        share = [mine.p99_ms / without.p99_ms for mine, without in pairs]
        most, times = TARGETS.get(name, (None, None))
        for what, values, target, unit in (
            ("processor time added", added, most, " us"),
            ("p99 relative to no limit", share, times, " x"),
        ):
            row = f"FastAPI, {name}, {what}{harness.uneven(values)}"
            median = statistics.median(values)
            if target is None:
                table.seen("3", row, f"{median:.3g}{unit}")
            else:
                table.at_most("3", row, target, median, unit)


TARGETS: Final = {"dependency, Redis": (50.0, 2.0), "middleware, Redis": (35.0, 2.0)}
"""The most processor time added to a request, in microseconds, and the largest p99 by variant."""


def main() -> None:
    """Serve all variants, and measure them in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="run briefly, to see that it works")
    parser.add_argument("--only", nargs="*", help="the variants to measure")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--frozen", action="store_true", help="servers call gc.freeze() at start")
    parser.add_argument("--serve", nargs=2, metavar=("VARIANT", "REDIS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        variant, redis_url = options.serve
        listener = socket.socket(fileno=int(os.environ["SERVED_FD"]))
        serve(variant, listener, redis_url, frozen=options.frozen)
        return
    rounds, seconds = (1, 0.1) if options.quick else (options.rounds, 1.0)
    table = harness.Table("On a real server, over Redis", is_conclusive=not options.quick)
    names = [name for name in APPS if not options.only or name == "bare" or name in options.only]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder)).start()
        url = f"redis://{HOST}:{server.port}"
        variants = {name: Served(name, url, frozen=options.frozen) for name in names}
        others = harness.OtherWork(server.pid, *(served.pid for served in variants.values()))
        try:
            show(table, uvloop.run(measure(variants, rounds, seconds)))
            table.quiet(others)
        finally:
            for served in variants.values():
                served.stop()
            server.stop()
    table.show()


if __name__ == "__main__":
    main()
