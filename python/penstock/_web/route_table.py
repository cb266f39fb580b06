"""The limits of an application's routes: the rules of each, and what they are compiled to.

Decorators put rules on the functions that serve a route. An adapter shows a route of its framework
as a `Route`; `RouteTable` finds the rules that are decided together there, and compiles them once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from threading import RLock
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from penstock._locks import fork_safe
from penstock._validation import report_finding
from penstock._web.compile import make_room, view_scope
from penstock._web.compiled_limit import PerRequestLimit
from penstock._web.rule import FLAGS, Rule
from penstock.errors import ConfigError, Error
from penstock.messages import describe_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from penstock._core import Limiter
    from penstock._web.compiled_limit import CompiledLimit
    from penstock._web.decide import RouteLimits
    from penstock._web.guard import Guard

LIMITS: Final = "__penstock__"
"""The attribute of a function that holds its `ViewLimits`."""
EXEMPT: Final = "__penstock_exempt__"
"""The attribute of a function or a class that is exempt from the defaults."""

Mistake: TypeAlias = tuple[str, str]
"""Something without effect, and what to write instead."""

_SECOND_NS: Final = 1_000_000_000
# More than any stack of decorators.
_MAX_FUNCTIONS: Final = 100

# The applications of each limiter, in the order in which they were created.
_tables: Final[WeakKeyDictionary[Limiter, WeakKeyDictionary[RouteTable, None]]] = (
    WeakKeyDictionary()
)


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
    def stacked(cls, view: Callable[..., Any], rule: Rule) -> ViewLimits:
        """Add a rule to a view; decorators directly on one another share one wrapper."""
        inner = outermost_limits(view)
        return cls(view, (rule,)) if inner is None else cls(inner.view, (rule, *inner.rules))

    def put_on(self, wrapper: Callable[..., Any]) -> None:
        """Mark the function that replaces the view."""
        self.wrapper = wrapper
        setattr(wrapper, LIMITS, self)


def outermost_limits(view: object) -> ViewLimits | None:
    """Return the limits of a view; `None` if it has none, or another decorator is around them."""
    limits: ViewLimits | None = getattr(view, LIMITS, None)
    # Other decorators copy the attribute to their own function.
    return limits if limits is not None and limits.wrapper is view else None


def nested_limits(views: Iterable[object]) -> Iterator[ViewLimits]:
    """Yield the limits of views, each once, also those within other decorators."""
    seen: set[int] = set()
    for view in views:
        function = view
        while function is not None and id(function) not in seen:
            seen.add(id(function))
            limits: ViewLimits | None = getattr(function, LIMITS, None)
            if limits is not None and id(limits) not in seen:
                seen.add(id(limits))
                yield limits
            function = getattr(function, "__wrapped__", None)


def functions_within(view: object) -> Iterator[object]:
    """Yield a view and the functions that it may call: those it wraps, and those of its closure."""
    waiting, seen = [view], set[int]()
    while waiting and len(seen) < _MAX_FUNCTIONS:
        function = waiting.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        yield function
        waiting.append(getattr(function, "__wrapped__", None))
        for cell in getattr(function, "__closure__", None) or ():
            # A cell without a value has not been assigned yet.
            with suppress(ValueError):
                if isinstance(cell.cell_contents, FunctionType):
                    waiting.append(cell.cell_contents)


def check_exempt(target: object) -> None:
    """Check that what is to be exempt is called for requests.

    Raises:
        ConfigError: It is not, such as an `AdminSite` or the name of a view.
    """
    if not callable(target):
        raise ConfigError(
            f"exempt a view, found {target!r}; for all views below a path, use exempt_when on the "
            f"default limit"
        )


def hides_exemption(view: object) -> bool:
    """Return whether a decorator without `functools.wraps` is around an exempt view."""
    return not hasattr(view, EXEMPT) and any(
        hasattr(function, EXEMPT) for function in functions_within(view)
    )


def never_counting(
    counted: Iterable[tuple[object, Rule, Collection[str]]],
) -> Iterator[Mistake]:
    """Yield the limits with methods that none of their routes has.

    Args:
        counted: A limit, its rule and methods of one of its routes, for each of these.
    """
    known: dict[object, tuple[Rule, set[str]]] = {}
    for limit, rule, methods in counted:
        known.setdefault(limit, (rule, set()))[1].update(methods)
    for rule, methods in known.values():
        if rule.methods is not None and rule.methods.isdisjoint(methods):
            limits = ", ".join(map(str, rule.limits)) or "the limit"
            absent, present = " or ".join(sorted(rule.methods)), ", ".join(sorted(methods))
            yield (
                f"{limits} of {rule.scope} never counts, because no route with it has {absent}",
                f"write methods that it has, or leave them out: {present}",
            )


class Route(NamedTuple):
    """One route of an application, for one method.

    Attributes:
        method: The method; empty for one that is not in `METHODS`, because a client can send any,
            and each would be an entry of the table.
        functions: The functions that serve it, from the outermost to the innermost.
        owner: The class of the view; `None` for a function.
        around: The rules of what contains it, such as blueprints, from the outermost.
        is_exempt: Whether what contains it is exempt from the defaults.
    """

    method: str
    functions: tuple[object, ...]
    owner: type | None = None
    around: tuple[Rule, ...] = ()
    is_exempt: bool = False

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of its functions."""
        return tuple([rule for limits in nested_limits(self.functions) for rule in limits.rules])

    @property
    def is_limited(self) -> bool:
        """Whether one of its functions has limits of its own."""
        return any(hasattr(function, LIMITS) for function in self.functions)


