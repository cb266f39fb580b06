"""A check of limits on traffic that they should not deny, and what a change of limits changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.simulate.clients import AnyClients, match_clients
from penstock.simulate.format import format_value, list_clients
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from penstock.simulate.totals import WithTotals


class Check(NamedTuple):
    """Whether limits deny more than they may.

    Attributes:
        max_denied: The share of the events that may be denied; None for any.
        denied_share: The share of the events that is denied.
        denied: The clients that are denied something, most denied events first.
        protected: Those of them that must not be denied anything.
        not_found: What is protected, but has no event.
    """

    max_denied: float | None
    denied_share: float
    denied: Table
    protected: Table
    not_found: tuple[str, ...]

    @classmethod
    def of(cls, simulated: WithTotals, max_denied: float | None, protect: AnyClients = ()) -> Check:
        """Check a simulation."""
        denied = simulated.denied_clients()
        named = list(protect)
        _, not_found = match_clients(named, simulated.by_client()["id"] if named else [])
        is_protected, _ = match_clients(named, denied["id"])
        rows = (row for row, found in zip(denied.rows(), is_protected, strict=True) if found)
        protected = Table.of_rows("Protected clients with denied events", denied.columns, rows)
        share = simulated.summary().denied_share
        return cls(max_denied, share, denied, protected, tuple(not_found))

    def problems(self) -> list[str]:
        """Return what is wrong, with the clients; empty if the check passes."""
        problems = []
        if self.max_denied is not None and self.denied_share > self.max_denied:
            share = format_value("denied_share", self.denied_share)
            most = format_value("denied_share", self.max_denied)
            problems.append(
                f"{share} of the events are denied, more than {most}: {_who(self.denied)}"
            )
        if len(self.protected):
            problems.append(f"protected clients are denied: {_who(self.protected)}")
        return problems


def changes(before: tuple[str, WithTotals], after: tuple[str, WithTotals]) -> Table:
    """Return a row for each client that only one of two limits denies, newly denied ones first.

    Args:
        before: The label of a limit, and its simulation.
        after: Those of another limit, over the same events.
    """
    (old, first), (new, second) = before, after
    denied = {old: first.denied_clients(), new: second.denied_clients()}
    ids = {label: {*table["id"]} for label, table in denied.items()}
    rows = [
        row | {"denied_only_by": label}
        for label, other in ((new, old), (old, new))
        for row in denied[label].rows()
        if row["id"] not in ids[other]
    ]
    columns = ("id", "denied_only_by", "events", "denied", "denied_share")
    return Table.of_rows(f"Denied by only one of {old} and {new}", columns, rows)


def _who(table: Table) -> str:
    return list_clients(
        (row["id"], f"{row['denied']:,} of {row['events']:,}") for row in table.rows()
    )
