"""Clients that behave unlike the rest, such as scrapers and password guessers.

Source: the modified z-score, Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.errors import LimitError
from penstock.simulate.search import SHAPES, Family, Search

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock.simulate.trace import Trace


MIN_CLIENTS: Final = 5
"""Fewer clients are no crowd to compare with."""
# The clients that the limit of the rest is found with, and that the median is of.
_MAX_PEERS: Final = 2_000
# The share of clients that the limit of the rest may deny, because they may be unusual; of a few
# clients, a quarter.
_MAX_SHARE: Final = 0.1
_FEW: Final = 5
# How many times what the limit of the rest admits is unusual, for some lengths in periods. The
# longer it lasts, the less it can be a batch, or an office that opens.
_BRIEF: Final = ((1, 8.0), (10, 4.0))
_LASTING: Final = (60, 2.0)
# The same for requests in flight, of which an ordinary client has a few at once.
_BRIEFLY_HELD: Final = 8.0
_HELD: Final = 4.0
# Batches come again and again, with quiet periods between them, and may be larger.
_MIN_BATCHES: Final = 5
_QUIET: Final = 5
_TIMES_OF_BATCHES: Final = 3.0
# As recommended by the source.
_MIN_SCORE: Final = 3.5
# Makes the median absolute deviation comparable to a standard deviation.
_SCALE: Final = 1.4826
# A population without a spread has this one, on a scale of natural logarithms.
_MIN_SPREAD: Final = 0.3


class Unusual(NamedTuple):
    """How unlike the rest each client of a trace's table is; 0 if it is not.

    Attributes:
        brief: How many times what suffices for the rest it spends in one or ten periods, or holds
            at once.
        lasting: The same in sixty periods, or for fewer held at once.
    """

    brief: NDArray[np.float64]
    lasting: NDArray[np.float64]


def find_unusual(trace: Trace, family: Family) -> Unusual:
    """Find the clients that behave unlike the rest.

    A client is unusual if it spends several times what a limit admits that suffices for nine of ten
    clients, and far more than their median. How many times depends on the length of time: see
    `_BRIEF` and `_LASTING`. Batches that come again and again may be three times as large. Under a
    limit on requests in flight, `_HELD` is how many times as many at once are unusual.

    >>> from penstock.simulate import traffic
    >>> people = traffic.poisson(1, "1h", clients=50)
    >>> trace = traffic.mix(people, traffic.attack(5, "5m", bots=2))
    >>> found = find_unusual(trace, Family("token-bucket", 60 * 10**9, {})).brief
    >>> [id for id, times in zip(trace.clients, found) if times]
    ['bot-1', 'bot-2']
    """
    none = np.zeros(len(trace.clients))
    present = np.unique(trace.client_indices)
    if len(present) < MIN_CLIENTS:
        return Unusual(none, none)
    is_peer = np.zeros(len(none), np.bool_)
    # Every n-th one: the first clients of a log are the busy ones.
    is_peer[present[:: -(-len(present) // _MAX_PEERS)]] = True
    count = int(is_peer.sum())
    peers = trace if count == len(present) else trace[is_peer[trace.client_indices]]
    share = max(int(_MAX_SHARE * count), min(count // 4, _FEW)) / count
    has_periods, period_ns = SHAPES[family.algorithm].has_periods, family.period_ns
    sought = Family("token-bucket", period_ns, {}) if has_periods else family
    try:
        rest = Search(peers, share, "clients", sought).smallest()
    except LimitError:
        # No limit of this period suffices for the rest.
        return Unusual(none, none)

    def times_of(
        spend: Callable[[Trace], _Spent], admitted: float, times: float, quiet_ns: int = 0
    ) -> NDArray[np.float64]:
        """Return how many times what suffices for the rest each client spends, if it is unusual."""
        logs = np.log(np.maximum(spend(peers).peaks(len(none))[is_peer], 1))
        median = np.median(logs)
        spread = max(_SCALE * float(np.median(np.abs(logs - median))), _MIN_SPREAD)
        least = max(times * admitted, float(np.exp(median + _MIN_SCORE * spread)))
        # Only clients with that many tokens in all can have them in this time.
        is_busy = _tokens(trace) >= least
        if not is_busy.any():
            return none
        spent = spend(trace[is_busy[trace.client_indices]])
        found = spent.peaks(len(none)) / admitted
        is_found = found * admitted >= least
        if quiet_ns:
            batches = spent.occasions(least / 2, quiet_ns, len(none))
            is_found &= (batches < _MIN_BATCHES) | (found >= _TIMES_OF_BATCHES * times)
        return np.where(is_found, found, 0)

    if not has_periods:
        held = partial(times_of, _Spent.held, float(rest.count))
        return Unusual(held(_BRIEFLY_HELD), held(_HELD))

    def within(periods: int, times: float, quiet: int = 0) -> NDArray[np.float64]:
        width = min(periods * period_ns, max(trace.duration_ns, period_ns))
        admitted = rest.burst + rest.count * width / period_ns
        return times_of(partial(_Spent.of, width_ns=width), admitted, times, quiet * period_ns)

    brief = np.maximum(*(within(*each, _QUIET) for each in _BRIEF))
    return Unusual(brief, within(*_LASTING))


def _tokens(trace: Trace) -> NDArray[np.float64]:
    """Return the tokens of each client of the table."""
    costs = None if trace.costs is None else trace.costs.astype(np.float64)
    counts = np.bincount(trace.client_indices, costs, minlength=len(trace.clients))
    return counts.astype(np.float64)


class _Spent(NamedTuple):
    """The tokens that a client spent up to each event, within some time, or held at once.

    Attributes:
        clients: The client of each event, in ascending order.
        times: The time of each event, ascending for each client.
        tokens: The tokens that its client spent in that time, or held, up to the event.
    """

    clients: NDArray[np.int64]
    times: NDArray[np.int64]
    tokens: NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace, width_ns: int) -> _Spent:
        """Count the tokens of the events in any time of this length."""
        order = np.argsort(trace.client_indices, kind="stable")
        clients = trace.client_indices[order].astype(np.int64)
        times = trace.times[order] - trace.times[0]
        # One ascending key: clients one after another, more than a width apart.
        unit = (trace.duration_ns + width_ns + 1) * (int(clients[-1]) + 1) // 2**62 + 1
        width = -(-width_ns // unit)
        keys = clients * (trace.duration_ns // unit + width + 1) + times // unit
        first = np.searchsorted(keys, keys - width, side="right")
        if trace.costs is None:
            return cls(clients, times, np.arange(1, len(keys) + 1) - first)
        sums = np.concatenate([[0], np.cumsum(trace.costs[order])])
        return cls(clients, times, sums[1:] - sums[first])

    @classmethod
    def held(cls, trace: Trace) -> _Spent:
        """Count the slots that requests hold; the end of each request is an additional event."""
        tokens = np.ones(len(trace), np.int64) if trace.costs is None else trace.costs
        # A request without a length holds its slots at its start.
        durations = 0 if trace.durations is None else trace.durations.view(np.int64)
        times = np.concatenate([trace.times + np.maximum(durations, 1), trace.times])
        clients = np.tile(trace.client_indices, 2).astype(np.int64)
        # Slots that are returned at an instant can be taken at the same one.
        order = np.lexsort((times, clients))
        steps = np.concatenate([-tokens, tokens])[order]
        # Each client has returned all of its slots before the next one begins.
        return cls(clients[order], times[order], np.cumsum(steps))

    def peaks(self, clients: int) -> NDArray[np.int64]:
        """Return the most tokens of each client of a table of this length."""
        peaks = np.zeros(clients, np.int64)
        starts = np.flatnonzero(np.diff(self.clients, prepend=-1))
        peaks[self.clients[starts]] = np.maximum.reduceat(self.tokens, starts)
        return peaks

    def occasions(self, least: float, quiet_ns: int, clients: int) -> NDArray[np.int64]:
        """Return how often each client began to spend that many tokens, after a quiet time."""
        is_over = self.tokens >= least
        owners, times = self.clients[is_over], self.times[is_over]
        begins = (np.diff(owners, prepend=-1) > 0) | (np.diff(times, prepend=0) > quiet_ns)
        return np.bincount(owners[begins], minlength=clients)
