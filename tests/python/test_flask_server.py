"""A Flask app under a real server: gunicorn with one process, over loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from servers import ask, free_port, gunicorn, running, wait_until_it_answers

if TYPE_CHECKING:
    from collections.abc import Iterator

# So slow that no token is added while the test runs.
LIMITS = """
PerAddress: {burst: 2, count: 1, period: 1h, id: ipAddress}
"""
APP = """
from flask import Flask, request
from penstock.flask import Penstock
from penstock.wsgi import PenstockMiddleware

app = Flask(__name__)
limits = Penstock(app, limits="limits.yaml", trusted_proxies=["127.0.0.1"])

@app.get("/orders")
@limits.limit("PerAddress")
def orders():
    return {"orders": []}

@app.get("/stream")
@limits.limit("PerAddress")
def stream():
    return (f"{number}\\n" for number in range(3))

app.wsgi_app = PenstockMiddleware(app.wsgi_app, limit="1000/hour", id="all", headers="github")
"""


@pytest.fixture(scope="module", params=["sync", "gthread"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a running server with a sync or a threaded worker; each test is another client."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    (folder / "shop.py").write_text(APP, encoding="utf-8")
    port = free_port()
    # With more than one thread, gunicorn replaces a sync worker by a gthread worker.
    threads = "8" if request.param == "gthread" else "1"
    options = ["--workers", "1", "--worker-class", request.param, "--threads", threads]
    with running([*gunicorn(port, folder, *options), "shop:app"], folder) as process:
        wait_until_it_answers(process, port)
        yield port


def test_real_clients_are_limited_separately(port: int) -> None:
    first, second, third = (
        ask(port, "/orders", X_Forwarded_For="203.0.113.7")[0] for _ in range(3)
    )
    assert [first.status, second.status, third.status] == [200, 200, 429]
    assert first.headers["RateLimit-Policy"] == '"PerAddress";q=2;w=7200'
    assert first.headers["RateLimit"] == '"PerAddress";r=1;t=3600'
    assert third.headers["RateLimit"].startswith('"PerAddress";r=0;t=3')
    assert 3590 <= int(third.headers["Retry-After"]) <= 3600
    assert third.headers["Content-Type"] == "application/problem+json"
    # Another client, which pretends to be the first.
    other, _ = ask(port, "/orders", X_Forwarded_For="203.0.113.7, 203.0.113.8")
    assert other.status == 200


def test_streamed_and_missing_pages_have_headers(port: int) -> None:
    response, body = ask(port, "/stream", X_Forwarded_For="203.0.113.20")
    assert body == b"0\n1\n2\n"
    assert response.headers["RateLimit"] == '"PerAddress";r=1;t=3600'
    # Those of the middleware around the application.
    for page in (response, ask(port, "/nowhere")[0]):
        assert page.headers["X-RateLimit-Limit"] == "1000"
        assert page.headers["X-RateLimit-Resource"] == "default"


def test_refusal_of_a_head_request_has_no_body(port: int) -> None:
    for _ in range(2):
        ask(port, "/orders", X_Forwarded_For="203.0.113.30")
    response, body = ask(port, "/orders", method="HEAD", X_Forwarded_For="203.0.113.30")
    assert (response.status, body) == (429, b"")
    assert int(response.headers["Content-Length"]) > 100


def test_concurrent_requests_are_admitted_exactly(port: int) -> None:
    def order(number: int) -> int:
        return ask(port, "/orders", X_Forwarded_For=f"203.0.113.{number % 5}")[0].status

    with ThreadPoolExecutor(16) as clients:
        statuses = list(clients.map(order, range(100)))
    # Five clients, two requests each.
    assert (statuses.count(200), statuses.count(429)) == (10, 90)
