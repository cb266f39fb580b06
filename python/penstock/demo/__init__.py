"""The demonstration of the example app: `penstock demo`.

`app.py` is an ordinary Flask app. This module serves it over HTTP on the loopback interface, sends
requests as several clients, and prints the responses. Flask is imported only when the demo runs.
"""

from __future__ import annotations

import json
import textwrap
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_WIDTH: Final = 100
_SHOWN: Final = ("RateLimit-Policy", "RateLimit", "Retry-After", "Cache-Control", "Link")
_SECONDS_TO_ANSWER: Final = 10


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
            connection.request(method, path, urlencode(form or {}) if form else None, headers)
            response = connection.getresponse()
            body = response.read().decode()
            return Answer(response.status, response.reason, dict(response.getheaders()), body)
        finally:
            connection.close()


@contextmanager
def serve() -> Iterator[tuple[int, str]]:
    """Serve the example app on a free port of the loopback interface; give port and server."""
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415  Flask is optional

    from penstock.demo.app import app  # noqa: PLC0415  as above

    class Quiet(WSGIRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Print nothing."""

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = Thread(target=server.serve_forever, name="penstock demo", daemon=True)
    thread.start()
    try:
        yield server.server_port, str(server.socket.getsockname()[0])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
            first, rest = line, 6 + len(line) - len(line.lstrip()) + 2
            wrapped = textwrap.wrap(
                first.strip(),
                _WIDTH,
                initial_indent=" " * (6 + len(line) - len(line.lstrip())),
                subsequent_indent=" " * rest,
                break_long_words=False,
                break_on_hyphens=False,
            )
            for piece in wrapped:
                self.line(piece)


def run(out: TextIO) -> None:
    """Start the example app, send requests to it, and print the responses."""
    page = _Page(out)
    with serve() as (port, host):
        page.line(f"The example app (penstock/demo/app.py) is served on http://{host}:{port}/.")
        page.line(
            "It trusts X-Forwarded-For from proxies on this machine, and the demo acts as one."
        )
        one = Client(port, "203.0.113.7")
        refused = _show_limit(page, one)
        _show_refusal(page, one, refused)
        _show_override(page, Client(port, "198.51.100.20"))
        _show_recovery(page, one, refused)
        _show_logins(page, Client(port, "203.0.113.99"))
    page.heading("Done.")
    page.paragraph("Next: flask --app penstock.demo.app run, and curl -i localhost:5000/orders.")


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


def _wait(seconds: int) -> None:
    # The only real wait, to show that a client is served after Retry-After.
    time.sleep(seconds)  # noqa: TID251  see above
