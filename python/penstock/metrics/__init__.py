"""Metrics of a limiter for Prometheus and OpenTelemetry.

The core counts as it decides; nothing here runs until the metrics are read. Each library is
imported on first use.
"""

from penstock.metrics.collector import HasLimiter, Source
from penstock.metrics.opentelemetry import instrument
from penstock.metrics.prometheus import PrometheusCollector

__all__ = ["HasLimiter", "PrometheusCollector", "Source", "instrument"]
