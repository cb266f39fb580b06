"""Client ids as numbers: a table with each id once, and an index into it for each event."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from penstock import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.types import Id


AnyId: TypeAlias = "Id"

EVERYONE: Final = "*"
"""The id of all events of a trace without ids."""


class Codes(NamedTuple):
    """Ids as indices into a table.

    Attributes:
        codes: The index of each event's id.
        clients: The table, with each id once.
    """

    codes: NDArray[np.uint32]
    clients: Sequence[str]


def factorise(value: Any) -> Codes:
    """Build a table of ids in the order of their first event, and each event's index into it.

    Takes lists and columns of what `Limiter.spend` takes: strings, integers, UTF-8 bytes and
    addresses. A number and the same number as a string are one id.

    Raises:
        TypeError: The argument is not a column of ids, or a value is not an id; a note says where.
        InvalidId: An id that cannot be encoded as UTF-8.

    >>> factorise(["grace", "ada", "grace"]).clients
    ['grace', 'ada']
    """
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise TypeError(f"ids must be a column of ids, found a single value {value!r}")
    if type(value).__module__.partition(".")[0] == "pandas":
        return _by_pandas(value)
    if np.ma.is_masked(value):
        # NumPy would return the values below the mask.
        position = int(np.ma.getmaskarray(value).argmax())
        raise TypeError(f"ids must not be missing, found a missing value at position {position}")
    if isinstance(value, np.ndarray):
        return _by_numpy(value)
    # The methods of PyArrow and of Polars.
    to_list = getattr(value, "to_pylist", None) or getattr(value, "to_list", None)
    return _one_by_one(list(value) if to_list is None else to_list())


def as_text(id: AnyId) -> str:
    """Return one id in the spelling of the table.

    >>> as_text(7), as_text(b"ada")
    ('7', 'ada')
    """
    return _core.factorise([id])[1][0]


def _one_by_one(ids: list[Any]) -> Codes:
    codes, clients = _core.factorise(ids)
    return Codes(np.asarray(codes), clients)


def _by_numpy(ids: NDArray[Any]) -> Codes:
    if ids.ndim != 1:
        raise TypeError(f"ids must be a column, found an array of {ids.ndim} dimensions")
    kind, width = ids.dtype.kind, ids.dtype.itemsize
    if kind in "iu":
        ids = ids.astype(f"{kind}8", copy=False)
    elif kind != "U" or width == 0:
        if kind not in "OST":
            raise TypeError(f"ids must be strings or whole numbers, found an array of {ids.dtype}")
        return _one_by_one(ids.tolist())
    # Ids with equal bytes are equal, so no value has to become a Python object.
    ids = np.ascontiguousarray(ids)
    words = ids.astype(ids.dtype.newbyteorder("="), copy=False).view(np.uint32)
    codes, firsts = _core.factorise_fixed(words, ids.dtype.itemsize // 4)
    return Codes(np.asarray(codes), [str(id) for id in ids[np.asarray(firsts)].tolist()])


def _by_pandas(ids: Any) -> Codes:
    codes, table = importlib.import_module("pandas").factorize(ids)
    missing = codes < 0
    if missing.any():
        raise TypeError(
            f"ids must not be missing, found a missing value at position {int(missing.argmax())}"
        )
    # As text, two ids of the table may be equal.
    numbers, clients = _core.factorise(list(table))
    return Codes(np.asarray(numbers)[codes], clients)
