"""Pacing of outbound requests, for any HTTP client.

`Pace.steps` decides what happens to a request, without I/O: it yields steps and takes their
results. A transport takes the steps, in a thread or in a task.
"""

from penstock.outbound.steps import (
    Cooldowns,
    IdSource,
    Pace,
    StoreFailure,
    exhausted_ns,
    retry_after_ns,
)
from penstock.outbound.transport import AsyncPacedTransport, PacedTransport

__all__ = [
    "AsyncPacedTransport",
    "Cooldowns",
    "IdSource",
    "Pace",
    "PacedTransport",
    "StoreFailure",
    "exhausted_ns",
    "retry_after_ns",
]
