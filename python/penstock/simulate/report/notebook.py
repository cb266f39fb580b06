"""What a notebook shows of a simulation and its kin: a line of traffic, and tables below it.

No scripts, and nothing that is fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.simulate.report.markup import visible
from penstock.simulate.report.svg import bars, sparkline
from penstock.simulate.report.tally import overview_of
from penstock.simulate.report.text import asked_of
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from penstock.simulate.compare import Comparison
    from penstock.simulate.recommend import Recommendation
    from penstock.simulate.result import Simulation
    from penstock.simulate.sweep import Sweep

__all__ = ["comparison_html", "recommendation_html", "simulation_html", "sweep_html"]

_BINS: Final = 120
_MOST_SHOWN: Final = 5


def simulation_html(simulation: Simulation) -> str:
    """Show one limit over one trace."""
    overview = overview_of(simulation, most_bins=_BINS)
    hit = overview.clients
    html = (
        f"<p><strong>{visible(asked_of(simulation) or 'Simulation')}</strong></p>"
        f"{_drawn(sparkline(overview.bins))}{overview.summary._repr_html_()}"
    )
    if simulation.trace.codes is None or not overview.summary.denied:
        return html
    most = Table(hit.caption, {name: hit[name][:_MOST_SHOWN] for name in hit.columns})
    return html + most._repr_html_()


def comparison_html(comparison: Comparison) -> str:
    """Show several limits over one trace: what each denied, and when."""
    lines = []
    for called, simulation in comparison.simulations.items():
        overview = overview_of(simulation, most_bins=_BINS)
        words = " · ".join(filter(None, (called, asked_of(simulation))))
        drawn = _drawn(sparkline(overview.bins))
        lines.append(f"<p><strong>{visible(words)}</strong></p>{drawn}")
    return Table._repr_html_(comparison) + "".join(lines)


def sweep_html(sweep: Sweep) -> str:
    """Show a row for each limit, and the denied shares as bars in the order of the rows."""
    drawn = bars(sweep["denied_share"], "the denied share of each limit, in the order of the rows")
    return _drawn(drawn) + Table._repr_html_(sweep)


def recommendation_html(recommendation: Recommendation) -> str:
    """Show what would do, why, and for whom it would not."""
    first, *rest = recommendation.explain().splitlines()
    overview = overview_of(recommendation.simulation, most_bins=_BINS)
    hit = recommendation.hit
    tables = [recommendation.curve, hit] if len(hit) else [recommendation.curve]
    return (
        f"<p><strong>{visible(first)}</strong></p>"
        f"{''.join(f'<p>{visible(line)}</p>' for line in rest)}"
        f"<pre>{visible(recommendation.yaml(), is_whole=True)}</pre>"
        f"{_drawn(sparkline(overview.bins))}"
        f"{''.join(table._repr_html_() for table in tables)}"
    )


def _drawn(svg: str) -> str:
    return f"<div>{svg}</div>" if svg else ""
