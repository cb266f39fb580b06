"""Columns of equal length, which notebooks show as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.simulate.format import format_instant
from penstock.simulate.optional import import_optional
from penstock.simulate.table import Table
from penstock.simulate.times import FIRST_DATE_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

# The rows of a table that are converted to text; a table shows fewer.
_MAX_ROWS: Final = 100


class Frame:
    """Columns of equal length, of which the first is a time."""

    def _columns(self) -> tuple[str, NDArray[np.int64], Mapping[str, NDArray[Any]]]:
        """Return a caption, the times in nanoseconds, and the other columns."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`.

        Times are dates, or lengths of time since the clock's origin if they are too early.

        Raises:
            ImportError: pandas is not installed.
        """
        _, times, columns = self._columns()
        frame = {"time": as_dates(times), **columns}
        return import_optional("pandas", "to_pandas()").DataFrame(frame)

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`; times as in `to_pandas`.

        Raises:
            ImportError: Polars is not installed.
        """
        _, times, columns = self._columns()
        frame = {"time": as_dates(times), **columns}
        return import_optional("polars", "to_polars()").DataFrame(frame)

    def __repr__(self) -> str:
        return repr(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        caption, times, columns = self._columns()
        shown = {name: column[:_MAX_ROWS].tolist() for name, column in columns.items()}
        instants = [format_instant(time) for time in times[:_MAX_ROWS].tolist()]
        return Table(f"{caption}: {len(times):,} rows", {"time": instants, **shown})


def as_dates(times: NDArray[np.int64]) -> NDArray[Any]:
    """Return times as dates, or as lengths of time if they are too early to be dates.

    >>> import numpy as np
    >>> as_dates(np.array([1_500_000_000])).dtype, as_dates(np.array([1_700_000_000 * 10**9])).dtype
    (dtype('<m8[ns]'), dtype('<M8[ns]'))
    """
    is_date = len(times) == 0 or int(times[0]) >= FIRST_DATE_NS
    return times.astype("datetime64[ns]" if is_date else "timedelta64[ns]")
