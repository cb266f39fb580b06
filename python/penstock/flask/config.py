"""The extension's options, from its constructor and from the application's config."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import ConfigError
from penstock.guard import GuardOptions
from penstock.options import did_you_mean

if TYPE_CHECKING:
    from flask import Flask

    from penstock._core import Limit, Limiter

__all__ = ["configured"]

_MAKERS: Final = frozenset({"limits", "overrides", "names", "store", "clock"})


def configured(
    app: Flask, limiter: Limiter | None, options: GuardOptions
) -> tuple[Limiter | None, GuardOptions, tuple[str | Limit, ...]]:
    """Join the options with the application's config, which goes before them."""
    names = {f"PENSTOCK_{name.upper()}": name for name in GuardOptions.__optional_keys__}
    known = {*names, "PENSTOCK_LIMITER", "PENSTOCK_DEFAULT"}
    given = {key: value for key, value in app.config.items() if key.startswith("PENSTOCK_")}
    for key in given.keys() - known:
        raise ConfigError(f"the config has no key {key}; {did_you_mean(key, known)}")
    default = given.pop("PENSTOCK_DEFAULT", None) or ()
    configured = {names[key]: value for key, value in given.items() if key in names}
    if "PENSTOCK_LIMITER" in given:
        limiter = given["PENSTOCK_LIMITER"]
    elif "limits" in configured:
        limiter = None
    merged: dict[str, Any] = {**options, **configured}
    if limiter is not None and limiter is given.get("PENSTOCK_LIMITER"):
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
