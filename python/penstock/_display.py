"""HTML of a limit, of limits and of a decision, for notebooks; aligned text for terminals.

Plain HTML tables without scripts, external resources or colors, readable in light and dark themes.
The core calls `limit_html`, `limits_html` and `decision_html` from `_repr_html_`.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from penstock.messages import describe_limit, explain_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock._core import Decision, Limit, Limits


UNNAMED: Final = "Limit"
"""The name of a limit that was given without one."""
# More rows are not readable in a notebook.
_MAX_ROWS: Final = 100
_MAX_TEXT: Final = 200
# Notebooks style tables, but align their cells to the right.
_LEFT: Final = 'style="text-align: left"'
_SECOND: Final = 1_000_000_000
# Larger numbers would be written with an exponent.
_MANY: Final = 999.5


def limit_html(limit: Limit) -> str:
    """Return a table with the fields of a limit and what it admits."""
    rows = [
        ("algorithm", limit.algorithm),
        *((name, str(value)) for name, value in limit.fields().items()),
        ("admits", explain_limit(limit)),
    ]
    return facts_html("Limit", rows)


def limits_html(limits: Limits, overrides: Mapping[str, int]) -> str:
    """Return a table with one row per limit; `overrides` has the number of overrides by name."""
    rows = []
    for name in list(limits)[:_MAX_ROWS]:
        default = limits.default(name)
        # A name with overrides only is unlimited for everyone else.
        words = "no default: unlimited" if default is None else describe_limit(default)
        admits = "" if default is None else explain_limit(default)
        rows.append((name, words, admits, f"{overrides.get(name, 0):,}"))
    if len(limits) > _MAX_ROWS:
        rows.append((f"and {len(limits) - _MAX_ROWS:,} more", "", "", ""))
    return columns_html("Limits", ("name", "limit", "admits", "overrides"), rows)


def decision_html(decision: Decision) -> str:
    """Return a table of one decision, or of its parts with the strictest one marked."""
    parts = decision.parts
    if not parts or parts == (decision,):
        return facts_html(_answer(decision), _decided(decision))
    columns = ("", "limit", "id", "cost", "answer", "remaining", "retry after", "reset after")
    rows: list[tuple[str, ...]] = [
        (
            "→" if decision.binding is not None and part == decision else "",
            part.name or "",
            part.id or "",
            f"{part.cost:,}",
            _answer(part),
            *_times(part),
        )
        for part in parts[:_MAX_ROWS]
    ]
    if len(parts) > _MAX_ROWS:
        rows.append((f"and {len(parts) - _MAX_ROWS:,} more", *("" for _ in columns[1:])))
    return columns_html(_answer(decision), columns, rows)


def facts_html(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of labels and values, escaped."""
    body = (_row(_head(head, "row"), [value]) for head, value in rows)
    return _table(caption, body)


def columns_html(caption: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table with column headings, escaped."""
    first = _row("".join(_head(head, "col") for head in heads), [])
    return _table(caption, [first, *(_row("", row) for row in rows)])


def _answer(decision: Decision) -> str:
    answer = "allowed" if decision.allowed else "denied"
    flags = (
        ("unlimited", decision.unlimited),
        ("would deny", decision.would_deny),
        ("degraded", decision.degraded is not None),
    )
    notes = ", ".join(flag for flag, is_set in flags if is_set)
    return f"{answer} ({notes})" if notes else answer


def _decided(decision: Decision) -> list[tuple[str, str]]:
    remaining, retry_after, reset_after = _times(decision)
    rows = [
        ("limit", decision.name or ""),
        ("id", decision.id or ""),
        ("cost", f"{decision.cost:,}"),
        ("remaining", remaining),
        ("retry after", retry_after),
        ("reset after", reset_after),
        ("admits", explain_limit(decision.limit)),
        ("counts", decision.description or ""),
    ]
    return [(head, value) for head, value in rows if value]


def _times(decision: Decision) -> tuple[str, str, str]:
    if decision.unlimited:
        return "", "", ""
    retry_after, reset_after = f"{decision.retry_after} s", f"{decision.reset_after} s"
    return f"{decision.remaining:,}", retry_after, reset_after


def _table(caption: str, rows: Iterable[str]) -> str:
    title = f"<caption {_LEFT}><strong>{escape_text(caption)}</strong></caption>"
    return f"<table>{title}{''.join(rows)}</table>"


def _row(head: str, values: Iterable[str]) -> str:
    cells = (f"<td {_LEFT}>{escape_text(value)}</td>" for value in values)
    return f"<tr>{head}{''.join(cells)}</tr>"


def _head(text: str, scope: str) -> str:
    return f'<th scope="{scope}" {_LEFT}>{escape_text(text)}</th>'


def escape_text(text: str) -> str:
    """Escape a string for HTML, without control characters; a long one is cut."""
    return escape(printable(text, _MAX_TEXT))


def printable(text: str, max_length: int | None = None) -> str:
    """Replace characters that are not printable, and cut the string if it is too long.

    >>> from penstock._display import printable
    >>> printable("abcdef", 4)
    'abc…'
    """
    if max_length is not None and len(text) > max_length:
        text = text[: max_length - 1] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def pluralize(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> from penstock._display import pluralize
    >>> pluralize(1, "event"), pluralize(2_000, "event")
    ('1 event', '2,000 events')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_span(nanoseconds: int) -> str:
    """Format a length of time to about three digits.

    >>> from penstock._display import format_span
    >>> [format_span(n) for n in (0, 250_000_000, 90 * 10**9, 7_200 * 10**9, 200_000 * 10**9)]
    ['0 s', '0.25 s', '1.5 min', '2 h', '2.31 days']
    >>> [format_span(n) for n in (3_599_999_999_999, 86_400 * 10**9, 4_000 * 86_400 * 10**9)]
    ['1 h', '24 h', '4,000 days']
    """
    for seconds, name, least in ((86_400, "days", 2), (3600, "h", 1), (60, "min", 1)):
        length = nanoseconds / (seconds * _SECOND)
        digits = f"{length:,.0f}" if length >= _MANY else f"{length:.3g}"
        # Rounded up to the unit, it is one of it: an hour, not 60 minutes.
        if float(digits.replace(",", "")) >= least:
            return f"{digits} {name}"
    return f"{nanoseconds / _SECOND:.3g} s"


def text_table(
    rows: Sequence[Sequence[str]], *, max_width: int, is_numeric: bool = False
) -> list[str]:
    """Align rows of cells in columns; return the lines.

    Args:
        rows: The rows, the heads included.
        max_width: The longest text of a cell; longer ones are cut.
        is_numeric: Whether all columns but the first are aligned to the right.
    """
    cells = [[printable(text, max_width) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if is_numeric and column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
