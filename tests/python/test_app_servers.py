"""A Flask app under gunicorn and a FastAPI app under uvicorn, called over loopback."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from servers import (
    SECONDS_TO_ANSWER,
    ask,
    free_port,
    gunicorn,
    running,
    uvicorn,
    wait_until_it_answers,
)
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

# So slow that no token is added while the test runs.
LIMITS = """
PerAddress: {burst: 2, count: 1, period: 1h, id: ipAddress}
Sockets: {burst: 2, count: 1, period: 1h, id: ipAddress}
Messages: {burst: 2, count: 1, period: 1h, id: ipAddress}
"""
FLASK = """
from flask import Flask, request
from penstock.flask import Penstock
from penstock.wsgi import PenstockMiddleware, shared

app = Flask(__name__)
limits = Penstock(app, limits="limits.yaml", trusted_proxies=["127.0.0.1"])

@app.get("/orders")
@limits.limit("PerAddress")
def orders():
    return {"left": limits.decision().remaining}

@app.get("/stream")
@limits.limit("PerAddress")
def stream():
    return (f"{number}\\n" for number in range(3))

outside = PenstockMiddleware(app, limit="1000/hour", id=shared("all"), headers="github")
"""
FASTAPI = """
from contextlib import asynccontextmanager
from typing import Annotated
from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse
from penstock.asgi import PenstockMiddleware, shared
from penstock.fastapi import MessageLimit, Messages, RateLimit, install

@asynccontextmanager
async def lifespan(app):
    yield {"pool": 1}

app = FastAPI(lifespan=lifespan)
install(app, limits="limits.yaml", trusted_proxies=["127.0.0.1"])
limited = Depends(RateLimit("LIMIT"))

@app.api_route("/orders", methods=["GET", "HEAD"], dependencies=[limited])
async def orders(request: Request):
    # Each request has its own decision in addition to the state of the application.
    return {"left": request.state.penstock.remaining * request.state.pool}

@app.get("/stream", dependencies=[limited])
async def stream():
    return StreamingResponse(f"{number}\\n" for number in range(3))

@app.websocket("/chat", dependencies=[Depends(RateLimit("Sockets"))])
async def chat(
    websocket: WebSocket, messages: Annotated[Messages, Depends(MessageLimit("Messages"))]
):
    await websocket.accept()
    async for text in websocket.iter_text():
        refused = await messages.ask()
        await websocket.send_text("echo" if refused is None else "slowly")

outside = PenstockMiddleware(app, limit="1000/hour", id=shared("all"), headers="github")
"""


@contextmanager
def server(
    folder: Path, port: int, kind: str, limit: str = "PerAddress"
) -> Iterator[subprocess.Popen[str]]:
    """Run a server of a kind whose routes have a limit with this name."""
    (folder / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    (folder / "shop.py").write_text(FLASK if kind != "uvicorn" else FASTAPI.replace("LIMIT", limit))
    # With more than one thread, gunicorn replaces a sync worker by a gthread worker.
    threads = "8" if kind == "gthread" else "1"
    options = ["--workers", "1", "--worker-class", kind, "--threads", threads]
    command = uvicorn(port) if kind == "uvicorn" else gunicorn(port, folder, *options)
    with running([*command, "shop:outside"], folder) as process:
        yield process


@pytest.fixture(scope="module", params=["sync", "gthread", "uvicorn"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a running server; each test is another client."""
    port = free_port()
    with server(tmp_path_factory.mktemp("server"), port, request.param) as process:
        wait_until_it_answers(process, port)
        yield port


only_uvicorn = pytest.mark.parametrize("port", ["uvicorn"], indirect=True)


def test_real_clients_are_limited_each_on_its_own(port: int) -> None:
    (first, body), (second, other), (third, _) = (
        ask(port, "/orders", X_Forwarded_For="203.0.113.7") for _ in range(3)
    )
    assert [first.status, second.status, third.status] == [200, 200, 429]
    assert [json.loads(body), json.loads(other)] == [{"left": 1}, {"left": 0}]
    assert first.headers["RateLimit-Policy"] == '"PerAddress";q=2;w=7200'
    assert first.headers["RateLimit"] == '"PerAddress";r=1;t=3600'
    assert third.headers["RateLimit"].startswith('"PerAddress";r=0;t=3')
    assert 3590 <= int(third.headers["Retry-After"]) <= 3600
    assert third.headers["Content-Type"] == "application/problem+json"
    # Another client, which forges the first one's entry.
    pretended, _ = ask(port, "/orders", X_Forwarded_For="203.0.113.7, 203.0.113.8")
    assert pretended.status == 200
    head, body = ask(port, "/orders", method="HEAD", X_Forwarded_For="203.0.113.7")
    assert (head.status, body) == (429, b"")
    assert int(head.headers["Content-Length"]) > 100


def test_malformed_headers_are_bad_requests(port: int) -> None:
    for value in ("\xff\xfe", "9" * 5_000, "unknown"):
        response, body = ask(port, "/orders", X_Forwarded_For=value)
        assert (response.status, json.loads(body)["status"]) == (400, 400)


def test_streamed_and_missing_pages_have_headers(port: int) -> None:
    response, body = ask(port, "/stream", X_Forwarded_For="203.0.113.20")
    assert body == b"0\n1\n2\n"
    assert response.headers["RateLimit"] == '"PerAddress";r=1;t=3600'
    # Those of the middleware around the application.
    for page in (response, ask(port, "/nowhere")[0]):
        assert page.headers["X-RateLimit-Limit"] == "1000"
        assert page.headers["X-RateLimit-Resource"] == "default"


@only_uvicorn
def test_websocket_is_refused_by_a_response(port: int) -> None:
    address = f"ws://127.0.0.1:{port}/chat"
    for answers in (["echo", "echo", "slowly"], ["slowly"]):
        with connect(address, proxy=None) as websocket:
            opened = websocket.response
            assert opened is not None
            assert opened.headers["RateLimit"].startswith('"Sockets";r=')
            for answer in answers:
                websocket.send("")
                assert websocket.recv() == answer
    with pytest.raises(InvalidStatus) as refused, connect(address, proxy=None):
        pass
    response = refused.value.response
    assert response.status_code == 429
    assert 3590 <= int(response.headers["Retry-After"]) <= 3600
    assert json.loads(response.body)["violated-policies"] == ["Sockets"]


def test_server_does_not_start_with_an_unknown_limit(tmp_path: Path) -> None:
    with server(tmp_path, free_port(), "uvicorn", "PerAdress") as process:
        said, _ = process.communicate(timeout=SECONDS_TO_ANSWER)
    assert process.returncode == 3
    assert "no limit is named 'PerAdress'; did you mean 'PerAddress'" in said
