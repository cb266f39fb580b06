"""Plugin of pytest that paces every client in the test suites of the client libraries themselves.

Unpack the source of httpx, requests or aiohttp, install what its tests need, and run in its folder
`PYTHONPATH=TESTS pytest -p paced_clients tests`, where `TESTS` is this file's folder. The limit is
never reached, so each difference from a run without `-p paced_clients` is one of our transports.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import penstock

NAMES = ("Calls", "Open")
LIMITER = penstock.Limiter({"Calls": "1000000/second", "Open": "10000 in flight"})


def wrap(owner: type, name: str, pace: Any) -> None:
    """Replace a method by one whose result is passed through a function."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def paced(*args: Any, **kwargs: Any) -> Any:
        return pace(method(*args, **kwargs))

    setattr(owner, name, paced)


with contextlib.suppress(ImportError):
    import httpx

    import penstock.httpx

    for client, transport in (
        (httpx.Client, penstock.httpx.Transport),
        (httpx.AsyncClient, penstock.httpx.AsyncTransport),
    ):
        for made in ("_init_transport", "_init_proxy_transport"):
            wrap(client, made, lambda inner, own=transport: own(LIMITER, NAMES, transport=inner))

with contextlib.suppress(ImportError):
    import requests

    import penstock.requests

    mount = requests.Session.mount

    def mount_paced(session: requests.Session, prefix: str, adapter: Any) -> None:
        """Mount an adapter in ours."""
        mount(session, prefix, penstock.requests.Adapter(LIMITER, NAMES, adapter=adapter))

    requests.Session.mount = mount_paced  # type: ignore[method-assign, assignment]

with contextlib.suppress(ImportError):
    import aiohttp

    import penstock.aiohttp

    request = aiohttp.ClientSession._request
    PACED = penstock.aiohttp.Middleware(LIMITER, NAMES)

    async def request_paced(
        session: aiohttp.ClientSession, *args: Any, middlewares: Any = None, **kwargs: Any
    ) -> aiohttp.ClientResponse:
        """Send a request with ours as its last middleware."""
        others = session._middlewares if middlewares is None else middlewares
        return await request(session, *args, middlewares=(*(others or ()), PACED), **kwargs)

    aiohttp.ClientSession._request = request_paced  # type: ignore[method-assign, assignment]
