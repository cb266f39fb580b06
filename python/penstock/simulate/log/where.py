"""Conditions on the events of a log, such as `path=/api/*`."""

from __future__ import annotations

import datetime
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.simulate.log.options import zone_info
from penstock.simulate.log.report import LogError
from penstock.simulate.times import parse_instant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


_CONDITION: Final = re.compile(r"([^=!<>]+?)\s*(!=|>=|<|=)\s*(.*)", re.DOTALL)
_CLASS: Final = re.compile(r"\dxx")


class Where(NamedTuple):
    """Conditions of which all must hold.

    Attributes:
        conditions: The conditions on fields: each field, whether no pattern may match, and the
            strings with `*` and `?`, one of which must match.
        start_ns: The first time; None for no bound.
        end_ns: The time before which events must be; None for no bound.
    """

    conditions: tuple[tuple[str, bool, tuple[str, ...]], ...]
    start_ns: int | None
    end_ns: int | None

    @classmethod
    def parse(cls, conditions: str | Iterable[str], zone: str = "UTC") -> Where:
        """Parse conditions such as `path=/api/*,/v2/*`, `status!=4xx` or `time>=2026-11-20T10:00`.

        Args:
            conditions: The conditions.
            zone: The zone of times without one.

        Raises:
            LogError: A string is no condition.

        >>> Where.parse("status=2xx,304").conditions
        (('status', False, ('2??', '304')),)
        """
        parsed: list[tuple[str, bool, tuple[str, ...]]] = []
        bounds: dict[str, int] = {}
        for text in [conditions] if isinstance(conditions, str) else conditions:
            match = _CONDITION.fullmatch(text.strip())
            if match is None or (match[2] in {">=", "<"}) != (match[1] == "time"):
                raise LogError(
                    "where must be a condition such as path=/api/*, status!=4xx, "
                    f"time>=2026-11-20T10:00 or time<2026-11-21, found {text!r}"
                )
            field, operator, value = match.groups()
            if field == "time":
                try:
                    bounds[operator] = _instant(value, zone)
                except ValueError as error:
                    raise LogError(f"where: {error}") from error
                continue
            patterns = [part.strip() for part in value.split(",")]
            if field == "status":
                patterns = [
                    part.replace("x", "?") if _CLASS.fullmatch(part) else part for part in patterns
                ]
            field = "address" if field == "client" else field
            parsed.append((field, operator == "!=", tuple(patterns)))
        return cls(tuple(parsed), bounds.get(">="), bounds.get("<"))

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the conditions, each once."""
        return tuple(dict.fromkeys(field for field, _, _ in self.conditions))

    def in_time(self, times: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which times are within the bounds."""
        kept = np.ones(len(times), np.bool_)
        if self.start_ns is not None:
            kept &= times >= self.start_ns
        if self.end_ns is not None:
            kept &= times < self.end_ns
        return kept


def _instant(text: str, zone: str) -> int:
    """Return a time in nanoseconds; a date without a zone is in the zone of the log."""
    with suppress(ValueError):
        at = datetime.datetime.fromisoformat(text)
        if at.tzinfo is None:
            text = at.replace(tzinfo=zone_info(zone)).isoformat()
    return parse_instant(text, "time")
