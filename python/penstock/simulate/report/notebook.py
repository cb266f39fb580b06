"""Simulations in notebooks: a sparkline and tables, without scripts or downloads."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from penstock.display import escape_text
from penstock.simulate.report.svg import bars, sparkline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.simulate.histogram import Bins
    from penstock.simulate.limit_result import LimitResult, RecommendedLimit


MAX_BINS: Final = 120
"""The number of bins of a sparkline."""
_MAX_CLIENTS: Final = 5


def simulation_html(result: LimitResult, *, has_ids: bool) -> str:
    """Show one limit over one trace."""
    html = (
        f"<p><strong>{escape_text(result.limit or 'Simulation')}</strong></p>"
        f"{_block(sparkline(result.bins))}{result.summary._repr_html_()}"
    )
    if not has_ids or not result.summary.denied:
        return html
    return html + result.clients.head(_MAX_CLIENTS)._repr_html_()


def results_html(results: Sequence[LimitResult]) -> str:
    """Show a sparkline for each of several limits."""
    lines = []
    for result in results:
        title = " · ".join(filter(None, (result.title, result.limit)))
        drawing = _block(sparkline(result.bins))
        lines.append(f"<p><strong>{escape_text(title)}</strong></p>{drawing}")
    return "".join(lines)


def shares_html(shares: Sequence[float]) -> str:
    """Show denied shares as bars in the order of a table's rows."""
    return _block(bars(shares, "denied share of each limit, in the order of the rows"))


def recommendation_html(recommended: RecommendedLimit, bins: Bins) -> str:
    """Show a recommended limit with its explanation and the clients it denies something."""
    first, *rest = recommended.explain().splitlines()
    listed = (recommended.unusual, recommended.hit)
    tables = [recommended.curve, *(table for table in listed if len(table))]
    return (
        f"<p><strong>{escape_text(first)}</strong></p>"
        f"{''.join(f'<p>{escape_text(line)}</p>' for line in rest)}"
        f"<pre>{escape(recommended.yaml())}</pre>"
        f"{_block(sparkline(bins))}"
        f"{''.join(table._repr_html_() for table in tables)}"
    )


def _block(svg: str) -> str:
    return f"<div>{svg}</div>" if svg else ""
