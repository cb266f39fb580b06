"""Figures and notebook output of simulations; test_report.py tests the page."""

from __future__ import annotations

import io
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import matplotlib as mpl
import numpy as np
import pytest
from colors import contrast, luminance
from core_limits import RATES
from hypothesis import given
from matplotlib import pyplot
from matplotlib.figure import Figure

from penstock import Limit
from penstock.simulate import Simulator, Trace, compare, recommend, simulate, traffic
from penstock.simulate.report import plot
from penstock.simulate.report.plot import draw_waits, new_figure

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 1_000_000_000
HOSTILE = "<script>alert(1)</script> $x^2$ \x1b[2J"
LIMIT = "10/minute"


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Ten minutes of people, and one bot."""
    return traffic.mix(
        traffic.poisson(1, "10m", clients=20, seed=1),
        traffic.poisson(3, "2m", clients=1, seed=2, prefix=HOSTILE, start=60.0),
        name=HOSTILE,
    )


times = st.lists(
    st.one_of(st.integers(0, 10**6), st.integers(0, 10**11), st.integers(0, 10**15)), max_size=60
).map(sorted)


@given(times, st.integers(1, 60))
def test_events_are_counted_in_bins_however_they_are_added(when: list[int], each: int) -> None:
    instants = np.array(when, np.int64)
    simulator, parts = Simulator("2/minute"), range(0, len(instants) + 1, each)
    allowed = [simulator.feed(Trace(instants[first : first + each], unit="ns")) for first in parts]
    bins = simulator.bins()
    assert len(bins.arrivals) <= 30
    assert len(bins.arrivals) != 1 or bins.width_ns == 10**9
    assert bins.start_ns % bins.width_ns == 0
    indices = (instants - bins.start_ns) // bins.width_ns
    for found, kept in ((bins.arrivals, slice(None)), (bins.denied, ~np.concatenate(allowed))):
        assert found.tolist() == np.bincount(indices[kept], minlength=len(found)).tolist()


def texts(figure: Figure) -> str:
    """Return all texts of a figure; its SVG must be well formed."""
    drawn = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg")
    return "\n".join(ET.fromstring(drawn.getvalue()).itertext())  # noqa: S314  drawn here


def test_plot_shows_the_limit_and_units(trace: Trace) -> None:
    figure = simulate({"Orders": LIMIT}, trace).plot()
    assert isinstance(figure, Figure)
    said = texts(figure)
    for words in ("Orders: 10 per minute", "events per 5 seconds", "time (minutes)", "tokens left"):
        assert words in said
    assert "allowed" in said
    assert "denied" in said


def test_plot_shows_an_id_literally(trace: Trace) -> None:
    said = texts(simulate(LIMIT, trace).plot(f"{HOSTILE}-1"))
    assert "Bucket of <script>alert(1)</script> $x^2$ \ufffd[2J-1" in said
    with pytest.raises(KeyError, match="unknown"):
        simulate(LIMIT, trace).plot("unknown")


def test_plot_opens_no_pyplot_figure(trace: Trace) -> None:
    before = pyplot.get_fignums()
    simulate(LIMIT, trace).plot()
    compare({"a": LIMIT}, trace).plot()
    assert pyplot.get_fignums() == before


def test_plot_into_axes_returns_them(trace: Trace) -> None:
    axes = Figure().subplots()
    assert simulate(LIMIT, trace).plot(ax=axes) is axes
    client = simulate(LIMIT, trace).by_client()["id"][-1]
    below = simulate(LIMIT, trace).plot(client, ax=Figure().subplots())
    assert client in below.get_title(loc="left")
    assert axes.get_title(loc="left") == "10 per minute"
    assert axes.get_ylabel() == "events per 5 seconds"


def test_plot_is_an_image_in_a_notebook(trace: Trace) -> None:
    assert simulate(LIMIT, trace).plot()._repr_png_().startswith(b"\x89PNG")


def points(figure: Figure) -> int:
    lines = [line.get_path() for axes in figure.axes for line in axes.lines]
    patches = [patch.get_path() for axes in figure.axes for patch in axes.patches]
    return sum(len(np.asarray(path.vertices)) for path in lines + patches)


def test_a_million_events_are_drawn_by_a_few_points() -> None:
    many = traffic.poisson(1_000, "1000s", clients=2, seed=1)
    assert len(many) > 990_000
    simulation = simulate("100/second", many)
    assert 100 < points(simulation.plot()) < 20_000


def test_timestamps_are_shown_as_dates_and_durations_as_seconds() -> None:
    dates = simulate(LIMIT, traffic.poisson(1, "1h", seed=1, start="2026-11-20T10:00"))
    assert "time (UTC), 2026-11-20" in texts(dates.plot())
    seconds = simulate(LIMIT, traffic.poisson(1, "20s", seed=1))
    assert "time (seconds)" in texts(seconds.plot())


@pytest.mark.parametrize("limit", [LIMIT, Limit.unlimited()])
def test_trace_without_events_or_limit_is_plotted(limit: Any, trace: Trace) -> None:
    for events in (Trace([]), Trace([0.0]), trace):
        simulation = simulate(limit, events)
        texts(simulation.plot())


@pytest.mark.parametrize(
    "limit", [limit for name, limit in RATES.items() if name != "token-bucket"]
)
def test_title_names_the_algorithm_if_not_the_default(limit: Limit, trace: Trace) -> None:
    name = limit.algorithm.replace("-bucket", " bucket").replace("-window", " window")
    assert f"({name})" in texts(simulate(limit, trace).plot())


def test_comparison_is_a_heat_map_a_line_or_bars(trace: Trace) -> None:
    both = compare({"burst": [5, 10], "count": [5, 10, 20], "period": "1m"}, trace)
    (axes, _) = both.plot().axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("count (tokens per period)", "burst (tokens)")
    assert axes.images[0].get_array().shape == (2, 3)
    shares = np.array(both["denied_share"]).reshape(2, 3) * 100
    assert np.allclose(axes.images[0].get_array(), shares)
    (axes, _) = both.plot("longest_wait").axes
    assert axes.images[0].get_array().shape == (2, 3)
    one = compare({"burst": [5, 10], "count": 5, "period": "1m"}, trace)
    (axes,) = one.plot().axes
    assert axes.get_ylabel() == "denied (% of events)"
    listed = compare(["5/minute", "10/minute"], trace)
    (axes,) = listed.plot("clients_denied").axes
    assert len(axes.patches) == 2


def test_grid_over_three_parameters_cannot_be_plotted(trace: Trace) -> None:
    grid = {"burst": [5, 10], "count": [5, 10], "period": ["1m", "2m"]}
    table = compare(grid, trace)
    with pytest.raises(ValueError, match="burst, count, period"):
        table.plot()
    with pytest.raises(KeyError, match="speed"):
        table.plot("speed")


@pytest.mark.parametrize(
    "call",
    [
        lambda simulation: simulation.plot(),
        lambda simulation: simulation.report("out.html"),
        lambda simulation: compare({"a": LIMIT}, simulation.trace).plot(),
    ],
)
def test_missing_library_is_named_with_its_extra(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], Any]
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"matplotlib.*penstock\[notebook\]"):
        call(simulate(LIMIT, trace))


def pixels(figure: Any, color: str) -> Any:
    """Return which pixels of the drawn figure have a color, row by row from the top."""
    file = io.BytesIO()
    figure.savefig(file, format="rgba", dpi=100)
    width, height = (round(100 * inches) for inches in figure.get_size_inches())
    drawn = np.frombuffer(file.getvalue(), np.uint8).reshape(height, width, 4)
    wanted = [int(color[first : first + 2], 16) for first in (1, 3, 5)]
    return (np.abs(drawn[..., :3].astype(int) - wanted) <= 2).all(axis=-1)


def test_bars_are_stacked_from_the_axis() -> None:
    when = [0.0] * 5 + [0.5, 0.6, 0.7, 1.9, 2.0, 5.0]
    figure = simulate("2 per second, burst 4", when).plot(ax=Figure((9, 4)).subplots()).figure
    allowed, denied = (pixels(figure, color) for color in (plot.ALLOWED, plot.DENIED))
    # The first bar is the first second: five events are allowed, three denied.
    column = int(allowed.any(axis=0).argmax()) + 20
    below, above = np.flatnonzero(allowed[:, column]), np.flatnonzero(denied[:, column])
    assert len(below) / len(above) == pytest.approx(5 / 3, rel=0.05)
    assert below[0] - above[-1] <= 2
    # All bars stand on the axis.
    heights = allowed.sum(axis=0)
    bottoms = len(allowed) - 1 - allowed[::-1].argmax(axis=0)
    assert set(bottoms[heights > 10]) == {below[-1]}


def test_every_kind_of_plot_draws_its_denied_events(trace: Trace) -> None:
    dated = simulate(LIMIT, Trace(trace.times + 1_763_000_000_000_000_000, trace.ids, unit="ns"))
    for figure in (
        simulate(LIMIT, trace).plot(),
        dated.plot(),
        compare({"today": LIMIT, "proposal": "60/minute"}, trace).plot(),
        recommend(trace).plot(),
    ):
        assert pixels(figure, plot.DENIED).sum() > 20


def test_the_days_of_a_plot_are_those_of_its_events() -> None:
    day = traffic.poisson(0.01, "24h", clients=3)
    begin = np.datetime64("2026-11-16", "ns").astype(np.int64)
    dated = simulate("1/hour", Trace(day.times + begin, unit="ns"))
    figure = dated.plot()
    figure.canvas.draw()
    assert figure.axes[0].get_xlabel() == "time (UTC), 2026-11-16"
    assert figure.axes[0].xaxis.get_offset_text().get_text() == ""
    both = simulate("1/hour", Trace(day.times + begin + 3_600 * 10**9, unit="ns"))
    assert both.plot().axes[0].get_xlabel() == "time (UTC), 2026-11-16 to 2026-11-17"


def test_numbers_of_waits_have_room_on_a_phone() -> None:
    figure = new_figure(2, 4.4)
    axes = figure.subplots()
    draw_waits(axes, {"up to 1 second": 57_052})
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    shown = [box for box in boxes if box.width]
    assert len(shown) > 2
    for left, right in pairwise(shown):
        assert left.x1 + 4 < right.x0


def test_colors_differ_in_black_and_white() -> None:
    colors = (plot.ALLOWED, plot.DENIED, plot.LEVEL, plot.FULL)
    lights = {color: luminance(*bytes.fromhex(color[1:])) for color in colors}
    for light in lights.values():
        assert contrast(light, 1) >= 3
        assert contrast(light, 0) >= 3
    assert contrast(lights[plot.ALLOWED], lights[plot.DENIED]) >= 2


def test_every_figure_is_drawn_into_axes(trace: Trace) -> None:
    for drawn in (
        simulate(LIMIT, trace),
        compare({"today": LIMIT, HOSTILE: "20/minute, burst 60"}, trace),
        compare({"burst": [5, 10], "count": [5, 10], "period": "1m"}, trace),
        recommend(trace),
    ):
        axes = Figure().subplots()
        assert drawn.plot(ax=axes) is axes
        assert axes.get_xlabel()
        assert axes.get_ylabel() or len(axes.get_yticklabels()) == 2


def test_bars_of_a_comparison_name_each_with_its_share(trace: Trace) -> None:
    table = compare({"today": LIMIT, HOSTILE: "20/minute, burst 60"}, trace)
    said = texts(table.plot())
    shares = (f"{100 * share:.3g} %" for share in table["denied_share"])
    for words in ("today", "denied (% of events)", *shares):
        assert words in said


@pytest.mark.parametrize("limit", [None, Limit.fixed_window(count=1, period="1m")])
def test_plot_of_a_recommendation_marks_the_count_on_a_logarithmic_axis(
    trace: Trace, limit: Limit | None
) -> None:
    found = recommend(trace, limits=limit)
    (axes,) = found.plot().axes
    marked = next(line for line in axes.lines if "chosen" in str(line.get_label()))
    assert set(marked.get_xdata()) == {found.limit.fields()["count"]}
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "tokens in the busiest minute")
    far = next(line for line in axes.lines if "far" in str(line.get_label()))
    assert len(far.get_xdata()) == len(found.far()) == 1


def test_the_bucket_is_shown_over_the_hour_that_matters() -> None:
    calm = traffic.poisson(0.01, "24h", seed=1)
    storm = traffic.poisson(2, "10m", start=50_000.0)
    day = Trace(np.sort(np.concatenate([calm.times, storm.times])), unit="ns")
    (_, below) = simulate("10/minute", day).plot().axes
    (line, *_) = below.lines
    # So few events that each is seen, from the beginning of the attack.
    minutes, tokens = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert minutes[0] < 50_000 / 60 < minutes[-1] < minutes[0] + 6
    assert (tokens.max(), tokens.min()) == (10, 0)
    assert len(np.unique(tokens[minutes > 50_030 / 60])) > 1
    # As many events of the busiest hour if nothing is denied.
    (_, below) = simulate("1000/minute", day).plot().axes
    minutes = np.asarray(below.lines[0].get_xdata())
    assert minutes[0] < 50_000 / 60 < minutes[-1] < minutes[0] + 61


def test_an_axis_of_seconds_says_the_minute() -> None:
    times = np.datetime64("2026-11-20T10:05:30") + np.arange(20).astype("timedelta64[s]")
    for axes in simulate("10/minute", times).plot().axes:
        assert axes.get_xlabel() == "time (UTC), 2026-11-20 10:05"


def test_a_line_and_a_heat_map_are_readable_if_all_numbers_are_close() -> None:
    trace = traffic.poisson(10, "10m")
    grid = {"burst": [10, 20], "count": 10, "period": "1m"}
    (axes,) = compare(grid, trace).plot().axes
    assert axes.get_ylim()[1] > 1.05 * max(axes.lines[0].get_ydata())
    (axes, _) = compare(grid | {"count": [10, 11]}, trace).plot().axes
    assert {len(text.get_text().partition(".")[2]) for text in axes.texts} == {1}


def test_requests_in_flight_are_shown_with_the_limit_as_a_line() -> None:
    trace = Trace([0.0, 1.0, 2.0, 20.0], ["ada"] * 4, durations=[10.0, 10.0, 10.0, 1.0])
    figure = simulate(Limit.in_flight(2), trace).plot("ada")
    (_, below) = figure.axes
    line, limit, *_ = below.lines
    assert below.get_ylabel() == "requests in flight"
    assert below.get_title(loc="left") == "Requests in flight of ada"
    assert max(line.get_ydata()) == 2
    assert set(limit.get_ydata()) == {2}


def test_hours_are_labelled_at_multiples_of_six() -> None:
    day = traffic.poisson(0.01, "24h", clients=3)
    figure = simulate("1/hour", day).plot(ax=new_figure(3, 5).subplots()).figure
    figure.canvas.draw()
    ticks = figure.axes[0].get_xticks()
    assert set(np.diff(ticks)) <= {3, 6}
