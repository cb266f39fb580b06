"""Pacing of outbound requests, for any HTTP client.

`Pace.steps` decides what happens to a request, without I/O: it yields steps and takes their
results. A transport takes the steps, in a thread or in a task.
"""

from penstock.outbound.steps import PaceOptions

__all__ = ["PaceOptions"]
