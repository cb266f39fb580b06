"""Iterations of an event loop, and an executor for a loop that needs no thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


async def turn_over(times: int = 5) -> None:
    """Let the running loop execute all ready callbacks, and those that they schedule."""
    loop = asyncio.get_running_loop()
    for _ in range(times):
        passed = loop.create_future()
        loop.call_soon(passed.set_result, None)
        await passed


class NoThreads(ThreadPoolExecutor):
    """An executor that makes no call, so that a test fails if its loop needs a thread."""

    def submit(self, fn: Callable[..., Any], /, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"a thread runs {fn!r}")
