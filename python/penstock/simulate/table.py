"""A small table for terminals and notebooks, which converts to a data frame."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock import _display as display
from penstock._display import text_table
from penstock.simulate.format import format_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_MAX_ROWS: Final = 20
_MAX_WIDTH: Final = 80


class Table:
    """Named columns of equal length."""

    def __init__(self, caption: str, columns: Mapping[str, Sequence[Any]]) -> None:
        self.caption = caption
        self._columns = {name: list(column) for name, column in columns.items()}

    @classmethod
    def of_rows(
        cls, caption: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
    ) -> Table:
        """Make a table of rows, which have these columns and perhaps others."""
        listed = list(rows)
        return cls(caption, {name: [row[name] for row in listed] for name in columns})

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

    def __repr__(self) -> str:
        lines = text_table([self._heads(), *self._cells()], max_width=_MAX_WIDTH)
        return "\n".join([self.caption, *lines, *self._rest()])

    def _repr_html_(self) -> str:
        heads = self._heads()
        rest = [[text, *("" for _ in heads[1:])] for text in self._rest()]
        return display.columns_html(self.caption, heads, [*self._cells(), *rest])

    def _heads(self) -> list[str]:
        return [name.replace("_", " ") for name in self._columns]

    def _cells(self) -> list[list[str]]:
        return [
            [format_value(name, value) for name, value in row.items()]
            for row in self.head(_MAX_ROWS).rows()
        ]

    def _rest(self) -> list[str]:
        return [f"and {len(self) - _MAX_ROWS:,} more"] if len(self) > _MAX_ROWS else []
