"""Kit for framework adapters: the parts that do not depend on the framework.

An adapter shows each request as a `Request`, passes it to a `RouteLimits`, and writes the `Outcome`
into the framework's response.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import ConfigError, Error, RateLimited
from penstock.locks import fork_safe
from penstock.validation import check_names, is_coroutine_function
from penstock.web.identity import ReadyId
from penstock.web.limit_names import view_scope
from penstock.web.options import GUARD_HINTS, GuardOptions
from penstock.web.rule import LIMIT_HINTS, LimitOptions

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock._core import Limit
    from penstock.web.guard import Guard
    from penstock.web.headers import Fields
    from penstock.web.outcome import Outcome
    from penstock.web.route_limits import RouteLimits
    from penstock.web.rule import Rule

_TYPE: Final = "Content-Type"
_TEXT: Final = "text/plain; charset=utf-8"


def split_options(
    options: Mapping[str, Any], entry_point: str
) -> tuple[GuardOptions, dict[str, Any]]:
    """Split the keywords of an entry point into those of its guard and those of its limit.

    Raises:
        ConfigError: An option is unknown.
    """
    guard_keys = GuardOptions.__optional_keys__
    known = guard_keys | LimitOptions.__optional_keys__
    check_names(options, known, entry_point, {**GUARD_HINTS, **LIMIT_HINTS})
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


def refusal_body(
    outcome: Outcome, answer: object, expected: str, *, text_type: str = _TEXT
) -> tuple[Fields, bytes]:
    """Return the header fields of a refusal's body, and the body.

    Args:
        outcome: The outcome that refuses the request.
        answer: What `on_denied` returned; `None` for the usual body.
        expected: The framework's own response type, for the error message.
        text_type: The content type of text.

    Raises:
        ConfigError: `answer` cannot be a body.
    """
    if answer is None:
        return outcome.body()
    if isinstance(answer, str):
        return [(_TYPE, text_type)], answer.encode()
    if isinstance(answer, bytes):
        return [(_TYPE, text_type)], answer
    if isinstance(answer, dict | list):
        return [(_TYPE, "application/json")], json.dumps(answer, ensure_ascii=False).encode()
    raise ConfigError(f"on_denied must return {expected}, text, a dict or None, found {answer!r}")


def refund_failed(
    outcome: Outcome | None, error: Exception, is_answer: Callable[[Exception], bool]
) -> None:
    """Refund a request whose view raised, unless the exception is an answer, such as a 404."""
    if outcome is not None and not (isinstance(error, RateLimited) or is_answer(error)):
        outcome.refund()


def find_file(path: str | os.PathLike[str], base: str | os.PathLike[str] | None) -> Path:
    """Return the path of a file, looked for in `base` first, then in the working directory."""
    in_base = None if base is None else Path(base) / path
    return in_base if in_base is not None and in_base.exists() else Path(path)


def scope_of(view: object) -> str:
    """Return the scope under which the unnamed limits of a view are kept."""
    named: Any = view if hasattr(view, "__qualname__") else type(view)
    return view_scope(named.__module__, named.__qualname__)


class ViewLimits:
    """Rules that decorators put on a view, from the outermost to the innermost.

    Attributes:
        view: The view without our decorators.
        rules: The rules.
        wrapper: The function that replaces the view; `None` if one is created for each call.
    """

    __slots__ = ("__weakref__", "rules", "view", "wrapper")

    def __init__(self, view: Callable[..., Any], rules: tuple[Rule, ...]) -> None:
        self.view: Final = view
        self.rules: Final = rules
        self.wrapper: Callable[..., Any] | None = None

    @classmethod
    def stacked(cls, view: Callable[..., Any], rule: Rule, attribute: str) -> ViewLimits:
        """Add a rule to a view; decorators directly on one another share one wrapper."""
        inner = outermost_limits(view, attribute)
        if inner is None:
            return cls(view, (rule,))
        return cls(inner.view, (rule, *inner.rules))


def outermost_limits(view: object, attribute: str) -> ViewLimits | None:
    """Return the limits of a view; `None` if it has none, or another decorator is around them."""
    limits: ViewLimits | None = getattr(view, attribute, None)
    # Other decorators copy the attribute to their own function.
    return limits if limits is not None and limits.wrapper is view else None


def overrides_defaults(guard: Guard, option: bool | None) -> bool:
    """Return whether a limit replaces the default limits; its own option has precedence."""
    return guard.override_defaults if option is None else option


def nested_limits(views: Iterable[object], attribute: str) -> Iterator[ViewLimits]:
    """Yield the limits of views, each once, also those within other decorators."""
    seen: set[int] = set()
    for view in views:
        function = view
        while function is not None and id(function) not in seen:
            seen.add(id(function))
            limits: ViewLimits | None = getattr(function, attribute, None)
            if limits is not None and id(limits) not in seen:
                seen.add(id(limits))
                yield limits
            function = getattr(function, "__wrapped__", None)


class AppLimits:
    """Limits of one application; each adapter adds how its requests are matched to them.

    Attributes:
        guard: The guard of the application.
        defaults: The rules of all routes.
    """

    def __init__(self, guard: Guard, defaults: tuple[Rule, ...] = ()) -> None:
        self.guard: Final = guard
        self.defaults = defaults
        self._lock: Final = fork_safe(RLock())
        self._is_bound = False

    def defaults_beside(self, own: Iterable[Rule], method: str) -> tuple[Rule, ...]:
        """Return the default rules that apply to a route beside its own rules.

        A rule that does not count the method of a request does not override them.
        """
        if any(
            overrides_defaults(self.guard, rule.override_defaults)
            and (rule.methods is None or method in rule.methods)
            for rule in own
        ):
            return ()
        return self.defaults

    def registered_rules(self) -> Iterable[Rule]:
        """Yield the rules of all routes, in the order in which the routes were registered."""
        return self.defaults

    def further_rules(self) -> Iterable[Rule]:
        """Yield the rules of functions that are no routes, such as those that views call."""
        return ()

    def bind_all(self) -> None:
        """Name the unnamed limits of all routes, so that every process gives them the same names.

        A faulty rule raises when it is used.
        """
        with self._lock:
            if not self._is_bound:
                self._is_bound = True
                self._bind(self.registered_rules())
                self.guard.end_start()
                self._bind(self.further_rules())

    def _bind(self, rules: Iterable[Rule]) -> None:
        for rule in rules:
            with suppress(Error):
                self.guard.route_limits([rule])

    def compile(self, rules: Sequence[Rule]) -> RouteLimits | None:
        """Return the compiled limits of a route; `None` if it has none.

        Raises:
            ConfigError: As `Guard.check`.
            LimitError: As `Guard.check`.
        """
        self.bind_all()
        with self._lock:
            return self.guard.route_limits(rules) if rules else None
