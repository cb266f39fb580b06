"""Routes: which limits a request spends, by its path and method; several are decided together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock import _core
from penstock.errors import ConfigError
from penstock.simulate.run import as_trace
from penstock.simulate.table import Table
from penstock.validation import check_names, is_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock._core import Limit, Limits
    from penstock.simulate.trace import Trace


FIELDS: Final = ("address", "method", "path")
"""The parts of a trace's ids, unless the caller names others."""
_NO_LIMIT: Final = 2**32 - 1


class Route(NamedTuple):
    """A kind of request, and what it spends.

    Attributes:
        path: A pattern for the path, with `*` and `?`.
        methods: The methods; empty for all.
        limits: For each limit the field of the id, and the cost; None is the event's cost.
    """

    path: str
    methods: tuple[str, ...]
    limits: tuple[tuple[str, str, int | None], ...]

    @classmethod
    def parse(cls, route: Mapping[str, Any]) -> Route:
        """Parse a route: `{"path": "/api/*", "method": "GET", "limits": ["PerAddress"]}`.

        `limits` are names, or a mapping of names to `id` (a field, by default `address`) and
        `cost` (by default that of the event).

        Raises:
            ConfigError: An option is unknown or not valid.
        """
        check_names(route, ("path", "method", "limits"), "a route")
        methods = route.get("method", "")
        named = route.get("limits", ())
        entries = dict(named) if isinstance(named, Mapping) else {name: {} for name in named}
        limits = []
        for name, given in entries.items():
            options = given or {}
            check_names(options, ("id", "cost"), f"the limit {name} of a route")
            cost = options.get("cost")
            if cost is not None and not is_whole(cost, 0, 2**63 - 1):
                raise ConfigError(f"cost must be an integer of at least 0, found {cost!r}")
            limits.append((str(name), str(options.get("id", "address")), cost))
        listed = methods.split(",") if isinstance(methods, str) else methods
        names = tuple(each.strip().upper() for each in listed if each.strip())
        return cls(str(route.get("path", "*")), names, tuple(limits))

    def matches(self, path: str, method: str) -> bool:
        """Return whether a request is of this kind."""
        return fnmatchcase(path, self.path) and (not self.methods or method.upper() in self.methods)


class RoutedSimulation:
    """One decision for each request of a trace, by all limits of its route.

    Attributes:
        trace: The requests.
        allowed: Whether each request was allowed by all limits.
        denied_by: The index in `names` of the strictest limit that denied; `len(names)` if none.
        names: The limits of the routes.
        routes: The index of each request's route; the number of routes if none matches.
        retry_after_ns: Nanoseconds until the strictest limit could allow the same cost.
    """

    def __init__(
        self, trace: Trace, names: Sequence[str], patterns: Sequence[Route], **columns: Any
    ) -> None:
        self.trace = trace
        self.names = tuple(names)
        self._patterns = tuple(patterns)
        self.allowed: NDArray[np.bool_] = columns["allowed"]
        self.denied_by: NDArray[np.uint32] = columns["denied_by"]
        self.retry_after_ns: NDArray[np.int64] = columns["retry_after_ns"]
        self.routes: NDArray[np.intp] = columns["routes"]
        self._clients: NDArray[np.object_] = columns["clients"]

    @property
    def denied_share(self) -> float:
        """Share of the requests that was denied, 0 to 1."""
        return 1 - float(self.allowed.mean()) if len(self.allowed) else 0.0

    def by_limit(self) -> Table:
        """Return a row for each limit with the requests that it denied as the strictest."""
        counts = np.bincount(self.denied_by, minlength=len(self.names) + 1)[: len(self.names)]
        return Table("Limits", {"limit": list(self.names), "denied": counts.tolist()})

    def by_route(self) -> Table:
        """Return a row for each route with its requests; the last one is for all others."""
        size = len(self._patterns) + 1
        events = np.bincount(self.routes, minlength=size)
        denied = np.bincount(self.routes[~self.allowed], minlength=size)
        labels = [f"{' '.join(each.methods)} {each.path}".strip() for each in self._patterns]
        return self._table("Routes", "route", [*labels, "(no route)"], events, denied)

    def by_client(self) -> Table:
        """Return a row for each client, most denied requests first."""
        found, codes = np.unique(self._clients, return_inverse=True)
        events = np.bincount(codes, minlength=len(found))
        denied = np.bincount(codes[~self.allowed], minlength=len(found))
        order = np.lexsort((-events, -denied))
        clients = [str(found[index]) for index in order]
        return self._table("Clients", "client", clients, events[order], denied[order])

    @staticmethod
    def _table(
        caption: str, head: str, labels: list[str], events: NDArray[Any], denied: NDArray[Any]
    ) -> Table:
        shares = (denied / np.maximum(events, 1)).tolist()
        columns = {"events": events.tolist(), "denied": denied.tolist(), "denied_share": shares}
        return Table(caption, {head: labels, **columns})


