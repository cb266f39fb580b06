"""The extension's options, from its constructor and from the application's config."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, cast

from penstock._validation import did_you_mean
from penstock._web.guard import LIMITER_OPTIONS, GuardOptions, find_file
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from flask import Flask

    from penstock._core import Limit, Limiter

_PREFIX: Final = "PENSTOCK_"
_LIMITER_KEY: Final = "PENSTOCK_LIMITER"
_DEFAULT_KEY: Final = "PENSTOCK_DEFAULT"


def merge_config(
    app: Flask, limiter: Limiter | None, options: GuardOptions
) -> tuple[Limiter | None, GuardOptions, tuple[str | Limit, ...]]:
    """Return the limiter, the options and the default limits; the config has precedence.

    Raises:
        ConfigError: A key is unknown.
    """
    names = {f"{_PREFIX}{name.upper()}": name for name in GuardOptions.__optional_keys__}
    known = {*names, _LIMITER_KEY, _DEFAULT_KEY}
    # In any case, because Flask would not read another one either.
    settings = {key: value for key, value in app.config.items() if key.upper().startswith(_PREFIX)}
    for key in settings.keys() - known:
        raise ConfigError(f"the config has no key {key}; {did_you_mean(key.upper(), known)}")
    if "PENSTOCK" in app.config:
        raise ConfigError(
            "the config has no key PENSTOCK; write a key for each option, such as PENSTOCK_DEFAULT"
        )
    default = settings.pop(_DEFAULT_KEY, None)
    if default is None:
        default = ()
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
    if isinstance(default, str) or not isinstance(default, Iterable):
        default = (default,)
    return limiter, cast("GuardOptions", merged), tuple(default)
