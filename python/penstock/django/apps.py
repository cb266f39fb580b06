"""The Django app."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class PenstockConfig(AppConfig):
    """System checks and the command `penstock`; no models."""

    name = "penstock.django"
    label = "penstock"
    verbose_name = "Penstock"

    def ready(self) -> None:
        """Register the system checks."""
        import_module("penstock.django.checks")
