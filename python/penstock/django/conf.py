"""The setting `PENSTOCK`: read on first use, and again when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from penstock._core import Limit
from penstock._locks import fork_safe
from penstock._validation import did_you_mean, report_finding
from penstock._web.guard import GUARD_HINTS, Guard, GuardOptions, check_on_denied, find_file
from penstock._web.identity import IdSource, by_address
from penstock._web.rule import Rule, make_rule
from penstock._web.setup_checks import report_foreign_settings
from penstock.django.app_limits import DjangoLimits
from penstock.django.request import DjangoRequest
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock._core import Limiter
    from penstock.types import Id

KEYS: Final = (
    *sorted(name.upper() for name in GuardOptions.__optional_keys__),
    "DEFAULT",
    "LIMITER",
)
"""The keys of `PENSTOCK`."""

# As the settings of Flask begin.
_PREFIX: Final = "PENSTOCK_"
_DOTTED: Final = ("CLOCK", "LIMITER", "NAMES", "ON_DECISION", "ON_DENIED", "TRANSLATIONS")

loaded: DjangoLimits | None = None
"""The limits of the current settings; `None` until `current` has read them."""
_lock: Final = fork_safe(Lock())


def current() -> DjangoLimits:
    """Return the limits of the current settings.

    Raises:
        ConfigError: The setting is wrong.
        LimitError: A rate in it is wrong.
    """
    return loaded or _load()


def get_guard() -> Guard:
    """Return the guard that the settings describe, such as for its metrics.

    Raises:
        ConfigError: The setting `PENSTOCK` is wrong.
    """
    return current().guard


def get_limiter() -> Limiter:
    """Return the limiter of the guard, for use in your own code.

    Raises:
        ConfigError: The setting `PENSTOCK` is wrong.
    """
    return current().guard.limiter


def client_id(request: Any, name: str, id: IdSource = by_address) -> Id:
    """Return the id of a request's client under a limit, to call the limiter with.

    Args:
        request: The request, of Django or of REST framework.
        name: The name of a loaded limit.
        id: As the option of `limit`.

    Raises:
        ConfigError: The setting `PENSTOCK` is wrong.
        UnknownLimit: No limit has this name.
        MissingId: The request has no id, or a malformed one.
    """
    http = getattr(request, "_request", request)
    return current().guard.client_id(DjangoRequest(request, http), name, id)


def _load() -> DjangoLimits:
    global loaded  # noqa: PLW0603  one process has one set of settings
    with _lock:
        if loaded is not None:
            return loaded
        options = read_options()
        report_foreign_settings(dir(settings))
        guard, defaults = make_guard(options), tuple(default_rules(options))
        # Servers run no system checks.
        guard.check(defaults)
        limits = loaded = DjangoLimits(guard, defaults)
    # Without the lock: it may import a module that uses the limiter.
    if defaults and not has_middleware():
        report_finding("P008", NO_MIDDLEWARE, ADD_MIDDLEWARE)
    return limits


NO_MIDDLEWARE: Final = "PENSTOCK['DEFAULT'] has no effect without the middleware"
"""What is wrong without the middleware."""
ADD_MIDDLEWARE: Final = (
    "add 'penstock.django.PenstockMiddleware' to MIDDLEWARE, below AuthenticationMiddleware"
)
"""What to do about it."""


def has_middleware() -> bool:
    """Return whether the settings have our middleware, or one derived from it."""
    paths = getattr(settings, "MIDDLEWARE", None) or ()
    ours = "penstock.django.PenstockMiddleware"
    if ours in paths:
        return True
    middleware = import_string(ours)
    for path in paths:
        with suppress(ImportError):
            entry = import_string(path)
            if isinstance(entry, type) and issubclass(entry, middleware):
                return True
    return False


def forget() -> None:
    """Read the setting again when it is next used; all buckets are full then."""
    global loaded  # noqa: PLW0603  as above
    loaded = None


def _note(*, setting: str, **_: Any) -> None:
    """Forget the setting after `override_settings`."""
    if setting == "BASE_DIR" or setting.startswith("PENSTOCK"):
        forget()


setting_changed.connect(_note, dispatch_uid="penstock")


def read_options() -> dict[str, Any]:
    """Return the setting with its keys checked.

    Raises:
        ConfigError: It is not a dictionary, or has an unknown key.
    """
    options = getattr(settings, "PENSTOCK", {})
    if not isinstance(options, Mapping):
        raise ConfigError(f"PENSTOCK must be a dict such as {{'LIMITS': ...}}, found {options!r}")
    for key in options:
        if key not in KEYS:
            near, name = did_you_mean(str(key), KEYS), str(key)
            instead = near if name.upper() in KEYS else GUARD_HINTS.get(name.lower(), near)
            raise ConfigError(f"PENSTOCK has no key {key!r}; {instead}")
    for name in dir(settings):
        if name.startswith(_PREFIX):
            key = name.removeprefix(_PREFIX)
            raise ConfigError(f"the setting {name} is not read; write PENSTOCK = {{{key!r}: ...}}")
    return dict(options)


def make_guard(options: Mapping[str, Any]) -> Guard:
    """Return the guard that the setting describes.

    Raises:
        ConfigError: An option is wrong, or a file does not load.
    """
    of_guard = {key: value for key, value in options.items() if key != "DEFAULT"}
    for key in _DOTTED:
        if isinstance(of_guard.get(key), str):
            of_guard[key] = _import(key, of_guard[key])
    for key in ("LIMITS", "OVERRIDES"):
        if isinstance(of_guard.get(key), str | PathLike):
            of_guard[key] = find_file(of_guard[key], getattr(settings, "BASE_DIR", None))
    check_on_denied(of_guard.get("ON_DENIED"), "ON_DENIED")
    limiter = of_guard.pop("LIMITER", None)
    lowered = {key.lower(): value for key, value in of_guard.items()}
    return Guard(limiter, **cast("GuardOptions", lowered))


def default_rules(options: Mapping[str, Any]) -> Iterator[Rule]:
    """Yield the rules of all views.

    Raises:
        ConfigError: `DEFAULT` is neither a limit nor a list of limits, or the list is empty.
    """
    limits = options.get("DEFAULT")
    if limits is None:
        return
    if isinstance(limits, list | tuple) and not limits:
        raise ConfigError("DEFAULT has no limit; write None for no default limit")
    plain: list[str | Limit] = []
    for item in limits if isinstance(limits, list | tuple) else (limits,):
        if isinstance(item, str | Limit):
            plain.append(item)
        elif callable(make := getattr(item, "rule", None)):
            yield make("default")
        else:
            raise ConfigError(
                f"DEFAULT must be the name of a limit, a rate such as '100/minute', a Limit, "
                f"limit(...) with options, or a list of these; found {item!r}"
            )
    if plain:
        yield make_rule(plain, "default", {})


def _import(key: str, path: str) -> Any:
    try:
        return import_string(path)
    except ImportError as error:
        raise ConfigError(
            f"{key} must be an object or its dotted path, found {path!r}: {error}"
        ) from error
