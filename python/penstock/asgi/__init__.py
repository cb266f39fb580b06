"""Rate limits for any ASGI application: Starlette, Litestar, Quart, or without a framework."""

from penstock.asgi.middleware import PenstockMiddleware
from penstock.web.identity import everyone, shared
from penstock.web.request import Response

__all__ = ["PenstockMiddleware", "Response", "everyone", "shared"]
