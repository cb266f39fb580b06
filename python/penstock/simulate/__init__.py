"""Simulation of limits over recorded or synthetic traffic, with the engine of production.

Needs NumPy: `pip install "penstock[numpy]"`, or `penstock[notebook]` to include plots.
"""

from penstock._extras import Extra

with Extra("numpy"):
    from penstock.simulate import traffic
    from penstock.simulate.compare import Comparison, compare
    from penstock.simulate.recommend import recommend
    from penstock.simulate.recommendation import Recommendation
    from penstock.simulate.result import Simulation
    from penstock.simulate.run import Simulator, simulate
    from penstock.simulate.table import Table
    from penstock.simulate.totals import Summary
    from penstock.simulate.trace import Trace

__all__ = [
    "Comparison",
    "Recommendation",
    "Simulation",
    "Simulator",
    "Summary",
    "Table",
    "Trace",
    "compare",
    "recommend",
    "simulate",
    "traffic",
]
