"""A limiter's counts for Prometheus."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from penstock.extras import Extra
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
        ConfigError: An option is invalid.

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
            from prometheus_client import REGISTRY, core  # noqa: PLC0415  optional
        self._families: Final = core
        self._namespace: Final = checked_namespace(namespace)
        self._reader: Final = Reader(limiter, max_limits, top_denied, refreshers)
        (REGISTRY if registry is None else registry).register(self)

    def describe(self) -> Iterator[Family]:
        """Yield the metrics without samples, which reads no counts."""
        for metric in self._reader.metrics:
            yield self._family(metric)
        for histogram in HISTOGRAMS:
            yield self._histogram(histogram, [])

    def collect(self) -> Iterator[Family]:
        """Yield the metrics with their current values."""
        snapshots = self._reader.snapshots()
        for metric in self._reader.metrics:
            family = self._family(metric)
            for labels, value in self._reader.values(metric, snapshots).items():
                family.add_metric(labels, value)
            yield family
        for histogram in HISTOGRAMS:
            yield self._histogram(histogram, snapshots)

    def _family(self, metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
        kind = (
            self._families.CounterMetricFamily
            if metric.kind == "counter"
            else self._families.GaugeMetricFamily
        )
        name = f"{self._namespace}_{metric.name}"
        return kind(name, metric.description, labels=self._reader.labels(metric))

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
