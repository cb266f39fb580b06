"""The results that reports, plots and notebooks show, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from penstock import display
from penstock._core import Limit, Limits
from penstock.display import pluralize
from penstock.messages import describe_limit, explain_limit, format_duration
from penstock.simulate.format import MAX_NAMED, format_value, list_clients

if TYPE_CHECKING:
    from penstock.simulate.histogram import Bins
    from penstock.simulate.level import Level
    from penstock.simulate.table import Table


_DAY: Final = "24h"
# A client with more than this share of all events may well be the largest customer.
_BUSY: Final = 0.25
# From this number on, a factor is shown without decimals.
_WHOLE: Final = 10


@dataclass(frozen=True, slots=True)
class Summary:
    """The totals of a simulation.

    Attributes:
        events: Number of events.
        allowed: Number of allowed events.
        denied: Number of denied events.
        denied_share: Share of the events that was denied, 0 to 1.
        clients: Number of clients with an event; ids that share a bucket are one client.
        clients_denied: Number of clients with a denied event.
        longest_wait: Longest `retry_after` of a denied event, in seconds.
        most_at_once: Most tokens admitted at one instant, for all clients together.
        most_in_second: Most tokens admitted in any second, for all clients together.
        most_in_minute: Most tokens admitted in any minute, for all clients together.
        most_in_flight: Most requests in flight at once, of all clients together; None without
            durations.
    """

    events: int
    allowed: int
    denied: int
    denied_share: float
    clients: int
    clients_denied: int
    longest_wait: float
    most_at_once: int
    most_in_second: int
    most_in_minute: int
    most_in_flight: int | None = None

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        return "\n".join(f"{name:<18} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        return display.facts_html("Summary", self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        numbers = self.to_dict().items()
        return [
            (name.replace("_", " "), format_value(name, value))
            for name, value in numbers
            if value is not None
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitResult:
    """The result of one limit over one trace.

    Attributes:
        title: Its label among several limits; empty if it is the only one.
        limit: Description of the limit; empty if it is not known.
        admits: Description of how much the limit admits.
        summary: The totals of its decisions.
        bins: The events over time.
        waits: For each range of `retry_after`, shortest first, its name and its denied events.
        clients: The clients with the most denied events; if nothing was denied, those with the
            most events.
        first_ns: Time of the first event, in nanoseconds since the clock's origin.
        last_ns: Time of the last event.
        tables: Which limit denied, by limit and by route; empty without routes.
        level: The level of one bucket; None if it is not known.
    """

    title: str = ""
    limit: str
    admits: str
    summary: Summary
    bins: Bins
    waits: tuple[tuple[str, int], ...]
    clients: Table
    first_ns: int
    last_ns: int
    tables: tuple[Table, ...] = ()
    level: Level | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RecommendedLimit:
    """The smallest limit that was found for a trace, without the trace itself.

    Attributes:
        limit: The limit, with round numbers.
        fitted: The smallest limit that suffices, before rounding.
        curve: For each count that was tried, the smallest burst that suffices and the share of the
            events that it denies; no row is worse than another in both numbers. For windows, which
            have no burst, each count that was tried.
        summary: The totals of the limit over the events that it was fitted to.
        hit: The clients that it was fitted to and still denies something, most denied events first.
        unusual: The clients that behave unlike the rest, and what the limit does to them. It was
            not fitted to them.
        burst: Tokens a full bucket holds; for windows, those that are admitted early, or 0.
        count: Tokens added in each period.
        period_ns: The period, in nanoseconds; 0 for requests in flight.
        max_denied: The share of the objective that may be denied, 0 to 1.
        objective: What was counted, `events` or `clients`.
        left_out: Events of excluded clients and of those with overrides.
        not_found: What was to be protected, but has no event.
        holdout: The totals of the events that were not used to choose the limit; None if all were.
        is_smallest: Whether no other limit with this period has a smaller sum of burst and count.
            False if it was rounded, if a busy client needed a larger one, and if this is not known:
            if costs differ and some events may be denied, a larger burst may deny more, and
            sometimes there are too many counts to try.
    """

    limit: Limit
    fitted: Limit
    curve: Table
    summary: Summary
    hit: Table
    unusual: Table
    burst: int
    count: int
    period_ns: int
    max_denied: float
    is_smallest: bool
    objective: str = "events"
    left_out: int = 0
    not_found: tuple[str, ...] = ()
    holdout: Summary | None = None

    @property
    def denied_share(self) -> float:
        """Share of the events that the limit was fitted to and denies."""
        return self.summary.denied_share

    def yaml(self, name: str = "Requests") -> str:
        """Return the limit as an entry of a limits file.

        Raises:
            ConfigError: The name is not a valid limit name.
        """
        return Limits({name: self.limit}).to_yaml()

    def explain(self) -> str:
        """Return the recommendation in sentences, one a line."""
        summary = self.summary
        max_share = format_value("denied_share", self.max_denied)
        requested = f"at most {max_share} of {self.objective} requested"
        found = f"Burst {self.burst:,} and count" if self.burst else "Count"
        per = f" per {format_duration(self.period_ns)}" if self.period_ns else ""
        sentences = [f"{found} {self.count:,}{per}: {explain_limit(self.limit)}."]
        sentences += self._unusual_sentences()
        others = "other " if len(self.unusual) else ""
        sentences.append(f"It denies {_denied(summary, others)} ({requested}).")
        if len(self.hit):
            rows = self.hit.rows()
            named = ((row["id"], f"{row['denied']:,} of {row['events']:,}") for row in rows)
            sentences.append(f"It denies something of {list_clients(named)}.")
        if self.left_out:
            left_out = pluralize(self.left_out, "event")
            sentences.append(f"Not counted: {left_out} of clients that are left out.")
        if self.not_found:
            missing = list_clients((id, "") for id in self.not_found)
            sentences.append(f"Protected, but not in the trace: {missing}.")
        if self.holdout is not None:
            sentences.append(f"After the part it was chosen on, it denies {_denied(self.holdout)}.")
        if summary.denied and self.period_ns:
            wait = format_value("longest_wait", summary.longest_wait)
            sentences.append(f"A denied client waits at most {wait}.")
        sentences += self._size_sentences()
        sentences.append("The limit is fitted to this trace; future traffic may need more.")
        return "\n".join(sentences)

    def _unusual_sentences(self) -> list[str]:
        """Return sentences that name the clients unlike the rest."""
        rows = list(self.unusual.rows())
        if not rows:
            return []
        share = format_value("event_share", sum(row["event_share"] for row in rows))
        clients = pluralize(self.summary.clients + len(rows), "client")
        behave = "behaves" if len(rows) == 1 else "behave"
        left_out = "it" if len(rows) == 1 else "them"
        found = f"{len(rows):,} of {clients} {behave} unlike the rest, with {share} of the events"
        sentences = [f"{found}; the limit is fitted without {left_out}."]
        for row in rows[:MAX_NAMED]:
            names = ("event_share", "denied_share")
            own, denied = (format_value(name, row[name]) for name in names)
            name = list_clients([(row["id"], "")])
            sentences.append(
                f"{name} makes {own} of all events, {_times(row['times_median'])} the median of "
                f"its peers, and at its peak {_times(row['times_at_peak'])} what suffices for "
                f"nine of ten; the limit denies {denied} of them."
            )
            if row["event_share"] > _BUSY:
                sentences.append(
                    f"Look at {name} first: if it is a customer, protect it, so that the limit "
                    "suffices for it, or give it an override, so that it need not."
                )
        if more := rows[MAX_NAMED:]:
            least = format_value("denied_share", min(row["denied_share"] for row in more))
            sentences.append(
                f"{len(more):,} more are listed in the JSON and on the page; "
                f"the limit denies at least {least} of the events of each."
            )
        return sentences

    def _size_sentences(self) -> list[str]:
        """Return whether a smaller limit may exist, and what rounding costs."""
        if self.limit != self.fitted:
            more = f"{self.limit.max_cost - self.fitted.max_cost:,} more at once"
            if self.period_ns:
                more = f"{self.limit.worst_in(_DAY) - self.fitted.worst_in(_DAY):,} more a day"
            smallest = f"The smallest limit that suffices is {describe_limit(self.fitted)}"
            return [f"{smallest}; rounded up, it admits at most {more}."]
        if self.is_smallest and not self.period_ns:
            return ["No smaller count suffices."]
        if self.is_smallest:
            return ["No limit with this period has a smaller sum of burst and count."]
        return ["A smaller sum of burst and count may exist: not all were tried."]

    def __repr__(self) -> str:
        share = format_value("denied_share", self.denied_share)
        return f"<{type(self).__name__} {self.limit!r}: {share} denied>"


def _times(factor: float) -> str:
    """Format how many times something is as large, such as `40 times`."""
    return f"{factor:,.0f} times" if factor >= _WHOLE else f"{factor:.2g} times"


def _denied(summary: Summary, others: str = "") -> str:
    share = format_value("denied_share", summary.denied_share)
    return (
        f"{summary.denied:,} of {pluralize(summary.events, 'event')} ({share}) and affects "
        f"{summary.clients_denied:,} of {pluralize(summary.clients, f'{others}client')}"
    )
