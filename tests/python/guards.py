"""Helpers for tests of guards: requests of one client, and the tokens left in its buckets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.adapter import EnvironRequest, Guard, admit, make_rule

if TYPE_CHECKING:
    from collections.abc import Callable

    import penstock
    from penstock.adapter import Outcome

PEER = "203.0.113.7"
"""The client's address."""


def request(**environ: object) -> EnvironRequest:
    """Return a request from `PEER`."""
    return EnvironRequest({"REMOTE_ADDR": PEER, "REQUEST_METHOD": "GET", **environ})


def asks(guard: Guard, *limits: str, **options: Any) -> Callable[..., Outcome]:
    """Return the function that decides the limits of one route."""
    return partial(admit, guard.route_limits([make_rule(limits, "views.search", options)]))  # type: ignore[arg-type]  # any of them


def left(limiter: penstock.Limiter, name: str = "PerAddress", id: str = PEER) -> int:
    """Return the remaining tokens of a bucket."""
    return limiter.check(name, id, 0).remaining
