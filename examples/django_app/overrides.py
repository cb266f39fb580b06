"""From the table of overrides to the limiter."""

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
    """Give the overrides as a refresher reads them."""
    # It reads them in a thread of its own, for which no request begins and ends.
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
    """Give what reads the table: at its start, every half an hour, and when somebody asks."""
    # Without the database the shop opens all the same, with the limits of the file.
    return Refresher(get_limiter(), rows, every="30m", on_first_error="retry")
