"""What a limit would have done to traffic: the same engine over arrays, under a virtual clock.

Needs NumPy: `pip install "penstock[numpy]"`, or `penstock[notebook]` with what draws.
"""

try:
    import numpy as _numpy  # noqa: F401  asked for here, so that its absence is told in our words
except ImportError as error:
    raise ImportError(
        "penstock.simulate needs NumPy, which is not installed; "
        '`pip install "penstock[numpy]"` would do, or "penstock[notebook]" with what draws'
    ) from error

from penstock.simulate import traffic
from penstock.simulate.compare import Comparison, compare
from penstock.simulate.level import Level
from penstock.simulate.recommend import Recommendation, recommend
from penstock.simulate.result import Bins, Simulation, Summary
from penstock.simulate.run import Simulator, simulate
from penstock.simulate.sweep import Sweep, sweep
from penstock.simulate.table import Table
from penstock.simulate.trace import Trace

__all__ = [
    "Bins",
    "Comparison",
    "Level",
    "Recommendation",
    "Simulation",
    "Simulator",
    "Summary",
    "Sweep",
    "Table",
    "Trace",
    "compare",
    "recommend",
    "simulate",
    "sweep",
    "traffic",
]
