"""What all readers of options share: the checks of values that a type checker may not have seen."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean", "is_callable", "is_whole"]


def is_whole(number: object, least: int, most: int) -> bool:
    """Whether a number is an integer within bounds; a `bool` is none."""
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def is_callable(given: object) -> bool:
    """Whether a value can be called."""
    return callable(given)


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """Say which of the known names was probably meant, and all of them.

    Example:
        >>> from penstock.options import did_you_mean
        >>> did_you_mean("itef", ["ietf", "envoy"])
        "did you mean 'ietf'? Known are envoy, ietf"
        >>> did_you_mean("x", [])
        'known are none'
    """
    names = sorted(known)
    near = get_close_matches(found, names, 1)
    listed = ", ".join(names) or "none"
    return f"did you mean {near[0]!r}? Known are {listed}" if near else f"known are {listed}"
