"""Overrides from the rows of a table; an invalid row is skipped alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeGuard

from penstock._core import Limit
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._core import Limits


_FIELDS: Final = ("name", "id", "limit", "comment", "enabled")
_MIN_FIELDS: Final = 3
_COLUMNS: Final = ("burst", "count", "period")
_MISSING: Final = object()
_MAX_SHOWN: Final = 200
# More invalid rows than this mean that the table is wrong, not the rows.
_MAX_INVALID: Final = 1000
_NETWORKS: Final = (ipaddress.IPv4Network, ipaddress.IPv6Network)

_Get: TypeAlias = Callable[[str], Any]


class Skipped(NamedTuple):
    """A row that is skipped.

    Attributes:
        number: Number of the row, from 1.
        shown: Its fields.
        why: What is wrong with it.
    """

    number: int
    shown: str
    why: str


def limits_of_rows(rows: Iterable[object], defaults: Limits) -> tuple[Limits, tuple[Skipped, ...]]:
    """Return the defaults with the rows as overrides, and the skipped rows.

    Args:
        rows: Mappings, objects, or tuples in the order name, id, limit, comment, enabled.
        defaults: The limits. Their overrides are dropped.

    Raises:
        ConfigError: No row can be used, or more than a thousand cannot.
    """
    listed = list(rows)
    skipped: list[Skipped] = []
    overrides: list[tuple[object, ...] | None] = []
    limits: dict[str, Limit] = {}
    for number, row in enumerate(listed, 1):
        try:
            override = _override(row, _getter(row), defaults, limits)
        except (TypeError, ValueError) as error:
            # An error in a rate string is followed by lines with a caret.
            skipped.append(Skipped(number, _shown(row), str(error).partition("\n")[0]))
            override = None
        overrides.append(override)
    loaded, problems = defaults.with_overrides(overrides)
    skipped += [Skipped(index + 1, _shown(listed[index]), why) for index, why in problems]
    skipped.sort()
    if skipped and len(skipped) == len(listed):
        fault = f"none of {len(listed)} rows can be used"
    elif len(skipped) > _MAX_INVALID:
        fault = f"{len(skipped)} rows cannot be used"
    else:
        return loaded, tuple(skipped)
    raise ConfigError(f"{fault}; the first, {skipped[0].shown}: {skipped[0].why}")


def _override(
    row: object, get: _Get, defaults: Limits, limits: dict[str, Limit]
) -> tuple[object, ...] | None:
    """Return the override that a row describes, `None` if it is disabled.

    Raises:
        TypeError, ValueError: A field is missing or invalid.
    """
    if _is_nameless(row) and not _MIN_FIELDS <= len(row) <= len(_FIELDS):
        raise ValueError(
            f"a row without names has 3 to 5 fields, {', '.join(_FIELDS)}; found {len(row)}"
        )
    enabled = get("enabled")
    if enabled is not _MISSING and not (isinstance(enabled, int) and enabled in (0, 1)):
        raise ValueError(f"enabled must be true or false, found {enabled!r}")
    if not enabled:
        return None
    name, id, comment = get("name"), get("id"), get("comment")
    if not isinstance(name, str) or name not in defaults:
        listed = ", ".join(defaults) or "none"
        raise ValueError(f"name must be a limit that has a default, which are {listed}")
    if id is _MISSING:
        raise TypeError("a row has an id, found none")
    if _is_model(row) and not isinstance(id, str):
        raise TypeError(
            f"id is the primary key of a model, {id}; load columns, as "
            f"values_list('name', 'client', 'limit') of a QuerySet does"
        )
    id = str(id) if isinstance(id, _NETWORKS) else id
    return name, id, _limit(get, limits), None if comment is _MISSING else comment


def _limit(get: _Get, limits: dict[str, Limit]) -> object:
    """Return the limit of a row; each rate string is parsed once."""
    limit = get("limit")
    if isinstance(limit, str):
        if limit not in limits:
            limits[limit] = Limit.parse(limit)
        return limits[limit]
    if limit is not _MISSING:
        return limit
    burst, count, period = (get(column) for column in _COLUMNS)
    if _MISSING in (burst, count, period):
        raise ValueError(
            "a row has a limit, such as '100/minute', or burst, count and period; found neither"
        )
    return Limit.token_bucket(burst=burst, count=count, period=period)


def _is_model(row: object) -> bool:
    """Whether a row is an object of Django's ORM or of SQLAlchemy."""
    return hasattr(row, "_meta") or hasattr(row, "__table__")


def _is_nameless(row: object) -> TypeGuard[tuple[object, ...] | list[object]]:
    return isinstance(row, tuple | list) and not hasattr(row, "_fields")


def _getter(row: object) -> _Get:
    """Return a function that reads a field of the row by name."""
    if isinstance(row, Mapping):
        return lambda field: row.get(field, _MISSING)
    if _is_nameless(row):
        # Rows of a cursor without names.
        fields = dict(zip(_FIELDS, row, strict=False))
        return lambda field: fields.get(field, _MISSING)
    if hasattr(row, "keys") and hasattr(row, "__getitem__"):
        # `sqlite3.Row` is not a Mapping.
        named = {key: row[key] for key in row.keys()}  # noqa: SIM118  its iteration yields values
        return lambda field: named.get(field, _MISSING)
    return lambda field: getattr(row, field, _MISSING)


def _shown(row: object) -> str:
    get = _getter(row)
    fields = {field: get(field) for field in (*_FIELDS, *_COLUMNS)}
    shown = {field: value for field, value in fields.items() if value is not _MISSING}
    text = repr(shown or row)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
