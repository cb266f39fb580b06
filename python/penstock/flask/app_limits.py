"""The extension on one application: its guard, its hooks, and which limits each route has.

Several extensions on one application decide each for itself, in the order in which they were
installed, and what one has taken another's refusal does not give back. The first of them answers
for all, so that their headers stand together.
"""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from flask import got_request_exception
from flask.views import http_method_funcs
from werkzeug.exceptions import HTTPException

from penstock.errors import RateLimited
from penstock.flask.request import FlaskRequest, current_request, refused
from penstock.flask.routes import AttributeNames, Routes, ViewLimits, blueprints_of, method_of
from penstock.web.headers import strictest
from penstock.web.outcome import RefundOnErrorBody

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flask import Flask, Request, Response

    from penstock.web.guard import Guard
    from penstock.web.outcome import Outcome
    from penstock.web.route_limits import RouteLimits
    from penstock.web.rule import CompiledLimit, Rule

__all__ = ["AppLimits"]

_log: Final = logging.getLogger("penstock")

_PlanKey: TypeAlias = tuple[ViewLimits | None, str | None, str]

# Fields that are lists, and may stand in a response already: ours goes beside what is there.
_LISTS: Final = frozenset(
    {"RateLimit", "RateLimit-Policy", "Link", "Access-Control-Expose-Headers"}
)


