"""From the table of overrides to the limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import close_old_connections
from django.utils.module_loading import import_string

from django_app.models import LimitOverride
from penstock.django import get_limiter

if TYPE_CHECKING:
    from collections.abc import Iterator


def rows() -> Iterator[dict[str, Any]]:
    """Give the overrides as a refresher reads them."""
    # It reads them in a thread of its own, for which no request begins and ends.
    close_old_connections()
    try:
        for override in LimitOverride.objects.order_by("pk"):
            yield {
                "name": override.name,
                "id": override.client,
                "limit": override.limit,
                "comment": override.comment,
                "enabled": override.enabled,
            }
    finally:
        close_old_connections()


def start() -> Any:
    """Read the table now and every half an hour; call it where the server starts (`wsgi.py`)."""
    refresher: Any = import_string("penstock.refresher.Refresher")
    # Without the database the shop opens all the same, with the limits of the file.
    return refresher(get_limiter(), rows, every="30m", on_first_error="retry").start()
