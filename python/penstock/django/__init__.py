"""Rate limits for Django: a decorator, a middleware, system checks and a management command.

Settings modules may import this: it needs neither settings nor loaded apps.
"""

from penstock._extras import Extra
from penstock._web.identity import everyone, shared

with Extra("django"):
    from penstock.django.conf import client_id, get_guard, get_limiter
    from penstock.django.decorators import exempt, limit
    from penstock.django.middleware import PenstockMiddleware

__all__ = [
    "PenstockMiddleware",
    "client_id",
    "everyone",
    "exempt",
    "get_guard",
    "get_limiter",
    "limit",
    "shared",
]
