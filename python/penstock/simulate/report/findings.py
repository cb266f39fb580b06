"""What was found about one limit: all that a page and a figure say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock._core import Limit, Limits
from penstock.display import in_words
from penstock.simulate.report.tally import Overview, overview_of
from penstock.simulate.report.text import asked_of

if TYPE_CHECKING:
    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.ids import AnyId
    from penstock.simulate.level import Level
    from penstock.simulate.result import Simulation

__all__ = ["Finding", "admits_of", "bucket_to_show", "finding_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What was found about one limit.

    Attributes:
        called: What people call it; empty where it stands alone.
        asked: The limit in words; empty where nobody knows it any more.
        admits: How much it admits, in words.
        overview: What its decisions came to.
        level: How full one bucket was; `None` where that is not known.
    """

    called: str
    asked: str
    admits: str
    overview: Overview
    level: Level | None = None


def finding_of(simulation: Simulation, called: str = "", id: AnyId | None = None) -> Finding:
    """Find what a simulation says of its limit; `id` says whose bucket is looked at."""
    overview = overview_of(simulation)
    evaluator = simulation._judge  # noqa: SLF001  our own
    return Finding(
        called=called,
        asked=asked_of(simulation),
        admits="" if evaluator is None else admits_of(evaluator.limits, evaluator.name),
        overview=overview,
        level=bucket_to_show(simulation, overview, id),
    )


def bucket_to_show(simulation: Simulation, overview: Overview, id: AnyId | None) -> Level | None:
    """Give the level of one bucket; unless an `id` says whose, of the client hit most."""
    if id is not None:
        return simulation.level(id)
    hit = overview.clients["id"]
    if not hit or simulation._judge is None:  # noqa: SLF001  our own
        return None
    try:
        return simulation.level(hit[0])
    except ValueError:
        # No limit applies to that client: no fault, as nobody asked for its bucket.
        return None


def admits_of(limits: AnyLimits, name: str | None) -> str:
    """Say how much a limit admits, overrides left aside."""
    if isinstance(limits, str):
        limits = Limit.parse(limits)
    if isinstance(limits, Limit):
        return in_words(limits)
    every = limits if isinstance(limits, Limits) else Limits(dict(limits))
    default = every.default(next(iter(every)) if name is None else name)
    return "" if default is None else in_words(default)
