"""A recommendation: limits to choose from, whom each denies, and which one is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock._core import Limits
from penstock._display import pluralize
from penstock.messages import describe_limit, explain_limit
from penstock.simulate.format import format_value, list_clients
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from penstock._core import Limit


# A client with more than this share of all requests is not denied more than the least share of its
# own without a question.
_LARGE: Final = 0.01
_LEAST: Final = 0.001
_LOSERS: Final = 3
# A client that sends no more than this is out of reach of any limit for one client.
_FEW: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Candidate:
    """A limit to choose.

    Attributes:
        limit: The limit.
        suffices_for: The clients that it suffices for, such as `99.9 %` or `everyone`.
        period_ns: The period in nanoseconds; 0 for requests in flight.
        unit: The words for the period, such as `busiest minute`.
        most: For each client, the most tokens that it spends in one period, or holds at once.
        is_far: Whether each client is far from the rest, and was set aside.
        denied: For each client, its denied events.
    """

    limit: Limit
    suffices_for: str
    period_ns: int
    unit: str
    most: NDArray[np.int64]
    is_far: NDArray[np.bool_]
    denied: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False, eq=False)
class Recommendation:
    """Limits for a trace, from strict to lenient, and whom each denies.

    Attributes:
        candidates: The limits.
        chosen: The index of the recommended one; see `choose`.
        clients: The clients' ids.
        events: For each client, its events that count.
        left_out: Events of excluded clients and of those with overrides.
        not_found: What was to be protected, but has no event.
        refused: For each period without a limit, a sentence that says why.
    """

    candidates: tuple[Candidate, ...]
    chosen: int
    clients: Sequence[str]
    events: NDArray[np.int64]
    left_out: int = 0
    not_found: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def limit(self) -> Limit:
        """The chosen limit."""
        return self.candidates[self.chosen].limit

    @property
    def denied_share(self) -> float:
        """Share of the events that the chosen limit denies."""
        return float(self.candidates[self.chosen].denied.sum() / self.events.sum())

    def choose(self, row: int) -> Recommendation:
        """Return the same recommendation with another row of the table chosen, counted from 1.

        Raises:
            ValueError: There is no such row.
        """
        if not 1 <= row <= len(self.candidates):
            raise ValueError(f"row must be 1 to {len(self.candidates)}, found {row}")
        return replace(self, chosen=row - 1)

    def table(self) -> Table:
        """Return a row for each limit, from strict to lenient.

        `denied_share` is of all events, and `clients_share` of all clients, those that are far from
        the rest included. `loses_most` names the clients with most denied events, each with the
        share of its own events.
        """
        columns: dict[str, list[Any]] = {
            "row": [f"{'→ ' if row == self.chosen else ''}{row + 1}" for row in self._rows()],
            "limit": [describe_limit(each.limit) for each in self.candidates],
            "suffices_for": [each.suffices_for for each in self.candidates],
            "denied_share": [],
            "clients_share": [],
            "loses_most": [],
        }
        clients = int(np.count_nonzero(self.events))
        for row, each in enumerate(self.candidates):
            columns["denied_share"].append(float(each.denied.sum() / self.events.sum()))
            columns["clients_share"].append(int(np.count_nonzero(each.denied)) / clients)
            losers = list(self.denied_clients(row + 1).head(_LOSERS).rows())
            columns["loses_most"].append(_named(losers) or "no client")
        return Table("Limits to choose from, strict to lenient", columns)

    def denied_clients(self, row: int | None = None) -> Table:
        """Return the clients that a limit denies something, most denied events first.

        Args:
            row: The row of the table. None: the chosen one.
        """
        denied = self.candidates[self.chosen if row is None else row - 1].denied
        clients = np.flatnonzero(denied)
        return self._clients_table(
            "Clients denied something", clients[np.argsort(-denied[clients], kind="stable")], denied
        )

    def far(self) -> Table:
        """Return the clients that are far from the rest, and what the chosen limit denies them.

        `times_next` is how many times as much as the largest of the rest a client needs.
        """
        each = self.candidates[self.chosen]
        clients = np.flatnonzero(each.is_far & (self.events > 0))
        clients = clients[np.argsort(-each.most[clients], kind="stable")]
        table = self._clients_table("Clients far from the rest", clients, each.denied)
        columns = table.to_dict()
        rest = each.most[~each.is_far]
        need = each.most[clients]
        columns |= {
            each.unit.replace(" ", "_"): need.tolist(),
            "times_next": (need / max(int(rest.max(initial=0)), 1)).tolist(),
        }
        return Table(table.caption, columns)

    def large_losses(self) -> Table:
        """Return the clients with more than a hundredth of all events that are denied.

        Clients that lose up to a thousandth of their own events are left out.
        """
        table = self.denied_clients()
        rows = (
            row
            for row in table.rows()
            if row["event_share"] > _LARGE and row["denied_share"] > _LEAST
        )
        return Table.of_rows("Large clients denied something", table.columns, rows)

    def concentration(self) -> list[str]:
        """Return sentences on how the events are spread over the clients."""
        events = self.events[self.events > 0]
        if len(events) == 1:
            return []
        # The clients above the mean: where the shares of events and of clients differ most.
        busy = events > events.mean()
        share = format_value("event_share", float(events[busy].sum() / events.sum()))
        total = len(events)
        sentences = []
        if busy.any():
            sentences.append(
                f"{int(busy.sum()):,} of {total:,} clients sent {share} of the requests."
            )
        few = int(np.median(events))
        if few <= _FEW < len(events):
            sentences.append(
                f"{int(np.count_nonzero(events <= few)):,} of {total:,} clients sent at most "
                f"{pluralize(few, 'request')}: no limit for each client stops them. If they are "
                "attackers, limit log-ins by account, or all requests together."
            )
        return sentences

    def explain(self) -> str:
        """Return the recommendation in sentences, one a line."""
        each = self.candidates[self.chosen]
        events, denied, is_far = self.events, each.denied, each.is_far
        rest = events[~is_far]
        share = format_value("denied_share", float(denied[~is_far].sum() / max(rest.sum(), 1)))
        hit = int(np.count_nonzero(denied[~is_far]))
        # Clients far from the rest have sentences of their own.
        others = "other " if (is_far & (events > 0)).any() else ""
        clients = pluralize(int(np.count_nonzero(rest)), f"{others}client")
        # Of slots, there is nothing to add.
        limit = dict.fromkeys([describe_limit(each.limit), explain_limit(each.limit)])
        sentences = [
            f"{': '.join(limit).capitalize()}.",
            f"It denies {share} of the requests of {hit:,} of {clients}."
            if hit
            else f"It denies nothing of {clients}.",
        ]
        far = list(self.far().rows())
        if far:
            verb = "needs" if len(far) == 1 else "need"
            sentences.append(
                f"{pluralize(len(far), 'client')} far from the rest {verb} "
                f"{_times(far[-1]['times_next'])} what suffices for all others, or more, and the "
                f"limit denies of {'its' if len(far) == 1 else 'their'} requests: {_named(far)}."
            )
            sentences.append(
                "If such a client is welcome, protect it, so that the limit suffices for it, or "
                "give it an override; if it is a known attacker, exclude it."
            )
        sentences += self.concentration()
        if self.left_out:
            left_out = pluralize(self.left_out, "event")
            sentences.append(f"Not counted: {left_out} of clients that are left out.")
        if self.not_found:
            missing = list_clients((id, "") for id in self.not_found)
            sentences.append(f"Protected, but not in the trace: {missing}.")
        return "\n".join([*sentences, *self.refused])

    def yaml(self, name: str = "Requests") -> str:
        """Return the chosen limit as an entry of a limits file.

        Raises:
            ConfigError: The name is not a valid limit name.
        """
        return Limits({name: self.limit}).to_yaml()

    def plot(self, *, ax: Axes | None = None) -> Any:
        """Plot how many clients need how much, and what the chosen limit admits.

        Args:
            ax: Axes to draw into. None: a new figure.

        Returns:
            The `matplotlib.figure.Figure`, or `ax`. The figure is not registered with pyplot and
            needs no closing.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from penstock.simulate.report import plot  # noqa: PLC0415  needs Matplotlib

        return plot.show(plot.draw_recommendation, self, ax=ax)

    def _rows(self) -> range:
        return range(len(self.candidates))

    def _clients_table(
        self, caption: str, indices: NDArray[np.intp], denied: NDArray[np.int64]
    ) -> Table:
        events, denied = self.events[indices], denied[indices]
        columns = {
            "id": [self.clients[index] for index in indices.tolist()],
            "events": events.tolist(),
            "event_share": (events / self.events.sum()).tolist(),
            "denied": denied.tolist(),
            "denied_share": (denied / np.maximum(events, 1)).tolist(),
        }
        return Table(caption, columns)

    def __repr__(self) -> str:
        share = format_value("denied_share", self.denied_share)
        return f"<Recommendation {self.limit!r}: {share} denied>\n{self.table()!r}"


def _named(rows: Sequence[dict[str, Any]]) -> str:
    """Name clients, each with the share of its own events that is denied."""
    return list_clients(
        (row["id"], format_value("denied_share", row["denied_share"])) for row in rows
    )


def _times(factor: float) -> str:
    """Format how many times something is as large, such as `40 times`."""
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.2g} times"  # noqa: PLR2004
