"""Where people edit the overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from django_app.models import LimitOverride

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
