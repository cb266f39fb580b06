"""Overrides that change while a program runs: read again and again, and swapped in whole."""

from penstock.refresher.worker import FirstError, Load, Refresher

__all__ = ["FirstError", "Load", "Refresher"]
