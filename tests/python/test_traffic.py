"""Synthetic traffic: reproducible, and with the given properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.simulate import Trace, traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SECOND = 1_000_000_000

MAKERS: list[Callable[[int], Trace]] = [
    lambda seed: traffic.poisson(50, "1m", clients=20, seed=seed),
    lambda seed: traffic.bursts(5, "10s", "1m", clients=20, seed=seed, within="1s"),
    lambda seed: traffic.diurnal(0.05, "24h", clients=20, seed=seed),
    lambda seed: traffic.attack(50, "1m", bots=7, seed=seed),
]


def columns(trace: Trace) -> tuple[list[int], list[str]]:
    assert trace.ids is not None
    return trace.times.tolist(), trace.ids.tolist()


def counts(trace: Trace) -> NDArray[np.intp]:
    assert trace.codes is not None
    return np.bincount(trace.codes)


@pytest.mark.parametrize("make", MAKERS)
def test_a_seed_determines_the_trace(make: Callable[[int], Trace]) -> None:
    one = make(1)
    assert columns(one) == columns(make(1))
    assert columns(one) != columns(make(2))
    assert one.is_sorted
    assert one.times[0] >= 0
    assert len(one) > 100


def test_average_rate_equals_the_argument() -> None:
    trace = traffic.poisson(1000, "100s", clients=50, seed=3)
    assert abs(len(trace) - 100_000) < 2000
    gaps = np.diff(trace.times) / SECOND
    assert abs(gaps.std() / gaps.mean() - 1) < 0.02
    assert trace.times[-1] < 100 * SECOND


def test_skew_makes_some_clients_more_active() -> None:
    skewed = counts(traffic.poisson(1000, "100s", clients=100, seed=3))
    assert 8 < skewed[0] / skewed[9] < 12
    even = counts(traffic.poisson(1000, "100s", clients=100, seed=3, skew=0))
    assert even.max() < 1.3 * even.min()


def test_bursts_repeat() -> None:
    trace = traffic.bursts(4, "10s", "1m", clients=2, start=100)
    for id in trace.clients:
        times = trace.of(id).times
        assert np.all(np.diff(times)[[0, 1, 2]] == 0)
        assert np.all(np.diff(times[::4]) == 10 * SECOND)
        assert 100 * SECOND <= times[0] < 110 * SECOND
        assert times[-1] < 160 * SECOND


def test_daily_traffic_peaks_at_the_given_hour() -> None:
    trace = traffic.diurnal(1, "48h", seed=5, peak="9h", swing=1.0)
    hours = np.bincount(trace.times // (3600 * SECOND) % 24, minlength=24)
    assert abs(int(hours.argmax()) - 9) <= 1
    assert hours[20:22].sum() < 0.05 * hours[8:10].sum()
    assert abs(len(trace) - 2 * 86_400) < 2000


def test_bots_send_at_steady_intervals() -> None:
    trace = traffic.attack(100, "60s", bots=5, start=10)
    assert len(trace) == 6000
    for id in trace.clients:
        gaps = np.diff(trace.of(id).times) / SECOND
        assert abs(gaps.mean() - 0.05) < 0.001
        assert gaps.std() < 0.01


def test_mix_keeps_all_events_and_their_ids() -> None:
    first = Trace([0.0, 2.0], ["ada", "grace"], [5, 6])
    second = Trace([1.0, 2.0], ["grace", "alan"])
    both = traffic.mix(first, second, Trace([3.0]), name="both")
    assert both.ids is not None
    assert both.costs is not None
    assert both.ids.tolist() == ["ada", "grace", "grace", "alan", "*"]
    assert both.costs.tolist() == [5, 1, 6, 1, 1]
    assert both.name == "both"
    assert len(traffic.mix()) == 0


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("rate must be at least 0", lambda: traffic.poisson(-1, "1s")),
        ("rate must be at least 0", lambda: traffic.poisson(float("nan"), "1s")),
        ("clients must be an integer", lambda: traffic.poisson(1, "1s", clients=0)),
        ("skew must be at least 0", lambda: traffic.poisson(1, "1s", skew=-1)),
        ("duration", lambda: traffic.poisson(1, "soon")),
        ("duration", lambda: traffic.poisson(1, 0)),
        ("size must be an integer", lambda: traffic.bursts(0, "1s", "1s")),
        ("swing must be between 0 and 1", lambda: traffic.diurnal(1, swing=2)),
        ("bots must be an integer", lambda: traffic.attack(1, "1s", bots=0)),
        ("maximum", lambda: traffic.poisson(1e9, "1h")),
    ],
)
def test_invalid_arguments_are_refused(message: str, make: Callable[[], Trace]) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_rate_zero_makes_no_events() -> None:
    assert len(traffic.poisson(0, "1m")) == 0
    assert len(traffic.attack(0, "1m")) == 0
