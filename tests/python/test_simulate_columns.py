"""Columns of the usual libraries, and results by bucket."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import penstock
from penstock.simulate import Simulator, Trace, simulate, traffic
from penstock.simulate.log.reader import Chunk

NS = 1_700_000_000_123_456_789
NETWORKS = penstock.Limits.parse("Calls: {burst: 3, count: 1, period: 1m, id: ipv6RangeCIDR}")
NEIGHBORS = ["2001:db8::1", "2001:db8::2", "2001:DB8::3", "2001:db8::4", "2001:db8::1"]


@pytest.mark.parametrize(
    "ids",
    [
        pd.Series([3, 4], dtype="Int64"),
        pd.Series([3, 4], dtype="Int32"),
        pd.Series([3, 4], dtype="UInt32"),
        pd.Series([np.int64(3), np.int64(4)], dtype=object),
        [np.int64(3), np.uint8(4)],
        np.array([np.int64(3), np.int64(4)], dtype=object),
    ],
)
def test_whole_numbers_of_other_libraries_are_ids(ids: Any) -> None:
    assert list(Trace([0.0, 1.0], ids).clients) == ["3", "4"]


def test_numpy_bool_is_not_an_id() -> None:
    with pytest.raises(TypeError):
        Trace([0.0], [np.bool_(True)])


@pytest.mark.parametrize(
    "times",
    [
        [pd.Timestamp(NS)],
        [pd.Timestamp(NS, tz="Europe/Berlin")],
        np.array([pd.Timestamp(NS)], dtype=object),
        [pd.Timedelta(NS, unit="ns")],
        pd.Series([pd.Timestamp(NS)], dtype=object),
        np.array([np.int64(NS)], dtype=object),
    ],
)
def test_times_keep_their_nanoseconds(times: Any) -> None:
    assert Trace(times).times.tolist() == [NS]


@pytest.mark.parametrize(("unit", "each"), [("s", 1), ("ms", 1_000), ("us", 1_000_000)])
def test_epochs_without_a_unit_are_refused(unit: str, each: int) -> None:
    given = [1_700_000_000 * each, 1_700_000_060 * each + 1, 1_700_000_120 * each]
    for column in (given, np.array(given), pd.Series(given, dtype="Int64"), pl.Series(given)):
        with pytest.raises(ValueError, match=f"unit='{unit}'"):
            simulate("2/minute", column)
    simulation = simulate("2/minute", given, unit=unit)
    assert simulation.allowed.all()
    assert simulation.trace.times[0] == 1_700_000_000 * 10**9
    assert Trace(given, unit="ns").times.tolist() == given


def test_floats_have_units_too() -> None:
    assert Trace([1500.5], unit="ms").times.tolist() == [1_500_500_000]
    with pytest.raises(ValueError, match="unit"):
        Trace([1.0], unit="minutes")


def test_a_trace_that_begins_at_its_origin_has_nanoseconds() -> None:
    assert Trace([0, 1_500_000_001]).times.tolist() == [0, 1_500_000_001]
    assert len(traffic.poisson(5, "10s", start=1000)[2:]) > 0
    start, middle = 2_000_000_000, 2_000_000_500
    assert len(Trace([0, start, middle]).of("*")[1:]) == 2


@pytest.mark.parametrize("costs", [[2.0, 3.0], pd.Series([2, 3], dtype="Int64"), np.float32(2)])
def test_whole_floats_and_nullable_integers_are_costs(costs: Any) -> None:
    trace = Trace([0.0, 1.0], costs=costs)
    assert trace.costs is not None
    assert trace.costs.tolist() in ([2, 3], [2, 2])


@pytest.mark.parametrize("costs", [[0.5], [float("nan")], [2.0**60], ["1"], [True]])
def test_other_costs_are_refused(costs: Any) -> None:
    with pytest.raises(TypeError):
        Trace([0.0], costs=costs)


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table])
def test_columns_are_passed_and_not_a_table(library: Any) -> None:
    frame = library({"times": [0.0, 0.5], "ids": ["ada", "ada"], "costs": [1, 2]})
    trace = Trace(frame["times"], frame["ids"], frame["costs"])
    assert simulate("2/minute", trace).allowed.tolist() == [True, False]
    with pytest.raises(TypeError, match="pass its columns"):
        simulate("2/minute", frame)


def test_a_mask_selects_events() -> None:
    trace = Trace([0.0, 1.0, 2.0], ["ada", "grace", "ada"])
    assert trace[trace.ids == "ada"].times.tolist() == [0, 2_000_000_000]
    for wrong in ([True], [0, 1, 2], "ada"):
        with pytest.raises(TypeError):
            trace[wrong]


def test_between_understands_zones() -> None:
    trace = Trace(pd.to_datetime(["2026-11-20T09:00", "2026-11-20T10:00"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(trace.between("2026-11-20T10:30+01:00")) == 1
        assert len(trace.between("2026-11-20T09:30Z")) == 1
        assert len(trace.between("2026-11-20T08:59-00:00", "2026-11-20T09:00:01")) == 1


def test_ids_of_one_bucket_are_one_client() -> None:
    times = [0.0, 0.0, 0.0, 0.0, 1.0]
    simulation = simulate(NETWORKS, times, NEIGHBORS)
    assert simulation.allowed.tolist() == [True, True, True, False, False]
    summary = simulation.summary()
    assert (summary.clients, summary.clients_denied) == (1, 1)
    clients = simulation.by_client()
    assert clients["id"] == ["2001:db8::/48"]
    assert clients["denied"] == [2]
    for id in ("2001:db8::1", "2001:DB8::3", "2001:db8::9"):
        bucket = simulation.bucket(id)
        assert bucket is not None
        assert bucket.tokens.min() == 0
        assert len(bucket.denied_times) == 2
    parts = Simulator(NETWORKS)
    for first in range(0, 5, 2):
        parts.feed(Trace(times[first : first + 2], NEIGHBORS[first : first + 2]))
    assert parts.summary() == summary
    assert list(parts.by_client().rows()) == list(clients.rows())


def test_invalid_ids_can_be_left_out() -> None:
    limits = penstock.Limits.parse("Calls: {burst: 1, count: 1, period: 1m, id: ipAddress}")
    simulator = Simulator(limits, skip_invalid=True)
    ids = ["192.0.2.1", "localhost", "192.0.2.1", "unix:"]
    assert simulator.feed(Trace([0.0, 0.0, 1.0, 2.0], ids)).tolist() == [True, False]
    assert (simulator.summary().events, simulator.invalid) == (2, 2)
    assert simulator.first_invalid == "localhost"
    assert simulator.feed(Trace([3.0], ["192.0.2.1"])).tolist() == [False]
    with pytest.raises(penstock.InvalidId):
        Simulator(limits).feed(Trace([0.0], ["localhost"]))


class _Counted(list[str]):
    """A table of clients that counts how many of its entries were looked at."""

    looked = 0

    def __iter__(self) -> Any:
        for each in super().__iter__():
            _Counted.looked += 1
            yield each

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        _Counted.looked += len(found) if isinstance(index, slice) else 1
        return found


def test_each_client_of_a_growing_table_is_looked_at_once() -> None:
    table, size, parts = _Counted(), 100, 30
    simulator = Simulator("2/minute")
    for part in range(parts):
        codes = np.arange(len(table), len(table) + size, dtype=np.uint32)
        table.extend(f"client-{code}" for code in codes.tolist())
        times = np.full(size, part * 10**9, np.int64)
        simulator.feed(Chunk(times, codes, None, table))
    assert simulator.summary().clients == parts * size
    assert _Counted.looked <= 2 * parts * size
