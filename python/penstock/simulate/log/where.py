"""Conditions on the events of a log, such as `path=/api/*`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock._core import LogParser, canonical_address
from penstock.simulate.log.report import LogError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.simulate.log.options import Options


_CONDITION: Final = re.compile(r"([^=!<>]+?)\s*(!=|>=|<|=)\s*(.*)", re.DOTALL)
_CLASS: Final = re.compile(r"\dxx")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


class Condition(NamedTuple):
    """A condition on a field.

    Attributes:
        field: The field.
        is_negated: Whether no pattern may match.
        patterns: Strings with `*` and `?`, one of which must match.
    """

    field: str
    is_negated: bool
    patterns: tuple[str, ...]


def parse_where(
    conditions: str | Iterable[str], options: Options
) -> tuple[tuple[Condition, ...], Options]:
    """Parse conditions such as `path=/api/*,/v2/*`, `status!=4xx` or `time>=2026-11-20T10:00`.

    Returns:
        The conditions on fields, and the options with the bounds of the time.

    Raises:
        LogError: A string is no condition.

    >>> from penstock.simulate.log.options import Options
    >>> parse_where("status=2xx,304", Options())[0]
    (Condition(field='status', is_negated=False, patterns=('2??', '304')),)
    """
    parsed: list[Condition] = []
    for text in [conditions] if isinstance(conditions, str) else conditions:
        match = _CONDITION.fullmatch(text.strip())
        if match is None or (match[2] in {">=", "<"}) != (match[1] == "time"):
            raise LogError(
                "where must be a condition such as path=/api/*, status!=4xx, "
                f"time>=2026-11-20T10:00 or time<2026-11-21, found {text!r}"
            )
        field, operator, value = match.groups()
        if field == "time":
            midnight = "T00:00" if _DATE.fullmatch(value) else ""
            try:
                bound = LogParser.timestamp(value + midnight, options.zone)
            except ValueError as error:
                raise LogError(f"where: {error}") from error
            if operator == ">=":
                options = options._replace(start_ns=bound)
            else:
                options = options._replace(end_ns=bound)
            continue
        parts = [part.strip() for part in value.split(",")]
        # As the log's own: an IPv6 address is its network.
        patterns = [canonical_address(part, options.ipv6_prefix) or part for part in parts]
        if field == "status":
            patterns = [
                part.replace("x", "?") if _CLASS.fullmatch(part) else part for part in patterns
            ]
        field = "address" if field == "client" else field
        parsed.append(Condition(field, operator == "!=", tuple(patterns)))
    return tuple(parsed), options
