"""The options of entry points: their names, their checks, and the limiter that they describe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from penstock._core import Limit, Limiter, Limits, ManualClock, SystemClock
from penstock.errors import ConfigError, ConfigProblem
from penstock.validation import (
    check_names,
    is_coroutine_function,
    is_name,
)
from penstock.web.identity import ReadyId
from penstock.web.rule import LIMIT_HINTS, LimitOptions

if TYPE_CHECKING:
    import enum

    from penstock._core import Decision
    from penstock.messages import Translations
    from penstock.types import StorePolicy
    from penstock.web.address import ForwardedHeader
    from penstock.web.identity import OnMissing
    from penstock.web.outcome import Outcome
    from penstock.web.rule import Rule

LimitsOption = Limits | Mapping[str, Limit | str] | str | os.PathLike[str]

_DEFAULTS: Final = (
    "use the adapter's default limits: limits.default('100/minute') in Flask, DEFAULT in Django's "
    "settings, FastAPI(dependencies=[Depends(RateLimit('100/minute'))])"
)
# Keywords of similar packages, and what to write here.
_GUARD_HINTS: Final = {
    "application_limits": "use the adapter's default limits with id=everyone",
    "auto_check": "limits are always checked; enabled=False turns them off",
    "config_filename": "pass the options here, or as settings of the application",
    "default": _DEFAULTS,
    "default_limits": _DEFAULTS,
    "default_limits_cost": "use cost on the default limits",
    "default_limits_deduct_when": "use deduct_when on the default limits",
    "default_limits_exempt_when": "use exempt_when on the default limits",
    "default_limits_per_method": "use one default limit for each method, with methods=['GET']",
    "fail_on_first_breach": "limits of a route are decided together, all or nothing",
    "header_name_mapping": "use headers, such as headers='github'",
    "headers_enabled": "headers are on by default; headers=None turns them off",
    "in_memory_fallback": "use on_store_error='local'",
    "in_memory_fallback_enabled": "use on_store_error='local'",
    "key_func": "use id on each limit, such as limit('PerUser', id=by_user)",
    "key_prefix": "use the prefix of the store's URL, such as store='redis://host?prefix=shop'",
    "meta_limits": "use block_for or count_denied on a limit",
    "on_breach": "use on_denied",
    "request_identifier": "use id=per_route() on a limit",
    "retry_after": "Retry-After is in seconds",
    "storage_options": "use the parameters of the store's URL",
    "storage_uri": "use store",
    "strategy": "the limits file chooses the algorithm of each limit",
    "swallow_errors": "use on_store_error='allow', which is the default",
}


class GuardOptions(TypedDict, total=False):
    """Keywords of a guard, which every entry point takes; see `Guard`."""

    limits: LimitsOption | None
    overrides: str | os.PathLike[str] | None
    names: type[enum.IntEnum] | None
    store: str | None
    clock: SystemClock | ManualClock | None
    headers: str | Sequence[str] | None
    enabled: bool
    trusted_proxies: str | Sequence[str]
    hops: int
    ipv6_prefix: int
    forwarded_header: ForwardedHeader
    on_missing_id: OnMissing
    on_store_error: StorePolicy | Mapping[str, StorePolicy]
    expected_processes: int
    on_denied: Callable[[Outcome], Any] | None
    on_decision: Callable[[Decision, Any], object] | None
    near_limit: float | None
    spread: float
    expose_headers: bool
    override_defaults: bool
    translations: Translations | None


def check_options(options: Iterable[str], entry_point: str) -> None:
    """Check the names of a guard's keywords.

    Raises:
        ConfigError: A name is unknown.
    """
    check_names(options, GuardOptions.__optional_keys__, entry_point, _GUARD_HINTS)


def split_options(
    options: Mapping[str, Any], entry_point: str
) -> tuple[GuardOptions, dict[str, Any]]:
    """Split the keywords of an entry point into those of its guard and those of its limit.

    Raises:
        ConfigError: An option is unknown.
    """
    guard_keys = GuardOptions.__optional_keys__
    known = guard_keys | LimitOptions.__optional_keys__
    check_names(options, known, entry_point, {**_GUARD_HINTS, **LIMIT_HINTS})
    of_guard = {name: value for name, value in options.items() if name in guard_keys}
    of_limit = {name: value for name, value in options.items() if name not in guard_keys}
    return cast("GuardOptions", of_guard), of_limit


def split_limit(
    limit: str | Limit | Sequence[str | Limit] | Callable[..., Any] | None,
    options: Mapping[str, Any],
) -> tuple[tuple[str | Limit, ...], dict[str, Any]]:
    """Return the `limit` of a middleware as the limits and options of a rule."""
    if limit is None:
        return (), dict(options)
    if callable(limit):
        return (), {**options, "limit": limit}
    return tuple(limit) if isinstance(limit, list | tuple) else (cast("str", limit),), dict(options)


def check_on_denied(on_denied: object, option: str = "on_denied") -> None:
    """Check that a synchronous adapter can call `on_denied`.

    Raises:
        ConfigError: It is a coroutine function.
    """
    if is_coroutine_function(on_denied):
        raise ConfigError(f"{option} must be an ordinary function, found {on_denied!r}")


def check_routeless(rule: Rule, instead: str) -> None:
    """Check that a rule can be applied where the route of a request is not known.

    Raises:
        ConfigError: Its id needs the route; the message recommends `instead`.
    """
    if isinstance(rule.id, ReadyId) and rule.id.needs_route:
        raise ConfigError(f"{rule.id!r} needs the route, which is not known here; {instead}")


LIMITER_OPTIONS: Final = ("limits", "overrides", "names", "store", "clock")
"""Options that describe a limiter, in place of a ready one."""


def make_limiter(
    limiter: object,
    *,
    limits: LimitsOption | None,
    overrides: str | os.PathLike[str] | None,
    names: type[enum.IntEnum] | None,
    store: str | None,
    clock: SystemClock | ManualClock | None,
) -> Limiter:
    """Return a ready limiter, or the one that options describe.

    Raises:
        ConfigError: Both are given, an option is wrong, or a file does not load.
    """
    if limiter is not None:
        if any(given is not None for given in (limits, overrides, names, store, clock)):
            raise ConfigError(
                "pass limiter, or limits, overrides, names, store and clock; found both"
            )
        if not isinstance(limiter, Limiter):
            raise ConfigError(f"limiter must be a penstock.Limiter, found {limiter!r}")
        return limiter
    if store is not None and not is_name(store):
        raise ConfigError(f"store must be a URL such as 'memory://', found {store!r}")
    try:
        loaded = _load(limits, overrides, names)
        return Limiter(loaded, store=store or "memory://", clock=clock)
    except TypeError as error:
        # A value of the wrong type; the message of the core says which.
        raise ConfigError(str(error)) from error


def _load(
    limits: LimitsOption | None,
    overrides: str | os.PathLike[str] | None,
    names: type[enum.IntEnum] | None,
) -> Limits:
    if isinstance(limits, str | os.PathLike):
        try:
            return Limits.load(limits, overrides, names)
        except ConfigError as error:
            if Path(limits).exists() or error.file is None:
                raise
            raise _no_file(limits) from error
    if overrides is not None or names is not None:
        raise ConfigError(
            f"overrides and names need a limits file, found {limits!r}; "
            f"use Limits.load(limits, overrides, names)"
        )
    if limits is None:
        return Limits()
    return limits if isinstance(limits, Limits) else Limits(limits)


def _no_file(limits: str | os.PathLike[str]) -> ConfigError:
    text = os.fspath(limits).replace(os.sep, "/")
    hint = f"; for a text, write {{'PerAddress': {text!r}}}" if text[:1].isdigit() else ""
    error = ConfigError(f"limits: there is no file {Path(limits).absolute()}{hint}")
    error.file, error.problems = str(limits), (ConfigProblem(error),)
    return error


def find_file(path: str | os.PathLike[str], base: str | os.PathLike[str] | None) -> Path:
    """Return the path of a file, looked for in `base` first, then in the working directory."""
    in_base = None if base is None else Path(base) / path
    return in_base if in_base is not None and in_base.exists() else Path(path)
