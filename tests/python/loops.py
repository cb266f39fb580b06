"""Turns of an event loop, for tests that must not wait for time."""

from __future__ import annotations

import asyncio


async def turn_over(times: int = 5) -> None:
    """Let the running loop do what is ready, and what comes of it."""
    loop = asyncio.get_running_loop()
    for _ in range(times):
        passed = loop.create_future()
        loop.call_soon(passed.set_result, None)
        await passed
