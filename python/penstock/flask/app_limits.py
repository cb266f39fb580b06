"""The extension on one application: its guard, its hooks, and the limits of each route."""

from __future__ import annotations

import logging
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from flask import got_request_exception
from flask.views import http_method_funcs
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException

from penstock._web.route_table import (
    LIMITS,
    Route,
    RouteTable,
    functions_within,
    hides_exemption,
    nested_limits,
    never_counting,
    outermost_limits,
)
from penstock._web.rule import METHODS, unread_limits
from penstock._web.wsgi_visit import MIDDLEWARE_KEY, VISIT_KEY, limit_responses
from penstock.errors import ConfigError, RateLimited, StoreError
from penstock.flask.config import settings_of
from penstock.flask.decorator import RULE, LimitDecorator, scope_of
from penstock.flask.request import (
    REFUSALS,
    FlaskRequest,
    FlaskVisit,
    current_request,
    refusal_error,
    visit_of,
)
from penstock.flask.routes import (
    Routes,
    blueprints_of,
    decorators_of,
    method_of,
    read_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from flask import Flask, Request, Response

    from penstock._web.compiled_limit import CompiledLimit, PerRequestLimit
    from penstock._web.decide import RouteLimits
    from penstock._web.guard import Guard
    from penstock._web.outcome import Outcome
    from penstock._web.route_table import Mistake, PlaceLimits, ViewLimits
    from penstock._web.rule import Rule

_log: Final = logging.getLogger("penstock")

_METHODS_OF_CLASSES: Final = sorted(method.upper() for method in http_method_funcs)


class FlaskLimits(RouteTable):
    """Value of `app.extensions["penstock"]`.

    Attributes:
        guard: The guard of the application.
        limiter: Its limiter.
        owner: The extension.
        defaults: The rules of all routes.
    """

    def __init__(
        self,
        owner: object,
        app: Flask,
        *,
        guard: Guard,
        routes: Routes,
        defaults: tuple[Rule, ...],
        decorated: Collection[ViewLimits],
    ) -> None:
        super().__init__(guard, defaults)
        self.owner: Final = owner
        self.limiter: Final = guard.limiter
        self._app: Final = app
        self._routes: Final = routes
        self._decorated: Final = decorated
        self._registered_undecorated: Final[list[object]] = []
        self._settings: Final = settings_of(app)
        self._are_mistakes_reported = False
        self._limits_routes = False
        self._is_failure_logged = False

    def register_hooks(self) -> None:
        """Register the functions that evaluate limits and write header fields."""
        self._app.extensions["penstock"] = self
        self._wrap_response()
        self._wrap_handlers()
        # A handler of the application has precedence, also one registered before.
        handlers: dict[type[Exception], Any] = self._app.error_handler_spec[None][None]
        handlers.setdefault(RateLimited, self._handle_rate_limited)
        got_request_exception.connect(self._refund_unhandled, self._app)
        if self.defaults or self._routes.rules:
            self.limit_routes()

    def _wrap_response(self) -> None:
        """Add the header fields where a response starts, after all `after_request` functions.

        Werkzeug copies the fields of each response, and checks each of them again.
        """
        app = self._app
        process = app.process_response

        @wraps(process)
        def limited_process_response(*args: Any, **kwargs: Any) -> Any:
            try:
                response = process(*args, **kwargs)
            except REFUSALS as refused:
                response = app.make_response(app.handle_user_exception(refused))
            self._finish(response)
            return response

        app.wsgi_app = limit_responses(app.wsgi_app)  # type: ignore[assignment, method-assign]
        app.process_response = limited_process_response  # type: ignore[method-assign]

    def _wrap_handlers(self) -> None:
        """Refuse a request where Flask would not handle the exception: in an error handler."""
        app = self._app
        handle, handle_unknown = app.handle_user_exception, app.handle_exception

        @wraps(handle)
        def limited_handle(error: Exception) -> Any:
            try:
                return handle(error)
            except REFUSALS as refused:
                if refused is error:
                    raise
                return refused.get_response()

        @wraps(handle_unknown)
        def limited_handle_unknown(error: Exception) -> Response:
            try:
                return handle_unknown(error)
            except REFUSALS as refused:
                return app.finalize_request(refused.get_response(), from_error_handler=True)

        app.handle_user_exception = limited_handle  # type: ignore[method-assign, assignment]
        app.handle_exception = limited_handle_unknown  # type: ignore[method-assign, assignment]

    def limit_routes(self) -> None:
        """Evaluate the limits of routes whose view has no decorator, too.

        Raises:
            ConfigError: The application has served a request.
        """
        if self._limits_routes:
            return
        # As Flask's own set-up methods: the other workers would not have the limit.
        if getattr(self._app, "_got_first_request", False):
            raise ConfigError(
                "the first default must be set before the application serves its first request; "
                "call limits.default(...) where the application is created, or set PENSTOCK_DEFAULT"
            )
        self._wrap_dispatch()
        self._limits_routes = True

    def _wrap_dispatch(self) -> None:
        """Evaluate limits of routes after all `before_request` functions, which ids may need.

        A route whose view is not reached, because one of those functions or a login check outside
        its decorator responds, counts as well.
        """
        app, count_unreached = self._app, self._count_unreached
        preprocess, dispatch = app.preprocess_request, app.dispatch_request

        @wraps(preprocess)
        def limited_preprocess(*args: Any, **kwargs: Any) -> Any:
            try:
                response = preprocess(*args, **kwargs)
            except Exception:
                count_unreached()
                raise
            if response is not None:
                count_unreached()
            return response

        @wraps(dispatch)
        def limited_dispatch(*args: Any, **kwargs: Any) -> Any:
            self._before_view()
            try:
                return dispatch(*args, **kwargs)
            finally:
                count_unreached()

        app.preprocess_request = limited_preprocess  # type: ignore[method-assign]
        app.dispatch_request = limited_dispatch  # type: ignore[method-assign]

    def note_decorated(self, view: object) -> None:
        """Remember a view that was registered before it was decorated."""
        if view in [*self._app.view_functions.values(), *self._before_views()]:
            self._registered_undecorated.append(view)

    def _before_views(self) -> Iterator[Callable[..., Any]]:
        """Yield the functions that run before views, of the application and of blueprints."""
        for functions in self._app.before_request_funcs.values():
            yield from functions

    def mistakes(self) -> Iterator[Mistake]:
        """Yield limits, exemptions and settings without effect, and methods without a route."""
        for key, value in settings_of(self._app).items():
            if key not in self._settings or self._settings[key] != value:
                yield (
                    f"{key} was set after init_app, and is not read",
                    "set it before init_app(app)",
                )
        limited = [limits.view for limits in self._decorated] + self._registered_undecorated
        views = self._app.view_functions
        effective = [limits.view for limits in nested_limits(views.values())]
        for function in self._before_views():
            if function in limited:
                yield (
                    f"the limit of {function.__name__} has no effect above before_request",
                    "put it below, next to the function",
                )
        for endpoint, view in views.items():
            if view in limited and view not in effective:
                yield (
                    f"the limit of {endpoint} has no effect above the decorator of the route",
                    "put it below, next to the view",
                )
            if not _rules_of_class(view) <= {
                rule for limits in nested_limits(functions_within(view)) for rule in limits.rules
            }:
                yield (
                    f"the limit of {endpoint} has no effect after as_view() has been called",
                    "put the decorator above the class",
                )
            view_class = getattr(view, "view_class", None)
            for name in unread_limits(view_class, *read_attributes(view_class)):
                yield (
                    f"{name} of the class of {endpoint} is not read",
                    "write decorators = [limits.limit(...)]",
                )
            if self.defaults and hides_exemption(view):
                yield (
                    f"the exemption of {endpoint} has no effect because a decorator hides it",
                    "use functools.wraps in that decorator, or put exempt directly below the route",
                )
        yield from never_counting(self._counted())

    def _counted(self) -> Iterator[tuple[object, Rule, Collection[str]]]:
        for url_rule in self._app.url_map.iter_rules():
            for method in url_rule.methods or ():
                route = self._route(url_rule.endpoint, method)
                for rule in (*self.around(route), *route.rules):
                    yield rule, rule, (method,)

    def enforce(self, limits: ViewLimits, native: Request) -> Outcome | None:
        """Evaluate the limits of a view, and those of its route unless that has happened.

        Returns:
            The outcome, if the view may refund it.

        Raises:
            HTTPException: The request is refused.
        """
        if not self.guard.enabled:
            return None
        visit = visit_of(native)
        if not visit.is_decided:
            place = self._limits_for_request(limits, native)
            further, visit.covered = place.limits, place.covered
        elif limits in visit.covered:
            # Already evaluated with the class's limits. A second call of the method counts again.
            visit.covered = ()
            return visit.entered
        else:
            further = (self.compiled.get(limits) or self.add(limits, None, limits)).limits
        return None if further is None else self._enter(further, visit)

    def _enter(self, limits: RouteLimits, visit: FlaskVisit) -> Outcome | None:
        if not visit.is_decided and visit.native.get(MIDDLEWARE_KEY) is not None:
            visit.take_over(limits.limiter)
        try:
            outcome = visit.enter(limits)
        finally:
            if visit.slots and VISIT_KEY in visit.native:
                # Whatever becomes of the response, `wsgi_app` ends the request.
                visit.native[VISIT_KEY] = visit
        if outcome is not None:
            if outcome.refusal is not None:
                raise refusal_error(self.guard, outcome)
            if outcome.needs_response:
                visit.request.watch_body()
        return outcome

    def _before_view(self) -> None:
        """Evaluate the limits of a route whose view has no decorator."""
        native = current_request()
        if native.endpoint is not None and not self._is_decorated(native):
            self._enter_route(native)

    def _count_unreached(self) -> None:
        """Evaluate the limits of a route whose view was not reached."""
        try:
            self._enter_route(current_request())
        except (HTTPException, StoreError):
            raise
        except Exception:  # noqa: BLE001  any error of the user's code
            # The id may depend on code that did not run. Keep the application's response.
            if not self._is_failure_logged:
                self._is_failure_logged = True
                _log.exception("default limits do not count requests that do not reach the view")

    def _enter_route(self, native: Request) -> None:
        """Evaluate the limits of a request's route, unless that has happened."""
        visit = visit_of(native)
        if visit.is_decided or not self.guard.enabled:
            return
        limits = self._limits_for_request(None, native).limits
        if limits is not None:
            self._enter(limits, visit)

    def _finish(self, response: Response) -> None:
        """Settle the limits, and have their header fields added to a response."""
        native = current_request()
        if not self._are_mistakes_reported:
            self._are_mistakes_reported = True
            self.report_mistakes()
            self.report_if_idle()
        visit: FlaskVisit | None = getattr(native, "_penstock_visit", None)
        if visit is None:
            return
        if visit.entered is not None:
            visit.respond(response)
        if VISIT_KEY in native.environ:
            native.environ[VISIT_KEY] = visit
            return
        # The server bypasses our `wsgi_app` wrapper.
        response.headers = Headers(visit.add_to([*response.headers], response.status))
        if visit.needs_end:
            response.call_on_close(visit.finished)
            if response.is_streamed and not response.direct_passthrough:
                response.response = visit.watch_response(response.response)

    def _handle_rate_limited(self, error: RateLimited) -> Any:
        """Respond for a view that raised `RateLimited` itself."""
        native = current_request()
        visit = visit_of(native)
        outcome = self.guard.denied(FlaskRequest(native.environ), error.decision, visit.outcome)
        visit.keep(outcome)
        # The application's error handler for 429 gets it like any other refusal.
        return self._app.handle_user_exception(refusal_error(self.guard, outcome))

    def _refund_unhandled(self, _app: Flask, **_: Any) -> None:
        """Refund a request whose view raised an exception without a handler."""
        native = current_request()
        visit = visit_of(native)
        visit.failed(head=None)
        # If Flask raises the exception, there is no response, and `wsgi_app` settles the request.
        if VISIT_KEY in native.environ:
            native.environ[VISIT_KEY] = visit

    def _limits_for_request(self, limits: ViewLimits | None, native: Request) -> PlaceLimits:
        """Return what is decided first: limits of a view, of the route, and directly within."""
        url_rule, method = native.url_rule, native.method
        endpoint = None if url_rule is None else url_rule.endpoint
        key = (limits, endpoint, method if method in METHODS else "")
        place = self.compiled.get(key)
        if place is None:
            route = None if endpoint is None else self._route(endpoint, key[2])
            if limits is None:
                return self.add(key, route)
            # A method whose class is limited, too, with nothing in between.
            inner = None if route is None else outermost_limits(route.functions[-1])
            within = () if inner is None or inner is limits else (inner,)
            functions = () if route is None else route.functions
            is_own = limits in nested_limits(functions)
            place = self.add(key, route, limits, *within, is_own=is_own)
        return place

    def _is_decorated(self, native: Request) -> bool:
        """Whether the view of a request is known to have a decorator."""
        view = self._app.view_functions.get(native.endpoint or "")
        return hasattr(view, LIMITS) or hasattr(method_of(view, native.method), LIMITS)

    def add_default(self, rule: Rule) -> None:
        """Add a limit of all routes; `limit_routes` has been called."""
        self.defaults = (*self.defaults, rule)
        self.compiled.clear()

    def registered_rules(self) -> Iterator[Rule]:
        """Yield the rules of all routes, in the order in which the routes were registered."""
        yield from self.defaults
        for rules in self._routes.rules.values():
            yield from rules
        for endpoint, view in self._app.view_functions.items():
            methods = _METHODS_OF_CLASSES if hasattr(view, "view_class") else ("",)
            routes = [self._route(endpoint, method) for method in methods]
            functions = [function for route in routes for function in route.functions]
            for limits in nested_limits(functions):
                yield from limits.rules
            for method in methods:
                yield from _rules_of_method_decorators(view, method)

    def further_rules(self) -> Iterator[Rule]:
        """Yield the rules of all functions that were decorated."""
        for limits in [*self._decorated]:
            yield from limits.rules

    def limits_of_route(
        self, endpoint: str, method: str
    ) -> tuple[CompiledLimit | PerRequestLimit, ...]:
        """Return all limits of a route, from the outermost to the innermost."""
        route = self._route(endpoint, method)
        decorators = _rules_of_method_decorators(self._app.view_functions.get(endpoint), method)
        compiled = self.compile((*self.around(route), *route.rules, *decorators))
        return () if compiled is None else compiled.limits

    def _route(self, endpoint: str, method: str) -> Route:
        view = self._app.view_functions.get(endpoint)
        blueprints = blueprints_of(endpoint)
        rules = self._routes.rules
        return Route(
            method,
            (view, method_of(view, method)),
            getattr(view, "view_class", None),
            tuple([rule for name in reversed(blueprints) for rule in rules.get(name, ())]),
            self._is_static_file(endpoint) or not self._routes.exempt.isdisjoint(blueprints),
        )

    def _is_static_file(self, endpoint: str) -> bool:
        """Whether an endpoint serves static files, of which a page loads many."""
        blueprint, _, name = endpoint.rpartition(".")
        owner = self._app.blueprints.get(blueprint) if blueprint else self._app
        return name == "static" and owner is not None and owner.has_static_folder


def _rules_of_class(view: object) -> set[Rule]:
    """Return the rules of the decorators of a view's class, of which `as_view` has called some."""
    decorators = getattr(getattr(view, "view_class", None), "decorators", ())
    return {rule for each in decorators if (rule := getattr(each, RULE, None)) is not None}


def _rules_of_method_decorators(view: object, method: str) -> Iterator[Rule]:
    function = method_of(view, method)
    for decorate in decorators_of(view, method) if function is not None else ():
        if isinstance(decorate, LimitDecorator):
            yield decorate.rule(scope_of(function))
