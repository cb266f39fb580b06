"""The extension on one application: its guard, its hooks, and which limits each route has."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flask import got_request_exception
from flask.views import http_method_funcs
from werkzeug.exceptions import HTTPException

from penstock.flask.request import ADMISSION, FlaskRequest, current_request, refused
from penstock.flask.routes import EXEMPT, MARK, Mark, Routes, mark_of, method_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask, Request, Response

    from penstock.admission import Admission
    from penstock.guard import Guard
    from penstock.plan import Plan
    from penstock.rule import Rule

__all__ = ["Installed"]

_PlanKey: TypeAlias = tuple[Mark | None, str | None, str]

# Where a request keeps the mark of a method that its class has asked for.
_COVERED: Final = "_penstock_covered"
# Fields that are lists, and may stand in a response already: ours goes beside what is there.
_LISTS: Final = frozenset(
    {"RateLimit", "RateLimit-Policy", "Link", "Access-Control-Expose-Headers"}
)


class Installed:
    """What `app.extensions["penstock"]` is.

    Attributes:
        guard: What decides for this application.
        owner: The extension.
        defaults: The limits of all routes.
    """

    def __init__(
        self, owner: object, app: Flask, guard: Guard, routes: Routes, defaults: tuple[Rule, ...]
    ) -> None:
        self.owner: Final = owner
        self.guard: Final = guard
        self.defaults = defaults
        self._app: Final = app
        self._routes: Final = routes
        self._plans: Final[dict[_PlanKey, tuple[Plan | None, Mark | None]]] = {}
        self._lock: Final = Lock()
        self._is_bound = False
        self._limits_routes = False

    def begin(self) -> None:
        """Take the places in the application's life where a request is asked and a client told."""
        self._app.after_request(self._after_request)
        got_request_exception.connect(self._on_exception, self._app)
        if self.defaults or self._routes.rules:
            self.limit_routes()

    def limit_routes(self) -> None:
        """Look at each request, for a view without a decorator may have limits too."""
        if not self._limits_routes:
            self._limits_routes = True
            self._app.before_request(self._before_request)

    def enforce(self, mark: Mark, native: Request) -> Admission | None:
        """Ask a view's limits, with those of its route if they have not been asked yet."""
        if not self.guard.enabled:
            return None
        earlier: Admission | None = native.__dict__.get(ADMISSION)
        if earlier is None:
            plan, inner = self._plan(mark, native)
            native.__dict__[_COVERED] = inner
        elif native.__dict__.get(_COVERED) is mark:
            # The limit of its class has asked for this method too, for this one call.
            native.__dict__[_COVERED] = None
            return earlier
        else:
            plan = self._own_plan(mark)
        return None if plan is None else self._ask(plan, native, earlier)

    def _ask(self, plan: Plan, native: Request, earlier: Admission | None) -> Admission:
        admission = plan.admit(FlaskRequest(native), earlier)
        native.__dict__[ADMISSION] = admission
        if admission.refusal is not None:
            raise refused(self.guard, admission)
        return admission

    def _before_request(self) -> None:
        """Ask the limits of a route whose view does not ask for itself."""
        native = current_request()
        if native.endpoint is not None and self.guard.enabled and not self._asks_itself(native):
            plan, _ = self._plan(None, native)
            if plan is not None:
                self._ask(plan, native, None)

    def _after_request(self, response: Response) -> Response:
        """Tell the client, and count a route whose view was not reached."""
        native = current_request()
        admission: Admission | None = native.__dict__.get(ADMISSION)
        if admission is None:
            if not (self._limits_routes and self.guard.enabled):
                return response
            plan, _ = self._plan(None, native)
            if plan is None:
                return response
            try:
                admission = self._ask(plan, native, None)
            except HTTPException as error:
                response = self._app.make_response(self._app.handle_user_exception(error))
                admission = native.__dict__[ADMISSION]
        if admission.looks_back:
            admission.settle(response)
        headers = response.headers
        for name, value in admission.headers():
            if name in _LISTS:
                headers.add(name, value)
            else:
                headers[name] = value
        return response

    def _on_exception(self, _app: Flask, **_: Any) -> None:
        """Give back what a request took whose view raised what nobody has handled."""
        admission: Admission | None = current_request().__dict__.get(ADMISSION)
        for answer in () if admission is None else admission.answers:
            answer.refund()

    def _plan(self, mark: Mark | None, native: Request) -> tuple[Plan | None, Mark | None]:
        """Give what is asked first of a request, and the mark within whose limits are part of it.

        The plan has the limits of the route; it is `None` where there are none.
        """
        key = (mark, native.endpoint, native.method)
        found = self._plans.get(key)
        if found is None:
            inner = None if mark is None else self._inner(mark, native)
            rules = self._route_rules(native)
            for one in (mark, inner):
                rules += () if one is None else one.rules
            found = self._plans[key] = (self._made(rules), inner)
        return found

    def _own_plan(self, mark: Mark) -> Plan | None:
        """Give a view's own limits, for a request of which others have been asked already."""
        key = (mark, None, "")
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = (self._made(mark.rules), None)
        return found[0]

    def _inner(self, mark: Mark, native: Request) -> Mark | None:
        """Give the mark of a method whose class is marked too: nothing stands between the two."""
        view = self._app.view_functions.get(native.endpoint or "")
        inner = mark_of(method_of(view, native.method))
        return None if inner is mark else inner

    def _asks_itself(self, native: Request) -> bool:
        """Whether the view of a request is decorated, as far as can be seen from outside."""
        view = self._app.view_functions.get(native.endpoint or "")
        return hasattr(view, MARK) or hasattr(method_of(view, native.method), MARK)

    def add_default(self, rule: Rule) -> None:
        """Limit all routes by one rule more."""
        self.guard.check([rule])
        self.limit_routes()
        self.defaults = (*self.defaults, rule)
        self._plans.clear()

    def _made(self, rules: tuple[Rule, ...]) -> Plan | None:
        with self._lock:
            if not self._is_bound:
                # In the order of registration, so that every process keeps texts under the same
                # names.
                self._is_bound = True
                for rule in self._all_rules():
                    self.guard.plan([rule])
            return self.guard.plan(rules) if rules else None

    def _all_rules(self) -> Iterator[Rule]:
        yield from self.defaults
        for rules in self._routes.rules.values():
            yield from rules
        for view in self._app.view_functions.values():
            methods = [method_of(view, method) for method in sorted(http_method_funcs)]
            for function in (view, *methods):
                mark: Mark | None = getattr(function, MARK, None)
                yield from () if mark is None else mark.rules

    def _route_rules(self, native: Request) -> tuple[Rule, ...]:
        endpoint = native.endpoint
        # Files are sent as `static` of the application or a blueprint, by the dozen for one page.
        if endpoint is None or endpoint.rpartition(".")[2] == "static":
            return ()
        view = self._app.view_functions.get(endpoint)
        exempt = (view, getattr(view, "view_class", None), method_of(view, native.method))
        blueprints = native.blueprints
        if any(hasattr(one, EXEMPT) for one in exempt) or self._routes.exempt.intersection(
            blueprints
        ):
            return ()
        rules = self.defaults
        for name in reversed(blueprints):
            rules += self._routes.rules.get(name, ())
        return rules
