"""Headless Chromium for tests, controlled through the DevTools protocol."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from websockets.sync.client import ClientConnection

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60


class Browser:
    """Headless Chromium, controlled through the DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.seen: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        while True:
            reply: dict[str, Any] = json.loads(self._socket.recv(timeout=SECONDS))
            if reply.get("id") == number:
                assert "error" not in reply, reply
                result: dict[str, Any] = reply["result"]
                return result
            self.seen.append(reply)

    def wait_for(self, method: str) -> None:
        while all(each.get("method") != method for each in self.seen):
            self.seen.append(json.loads(self._socket.recv(timeout=SECONDS)))

    def open(self, page: Path) -> str:
        """Open a page in a new tab, and wait until it has loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session: str = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable", session)
        self.go(session, page)
        return session

    def go(self, session: str, page: Path) -> None:
        """Load a page into an open tab, and wait until it has loaded."""
        self.seen.clear()
        self.ask("Page.navigate", session, url=page.as_uri())
        self.wait_for("Page.loadEventFired")

    def value(self, session: str, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", session, expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requested(self) -> list[str]:
        return [
            each["params"]["request"]["url"]
            for each in self.seen
            if each.get("method") == "Network.requestWillBeSent"
        ]

    def faults(self) -> list[dict[str, Any]]:
        methods = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
        return [each for each in self.seen if each.get("method") in methods]


@contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a browser; a second time if it ends before it listens, as on a crowded machine."""
    output: list[str] = []
    for _ in range(3):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"DevTools listening on (ws://\S+)", line):
                    yield process, found[1]
                    return
                output.append(line)
    pytest.fail(f"the browser has ended: {''.join(output)}")


@contextmanager
def running(folder: Path) -> Iterator[Browser]:
    """Run a browser with an empty profile and without network services."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program, "a browser must be there: apt-get install chromium"
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage", f"--user-data-dir={folder}", "--remote-debugging-port=0",
    ]  # fmt: skip
    with started(command) as (process, address):
        try:
            with connect(address, max_size=None, open_timeout=SECONDS) as socket:
                yield Browser(socket)
                socket.send(json.dumps({"id": 0, "method": "Browser.close"}))
            process.wait(SECONDS)
        finally:
            process.kill()
