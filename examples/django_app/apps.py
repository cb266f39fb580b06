"""The app of the shop."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The shop, and its table of overrides."""

    name = "django_app"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
