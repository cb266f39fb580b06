"""A limiter's counts for OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._core import __version__
from penstock.metrics.collector import SAMPLES, Reader, checked_namespace, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.metrics import CallbackOptions, Meter, Observation

    from penstock.metrics.collector import Metric, Source

__all__ = ["instrument"]


def instrument(
    limiter: Source | Mapping[str, Source],
    meter: Meter | None = None,
    *,
    namespace: str = "penstock",
    most_limits: int = 200,
    hottest: int = 0,
) -> None:
    """Give a limiter's counts to OpenTelemetry, by instruments that are read when it collects.

    No thread is started. A meter keeps its instruments, and they the limiter, for as long as it
    lives: ask once for each limiter.

    Args:
        limiter: As `PrometheusCollector`.
        meter: Where the instruments are made; that of the global provider unless said.
        namespace: What the names of the instruments begin with.
        most_limits: As `PrometheusCollector`.
        hottest: As `PrometheusCollector`, and as attributes here.

    Raises:
        ImportError: opentelemetry-api is not installed.
        ConfigError: An option that cannot be.
    """
    try:
        from opentelemetry import metrics  # noqa: PLC0415  nobody else needs it
    except ImportError as error:
        raise missing("opentelemetry-api", "opentelemetry") from error
    checked_namespace(namespace)
    if meter is None:
        meter = metrics.get_meter("penstock", __version__)
    makers = {
        "counter": meter.create_observable_counter,
        "sum": meter.create_observable_up_down_counter,
        "gauge": meter.create_observable_gauge,
    }
    reader = Reader(limiter, most_limits, hottest)
    for metric in (*reader.metrics, *SAMPLES):
        make = makers[metric.kind]
        make(
            f"{namespace}.{metric.name}",
            callbacks=[_observer(reader, metric, metrics.Observation)],
            unit=metric.unit,
            description=metric.tells,
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
