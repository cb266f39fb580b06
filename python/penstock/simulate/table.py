"""A small table for terminals and notebooks, which converts to a data frame."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock import _display as display
from penstock._display import text_table
from penstock.simulate.format import column_label, format_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_MAX_ROWS: Final = 20
_MAX_WIDTH: Final = 100


class Table:
    """Named columns of equal length."""

    def __init__(self, caption: str, columns: Mapping[str, Sequence[Any]]) -> None:
        self.caption = caption
        self._columns = {name: list(column) for name, column in columns.items()}

    def head(self, rows: int) -> Table:
        """Return the first rows."""
        return Table(self.caption, {name: each[:rows] for name, each in self._columns.items()})

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict."""
        for values in zip(*self._columns.values(), strict=True):
            yield dict(zip(self._columns, values, strict=True))

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as lists, by name."""
        return {name: list(column) for name, column in self._columns.items()}

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`.

        Raises:
            ImportError: pandas is not installed.
        """
        return import_module("pandas").DataFrame(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, name: str) -> list[Any]:
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(self._columns)
            raise KeyError(f"there is no column {name!r}; the columns are {known}") from None

    def text(self, max_rows: int = _MAX_ROWS) -> str:
        """Return the caption and the first rows for a terminal."""
        rows = self._shown(max_rows)
        lines = text_table(rows, max_width=_MAX_WIDTH, is_numeric=True) if len(self) else ["none"]
        return "\n".join([self.caption, *lines])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        heads, *cells = self._shown(_MAX_ROWS)
        return display.columns_html(self.caption, heads, cells)

    def _shown(self, max_rows: int) -> list[list[str]]:
        """Return the headings and the first rows, and how many there are more."""
        rows = [[column_label(name) for name in self._columns]]
        rows += [
            [format_value(name, value) for name, value in row.items()]
            for row in self.head(max_rows).rows()
        ]
        if len(self) > max_rows:
            rest = f"and {len(self) - max_rows:,} more"
            rows.append([rest, *("" for _ in rows[0][1:])])
        return rows
