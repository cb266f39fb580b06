"""System checks, which report wrong settings and limits before a request meets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004  Django's word

from penstock._explain import is_per_process
from penstock.django.app_limits import DjangoLimits
from penstock.django.conf import (
    ADD_MIDDLEWARE,
    NO_MIDDLEWARE,
    default_rules,
    has_middleware,
    make_guard,
    read_options,
)
from penstock.django.urls import all_routes, throttles_of
from penstock.django.view_limits import all_rules, check_view_class, class_of
from penstock.errors import DOCUMENTATION, ConfigError, ConfigProblem, LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock._web.guard import Guard
    from penstock._web.rule import Rule

_TAG: Final = "penstock"
_KEYS: Final = f"{DOCUMENTATION}/options/"


def _sentence(fix: str) -> str:
    # Not `capitalize`, which would write the names of classes and settings in lower case.
    return f"{fix[:1].upper()}{fix[1:]}."


_ADD: Final = _sentence(ADD_MIDDLEWARE)


@register(_TAG)
def check_settings(app_configs: object, **_: Any) -> list[CheckMessage]:
    """Check the setting `PENSTOCK` and its files."""
    try:
        options = read_options()
    except ConfigError as error:
        return [_error("E005", error, f"Correct the keys of PENSTOCK; {_KEYS} lists them.")]
    guard, messages = _guard(options)
    if options.get("DEFAULT") is not None:
        if not has_middleware():
            messages.append(_error("E009", NO_MIDDLEWARE, _ADD))
        try:
            rules = list(default_rules(options))
            if guard is not None:
                guard.check(rules)
        except (ConfigError, LimitError) as error:
            hint = "Name a limit of PENSTOCK['LIMITS'], or write a rate such as '100/minute'."
            messages.append(_error("E003", f"PENSTOCK['DEFAULT']: {error}", hint))
    return messages


@register(_TAG)
def check_views(app_configs: object, **_: Any) -> list[CheckMessage]:
    """Check the limits of all views that the URLconf reaches."""
    guard = _usable_guard()
    if guard is None:
        return []
    messages: list[CheckMessage] = []
    is_decorated = is_throttled = False
    seen: set[str] = set()
    for route, view in all_routes():
        for rule in all_rules(view):
            is_decorated = True
            try:
                guard.check([rule])
            except (ConfigError, LimitError) as error:
                hint = "Correct the limit of the view, or add it to PENSTOCK['LIMITS']."
                _add_once(messages, seen, _error("E002", f"{route}: {error}", hint))
        try:
            check_view_class(class_of(view))
        except ConfigError as error:
            _add_once(messages, seen, _error("E007", f"{route}: {error}", "Rename the attribute."))
        for throttle, scope, view_class in throttles_of(view):
            is_throttled = True
            try:
                rule = throttle.penstock_rule(scope, view_class)
                guard.check(() if rule is None else (rule,))
            except (ConfigError, LimitError) as error:
                hint = (
                    "Set throttle_scope to the name of a limit of PENSTOCK['LIMITS'], or to a "
                    "rate; move the rates of REST framework's DEFAULT_THROTTLE_RATES there."
                )
                _add_once(messages, seen, _error("E007", f"{route}: {error}", hint))
    if is_decorated and not has_middleware():
        messages.append(
            Warning(
                "Views have limits, but the middleware is missing: responses of outer decorators "
                "and error pages have no header fields of limits.",
                hint=_ADD,
                id="penstock.W002",
            )
        )
    if is_throttled:
        messages += _proxies_of_rest_framework()
    return messages


@register(_TAG)
def check_effects(app_configs: object, **_: Any) -> list[CheckMessage]:
    """Check that what is set up has an effect."""
    guard = _usable_guard()
    mistakes = () if guard is None else DjangoLimits(guard, _defaults()).mistakes()
    return [
        Warning(f"{sentence}.", hint=_sentence(fix), id="penstock.W003")
        for sentence, fix in mistakes
    ]


@register(_TAG, deploy=True)
def check_deployment(app_configs: object, **_: Any) -> list[CheckMessage]:
    """Check settings for servers with several processes."""
    guard = _usable_guard()
    if guard is None or not is_per_process(guard.limiter):
        return []
    # Servers start their workers after this check, or elsewhere: only the setting can say that
    # there is a single process.
    processes = read_options().get("EXPECTED_PROCESSES")
    if processes == 1:
        return []
    counted = "each worker" if processes is None else f"each of the {processes} processes"
    return [
        Warning(
            f"The store is in process memory: {counted} counts separately, so a client can get "
            f"each limit once per process.",
            hint="Set PENSTOCK['STORE'] to 'shm://NAME', which the processes of a machine share, "
            "or PENSTOCK['EXPECTED_PROCESSES'] to 1 if there is one process.",
            id="penstock.W001",
        )
    ]


class FileError(Error):
    """An error of a limits file.

    Attributes:
        problem: Where it is.
    """

    problem: ConfigProblem


def _file_error(problem: ConfigProblem, hint: str) -> FileError:
    error = FileError(str(problem), hint=hint, id="penstock.E001")
    error.problem = problem
    return error


def _error(number: str, error: object, hint: str) -> Error:
    return Error(str(error), hint=hint, id=f"penstock.{number}")


def _add_once(messages: list[CheckMessage], seen: set[str], message: CheckMessage) -> None:
    # Report each fault of a view once, whatever the number of its routes and methods.
    if (fault := message.msg.partition(": ")[2]) not in seen:
        seen.add(fault)
        messages.append(message)


def _guard(options: Mapping[str, Any]) -> tuple[Guard | None, list[CheckMessage]]:
    """Return the guard, or the faults of the setting."""
    try:
        return make_guard(options), []
    except ConfigError as error:
        if error.problems or error.file is not None:
            hint = "Correct the file; `manage.py penstock check` checks it again."
            problems = error.problems or (ConfigProblem(error),)
            return None, [_file_error(problem, hint) for problem in problems]
        return None, [_error("E006", f"PENSTOCK: {error}", "Correct the option of PENSTOCK.")]
    except LimitError as error:
        hint = "Write a limit as '100/minute' or '10 per 5 minutes, burst 20'."
        return None, [_error("E001", f"PENSTOCK['LIMITS']: {error}", hint)]
    except OSError as error:
        hint = "A relative path is looked for in BASE_DIR, then in the working directory."
        return None, [_error("E001", error, hint)]


def _defaults() -> tuple[Rule, ...]:
    """Return the rules of all views; none if `check_settings` reports a fault."""
    try:
        return tuple(default_rules(read_options()))
    except (ConfigError, LimitError):
        return ()


def _usable_guard() -> Guard | None:
    """Return the guard; `None` if `check_settings` reports a fault."""
    try:
        return _guard(read_options())[0]
    except ConfigError:
        return None


def _proxies_of_rest_framework() -> Iterator[CheckMessage]:
    number = (getattr(settings, "REST_FRAMEWORK", None) or {}).get("NUM_PROXIES")
    options = read_options()
    if number and not (options.get("HOPS") or options.get("TRUSTED_PROXIES")):
        yield _error(
            "E008",
            f"REST_FRAMEWORK['NUM_PROXIES'] is {number}, but penstock does not read it: all "
            f"clients behind the proxies would share one bucket",
            f"Set PENSTOCK['HOPS'] to {number}, or list the networks of the proxies in "
            f"PENSTOCK['TRUSTED_PROXIES'].",
        )
