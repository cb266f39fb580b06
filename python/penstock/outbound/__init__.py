"""Pacing of calls to somebody else's service, for any HTTP client.

What is to be done about a request is a course of steps, made of nothing but the clock's time and
the answers to earlier steps. Who takes the steps decides whether a thread or a task waits.
"""

from penstock.outbound.steps import Cooldowns, IdSource, Pace, StoreFailure, retry_after_ns
from penstock.outbound.transport import AsyncPacedTransport, PacedTransport

__all__ = [
    "AsyncPacedTransport",
    "Cooldowns",
    "IdSource",
    "Pace",
    "PacedTransport",
    "StoreFailure",
    "retry_after_ns",
]
