"""The numbers that there are, by name and label, and how they are read from a limiter.

Every metric stands in one table, from which each way of telling it is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from penstock._core import Limiter
from penstock.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from penstock.types import Counts, DeniedBucket

__all__ = [
    "HOTTEST",
    "SAMPLES",
    "HasLimiter",
    "Labels",
    "Metric",
    "Reader",
    "Snapshot",
    "Source",
    "checked_namespace",
    "missing",
]

Labels: TypeAlias = tuple[str, ...]
"""The values of labels, or their names."""


class HasLimiter(Protocol):
    """What knows a limiter and counts what the limiter cannot: a `Guard`."""

    @property
    def limiter(self) -> Limiter:
        """The limiter."""

    def incidents(self) -> dict[str, dict[str, int]]:
        """Give what the limiter cannot count, by kind and limit name."""


Source: TypeAlias = Limiter | HasLimiter
"""What is measured: a limiter, or a guard, which has numbers of its own besides."""

_OTHER: Final = "other"
_OUTCOMES: Final[tuple[Literal["allowed", "denied", "shadow_denied"], ...]] = (
    "allowed",
    "denied",
    "shadow_denied",
)


class Snapshot:
    """The numbers of one source at one time, each asked for when it is first wanted."""

    def __init__(self, source: Source, hottest: int) -> None:
        self._guard: Final = None if isinstance(source, Limiter) else source
        self._limiter: Final = source if isinstance(source, Limiter) else source.limiter
        self._most_hottest: Final = hottest

    @cached_property
    def counts(self) -> Mapping[str, Counts]:
        """What was decided, by limit name."""
        return self._limiter.counts()

    @cached_property
    def stats(self) -> Mapping[str, float]:
        """The store's figures; none where the store does not answer."""
        try:
            return self._limiter.stats()
        except StoreError:
            # What the limiter itself has counted is told all the same.
            return {}

    @cached_property
    def incidents(self) -> Mapping[str, Mapping[str, int]]:
        """What a guard has counted, by kind and limit name."""
        return {} if self._guard is None else self._guard.incidents()

    @cached_property
    def hottest(self) -> Sequence[DeniedBucket]:
        """The buckets that are denied most."""
        return self._limiter.top_denied(None, self._most_hottest)


_Read: TypeAlias = Callable[[Snapshot], Iterable[tuple[Labels, float]]]


def _decided(verb: Literal["spends", "checks"]) -> _Read:
    return lambda snapshot: (
        ((limit, outcome), counts[verb][outcome])
        for limit, counts in snapshot.counts.items()
        for outcome in _OUTCOMES
    )


def _by_limit(number: Callable[[Counts], float]) -> _Read:
    return lambda snapshot: (
        ((limit,), number(counts)) for limit, counts in snapshot.counts.items()
    )


def _incident(kind: Literal["degraded", "bad_requests"]) -> _Read:
    return lambda snapshot: (
        ((limit,), number) for limit, number in snapshot.incidents.get(kind, {}).items()
    )


def _of_store(figure: Literal["buckets", "bytes", "evicted"]) -> _Read:
    return lambda snapshot: [((), snapshot.stats[figure])] if figure in snapshot.stats else []


@dataclass(frozen=True)
class Metric:
    """One metric: its name and labels, what it tells, and where its values come from."""

    name: str
    labels: Labels
    tells: str
    read: _Read
    unit: str
    kind: Literal["counter", "sum", "gauge"] = "counter"


_BY_LIMIT: Final = ("limit",)
_BY_OUTCOME: Final = ("limit", "outcome")

