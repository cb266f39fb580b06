"""Iterations of an event loop, for tests that must not depend on time."""

from __future__ import annotations

import asyncio


async def turn_over(times: int = 5) -> None:
    """Let the running loop execute all ready callbacks, and those that they schedule."""
    loop = asyncio.get_running_loop()
    for _ in range(times):
        passed = loop.create_future()
        loop.call_soon(passed.set_result, None)
        await passed
