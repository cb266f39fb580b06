"""Real servers for tests, in separate processes and called over loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SECONDS_TO_ANSWER = 30
"""The longest wait for a start, a response or an end."""


def free_port() -> int:
    """Return a port that is free at the moment."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def ask(port: int, path: str, *, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    """Send one request over a new connection."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=SECONDS_TO_ANSWER)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        response = connection.getresponse()
        return response, response.read()


def gunicorn(port: int, folder: Path, *options: str) -> list[str]:
    """Return the command for gunicorn, without the application."""
    command = [sys.executable, "-m", "gunicorn", "--no-control-socket"]
    return [*command, "--bind", f"127.0.0.1:{port}", "--worker-tmp-dir", str(folder), *options]


def uvicorn(port: int, *options: str) -> list[str]:
    """Return the command for uvicorn, without the application."""
    return [sys.executable, "-m", "uvicorn", "--no-proxy-headers", "--port", str(port), *options]


@contextmanager
def running(
    command: Sequence[str], folder: Path, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a server in a folder until the block ends, with further environment variables."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environ},  # noqa: TID251  passed on
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.communicate(timeout=SECONDS_TO_ANSWER)
            except subprocess.TimeoutExpired:
                # Leaving the block waits for the process, which would otherwise be forever.
                process.kill()
                raise


def wait_until_it_answers(process: subprocess.Popen[str], port: int) -> None:
    """Send requests until one is answered, the server exits, or the deadline passes."""
    clock = penstock.SystemClock()
    deadline = clock.now() + SECONDS_TO_ANSWER
    while clock.now() < deadline and process.poll() is None:
        try:
            # A complete response: a server may listen before its workers have started.
            ask(port, "/nowhere")
        except (ConnectionError, HTTPException):
            continue
        return
    process.kill()
    pytest.fail(f"the server does not answer:\n{process.communicate()[0]}")