class AppLimits:
    """What `app.extensions["penstock"]` is: of several extensions, the first that was installed.

    Attributes:
        guard: What decides for this application.
        owner: The extension.
        prefix: What its keys in the application's config begin with.
        defaults: The limits of all routes.
        all: All extensions on the application, in the order in which they were installed.
    """

    def __init__(
        self,
        owner: object,
        app: Flask,
        *,
        guard: Guard,
        prefix: str,
        signs: AttributeNames,
        routes: Routes,
        defaults: tuple[Rule, ...],
        marks: Iterable[ViewLimits],
    ) -> None:
        self.owner: Final = owner
        self.guard: Final = guard
        self.prefix: Final = prefix
        self.defaults = defaults
        self.all: list[AppLimits] = [self]
        self._signs: Final = signs
        self._outcome: Final = signs.outcome
        self._app: Final = app
        self._routes: Final = routes
        self._plans: Final[dict[_PlanKey, tuple[RouteLimits | None, ViewLimits | None]]] = {}
        self._lock: Final = Lock()
        self._marks: Final = marks
        self._suspects: Final[list[object]] = []
        self._is_looked_through = False
        self._is_bound = False
        self._limits_routes = False

    def begin(self) -> None:
        """Take the places in the application's life where a request is asked and a client told."""
        first: AppLimits = self._app.extensions.setdefault("penstock", self)
        if first is self:
            self._app.after_request(self._after_request)
            # The application's own handler stays, whichever came first.
            handlers: dict[type[Exception], Any] = self._app.error_handler_spec[None][None]
            handlers.setdefault(RateLimited, self._answer_denied)
        else:
            first.all.append(self)
            self.all = first.all
        got_request_exception.connect(self._on_exception, self._app)
        if self.defaults or self._routes.rules:
            self.limit_routes()

    def limit_routes(self) -> None:
        """Look at each request, for a view without a decorator may have limits too."""
        if not self._limits_routes:
            self._limits_routes = True
            self._app.before_request(self._before_request)

    def suspect(self, view: object) -> None:
        """Remember a view that is limited when the application has it already as it was."""
        if view in self._app.view_functions.values():
            self._suspects.append(view)

    def misplaced(self) -> list[str]:
        """Give the endpoints whose limits stand above their route, where they have no effect."""
        limited = [mark.view for mark in self._marks] + self._suspects
        views = self._app.view_functions.items()
        marks = (mark for _, view in views for mark in self._signs.marks_within(view))
        reached = [mark.view for mark in marks]
        return [name for name, view in views if view in limited and view not in reached]

    def _look_through(self) -> None:
        self._is_looked_through = True
        for endpoint in self.misplaced():
            _log.warning(
                "the limit of %s has no effect: its decorator stands above the route's; "
                "put it below, nearest to the view",
                endpoint,
            )

    def enforce(self, mark: ViewLimits, native: Request) -> Outcome | None:
        """Ask a view's limits, with those of its route if they have not been asked yet."""
        if not self.guard.enabled:
            return None
        earlier: Outcome | None = getattr(native, self._outcome, None)
        if earlier is None:
            plan, inner = self._plan(mark, native)
            setattr(native, self._signs.covered, inner)
        elif getattr(native, self._signs.covered, None) is mark:
            # The limit of its class has asked for this method too, for this one call.
            setattr(native, self._signs.covered, None)
            return earlier
        else:
            plan = self._own_plan(mark)
        return None if plan is None else self._ask(plan, native, earlier)

    def _ask(self, plan: RouteLimits, native: Request, earlier: Outcome | None) -> Outcome:
        outcome = plan.admit(FlaskRequest(native), earlier)
        setattr(native, self._outcome, outcome)
        if outcome.refusal is not None:
            raise refused(self.guard, outcome)
        return outcome

    def _before_request(self) -> None:
        """Ask the limits of a route whose view does not ask for itself."""
        native = current_request()
        if native.endpoint is not None and self.guard.enabled and not self._asks_itself(native):
            plan, _ = self._plan(None, native)
            if plan is not None:
                self._ask(plan, native, None)

    def _after_request(self, response: Response) -> Response:
        """Tell the client what all extensions on the application have decided."""
        native = current_request()
        if not self._is_looked_through:
            for installed in self.all:
                installed._look_through()  # noqa: SLF001  another of this class
        if len(self.all) == 1:
            response, outcome = self._answer(response, native)
            if outcome is not None:
                _tell(response, outcome)
            return response
        outcomes: list[Outcome] = []
        for installed in self.all:
            response, outcome = installed._answer(response, native)  # noqa: SLF001  another of this class
            if outcome is not None:
                outcomes.append(outcome)
        chief = _chief(outcomes)
        # Of a field that is no list the last one stays.
        for outcome in sorted(outcomes, key=lambda outcome: outcome is chief):
            _tell(response, outcome)
        return response

    def _answer_denied(self, error: RateLimited) -> Any:
        """Answer for a view that was denied by a limit it asked itself."""
        native = current_request()
        earlier: Outcome | None = native.__dict__.get(self._outcome)
        outcome = self.guard.denied(FlaskRequest(native), error.decision, earlier)
        native.__dict__[self._outcome] = outcome
        # An error handler for 429 sees it as any other refusal.
        return self._app.handle_user_exception(refused(self.guard, outcome))

    def _answer(self, response: Response, native: Request) -> tuple[Response, Outcome | None]:
        """Give what was decided about a request; count a route whose view was not reached."""
        outcome: Outcome | None = getattr(native, self._outcome, None)
        if outcome is None:
            if not (self._limits_routes and self.guard.enabled) or self._is_refused(native):
                return response, None
            plan, _ = self._plan(None, native)
            if plan is None:
                return response, None
            try:
                outcome = self._ask(plan, native, None)
            except HTTPException as error:
                response = self._app.make_response(self._app.handle_user_exception(error))
                outcome = cast("Outcome", getattr(native, self._outcome))
        if outcome.needs_response:
            outcome.settle(response)
            _refund_if_it_breaks(response, outcome)
        return response, outcome

    def _is_refused(self, native: Request) -> bool:
        """Whether another extension has refused a request, which is then nobody's to count."""
        if len(self.all) == 1:
            return False
        found = (getattr(native, installed._outcome, None) for installed in self.all)  # noqa: SLF001  as above
        return any(outcome is not None and outcome.refusal is not None for outcome in found)

    def _on_exception(self, _app: Flask, **_: Any) -> None:
        """Give back what a request took whose view raised what nobody has handled."""
        outcome: Outcome | None = getattr(current_request(), self._outcome, None)
        for answer in () if outcome is None else outcome.history:
            answer.refund()

    def _plan(
        self, mark: ViewLimits | None, native: Request
    ) -> tuple[RouteLimits | None, ViewLimits | None]:
        """Give what is asked first of a request, and the mark within whose limits are part of it.

        The plan has the limits of the route; it is `None` where there are none.
        """
        key = (mark, native.endpoint, native.method)
        found = self._plans.get(key)
        if found is None:
            self.guard.warn_if_multiprocess(native.environ)
            inner = None if mark is None else self._inner(mark, native)
            rules = self._route_rules(native.endpoint, native.method)
            for one in (mark, inner):
                rules += () if one is None else one.rules
            found = self._plans[key] = (self._made(rules), inner)
        return found

    def _own_plan(self, mark: ViewLimits) -> RouteLimits | None:
        """Give a view's own limits, for a request of which others have been asked already."""
        key = (mark, None, "")
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = (self._made(mark.rules), None)
        return found[0]

    def _inner(self, mark: ViewLimits, native: Request) -> ViewLimits | None:
        """Give the mark of a method whose class is marked too: nothing stands between the two."""
        view = self._app.view_functions.get(native.endpoint or "")
        inner = self._signs.mark_of(method_of(view, native.method))
        return None if inner is mark else inner

    def _asks_itself(self, native: Request) -> bool:
        """Whether the view of a request is decorated, as far as can be seen from outside."""
        view = self._app.view_functions.get(native.endpoint or "")
        mark = self._signs.mark
        return hasattr(view, mark) or hasattr(method_of(view, native.method), mark)

    def add_default(self, rule: Rule) -> None:
        """Limit all routes by one rule more."""
        self.guard.check([rule])
        self.limit_routes()
        self.defaults = (*self.defaults, rule)
        self._plans.clear()

    def _made(self, rules: tuple[Rule, ...]) -> RouteLimits | None:
        with self._lock:
            if not self._is_bound:
                # In the order of registration, so that every process keeps texts under the same
                # names.
                self._is_bound = True
                for rule in self._all_rules():
                    self.guard.route_limits([rule])
            return self.guard.route_limits(rules) if rules else None

    def _all_rules(self) -> Iterator[Rule]:
        yield from self.defaults
        for rules in self._routes.rules.values():
            yield from rules
        for view in self._app.view_functions.values():
            methods = [method_of(view, method) for method in sorted(http_method_funcs)]
            for function in (view, *methods):
                mark: ViewLimits | None = getattr(function, self._signs.mark, None)
                yield from () if mark is None else mark.rules

    def rules_of(self, endpoint: str, method: str) -> tuple[Rule, ...]:
        """Give all that limits a route, from the outermost to the innermost."""
        view = self._app.view_functions.get(endpoint)
        marks: dict[ViewLimits, None] = {}
        for function in (view, method_of(view, method)):
            marks |= dict.fromkeys(self._signs.marks_within(function))
        return sum((mark.rules for mark in marks), self._route_rules(endpoint, method))

    def terms_of(self, endpoint: str, method: str) -> tuple[CompiledLimit, ...]:
        """Give the limits of a route, bound, in the same order."""
        plan = self._made(self.rules_of(endpoint, method))
        return () if plan is None else plan.limits

    def _route_rules(self, endpoint: str | None, method: str) -> tuple[Rule, ...]:
        # Files are sent as `static` of the application or a blueprint, by the dozen for one page.
        if endpoint is None or endpoint.rpartition(".")[2] == "static":
            return ()
        view = self._app.view_functions.get(endpoint)
        exempt = (view, getattr(view, "view_class", None), method_of(view, method))
        blueprints = blueprints_of(endpoint)
        if any(
            hasattr(one, self._signs.exempt) for one in exempt
        ) or self._routes.exempt.intersection(blueprints):
            return ()
        rules = self.defaults
        for name in reversed(blueprints):
            rules += self._routes.rules.get(name, ())
        return rules


def _chief(outcomes: list[Outcome]) -> Outcome | None:
    """Give the one that refuses, or else the one whose decision is the strictest."""
    refused = [outcome for outcome in outcomes if outcome.refusal is not None]
    if refused:
        return refused[-1]
    decisions = [outcome.decision for outcome in outcomes if outcome.decision is not None]
    chief = strictest(decisions) if decisions else None
    return next((outcome for outcome in outcomes if outcome.decision is chief), None)


def _refund_if_it_breaks(response: Response, outcome: Outcome) -> None:
    """Have a streamed body give back what its request took, where a limit says so."""
    entries = (entry for answer in outcome.history for entry in answer.entries)
    if (
        response.is_streamed
        # A file is sent by the server itself, and is left alone.
        and not response.direct_passthrough
        and any(term.refund_on_error for term, _, _ in entries)
    ):
        response.response = RefundOnErrorBody(response.response, *outcome.history)


def _tell(response: Response, outcome: Outcome) -> None:
    headers = response.headers
    for name, value in outcome.headers():
        if name in _LISTS:
            headers.add(name, value)
        else:
            headers[name] = value
