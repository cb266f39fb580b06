"""The table of all metrics, and how their values are read from a limiter.

Prometheus metrics and OpenTelemetry instruments are created from this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from penstock._core import Limiter
from penstock._locks import fork_safe
from penstock._validation import is_whole
from penstock.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from penstock.types import Counts, Latencies


Labels: TypeAlias = tuple[str, ...]
"""The values of labels, or their names."""


class HasLimiter(Protocol):
    """An object with a limiter and counts of its own: a `Guard`."""

    @property
    def limiter(self) -> Limiter:
        """The limiter."""

    def incidents(self) -> dict[str, dict[str, int]]:
        """Return the counts that the limiter does not have, by kind and limit name."""


class LoadsOverrides(Protocol):
    """An object that loads the overrides of a limiter: a `Refresher`."""

    @property
    def limiter(self) -> Limiter:
        """The limiter."""

    @property
    def failures(self) -> int:
        """The number of failed loads."""

    @property
    def skipped_rows(self) -> int:
        """The number of rows that the last successful load skipped."""

    @property
    def loaded_at(self) -> float | None:
        """The time of the last successful load in Unix seconds; `None` before it."""


Source: TypeAlias = Limiter | HasLimiter
"""A limiter, or a guard, which has additional counts."""

_OTHER: Final = "other"
_Outcome: TypeAlias = Literal["allowed", "denied", "shadow_denied"]
_OUTCOMES: Final[tuple[_Outcome, ...]] = ("allowed", "denied", "shadow_denied")


class Snapshot:
    """The values of one source at one time, each read on first access."""

    def __init__(
        self, source: Source, top_denied: int, refresher: LoadsOverrides | None = None
    ) -> None:
        limiter, self.refresher = _limiter_of(source), refresher
        self.counts = cache(limiter.counts)
        self.override_counts = cache(limiter.limits.override_counts)
        self.stats = cache(partial(_stats, limiter))
        # A guard's own counts, by kind and limit name.
        self.incidents = cache(dict if isinstance(source, Limiter) else source.incidents)
        self.top_denied = cache(partial(limiter.top_denied, None, top_denied))


def _stats(limiter: Limiter) -> Mapping[str, Any]:
    try:
        return limiter.stats()
    except StoreError:
        # The limiter's own counts are still reported.
        return {}


_Read: TypeAlias = Callable[[Snapshot], Iterable[tuple[Labels, float]]]


def _decided(verb: Literal["spends", "checks"]) -> _Read:
    return lambda snapshot: (
        ((limit, outcome), counts[verb][outcome])
        for limit, counts in snapshot.counts().items()
        for outcome in _OUTCOMES
    )


def _by_limit(number: Callable[[Counts], float]) -> _Read:
    return lambda snapshot: (
        ((limit,), number(counts)) for limit, counts in snapshot.counts().items()
    )


def _incident(kind: Literal["degraded", "bad_requests", "near_limit"]) -> _Read:
    def read(snapshot: Snapshot) -> Iterable[tuple[Labels, float]]:
        numbers = snapshot.incidents().get(kind)
        if numbers is None:
            return ()
        # Also those that are 0: Prometheus sees no increase if a counter begins above it.
        return (((limit,), numbers.get(limit, 0)) for limit in {**snapshot.counts(), **numbers})

    return read


def _of_store(
    figure: Literal[
        "buckets",
        "bytes",
        "evicted",
        "shared",
        "refused",
        "recovered_locks",
        "failing",
        "failures",
        "denied_locally",
        "healed",
    ],
) -> _Read:
    def read(snapshot: Snapshot) -> list[tuple[Labels, float]]:
        value = snapshot.stats().get(figure)
        # `None`: the store cannot count them.
        return [] if value is None else [((), value)]

    return read


def _of_refresher(figure: Literal["failures", "skipped_rows", "loaded_at"]) -> _Read:
    def read(snapshot: Snapshot) -> list[tuple[Labels, float]]:
        value = getattr(snapshot.refresher, figure, None)
        return [] if value is None else [((), value)]

    return read


@dataclass(frozen=True)
class Metric:
    """One metric: its name, labels and description, and how its values are read.

    `of_processes` says how the values of several processes become one. Those of a `table` are the
    same in all processes if they share the table, and are added otherwise.
    """

    name: str
    labels: Labels
    description: str
    read: _Read
    unit: str
    kind: Literal["counter", "sum", "gauge"] = "counter"
    of_processes: Literal["sum", "max", "min", "table"] = "sum"


_BY_LIMIT: Final = ("limit",)
_BY_OUTCOME: Final = ("limit", "outcome")

_METRICS: Final = (
    Metric("decisions", _BY_OUTCOME, "Spends decided.", _decided("spends"), "{decision}"),
    Metric("checks", _BY_OUTCOME, "Checks answered.", _decided("checks"), "{check}"),
    Metric(
        "refunds", _BY_LIMIT, "Refunds.", _by_limit(lambda counts: counts["refunds"]), "{refund}"
    ),
    Metric(
        "store_errors",
        _BY_LIMIT,
        "Calls that the store did not answer.",
        _by_limit(lambda counts: counts["store_errors"]),
        "{error}",
    ),
    Metric(
        "slots_held",
        _BY_LIMIT,
        "Slots for requests in flight that this process holds.",
        _by_limit(lambda counts: counts["held"]),
        "{slot}",
        "gauge",
    ),
    Metric(
        "slots_expired",
        _BY_LIMIT,
        "Slots that had expired when they were given back.",
        _by_limit(lambda counts: counts["expired"]),
        "{slot}",
    ),
    Metric(
        "slots_renewed_late",
        _BY_LIMIT,
        "Slots that had expired when they were renewed, so for a while they were not counted.",
        _by_limit(lambda counts: counts["renewed_late"]),
        "{slot}",
    ),
    Metric(
        "degraded_answers",
        _BY_LIMIT,
        "Requests decided by a policy because the store failed.",
        _incident("degraded"),
        "{answer}",
    ),
    Metric(
        "bad_requests",
        _BY_LIMIT,
        "Requests refused because of a malformed id or cost.",
        _incident("bad_requests"),
        "{request}",
    ),
    Metric(
        "near_limit",
        _BY_LIMIT,
        "Decisions that used at least the share near_limit of a quota.",
        _incident("near_limit"),
        "{decision}",
    ),
    Metric(
        "evicted_buckets",
        (),
        "Buckets evicted before they were drained, because the store was full.",
        _of_store("evicted"),
        "{bucket}",
        of_processes="table",
    ),
    Metric(
        "shared_bucket_calls",
        (),
        "Calls decided in a bucket that new ids share, because the store was full.",
        _of_store("shared"),
        "{call}",
        of_processes="table",
    ),
    Metric(
        "refused_calls",
        (),
        "Calls refused because the store was full.",
        _of_store("refused"),
        "{call}",
        of_processes="table",
    ),
    Metric(
        "recovered_locks",
        (),
        "Locks of killed processes that were recovered.",
        _of_store("recovered_locks"),
        "{lock}",
        of_processes="table",
    ),
    Metric(
        "buckets", (), "Buckets in the store.", _of_store("buckets"), "{bucket}", "sum", "table"
    ),
    Metric(
        "store_bytes", (), "Memory used by the store.", _of_store("bytes"), "By", "sum", "table"
    ),
    Metric(
        "store_failing",
        (),
        "Whether calls fail at once because the server did not answer the last ones.",
        _of_store("failing"),
        "1",
        "gauge",
        "max",
    ),
    Metric(
        "store_failures",
        (),
        "How often calls began to fail at once because the server did not answer.",
        _of_store("failures"),
        "{failure}",
    ),
    Metric(
        "denied_locally",
        (),
        "Calls denied without asking the server, which had just denied the same client.",
        _of_store("denied_locally"),
        "{decision}",
    ),
    Metric(
        "healed_buckets",
        (),
        "Values found at the keys of buckets that are no buckets.",
        _of_store("healed"),
        "{bucket}",
    ),
    Metric(
        "overrides",
        _BY_LIMIT,
        "Active overrides.",
        lambda snapshot: (((limit,), n) for limit, n in snapshot.override_counts().items()),
        "{override}",
        "sum",
        "max",
    ),
    Metric(
        "overrides_loaded_timestamp_seconds",
        (),
        "When the overrides were last loaded, in Unix seconds.",
        _of_refresher("loaded_at"),
        "s",
        "gauge",
        "min",
    ),
    Metric(
        "overrides_skipped_rows",
        (),
        "Rows that the last load of the overrides left out because they are invalid.",
        _of_refresher("skipped_rows"),
        "{row}",
        "gauge",
        "max",
    ),
    Metric(
        "overrides_load_failures",
        (),
        "Loads of the overrides that failed.",
        _of_refresher("failures"),
        "{failure}",
    ),
)
TOP_DENIED: Final = Metric(
    "top_denied",
    ("limit", "id"),
    "Denials of the ids with the most denials, estimated.",
    lambda snapshot: (((row["name"], row["id"]), row["denied"]) for row in snapshot.top_denied()),
    "{denial}",
    "gauge",
)


@dataclass(frozen=True)
class Histogram:
    """One histogram of times: its name, labels and description, and how it is read."""

    name: str
    labels: Labels
    description: str
    read: Callable[[Snapshot], Iterable[tuple[Labels, Latencies]]]


_DECISIONS: Final = Histogram(
    "decision_seconds",
    _BY_LIMIT,
    "Time per decision, sampled from about 1 call in 256.",
    lambda snapshot: (((limit,), counts["timed"]) for limit, counts in snapshot.counts().items()),
)
_STORE_CALLS: Final = Histogram(
    "store_call_seconds",
    ("call", "result"),
    "Time per call to a server, by what it asked and how it ended.",
    lambda snapshot: (
        ((call, result), times)
        for call, by_result in snapshot.stats().get("calls", {}).items()
        for result, times in by_result.items()
    ),
)
HISTOGRAMS: Final = (_DECISIONS, _STORE_CALLS)


def _as_counters(
    histogram: Histogram, number: tuple[str, str, str], time: tuple[str, str]
) -> tuple[Metric, Metric]:
    """Return the number of timed calls (name, description, unit) and their time, as counters."""

    def read_number(snapshot: Snapshot) -> Iterable[tuple[Labels, float]]:
        return ((labels, sum(times["calls"])) for labels, times in histogram.read(snapshot))

    def read_time(snapshot: Snapshot) -> Iterable[tuple[Labels, float]]:
        return ((labels, times["total_ns"] / 1e9) for labels, times in histogram.read(snapshot))

    return (
        Metric(number[0], histogram.labels, number[1], read_number, number[2]),
        Metric(time[0], histogram.labels, time[1], read_time, "s"),
    )


# OpenTelemetry has no observable histogram.
SAMPLES: Final = (
    *_as_counters(
        _DECISIONS,
        ("decision_samples", "Decisions that were timed.", "{decision}"),
        ("decision_sampled_time", "Total time of the timed decisions."),
    ),
    *_as_counters(
        _STORE_CALLS,
        ("store_calls", "Calls to a server, by what they asked and how they ended.", "{call}"),
        ("store_call_time", "Total time of the calls to a server."),
    ),
)


class Reader:
    """Reads several sources, and bounds the number of label values."""

    def __init__(
        self,
        sources: Source | Mapping[str, Source],
        max_limits: int,
        top_denied: int,
        refreshers: Iterable[LoadsOverrides],
    ) -> None:
        for option, number in (("max_limits", max_limits), ("top_denied", top_denied)):
            if not is_whole(number, 0, 2**63 - 1):
                raise ConfigError(f"{option} must be a whole number from 0, found {number!r}")
        self._sources: Final[dict[Labels, Source]] = (
            {(name,): _checked(source) for name, source in sources.items()}
            if isinstance(sources, Mapping)
            else {(): _checked(sources)}
        )
        self._max_limits: Final = max_limits
        self._top_denied: Final = top_denied
        limiters = {id(_limiter_of(source)) for source in self._sources.values()}
        # By limiter, which has no equality of its own.
        self._refreshers: Final = {id(refresher.limiter): refresher for refresher in refreshers}
        for key, refresher in self._refreshers.items():
            if key not in limiters:
                raise ConfigError(
                    f"refreshers: {refresher!r} loads the overrides of another limiter"
                )
        # The limits with their own label. They keep it, so that no counter jumps.
        self._named: Final[set[Labels]] = set()
        self._lock: Final = fork_safe(Lock())
        self.metrics: Final = (*_METRICS, *([TOP_DENIED] if top_denied else []))
        self._first_labels: Final = ("limiter",) if isinstance(sources, Mapping) else ()

    def labels(self, metric: Metric | Histogram) -> Labels:
        """Return the names of a metric's labels."""
        return self._first_labels + metric.labels

    def of_processes(self, metric: Metric) -> str:
        """Return how the values of a metric in several processes become one.

        Raises:
            ConfigError: Some processes share a table, and others have their own.
        """
        if metric.of_processes != "table":
            return metric.of_processes
        limiters = map(_limiter_of, self._sources.values())
        are_shared = {each.is_shared: each.store for each in limiters if not each.is_remote}
        if len(are_shared) > 1:
            raise ConfigError(
                f"a limiter with {are_shared[True]} and one with {are_shared[False]} cannot be in "
                "one collector if PROMETHEUS_MULTIPROC_DIR is set; give one of them a collector "
                "and a namespace"
            )
        return "max" if True in are_shared else "sum"

    def snapshots(self) -> list[tuple[Labels, Snapshot]]:
        """Return a snapshot of each source, with the values of its first labels."""
        return [
            (
                first,
                Snapshot(source, self._top_denied, self._refreshers.get(id(_limiter_of(source)))),
            )
            for first, source in self._sources.items()
        ]

    def values(
        self, metric: Metric, snapshots: Iterable[tuple[Labels, Snapshot]]
    ) -> dict[Labels, float]:
        """Return the values of one metric by the values of its labels."""
        values: dict[Labels, float] = {}
        for first, snapshot in snapshots:
            for own, value in metric.read(snapshot):
                labels = self._bounded(metric, first, own)
                values[labels] = values.get(labels, 0) + value
        return values

    def times(
        self, histogram: Histogram, snapshots: Iterable[tuple[Labels, Snapshot]]
    ) -> dict[Labels, Latencies]:
        """Return the times of one histogram by the values of its labels."""
        sums: dict[Labels, Latencies] = {}
        for first, snapshot in snapshots:
            for own, times in histogram.read(snapshot):
                labels = self._bounded(histogram, first, own)
                sums[labels] = _sum(sums[labels], times) if labels in sums else times
        return sums

    def _bounded(self, metric: Metric | Histogram, first: Labels, own: Labels) -> Labels:
        if metric.labels[:1] != _BY_LIMIT:
            return first + own
        return (*first, self._limit(first, own[0]), *own[1:])

    def _limit(self, first: Labels, name: str) -> str:
        """Return the label of a limit: its name, or `other`."""
        key = (*first, name)
        with self._lock:
            if key not in self._named:
                if len(self._named) >= self._max_limits:
                    return _OTHER
                self._named.add(key)
        return name


def _sum(first: Latencies, second: Latencies) -> Latencies:
    return {
        "at_most_ns": first["at_most_ns"],
        "calls": tuple(map(sum, zip(first["calls"], second["calls"], strict=True))),
        "total_ns": first["total_ns"] + second["total_ns"],
    }


def _limiter_of(source: Source) -> Limiter:
    return source if isinstance(source, Limiter) else source.limiter


def _checked(source: Source) -> Source:
    is_guard = callable(getattr(source, "incidents", None))
    if isinstance(source if not is_guard else getattr(source, "limiter", None), Limiter):
        return source
    raise ConfigError(
        f"expected a penstock.Limiter, a Guard, or a dict of names to them, found {source!r}"
    )


def checked_namespace(namespace: str) -> str:
    """Return `namespace` if it is a valid prefix of names, or raise `ConfigError`."""
    if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", namespace) is None:
        raise ConfigError(f"namespace must be letters, digits and _, found {namespace!r}")
    return namespace
