"""Draw the pictures of `docs/algorithms.md`, with the engine's own numbers.

`python docs/images/algorithms.py` writes them beside this file.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib.figure import Figure

import penstock
from penstock import Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

# Readable on a light and on a dark page.
BLUE, ORANGE, GRAY = "#4c8dd6", "#e08a3c", "#8a8f98"
STYLE: Final = {
    "axes.edgecolor": GRAY,
    "axes.labelcolor": GRAY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "text.color": GRAY,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
}
# At which tenth of a second a request comes.
REQUESTS: Final = (5, 7, 12, 14, 17, 20, 24, 40)


def draw_level(axes: Axes) -> None:
    """The tokens of a bucket, and the instant at which it is full again."""
    clock = penstock.ManualClock()
    burst = 4
    rate = Limit.parse(f"1/second, burst {burst}")
    limit = penstock.Limiter({"A": rate}, clock=clock).limit("A")
    times, tokens, denied = [], [], []
    for tenth in range(101):
        if tenth in REQUESTS and not limit.spend("ada"):
            denied.append(tenth / 10)
        times.append(tenth / 10)
        tokens.append(limit.peek("ada").remaining)
        clock.advance(0.1)
    axes.step(times, tokens, where="post", color=BLUE)
    axes.plot(denied, [0] * len(denied), "x", color=ORANGE, label="denied")
    full = next(
        time
        for time, level in zip(times, tokens, strict=True)
        if level == burst and time > REQUESTS[-1] / 10
    )
    axes.axvline(full, color=GRAY, linestyle=":")
    axes.annotate("full again: the state", (full, 2), (5, 0), textcoords="offset points")
    axes.set(xlabel="seconds", ylabel="tokens", yticks=range(burst + 1), xlim=(0, 10))
    axes.legend(frameon=False, loc="lower right")


def draw_burst(axes: Axes) -> None:
    """The requests admitted to a client that never stops asking."""
    for burst, color in ((100, ORANGE), (40, BLUE), (1, GRAY)):
        totals = list(admitted(Limit.parse(f"100/minute, burst {burst}"), range(601)))
        axes.plot([tenth / 10 for tenth in range(601)], totals, color=color)
        axes.annotate(f"burst {burst}", (61, totals[-1]), color=color, va="center")
    axes.set(xlabel="seconds", ylabel="requests admitted", xlim=(0, 78), ylim=(0, 210))


def draw_worst(axes: Axes) -> None:
    """The requests around the end of a window, of a client that comes late and then early."""
    limit = Limit.fixed_window(count=100, period="1m", anchor="aligned")
    totals = [0, *admitted(limit, range(590, 611))]
    each = [after - before for before, after in pairwise(totals)]
    axes.bar([tenth / 10 for tenth in range(590, 611)], each, width=0.08, color=ORANGE)
    axes.axvline(59.95, color=GRAY, linestyle=":")
    axes.annotate("the next window begins", (60.1, 80), (5, 0), textcoords="offset points")
    axes.set(xlabel="seconds", ylabel="requests admitted", xlim=(58.9, 61.1))


def admitted(limit: Limit, tenths: range) -> Iterator[int]:
    """Yield the requests admitted so far, of a client that asks as often as it can."""
    clock = penstock.ManualClock(start=tenths[0] / 10)
    bound = penstock.Limiter({"A": limit}, clock=clock).limit("A")
    total = 0
    for _ in tenths:
        while bound.spend("ada"):
            total += 1
        yield total
        clock.advance(0.1)


def draw(folder: Path) -> None:
    """Write the pictures into a folder."""
    with mpl.rc_context(STYLE):
        for name, paint in (("level", draw_level), ("burst", draw_burst), ("worst", draw_worst)):
            # As narrow as a phone, so that a browser hardly shrinks the text there.
            figure = Figure((4.8, 2.6), layout="constrained")
            figure.patch.set_alpha(0)
            axes = figure.add_subplot()
            axes.patch.set_alpha(0)
            paint(axes)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
