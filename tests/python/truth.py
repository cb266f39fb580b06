"""Traffic of clients whose kind is known: people, offices, importers, crawlers and attackers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.simulate import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from penstock.simulate.recommend import Recommendation

DAY = 86_400.0


class Traffic:
    """Events of clients, whose ids begin with their kind."""

    def __init__(self, seed: int, *, is_whole_seconds: bool = True) -> None:
        self.random = np.random.default_rng(seed)
        self._is_whole = is_whole_seconds
        self._times: list[NDArray[np.float64]] = []
        self._ids: list[str] = []

    def add(self, kind: str, *times: Iterable[float]) -> None:
        """Add one client with events at these times."""
        own = np.concatenate([np.asarray(list(part), np.float64) for part in times])
        own = own[(own >= 0) & (own < DAY)]
        if len(own):
            number = sum(id.startswith(kind) for id in self._ids)
            self._ids.append(f"{kind}-{number}")
            self._times.append(own)

    def session(self, begin: float, pages: float, assets: int, think: float) -> NDArray[np.float64]:
        """Return the requests of a visit: pages, each with its assets within two seconds."""
        count = 1 + self.random.poisson(pages)
        starts = begin + np.cumsum(self.random.exponential(think, count))
        parts = [starts]
        parts += [
            start + self.random.uniform(0, 2, self.random.integers(0, assets + 1))
            for start in starts
        ]
        return np.concatenate(parts)

    def people(
        self,
        count: int,
        *,
        pages: float = 6,
        assets: int = 3,
        think: float = 25,
        spread: float = 0.8,
    ) -> None:
        """Add people, some of whom visit more often and stay longer than others."""
        for _ in range(count):
            keen = self.random.lognormal(0, spread)
            visits = 1 + self.random.poisson(0.5 * keen)
            begins = self.random.normal(14, 4, visits) * 3600
            self.add("person", *(self.session(at, pages * keen, assets, think) for at in begins))

    def office(self, people: int, *, pages: float = 6, assets: int = 3, visits: float = 2) -> None:
        """Add many people behind one address, during working hours."""
        sessions = []
        for _ in range(people):
            begins = self.random.uniform(8.5, 17.5, 1 + self.random.poisson(visits)) * 3600
            sessions += [self.session(at, pages, assets, 25) for at in begins]
        self.add("office", *sessions)

    def importer(self, size: int, every: float, jitter: float = 2) -> None:
        """Add a program that sends a batch at once, again and again."""
        begins = np.arange(self.random.uniform(0, every), DAY, every)
        self.add("importer", *(at + self.random.uniform(0, jitter, size) for at in begins))

    def steady(self, kind: str, per_second: float, begin: float, seconds: float) -> None:
        """Add a program that sends requests at random, at a constant rate."""
        count = self.random.poisson(per_second * seconds)
        self.add(kind, self.random.uniform(begin, begin + seconds, count))

    def storm(self, per_second: float, begin: float, seconds: float, background: int = 50) -> None:
        """Add a client that behaves like others until it retries without a pause."""
        count = int(per_second * seconds)
        self.add(
            "storm",
            self.random.uniform(0, DAY, background),
            begin + np.linspace(0, seconds, count),
        )

    def trace(self) -> Trace:
        """Return all events in the order of their times."""
        times = np.concatenate(self._times)
        codes = np.repeat(np.arange(len(self._ids)), [len(each) for each in self._times])
        if self._is_whole:
            times = np.floor(times)
        order = np.argsort(times, kind="stable")
        return Trace.from_codes(times[order], codes[order], self._ids)


def denied_shares(found: Recommendation, trace: Trace) -> dict[str, float]:
    """Return the share of the events of each client that a recommended limit denies."""
    from penstock.simulate import simulate  # noqa: PLC0415  imported by the tests, too

    rows = simulate(found.limit, trace).by_client().rows()
    return {row["id"]: row["denied_share"] for row in rows}
