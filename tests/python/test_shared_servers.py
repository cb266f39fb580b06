"""Servers with several workers on one shared store, under load, while workers are killed.

1. The workers of a server admit exactly the limit together, also as threads and after a fork.
2. A worker that is killed by SIGKILL admits nothing twice, and loses at most the charges of the
   requests that it was serving.
3. A restart of the server keeps the state.
4. Another program that opens the same name counts in the same buckets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import pytest
from servers import ask, free_port, gunicorn, running, uvicorn, wait_until_it_answers
from shops import ASGI, DJANGO, FASTAPI, FLASK, shop

import penstock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from conftest import StartServer

# So slow that no token is added while a test runs.
BURST = 100
LIMITS = f"""
PerClient: {{burst: {BURST}, count: 1, period: 1h, id: ipAddress}}
PerDay: {{algorithm: fixed-window, count: {10 * BURST}, period: 24h, id: ipAddress}}
"""
CLIENTS = ("203.0.113.7", "203.0.113.8")
LOAD_THREADS = 6
SLOW = pytest.mark.slow

# Each view writes one byte per admitted request, so that a request whose response is lost counts.
ADMIT = """
import os

def answer(client):
    with open(f"admitted-{client}", "ab", buffering=0) as file:
        file.write(b"x")
    return str(os.getpid())
"""
OPTIONS = """
    limits=os.path.abspath("limits.yaml"), trusted_proxies=["127.0.0.1"], on_store_error="raise",
"""
# As a cron job: a program that is not a worker of the server.
JOB = """
import sys, penstock
limiter = penstock.Limiter(penstock.Limits.load("limits.yaml"), store=sys.argv[1])
print(sum(limiter.spend("PerClient", sys.argv[2]).allowed for _ in range(int(sys.argv[3]))))
"""


class Site(NamedTuple):
    """A folder with an application, and the store of the application.

    Attributes:
        folder: The folder.
        store: The URL of the store.
    """

    folder: Path
    store: str

    def admitted(self, client: str) -> int:
        """Return how many requests of a client reached the view."""
        file = self.folder / f"admitted-{client}"
        return file.stat().st_size if file.exists() else 0

    def limiter(self) -> penstock.Limiter:
        """Return a limiter of this process with the same store."""
        return penstock.Limiter(penstock.Limits.load(self.folder / "limits.yaml"), store=self.store)

    @contextmanager
    def serve(self, command: Callable[..., list[str]], *options: str) -> Iterator[int]:
        """Run a server; give its port."""
        port = free_port()
        with running([*command(port, *options), "shop:app"], self.folder) as process:
            wait_until_it_answers(process, port)
            yield port

    def run_job(self, client: str, times: int) -> int:
        """Spend from another program. Return how many requests were allowed."""
        command = [sys.executable, "-c", JOB, self.store, client, str(times)]
        return int(subprocess.check_output(command, cwd=self.folder, text=True))


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store that processes share: a table, or a server if the test says so."""
    if getattr(request, "param", "shm") == "shm":
        return f"shm://{tmp_path}/store?capacity=1000"
    start_server: StartServer = request.getfixturevalue("start_server")
    # A loaded machine must not turn a slow call into a failed one.
    return f"{start_server().url}?deadline=20s"


