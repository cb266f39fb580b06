"""Client ids: the ready-made ones, and the client address behind trusted proxies."""

from penstock._web.address import ClientAddress, client_address
from penstock._web.identity import (
    by_address,
    by_api_key,
    by_header,
    by_user,
    everyone,
    per_route,
    shared,
)

__all__ = [
    "ClientAddress",
    "by_address",
    "by_api_key",
    "by_header",
    "by_user",
    "client_address",
    "everyone",
    "per_route",
    "shared",
]
