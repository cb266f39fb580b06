"""Requests in flight: durations of a trace and of a log, compared with a direct count."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tables import json_lines

import penstock
from penstock.simulate import Simulator, Trace, simulate
from penstock.simulate.log import LogError, read_log

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Command, Write

SECOND = 1_000_000_000

Events = list[tuple[int, str, int]]
events: st.SearchStrategy[Events] = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["ada", "grace"]), st.integers(0, 9)), max_size=40
)


def columns(given: Events) -> tuple[list[int], list[str], list[int]]:
    """Return the times, ids and durations of requests, in seconds."""
    times = np.cumsum([wait for wait, *_ in given], dtype=np.int64).tolist()
    return times, [id for _, id, _ in given], [took for *_, took in given]


def trace_of(given: Events) -> Trace:
    times, ids, durations = columns(given)
    nanoseconds = np.array(times, np.int64) * SECOND
    return Trace(nanoseconds, ids, unit="ns", durations=durations)


def most_at_once(rows: list[tuple[int, int]]) -> int:
    """Return how many of the requests, each from its start until before its end, overlap at most.

    A request without a length overlaps those that run at its start.
    """
    return max(
        (
            1 + sum(begin <= start < end for begin, end in rows[:index])
            for index, (start, _) in enumerate(rows)
        ),
        default=0,
    )


@given(events, st.integers(0, 40))
def test_the_most_in_flight_equals_a_direct_count(given: Events, cut: int) -> None:
    trace = trace_of(given)
    found = simulate("6 per 10 seconds", trace)
    rows = [
        (id, (start, start + took))
        for start, id, took, allowed in zip(*columns(given), found.allowed.tolist(), strict=True)
        if allowed
    ]
    table = found.by_client()
    if given:
        assert found.summary().most_in_flight == most_at_once([row for _, row in rows])
        assert dict(zip(table["id"], table["most_in_flight"], strict=True)) == {
            id: most_at_once([row for owner, row in rows if owner == id]) for id in trace.clients
        }
    parts = Simulator("6 per 10 seconds")
    for part in (trace[:cut], trace[cut:]):
        parts.feed(part)
    assert parts.summary() == found.summary()
    assert parts.by_client().to_dict() == table.to_dict()


def test_totals_without_durations_have_no_requests_in_flight() -> None:
    found = simulate("1/second", [0.0, 0.1])
    assert found.summary().most_in_flight is None
    assert "most_in_flight" not in found.by_client().columns
    assert "in flight" not in str(found.summary())


def test_slots_that_are_not_renewed_any_more_come_back() -> None:
    limit = "1 in flight, lease 2s, max hold 10s"
    times, lasting = [0.0, 9.0, 15.0, 16.0], [1000.0, 1.0, 0.5, 1.0]
    found = simulate(limit, times, durations=lasting)
    assert found.allowed.tolist() == [True, False, True, True]
    # Within two leases.
    assert found.retry_after_ns[1] == 5_000_000_000


def test_durations_are_seconds_or_timedeltas() -> None:
    times = [0.0, 1.0]
    spans = [datetime.timedelta(milliseconds=each) for each in (1500, 250)]
    for durations in ([1.5, 0.25], np.array([1500, 250], "m8[ms]"), spans):
        trace = Trace(times, durations=durations)
        assert trace.durations is not None
        assert trace.durations.astype(np.int64).tolist() == [1_500_000_000, 250_000_000]
        assert simulate("9/second", times, durations=durations).summary().most_in_flight == 2
    with pytest.raises(ValueError, match="position 1"):
        Trace(times, durations=[1.0, -1.0])
    with pytest.raises(ValueError, match="position 0"):
        Trace(times, durations=[float("nan"), 1.0])
    with pytest.raises(ValueError, match="as long as times"):
        Trace(times, durations=[1.0])
    with pytest.raises(ValueError, match="146 years"):
        # In nanoseconds, these wrap around.
        Trace(times, durations=np.array([1, 10**5], "m8[W]"))
    with pytest.raises(TypeError, match="durations"):
        Trace(times, durations=["a", "b"])


def test_events_keep_their_durations_when_they_are_sorted() -> None:
    trace = Trace([2.0, 0.0, 1.0], durations=[1.0, 5.0, 3.0])
    found = simulate("9/second", trace.sorted())
    assert found.summary().most_in_flight == 3
    kept = trace.sorted().durations
    assert kept is not None
    assert (kept / np.timedelta64(1, "s")).tolist() == [5, 3, 1]


@given(events, st.integers(1, 3), st.integers(0, 40))
def test_a_slot_is_held_until_its_request_ends(given: Events, count: int, cut: int) -> None:
    # Most requests are longer than the lease, which their process renews.
    limits = {"Slots": penstock.Limit.in_flight(count, lease=2)}
    trace = trace_of(given)
    held: list[tuple[str, int]] = []
    expected = []
    for start, id, took in zip(*columns(given), strict=True):
        held = [holder for holder in held if holder[1] > start]
        expected.append(sum(owner == id for owner, _ in held) < count)
        held += [(id, start + took)] if expected[-1] else []
    assert simulate(limits, trace).allowed.tolist() == expected
    parts = Simulator(limits)
    fed = [parts.feed(part) for part in (trace[:cut], trace[cut:])]
    assert np.concatenate(fed).tolist() == expected
    assert (simulate(limits, trace).summary().most_in_flight or 0) <= count * len(trace.clients)


def test_a_limit_on_requests_in_flight_needs_durations() -> None:
    limit = penstock.Limit.in_flight(2)
    with pytest.raises(ValueError, match="durations="):
        simulate(limit, [0.0])


def test_a_limit_on_requests_in_flight_is_named_once() -> None:
    found = simulate({"Slots": penstock.Limit.in_flight(2)}, [0.0], durations=[1.0])
    assert found.evaluator.described[0] == "Slots: 2 in flight"


def access_log(*rows: tuple[str, int, object]) -> str:
    """Return a log of requests: the client, the second of each, and its duration."""
    line = '{} - - [20/Nov/2026:10:00:{:02} +0000] "GET / HTTP/1.1" 200 12 {}\n'
    return "".join(line.format(*row) for row in rows)


def test_a_log_has_durations_from_its_start_or_to_its_end(write: Write) -> None:
    rows = [("a", 0, "5.000"), ("a", 1, "-"), ("b", 4, "3.250"), ("a", 6, "0.001")]
    log = write("access.log", access_log(*rows))
    layout = '$remote_addr - - [$time_local] "$request" $status $body_bytes_sent $request_time'
    started = Trace.from_log(log, format=layout, duration="duration")
    assert started.durations is not None
    assert started.durations.astype(np.int64).tolist() == [5 * SECOND, 0, 3_250_000_000, 1_000_000]
    by_client = simulate("9/second", started).by_client()
    assert dict(zip(by_client["id"], by_client["most_in_flight"], strict=True)) == {"a": 2, "b": 1}
    ended = Trace.from_log(log, format=layout, duration="duration", ended=True)
    assert ((ended.times - started.times[0]) / SECOND).tolist() == [-5, 0.75, 1, 5.999]
    millis = Trace.from_log(log, format=layout, duration="duration", duration_unit="ms")
    assert millis.durations is not None
    assert millis.durations.astype(np.int64).tolist() == [5_000_000, 0, 3_250_000, 1_000]


def test_requests_longer_than_the_window_are_late(write: Write) -> None:
    rows = [f"{1_800_000_000 + second},192.0.2.1,0\n" for second in range(200)]
    rows.append("1800000200,192.0.2.1,100\n")
    log = write("access.jsonl", json_lines(f"time,ip,took_s\n{''.join(rows)}"))
    reader = read_log(log, duration="took_s", ended=True, window=5.0, chunk_events=10, max_bad=0.1)
    times = np.concatenate([chunk.times for chunk in reader])
    assert np.all(np.diff(times) >= 0)
    assert len(times) + reader.report.late == 201


@pytest.mark.parametrize("wrong", [{"ended": True}, {"duration": "took", "duration_unit": "h"}])
def test_wrong_options_of_durations_are_refused(write: Write, wrong: dict[str, Any]) -> None:
    log = write("access.log", access_log(("a", 0, "")))
    with pytest.raises(LogError, match="duration"):
        read_log(log, **wrong)


FORMAT = ("--format", '%h %l %u %t "%r" %>s %b %D')
DURATION = ("--duration", "duration", "--duration-unit", "us")


def test_replay_counts_requests_in_flight(command: Command, write: Write) -> None:
    log = write("access.log", access_log(*(("a", second, 2_500_000) for second in range(10))))
    replayed = ("replay", log, "--limit", "9/second", *FORMAT, *DURATION)
    (found,) = command.json_of(*replayed)["limits"]
    assert found["summary"]["most_in_flight"] == 3
    assert found["clients"][0]["most_in_flight"] == 3
    assert command.run(*replayed) == 0
    assert "most in flight    3" in command.out


def test_replay_recommends_slots(command: Command, write: Write, tmp_path: Path) -> None:
    log = write("access.log", access_log(*(("a", second, 11_500_000) for second in range(60))))
    written = tmp_path / "limits.yaml"
    sought = ("--limit", "3 in flight, lease 2m", "--recommend")
    replayed = ("replay", log, *sought, *FORMAT)
    assert command.run(*replayed, *DURATION, "--write", str(written)) == 0
    assert "12 in flight." in command.out
    found = penstock.Limits.load(written).resolve("Limit", "a")
    assert found == penstock.Limit.in_flight(12, lease="2m")
    recommended = command.json_of(*replayed, *DURATION)["recommendation"]
    assert recommended["limits"][recommended["chosen"] - 1]["fields"]["count"] == 12
    assert command.run(*replayed) == 2
    assert "--duration" in command.err
