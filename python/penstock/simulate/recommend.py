"""The smallest limit that denies at most a given share of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock.errors import InvalidId
from penstock.simulate.clients import match_clients
from penstock.simulate.evaluator import NUMBERS, Evaluator, parse_limits
from penstock.simulate.ids import Codes
from penstock.simulate.limit_result import RecommendedLimit
from penstock.simulate.result import Simulation
from penstock.simulate.routes import Routes
from penstock.simulate.run import as_trace, simulate
from penstock.simulate.search import SHAPES, Family, Point, Search, Shape
from penstock.simulate.table import Table
from penstock.simulate.times import parse_span
from penstock.simulate.unusual import MIN_CLIENTS, find_unusual
from penstock.validation import did_you_mean, name_value

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from penstock._core import Limit
    from penstock.simulate.clients import AnyClients
    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.routes import AnyRoutes
    from penstock.simulate.trace import Trace


_OBJECTIVES: Final = ("events", "clients")
# A client that is busy for long is only left out if the limit without it denies it this share.
_MAX_SPARED: Final = 0.25


class NoEventsError(ValueError):
    """No event spends the limit that is to be found."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Recommendation(RecommendedLimit):
    """The smallest limit that was found, and the alternatives.

    Attributes:
        simulation: The simulation of the limit over the events it was chosen for.
    """

    simulation: Simulation

    def _repr_html_(self) -> str:
        from penstock.simulate.report import notebook  # noqa: PLC0415  only when shown

        result = self.simulation.limit_result(max_bins=notebook.MAX_BINS)
        return notebook.recommendation_html(self, result.bins)

    def plot(self) -> Any:
        """Plot the smallest burst for each count, and the recommended pair.

        Returns:
            A `matplotlib.figure.Figure` that is not registered with pyplot.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from penstock.simulate.report import plot_tables  # noqa: PLC0415  needs Matplotlib

        return plot_tables.plot_recommendation(self)


def recommend(
    trace: Any,
    max_denied: float = 0.001,
    period: Any = None,
    *,
    objective: str = "events",
    exclude: AnyClients = (),
    protect: AnyClients = (),
    fit_all: bool = False,
    round_up: bool = False,
    algorithm: str | None = None,
    limits: AnyLimits | None = None,
    name: str | None = None,
    routes: AnyRoutes | None = None,
    holdout: float = 0.0,
    sort: bool = False,
) -> Recommendation:
    """Find the smallest limit that denies at most a given share of a trace.

    Clients that behave unlike the rest, such as scrapers and password guessers, are left out, and
    `unusual` of the result names them and says what the limit does to them. A client is one of
    these if it spends many times what a limit admits that suffices for nine of ten clients, and far
    more than their median: eight times within one period, four times within ten, or twice within
    sixty; or if it has four times as many requests in flight. Fewer than five clients are never
    unlike each other.

    A client that is not left out, but busy enough to be most of what may be denied, such as an
    office behind one address, is denied at most one per cent of its own events.

    Every count has a smallest burst. The recommended pair has the smallest sum, which is the most
    that one client of a token bucket is admitted in any period, with `round_up` rounded up
    to numbers that people would choose.

    If all events cost the same, a larger burst or count never denies more events, and bisection
    finds the smallest burst. If costs differ, this holds only if nothing may be denied or clients
    are counted; otherwise the burst is bisected and smaller ones are tried below it.

    Args:
        trace: As `times` of `simulate`; each client has its own bucket.
        max_denied: The share of the objective that may be denied, 0 to 1.
        period: The limit's period: a text with units, seconds, or a `timedelta`. None: that of
            `limits`; one minute if it has none.
        objective: `"events"`: the share of events that are denied. `"clients"`: the share of
            clients with a denied event, so that a single busy client counts no more than any other.
        exclude: Clients whose events do not count, such as known attackers: ids, networks such as
            `198.51.100.0/24`, or patterns with `*` and `?`.
        protect: Clients that must not be denied anything, as for `exclude`.
        fit_all: Whether to leave out no client, and to look at all events together only.
        round_up: Whether to round burst and count up, such as 26 to 30; `fitted` of the result is
            the limit before.
        algorithm: `token-bucket`, `leaky-bucket`, `fixed-window`, `fixed-rate-window`,
            `calendar-window`, which keeps the period and zone of `limits`, or `in-flight`, which
            has no period and needs the durations of the trace. None: that of `limits`;
            `token-bucket` if it has none of these.
        limits: Limits whose default is to be chosen. Their id format decides which ids are one
            client; clients with an override keep it, and their events do not count.
        name: The name of the limit, if `limits` has several.
        routes: As for `simulate`, to choose the limit `name` for the events that spend it, with
            their ids and costs under that limit. The other limits are not evaluated: what they
            deny would make this limit look better than it is.
        holdout: A share of the trace's time at its end, 0 to 1, that is not used to choose the
            limit, but to check it: `holdout` of the result has its totals.
        sort: As for `simulate`.

    Raises:
        ValueError: The trace is empty, an argument is out of range, or the trace has no durations,
            which a limit on requests in flight needs.
        KeyError: The trace has no client of `exclude`.
        LimitError: The period is too short for the rate of the trace.

    >>> from penstock.simulate import traffic
    >>> found = recommend(traffic.bursts(10, "1m", "1h", clients=5), max_denied=0)
    >>> found.burst, found.count
    (10, 10)
    """
    _check_share("max_denied", max_denied)
    _check_share("holdout", holdout)
    _check_name("objective", "'events' or 'clients'", objective, _OBJECTIVES)
    if period is not None:
        period = parse_span(period, "period")
    whole = as_trace(trace)
    if sort:
        whole = whole.sorted()
    if routes is not None and (limits is None or name is None):
        raise ValueError("routes name the limits; pass limits= and name=")
    evaluator = None if limits is None else Evaluator(parse_limits(limits), name)
    default = None if evaluator is None else evaluator.default()
    if algorithm is None:
        algorithm = "token-bucket"
        if default is not None and default.algorithm in SHAPES:
            algorithm = default.algorithm
    _check_name("algorithm", "one that can be fitted", algorithm, SHAPES)
    has_same_algorithm = default is not None and default.algorithm == algorithm
    shape = SHAPES[algorithm]
    if not shape.has_periods and period is not None:
        raise ValueError("a limit on requests in flight has no period; omit period=")
    if shape.has_periods and shape.period is None and (period or not has_same_algorithm):
        raise ValueError(
            "a calendar window keeps its period and its zone; pass limits= with a calendar window, "
            "and no period="
        )
    period_ns = _period_of(default, shape) if period is None else period
    # Parameters that are not searched for, such as the anchor of a window.
    rest = default.fields() if default is not None and has_same_algorithm else {}
    counted = _Counted.of(
        whole, evaluator, None if routes is None else Routes.of(routes), name or "",
        exclude=exclude, protect=protect,
    )  # fmt: skip
    events = counted.events
    cut = int(events.times[0]) + round(events.duration_ns * (1 - holdout))
    end = np.datetime64(cut + 1, "ns")
    is_chosen_on = events.mask_between(None, end)
    family = Family(algorithm, period_ns, rest)
    search, best, limit, unlike = _fit(
        counted, is_chosen_on, family, max_denied, objective, fit_all=fit_all, round_up=round_up
    )
    is_unusual = unlike[counted.owners.client_indices] > 0
    fitted = search.limit(best.burst, best.count)
    simulation = _simulation(limit, events[~is_unusual])
    chosen = simulation.between(None, end) if holdout else simulation
    fields = limit.fields()
    return Recommendation(
        curve=search.curve(),
        simulation=chosen,
        summary=chosen.summary(),
        limit=limit,
        fitted=fitted,
        max_denied=max_denied,
        burst=best.burst if shape.burst is None else int(fields[shape.burst]),
        count=int(fields[shape.rate]),
        period_ns=period_ns,
        is_smallest=search.is_exhausted and search.is_monotone and limit == fitted,
        objective=objective,
        left_out=len(whole) - len(events) if routes is None else counted.left_out,
        holdout=simulation.between(end).summary() if holdout else None,
        hit=counted.hit(chosen, ~is_unusual & (is_chosen_on if holdout else True)),
        unusual=counted.unusual(limit, unlike),
        not_found=counted.not_found,
    )


def _check_share(option: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{option} must be a number between 0 and 1, found {name_value(value)}")
    if not 0 <= value <= 1 or (option == "holdout" and value == 1):
        raise ValueError(f"{option} must be between 0 and 1, found {value}")


def _check_name(option: str, expected: str, found: str, known: Collection[str]) -> None:
    if found not in known:
        hint = did_you_mean(found, known)
        raise ValueError(f"{option} must be {expected}, found {found!r}; {hint}")


def _period_of(limit: Limit | None, sought: Shape) -> int:
    """Return the period of a limit; one minute if it has none, 0 if none is sought."""
    if not sought.has_periods:
        return 0
    shape = None if limit is None else SHAPES.get(limit.algorithm)
    facts = None if limit is None else limit.describe()
    if limit is None or shape is None or facts is None or not shape.has_periods:
        return parse_span("1m", "")
    if shape.period is None:
        return facts["refill_interval_ns"]
    return parse_span(limit.fields()[shape.period], "")


def _fit(
    counted: _Counted,
    is_chosen_on: NDArray[np.bool_],
    family: Family,
    max_denied: float,
    objective: str,
    *,
    fit_all: bool,
    round_up: bool,
) -> tuple[Search, Point, Limit, NDArray[np.float64]]:
    """Find the limit that suffices for all clients but those unlike the rest.

    Returns the search, the smallest limit, the rounded limit, and how unlike the rest each client
    is; 0 if the limit is fitted to it.
    """
    owners = counted.owners.client_indices
    # Few clients are no crowd, of which a busy one could be overlooked.
    has_caps = not fit_all and len(np.unique(owners)) >= MIN_CLIENTS

    def fitted(unlike: NDArray[np.float64]) -> tuple[Search, Point, Limit]:
        is_fitted = is_chosen_on & (unlike[owners] == 0)
        search = Search(
            counted.events[is_fitted], max_denied, objective, family,
            counted.protected[is_fitted] if counted.protected.any() else None,
            has_caps=has_caps,
        )  # fmt: skip
        best = search.smallest()
        exact = search.limit(best.burst, best.count)
        return search, best, search.rounded(best) if round_up else exact

    unlike = np.zeros(len(counted.owners.clients))
    if fit_all:
        return *fitted(unlike), unlike
    found = find_unusual(counted.owners[is_chosen_on], family)
    unlike = np.maximum(found.brief, found.lasting)
    unlike[np.unique(owners[counted.protected])] = 0
    search, best, limit = fitted(unlike)
    # A larger limit may spare more of them, so this is repeated; each time, there are fewer.
    while (spared := (found.brief == 0) & counted.is_spared(limit, unlike)).any():
        unlike[spared] = 0
        search, best, limit = fitted(unlike)
    return search, best, limit, unlike


class _Counted(NamedTuple):
    """The events that count.

    Attributes:
        events: The events by bucket.
        owners: The same events by client. Another table only if all clients share one bucket.
        protected: Whether each event must not be denied.
        left_out: Number of events of clients that are excluded or have an override.
        not_found: What is protected, but has no event.
    """

    events: Trace
    owners: Trace
    protected: NDArray[np.bool_]
    left_out: int
    not_found: tuple[str, ...]

    @classmethod
    def of(
        cls,
        whole: Trace,
        evaluator: Evaluator | None,
        routes: Routes | None,
        name: str,
        *,
        exclude: AnyClients,
        protect: AnyClients,
    ) -> _Counted:
        """Select the events of a limit.

        Raises:
            KeyError: The trace has no client of `exclude`.
            ValueError: There are no events.
        """
        named = evaluator if routes is None else None
        events = whole if named is None else named.by_bucket(whole)
        spell = str if named is None else partial(_canonical, evaluator=named)
        is_excluded, unknown = match_clients(exclude, events.clients, spell)
        if unknown:
            raise KeyError(f"exclude: the trace has no client {unknown[0]!r}")
        is_protected, not_found = match_clients(protect, events.clients, spell)
        is_kept = ~is_excluded[events.client_indices]
        protected = is_protected[events.client_indices]
        owners = events
        if routes is not None and evaluator is not None:
            clients = [id.partition("\t")[0] for id in whole.clients]
            own, is_spending, numbers = routes.events_of(whole, name)
            events = evaluator.by_bucket(own)
            is_kept, protected = is_kept[is_spending], protected[is_spending]
            owners = events
            if len(events.clients) == 1:
                owners = events.with_codes(Codes(numbers, clients))
        if evaluator is not None and len(events):
            is_kept &= ~evaluator.has_override(events.clients)[events.client_indices]
        if len(events) == 0:
            raise NoEventsError("trace must have at least one event, found none")
        left_out = len(events) - int(np.count_nonzero(is_kept))
        if left_out == len(events):
            raise ValueError(
                "trace must have an event that counts; all are excluded or have overrides"
            )
        if left_out == 0:
            return cls(events, owners, protected, 0, tuple(not_found))
        kept = events[is_kept]
        owners = kept if owners is events else owners[is_kept]
        return cls(kept, owners, protected[is_kept], left_out, tuple(not_found))

    def hit(self, simulation: Simulation, selected: NDArray[np.bool_]) -> Table:
        """Return a row for each client that is denied something, given the simulated events."""
        if self.owners is self.events:
            return simulation.denied_clients()
        return _by_owner(simulation, self.owners[selected]).denied_clients()

    def is_spared(self, limit: Limit, unlike: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which of the clients unlike the rest a limit hardly denies anything."""
        if not unlike.any():
            return np.zeros(len(unlike), np.bool_)
        rows = self.unusual(limit, unlike).rows()
        spared = {row["id"] for row in rows if row["denied_share"] < _MAX_SPARED}
        return (unlike > 0) & np.array([id in spared for id in self.owners.clients], np.bool_)

    def unusual(self, limit: Limit, unlike: NDArray[np.float64]) -> Table:
        """Return a row for each client that behaves unlike the rest, the busiest first."""
        names = (
            "id", "events", "event_share", "times_median", "times_at_peak", "denied",
            "denied_share",
        )  # fmt: skip
        is_unusual = unlike[self.owners.client_indices] > 0
        if not is_unusual.any():
            return Table.of_rows("Clients unlike the rest", names, ())
        times = {
            self.owners.clients[index]: float(unlike[index])
            for index in unlike.nonzero()[0].tolist()
        }
        counts = np.bincount(self.owners.client_indices[~is_unusual])
        median = float(np.median(counts[counts > 0]))
        unusual = self.owners[is_unusual]
        if self.owners is self.events:
            simulation = _simulation(limit, unusual)
        else:
            # All of them spend from one bucket.
            everything = _simulation(limit, self.events)
            allowed = {"allowed": everything.allowed, "retry_after_ns": everything.retry_after_ns}
            simulation = Simulation(
                unusual, {name: column[is_unusual] for name, column in allowed.items()}
            )
        rows = [
            {
                **row,
                "event_share": row["events"] / len(self.events),
                "times_median": row["events"] / median,
                "times_at_peak": times[row["id"]],
            }
            for row in sorted(simulation.by_client().rows(), key=lambda row: -row["events"])
        ]
        return Table.of_rows("Clients unlike the rest", names, rows)


def _by_owner(simulation: Simulation, owners: Trace) -> Simulation:
    """Return the decisions of a simulation by the clients that share its bucket."""
    columns = {"allowed": simulation.allowed, "retry_after_ns": simulation.retry_after_ns}
    return Simulation(owners, columns)


def _canonical(id: str, evaluator: Evaluator) -> str:
    """Return an id in the spelling of the limit's ids; a network or a pattern as it is."""
    try:
        return evaluator.canonical_id(id)
    except InvalidId:
        return id


def _simulation(limit: Limit, trace: Trace) -> Simulation:
    """Evaluate a limit; events that cost more than it can ever admit are denied."""
    costs = trace.costs
    if costs is None or len(costs) == 0 or int(costs.max()) <= limit.max_cost:
        return simulate(limit, trace)
    fits = costs <= limit.max_cost
    found = simulate(limit, trace[fits])
    columns: dict[str, NDArray[Any]] = {"allowed": np.zeros(len(trace), np.bool_)}
    columns |= {name: np.zeros(len(trace), np.int64) for name in NUMBERS}
    for name, column in columns.items():
        column[fits] = getattr(found, name)
    return Simulation(trace, columns, evaluator=Evaluator(limit, None))
