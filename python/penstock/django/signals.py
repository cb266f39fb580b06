"""Signals of the Django app."""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

limit_denied: Final = Signal()
"""Sent when a limit denies a request.

Arguments: `request`, `decision`, `outcome` and `shadow`; the sender is the view of the route, or
`None`. `shadow` is true if the request was served because the limits that denied it are in shadow
mode. Exceptions of receivers are logged.
"""
