"""The signals that penstock sends in Django."""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

__all__ = ["limit_denied"]

limit_denied: Final = Signal()
"""A limit has denied a request.

Sent with `request`, `decision`, `outcome` and `shadow`; the sender is the view, as the route
names it, or `None`. `shadow` is true where the request was served all the same, because only limits
that merely watch have denied. An exception in a receiver is logged and goes no further.
"""
