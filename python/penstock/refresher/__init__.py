"""Overrides that change while a program runs, reloaded at intervals and replaced atomically."""

from penstock.refresher.worker import FirstError, Load, Refresher

__all__ = ["FirstError", "Load", "Refresher"]
