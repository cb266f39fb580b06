"""What a notebook shows of a limit, of limits and of a decision, and a limit's numbers in words.

Small tables of plain HTML: no scripts, no addresses that are fetched, no colours of their own, so
that light and dark notebooks both can be read. The core calls these from its `_repr_html_`.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.web.messages import describe_limit, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock._core import Decision, Limit, Limits

__all__ = [
    "columns_html",
    "decision_html",
    "facts_html",
    "in_words",
    "limit_html",
    "limits_html",
    "printable",
]

_DAY_NS: Final = 86_400_000_000_000
# More rows or longer texts than these are not read in a notebook, and would bury what is around.
_MOST_ROWS: Final = 100
_LONGEST_TEXT: Final = 200
# Spaces in the words of two units, such as 1 hour 30 minutes.
_LONGEST_SPAN: Final = 3
# Notebooks draw tables themselves, but set the texts in them to the right.
_LEFT: Final = 'style="text-align: left"'


class _Numbers(NamedTuple):
    """How much a limit admits.

    Attributes:
        at_once: Tokens at one instant, of a bucket that was not used.
        then: How fast after that, in words.
        day: Tokens in a day, in the long run, rounded down.
        stretch_ns: A length of time that suits the limit.
        worst: Tokens in that length of time, wherever it begins; never more.
    """

    at_once: int
    then: str
    day: int
    stretch_ns: int
    worst: int


def in_words(limit: Limit) -> str:
    """Say how much a limit admits: at once, after that, in a day, and at worst in one period.

    The day's number is what comes back in the long run, rounded down. The worst case holds for
    every stretch of that length, not only for one that begins with a window; of a leaky bucket,
    which has no period, the stretch is the time in which a full one empties.

    >>> in_words(penstock.Limit.token_bucket(burst=20, count=10, period="1m"))
    '20 at once, then 1 every 6 seconds, 14,400 a day; at worst 30 in any minute'
    """
    numbers = _numbers(limit)
    if numbers is None:
        return "no limit"
    return (
        f"{numbers.at_once:,} at once, then {numbers.then}, {numbers.day:,} a day; "
        f"at worst {numbers.worst:,} in any {format_duration(numbers.stretch_ns)}"
    )


def limit_html(limit: Limit) -> str:
    """Show one limit: its numbers as they were given, and what they mean."""
    rows = [
        ("algorithm", limit.algorithm),
        *((field, str(getattr(limit, field))) for field in _fields(limit)),
        ("admits", in_words(limit)),
    ]
    return facts_html("Limit", rows)


def limits_html(limits: Limits, overrides: Mapping[str, int]) -> str:
    """Show all limits, a row each; `overrides` says how many of them each limit has."""
    rows = []
    for name in list(limits)[:_MOST_ROWS]:
        default = limits.default(name)
        # A name that only overrides have is no limit for anybody else.
        words = "no default: unlimited" if default is None else describe_limit(default)
        admits = "" if default is None else in_words(default)
        rows.append((name, words, admits, f"{overrides.get(name, 0):,}"))
    if len(limits) > _MOST_ROWS:
        rows.append((f"and {len(limits) - _MOST_ROWS:,} more", "", "", ""))
    return columns_html("Limits", ("name", "limit", "admits", "overrides"), rows)


def decision_html(decision: Decision) -> str:
    """Show one decision; of several transactions each in a row, the one that decided marked."""
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
        for part in parts[:_MOST_ROWS]
    ]
    if len(parts) > _MOST_ROWS:
        rows.append((f"and {len(parts) - _MOST_ROWS:,} more", *("" for _ in columns[1:])))
    return columns_html(_answer(decision), columns, rows)


def facts_html(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Show facts, a row each: what it is, and its value. All texts are made safe here."""
    body = (_row(_head(head, "row"), [value]) for head, value in rows)
    return _table(caption, body)


def columns_html(caption: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Show a table with a head for each column. All texts are made safe here."""
    first = _row("".join(_head(head, "col") for head in heads), [])
    return _table(caption, [first, *(_row("", row) for row in rows)])


def _numbers(limit: Limit) -> _Numbers | None:
    match limit.algorithm:
        case "token-bucket":
            each, stretch = limit.emission_interval_ns, limit.period_ns
            worst = limit.burst + stretch // each
            return _Numbers(limit.burst, _every(1, each), _DAY_NS // each, stretch, worst)
        case "leaky-bucket":
            rate, drip = limit.drip_rate_ns, limit.drip_size
            drips = -(-limit.size // drip)
            # However the drips fall, a time of so many drips has room for so many and no more.
            worst = limit.size + drips * drip
            day = _DAY_NS * drip // rate
            return _Numbers(limit.size, _every(drip, rate), day, drips * rate, worst)
        case "fixed-window":
            # Around the end of a window, all of it and all of the next.
            period, count = limit.period_ns, limit.count
            day = _DAY_NS * count // period
            return _Numbers(count, _every(count, period), day, period, 2 * count)
        case "fixed-rate-window":
            # Around the end of a window, its last slot with the early ones, and all of the next.
            period, early = limit.period_ns, limit.burst
            window = limit.count + early
            then = f"{_every(limit.count, period)}, evenly spaced"
            day = _DAY_NS * window // period
            return _Numbers(early + 1, then, day, period, window + early + 1)
        case _:
            return None


def _every(tokens: int, nanoseconds: int) -> str:
    words = format_duration(nanoseconds)
    if words.count(" ") <= _LONGEST_SPAN:
        return f"{tokens:,} every {words}"
    # Nobody reads nanoseconds behind seconds: three figures say it.
    step = 10 ** (len(str(nanoseconds)) - 3)
    rounded = (nanoseconds + step // 2) // step * step
    return f"{tokens:,} about every {format_duration(rounded)}"


def _fields(limit: Limit) -> tuple[str, ...]:
    match limit.algorithm:
        case "token-bucket":
            return "burst", "count", "period"
        case "leaky-bucket":
            return "size", "drip_rate", "drip_size"
        case "fixed-window":
            return "count", "period", "anchor", "phase"
        case "fixed-rate-window":
            return "count", "period", "burst", "anchor", "phase"
        case _:
            return ()


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
        ("admits", in_words(decision.limit)),
        ("counts", decision.description or ""),
    ]
    return [(head, value) for head, value in rows if value]


def _times(decision: Decision) -> tuple[str, str, str]:
    if decision.unlimited:
        return "", "", ""
    retry_after, reset_after = f"{decision.retry_after} s", f"{decision.reset_after} s"
    return f"{decision.remaining:,}", retry_after, reset_after


def _table(caption: str, rows: Iterable[str]) -> str:
    title = f"<caption {_LEFT}><strong>{_text(caption)}</strong></caption>"
    return f"<table>{title}{''.join(rows)}</table>"


def _row(head: str, values: Iterable[str]) -> str:
    cells = (f"<td {_LEFT}>{_text(value)}</td>" for value in values)
    return f"<tr>{head}{''.join(cells)}</tr>"


def _head(text: str, scope: str) -> str:
    return f'<th scope="{scope}" {_LEFT}>{_text(text)}</th>'


def _text(text: str) -> str:
    return escape(printable(text, _LONGEST_TEXT))


def printable(text: str, max_length: int | None = None) -> str:
    """Replace characters that are not printable, and cut the text if it is too long.

    >>> from penstock.display import printable
    >>> printable("abcdef", 4)
    'abc…'
    """
    if max_length is not None and len(text) > max_length:
        text = text[: max_length - 1] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
