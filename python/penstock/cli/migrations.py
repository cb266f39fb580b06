"""Replacements for the names and settings of other rate limiters.

The hints for keywords and settings are those that penstock gives when it finds them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.web.setup_checks import FOREIGN_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping


class Package(NamedTuple):
    """Another rate limiter.

    Attributes:
        name: Its name on PyPI.
        modules: The modules that it is imported from.
        names: What to write in place of its functions, classes and methods.
        settings: What to write in place of its settings.
        keywords: What to write in place of keywords whose hints depend on the framework.
    """

    name: str
    modules: tuple[str, ...]
    names: Mapping[str, str]
    settings: Mapping[str, str]
    keywords: Mapping[str, str] = MappingProxyType({})


_CLIENT_ADDRESS: Final = (
    "the client's address is the default; declare your proxies with trusted_proxies or hops"
)
NO_COUNTERPART: Final = "nothing of this name; docs/coming-from.md compares the packages"
_DEFAULT_LIMITS: Final = "add the dependency to FastAPI(dependencies=[...])"

PACKAGES: Final = (
    Package(
        "flask-limiter",
        ("flask_limiter",),
        {
            "Limiter": "limits = Penstock(app, limits=...), from penstock.flask",
            "RateLimitExceeded": "penstock.flask.RequestRefused",
            "check": "nothing: default limits are decided before each view",
            "current_limit": "limits.decision()",
            "current_limits": "limits.decision().parts",
            "exempt": "@limits.exempt",
            "get_remote_address": f"nothing: {_CLIENT_ADDRESS}",
            "RequestLimit": "penstock.Decision",
            "init_app": "limits.init_app(app)",
            "limit": "@limits.limit(...), below the decorator of the route",
            "request_filter": "exempt_when= on each limit",
            "reset": "limits.guard.limiter.reset(name, id)",
            "shared_limit": "@limits.shared(..., scope=...)",
        },
        FOREIGN_SETTINGS["flask-limiter"],
        {
            "application_limits": "limits.default(...), which all routes share",
            "default_limits": "limits.default(..., id=per_route()), a bucket for each route",
        },
    ),
    Package(
        "slowapi",
        ("slowapi",),
        {
            "Limiter": "install(app, limits=...), from penstock.fastapi",
            "RateLimitExceeded": "nothing: refusals are responses with status 429",
            "SlowAPIASGIMiddleware": _DEFAULT_LIMITS,
            "SlowAPIMiddleware": _DEFAULT_LIMITS,
            "_rate_limit_exceeded_handler": "nothing: refusals are responses with status 429",
            "exempt": "exempt_when= on the limits",
            "get_ipaddr": f"nothing: {_CLIENT_ADDRESS}",
            "get_remote_address": f"nothing: {_CLIENT_ADDRESS}",
            "limit": "dependencies=[Depends(RateLimit(...))] on the route; no request argument",
            "shared_limit": "Depends(RateLimit(..., scope=...))",
        },
        FOREIGN_SETTINGS["slowapi"],
        {
            "application_limits": "FastAPI(dependencies=[Depends(RateLimit(...))])",
            "default_limits": (
                "FastAPI(dependencies=[Depends(RateLimit(..., id=per_route()))]), "
                "a bucket for each route"
            ),
        },
    ),
    Package(
        "fastapi-limiter",
        ("fastapi_limiter",),
        {
            "FastAPILimiter": "install(app, limits=..., store=...), from penstock.fastapi",
            "RateLimiter": "RateLimit('5/minute'), from penstock.fastapi",
            "WebSocketRateLimiter": "MessageLimit('5/minute'), from penstock.fastapi",
            "init": "install(app, limits=..., store=...), from penstock.fastapi",
        },
        {},
    ),
    Package(
        "django-ratelimit",
        ("django_ratelimit", "ratelimit.decorators", "ratelimit.core", "ratelimit.exceptions"),
        {
            "ALL": "nothing: all methods count",
            "Ratelimited": "nothing: refusals are responses with status 429",
            "RatelimitMiddleware": "penstock.django.PenstockMiddleware",
            "UNSAFE": "methods=['POST', 'PUT', 'PATCH', 'DELETE']",
            "get_header": "id=by_header(...), from penstock.identity",
            "get_usage": "get_limiter().peek(name, client_id(request, name)), from penstock.django",
            "is_ratelimited": (
                "get_limiter().spend(name, client_id(request, name)), from penstock.django"
            ),
            "ratelimit": "@limit('5/m'), from penstock.django",
        },
        FOREIGN_SETTINGS["django-ratelimit"],
    ),
    Package(
        "Django REST framework",
        ("rest_framework.throttling",),
        {
            "AnonRateThrottle": "PenstockThrottle, from penstock.django.drf",
            "BaseThrottle": "PenstockThrottle, from penstock.django.drf",
            "ScopedRateThrottle": "PenstockThrottle with a limit for each scope",
            "SimpleRateThrottle": "PenstockThrottle, from penstock.django.drf",
            "UserRateThrottle": "PenstockThrottle with id = by_user",
        },
        {
            "DEFAULT_THROTTLE_CLASSES": "PenstockThrottle, or a class of yours below it",
            "DEFAULT_THROTTLE_RATES": "limits in the file that PENSTOCK = {'LIMITS': ...} names",
            "NUM_PROXIES": "PENSTOCK = {'HOPS': ...}",
        },
    ),
    Package(
        "limits",
        ("limits",),
        {
            "FixedWindowRateLimiter": "Limiter({'Name': Limit.fixed_window(...)})",
            "MovingWindowRateLimiter": "Limiter({'Name': '10/minute'}), a token bucket",
            "SlidingWindowCounterRateLimiter": "Limiter({'Name': '10/minute'}), a token bucket",
            "clear": "limiter.reset(name, id)",
            "get_window_stats": "limiter.peek(name, id)",
            "hit": "limiter.spend(name, id, cost)",
            "parse": "Limit.parse('10/minute')",
            "parse_many": "one limit for each rate, decided together with spend_all",
            "storage_from_string": "Limiter(..., store=...)",
            "test": "limiter.check(name, id, cost)",
        },
        {},
    ),
)
"""The packages, in the order of the page that compares them."""

DECIDING: Final = frozenset({"get_usage", "is_ratelimited"})
"""Functions that become a call of the limiter, which takes none of their options."""
