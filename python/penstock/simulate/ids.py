"""Who is asking, as numbers: each id once in a table, and its place there for each event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Codes", "factorise"]


class Codes(NamedTuple):
    """Ids as places in a table.

    Attributes:
        codes: For each event the place of its id.
        clients: The ids, each once.
    """

    codes: NDArray[np.uint32]
    clients: Sequence[str]


def factorise(given: Any) -> Codes:
    """Give the place of each id in a table, and the table: ids in the order of their first event.

    Takes what `Limiter.spend` takes, in lists and columns: texts, whole numbers, UTF-8 bytes,
    addresses. One id spelled as a number and as a text is one.

    Raises:
        TypeError: No column of ids, or something in it that is no id.
        ValueError: A place without an id.
    """
    if isinstance(given, (str, bytes)):
        raise TypeError(f"ids must be a column of ids, and not one id, found {given!r}")
    table: dict[str, int] = {}
    codes = [table.setdefault(str(id), len(table)) for id in given]
    return Codes(np.array(codes, np.uint32), list(table))
