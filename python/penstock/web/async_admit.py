"""Decides the limits of a request on an event loop, which never waits for a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.aio import AsyncLimiter

if TYPE_CHECKING:
    from penstock._core import Decision
    from penstock.web.outcome import Outcome
    from penstock.web.request import Request
    from penstock.web.route_limits import RouteLimits
    from penstock.web.rule import Entry


async def admit(limits: RouteLimits, request: Request, earlier: Outcome | None = None) -> Outcome:
    """Return the outcome of a request, as `limits.admit` does.

    Raises:
        StoreError: The store fails and a policy is `"raise"`.
    """
    if not limits.is_remote:
        return limits.admit(request, earlier)
    limiter = AsyncLimiter(limits.limiter)
    steps = limits.steps(request, earlier)
    answer: Any
    try:
        verb, given = next(steps)
        while True:
            try:
                if verb == "one":
                    answer = await _decide_one(limiter, given)
                elif verb == "all":
                    answer = await limiter.spend_all(given)
                else:
                    answer = await asyncio.to_thread(given)
            except Exception as error:  # noqa: BLE001  the steps decide about it
                verb, given = steps.throw(error)
            else:
                verb, given = steps.send(answer)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


async def _decide_one(limiter: AsyncLimiter, entry: Entry) -> Decision:
    limit, id, cost = entry
    decide = limiter.check if limit.is_deferred else limiter.spend
    return await decide(limit.name, id, cost, limit.factor)
