"""A check of limits on traffic that they should not deny, and what a change of limits changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.simulate.clients import AnyClients, match_clients
from penstock.simulate.format import format_value, list_clients
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.simulate.totals import WithTotals


def check(
    simulated: WithTotals, max_denied: float | None, protect: AnyClients
) -> tuple[list[str], list[str]]:
    """Return what limits deny although they should not, and what is protected without an event.

    Args:
        simulated: The simulation.
        max_denied: The share of the events that may be denied. None: any.
        protect: Clients that must not be denied anything.
    """
    denied, share = simulated.denied_clients(), simulated.summary().denied_share
    named, problems = list(protect), []
    if max_denied is not None and share > max_denied:
        shown, most = (format_value("denied_share", each) for each in (share, max_denied))
        problems.append(
            f"{shown} of the events are denied, more than {most}: {_who(denied.rows())}"
        )
    is_protected, _ = match_clients(named, denied["id"])
    if is_protected.any():
        rows = (row for row, found in zip(denied.rows(), is_protected, strict=True) if found)
        problems.append(f"protected clients are denied: {_who(rows)}")
    _, not_found = match_clients(named, simulated.by_client()["id"])
    return problems, not_found


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
    columns = {
        name: [row[name] for row in rows]
        for name in ("id", "denied_only_by", "events", "denied", "denied_share")
    }
    return Table(f"Denied by only one of {old} and {new}", columns)


def _who(rows: Iterable[dict[str, Any]]) -> str:
    return list_clients((row["id"], f"{row['denied']:,} of {row['events']:,}") for row in rows)