_METRICS: Final = (
    Metric(
        "decisions",
        _BY_OUTCOME,
        "Spends decided.",
        _decided("spends"),
        "{decision}",
    ),
    Metric(
        "checks",
        _BY_OUTCOME,
        "Checks answered.",
        _decided("checks"),
        "{check}",
    ),
    Metric(
        "refunds",
        _BY_LIMIT,
        "Refunds.",
        _by_limit(lambda counts: counts["refunds"]),
        "{refund}",
    ),
    Metric(
        "store_errors",
        _BY_LIMIT,
        "Calls that the store did not answer.",
        _by_limit(lambda counts: counts["store_errors"]),
        "{error}",
    ),
    Metric(
        "degraded_answers",
        _BY_LIMIT,
        "Answers that a policy gave because the store failed.",
        _incident("degraded"),
        "{answer}",
    ),
    Metric(
        "bad_requests",
        _BY_LIMIT,
        "Requests refused because they could not be measured.",
        _incident("bad_requests"),
        "{request}",
    ),
    Metric(
        "evicted_buckets",
        (),
        "Buckets dropped while they still mattered, for want of room.",
        _of_store("evicted"),
        "{bucket}",
    ),
    Metric(
        "buckets",
        (),
        "Buckets that the store keeps.",
        _of_store("buckets"),
        "{bucket}",
        kind="sum",
    ),
    Metric(
        "store_bytes",
        (),
        "Memory that the store takes.",
        _of_store("bytes"),
        "By",
        kind="sum",
    ),
)
HOTTEST: Final = Metric(
    "top_denied",
    ("limit", "id"),
    "Denials of the ids that are denied most, estimated.",
    lambda snapshot: (((hot["name"], hot["id"]), hot["denied"]) for hot in snapshot.hottest),
    "{denial}",
    kind="gauge",
)
# OpenTelemetry has no histogram that is only read, so it gets how many were timed and how long
# they took.
SAMPLES: Final = (
    Metric(
        "decision_samples",
        _BY_LIMIT,
        "Decisions that were timed.",
        _by_limit(lambda counts: sum(counts["timed"]["calls"])),
        "{decision}",
    ),
    Metric(
        "decision_sampled_time",
        _BY_LIMIT,
        "Time that the timed decisions took.",
        _by_limit(lambda counts: counts["timed"]["total_ns"] / 1e9),
        "s",
    ),
)


class Reader:
    """Reads some sources, and keeps the number of label values within bounds."""

    def __init__(
        self, given: Source | Mapping[str, Source], most_limits: int, hottest: int
    ) -> None:
        for option, number in (("most_limits", most_limits), ("hottest", hottest)):
            if not _is_whole(number):
                raise ConfigError(f"{option} must be a whole number from 0, found {number!r}")
        self._sources: Final[dict[Labels, Source]] = (
            {(name,): _checked(source) for name, source in given.items()}
            if isinstance(given, Mapping)
            else {(): _checked(given)}
        )
        self._most: Final = most_limits
        self._hottest: Final = hottest
        # The limits that are told by name. Who is in stays in, so that no number jumps.
        self._told: Final[set[Labels]] = set()
        self._lock: Final = Lock()
        self.metrics: Final = (*_METRICS, *([HOTTEST] if hottest else []))
        self._first_labels: Final = ("limiter",) if isinstance(given, Mapping) else ()

    def labels(self, metric: Metric) -> Labels:
        """Give the names of a metric's labels."""
        return self._first_labels + metric.labels

    def snapshots(self) -> list[tuple[Labels, Snapshot]]:
        """Give the numbers of each source, with the values of its first labels."""
        return [(first, Snapshot(source, self._hottest)) for first, source in self._sources.items()]

    def values(
        self, metric: Metric, snapshots: Iterable[tuple[Labels, Snapshot]]
    ) -> dict[Labels, float]:
        """Give the values of one metric by the values of its labels."""
        found: dict[Labels, float] = {}
        for first, snapshot in snapshots:
            for own, value in metric.read(snapshot):
                labels = (*first, self.limit(first, own[0]), *own[1:]) if own else first
                found[labels] = found.get(labels, 0) + value
        return found

    def limit(self, first: Labels, name: str) -> str:
        """Give the name under which a limit is told."""
        key = (*first, name)
        with self._lock:
            if key not in self._told:
                if len(self._told) >= self._most:
                    return _OTHER
                self._told.add(key)
        return name


def _is_whole(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


def _checked(source: Source) -> Source:
    if isinstance(source, Limiter) or _has_limiter(source):
        return source
    raise ConfigError(
        f"expected a penstock.Limiter, a Guard, or a dict of names to them, found {source!r}"
    )


def _has_limiter(source: object) -> bool:
    is_limiter = isinstance(getattr(source, "limiter", None), Limiter)
    return is_limiter and callable(getattr(source, "incidents", None))


def checked_namespace(namespace: str) -> str:
    """Give a namespace that any name may begin with, or raise `ConfigError`."""
    if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", namespace) is None:
        raise ConfigError(f"namespace must be letters, digits and _, found {namespace!r}")
    return namespace


def missing(package: str, extra: str) -> ImportError:
    """Give the error for a library that is not installed."""
    return ImportError(
        f"{package} is not installed; `pip install 'penstock[{extra}]'` would do", name=package
    )
