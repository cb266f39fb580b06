"""Routes: which limits a request spends, by its path and method; several are decided together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from penstock import _core
from penstock._validation import check_names, is_whole
from penstock.errors import ConfigError, InvalidId
from penstock.simulate.evaluator import Evaluator, evaluate
from penstock.simulate.ids import EVERYONE, Codes
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from penstock._core import Limit, Limits


AnyRoutes: TypeAlias = "str | PathLike[str] | Iterable[Mapping[str, Any]] | Routes"

Spent: TypeAlias = "tuple[tuple[str, str, int | None, int], ...]"
"""The limits that a request spends, each with its id, its cost (None is that of the event), and the
tokens that it must leave."""
NO_ROUTE: Final = "(no route)"
"""The label of requests without a route."""
INVALID: Final = 2**32 - 1
"""The number of a client whose id is not valid."""
_SHARED: Final = "none"


class Route(NamedTuple):
    """A kind of request, and what it spends.

    Attributes:
        path: A pattern for the path, with `*` and `?`.
        methods: The methods; empty for all.
        limits: For each limit the fields of the id (None is the client; empty is one bucket for
            all), the cost (None is the event's), and the tokens that must be left.
    """

    path: str
    methods: tuple[str, ...]
    limits: tuple[tuple[str, tuple[str, ...] | None, int | None, int], ...]

    @classmethod
    def parse(cls, route: Mapping[str, Any]) -> Route:
        """Parse a route: `{"path": "/api/*", "method": "GET", "limits": ["PerAddress"]}`.

        Raises:
            ConfigError: An option is unknown or not valid.

        >>> Route.parse({"path": "/login", "limits": {"Login": {"id": "user", "cost": 2}}})
        Route(path='/login', methods=(), limits=(('Login', ('user',), 2, 0),))
        """
        check_names(route, ("path", "method", "limits"), "a route")
        if "limits" not in route:
            raise ConfigError("a route must have limits; write [] for none")
        named = route["limits"]
        entries = dict(named) if isinstance(named, Mapping) else dict.fromkeys(named)
        limits = []
        for name, given in entries.items():
            options = given or {}
            check_names(options, ("id", "cost", "keep"), f"the limit {name} of a route")
            cost, keep = options.get("cost"), options.get("keep", 0)
            for field, value in [("cost", 0 if cost is None else cost), ("keep", keep)]:
                if not is_whole(value, 0, 2**63 - 1):
                    raise ConfigError(f"{field} must be an integer of at least 0, found {value!r}")
            fields = None
            if "id" in options:
                id = options["id"]
                fields = () if id in {None, _SHARED} else tuple(str(id).split(","))
            limits.append((str(name), fields, cost, keep))
        methods = route.get("method") or ()
        listed = methods.split(",") if isinstance(methods, str) else methods
        names = tuple(each.strip().upper() for each in listed if each.strip())
        return cls(str(route.get("path", "*")), names, tuple(limits))

    @property
    def label(self) -> str:
        """The methods and the path."""
        return f"{','.join(self.methods)} {self.path}".strip()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a request that this route needs."""
        path = () if self.path == "*" else ("path",)
        method = ("method",) if self.methods else ()
        return (*path, *method, *(each for _, id, *_ in self.limits for each in id or ()))

    def matches(self, request: Mapping[str, str]) -> bool:
        """Return whether a request is of this kind."""
        if self.methods and request["method"].upper() not in self.methods:
            return False
        return self.path == "*" or _core.matches_pattern(request["path"], self.path)


class Routes:
    """Routes in the order in which they are tried.

    Attributes:
        routes: The routes.
        names: The limits that they name, each once.
        fields: The fields that they need.
    """

    def __init__(self, routes: str | PathLike[str] | Iterable[Mapping[str, Any]]) -> None:
        """Parse routes, or load them from a file.

        Raises:
            ConfigError: A route is not valid, or the file has faults.
        """
        if isinstance(routes, str | PathLike):
            routes = _core.load_routes(routes)
        self.routes: Final = tuple(Route.parse(route) for route in routes)
        self.names: Final = tuple(
            dict.fromkeys(name for route in self.routes for name, *_ in route.limits)
        )
        self.fields: Final = tuple(
            dict.fromkeys(field for route in self.routes for field in route.fields)
        )
        self.labels: Final = (*(route.label for route in self.routes), NO_ROUTE)
        self._matched: Final[dict[tuple[str, str], int]] = {}

    @classmethod
    def of(cls, routes: AnyRoutes) -> Routes:
        """Parse routes, unless they are parsed already."""
        return routes if isinstance(routes, Routes) else cls(routes)

    @property
    def patterns(self) -> dict[str, list[str]]:
        """The patterns of the path, if no limit has the path itself as its id."""
        is_id = any("path" in (id or ()) for route in self.routes for _, id, *_ in route.limits)
        paths = [route.path for route in self.routes if route.path != "*"]
        return {} if is_id or not paths else {"path": list(dict.fromkeys(paths))}

    @property
    def spending(self) -> NDArray[np.int64]:
        """For each route and each limit whether a request spends it; the last row is for others."""
        spent = [{name for name, *_ in route.limits} for route in self.routes]
        rows = [[name in names for name in self.names] for names in [*spent, set()]]
        return np.array(rows, np.int64).reshape(len(rows), len(self.names))

    def check_fields(self, trace: Trace) -> None:
        """Raise ConfigError if a trace does not have a field that a route needs."""
        missing = [field for field in self.fields if field not in trace.fields]
        if missing:
            found = ", ".join(trace.fields) or "none"
            raise ConfigError(
                f"the routes need the fields {', '.join(missing)}, the trace has {found}; "
                f"pass id={(*trace.fields, *missing)!r} to Trace.from_log, or ids= by name"
            )

    def spends(self, fields: Sequence[str], id: str) -> tuple[int, Spent]:
        """Return the index of a request's route, and what the request spends.

        Args:
            fields: The names of the parts of an id, of which the first one is the client.
            id: The id of the request.
        """
        request = dict(zip(fields, id.split("\t"), strict=False))
        target = request.get("path", ""), request.get("method", "")
        index = self._matched.get(target)
        if index is None:
            found = (index for index, route in enumerate(self.routes) if route.matches(request))
            index = self._matched[target] = next(found, len(self.routes))
        limits = self.routes[index].limits if index < len(self.routes) else ()
        client = id.partition("\t")[0] if fields else id
        spent = []
        for name, own, cost, keep in limits:
            parts = [client] if own is None else [request[field] for field in own]
            spent.append((name, "\t".join(parts) if parts else EVERYONE, cost, keep))
        return index, tuple(spent)

    def events_of(
        self, trace: Trace, name: str
    ) -> tuple[Trace, NDArray[np.bool_], NDArray[np.uint32]]:
        """Return the events of a trace that spend a limit, with the ids and costs of that limit.

        Also returns which events of the trace these are, and the index of each one's client in the
        trace's table; the clients of a shared bucket are not in its ids.

        Raises:
            ConfigError: The trace does not have a field that a route needs, or a route keeps tokens
                of this limit.
        """
        self.check_fields(trace)
        if any(keep for route in self.routes for own, *_, keep in route.limits if own == name):
            raise ConfigError(
                f"{name} cannot be recommended or swept while a route keeps tokens of it; "
                "leave keep out of the route, or simulate with it"
            )
        ids: dict[str, int] = {}
        owners: dict[str, int] = {}
        # For each id of the table: its number under the limit and its cost; -1 for none.
        table = np.full((len(trace.clients), 2), -1, np.int64)
        owner = np.zeros(len(trace.clients), np.uint32)
        for index, id in enumerate(trace.clients):
            owner[index] = owners.setdefault(id.partition("\t")[0], index)
            for limit, own, cost, _ in self.spends(trace.fields, id)[1]:
                if limit == name:
                    table[index] = ids.setdefault(own, len(ids)), -1 if cost is None else cost
        numbers, costs = table[trace.client_indices].T
        is_spending = numbers >= 0
        spending = trace[is_spending]
        numbers, costs = numbers[is_spending], costs[is_spending]
        own_costs = np.where(costs < 0, 1 if spending.costs is None else spending.costs, costs)
        codes = Codes(numbers.astype(np.uint32), list(ids))
        selected = Trace(
            spending.times, codes, own_costs, trace.name, unit="ns", durations=spending.durations
        )
        return selected, is_spending, owner[spending.client_indices]


class RouteFeed:
    """Whole limits under a virtual clock; a request spends all limits of its route, or none.

    Attributes:
        routes: The routes.
        described: The limits; what several admit together depends on the requests.
    """

    def __init__(
        self,
        limits: Limits | Mapping[str, Limit | str],
        routes: Routes,
        *,
        denies_excess: bool = False,
    ) -> None:
        self.routes: Final = routes
        self.described: Final = _describe(limits, routes)
        self._core: Final = _core.RouteSimulator(limits, routes.names, denies_excess=denies_excess)
        self._table: Sequence[str] = ()
        # For each id of the table: its plan, its route, and its client.
        self._plans = np.empty(0, np.uint32)
        self._kinds = np.empty(0, np.uint32)
        self._owners = np.empty(0, np.uint32)
        self._known: Final[dict[Spent, int]] = {}
        self._numbers: Final[dict[str, int]] = {}
        self._clients: Final[list[str]] = []

    @property
    def name(self) -> str:
        """The names of the limits."""
        return ", ".join(self.routes.names)

    def number(self, part: Trace, *, skip_invalid: bool) -> NDArray[np.uint32]:
        """Return the plan of each event; `INVALID` if its id is not valid and may be skipped.

        Raises:
            ConfigError: The trace does not have a field that a route needs.
            InvalidId: An id does not match a limit's format.
        """
        if part.clients is not self._table:
            self.routes.check_fields(part)
            self._table = part.clients
            self._plans = self._kinds = self._owners = np.empty(0, np.uint32)
        first = len(self._plans)
        if len(part.clients) > first:
            rows = [self._plan(part, id, skip_invalid) for id in part.clients[first:]]
            plans, kinds, owners = np.array(rows, np.int64).T.astype(np.uint32)
            self._plans = np.concatenate([self._plans, plans])
            self._kinds = np.concatenate([self._kinds, kinds])
            self._owners = np.concatenate([self._owners, owners])
        return self._plans[part.client_indices]

    def _plan(self, part: Trace, id: str, skip_invalid: bool) -> tuple[int, int, int]:
        """Return the plan, the route and the client of an id."""
        kind, spent = self.routes.spends(part.fields, id)
        plan = self._known.get(spent)
        if plan is None:
            parts = [
                (self.routes.names.index(name), own, cost, keep) for name, own, cost, keep in spent
            ]
            try:
                plan = self._core.add_plan(parts)
            except InvalidId:
                if not skip_invalid:
                    raise
                plan = INVALID
            self._known[spent] = plan
        client = id.partition("\t")[0] if part.fields else id
        number = self._numbers.setdefault(client, len(self._clients))
        if number == len(self._clients):
            self._clients.append(client)
        return plan, kind, number

    def evaluate(
        self, part: Trace, plans: NDArray[np.uint32], columns: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        """Evaluate the next events, and return the columns, with `denied_by` and `route`."""
        denied_by = np.empty(len(part), np.uint32)
        feed = partial(self._core.feed, denied_by=denied_by)
        result = evaluate(feed, part, plans, columns)
        np.minimum(denied_by, len(self.routes.names), out=denied_by)
        return {**result, "denied_by": denied_by, "route": self._kinds[part.client_indices]}

    def by_bucket(self, part: Trace, _plans: NDArray[np.uint32]) -> Trace:
        """Return the events by their client, which is the first field of the ids."""
        return part.with_codes(Codes(self._owners[part.client_indices], self._clients))


def _describe(limits: Limits | Mapping[str, Limit | str], routes: Routes) -> tuple[str, str]:
    if len(routes.names) == 1 and routes.labels[0] == "*":
        # Every request spends the same limit.
        return Evaluator(limits, routes.names[0]).described
    return f"{', '.join(routes.names)} by route", ""
