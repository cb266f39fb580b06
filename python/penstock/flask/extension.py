"""The extension itself.

A view's own limits, its blueprint's and the defaults are one decision, made where the decorator
stands: after the application's `before_request` functions, so that an `id` may read what they have
found out. A route whose view is not reached (a login check outside refuses first) is counted before
its response leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary, WeakSet

from flask import Blueprint
from flask.views import View
from werkzeug.exceptions import HTTPException

from penstock.errors import ConfigError, RateLimited
from penstock.flask.app_limits import AppLimits
from penstock.flask.config import check_prefix, configured
from penstock.flask.request import current_request, this_app
from penstock.flask.routes import AttributeNames, Routes, ViewLimits
from penstock.validation import check_names, is_coroutine_function
from penstock.web.guard import Guard, GuardOptions
from penstock.web.rule import Rule, RuleOptions, make_rule

if TYPE_CHECKING:
    from flask import Flask
    from flask.blueprints import BlueprintSetupState
    from flask.sansio.app import App

    from penstock._core import Decision, Limit, Limiter
    from penstock.web.outcome import Outcome

__all__ = ["Penstock"]

_MADE_BY_AS_VIEW: Final = f"{View.as_view.__qualname__}.<locals>.view"
_Target = TypeVar("_Target", bound=Callable[..., Any] | Blueprint)


class Penstock:
    """The Flask extension.

    Every option may also stand in the application's config, as `PENSTOCK_LIMITS`, `PENSTOCK_STORE`
    and so on; what stands there wins. `PENSTOCK_DEFAULT` is a limit, or a list of limits, for all
    routes. Several extensions on one application decide each for itself, with the decorators that
    are its own; `app.extensions["penstock"].all` lists them.

    Args:
        app: The application; without it, call `init_app`.
        limiter: A ready limiter, in place of the options `limits`, `overrides`, `store` and
            `clock`.
        config_prefix: What the keys in the application's config begin with; a further extension on
            one application has another.
        options: Those of `penstock.web.guard.Guard`. `on_denied` may give anything that a view may
            return.

    Raises:
        ConfigError: Something that cannot be, and what would do.

    Example:
        >>> from flask import Flask
        >>> from penstock.flask import Penstock
        >>> app = Flask("shop")
        >>> limits = Penstock(app, limits={"PerAddress": "5/minute"})
        >>> @app.get("/orders")
        ... @limits.limit("PerAddress")
        ... def orders():
        ...     return {"orders": []}
        >>> app.test_client().get("/orders").headers["RateLimit"]
        '"PerAddress";r=4;t=12'
    """

    def __init__(
        self,
        app: Flask | None = None,
        limiter: Limiter | None = None,
        *,
        config_prefix: str = "PENSTOCK_",
        **options: Unpack[GuardOptions],
    ) -> None:
        check_prefix(config_prefix)
        check_names(options, GuardOptions.__optional_keys__, "Penstock")
        self._prefix: Final = config_prefix
        self._signs: Final = AttributeNames()
        self._limiter: Final = limiter
        self._options: Final = options
        self._defaults: tuple[Rule, ...] = ()
        # Weak, for an application made in a function is made again and again by its tests.
        self._marks: Final[WeakSet[ViewLimits]] = WeakSet()
        self._installed: Final[WeakSet[AppLimits]] = WeakSet()
        self._routes: Final[WeakKeyDictionary[App, Routes]] = WeakKeyDictionary()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Apply the limits to an application.

        Raises:
            ConfigError: A wrong option, a file that does not load, a limit of a view that nobody
                knows.
        """
        if self._on(app) is not None:
            raise ConfigError(f"{app!r} has this Penstock already; init_app is called once")
        first: AppLimits | None = app.extensions.get("penstock")
        taken = () if first is None else [installed.prefix for installed in first.all]
        limiter, options, default = configured(
            app, self._prefix, self._limiter, self._options, is_first=self._prefix not in taken
        )
        on_denied = options.get("on_denied")
        if is_coroutine_function(on_denied):
            raise ConfigError(f"on_denied must be an ordinary function, found {on_denied!r}")
        guard = Guard(limiter, **options)
        rules = (make_rule(default, "default", {}),) if default else ()
        routes = self._routes.setdefault(app, Routes())
        installed = AppLimits(
            self,
            app,
            guard=guard,
            prefix=self._prefix,
            signs=self._signs,
            routes=routes,
            defaults=(*self._defaults, *rules),
            marks=self._marks,
        )
        # Mistakes are found now, not by the first request that meets them.
        guard.check(installed.defaults)
        for by_blueprint in routes.rules.values():
            guard.check(by_blueprint)
        for mark in self._marks:
            guard.check(mark.rules)
        self._installed.add(installed)
        installed.begin()

    @property
    def guard(self) -> Guard:
        """The guard of the current application."""
        return self._of_current_app().guard

    def limit(
        self, *limits: str | Limit, **options: Unpack[RuleOptions]
    ) -> Callable[[_Target], _Target]:
        """Limit a view, a class of views or a blueprint; several limits are one decision.

        Args:
            limits: Names of limits, texts such as `"30/minute"` that belong to the view alone, or
                limits.
            options: See `penstock.web.rule.RuleOptions`.

        Raises:
            ConfigError: Something that cannot be, and what would do.
        """
        # Made once for nothing, so that a mistake is found where it was written.
        make_rule(limits, "", options)

        def decorate(target: _Target) -> _Target:
            return self._limited(target, make_rule(limits, _scope_of(target), options))

        return decorate

    def shared(
        self, *limits: str | Limit, scope: str, **options: Unpack[RuleOptions]
    ) -> Callable[[_Target], _Target]:
        """Make a decorator whose text limits are one for all views that it is put on.

        Args:
            limits: As in `limit`.
            scope: The name under which texts are kept.
            options: As in `limit`.

        Raises:
            ConfigError: Something that cannot be, and what would do.
        """
        rule = make_rule(limits, scope, options, is_shared=True)

        def decorate(target: _Target) -> _Target:
            return self._limited(target, rule)

        return decorate

    def default(self, *limits: str | Limit, **options: Unpack[RuleOptions]) -> None:
        """Limit all routes, but static files and what is exempt.

        Raises:
            ConfigError: Something that cannot be, and what would do.
        """
        rule = make_rule(limits, "default", options)
        for installed in self._installed:
            installed.add_default(rule)
        self._defaults = (*self._defaults, rule)

    def exempt(self, target: _Target) -> _Target:
        """Free a view, a class of views or a blueprint from the defaults; its own limits stay."""
        if isinstance(target, Blueprint):
            target.record(lambda state: self._routes_of(state).exempt.add(_full_name(state)))
        else:
            setattr(target, self._signs.exempt, True)
        return target

    def outcome(self) -> Outcome | None:
        """Give what was decided about the current request; `None` where nothing was."""
        outcome: Outcome | None = getattr(current_request(), self._signs.outcome, None)
        return outcome

    def decision(self) -> Decision | None:
        """Give the decision about the current request; `None` where no limit was asked."""
        outcome = self.outcome()
        return None if outcome is None else outcome.decision

    def _limited(self, target: _Target, rule: Rule) -> _Target:
        for installed in self._installed:
            installed.guard.check([rule])
        if isinstance(target, Blueprint):

            def add(state: BlueprintSetupState) -> None:
                rules = self._routes_of(state).rules
                rules[_full_name(state)] = (rule, *rules.get(_full_name(state), ()))

            target.record(add)
            return target
        if isinstance(target, type):
            if not issubclass(target, View):
                raise ConfigError(
                    f"a limit goes on a view, a class of views or a blueprint, found {target!r}"
                )
            # As `as_view` wants it; a list of the class's own, for the inherited one is its
            # parent's.
            target.decorators = [*target.decorators, lambda view: self._wrapped(view, rule)]
            return target
        return cast("_Target", self._wrapped(target, rule))

    def _wrapped(self, view: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
        stacked = self._signs.mark_of(view)
        # Decorators one on another are one decision, so there is one wrapper.
        mark = (
            ViewLimits(view, (rule,))
            if stacked is None
            else ViewLimits(stacked.view, (rule, *stacked.rules))
        )
        inner = mark.view
        if inspect.iscoroutinefunction(inner):

            @wraps(view)
            async def limited(*args: Any, **kwargs: Any) -> Any:
                outcome = self._enforce(mark)
                try:
                    return await inner(*args, **kwargs)
                except Exception as error:
                    _give_back_for(outcome, error)
                    raise

        else:

            @wraps(view)
            def limited(*args: Any, **kwargs: Any) -> Any:
                outcome = self._enforce(mark)
                try:
                    return inner(*args, **kwargs)
                except Exception as error:
                    _give_back_for(outcome, error)
                    raise

        # Whatever was said of the stacked view stays said; but this one stands in its place.
        limited.__wrapped__ = inner
        mark.wrapper = limited
        setattr(limited, self._signs.mark, mark)
        self._marks.add(mark)
        for installed in self._installed:
            installed.suspect(inner)
        return limited

    def _enforce(self, mark: ViewLimits) -> Outcome | None:
        """Ask a view's limits, with those of its route if they have not been asked yet."""
        try:
            native = current_request()
        except RuntimeError:
            # Called by a test or a command, not by a client: there is nobody to be limited.
            return None
        return self._of_current_app().enforce(mark, native)

    def _of_current_app(self) -> AppLimits:
        app = this_app()
        installed = self._on(app)
        if installed is None:
            raise ConfigError(f"this Penstock does not know {app!r}; call init_app(app)")
        return installed

    def _on(self, app: App) -> AppLimits | None:
        """Give what this extension is on an application; `None` if it is not installed there."""
        first: AppLimits | None = app.extensions.get("penstock")
        if first is None or first.owner is self:
            return first
        return next((installed for installed in first.all if installed.owner is self), None)

    def _routes_of(self, state: BlueprintSetupState) -> Routes:
        routes = self._routes.setdefault(state.app, Routes())
        installed = self._on(state.app)
        if installed is not None:
            installed.limit_routes()
        return routes


def _full_name(state: BlueprintSetupState) -> str:
    """Give the name under which a blueprint's endpoints are known."""
    return f"{state.name_prefix}.{state.name}".lstrip(".")


def _scope_of(target: object) -> str:
    """Give the name under which the text limits of a view are kept."""
    if isinstance(target, Blueprint):
        return f"{target.import_name}.{target.name}"
    if not callable(target):
        raise ConfigError(
            f"a limit goes on a view, a class of views or a blueprint, found {target!r}"
        )
    named: Any = target if hasattr(target, "__qualname__") else type(target)
    name = named.__qualname__
    # As the `decorators` of a class are handed it: all classes would have one name between them.
    return f"{named.__module__}.{named.__name__ if name == _MADE_BY_AS_VIEW else name}"


def _give_back_for(outcome: Outcome | None, error: Exception) -> None:
    # `abort(404)` is an answer, and no failure of the view; so is a limit that it asked itself.
    is_answer = isinstance(error, RateLimited) or (
        isinstance(error, HTTPException) and (error.code or 0) < 500  # noqa: PLR2004  a server's fault
    )
    if outcome is not None and not is_answer:
        outcome.refund()
