"""The extension's options, from its constructor and from the application's config."""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import ConfigError
from penstock.validation import did_you_mean
from penstock.web.adapter import find_file
from penstock.web.guard import GuardOptions

if TYPE_CHECKING:
    from flask import Flask

    from penstock._core import Limit, Limiter

_PREFIX: Final = "PENSTOCK_"
_LIMITER_OPTIONS: Final = frozenset({"limits", "overrides", "names", "store", "clock"})


def check_prefix(prefix: object) -> None:
    """Check a prefix of config keys.

    Raises:
        ConfigError: It is not a prefix, or its keys could be mistaken for those of `PENSTOCK_`.
    """
    if prefix != _PREFIX and (
        not isinstance(prefix, str)
        or not re.fullmatch(r"[A-Z][A-Z0-9_]*_", prefix)
        or prefix.startswith(_PREFIX)
    ):
        raise ConfigError(
            f"config_prefix must be upper case, end in _ and not begin with {_PREFIX}, "
            f"found {prefix!r}; use a prefix such as 'PARTNERS_PENSTOCK_'"
        )


def merge_config(
    app: Flask, prefix: str, limiter: Limiter | None, options: GuardOptions, *, is_first: bool
) -> tuple[Limiter | None, GuardOptions, tuple[str | Limit, ...]]:
    """Return the limiter, the options and the default limits; the config has precedence.

    Raises:
        ConfigError: A key is unknown, or belongs to the first extension with this prefix alone.
    """
    names = {f"{prefix}{name.upper()}": name for name in GuardOptions.__optional_keys__}
    limiter_key, default_key = f"{prefix}LIMITER", f"{prefix}DEFAULT"
    known = {*names, limiter_key, default_key}
    given = {key: value for key, value in app.config.items() if key.startswith(prefix)}
    for key in given.keys() - known:
        raise ConfigError(f"the config has no key {key}; {did_you_mean(key, known)}")
    for key in sorted(given.keys() & {f"{prefix}LIMITS", limiter_key, default_key}):
        if not is_first:
            raise ConfigError(
                f"{key} configures one Penstock of an application, found a second; give the "
                f"second a config_prefix of its own"
            )
    default = given.pop(default_key, None) or ()
    configured = {names[key]: value for key, value in given.items() if key in names}
    if limiter_key in given:
        limiter = given[limiter_key]
    elif "limits" in configured:
        limiter = None
    merged: dict[str, Any] = {**options, **configured}
    if limiter is not None and limiter is given.get(limiter_key):
        # The limiter of the config replaces the one that the constructor's options describe.
        merged = {
            key: value
            for key, value in merged.items()
            if key in configured or key not in _LIMITER_OPTIONS
        }
    for key in ("limits", "overrides"):
        if isinstance(merged.get(key), str | PathLike):
            merged[key] = find_file(merged[key], app.root_path)
    if isinstance(default, str) or not isinstance(default, Iterable):
        default = (default,)
    return limiter, cast("GuardOptions", merged), tuple(default)
