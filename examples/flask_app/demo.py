"""The demonstration of the example app: `python -m flask_app.demo` in the folder `examples`.

`app.py` is an ordinary Flask app. This module serves it over HTTP on the loopback interface, in one
process or, with `--workers`, in several that share one store, sends requests as several clients,
and prints the responses.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO
from urllib.parse import urlencode

from flask_app import worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


HERE: Final = Path(__file__).parent
_WIDTH: Final = 100
_SHOWN: Final = ("RateLimit-Policy", "RateLimit", "Retry-After", "Cache-Control", "Link")
_SECONDS_TO_ANSWER: Final = 30
_SEARCHES: Final = 60
_SEARCHES_AT_ONCE: Final = 12


class Answer(NamedTuple):
    """The response that a client received."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: str


class Client:
    """A client of the server, with an address that a proxy reports."""

    def __init__(self, port: int, address: str) -> None:
        self.address: Final = address
        self._port: Final = port

    def ask(self, method: str, path: str, form: Mapping[str, str] | None = None) -> Answer:
        """Send one request over a new connection."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS_TO_ANSWER)
        headers = {"X-Forwarded-For": self.address}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, urlencode(form) if form else None, headers)
            response = connection.getresponse()
            body = response.read().decode()
            return Answer(response.status, response.reason, dict(response.getheaders()), body)
        finally:
            connection.close()


@contextmanager
def serve(workers: int = 1) -> Iterator[int]:
    """Serve the example app on a free port of the loopback interface; yield the port."""
    with _serve_here() if workers == 1 else _serve_in_processes(workers) as port:
        yield port


@contextmanager
def _serve_here() -> Iterator[int]:
    server = worker.make()
    thread = Thread(target=server.serve_forever, name="penstock demo", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def _serve_in_processes(workers: int) -> Iterator[int]:
    """Serve from several processes that accept on one socket and share one store."""
    with TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        # The same as FLASK_PENSTOCK_STORE=shm://shop gunicorn --workers 4.
        environ = {**os.environ, "FLASK_PENSTOCK_STORE": f"shm://{folder}/store"}  # noqa: TID251  passed on
        fd = listener.fileno()
        processes = [
            subprocess.Popen(  # noqa: S603  this folder
                [sys.executable, "-m", "flask_app.worker", str(fd), str(number)],
                cwd=HERE.parent,
                env=environ,
                pass_fds=[fd],
            )
            for number in range(1, workers + 1)
        ]
        try:
            yield listener.getsockname()[1]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


class _Page:
    """Text output, colored if it is a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out: Final = out
        self._is_colored: Final = out.isatty()

    def _paint(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_colored else text

    def line(self, text: str = "") -> None:
        self._out.write(f"{text}\n")
        self._out.flush()

    def heading(self, text: str) -> None:
        self.line()
        self.line(self._paint(text, 1))

    def paragraph(self, text: str) -> None:
        for line in textwrap.wrap(text, _WIDTH - 2):
            self.line(f"  {line}")

    def request(self, client: Client, method: str, path: str, answer: Answer) -> None:
        asked = f"  {client.address:<15}  {method:<4} {path}"
        green, red = 32, 31
        status = self._paint(
            f"{answer.status} {answer.reason}",
            green if answer.status < 400 else red,  # noqa: PLR2004  an error
        )
        self.line(f"{asked:<40}  {status}")

    def headers(self, answer: Answer) -> None:
        for name in _SHOWN:
            if name in answer.headers:
                self.line(f"      {self._paint(name, 2)}: {answer.headers[name]}")

    def body(self, answer: Answer) -> None:
        self.line()
        for line in json.dumps(json.loads(answer.body), indent=2, ensure_ascii=False).splitlines():
            indent = " " * (6 + len(line) - len(line.lstrip()))
            wrapped = textwrap.wrap(
                line.strip(),
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=f"{indent}  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            self.line("\n".join(wrapped))


def run(out: TextIO, workers: int = 1) -> None:
    """Start the example app, send requests to it, and print the responses."""
    page = _Page(out)
    with serve(workers) as port:
        served = "" if workers == 1 else f" by {workers} processes that share one store"
        page.line(
            f"The example app ({_shown(HERE)}/app.py) is served on http://127.0.0.1:{port}/{served}."
        )
        page.line(
            "It trusts X-Forwarded-For from proxies on this machine, and the demo acts as one."
        )
        first = Client(port, "203.0.113.7")
        refused = _show_limit(page, first)
        _show_refusal(page, first, refused)
        _show_override(page, Client(port, "198.51.100.20"))
        _show_recovery(page, first, refused)
        _show_logins(page, Client(port, "203.0.113.99"))
        if workers > 1:
            _show_workers(page, Client(port, "203.0.113.42"))
    page.heading("Done. Next, serve it yourself, and try `curl -i localhost:5000/orders`:")
    flask = Path(sys.executable).with_name("flask")
    page.line(f"{_shown(flask)} --app {_shown(HERE)}/app run")


def _shown(path: Path) -> str:
    """Return a path as it is typed in the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _ask(page: _Page, client: Client, method: str, path: str, **form: str) -> Answer:
    answer = client.ask(method, path, form or None)
    page.request(client, method, path, answer)
    return answer


def _show_limit(page: _Page, client: Client) -> Answer:
    page.heading("1. A burst of three requests is allowed; each response shows what is left")
    answer = _ask(page, client, "GET", "/orders")
    while answer.status == 200:  # noqa: PLR2004  until a refusal
        page.headers(answer)
        answer = client.ask("GET", "/orders")
        if answer.status == 200:  # noqa: PLR2004  as above
            page.request(client, "GET", "/orders", answer)
    return answer


def _show_refusal(page: _Page, client: Client, refused: Answer) -> None:
    page.heading("2. The fourth request is refused, and says when to try again")
    page.request(client, "GET", "/orders", refused)
    page.headers(refused)
    page.body(refused)


def _show_override(page: _Page, client: Client) -> None:
    page.heading("3. The partner's office has an override: its network has a higher limit")
    page.headers(_ask(page, client, "GET", "/orders"))


def _show_recovery(page: _Page, client: Client, refused: Answer) -> None:
    page.heading("4. After Retry-After, the first client is served again")
    seconds = int(refused.headers["Retry-After"])
    page.paragraph(f"waiting {seconds} s ...")
    _wait(seconds)
    page.headers(_ask(page, client, "GET", "/orders"))


def _show_logins(page: _Page, client: Client) -> None:
    page.heading("5. Only failed logins count, by user and by address in one decision")
    tried = ("letmein", "correct horse", "123456", "qwerty")
    answers = [_ask(page, client, "POST", "/login", user="ada", password=word) for word in tried]
    page.headers(answers[-1])


def _show_workers(page: _Page, client: Client) -> None:
    page.heading(f"6. {_SEARCHES} requests at once: the workers allow exactly the burst of 30")
    with ThreadPoolExecutor(_SEARCHES_AT_ONCE) as threads:
        answers = list(threads.map(lambda _: client.ask("GET", "/search"), range(_SEARCHES)))
    counts = Counter((answer.headers["X-Worker"], answer.status) for answer in answers)
    for number in sorted({number for number, _ in counts}, key=int):
        page.line(f"  worker {number}: {_allowed(counts[number, 200], counts[number, 429])}")
    statuses = Counter(answer.status for answer in answers)
    page.line(f"  together: {_allowed(statuses[200], statuses[429])}")


def _allowed(allowed: int, refused: int) -> str:
    return f"{allowed:>2} allowed, {refused:>2} refused"


def _wait(seconds: int) -> None:
    # The only real wait, to show that a client is served after Retry-After.
    time.sleep(seconds)  # noqa: TID251  see above


def main() -> None:
    """Run the example app and print the responses to its clients."""
    parser = argparse.ArgumentParser(description="serve an example app and show its responses")
    parser.add_argument(
        "--workers",
        type=int,
        choices=range(1, 65),
        default=1,
        metavar="N",
        help="serve the app by N processes that share one store, on Linux or macOS (default: 1)",
    )
    run(sys.stdout, parser.parse_args().workers)


if __name__ == "__main__":
    main()
