"""The extension's options, from its constructor and from the application's config."""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import ConfigError
from penstock.validation import did_you_mean
from penstock.web.guard import GuardOptions

if TYPE_CHECKING:
    from flask import Flask

    from penstock._core import Limit, Limiter

__all__ = ["check_prefix", "configured"]

_PREFIX: Final = "PENSTOCK_"
_MAKERS: Final = frozenset({"limits", "overrides", "names", "store", "clock"})


def check_prefix(prefix: object) -> None:
    """Find out whether a prefix can be one.

    Raises:
        ConfigError: It cannot, or its keys would look like those of the usual prefix.
    """
    if prefix != _PREFIX and (
        not isinstance(prefix, str)
        or not re.fullmatch(r"[A-Z][A-Z0-9_]*_", prefix)
        or prefix.startswith(_PREFIX)
    ):
        raise ConfigError(
            f"config_prefix must be upper case, end in _ and not begin with {_PREFIX}, "
            f"found {prefix!r}; 'PARTNERS_PENSTOCK_' would do"
        )


def configured(
    app: Flask, prefix: str, limiter: Limiter | None, options: GuardOptions, *, is_first: bool
) -> tuple[Limiter | None, GuardOptions, tuple[str | Limit, ...]]:
    """Join the options with the application's config, which goes before them.

    Raises:
        ConfigError: A key that there is not, or one that can be for one extension only and is not
            for the first that has this prefix.
    """
    names = {f"{prefix}{name.upper()}": name for name in GuardOptions.__optional_keys__}
    of_limiter, of_default = f"{prefix}LIMITER", f"{prefix}DEFAULT"
    known = {*names, of_limiter, of_default}
    given = {key: value for key, value in app.config.items() if key.startswith(prefix)}
    for key in given.keys() - known:
        raise ConfigError(f"the config has no key {key}; {did_you_mean(key, known)}")
    for key in sorted(given.keys() & {f"{prefix}LIMITS", of_limiter, of_default}):
        if not is_first:
            raise ConfigError(
                f"{key} is for one Penstock of an application, found a second; give that one "
                f"a config_prefix of its own"
            )
    default = given.pop(of_default, None) or ()
    configured = {names[key]: value for key, value in given.items() if key in names}
    if of_limiter in given:
        limiter = given[of_limiter]
    elif "limits" in configured:
        limiter = None
    merged: dict[str, Any] = {**options, **configured}
    if limiter is not None and limiter is given.get(of_limiter):
        # What makes a limiter was said to the extension, and the config has another one.
        merged = {
            key: value for key, value in merged.items() if key in configured or key not in _MAKERS
        }
    for key in ("limits", "overrides"):
        if isinstance(merged.get(key), str | PathLike):
            merged[key] = _found(app, merged[key])
    chosen = (
        (default,) if isinstance(default, str) or not isinstance(default, Iterable) else default
    )
    return limiter, cast("GuardOptions", merged), tuple(chosen)


def _found(app: Flask, path: str | PathLike[str]) -> Path:
    """Give a file by its path: beside the application, or else from where the process runs."""
    beside = Path(app.root_path) / path
    return beside if beside.exists() else Path(path)
