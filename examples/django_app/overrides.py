"""Loads the table of overrides into the limiter."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import close_old_connections

from django_app.models import LimitOverride
from penstock.django import get_limiter
from penstock.refresher import Refresher

if TYPE_CHECKING:
    from collections.abc import Iterator


def rows() -> Iterator[dict[str, Any]]:
    """Return the overrides as rows for a refresher."""
    # It runs in a separate thread, outside of Django's request cycle.
    close_old_connections()
    try:
        for override in LimitOverride.objects.order_by("pk"):
            yield {
                "name": override.name,
                "id": override.client,
                "burst": override.burst,
                "count": override.count,
                "period": override.period,
                "comment": override.comment,
                "enabled": override.enabled,
            }
    finally:
        close_old_connections()


@cache
def refresher() -> Refresher:
    """Return the refresher that reads the table at startup, every half hour and on request."""
    # Without the database, the site starts with the limits of the file.
    return Refresher(get_limiter(), rows, every="30m", on_first_error="retry")
