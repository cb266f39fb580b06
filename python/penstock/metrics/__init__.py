"""What a limiter counts, for Prometheus and OpenTelemetry.

The core counts as it decides; nothing here runs until somebody reads. Neither library is imported
before it is asked for.
"""

from penstock.metrics.collector import HasLimiter, Source
from penstock.metrics.opentelemetry import instrument
from penstock.metrics.prometheus import PrometheusCollector

__all__ = ["HasLimiter", "PrometheusCollector", "Source", "instrument"]
