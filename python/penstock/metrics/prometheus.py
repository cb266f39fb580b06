"""A limiter's counts for Prometheus."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from penstock._extras import Extra
from penstock.errors import ConfigError
from penstock.metrics.collector import HISTOGRAMS, Reader, checked_namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector, CollectorRegistry

    from penstock.metrics.collector import (
        Histogram,
        Labels,
        LoadsOverrides,
        Metric,
        Snapshot,
        Source,
    )
    from penstock.metrics.processes import ProcessValues
else:
    # The module can be imported without Prometheus, and type checkers accept the collector.
    Collector = object

__all__ = ["PrometheusCollector"]


class PrometheusCollector(Collector):
    """Prometheus collector that reads a limiter's counts on each scrape.

    Args:
        limiter: A limiter, a guard (which also counts degraded answers and requests refused with
            400), or a dict of names to them: each sample then has the label `limiter`.
        registry: The registry to register with. The default is `prometheus_client.REGISTRY`, which
            is what its servers publish.
        namespace: Prefix of the metrics' names.
        max_limits: The number of limits with their own label, the first that are seen; the rest
            share `limit="other"`.
        top_denied: The number of ids with the most denials to publish **as labels**: ids can be
            personal data, and each scrape can add new ones. 0 for none.
        refreshers: Refreshers that load the overrides of the limiters, for their metrics.

    Raises:
        ImportError: prometheus-client is not installed.
        ConfigError: An option is invalid, or the registry has a collector of this namespace.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> from penstock.metrics import PrometheusCollector
        >>> limiter = penstock.Limiter({"Orders": "2/minute"})
        >>> registry = CollectorRegistry()
        >>> collector = PrometheusCollector(limiter, registry=registry)
        >>> limiter.spend("Orders", "ada").allowed
        True
        >>> labels = {"limit": "Orders", "outcome": "allowed"}
        >>> registry.get_sample_value("penstock_decisions_total", labels)
        1
    """

    def __init__(
        self,
        limiter: Source | Mapping[str, Source],
        *,
        registry: CollectorRegistry | None = None,
        namespace: str = "penstock",
        max_limits: int = 200,
        top_denied: int = 0,
        refreshers: Iterable[LoadsOverrides] = (),
    ) -> None:
        with Extra("prometheus"):
            from prometheus_client import REGISTRY, core, values  # noqa: PLC0415  optional
        self._families: Final = core
        self._namespace: Final = checked_namespace(namespace)
        self._reader: Final = Reader(limiter, max_limits, top_denied, refreshers)
        # Whether the library shares the values of processes, which it decides when it is imported.
        self._is_shared: Final = values.ValueClass is not values.MutexValue
        self._processes: Final = self._share_values(top_denied) if self._is_shared else None
        try:
            (REGISTRY if registry is None else registry).register(self)
        except ValueError as error:
            raise ConfigError(
                f"the registry has {namespace} metrics already; pass a dict of all limiters to one "
                f"collector, or registry=CollectorRegistry() for each application"
            ) from error

    def _share_values(self, top_denied: int) -> ProcessValues:
        if top_denied:
            # Each id would stay in a file for as long as the server runs.
            raise ConfigError("top_denied cannot be published if PROMETHEUS_MULTIPROC_DIR is set")
        from penstock.metrics.processes import ProcessValues  # noqa: PLC0415  optional

        modes = {
            self._family(metric).name: self._reader.of_processes(metric)
            for metric in self._reader.metrics
        }
        return ProcessValues(self._read, modes)

    def describe(self) -> Iterator[Family]:
        """Yield the metrics without samples, which reads no counts."""
        for metric in self._reader.metrics:
            yield self._family(metric)
        for histogram in HISTOGRAMS:
            yield self._histogram(histogram, [])

    def collect(self) -> Iterator[Family]:
        """Yield the metrics with their current values, of all processes if these share them."""
        yield from self._read() if self._processes is None else self._processes.sums()

    def _read(self) -> Iterator[Family]:
        snapshots = self._reader.snapshots()
        for metric in self._reader.metrics:
            family = self._family(metric)
            for labels, value in self._reader.values(metric, snapshots).items():
                family.add_metric(labels, value)
            yield family
        for histogram in HISTOGRAMS:
            yield self._histogram(histogram, snapshots)

    def _family(self, metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
        name, labels = f"{self._namespace}_{metric.name}", self._reader.labels(metric)
        if metric.kind != "counter":
            return self._families.GaugeMetricFamily(name, metric.description, labels=labels)
        if self._is_shared and self._reader.of_processes(metric) != "sum":
            # The library can only add the counters of processes.
            name += "_total"
            return self._families.GaugeMetricFamily(name, metric.description, labels=labels)
        return self._families.CounterMetricFamily(name, metric.description, labels=labels)

    def _histogram(
        self, histogram: Histogram, snapshots: Iterable[tuple[Labels, Snapshot]]
    ) -> Family:
        family = self._families.HistogramMetricFamily(
            f"{self._namespace}_{histogram.name}",
            histogram.description,
            labels=self._reader.labels(histogram),
        )
        for labels, times in self._reader.times(histogram, snapshots).items():
            bounds = (*(str(bound / 1e9) for bound in times["at_most_ns"]), "+Inf")
            buckets = list(zip(bounds, accumulate(times["calls"]), strict=True))
            family.add_metric(labels, buckets, times["total_ns"] / 1e9)
        return family
