"""The calls of event loops to servers."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Final

from penstock._core import Replies

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


# The reader registered with a loop keeps its replies alive until the loop is closed.
_replies: Final[
    weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Callable[[], Replies | None]]
] = weakref.WeakKeyDictionary()
# A child process that goes on with a loop shares what wakes it with its parent, which needs it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replies.clear)


def replies_of(loop: asyncio.AbstractEventLoop) -> Replies:
    """Return the calls of a loop to servers."""
    known = _replies.get(loop)
    replies = None if known is None else known()
    if replies is not None:
        return replies
    try:
        replies = Replies()
        loop.add_reader(replies.fileno(), replies.deliver)
    except (NotImplementedError, OSError):
        # A loop that cannot watch files, like the default one on Windows.
        replies = woken = _woken_by_a_thread(loop)
        _replies[loop] = lambda: woken
    else:
        _replies[loop] = weakref.ref(replies)
    return replies


def _woken_by_a_thread(loop: asyncio.AbstractEventLoop) -> Replies:
    owner = weakref.ref(loop)

    def wake() -> None:
        if (loop := owner()) is not None:
            loop.call_soon_threadsafe(deliver)

    def deliver() -> None:
        if (replies := reference()) is not None:
            replies.deliver()

    replies = Replies(wake)
    reference = weakref.ref(replies)
    return replies