def simulate_routes(
    limits: Limits | Mapping[str, Limit | str],
    trace: Any,
    routes: Iterable[Mapping[str, Any]],
    *,
    fields: Sequence[str] = FIELDS,
) -> RoutedSimulation:
    r"""Evaluate whole limits over requests: the limits of a request's route are decided together.

    The first route that matches is the request's; a request without a route is allowed. If a limit
    denies, nothing is spent, as with `Limiter.spend_all`.

    Args:
        limits: Limits by name, with their overrides.
        trace: A trace whose ids have several parts, as `Trace.from_log(path, id=fields)` reads it.
        routes: The routes, as `Route.parse` takes them.
        fields: The parts of the ids.

    Raises:
        ConfigError: A route is not valid, or needs a field that the ids do not have.
        UnknownLimit: A route names a limit that does not exist.
        InvalidId: An id does not match a limit's format.

    Examples:
        >>> from penstock.simulate import Trace
        >>> requests = Trace([0.0, 0.1], ids=["192.0.2.1\tGET\t/api/a", "192.0.2.1\tGET\t/"])
        >>> routes = [{"path": "/api/*", "limits": ["Api"]}, {"limits": ["All"]}]
        >>> found = simulate_routes({"Api": "1/minute", "All": "9/minute"}, requests, routes)
        >>> found.by_route()["denied"]
        [0, 0, 0]
    """
    events = as_trace(trace)
    patterns = [Route.parse(route) for route in routes]
    names = list(dict.fromkeys(name for route in patterns for name, _, _ in route.limits))
    for _, field, _ in (part for route in patterns for part in route.limits):
        if field not in fields:
            raise ConfigError(f"id must be one of the fields {', '.join(fields)}, found {field!r}")
    core = _core.RouteSimulator(limits, names)
    plans = np.empty(len(events.clients), np.uint32)
    kinds = np.empty(len(events.clients), np.intp)
    clients = np.empty(len(events.clients), object)
    for index, id in enumerate(events.clients):
        values = dict(zip(fields, id.split("\t"), strict=False))
        path, method = values.get("path", ""), values.get("method", "")
        kind = next((k for k, each in enumerate(patterns) if each.matches(path, method)), None)
        parts = () if kind is None else patterns[kind].limits
        plan = [(names.index(name), values[field], cost) for name, field, cost in parts]
        plans[index] = core.add_plan(plan)
        kinds[index] = len(patterns) if kind is None else kind
        clients[index] = values[fields[0]]
    codes = np.zeros(len(events), np.uint32) if events.codes is None else events.codes
    allowed = np.empty(len(events), np.bool_)
    denied_by = np.empty(len(events), np.uint32)
    waits = np.empty(len(events), np.int64)
    costs = None if events.costs is None else np.ascontiguousarray(events.costs)
    times = np.ascontiguousarray(events.times)
    core.feed(times, plans[codes], costs, allowed.view(np.uint8), denied_by, waits)
    denied_by[denied_by == _NO_LIMIT] = len(names)
    return RoutedSimulation(
        events,
        names,
        patterns,
        allowed=allowed,
        denied_by=denied_by,
        retry_after_ns=waits,
        routes=kinds[codes],
        clients=clients[codes],
    )
