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


def columns(trace: Trace) -> tuple[list[int], list[str]]:
    assert trace.ids is not None
    return trace.times.tolist(), trace.ids.tolist()


def counts(trace: Trace) -> NDArray[np.intp]:
    assert trace.codes is not None
    return np.bincount(trace.codes)


def test_a_seed_determines_the_trace() -> None:
    one, same, other = (traffic.poisson(50, "1m", clients=20, seed=seed) for seed in (1, 1, 2))
    assert columns(one) == columns(same)
    assert columns(one) != columns(other)
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


def test_mix_keeps_durations_that_all_traces_have() -> None:
    first, second = Trace([0.0, 4.0], durations=[1.0, 2.0]), Trace([1.0], durations=[8.0])
    durations = traffic.mix(first, second).durations
    assert durations is not None
    assert durations.tolist() == [10**9, 8 * 10**9, 2 * 10**9]
    with pytest.raises(ValueError, match="durations, or none"):
        traffic.mix(first, Trace([3.0]))


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("rate must be at least 0", lambda: traffic.poisson(-1, "1s")),
        ("rate must be at least 0", lambda: traffic.poisson(float("nan"), "1s")),
        ("clients must be an integer", lambda: traffic.poisson(1, "1s", clients=0)),
        ("skew must be at least 0", lambda: traffic.poisson(1, "1s", skew=-1)),
        ("duration", lambda: traffic.poisson(1, "soon")),
        ("duration", lambda: traffic.poisson(1, 0)),
        ("maximum", lambda: traffic.poisson(1e9, "1h")),
    ],
)
def test_invalid_arguments_are_refused(message: str, make: Callable[[], Trace]) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_rate_zero_makes_no_events() -> None:
    assert len(traffic.poisson(0, "1m")) == 0
