"""The level of a bucket in a log, which is read a second time for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import penstock
from penstock.simulate.evaluator import Evaluator, LimitFeed
from penstock.simulate.level import level_of
from penstock.simulate.routes import INVALID
from penstock.simulate.run import as_trace
from penstock.simulate.trace import Trace

# After penstock.simulate, whose error says how to install it.
import numpy as np  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.limits import SelectedLimit
    from penstock.simulate.level import Level
    from penstock.simulate.limit_result import LimitResult
    from penstock.simulate.log import LogReader

_POINTS: Final = 1_000


class _Bucket:
    """The events of one bucket."""

    def __init__(self, selected: SelectedLimit, id: str) -> None:
        self._evaluator = Evaluator(selected.limits, selected.name)
        self._feed = LimitFeed(self._evaluator)
        self._id = id
        probe = Trace.from_codes([0], [0], [id])
        numbers = self._feed.number(probe, skip_invalid=False)
        self._bucket = self._feed.by_bucket(probe, numbers).client_indices[0]
        self._parts: list[Trace] = []

    def add(self, part: Trace) -> None:
        """Keep the events of the bucket."""
        numbers = self._feed.number(part, skip_invalid=True)
        is_valid = numbers != INVALID
        buckets = self._feed.by_bucket(part[is_valid], numbers[is_valid])
        self._parts.append(buckets[buckets.client_indices == self._bucket])

    def level(self) -> Level | None:
        """Return the level of the bucket; None if no limit applies to it."""
        times = np.concatenate([part.times for part in self._parts])
        costs = [part.costs for part in self._parts if part.costs is not None]
        trace = Trace.from_codes(
            times, np.zeros(len(times), np.uint32), [self._id],
            np.concatenate(costs) if costs else None, unit="ns",
        )  # fmt: skip
        try:
            return level_of(self._evaluator, trace, self._id, _POINTS)
        except ValueError:
            return None


def with_levels(
    reader: LogReader, selected: Sequence[SelectedLimit], results: Sequence[LimitResult]
) -> list[LimitResult]:
    """Add the level of the bucket with the most denied events to each result."""
    buckets: list[_Bucket | None] = []
    for each, result in zip(selected, results, strict=True):
        try:
            buckets.append(_Bucket(each, result.clients["id"][0]))
        except (penstock.InvalidId, IndexError):
            # The bucket of a network has no id of its own, and without events there is none.
            buckets.append(None)
    for chunk in reader:
        part = as_trace(chunk)
        for bucket in filter(None, buckets):
            bucket.add(part)
    return [
        result if bucket is None else replace(result, level=bucket.level())
        for result, bucket in zip(results, buckets, strict=True)
    ]
