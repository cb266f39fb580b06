"""A simulation makes the decisions of a limiter, for columns of any library."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from core_limits import RATES
from hypothesis import given
from loops import interrupted_after

import penstock
from penstock.simulate import Simulation, Simulator, Trace, simulate
from penstock.simulate.ids import Codes

LIMITS = penstock.Limits.parse(
    """
Tokens: {burst: 3, count: 2, period: 1s}
Leaks: {algorithm: leaky-bucket, size: 3, drip_rate: 300ms, drip_size: 2}
Fixed: {algorithm: fixed-window, count: 4, period: 1s}
Aligned: {algorithm: fixed-window, count: 4, period: 1s, anchor: aligned, phase: per-key}
Spaced: {algorithm: fixed-rate-window, count: 5, period: 1s, burst: 2}
""",
    """
- Tokens: {burst: 5, count: 9, period: 1s, ids: [vip]}
- Tokens: {algorithm: leaky-bucket, size: 4, drip_rate: 1s, ids: [odd]}
- Leaks: {algorithm: fixed-window, count: 3, period: 2s, ids: [vip]}
- Only: {burst: 3, count: 1, period: 1s, ids: [vip]}
""",
)
NAMES = list(LIMITS)
IDS = ["ada", "grace", "vip", "odd"]
MILLI = 1_000_000

event = st.tuples(
    st.one_of(st.just(0), st.integers(0, 1500 * MILLI), st.integers(0, 1500).map(MILLI.__mul__)),
    st.sampled_from(IDS),
    st.integers(0, 3),
)


def columns(simulation: Simulation) -> list[tuple[bool, int, int, int]]:
    return list(
        zip(
            simulation.allowed.tolist(),
            simulation.remaining.tolist(),
            simulation.retry_after_ns.tolist(),
            simulation.reset_after_ns.tolist(),
            strict=True,
        )
    )


def trace_of(events: list[tuple[int, str, int]], start: int = 0) -> Trace:
    """Return the trace of events, of which each has the time since the one before."""
    times = start + np.cumsum([wait for wait, *_ in events], dtype=np.int64)
    return Trace(times, [id for _, id, _ in events], [cost for *_, cost in events], unit="ns")


@given(
    st.sampled_from([*NAMES, *RATES]),
    st.integers(0, 2**61),
    st.lists(event, max_size=40),
    st.booleans(),
)
def test_simulation_decides_like_a_limiter(
    name: str, start: int, events: list[tuple[int, str, int]], ones: bool
) -> None:
    clock = penstock.ManualClock(start=0)
    clock.set_ns(start)
    limits = penstock.Limits({name: RATES[name]}) if name in RATES else LIMITS
    limiter = penstock.Limiter(limits, clock=clock)
    expected = []
    for wait, id, cost in events:
        clock.advance_ns(wait)
        made = limiter.spend(name, id, 1 if ones else cost)
        expected.append((made.allowed, made.remaining, made.retry_after_ns, made.reset_after_ns))
    trace = trace_of(events, start)
    if ones:
        trace = Trace(trace.times, trace.ids, unit="ns")
    assert columns(simulate(limits, trace, name=name)) == expected
    halves, middle = Simulator(limits, name), len(events) // 2
    fed = [halves.feed(part).tolist() for part in (trace[:middle], trace[middle:])]
    assert fed[0] + fed[1] == [row[0] for row in expected]
    assert halves.summary() == simulate(limits, trace, name=name).summary()


@given(st.lists(event, max_size=30), st.randoms(use_true_random=False))
def test_a_shuffled_trace_is_sorted_again(events: list[tuple[int, str, int]], random: Any) -> None:
    trace = trace_of(events)
    order = list(range(len(events)))
    random.shuffle(order)
    again = trace.take(np.array(order, int)).sorted()
    assert again.is_sorted
    rows = [
        sorted(zip(each.times.tolist(), each.client_indices.tolist(), strict=True))
        for each in (trace, again)
    ]
    assert rows[0] == rows[1]


def test_four_at_once_and_two_per_second() -> None:
    limit = penstock.Limit.token_bucket(burst=4, count=2, period=1)
    simulation = simulate(limit, [0.0, 0.0, 0.0, 0.5], costs=[1, 3, 1, 1])
    second = 1_000_000_000
    assert simulation.allowed.tolist() == [True, True, False, True]
    assert simulation.remaining.tolist() == [3, 0, 0, 0]
    assert simulation.retry_after_ns.tolist() == [0, 3 * second // 2, second // 2, second // 2]
    assert simulation.reset_after_ns.tolist() == [second // 2, 2 * second, 2 * second, 2 * second]
    assert simulation.denied_share == 0.25
    assert repr(simulation) == "<Simulation: 4 events, 25 % denied>"


SECONDS = [0.0, 0.25, 1.5]
ZONED = datetime.datetime(2400, 1, 1, tzinfo=datetime.UTC)
NANOSECONDS = [0, 250_000_000, 1_500_000_000]
DATES = [
    datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=s)
    for s in SECONDS
]


@pytest.mark.parametrize(
    "times",
    [
        NANOSECONDS,
        tuple(NANOSECONDS),
        SECONDS,
        iter(SECONDS),
        np.array(NANOSECONDS),
        np.array(NANOSECONDS, np.uint64),
        np.array(SECONDS, np.float32),
        np.array([0, 250, 1500], "datetime64[ms]"),
        np.array([0, 250, 1500], "timedelta64[ms]"),
        DATES,
        [date.replace(tzinfo=None) for date in DATES],
        pd.Series(SECONDS),
        pd.Series(NANOSECONDS),
        pd.Series(DATES),
        pd.Series(DATES).dt.tz_convert("Asia/Tokyo"),
        pd.DatetimeIndex(DATES),
        pl.Series(NANOSECONDS),
        pl.Series(DATES),
        pa.array(NANOSECONDS),
        pa.chunked_array([NANOSECONDS[:1], NANOSECONDS[1:]]),
        pa.array(DATES),
    ],
    ids=lambda times: f"{type(times).__module__}-{getattr(times, 'dtype', type(times).__name__)}",
)
def test_times_may_have_any_usual_type(times: Any) -> None:
    assert Trace(times).times.tolist() == NANOSECONDS


@pytest.mark.parametrize(
    ("seconds", "nanoseconds"),
    [
        ([1_700_000_000.25], [1_700_000_000_250_000_000]),
        ([0.1, 0.3], [100_000_000, 300_000_000]),
        (np.array([0.5, 1000], np.float16), [500_000_000, 10**12]),
        ([datetime.timedelta(seconds=1.5)], [1_500_000_000]),
    ],
)
def test_fractions_of_a_second_keep_their_precision(seconds: Any, nanoseconds: list[int]) -> None:
    assert Trace(seconds).times.tolist() == nanoseconds


TEXTS = ["grace", "ada", "grace", "注文"]


@pytest.mark.parametrize(
    "ids",
    [
        TEXTS,
        (id for id in TEXTS),
        [id.encode() for id in TEXTS],
        np.array(TEXTS),
        np.array(TEXTS)[::-1][::-1],
        np.array(TEXTS, object),
        np.array(TEXTS, np.dtypes.StringDType()),
        np.array(TEXTS).astype(">U9"),
        pd.Series(TEXTS),
        pd.Series(TEXTS, dtype="category"),
        pd.Categorical(TEXTS, categories=["unused", "ada", "注文", "grace"]),
        pl.Series(TEXTS),
        pl.Series(TEXTS, dtype=pl.Categorical),
        pa.array(TEXTS),
        pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
        pa.DictionaryArray.from_arrays([3, 1, 3, 2], ["unused", "ada", "注文", "grace"]),
    ],
    ids=lambda ids: f"{type(ids).__module__}-{type(ids).__name__}-{getattr(ids, 'dtype', '')}",
)
def test_ids_may_have_any_usual_type(ids: Any) -> None:
    trace = Trace([0, 1, 2, 3], ids)
    assert trace.ids is not None
    assert trace.ids.tolist() == TEXTS
    assert sorted(trace.clients) == sorted(set(TEXTS))


def test_a_number_and_its_text_are_one_client() -> None:
    for ids in ([7, "7", 8], np.array([7, 7, 8]), pd.Series([7, "7", 8]), pd.Series([7, 7, 8])):
        trace = Trace([0, 1, 2], ids)
        assert list(trace.clients) == ["7", "8"]
        assert trace.codes is not None
        assert trace.codes.tolist() == [0, 0, 1]
    huge = np.array([2**64 - 1, 5], np.uint64)
    assert list(Trace([0, 1], huge).clients) == [str(2**64 - 1), "5"]


def test_a_trace_has_its_own_ids() -> None:
    trace = Trace((0.0, 0.1), ("ada", "ada"))
    assert simulate("2/minute", trace).allowed.tolist() == [True, True]
    with pytest.raises(TypeError, match="its own ids"):
        simulate("2/minute", trace, ["ada", "ada"])


def test_trace_without_events_is_valid() -> None:
    empties: list[Any] = [[], np.array([], np.int64), Trace([], [])]
    for empty in empties:
        simulation = simulate("2/minute", empty)
        assert len(simulation) == 0
        assert simulation.denied_share == 0
        assert simulation.summary().clients == 0
        assert simulation.remaining.tolist() == []
        assert len(simulation.by_client()) == 0
        assert "0" in repr(simulation)


ADDRESSES = penstock.Limits.parse("Calls: {burst: 2, count: 1, period: 1s, id: ipAddress}")


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "not go back, found 5 ns after 9 ns; .* at position 2", ([1, 9, 5],)),
        (ValueError, "found -1 at position 1", ([0, -1],)),
        (ValueError, "found nan at position 1", ([0.0, float("nan")],)),
        (ValueError, "found inf at position 1", ([0.0, float("inf")],)),
        (ValueError, "found NaT at position 1", (np.array([0, "NaT"], "M8[s]"),)),
        (ValueError, "1970 and 2262, found 2400-01-01", (np.array(["2400-01-01"], "M8[D]"),)),
        (ValueError, "1970 and 2262, found 2400", (pd.to_datetime(pd.Series([ZONED])),)),
        (ValueError, "1970 and 2262, found 2400", ([ZONED],)),
        (ValueError, "use float64", (np.array([1_795_168_800, 1_795_168_801], np.float32),)),
        (ValueError, r"found 9300000000.0 at position 0", ([9.3e9],)),
        (TypeError, "found an array of bool", ([True, False],)),
        (TypeError, "found an array of <U1; convert strings", (["a"],)),
        (TypeError, "found str 'a'.*convert strings", (pd.Series(["a"]),)),
        (TypeError, "found a table; pass its columns", (pd.DataFrame({"at": [0.0], "who": "a"}),)),
        (TypeError, "found a table; pass its columns", (pl.DataFrame({"at": [0.0], "who": "a"}),)),
        (TypeError, "found a table; pass its columns", (pa.table({"at": [0.0], "who": ["a"]}),)),
        (TypeError, "found str 'now'", ("now",)),
        (TypeError, "found int 5", (5,)),
        (TypeError, "found None; this is the time at position 1", ([0, None],)),
        (TypeError, "times must be a column .*, found None", (None,)),
        (TypeError, "costs must be .* found None at position 1", ([0, 1], None, [1, None])),
        (ValueError, r"ids must be as long as times, found 1 for 2", ([0, 1], ["a"])),
        (ValueError, r"costs must be as long as times, found 3 for 2", ([0, 1], None, [1, 2, 3])),
        (penstock.CostNegative, "found -2 at position 1", ([0, 1], None, [1, -2])),
        (penstock.CostTooHigh, "at most 2, .* found 3", ([0, 1], None, [1, 3])),
        (TypeError, "costs must be integers, found 1.5", ([0], None, [1.5])),
        (TypeError, "costs must be .* found an array of bool", ([0], None, [True])),
        (TypeError, "ids must be a column of ids", ([0], "ada")),
        (TypeError, "found an array of float64", ([0], np.array([1.5]))),
        (TypeError, "found an array of bool", ([0], np.array([True]))),
        (TypeError, "id must be a str.*found None", ([0], [None])),
        (TypeError, "missing, .* at position 1", ([0, 1], pd.Series(["a", None]))),
        (TypeError, "id must be a str.*found None", ([0, 1], pa.array(["a", None]))),
        (penstock.InvalidId, "empty", ([0, 1], ["a", ""])),
    ],
)
def test_invalid_traces_are_refused(
    error: type[Exception], message: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(error, match=message):
        simulate("2/second", *arguments)


def test_invalid_id_is_named_and_an_invalid_cost_has_a_note_with_its_event() -> None:
    with pytest.raises(penstock.InvalidId, match="not-an-address"):
        simulate(ADDRESSES, [0, 1, 2], ["192.0.2.1", "192.0.2.1", "not-an-address"])
    with pytest.raises(penstock.CostTooHigh) as caught_cost:
        simulate("2/second", [0, 1], costs=[2, 3])
    assert any("position 1" in note for note in caught_cost.value.__notes__)


def test_limit_must_be_unambiguous() -> None:
    with pytest.raises(penstock.UnknownLimit, match="Nothing"):
        simulate(LIMITS, [0], name="Nothing")
    with pytest.raises(ValueError, match="name"):
        simulate(LIMITS, [0])
    with pytest.raises(penstock.LimitError, match=r"Limits\.load"):
        simulate("limits.yaml", [0.0])
    with pytest.raises(penstock.LimitError, match="expected"):
        simulate("often", [0])
    per_key = penstock.Limit.fixed_window(count=1, period=1, anchor="aligned", phase="per-key")
    with pytest.raises(penstock.LimitError, match="name="):
        simulate(per_key, [0])
    assert simulate(per_key, [0, 1], name="Calls").allowed.tolist() == [True, False]


def test_spellings_of_one_address_are_one_bucket() -> None:
    ids = ["2001:DB8::1", "2001:db8:0::1", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"]
    simulation = simulate(ADDRESSES, range(5), ids)
    assert simulation.allowed.tolist() == [True, True, True, True, False]


def test_an_id_without_a_limit_is_always_allowed() -> None:
    simulation = simulate(LIMITS, [0, 0, 0], ["ada", "ada", "ada"], name="Only")
    assert simulation.allowed.all()
    assert simulation.remaining.tolist() == [2**63 - 1] * 3
    assert simulation.bucket("ada") is None


def test_parts_may_share_a_growing_table_or_have_their_own() -> None:
    shared = ["ada"]
    simulator = Simulator("1/minute")
    first = simulator.feed(Trace([0, 1], Codes(np.array([0, 0], np.uint32), shared)))
    shared.append("grace")
    second = simulator.feed(Trace([2, 3], Codes(np.array([1, 0], np.uint32), shared)))
    third = simulator.feed(Trace([4, 5, 6], ["alan", "grace", "alan"]))
    fourth = simulator.feed([7])
    found = [part.tolist() for part in (first, second, third, fourth)]
    assert found == [[True, False], [True, False], [True, False, False], [True]]
    assert repr(simulator) == "<Simulator: 8 events, 4 denied>"
    with pytest.raises(ValueError, match="found 3 ns after 7 ns"):
        simulator.feed([3])
    with pytest.raises(RuntimeError):
        simulator.feed([9])


def test_columns_and_traces_are_not_copied() -> None:
    times = np.arange(5)
    trace = Trace(times, np.array(["a", "b", "a", "b", "a"]))
    assert trace.times is times
    simulation = simulate("1/second", trace)
    assert simulation.allowed is simulation.allowed
    assert simulation.remaining.base is None
    strided = simulate("1/second", np.arange(10)[::2])
    assert strided.allowed.tolist() == [True, False, False, False, False]


def test_core_accepts_only_matching_arrays() -> None:
    core = penstock._core.Simulator(penstock.Limit.parse("1/second"))
    core.number(["ada"])
    times, allowed = np.arange(3), np.empty(3, np.uint8)
    core.feed(times, None, None, None, allowed)
    assert allowed.tolist() == [1, 0, 0]
    constant = allowed.copy()
    constant.flags.writeable = False
    with pytest.raises(TypeError, match="allowed"):
        core.feed(times, None, None, None, constant)
    with pytest.raises(ValueError, match="found 2 for 3"):
        core.feed(times, None, None, None, allowed[:2])
    with pytest.raises(TypeError, match="int64"):
        core.feed(times.astype(np.int32), None, None, None, allowed)
    with pytest.raises(TypeError, match="times"):
        core.feed(np.arange(6)[::2], None, None, None, allowed)
    with pytest.raises(ValueError, match="1"):
        core.feed(times + 3, np.ones(3, np.uint32), None, None, allowed)
    with pytest.raises(RuntimeError):
        core.feed(times + 9, None, None, None, allowed)


def test_feed_releases_the_interpreter_and_refuses_a_second_thread() -> None:
    core = penstock._core.Simulator(penstock.Limit.leaky_bucket(size=3, drip_rate=1))
    core.number(["ada"])
    times = np.arange(3_000_000)
    begun, met = threading.Event(), []

    def feed() -> None:
        begun.set()
        core.feed(times, None, None, None, np.empty(len(times), np.uint8))
        met.append("fed")

    thread = threading.Thread(target=feed)
    thread.start()
    begun.wait()
    while thread.is_alive():
        try:
            core.number([])
        except RuntimeError:
            met.append("refused")
            break
    thread.join()
    assert set(met) == {"refused", "fed"}


def test_a_signal_interrupts_a_simulation() -> None:
    times = np.zeros(20_000_000, np.int64)
    limit = penstock.Limit.fixed_window(count=1, period=1)
    with interrupted_after(0.01) as interrupted:
        for _ in range(1000):
            simulate(limit, times)
    assert interrupted


WHOLE = np.arange(5, dtype=np.int64) * 10**9
NANOSECOND_COLUMNS: dict[str, Any] = {
    "int64": WHOLE,
    "datetime64": WHOLE.view("M8[ns]"),
    "pandas": pd.Series(WHOLE),
    "pandas datetimes": pd.Series(WHOLE.view("M8[ns]")),
    "polars": pl.Series(WHOLE),
    "arrow": pa.array(WHOLE),
}


@pytest.mark.parametrize("given", NANOSECOND_COLUMNS.values(), ids=NANOSECOND_COLUMNS)
def test_times_of_the_right_type_are_not_copied(given: Any) -> None:
    assert np.shares_memory(np.asarray(given).view(np.int64), Trace(given).times)


def test_masked_values_are_refused() -> None:
    def masked(*values: Any, mask: bool = True) -> Any:
        return np.ma.masked_array(values, [False, mask])

    assert Trace(masked(1.0, 2.0, mask=False), masked("a", "b", mask=False)).clients == ["a", "b"]
    for times in (masked(1.0, 2.0), masked(1, 2)):
        with pytest.raises(ValueError, match=r"times.*position 1"):
            Trace(times)
    with pytest.raises(ValueError, match=r"costs.*position 1"):
        Trace([1.0, 2.0], costs=masked(1, 2))
    with pytest.raises(TypeError, match=r"ids.*position 1"):
        Trace([1.0, 2.0], masked(1, 2))


def test_of_accepts_any_spelling_of_an_id() -> None:
    trace = Trace([0.0, 1.0, 1.0], [7, 8, 7])
    assert len(trace.of(7)) == len(trace.of("7")) == len(trace.of(b"7")) == 2
    simulation = simulate("1/minute", trace)
    bucket = simulation.bucket(7)
    assert bucket is not None
    assert bucket.id == "7"
    with pytest.raises(KeyError, match="9"):
        simulation.plot(9)
    with pytest.raises(KeyError, match="9"):
        trace.of(9)
