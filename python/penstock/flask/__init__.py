"""Limits for Flask: an extension with a decorator, defaults for all routes, and exemptions."""

from penstock.flask.extension import Penstock
from penstock.flask.request import RequestRefused

__all__ = ["Penstock", "RequestRefused"]
