"""Checks of options at run time, for callers without a type checker, and of a running set-up."""

from __future__ import annotations

import inspect
import logging
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from penstock._core import parse_duration, timeout_ns
from penstock.errors import DOCUMENTATION, ConfigError, InvalidId, UnknownLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock._core import Limit, Limits
    from penstock.types import Id, Period

OBSERVED: Final = 1000
"""How many requests of an application are looked at for mistakes of its set-up."""

_log: Final = logging.getLogger("penstock")


def report_finding(code: str, sentence: str, fix: str) -> None:
    """Log a mistake of a running set-up; the page of codes explains its code."""
    _log.warning("%s: %s; %s (%s/codes/#%s)", code, sentence, fix, DOCUMENTATION, code.lower())


def is_whole(number: object, least: int, most: int) -> bool:
    """Whether a number is an integer within bounds. A `bool` is not a number."""
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def is_number(number: object, least: float, most: float) -> bool:
    """Whether a number is within bounds. A `bool` is not a number."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        return False
    return least <= number <= most


def name_value(given: object) -> str:
    """Return a value with its type, as error messages name what was found.

    Examples:
        >>> from penstock._validation import name_value
        >>> name_value("ten"), name_value(None)
        ("str 'ten'", 'None')
    """
    return "None" if given is None else f"{type(given).__name__} {given!r}"


def is_name(given: object) -> bool:
    """Whether a value is a non-empty string."""
    return isinstance(given, str) and bool(given)


def check_flag(name: str, given: object) -> None:
    """Check that an option is a `bool`, because a string such as `"false"` is true.

    Raises:
        ConfigError: It is not a `bool`.
    """
    if not isinstance(given, bool):
        raise ConfigError(f"{name} must be True or False, found {given!r}")


def check_names(
    given: Iterable[str],
    known: Iterable[str],
    owner: str,
    hints: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Check the names of options.

    Args:
        given: The names.
        known: The valid names.
        owner: What has the options, for the message.
        hints: What to write instead of names that other packages use.

    Raises:
        ConfigError: A name is unknown; the message suggests another.

    Examples:
        >>> from penstock._validation import check_names
        >>> check_names(["cost"], ["cost"], "it")
        >>> check_names(["price"], ["cost"], "it")
        Traceback (most recent call last):
        ...
        penstock.errors.ConfigError: it has no option 'price'; expected one of cost
    """
    known = sorted(known)
    for name in given:
        if name not in known:
            hint = hints.get(name) or did_you_mean(name, known)
            raise ConfigError(f"{owner} has no option {name!r}; {hint}")


def check_call(limits: Limits, name: str, id: object, cost: object) -> bool:
    """Check the limit that calls use, and their id and cost, unless these are callables.

    Returns:
        Whether the limit is on requests in flight, of which each takes one slot.

    Raises:
        ConfigError: There is no such limit, it can never allow the cost, the id does not fit it,
            or a callable is a coroutine function.
    """
    try:
        default = limits.default(name)
    except UnknownLimit as error:
        raise ConfigError(str(error)) from error
    if not callable(cost) and not is_whole(cost, 1, 2**63 - 1):
        raise ConfigError(f"cost must be a whole number from 1 or a callable, found {cost!r}")
    for option, given in (("id", id), ("cost", cost)):
        if inspect.iscoroutinefunction(given):
            raise ConfigError(f"{option} must be an ordinary function, found {given!r}")
    # `None` is unlimited.
    max_cost = None if default is None or has_slots(default) else default.max_cost
    if isinstance(cost, int) and max_cost is not None and cost > max_cost:
        raise ConfigError(
            f"{name}: cost must be at most {max_cost}, found {cost}, which could never be allowed"
        )
    limit = default
    if id is not None and not callable(id):
        try:
            limit = limits.resolve(name, cast("Id", id))
        except (InvalidId, TypeError) as error:
            raise ConfigError(f"{name}: {error}") from error
    return has_slots(limit)


def has_slots(limit: Limit | None) -> bool:
    """Return whether a limit is on requests in flight: what it admits has to be given back."""
    return hasattr(limit, "lease")


def slots_error(limit: object) -> ConfigError:
    """Return the error of a limit on requests in flight where nothing would return its slots."""
    return ConfigError(
        f"{limit} limits requests in flight, whose slots nothing would return here; use a rate, "
        f"such as '30/minute', or hold a slot yourself with limiter.reserve"
    )


def duration_ns(given: Period, option: str) -> int:
    """Return a length of time in nanoseconds.

    Raises:
        ConfigError: It is not a length of time.
    """
    try:
        return parse_duration(given, option)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error


def read_timeout(timeout: Period | None) -> int | None:
    """Return the longest wait in nanoseconds; `None` for as long as necessary.

    Raises:
        ConfigError: It is not a length of time.
    """
    try:
        return timeout_ns(timeout)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error


def is_coroutine_function(given: object) -> bool:
    """Whether calling a function or an object returns an awaitable."""
    return inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(
        getattr(given, "__call__", None)  # noqa: B004  the attribute itself is inspected
    )


def takes(given: object, number: int) -> bool:
    """Whether a value can be called with a number of arguments; `True` if that is unknown."""
    if not callable(given):
        return False
    try:
        inspect.signature(given).bind(*[None] * number)
    except TypeError:
        return False
    except ValueError:
        # Some built-in callables have no signature.
        return True
    return True


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """Return a hint with the closest known name, and all known names.

    Examples:
        >>> from penstock._validation import did_you_mean
        >>> did_you_mean("itef", ["ietf", "envoy"])
        "did you mean 'ietf'? Expected one of envoy, ietf"
        >>> did_you_mean("IETF", ["ietf", "envoy"])
        "did you mean 'ietf'? Expected one of envoy, ietf"
        >>> did_you_mean("x", [])
        'there are none'
    """
    names = sorted(known)
    # In any case: ORDERS is closer to Orders than to any other name.
    folded = {name.casefold(): name for name in names}
    near = get_close_matches(found.casefold(), folded, 1)
    listed = ", ".join(names)
    if near:
        return f"did you mean {folded[near[0]]!r}? Expected one of {listed}"
    return f"expected one of {listed}" if names else "there are none"
