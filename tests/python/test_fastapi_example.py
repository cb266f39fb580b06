"""The example app, called as its page shows."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def client(root: Path) -> TestClient:
    """A client of the app, on this machine, which is one of its proxies."""
    file = root / "examples/fastapi_app/app.py"
    spec = importlib.util.spec_from_file_location("fastapi_app", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return TestClient(module.app, client=("127.0.0.1", 50000))


def test_orders_are_refused_after_three(client: TestClient) -> None:
    assert [client.get("/orders").status_code for _ in range(4)] == [200, 200, 200, 429]
    partner = client.get("/orders/7", headers={"X-Forwarded-For": "198.51.100.20"})
    assert partner.headers["ratelimit"].startswith('"OrdersPerAddress";r=2;t=')
    assert '"show_order";r=29' in partner.headers["ratelimit"]


def test_wrong_passwords_count_and_right_ones_do_not(client: TestClient) -> None:
    def log_in(password: str) -> int:
        return client.post("/login", json={"user": "ada", "password": password}).status_code

    assert [log_in("correct horse") for _ in range(3)] == [200, 200, 200]
    assert [log_in("guess") for _ in range(3)] == [401, 401, 429]
    # Now the response does not show whether the password was right.
    assert log_in("correct horse") == 429


def test_exports_cost_their_pages(client: TestClient) -> None:
    assert [client.get("/export?pages=8").status_code for _ in range(2)] == [200, 429]
    assert client.get("/export?pages=2").status_code == 200
    assert client.get("/export?pages=0").status_code == 422


def test_chat_limits_connections_and_messages(client: TestClient) -> None:
    for _ in range(2):
        with client.websocket_connect("/chat") as chat:
            chat.send_text("tea?")
            assert chat.receive_text() == "tea?"
    with pytest.raises(WebSocketDenialResponse), client.websocket_connect("/chat"):
        pass


def test_document_lists_the_refusals_of_limited_routes(client: TestClient) -> None:
    paths: dict[str, dict[str, Any]] = client.get("/openapi.json").json()["paths"]
    operations = [operation for methods in paths.values() for operation in methods.values()]
    assert len(operations) == 4
    assert all("429" in operation["responses"] for operation in operations)