# An attribute of a tuple takes 200 instructions more, for each request.
@dataclass(frozen=True, slots=True)
class PlaceLimits:
    """What is decided together at one place of a route.

    Attributes:
        limits: The compiled limits; `None` for none.
        covered: The limits that are part of them, and whose wrappers need not ask.
        needs_user: Whether they are decided when the framework has found the user.
    """

    limits: RouteLimits | None
    covered: tuple[ViewLimits, ...] = ()
    needs_user: bool = False


class RouteTable:
    """The limits of one application; each adapter adds how its requests are matched to them.

    Attributes:
        guard: The guard of the application.
        defaults: The rules of all routes.
        compiled: What has been compiled, by a key of the adapter.
        may_be_idle: Whether `report_if_idle` has something to look at.
    """

    def __init__(self, guard: Guard, defaults: tuple[Rule, ...] = ()) -> None:
        self.guard: Final = guard
        self.defaults = defaults
        self.compiled: Final[dict[object, PlaceLimits]] = {}
        self._lock: Final = fork_safe(RLock())
        self._is_bound = False
        self.may_be_idle = True
        _tables.setdefault(guard.limiter, WeakKeyDictionary())[self] = None

    def registered_rules(self) -> Iterable[Rule]:
        """Yield the rules of all routes, in the order in which the routes were registered."""
        return self.defaults

    def further_rules(self) -> Iterable[Rule]:
        """Yield the rules of functions that are no routes, such as those that views call."""
        return ()

    def mistakes(self) -> Iterable[Mistake]:
        """Yield what has no effect, although no rule is wrong."""
        return ()

    def report_mistakes(self) -> None:
        """Log what has no effect."""
        for sentence, fix in self.mistakes():
            self.may_be_idle = False
            report_finding("P008", sentence, fix)

    def report_if_idle(self) -> None:
        """Log, once, that nothing is limited, after a request that no limit has decided."""
        if not self.may_be_idle:
            return
        self.may_be_idle = False
        rules = chain(self.registered_rules(), self.further_rules())
        counted = [
            (counts["spends"], counts["checks"]) for counts in self.guard.limiter.counts().values()
        ]
        is_called = any(number for both in counted for each in both for number in each.values())
        if is_called or not self.guard.enabled or any(True for _ in rules):
            return
        report_finding(
            "P008",
            "no route has a limit, and there is no default limit, so no request is limited",
            "add one to a route, or to all; if only your own code calls the limiter, nothing is "
            "wrong",
        )

    def check(self) -> None:
        """Check all rules that are known, so that mistakes are reported at start.

        Raises:
            ConfigError: As `Guard.check`.
            LimitError: As `Guard.check`.
        """
        self.guard.check((*self.registered_rules(), *self.further_rules()))

    def are_defaults_replaced(self, own: Iterable[Rule], method: str) -> bool:
        """Return whether a route's own rules replace the defaults for a method.

        A rule that does not count the method does not, and neither does one in shadow mode, which
        would leave the route without a limit that refuses.
        """
        of_guard = self.guard.override_defaults
        return any(
            (of_guard if rule.override_defaults is None else rule.override_defaults)
            and (rule.methods is None or method in rule.methods)
            and rule.mode != "shadow"
            for rule in own
        )

    def around(self, route: Route | None, own: tuple[Rule, ...] = ()) -> tuple[Rule, ...]:
        """Return the rules around those of a route's functions: the defaults, and of blueprints.

        Args:
            route: The route; `None` for a request without one.
            own: Rules of the route that its functions do not have, such as those of throttles.
        """
        if route is None or route.is_exempt:
            return ()
        if any(hasattr(function, EXEMPT) for function in (*route.functions, route.owner)):
            return ()
        every = (*route.around, *own, *route.rules)
        is_replaced = self.are_defaults_replaced(every, route.method)
        return route.around if is_replaced else (*self.defaults, *route.around)

    def add(
        self,
        key: object,
        route: Route | None,
        reached: ViewLimits | None = None,
        *covered: ViewLimits,
        rules: tuple[Rule, ...] = (),
        is_own: bool = True,
    ) -> PlaceLimits:
        """Compile what is decided together at one place of a route.

        Args:
            key: What the adapter finds it by.
            route: The route, whose defaults are decided there; `None` for none.
            reached: The limits whose wrapper asks; `None` if the adapter asks before it calls one.
            covered: Further limits that are decided there, so that their wrappers need not ask.
            rules: Rules of other kinds that are decided there.
            is_own: Whether these limits are of the route. Others, such as that of a function that
                runs before all views, replace the defaults only if they say so.

        Raises:
            ConfigError: As `Guard.check`.
            LimitError: As `Guard.check`.
        """
        for decorated in covered if reached is None else (reached, *covered):
            rules += decorated.rules
        make_room(self.compiled)
        own = rules if is_own else tuple([rule for rule in rules if rule.override_defaults])
        limits = self.compile((*self.around(route, own), *rules))
        place = self.compiled[key] = PlaceLimits(limits, covered)
        return place

    def compile(self, rules: Sequence[Rule]) -> RouteLimits | None:
        """Return compiled limits; `None` if there are no rules.

        Raises:
            ConfigError: As `Guard.check`.
            LimitError: As `Guard.check`.
        """
        # The applications of a limiter share its names, which depend on the order.
        for table in [*_tables[self.guard.limiter]]:
            table.bind_all()
        with self._lock:
            return self.guard.route_limits(rules) if rules else None

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
        # A route that cannot be read raises when it is served.
        with suppress(Error):
            for rule in rules:
                with suppress(Error):
                    self.guard.route_limits([rule])


