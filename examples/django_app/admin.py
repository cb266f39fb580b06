"""The admin pages of the overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import transaction

from django_app.models import LimitOverride
from django_app.overrides import refresher

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[LimitOverride]
else:
    _Admin = admin.ModelAdmin


@admin.register(LimitOverride)
class LimitOverrideAdmin(_Admin):
    """The table of overrides."""

    list_display = ("name", "client", "limit", "comment", "enabled")
    list_filter = ("name", "enabled")
    search_fields = ("client", "comment")

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Reload the overrides in this process now; other processes reload them later."""
        super().save_model(*args, **kwargs)
        transaction.on_commit(refresher().refresh, robust=True)

    def delete_model(self, *args: Any, **kwargs: Any) -> None:
        """Reload after a row is deleted."""
        super().delete_model(*args, **kwargs)
        transaction.on_commit(refresher().refresh, robust=True)

    def delete_queryset(self, *args: Any, **kwargs: Any) -> None:
        """Reload after several rows are deleted."""
        super().delete_queryset(*args, **kwargs)
        transaction.on_commit(refresher().refresh, robust=True)
