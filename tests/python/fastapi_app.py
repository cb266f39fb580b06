"""Helpers for tests of FastAPI: limits as dependencies, and a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI
from guards import PEER
from starlette.testclient import TestClient

from penstock.fastapi import RateLimit

if TYPE_CHECKING:
    from httpx2 import Response


def limited(*limits: str, **options: Any) -> Any:
    """Return a limit as an entry of a list of dependencies."""
    return Depends(RateLimit(*limits, **options))


def get(app: FastAPI, path: str = "/", **headers: str) -> Response:
    """Get a page as a new client."""
    client = TestClient(app, client=(PEER, 50000), raise_server_exceptions=False)
    response: Response = client.get(path, headers=headers)
    return response


async def hello() -> str:
    """Greet."""
    return "hello"
