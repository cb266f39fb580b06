"""Ten days of traffic whose clients are known: people, crowds that are welcome, and attackers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.simulate import Trace
from penstock.simulate.ids import Codes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DAY: Final = 86_400.0
NAMES: Final = "ABCDEFGHIJ"
"""The days; each is a function below."""


class Traffic:
    """Events of clients, whose ids begin with their kind."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self._times: list[NDArray[np.float64]] = []
        self._ids: list[str] = []

    def add(self, id: str, times: NDArray[np.float64]) -> None:
        """Add events of one client."""
        own = times[(times >= 0) & (times < DAY)]
        self._times.append(own)
        self._ids += [id] * len(own)

    def people(
        self,
        count: int = 3000,
        kind: str = "person",
        *,
        tail: float = 1.6,
        pages: float = 6,
        think: float = 20,
        sessions: float = 1.6,
        begin: Callable[[], float] | None = None,
        addresses: int = 0,
    ) -> None:
        """Add people, who read a heavy-tailed number of pages; behind a few addresses, if given."""
        for number in range(count):
            id = f"{kind}-{self.random.integers(addresses) if addresses else number}"
            for _ in range(1 + self.random.poisson(sessions - 1)):
                start = self.random.beta(3, 2) * DAY if begin is None else begin()
                read = int(min(pages * (self.random.pareto(tail) + 0.3), 400)) + 1
                self.add(id, start + np.cumsum(self.random.exponential(think, read) + 0.7))

    def steady(self, id: str, per_second: float, begin: float, seconds: float) -> None:
        """Add a program that sends at random, at a constant rate."""
        self.add(id, begin + self.random.random(int(per_second * seconds)) * seconds)

    def trace(self) -> Trace:
        """Return all events in the order of their times."""
        times = np.concatenate(self._times)
        order = np.argsort(times, kind="stable")
        return Trace(times[order], np.array(self._ids)[order])


def day(name: str) -> Trace:  # noqa: C901, PLR0912  one case for each day
    """Return one of the ten days."""
    made = Traffic(ord(name))
    random = made.random
    if name == "G":
        for number in range(100):
            minutes = np.arange(1440.0)[:, None] * 60 + random.random((1440, 1)) * 0.2
            made.add(f"person-{number}", np.sort((minutes + np.arange(6) * 0.05).ravel()))
        made.steady("bad-0", 15, 40_000, 1800)
        return made.trace()
    made.people(1000 if name == "J" else 3000, tail=1.05 if name == "I" else 1.6)
    match name:
        case "A":  # a slow scraper with many addresses
            for number in range(200):
                made.steady(f"bad-{number}", 1 / 20, 3600, 43_200)
        case "B":  # stolen passwords, tried from thousands of addresses
            for number in range(5000):
                made.steady(f"bad-{number}", 4 / 3600, 40_000, 3600)
        case "C":  # a greedy partner, and a copy that ran away
            made.steady("crowd-partner", 5, 30_000, 7200)
            made.steady("bad-0", 20, 50_000, 3600)
        case "D":  # a sale of tickets, for which people reload
            made.people(
                kind="person-buyer", pages=60, think=0.5, tail=3, sessions=1,
                begin=lambda: 36_000 + random.exponential(60),
            )  # fmt: skip
            for number in range(5):
                made.steady(f"bad-{number}", 10, 35_900, 600)
        case "E":  # an office behind one address, and scrapers
            made.people(
                300, "crowd-office", sessions=4, addresses=1,
                begin=lambda: 30_000 + random.random() * 30_000,
            )  # fmt: skip
            for number in range(3):
                made.steady(f"bad-{number}", 5, 20_000, 7200)
        case "F":  # carriers that share addresses, and scrapers that are as slow
            made.people(4000, "crowd-carrier", addresses=10)
            for number in range(20):
                made.steady(f"bad-{number}", 0.5, 20_000, 20_000)
        case "H":  # welcome crawlers, and a scraper
            for number in range(3):
                made.steady(f"crowd-crawler-{number}", 0.5, 0, DAY)
            made.steady("bad-0", 5, 20_000, 7200)
        case "I":  # a scraper among people with heavy tails
            made.steady("bad-0", 2, 20_000, 7200)
        case "J":  # as many bots as people
            for number in range(1000):
                made.steady(f"bad-{number}", 1, 20_000 + number, 600)
        case _:
            raise ValueError(name)
    return made.trace()


def twice(trace: Trace) -> Trace:
    """Return the same day, and once more on the next one."""
    times = np.concatenate([trace.times, trace.times + int(DAY) * 10**9])
    ids = Codes(np.tile(trace.client_indices, 2), trace.clients)
    return Trace(times, ids, unit="ns")


def share_denied(trace: Trace, allowed: NDArray[np.bool_], kind: str) -> float:
    """Return the share of the events of a kind of clients that is denied."""
    is_kind = np.array([id.startswith(kind) for id in trace.clients])[trace.client_indices]
    return float((~allowed & is_kind).sum() / max(is_kind.sum(), 1))
