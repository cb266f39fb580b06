"""Iterations of an event loop, coroutines that do not wait, and a loop without threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine


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


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


async def awaited(awaitable: Awaitable[Any]) -> Any:
    """Await what is no coroutine."""
    return await awaitable
