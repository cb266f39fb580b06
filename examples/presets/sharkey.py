"""The limits of Sharkey, a server of the fediverse: its definitions load unchanged.

    import sharkey
    from penstock import Limiter

    limiter = Limiter(sharkey.limits({"notes/create": {"duration": 3600000, "max": 300}}))

Times are numbers of milliseconds. A definition with `type: bucket` has `size`, `dripRate` and
`dripSize`; another one has `max`, `duration` and `minInterval`, of which any may be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock import ConfigError, Limit, Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HEADERS", "limit", "limits", "role_factor"]

HEADERS: Final = "sharkey-always"
"""The header style: `sharkey`, also where a limit is lifted."""

_BUCKET: Final = frozenset({"type", "key", "size", "dripRate", "dripSize"})
_OLDER: Final = frozenset({"key", "max", "duration", "minInterval"})
_DEFAULT_DRIP_RATE: Final = 1000
_MAX_FACTOR_DIVISOR: Final = 100


def limit(definition: Mapping[str, Any]) -> Limit:
    """Return the limit of one definition.

    Raises:
        ConfigError: A field is unknown, missing or not a number.
        LimitError: A number is out of range.

    Examples:
        >>> import sharkey
        >>> sharkey.limit({"type": "bucket", "size": 10, "dripRate": 500})
        Limit.leaky_bucket(size=10, drip_rate='500ms', drip_size=1)
        >>> sharkey.limit({"duration": 3600000, "max": 300, "minInterval": 1000})
        Limit.leaky_bucket(size=300, drip_rate='12s', drip_size=1)
    """
    is_bucket = "type" in definition
    known = _BUCKET if is_bucket else _OLDER
    for field, value in definition.items():
        if field not in known:
            raise ConfigError(
                f"a definition has no field {field!r}; known are {', '.join(sorted(known))}"
            )
        if field not in ("type", "key") and not _is_number(value):
            raise ConfigError(f"{field} must be a number, found {value!r}")
    if not is_bucket:
        if not definition.keys() - {"key"}:
            raise ConfigError("a definition needs max, duration or minInterval; found none")
        return Limit.leaky_bucket_from(
            max=definition.get("max"),
            duration=_seconds(definition.get("duration")),
            min_interval=_seconds(definition.get("minInterval")),
        )
    if definition["type"] != "bucket":
        raise ConfigError(f"type must be 'bucket', found {definition['type']!r}")
    if "size" not in definition:
        raise ConfigError("a bucket needs size")
    return Limit.leaky_bucket(
        size=definition["size"],
        drip_rate=_seconds(definition.get("dripRate", _DEFAULT_DRIP_RATE)) or 0,
        drip_size=definition.get("dripSize", 1),
    )


def limits(definitions: Mapping[str, Mapping[str, Any]]) -> Limits:
    """Return the limits of definitions by their names, such as the endpoints.

    Definitions with a `key` are one limit of that name.

    Raises:
        ConfigError: As `limit`; or two definitions with one key differ.
        LimitError: As `limit`.
    """
    found: dict[str, Limit] = {}
    for name, definition in definitions.items():
        key = str(definition.get("key", name))
        try:
            own = limit(definition)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
        if found.setdefault(key, own) != own:
            raise ConfigError(f"{name}: another definition with the key {key!r} differs")
    return Limits(found)


def role_factor(factors: Iterable[float]) -> float:
    """Return the factor of a user with several roles: the largest, at least 0.01; 1 without roles.

    A factor of 0 lifts the limit, if no role has a larger one.

    Examples:
        >>> import sharkey
        >>> [sharkey.role_factor(factors) for factors in ([0.5, 0.25], [], [0])]
        [0.5, 1, 0]
    """
    largest = max(factors, default=1)
    return largest if largest == 0 else max(largest, 1 / _MAX_FACTOR_DIVISOR)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
