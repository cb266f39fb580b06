"""Rate limits for Flask: an extension with a decorator, default limits and exemptions."""

from penstock.extras import Extra

with Extra("flask"):
    from penstock.flask.extension import Penstock
    from penstock.flask.request import RequestRefused

__all__ = ["Penstock", "RequestRefused"]
