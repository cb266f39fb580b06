"""The Django app."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig

__all__ = ["PenstockConfig"]


class PenstockConfig(AppConfig):
    """Limits for Django: system checks and the command `penstock`; no models."""

    name = "penstock.django"
    label = "penstock"
    verbose_name = "Penstock"

    def ready(self) -> None:
        """Register the system checks."""
        import_module("penstock.django.checks")
