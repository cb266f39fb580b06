"""The extension itself.

The limits of a view, of its blueprint and the defaults are decided together where the decorator is:
after the application's `before_request` functions, so that an `id` can use what they found. A route
whose view is not reached, because a login check outside refuses first, counts before its response
is sent.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary, WeakSet

from flask import Blueprint, Flask, has_app_context, has_request_context, request_started
from flask.views import View
from werkzeug.exceptions import HTTPException

from penstock._validation import report_finding
from penstock._web.guard import Guard, GuardOptions, check_on_denied, check_options
from penstock._web.identity import IdSource, by_address
from penstock._web.lifecycle import refund_failed
from penstock._web.route_table import EXEMPT, ViewLimits, check_exempt
from penstock._web.rule import Rule, RuleOptions, make_rule
from penstock._web.setup_checks import report_foreign_settings
from penstock.errors import ConfigError
from penstock.flask.app_limits import FlaskLimits
from penstock.flask.config import merge_config
from penstock.flask.decorator import RULE, LimitDecorator, wrong_target
from penstock.flask.request import FlaskRequest, current_request, this_app, visit_of
from penstock.flask.routes import Routes

if TYPE_CHECKING:
    from flask.blueprints import BlueprintSetupState
    from flask.sansio.app import App

    from penstock._core import Decision, Limit, Limiter
    from penstock._web.outcome import Outcome
    from penstock.types import Id

_Target = TypeVar("_Target", bound=Callable[..., Any] | Blueprint)


class Penstock:
    """Flask extension that limits views, blueprints and whole applications.

    The application's config can set every option, as `PENSTOCK_LIMITS`, `PENSTOCK_STORE` and so on;
    it has precedence. `PENSTOCK_DEFAULT` is a limit, or a list of limits, for all routes.

    Args:
        app: The application; without it, call `init_app`.
        limiter: A ready limiter, in place of the options `limits`, `overrides`, `store` and
            `clock`.
        options: Those of `penstock.adapter.Guard`. `on_denied` may return anything that a view may
            return.

    Raises:
        ConfigError: An option or a limit is wrong.

    Examples:
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

    # An attribute that does not exist, such as `enabled`, is an error.
    __slots__ = (
        "__weakref__",
        "_apps",
        "_decorated",
        "_defaults",
        "_limiter",
        "_options",
        "_routes",
    )

    def __init__(
        self,
        app: Flask | None = None,
        limiter: Limiter | None = None,
        **options: Unpack[GuardOptions],
    ) -> None:
        check_options(options, "Penstock")
        self._limiter: Final = limiter
        self._options: Final = options
        self._defaults: tuple[Rule, ...] = ()
        # Weak: test suites create an application from a factory again and again. In the order of
        # decoration.
        self._decorated: Final[WeakKeyDictionary[ViewLimits, None]] = WeakKeyDictionary()
        self._apps: Final[WeakSet[FlaskLimits]] = WeakSet()
        self._routes: Final[WeakKeyDictionary[App, Routes]] = WeakKeyDictionary()
        if app is None:
            request_started.connect(self._report_missing)
        else:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Apply the limits to an application.

        Raises:
            ConfigError: An option is wrong, a file does not load, or a view has an unknown limit.
        """
        if not isinstance(cast("object", app), Flask):
            raise ConfigError(
                f"app must be a Flask application, found {app!r}; the client of a limit is its "
                f"id, such as limit('PerUser', id=by_user)"
            )
        if self._limits_of(app) is not None:
            raise ConfigError(f"{app!r} has this Penstock already; call init_app once")
        if "penstock" in app.extensions:
            raise ConfigError(
                f"{app!r} has another Penstock; limits of one application share it, each with an "
                f"id of its own, such as limit('PerPartner', id=by_partner)"
            )
        limiter, options, default = merge_config(app, self._limiter, self._options)
        check_on_denied(options.get("on_denied"))
        report_foreign_settings(app.config)
        guard = Guard(limiter, **options)
        rules = (make_rule(default, "default", {}),) if default else ()
        routes = self._routes.setdefault(app, Routes())
        app_limits = FlaskLimits(
            self,
            app,
            guard=guard,
            routes=routes,
            defaults=(*self._defaults, *rules),
            decorated=self._decorated,
        )
        app_limits.check()
        app_limits.register_hooks()
        self._apps.add(app_limits)
        request_started.disconnect(self._report_missing)

    @property
    def guard(self) -> Guard:
        """The guard of the current application; outside of one, of the only application.

        Raises:
            ConfigError: No application is current, and there is not exactly one.
        """
        if has_app_context():
            return self._current_limits().guard
        guards = [app_limits.guard for app_limits in self._apps]
        if len(guards) != 1:
            raise ConfigError(
                f"this Penstock is installed on {len(guards)} applications; call it inside of "
                f"app.app_context()"
            )
        return guards[0]

    @property
    def limiter(self) -> Limiter:
        """The limiter of `guard`, for use in your own code.

        Raises:
            ConfigError: As `guard`.
        """
        return self.guard.limiter

    def limit(
        self, *limits: str | Limit, **options: Unpack[RuleOptions]
    ) -> Callable[[_Target], _Target]:
        """Return a decorator that limits a view, a class of views or a blueprint.

        Several limits are one decision: a request takes tokens from all of them or from none.

        Args:
            limits: Names of loaded limits, rates such as `"30/minute"`, or `Limit` objects. A rate
                or a `Limit` is the view's own.
            options: Options of a limit, such as `id` and `cost`; docs/options.md lists them.

        Raises:
            ConfigError: An option or a limit is wrong.
        """
        return LimitDecorator(self._limit_target, limits, options)

    def shared(
        self, *limits: str | Limit, scope: str, **options: Unpack[RuleOptions]
    ) -> Callable[[_Target], _Target]:
        """Return a decorator whose rates are shared by all views that it decorates.

        Args:
            limits: As in `limit`.
            scope: The name of the shared rates.
            options: As in `limit`.

        Raises:
            ConfigError: As `limit`.
        """
        return LimitDecorator(self._limit_target, limits, options, scope)

    def default(self, *limits: str | Limit, **options: Unpack[RuleOptions]) -> None:
        """Limit all routes except static files and exempt views.

        Raises:
            ConfigError: As `limit`; or it is the first default, and an application has served a
                request.
        """
        rule = make_rule(limits, "default", options)
        for app_limits in self._apps:
            app_limits.guard.check([rule])
            app_limits.limit_routes()
        for app_limits in self._apps:
            app_limits.add_default(rule)
        self._defaults = (*self._defaults, rule)

    def exempt(self, target: _Target) -> _Target:
        """Exempt a view, a class of views or a blueprint from the defaults; its own limits stay.

        Raises:
            ConfigError: It is something else, such as the name of a view.
        """
        if isinstance(target, Blueprint):
            target.record(lambda state: self._routes_of(state).exempt.add(_full_name(state)))
        else:
            check_exempt(target)
            setattr(target, EXEMPT, True)
        return target

    def outcome(self) -> Outcome | None:
        """Return the outcome of the current request so far; `None` if no limit was evaluated."""
        return visit_of(current_request()).outcome

    def decision(self) -> Decision:
        """Return the decision about the current request; an unlimited one if no limit applies."""
        return visit_of(current_request()).decision

    def client_id(self, name: str, id: IdSource = by_address) -> Id:
        """Return the id of the current request's client under a limit, to call the limiter with.

        Args:
            name: The name of a loaded limit.
            id: As the option of `limit`.

        Raises:
            UnknownLimit: No limit has this name.
            MissingId: The request has no id, or a malformed one.
        """
        return self.guard.client_id(FlaskRequest(current_request().environ), name, id)

    def _limit_target(self, target: _Target, rule: Rule) -> _Target:
        for app_limits in self._apps:
            app_limits.guard.check([rule])
        if isinstance(target, Blueprint):

            def add(state: BlueprintSetupState) -> None:
                app_limits = self._limits_of(state.app)
                if app_limits is not None:
                    app_limits.guard.check([rule])
                rules = self._routes_of(state).rules
                rules[_full_name(state)] = (rule, *rules.get(_full_name(state), ()))

            target.record(add)
            return target
        if isinstance(target, type):
            if not issubclass(target, View):
                raise wrong_target(target)

            def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
                return self._wrap(view, rule)

            setattr(decorate, RULE, rule)
            # A new list: the inherited one belongs to the parent class.
            target.decorators = [*target.decorators, decorate]
            return target
        return cast("_Target", self._wrap(target, rule))

    def _wrap(self, view: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
        limits = ViewLimits.stacked(view, rule)
        inner = limits.view
        is_async = inspect.iscoroutinefunction(inner)

        # Not `async def`: Flask runs a coroutine in a thread with an event loop of its own, which a
        # refused request does not need.
        @wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if is_async and (not has_request_context() or _is_on_loop()):
                # A test, a command or another coroutine awaits the result.
                return self._await_view(limits, args, kwargs)
            outcome = self._enforce(limits)
            try:
                call = this_app().ensure_sync(inner) if is_async else inner
                return call(*args, **kwargs)
            except Exception as error:
                refund_failed(outcome, error, _is_answer)
                raise

        # It keeps the attributes of the wrapper that it replaces, but not that wrapper.
        limited.__wrapped__ = inner
        limits.put_on(limited)
        self._decorated[limits] = None
        for app_limits in self._apps:
            app_limits.note_decorated(inner)
        return limited

    async def _await_view(
        self, limits: ViewLimits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        outcome = self._enforce(limits)
        try:
            return await limits.view(*args, **kwargs)
        except Exception as error:
            refund_failed(outcome, error, _is_answer)
            raise

    def _enforce(self, limits: ViewLimits) -> Outcome | None:
        try:
            native = current_request()
        except RuntimeError:
            # A test or a command calls the view: there is no client to limit.
            return None
        app_limits: FlaskLimits | None = this_app().extensions.get("penstock")
        if app_limits is None or app_limits.owner is not self:
            app_limits = self._current_limits()
        return app_limits.enforce(limits, native)

    def _current_limits(self) -> FlaskLimits:
        app = this_app()
        app_limits = self._limits_of(app)
        if app_limits is None:
            raise ConfigError(f"this Penstock is not installed on {app!r}; call init_app(app)")
        return app_limits

    def _report_missing(self, app: App, **_: Any) -> None:
        """Log, once, that an application is served without the limits that nothing evaluates."""
        # A limited view raises by itself.
        if "penstock" not in app.extensions and (self._defaults or app in self._routes):
            request_started.disconnect(self._report_missing)
            report_finding(
                "P008",
                f"the limits of a Penstock do not apply to {app!r}, on which it is not installed",
                "call init_app(app)",
            )

    def _limits_of(self, app: App) -> FlaskLimits | None:
        """Return the limits of an application; `None` if this extension is not installed there."""
        app_limits: FlaskLimits | None = app.extensions.get("penstock")
        return app_limits if app_limits is not None and app_limits.owner is self else None

    def _routes_of(self, state: BlueprintSetupState) -> Routes:
        routes = self._routes.setdefault(state.app, Routes())
        app_limits = self._limits_of(state.app)
        if app_limits is not None:
            app_limits.limit_routes()
        return routes


def _full_name(state: BlueprintSetupState) -> str:
    """Return the prefix of a blueprint's endpoints."""
    return f"{state.name_prefix}.{state.name}".lstrip(".")


def _is_on_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_answer(error: Exception) -> bool:
    """Whether an exception is a response such as `abort(404)`, not a failure of the view."""
    return isinstance(error, HTTPException)
