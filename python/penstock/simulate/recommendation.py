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


_LOSERS: Final = 3
# A client that sends no more than this is out of reach of any limit for one client.
_FEW: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A limit to choose.

    Attributes:
        limit: The limit.
        suffices_for: The clients that it suffices for, such as `99.9 %` or `everyone`.
        count: The tokens that the limit adds in one period, or its slots.
        unit: What clients need it for, such as `busiest minute`.
        most: For each client, the most tokens that it spends in one period, or holds at once.
        is_far: Whether each client is far from the rest, and was set aside.
        denied: For each client, its denied events.
    """

    limit: Limit
    suffices_for: str
    count: int
    unit: str
    most: NDArray[np.int64]
    is_far: NDArray[np.bool_]
    denied: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False, eq=False)
class Recommendation:
    """Limits for a trace, from strict to lenient, and whom each denies.

    Attributes:
        candidates: The limits.
        row: The number of the recommended one, from 1; see `choose`.
        clients: The clients' ids.
        events: For each client, its events that count.
        left_out: Events of excluded clients and of those with overrides.
        not_found: What was to be protected, but has no event that counts.
        refused: For each period without a limit, a sentence that says why.
    """

    candidates: tuple[Candidate, ...]
    row: int
    clients: Sequence[str]
    events: NDArray[np.int64]
    left_out: int
    not_found: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def limit(self) -> Limit:
        """The chosen limit."""
        return self.chosen.limit

    @property
    def chosen(self) -> Candidate:
        """The chosen row."""
        return self.candidates[self.row - 1]

    def choose(self, row: int) -> Recommendation:
        """Return the same recommendation with another row of the table chosen, counted from 1.

        Raises:
            ValueError: There is no such row.
        """
        if not 1 <= row <= len(self.candidates):
            raise ValueError(f"row must be 1 to {len(self.candidates)}, found {row}")
        return replace(self, row=row)

    def table(self) -> Table:
        """Return a row for each limit, from strict to lenient.

        `denied_share` is of all events, and `clients_share` of all clients, those that are far from
        the rest included. `loses_most` names the clients with most denied events, each with the
        share of its own events.
        """
        limits, numbers = self.candidates, range(1, len(self.candidates) + 1)
        denied = [self.choose(number).denied_clients() for number in numbers]
        columns: dict[str, list[Any]] = {
            "row": ["→ " * (number == self.row) + f"{number}" for number in numbers],
            "limit": [describe_limit(each.limit) for each in limits],
            "suffices_for": [each.suffices_for for each in limits],
            "denied_share": [float(each.denied.sum() / self.events.sum()) for each in limits],
            "clients_share": [len(table) / len(self.clients) for table in denied],
            "loses_most": [_named(table.head(_LOSERS)) or "no client" for table in denied],
        }
        return Table("Limits to choose from, strict to lenient", columns)

    def denied_clients(self) -> Table:
        """Return the clients that the chosen limit denies something, most denied events first."""
        denied = self.chosen.denied
        return self._clients_table("Clients denied something", denied, denied > 0)

    def far(self) -> Table:
        """Return the clients that are far from the rest, and what the chosen limit denies them."""
        each = self.chosen
        return self._clients_table("Clients far from the rest", each.most, each.is_far)

    def _clients_table(
        self, caption: str, numbers: NDArray[np.int64], is_shown: NDArray[np.bool_]
    ) -> Table:
        """Return a row for some clients, the one with the largest number first."""
        each, shown = self.chosen, np.flatnonzero(is_shown)
        shown = shown[np.argsort(-numbers[shown], kind="stable")]
        events, denied = self.events[shown], each.denied[shown]
        columns = {
            "id": [self.clients[index] for index in shown.tolist()],
            each.unit.replace(" ", "_"): each.most[shown].tolist(),
            "events": events.tolist(),
            "event_share": (events / self.events.sum()).tolist(),
            "denied": denied.tolist(),
            "denied_share": (denied / events).tolist(),
        }
        return Table(caption, columns)

    def concentration(self) -> list[str]:
        """Return sentences on how the events are spread over the clients."""
        events, total, few = self.events, len(self.events), few_requests(self.events)
        # The clients above the mean: where the shares of events and of clients differ most.
        is_busy = events > events.mean()
        sentences = []
        if is_busy.any():
            share = format_value("event_share", float(events[is_busy].sum() / events.sum()))
            busy = int(np.count_nonzero(is_busy))
            sentences.append(f"{busy:,} of {total:,} clients sent {share} of the requests.")
        if few:
            sentences.append(
                f"{int(np.count_nonzero(events <= few)):,} of {total:,} clients sent at most "
                f"{pluralize(few, 'request')}: no limit for each client stops them. If they are "
                "attackers, limit log-ins by account, or all requests together."
            )
        return sentences

    def explain(self) -> str:
        """Return the recommendation in sentences, one a line."""
        each = self.chosen
        denied, events = each.denied[~each.is_far], self.events[~each.is_far]
        # Of slots, there is nothing to add.
        limit = dict.fromkeys([describe_limit(each.limit), explain_limit(each.limit)])
        others = pluralize(len(events), "other client" if each.is_far.any() else "client")
        loss = f"It denies nothing of {others}."
        if denied.any():
            share = format_value("denied_share", float(denied.sum() / events.sum()))
            affected = np.count_nonzero(denied)
            loss = (
                f"It denies {share} of the requests of {others}, and affects {affected:,} of them."
            )
        sentences = [f"{': '.join(limit)}.", loss]
        if each.is_far.any():
            times = each.most[each.is_far].min() // each.most[~each.is_far].max(initial=1)
            sentences.append(
                f"Clients far from the rest, with at least {times:,} times the need of any "
                f"other, and what they lose: {_named(self.far())}. Protect those that are welcome, "
                "or give them an override; exclude known attackers."
            )
        sentences += self.concentration()
        if self.left_out:
            left_out = pluralize(self.left_out, "event")
            sentences.append(f"Not counted: {left_out} of clients excluded or with an override.")
        if self.not_found:
            missing = list_clients((id, "") for id in self.not_found)
            sentences.append(f"Protected, but without an event that counts: {missing}.")
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
            ax: As for `Simulation.plot`.

        Returns:
            As `Simulation.plot`.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from penstock.simulate.report import plot  # noqa: PLC0415  needs Matplotlib

        return plot.show(plot.draw_recommendation, self, ax=ax)

    def __repr__(self) -> str:
        return f"<Recommendation {self.limit!r}>\n{self.table()!r}"


def few_requests(events: NDArray[np.int64]) -> int:
    """Return how many requests half of the clients send at most; 0 if these are more than a few."""
    few = int(np.median(events))
    return few if few <= _FEW < len(events) else 0


def _named(clients: Table) -> str:
    """Name clients, each with the share of its own events that is denied."""
    return list_clients(
        (row["id"], format_value("denied_share", row["denied_share"])) for row in clients.rows()
    )
