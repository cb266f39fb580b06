"""Pacing of outbound requests, for any HTTP client.

`Pace.steps` decides what happens to a request, without I/O: it yields steps and takes their
results. A transport takes the steps, in a thread or in a task.
"""

from penstock.outbound.steps import (
    Cooldowns,
    IdSource,
    Messages,
    Pace,
    PaceOptions,
    StoreFailure,
    exhausted_ns,
    retry_after_ns,
)
from penstock.outbound.transport import (
    AsyncPacedTransport,
    PacedInTask,
    PacedInThread,
    PacedTransport,
)

__all__ = [
    "AsyncPacedTransport",
    "Cooldowns",
    "IdSource",
    "Messages",
    "Pace",
    "PaceOptions",
    "PacedInTask",
    "PacedInThread",
    "PacedTransport",
    "StoreFailure",
    "exhausted_ns",
    "retry_after_ns",
]
