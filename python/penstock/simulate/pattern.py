"""Patterns in which `*` stands for any text, and `?` for any character."""

from __future__ import annotations

import re
from functools import lru_cache


def matches(text: str, pattern: str) -> bool:
    """Return whether a whole text matches a pattern; brackets stand for themselves.

    >>> matches("/order/7", "/order/*"), matches("a", "[ab]")
    (True, False)
    """
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"([*?])", pattern)
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(part) or re.escape(part) for part in parts), re.DOTALL)
