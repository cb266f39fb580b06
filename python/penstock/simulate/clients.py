"""Clients that are named: by their id, a network or a pattern."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock._core import IPV6_PREFIX, canonical_address, matches_pattern
from penstock.simulate.ids import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from penstock.simulate.ids import AnyId


AnyClients: TypeAlias = "Iterable[AnyId]"


def match_clients(named: AnyClients, clients: Sequence[str]) -> tuple[NDArray[np.bool_], list[str]]:
    """Return which clients are named, and the names that no client has.

    Args:
        named: Ids, networks such as `198.51.100.0/24`, and patterns with `*` and `?`.
        clients: The ids of the clients; of an id with several parts, the first one is the client.

    >>> match_clients(["192.0.2.0/24", "a*", "grace"], ["ada", "192.0.2.7", "alan"])[0].tolist()
    [True, True, True]
    """
    if isinstance(named, (str, bytes)):
        raise TypeError(f"clients must be a list of ids, found a single one: {named!r}")
    is_named = np.zeros(len(clients), np.bool_)
    unknown: list[str] = []
    names = [as_text(id) for id in named]
    if not names:
        return is_named, unknown
    numbers: dict[str, list[int]] = {}
    for number, id in enumerate(clients):
        if (client := id.partition("\t")[0]) != id:
            numbers.setdefault(client, []).append(number)
        numbers.setdefault(id, []).append(number)
    networks = [network for name in names if (network := _network(name)) is not None]
    addresses = _addresses(numbers) if networks else {}
    for name in names:
        own = numbers.get(name) or numbers.get(canonical_address(name, IPV6_PREFIX) or "")
        if own is None and (network := _network(name)) is not None:
            own = [
                number
                for client, address in addresses.items()
                if address.version == network.version and address in network
                for number in numbers[client]
            ]
        elif own is None and ("*" in name or "?" in name):
            own = [
                number
                for client, each in numbers.items()
                if matches_pattern(client, name)
                for number in each
            ]
        if own:
            is_named[own] = True
        else:
            unknown.append(name)
    return is_named, unknown


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        network = ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None
    if network is not None and network.version == 6 and network.prefixlen > IPV6_PREFIX:  # noqa: PLR2004
        # The addresses of such a network are one client.
        return network.supernet(new_prefix=IPV6_PREFIX)
    return network


def _addresses(
    clients: Iterable[str],
) -> dict[str, ipaddress.IPv4Address | ipaddress.IPv6Address]:
    addresses = {}
    for client in clients:
        try:
            addresses[client] = ipaddress.ip_address(client)
        except ValueError:
            continue
    return addresses
