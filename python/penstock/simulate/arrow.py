"""Columns of other libraries as NumPy arrays, through the Arrow interface if necessary."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_numpy(value: Any, what: str) -> NDArray[Any]:
    """Return a column as an array, without a copy if possible.

    Raises:
        TypeError: The argument is not a column.
        ValueError: A masked array has masked values.
        ImportError: The column needs PyArrow or Polars, and neither is installed.
    """
    if not hasattr(value, "__array__") and is_arrow(value):
        value = from_arrow(value, what)
    if np.ma.is_masked(value):
        # NumPy would return the values below the mask.
        position = int(np.ma.getmaskarray(value).argmax())
        raise ValueError(f"{what} must not be missing, found a masked value at position {position}")
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a column of one type: {error}") from error


def is_arrow(value: Any) -> bool:
    """Whether the argument exports columns through the Arrow interface."""
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def from_arrow(value: Any, what: str) -> Any:
    """Return a column that is exported through the Arrow interface, in PyArrow's or Polars' type.

    Raises:
        ImportError: Neither library is installed.
    """
    for name in ("pyarrow", "polars"):
        try:
            library: Any = importlib.import_module(name)
        except ImportError:
            continue
        if name == "polars":
            return library.Series(value)
        is_array = hasattr(value, "__arrow_c_array__")
        return library.array(value) if is_array else library.chunked_array(value)
    raise ImportError(
        f"{what} is an Arrow column, which needs PyArrow or Polars; run `pip install pyarrow`"
    )
