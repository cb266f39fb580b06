"""Rate limits for FastAPI: dependencies of routes, routers and applications."""

from penstock._extras import Extra
from penstock._web.identity import everyone, shared

with Extra("fastapi"):
    from penstock.fastapi.install import install
    from penstock.fastapi.openapi import rate_limited_responses
    from penstock.fastapi.rate_limit import MessageLimit, Messages, RateLimit, client_id
    from penstock.fastapi.request import RequestRefused
    from penstock.fastapi.routes import exempt

__all__ = [
    "MessageLimit",
    "Messages",
    "RateLimit",
    "RequestRefused",
    "client_id",
    "everyone",
    "exempt",
    "install",
    "rate_limited_responses",
    "shared",
]