def limit_facts(guard: Guard, limit: CompiledLimit | PerRequestLimit) -> dict[str, Any]:
    """Return the facts about a limit of a route, as `show --json` prints them."""
    rule = limit.rule
    choices = limit.names() if isinstance(limit, PerRequestLimit) else None
    default = guard.limiter.limits.default(limit.name) if choices is None else None
    return {
        "name": limit.name,
        "limit": None if default is None else describe_limit(default),
        "numbers": None if default is None else default.describe(),
        "choices": choices,
        "id": getattr(rule.id, "__name__", None) or repr(rule.id),
        "cost": None if callable(rule.cost) else rule.cost,
        "keep": None if callable(rule.keep) else rule.keep,
        **{name: bool(getattr(rule, name)) for name in FLAGS},
        "block_for": [block.period_ns / _SECOND_NS for block in rule.blocks],
        "on_store_error": rule.on_store_error,
        "mode": "shadow" if limit.is_shadow else "enforce",
        "enabled": guard.enabled,
    }


def fact_text(facts: dict[str, Any]) -> str:
    """Return the facts about a limit as text: those that differ from a plain limit."""
    return f"{facts['name']}: {', '.join(_details(facts))}"


def _details(facts: dict[str, Any]) -> Iterator[str]:
    if facts["choices"] is None:
        yield facts["limit"] or "by override only"
    else:
        yield f"by request: {', '.join(facts['choices'])}" if facts["choices"] else "by request"
    yield facts["id"]
    yield from facts.get("methods") or ()
    if facts["cost"] != 1:
        yield "cost by request" if facts["cost"] is None else f"cost {facts['cost']}"
    if facts["keep"] != 0:
        yield "keep by request" if facts["keep"] is None else f"keep {facts['keep']}"
    yield from (name for name in FLAGS if facts[name])
    if facts["block_for"]:
        yield f"block_for {', '.join(f'{seconds:g} s' for seconds in facts['block_for'])}"
    if facts["on_store_error"]:
        yield f"on_store_error {facts['on_store_error']}"
    if facts["mode"] == "shadow":
        yield "shadow"
    if not facts["enabled"]:
        yield "switched off"
