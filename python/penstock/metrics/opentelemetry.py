"""A limiter's counts for OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._core import __version__
from penstock._extras import Extra
from penstock.metrics.collector import SAMPLES, Reader, checked_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.metrics import CallbackOptions, Meter, Observation

    from penstock.metrics.collector import LoadsOverrides, Metric, Source

__all__ = ["instrument"]


def instrument(
    limiter: Source | Mapping[str, Source],
    meter: Meter | None = None,
    *,
    namespace: str = "penstock",
    max_limits: int = 200,
    top_denied: int = 0,
    refreshers: Iterable[LoadsOverrides] = (),
) -> None:
    """Create OpenTelemetry instruments that read a limiter's counts on collection.

    No thread is started. A meter keeps its instruments and the limiter alive, so call this only
    once per limiter.

    Args:
        limiter: As in `PrometheusCollector`.
        meter: The meter that creates the instruments; by default from the global provider.
        namespace: Prefix of the instruments' names.
        max_limits: As in `PrometheusCollector`.
        top_denied: As in `PrometheusCollector`, but as attributes.
        refreshers: As in `PrometheusCollector`.

    Raises:
        ImportError: opentelemetry-api is not installed.
        ConfigError: An option is invalid.
    """
    with Extra("opentelemetry"):
        from opentelemetry import metrics  # noqa: PLC0415  optional
    checked_namespace(namespace)
    if meter is None:
        meter = metrics.get_meter("penstock", __version__)
    makers = {
        "counter": meter.create_observable_counter,
        "sum": meter.create_observable_up_down_counter,
        "gauge": meter.create_observable_gauge,
    }
    reader = Reader(limiter, max_limits, top_denied, refreshers)
    for metric in (*reader.metrics, *SAMPLES):
        make = makers[metric.kind]
        make(
            f"{namespace}.{metric.name}",
            callbacks=[_observer(reader, metric, metrics.Observation)],
            unit=metric.unit,
            description=metric.description,
        )


def _observer(
    reader: Reader, metric: Metric, observation: type[Observation]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    names = reader.labels(metric)

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        values = reader.values(metric, reader.snapshots())
        return [
            observation(value, dict(zip(names, labels, strict=True)))
            for labels, value in values.items()
        ]

    return observe
