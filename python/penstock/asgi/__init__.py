"""Rate limits for any ASGI application: Starlette, Litestar, Quart, or without a framework."""

from penstock._web.identity import everyone, shared
from penstock._web.request import Response
from penstock.asgi.middleware import PenstockMiddleware

__all__ = ["PenstockMiddleware", "Response", "everyone", "shared"]
