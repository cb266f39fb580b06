"""The extension's options, from its constructor and from the application's config."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, Final, cast

from penstock._validation import did_you_mean
from penstock._web.guard import GUARD_HINTS, LIMITER_OPTIONS, GuardOptions, find_file
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from flask import Flask

    from penstock._core import Limit, Limiter

_PREFIX: Final = "PENSTOCK_"
_LIMITER_KEY: Final = "PENSTOCK_LIMITER"
_DEFAULT_KEY: Final = "PENSTOCK_DEFAULT"


def settings_of(app: Flask) -> dict[str, Any]:
    """Return what the config of an application says about limits."""
    # In any case, because Flask would not read another one either.
    return {key: value for key, value in app.config.items() if key.upper().startswith(_PREFIX)}


def merge_config(
    app: Flask, limiter: Limiter | None, options: GuardOptions
) -> tuple[Limiter | None, GuardOptions, tuple[str | Limit, ...]]:
    """Return the limiter, the options and the default limits; the config has precedence.

    Raises:
        ConfigError: A key is unknown, or the default is an empty list.
    """
    names = {f"{_PREFIX}{name.upper()}": name for name in GuardOptions.__optional_keys__}
    known = {*names, _LIMITER_KEY, _DEFAULT_KEY}
    settings = settings_of(app)
    for key in settings.keys() - known:
        near, name = did_you_mean(key, known), key.upper().removeprefix(_PREFIX).lower()
        instead = near if key.upper() in known else GUARD_HINTS.get(name, near)
        raise ConfigError(f"the config has no key {key}; {instead}")
    if "PENSTOCK" in app.config:
        raise ConfigError(
            "the config has no key PENSTOCK; write a key for each option, such as PENSTOCK_DEFAULT"
        )
    default = _default_limits(settings.pop(_DEFAULT_KEY, None))
    configured = {names[key]: value for key, value in settings.items() if key in names}
    if _LIMITER_KEY in settings:
        limiter = settings[_LIMITER_KEY]
    elif "limits" in configured:
        limiter = None
    merged: dict[str, Any] = {**options, **configured}
    if limiter is not None and limiter is settings.get(_LIMITER_KEY):
        # The limiter of the config replaces the one that the constructor's options describe.
        merged = {
            key: value
            for key, value in merged.items()
            if key in configured or key not in LIMITER_OPTIONS
        }
    for key in ("limits", "overrides"):
        if isinstance(merged.get(key), str | PathLike):
            merged[key] = find_file(merged[key], app.root_path)
    return limiter, cast("GuardOptions", merged), default


def _default_limits(default: Any) -> tuple[str | Limit, ...]:
    if default is None:
        return ()
    # Not any iterable: of a dict, only the names would be read.
    limits = tuple(default) if isinstance(default, list | tuple) else (default,)
    if not limits:
        raise ConfigError(f"{_DEFAULT_KEY} has no limit; write None for no default limit")
    return limits
