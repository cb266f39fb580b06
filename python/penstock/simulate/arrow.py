"""Columns of other libraries as NumPy arrays: what has no array of its own comes by Arrow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["as_numpy", "from_arrow"]


def as_numpy(given: Any, what: str) -> NDArray[Any]:
    """Give a column as an array, without copying where that can be.

    Raises:
        TypeError: No column.
        ValueError: A masked array, of which something is left out.
        ImportError: The column can only be read by Arrow, and nothing that reads it is installed.
    """
    if not hasattr(given, "__array__") and is_arrow(given):
        given = from_arrow(given, what)
    if np.ma.is_masked(given):
        # NumPy would give what stands below the mask.
        position = int(np.ma.getmaskarray(given).argmax())
        raise ValueError(f"{what} must not be missing, found a masked value at position {position}")
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a column of one kind: {error}") from error


def is_arrow(given: Any) -> bool:
    """Whether it is a column or columns by the Arrow interface."""
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")


def from_arrow(given: Any, what: str) -> Any:
    """Give a column that is offered by the Arrow interface, as PyArrow or Polars has it.

    Raises:
        ImportError: Neither is installed.
    """
    for name, reader in (("pyarrow", _pyarrow), ("polars", _polars)):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        return reader(library, given)
    raise ImportError(
        f"{what} are an Arrow column, and neither PyArrow nor Polars is installed to read it; "
        "`pip install pyarrow` would do"
    )


def _pyarrow(library: Any, given: Any) -> Any:
    if hasattr(given, "__arrow_c_array__"):
        return library.array(given)
    return library.chunked_array(given)


def _polars(library: Any, given: Any) -> Any:
    return library.Series(given)
