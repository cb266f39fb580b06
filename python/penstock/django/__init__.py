"""Limits for Django: a decorator, a middleware, system checks and a command.

Importing it needs no settings and no apps, so that settings themselves may import it.
"""

from penstock.django.conf import get_limiter
from penstock.django.decorators import exempt, limit
from penstock.django.middleware import PenstockMiddleware

__all__ = ["PenstockMiddleware", "exempt", "get_limiter", "limit"]