@pytest.fixture
def make_site(tmp_path: Path, store: str) -> Callable[[str], Site]:
    """Writes an application into a folder."""

    def make(app: str) -> Site:
        options = f"{OPTIONS} store={store!r}"
        text = shop(app, limits='"PerClient", "PerDay"', options=options, answer=ADMIT)
        (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
        (tmp_path / "shop.py").write_text(text, encoding="utf-8")
        return Site(tmp_path, store)

    return make


class Load:
    """Requests of all clients from several threads; kills workers meanwhile.

    Attributes:
        statuses: The numbers of responses by client and status; "lost" for a lost response.
        workers: The processes that answered.
        killed: The processes that were killed.
    """

    def __init__(self, port: int, kill_after: Sequence[int] = ()) -> None:
        self._port = port
        self._lock = Lock()
        self._kill_after = kill_after
        self.statuses: Counter[tuple[str, int | str]] = Counter()
        self.workers: set[int] = set()
        self.killed: list[int] = []

    def run(self, times: int) -> None:
        """Send so many requests of each client."""
        with ThreadPoolExecutor(LOAD_THREADS) as threads:
            list(threads.map(self._ask, CLIENTS * times))

    def _ask(self, client: str) -> None:
        try:
            response, body = ask(self._port, f"/orders/{client}", X_Forwarded_For=client)
        except (ConnectionError, HTTPException):
            with self._lock:
                self.statuses[client, "lost"] += 1
            return
        with self._lock:
            self.statuses[client, response.status] += 1
            if response.status == 200:
                self._count_worker(int(body))

    def _count_worker(self, worker: int) -> None:
        self.workers.add(worker)
        answered = sum(self.statuses.values())
        if len(self.killed) < len(self._kill_after) and (
            answered >= self._kill_after[len(self.killed)]
        ):
            # It may be serving requests of other threads.
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                self.killed.append(worker)


def check_exact(site: Site, load: Load) -> None:
    """Check that each client was admitted exactly its limit, less what killed workers lost."""
    limiter = site.limiter()
    for client in CLIENTS:
        allowed, lost = load.statuses[client, 200], load.statuses[client, "lost"]
        denied = load.statuses[client, 429]
        assert denied > 0, load.statuses
        assert limiter.peek("PerClient", client).remaining == 0
        assert allowed <= site.admitted(client) <= BURST
        # A lost response was admitted, charged without being admitted, or neither.
        assert site.admitted(client) >= BURST - lost
        # Charged together with the other limit, or given back.
        used = 10 * BURST - limiter.peek("PerDay", client).remaining
        assert site.admitted(client) <= used <= BURST + lost
    if not load.killed:
        assert load.statuses == Counter(
            {(client, 200): BURST for client in CLIENTS}
            | {(client, 429): load.statuses[client, 429] for client in CLIENTS}
        )


def on_gunicorn(folder: Path) -> Callable[..., list[str]]:
    """Return a command for `Site.serve`."""
    return lambda port, *options: gunicorn(port, folder, *options)


SYNC = ("--workers", "3")
THREADS = ("--workers", "2", "--worker-class", "gthread", "--threads", "4")
PRELOAD = ("--preload",)
UVICORN = ("--workers", "3", "--no-access-log", "--lifespan", "off")


@pytest.mark.parametrize(
    ("store", "app", "options"),
    [
        pytest.param("shm", FLASK, SYNC, id="flask-sync"),
        pytest.param("shm", FLASK, (*THREADS, *PRELOAD), id="flask-gthread-preload"),
        pytest.param("shm", DJANGO, (*SYNC, *PRELOAD), id="django-sync-preload"),
        pytest.param("shm", DJANGO, THREADS, id="django-gthread"),
        pytest.param("shm", FASTAPI, UVICORN, id="fastapi"),
        pytest.param("shm", ASGI, UVICORN, id="asgi"),
        pytest.param("redis", FLASK, (*THREADS, *PRELOAD), id="redis-preload", marks=SLOW),
        pytest.param("redis", FASTAPI, UVICORN, id="redis-fastapi", marks=SLOW),
    ],
    indirect=["store"],
)
def test_server_admits_exactly_the_limit_while_workers_are_killed(
    make_site: Callable[[str], Site], app: str, options: tuple[str, ...]
) -> None:
    site = make_site(app)
    # uvicorn starts another worker after a while.
    kills = (50, 100) if options == UVICORN else (30, 60, 90, 120, 150)
    command = uvicorn if options == UVICORN else on_gunicorn(site.folder)
    with site.serve(command, *options) as port:
        load = Load(port, kills)
        load.run(BURST + 40)
    assert len(load.killed) == len(kills)
    assert len(load.workers) >= 3
    check_exact(site, load)


def test_restart_of_the_server_keeps_the_state_and_a_job_counts_too(
    make_site: Callable[[str], Site],
) -> None:
    site = make_site(FLASK)
    ada, grace = CLIENTS
    command = on_gunicorn(site.folder)
    with site.serve(command, *THREADS) as port:
        load = Load(port)
        load.run(BURST // 2)
        assert load.workers
        assert site.run_job(ada, 10) == 10
    with site.serve(command, *THREADS) as port:
        again = Load(port)
        again.run(BURST)
        assert again.workers.isdisjoint(load.workers)
        assert site.run_job(grace, 10) == 0
    left = BURST - BURST // 2
    assert again.statuses[ada, 200] == left - 10
    assert again.statuses[grace, 200] == left


@pytest.mark.parametrize(
    ("example", "path", "burst"), [("flask_app", "/search", 30), ("fastapi_app", "/export", 10)]
)
def test_workers_of_an_example_share_its_limits(
    root: Path, tmp_path: Path, store: str, *, example: str, path: str, burst: int
) -> None:
    port, folder = free_port(), root / "examples" / example
    if example == "flask_app":
        command = gunicorn(port, tmp_path, "--workers", "3", "app:app")
        variable = "FLASK_PENSTOCK_STORE"
    else:
        command = uvicorn(port, "--workers", "3", "--no-access-log", "app:app")
        variable = "SHOP_STORE"
    with running(command, folder, **{variable: store}) as process:
        wait_until_it_answers(process, port)
        with ThreadPoolExecutor(LOAD_THREADS) as threads:
            asked = threads.map(lambda _: ask(port, path)[0].status, range(3 * burst))
            statuses = Counter(asked)
    assert statuses == {200: burst, 429: 2 * burst}
