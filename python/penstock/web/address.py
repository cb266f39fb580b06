"""Where a request comes from, behind proxies.

What a client writes into a header is believed only as far as the proxies that you trust have
written it: the walk goes from the right, where the nearest proxy wrote last, and ends at the first
address that is not one of yours. Whatever stands to the left of that is never read.

Source: RFC 7239 for `Forwarded`; `X-Forwarded-For` as common proxies write it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock.errors import ConfigError
from penstock.validation import is_whole
from penstock.web.request import MissingId, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ForwardedHeader: TypeAlias = Literal["auto", "x-forwarded-for", "forwarded"]

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# A chain of proxies is short. What lies further left than this is not read, so that a huge header
# costs no more than a long one.
_LONGEST_HEADER: Final = 8192
_MOST_HOPS: Final = 64
_LONGEST_NODE: Final = 128
# Addresses and headers seen, with what they come to: a few hundred bytes each.
_REMEMBERED: Final = 8192
# Headers longer than this are read anew each time: clients choose them, and memory is ours.
_LONGEST_REMEMBERED: Final = 256
_PORT: Final = r"(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]+))?"
_BRACKETED: Final = re.compile(rf"\[([^\[\]]+)\]{_PORT}")
_WITH_PORT: Final = re.compile(rf"([0-9.]+){_PORT}")
_PAIR: Final = re.compile(
    r'\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*(?:;|$)'
)


def _parsed(text: str) -> _Address | None:
    """Read an address with or without brackets, port and zone; `None` where it is none."""
    text = text.strip()
    if not text or len(text) > _LONGEST_NODE:
        return None
    if match := _BRACKETED.fullmatch(text) or _WITH_PORT.fullmatch(text):
        text = match[1]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _is_listing(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, bytes)


def _networks(trusted: Iterable[str]) -> tuple[tuple[_Network, ...], bool]:
    """Read the trusted networks, and whether a peer on a Unix socket is trusted too."""
    networks: list[_Network] = []
    unix = False
    for text in trusted:
        if text == "unix":
            unix = True
            continue
        try:
            # A number would be an address too: 10 is 0.0.0.10.
            networks.append(ipaddress.ip_network(str(text)))
        except ValueError as error:
            raise ConfigError(
                f"trusted_proxies must be networks such as '10.0.0.0/8', addresses, or 'unix', "
                f"found {text!r}: {error}"
            ) from error
    return tuple(networks), unix


class ClientAddress:
    """Find the address that a request comes from.

    Args:
        trusted_proxies: Networks and addresses of your own proxies; `"unix"` trusts a peer on a
            Unix socket. With none, and no `hops`, headers are not read at all.
        hops: Instead: how many proxies stand before the application. Each adds one entry, so the
            client is that many from the right.
        ipv6_prefix: IPv6 addresses that share this many leading bits are one client, since one
            subscriber has at least a /64; the answer is the lowest address of the prefix.
        forwarded_header: Which header the proxies write. `"auto"` reads the one that is there;
            where both are, and they disagree, one of them is the client's invention and neither is
            believed.

    Raises:
        ConfigError: An option that cannot be.
    """

    def __init__(
        self,
        *,
        trusted_proxies: str | Sequence[str] = (),
        hops: int = 0,
        ipv6_prefix: int = 64,
        forwarded_header: ForwardedHeader = "auto",
    ) -> None:
        if isinstance(trusted_proxies, str):
            trusted_proxies = [text.strip() for text in trusted_proxies.split(",") if text.strip()]
        elif not _is_listing(trusted_proxies):
            raise ConfigError(
                f"trusted_proxies must be a list such as ['10.0.0.0/8'], found {trusted_proxies!r}"
            )
        if not is_whole(hops, 0, _MOST_HOPS):
            raise ConfigError(f"hops must be a whole number from 0 to {_MOST_HOPS}, found {hops!r}")
        if hops and trusted_proxies:
            raise ConfigError(
                f"trusted_proxies or hops, not both; found {list(trusted_proxies)!r} and {hops}"
            )
        if not is_whole(ipv6_prefix, 1, 128):
            raise ConfigError(
                f"ipv6_prefix must be a whole number from 1 to 128, found {ipv6_prefix!r}"
            )
        if forwarded_header not in ("auto", "x-forwarded-for", "forwarded"):
            raise ConfigError(
                f"forwarded_header must be 'auto', 'x-forwarded-for' or 'forwarded', "
                f"found {forwarded_header!r}"
            )
        self._networks, self._unix = _networks(trusted_proxies)
        self._hops: Final = hops
        self._header: Final = forwarded_header
        self._direct: Final = not (self._networks or self._unix or hops)
        self._mask: Final = (1 << 128) - (1 << (128 - ipv6_prefix))
        # Cached for the speed of the common request: the same few clients come again and again.
        self._id: Final = lru_cache(_REMEMBERED)(self._id_of)
        self._trusts: Final = lru_cache(_REMEMBERED)(self._is_trusted)
        self._walked: Final = lru_cache(_REMEMBERED)(self._walk)
        self._trusts_peer: Final = lru_cache(_REMEMBERED)(self._is_trusted_peer)

    def __call__(self, request: Request) -> str:
        """Give the canonical address of a request's client.

        Raises:
            MissingId: There is none, or it cannot be read.
        """
        return self.of(request.peer, request.header("X-Forwarded-For"), request.header("Forwarded"))

    def finder(self) -> Callable[[Request], str]:
        """Give what finds the address of a request's client: the same, by the shortest way."""
        if not self._direct:
            return self.__call__
        known = self._id

        def find(request: Request) -> str:
            address = known(request.peer or "")
            return self._no_peer(request.peer or "") if address is None else address

        return find

    def of(
        self, peer: str | None, forwarded_for: str | None = None, forwarded: str | None = None
    ) -> str:
        """Give the canonical address, from the socket's peer and the two headers.

        Raises:
            MissingId: There is none, or it cannot be read.
        """
        if self._header == "forwarded":
            forwarded_for = None
        elif self._header == "x-forwarded-for":
            forwarded = None
        length = len(forwarded_for or "") + len(forwarded or "")
        walk = self._walked if length <= _LONGEST_REMEMBERED else self._walk
        return walk(peer or "", forwarded_for, forwarded)

    def _walk(self, peer: str, forwarded_for: str | None, forwarded: str | None) -> str:
        if not (self._hops or self._trusts_peer(peer)):
            forwarded_for = forwarded = None
        ends = []
        if forwarded_for is not None:
            ends.append(self._end_of(_from_right(forwarded_for, _nodes)))
        if forwarded is not None:
            ends.append(self._end_of(_from_right(forwarded, _for_nodes)))
        found = {self._id(end) for end in ends if end}
        if len(found) > 1:
            self._missing("X-Forwarded-For and Forwarded disagree; set forwarded_header")
        # No proxy has written anything: the request began at the peer itself, as a health check
        # does.
        if not found:
            address = self._id(peer)
            return self._no_peer(peer) if address is None else address
        address = found.pop()
        return (
            self._missing("what a proxy has written is no address") if address is None else address
        )

    def _no_peer(self, peer: str) -> str:
        found = f"the peer is {peer[:_LONGEST_NODE]!r}" if peer else "the socket has no address"
        would_do = (
            "no proxy has written one"
            if self._unix or self._hops
            else "trusted_proxies='unix' believes the proxy on a Unix socket"
        )
        return self._missing(f"{found}; {would_do}, on_missing_id names a bucket for such requests")

    @staticmethod
    def _missing(why: str) -> str:
        raise MissingId(why)

    def _end_of(self, nodes: Iterator[str]) -> str:
        """Walk from the right to the client; an empty text where the chain is empty."""
        last = ""
        for number, node in enumerate(nodes, 1):
            last = node
            if number == self._hops or not (self._hops or self._trusts(node)):
                return node
        if self._hops and last:
            self._missing(f"fewer than {self._hops} proxies have written their entry")
        # All are ours: a request from inside, which began at the furthest.
        return last

    def _is_trusted(self, text: str) -> bool:
        address = _parsed(text)
        return address is not None and any(address in network for network in self._networks)

    def _is_trusted_peer(self, peer: str) -> bool:
        # Only the server says what the peer is: one that is no address sits on a Unix socket.
        return self._is_trusted(peer) or (self._unix and _parsed(peer) is None)

    def _id_of(self, text: str) -> str | None:
        address = _parsed(text)
        if isinstance(address, ipaddress.IPv6Address):
            return str(ipaddress.IPv6Address(int(address) & self._mask))
        return None if address is None else str(address)


