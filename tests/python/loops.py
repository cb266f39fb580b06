"""Iterations of an event loop, coroutines that do not wait, and interrupts of calls."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator


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


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[list[float]]:
    """Interrupt the block after some time, as Ctrl-C does; the list is empty if it ends before."""
    interrupted: list[float] = []

    def interrupt(*_: object) -> None:
        interrupted.append(seconds)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield interrupted
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
