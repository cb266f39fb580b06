"""Columns of other libraries as NumPy arrays, through the Arrow interface if necessary."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["as_numpy", "from_arrow"]


def as_numpy(given: Any, what: str) -> NDArray[Any]:
    """Return a column as an array, without a copy if possible.

    Raises:
        TypeError: The argument is not a column.
        ValueError: A masked array has masked values.
        ImportError: The column needs PyArrow or Polars, and neither is installed.
    """
    if not hasattr(given, "__array__") and is_arrow(given):
        given = from_arrow(given, what)
    if np.ma.is_masked(given):
        # NumPy would return the values below the mask.
        position = int(np.ma.getmaskarray(given).argmax())
        raise ValueError(f"{what} must not be missing, found a masked value at position {position}")
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a column of one type: {error}") from error


def is_arrow(given: Any) -> bool:
    """Whether the argument exports columns through the Arrow interface."""
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")


def from_arrow(given: Any, what: str) -> Any:
    """Return a column that is exported through the Arrow interface, in PyArrow's or Polars' type.

    Raises:
        ImportError: Neither library is installed.
    """
    for name, reader in (("pyarrow", _pyarrow), ("polars", _polars)):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        return reader(library, given)
    raise ImportError(
        f"{what} is an Arrow column, which needs PyArrow or Polars; run `pip install pyarrow`"
    )


def _pyarrow(library: Any, given: Any) -> Any:
    if hasattr(given, "__arrow_c_array__"):
        return library.array(given)
    return library.chunked_array(given)


def _polars(library: Any, given: Any) -> Any:
    return library.Series(given)