def client_address(
    peer: str | None,
    headers: Mapping[str, str] | None = None,
    *,
    trusted_proxies: str | Sequence[str] = (),
    hops: int = 0,
    ipv6_prefix: int = 64,
    forwarded_header: ForwardedHeader = "auto",
) -> str:
    """Give the canonical address of a client, from the socket's peer and a request's headers.

    For one answer; a program that asks again and again keeps a `ClientAddress`.

    Raises:
        ConfigError: As `ClientAddress`.
        MissingId: There is no address, or it cannot be read.

    Example:
        >>> from penstock.web.address import client_address
        >>> told = {"X-Forwarded-For": "198.51.100.9, 203.0.113.7"}
        >>> client_address("10.0.0.1", told, trusted_proxies=["10.0.0.0/8"])
        '203.0.113.7'
        >>> client_address("10.0.0.1", told)
        '10.0.0.1'
        >>> client_address("2001:db8::1:2:3:4")
        '2001:db8::'
    """
    find = ClientAddress(
        trusted_proxies=trusted_proxies,
        hops=hops,
        ipv6_prefix=ipv6_prefix,
        forwarded_header=forwarded_header,
    )
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    return find.of(peer, lower.get("x-forwarded-for"), lower.get("forwarded"))


def _from_right(text: str, split: Callable[[str], Iterator[str]]) -> Iterator[str]:
    """Give the nodes of a header from the right, as many as a chain of proxies may have."""
    if len(text) > _LONGEST_HEADER:
        # Cut at a comma: half an entry must not be taken for a whole one, nor for none at all.
        _, comma, whole = text[-_LONGEST_HEADER:].partition(",")
        text = whole if comma else "unknown"
    for _, node in zip(range(_MOST_HOPS), split(text), strict=False):
        yield node


