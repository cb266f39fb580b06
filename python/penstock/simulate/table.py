"""A small table that people read in a terminal and in a notebook, and that turns into theirs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock import display
from penstock.simulate.times import show_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

__all__ = ["Table", "counted", "library", "shown"]

_MOST_ROWS: Final = 20
_WIDEST: Final = 40


def library(name: str, what: str) -> ModuleType:
    """Import a library that a method needs and the package does not.

    Raises:
        ImportError: It is not installed; the message says what would do.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {name}, which is not installed; `pip install {name}` would do"
        ) from error


def counted(number: int, one: str) -> str:
    """Say how many there are of something.

    >>> counted(1, "event"), counted(2_000, "event")
    ('1 event', '2,000 events')
    """
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def shown(name: str, value: Any) -> str:
    """Give a value of the column `name` as people read it: shares in per cent, waits as times.

    >>> shown("denied_share", 0.0123), shown("worst_wait", 90.0), shown("events", 12345)
    ('1.23 %', '1.5 min', '12,345')
    """
    if isinstance(value, bool) or value is None:
        return "" if value is None else ("yes" if value else "no")
    if name.endswith("_share"):
        return f"{100 * value:.3g} %"
    if name.endswith("_wait"):
        return show_span(round(value * 1e9))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Table:
    """Columns of one length, by name."""

    def __init__(self, caption: str, columns: Mapping[str, Sequence[Any]]) -> None:
        self.caption = caption
        self._columns = {name: list(column) for name, column in columns.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Give each row as a dict."""
        for values in zip(*self._columns.values(), strict=True):
            yield dict(zip(self._columns, values, strict=True))

    def to_dict(self) -> dict[str, list[Any]]:
        """Give the columns as lists, by name."""
        return {name: list(column) for name, column in self._columns.items()}

    def to_pandas(self) -> Any:
        """Give a `pandas.DataFrame`.

        Raises:
            ImportError: pandas is not installed.
        """
        return library("pandas", "to_pandas()").DataFrame(self._columns)

    def to_polars(self) -> Any:
        """Give a `polars.DataFrame`.

        Raises:
            ImportError: Polars is not installed.
        """
        return library("polars", "to_polars()").DataFrame(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, name: str) -> list[Any]:
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(self._columns)
            raise KeyError(f"there is no column {name!r}; there are {known}") from None

    def __repr__(self) -> str:
        heads = [name.replace("_", " ") for name in self._columns]
        lines = [heads, *self._cells()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
        texts = [
            "  ".join(_padded(text, width) for text, width in zip(line, widths, strict=True))
            for line in lines
        ]
        if len(self) > _MOST_ROWS:
            texts.append(f"and {len(self) - _MOST_ROWS:,} more")
        return "\n".join(text.rstrip() for text in [self.caption, *texts])

    def _repr_html_(self) -> str:
        heads = [name.replace("_", " ") for name in self._columns]
        rows = self._cells()
        if len(self) > _MOST_ROWS:
            rows.append([f"and {len(self) - _MOST_ROWS:,} more", *("" for _ in heads[1:])])
        return display.columns_html(self.caption, heads, rows)

    def _cells(self) -> list[list[str]]:
        return [
            [shown(name, column[place]) for name, column in self._columns.items()]
            for place in range(min(len(self), _MOST_ROWS))
        ]


def _padded(text: str, width: int) -> str:
    visible = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    cut = visible if len(visible) <= _WIDEST else visible[: _WIDEST - 1] + "…"
    return cut.ljust(min(width, _WIDEST))
