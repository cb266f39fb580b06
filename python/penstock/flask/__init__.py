"""Rate limits for Flask: an extension with a decorator, default limits and exemptions."""

from penstock._extras import Extra
from penstock._web.identity import everyone, shared

with Extra("flask"):
    from penstock.flask.extension import Penstock
    from penstock.flask.request import RequestRefused

__all__ = ["Penstock", "RequestRefused", "everyone", "shared"]