def _nodes(text: str) -> Iterator[str]:
    """Split `X-Forwarded-For`; empty entries say nothing and are passed over."""
    for node in reversed(text.rsplit(",", _MOST_HOPS)):
        if node.strip():
            yield node.strip()


def _for_nodes(text: str) -> Iterator[str]:
    """Split `Forwarded`, and give the `for` of each element; `unknown` where it has none."""
    end = len(text)
    quoted = False
    # From the right, since a quote that the client never closed must not swallow what a proxy
    # added.
    for at in range(len(text) - 1, -1, -1):
        character = text[at]
        if character == '"' and not _is_escaped(text, at):
            quoted = not quoted
        elif character == "," and not quoted:
            if text[at + 1 : end].strip():
                yield _for_node(text[at + 1 : end])
            end = at
    if text[:end].strip():
        yield _for_node(text[:end])


def _is_escaped(text: str, at: int) -> bool:
    before = at
    while before and text[before - 1] == "\\":
        before -= 1
    return (at - before) % 2 == 1


def _for_node(element: str) -> str:
    found: list[str] = []
    at = 0
    while at < len(element) and (pair := _PAIR.match(element, at)):
        at = pair.end()
        if pair[1].lower() == "for":
            found.append(pair[2])
    if at < len(element.rstrip()) or len(found) != 1:
        return "unknown"
    value = found[0]
    if value.startswith('"'):
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    return value or "unknown"
