"""The client's address, behind trusted proxies.

Each proxy appends an entry to the header, so the header is read from the right: entries of trusted
proxies are skipped, and the first other one is the client. A client can forge only entries further
to the left, which are never read.

Source: RFC 7239 for `Forwarded`; `X-Forwarded-For` as common proxies write it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock._core import IPV6_PREFIX, canonical_address
from penstock._validation import is_whole
from penstock._web.request import MissingId, Request
from penstock.errors import DOCUMENTATION, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock._core import BoundLimit

ForwardedHeader: TypeAlias = Literal["auto", "x-forwarded-for", "forwarded"]

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# Chains of proxies are short. What is further left is not read, to bound the cost of a header.
_MAX_HEADER_LENGTH: Final = 8192
_MAX_HOPS: Final = 64
_MAX_NODE_LENGTH: Final = 128
# Cached addresses and headers take a few hundred bytes each.
_CACHE_SIZE: Final = 8192
_MAPPED_BITS: Final = 96
ADDRESS_MARK: Final = "address:"
"""Prefix for address ids under limits that count users."""
# Longer headers are not cached, since clients choose them.
_MAX_CACHED_LENGTH: Final = 256
_PAIR: Final = re.compile(
    r'[\s;]*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*(?:;|$)'
)


def _canonical(text: str, ipv6_prefix: int) -> str | None:
    text = text.strip()
    # Text of a client may not be valid UTF-8; an address is ASCII.
    return canonical_address(text, ipv6_prefix) if text.isascii() else None


def _ipv4_of(text: str) -> str | None:
    """Return the canonical IPv4 address; `None` for anything else."""
    address = _canonical(text, 128)
    return None if address is None or ":" in address else address


def _is_list(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, bytes)


def _networks(trusted: Iterable[str]) -> tuple[tuple[_Network, ...], bool]:
    """Parse the trusted networks; also return whether peers on a Unix socket are trusted."""
    networks: list[_Network] = []
    unix = False
    for text in trusted:
        if text == "unix":
            unix = True
            continue
        try:
            # As text: the number 10 would be 0.0.0.10.
            network = _unmapped(ipaddress.ip_network(str(text)))
        except ValueError as error:
            raise ConfigError(
                f"trusted_proxies must be networks such as '10.0.0.0/8', addresses, or 'unix', "
                f"found {text!r}: {error}"
            ) from error
        if network.prefixlen == 0:
            raise ConfigError(
                f"trusted_proxies: {text} lets every client choose its address; name the networks "
                f"of your proxies, or their number with hops=1"
            )
        networks.append(network)
    return tuple(networks), unix


def _unmapped(network: _Network) -> _Network:
    """Return a network of IPv4-mapped addresses as IPv4, as addresses are compared."""
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return ipaddress.ip_network(f"{mapped}/{network.prefixlen - _MAPPED_BITS}")


class PeerIds:
    """Ids by the address of a peer, each found once.

    A look-up in `lru_cache` takes 960 instructions instead of 510. Full ones are emptied.

    Args:
        find: Returns the id of a peer; `None` if more of the request is needed.
    """

    def __init__(self, find: Callable[[str], str | None]) -> None:
        self._find: Final = find
        self.ids: Final[dict[str | None, str | None]] = {}

    def add(self, peer: str | None) -> str | None:
        """Find the id of a peer that is not in `ids`."""
        if len(self.ids) >= _CACHE_SIZE:
            self.ids.clear()
        id = self._find(peer or "")
        # One object for both if they are equal, because each takes time to fetch from memory.
        self.ids[peer] = id = peer if id == peer else id
        return id


class ClientAddress:
    """Finds the address of a request's client.

    Args:
        trusted_proxies: Networks and addresses of your own proxies; `"unix"` trusts a peer on a
            Unix socket. Without it and `hops`, headers are not read.
        hops: Instead: the number of proxies in front of the application. Each adds one entry, so
            the client's is that many from the right.
        ipv6_prefix: IPv6 addresses that share this many leading bits are one client; the result is
            the lowest address of the prefix.
        forwarded_header: The header that the proxies write. `"auto"` reads the one that is present;
            if both are and they disagree, the request is refused, because one of them is forged.

    Raises:
        ConfigError: An option is invalid.
    """

    def __init__(
        self,
        *,
        trusted_proxies: str | Sequence[str] = (),
        hops: int = 0,
        ipv6_prefix: int = IPV6_PREFIX,
        forwarded_header: ForwardedHeader = "auto",
    ) -> None:
        if isinstance(trusted_proxies, str):
            trusted_proxies = [text.strip() for text in trusted_proxies.split(",") if text.strip()]
        elif not _is_list(trusted_proxies):
            raise ConfigError(
                f"trusted_proxies must be a list such as ['10.0.0.0/8'], found {trusted_proxies!r}"
            )
        if not is_whole(hops, 0, _MAX_HOPS):
            raise ConfigError(f"hops must be an integer from 0 to {_MAX_HOPS}, found {hops!r}")
        if hops and trusted_proxies:
            raise ConfigError(
                f"pass trusted_proxies or hops, found {list(trusted_proxies)!r} and {hops}"
            )
        if not is_whole(ipv6_prefix, 1, 128):
            raise ConfigError(
                f"ipv6_prefix must be an integer from 1 to 128, found {ipv6_prefix!r}"
            )
        if forwarded_header not in ("auto", "x-forwarded-for", "forwarded"):
            raise ConfigError(
                f"forwarded_header must be 'auto', 'x-forwarded-for' or 'forwarded', "
                f"found {forwarded_header!r}"
            )
        if forwarded_header != "auto" and not (hops or trusted_proxies):
            raise ConfigError(
                f"forwarded_header={forwarded_header!r} has no effect without a trusted proxy; "
                f"list the networks in trusted_proxies, or give their number with hops"
            )
        self._trusted: Final = tuple(trusted_proxies)
        self._networks, self._unix = _networks(trusted_proxies)
        self._hops: Final = hops
        self._header: Final = forwarded_header
        self._direct: Final = not (self._networks or self._unix or hops)
        self.ipv6_prefix: Final = ipv6_prefix
        # Cached, since the same clients come again and again.
        self._id: Final = lru_cache(_CACHE_SIZE)(self._id_of)
        self._ipv4: Final = PeerIds(_ipv4_of)
        self.marked_peers: Final = PeerIds(self._marked)
        """The addresses of peers with `ADDRESS_MARK`; `None` for no address, or to read headers."""
        self.known_ipv4: Final = self._ipv4 if self._direct else None
        """The addresses of IPv4 peers, `None` for other peers; `None` if headers are read."""
        self._trusts: Final = lru_cache(_CACHE_SIZE)(self._is_trusted)
        self._walked: Final = lru_cache(_CACHE_SIZE)(self._walk)
        self._trusts_peer: Final = lru_cache(_CACHE_SIZE)(self._is_trusted_peer)

    def __call__(self, request: Request) -> str:
        """Return the canonical address of a request's client.

        Raises:
            MissingId: It has none, or a malformed one.
        """
        return self.of(request.peer, request.header("X-Forwarded-For"), request.header("Forwarded"))

    def finder(self, ipv6_prefix: int | None = None) -> Callable[[Request], str]:
        """Return a function that does the same; it is faster if no header has to be read.

        Args:
            ipv6_prefix: A prefix of its own, instead of that of this object.
        """
        if ipv6_prefix is not None and ipv6_prefix != self.ipv6_prefix:
            return ClientAddress(
                trusted_proxies=self._trusted,
                hops=self._hops,
                ipv6_prefix=ipv6_prefix,
                forwarded_header=self._header,
            ).finder()
        if not self._direct:
            return self.__call__
        known = self._id

        def find(request: Request) -> str:
            address = known(request.peer or "")
            return self._no_peer(request.peer or "") if address is None else address

        return find

    def limit_finder(
        self, limit: BoundLimit, ipv6_prefix: int | None = None
    ) -> Callable[[Request], str]:
        """Return a function that finds the id of a request's client under a limit.

        An override for one address of an IPv6 prefix applies to it, and then it is its own id.

        Args:
            limit: The limit.
            ipv6_prefix: As in `finder`.
        """
        prefix = ipv6_prefix or self.ipv6_prefix

        def find_any(request: Request) -> str:
            address = self._full_of(
                request.peer, request.header("X-Forwarded-For"), request.header("Forwarded")
            )
            if ":" not in address:
                return address
            return limit.address_id(address, prefix) or address

        if not self._direct:
            return find_any
        ids, add = self._ipv4.ids, self._ipv4.add

        def find(request: Request) -> str:
            peer = request.peer
            address = ids[peer] if peer in ids else add(peer)
            return find_any(request) if address is None else address

        return find

    def of(
        self, peer: str | None, forwarded_for: str | None = None, forwarded: str | None = None
    ) -> str:
        """Return the canonical address, from the socket's peer and the two headers.

        Raises:
            MissingId: As above.
        """
        address = self._full_of(peer, forwarded_for, forwarded)
        # IPv4 is the same in full; every address here is canonical.
        return self._id(address) or address if ":" in address else address

    def _full_of(self, peer: str | None, forwarded_for: str | None, forwarded: str | None) -> str:
        """Return the canonical address, of which no bits are left out."""
        if self._header == "forwarded":
            forwarded_for = None
        elif self._header == "x-forwarded-for":
            forwarded = None
        length = len(forwarded_for or "") + len(forwarded or "")
        walk = self._walked if length <= _MAX_CACHED_LENGTH else self._walk
        return walk(peer or "", forwarded_for, forwarded)

    def _walk(self, peer: str, forwarded_for: str | None, forwarded: str | None) -> str:
        if not (self._hops or self._trusts_peer(peer)):
            forwarded_for = forwarded = None
        ends = []
        if forwarded_for is not None:
            ends.append(self._end_of(_from_right(forwarded_for, _nodes)))
        if forwarded is not None:
            ends.append(self._end_of(_from_right(forwarded, _for_nodes)))
        ids = {self._id(end) for end in ends if end}
        if len(ids) > 1:
            _missing("X-Forwarded-For and Forwarded disagree; set forwarded_header")
        # No proxy added an entry: the request comes from the peer itself, such as a health check.
        if not ids:
            address = _canonical(peer, 128)
            return self._no_peer(peer) if address is None else address
        address = None if None in ids else _canonical(next(end for end in ends if end), 128)
        return _missing("the entry of a proxy is not an address") if address is None else address

    def _no_peer(self, peer: str) -> str:
        reason = f"the peer is {peer[:_MAX_NODE_LENGTH]!r}" if peer else "the socket has no address"
        if peer == "testclient":
            hint = (
                f"a test client has no address (P004, {DOCUMENTATION}/codes/#p004); "
                "use TestClient(app, client=('203.0.113.7', 50000))"
            )
        elif self._unix or self._hops:
            hint = "no proxy added an address"
        else:
            hint = "trusted_proxies='unix' trusts a proxy on a Unix socket"
        return _missing(f"{reason}; {hint}, or let on_missing_id be a bucket for such requests")

    def _end_of(self, nodes: Iterator[str]) -> str:
        """Return the client's node, counted from the right; an empty string if there is no node."""
        last = ""
        for number, node in enumerate(nodes, 1):
            last = node
            if number == self._hops or not (self._hops or self._trusts(node)):
                return node
        if self._hops and last:
            _missing(f"fewer than {self._hops} proxies added an entry")
        # All are trusted: an internal request, which began at the furthest.
        return last

    def _is_trusted(self, text: str) -> bool:
        canonical = _canonical(text, 128)
        if canonical is None:
            return False
        address = ipaddress.ip_address(canonical)
        return any(address in network for network in self._networks)

    def _is_trusted_peer(self, peer: str) -> bool:
        # A client cannot choose the peer: one that is not an address is on a Unix socket.
        return self._is_trusted(peer) or (self._unix and _canonical(peer, 128) is None)

    def _id_of(self, text: str) -> str | None:
        return _canonical(text, self.ipv6_prefix)

    def _marked(self, peer: str) -> str | None:
        address = self._id_of(peer) if self._direct else None
        return None if address is None else f"{ADDRESS_MARK}{address}"


def client_address(
    peer: str | None,
    headers: Mapping[str, str] | None = None,
    *,
    trusted_proxies: str | Sequence[str] = (),
    hops: int = 0,
    ipv6_prefix: int = IPV6_PREFIX,
    forwarded_header: ForwardedHeader = "auto",
) -> str:
    """Return the canonical address of a client, from the socket's peer and a request's headers.

    To find many, keep a `ClientAddress`.

    Raises:
        ConfigError: As `ClientAddress`.
        MissingId: There is no address, or a malformed one.

    Examples:
        >>> from penstock._web.address import client_address
        >>> headers = {"X-Forwarded-For": "198.51.100.9, 203.0.113.7"}
        >>> client_address("10.0.0.1", headers, trusted_proxies=["10.0.0.0/8"])
        '203.0.113.7'
        >>> client_address("10.0.0.1", headers)
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


def forwarded_addresses(header: str, value: str) -> list[str]:
    """Return the addresses in a header of proxies in canonical form, without other entries."""
    nodes = _from_right(value, _for_nodes if header == "Forwarded" else _nodes)
    addresses = (_canonical(node, 128) for node in nodes)
    return [address for address in addresses if address is not None]


def _missing(reason: str) -> str:
    raise MissingId(reason)


def _from_right(text: str, split: Callable[[str], Iterator[str]]) -> Iterator[str]:
    """Yield the nodes of a header from the right, up to the longest chain of proxies."""
    if len(text) > _MAX_HEADER_LENGTH:
        # Cut at a comma, so that half an entry is not taken for a whole one, or for none.
        _, comma, whole = text[-_MAX_HEADER_LENGTH:].partition(",")
        text = whole if comma else "unknown"
    for _, node in zip(range(_MAX_HOPS), split(text), strict=False):
        yield node


def _nodes(text: str) -> Iterator[str]:
    """Yield the nodes of `X-Forwarded-For`, without empty ones."""
    for node in reversed(text.rsplit(",", _MAX_HOPS)):
        if node.strip():
            yield node.strip()


def _for_nodes(text: str) -> Iterator[str]:
    """Yield the `for` of each element of `Forwarded`; `unknown` if it has none."""
    end = len(text)
    quoted = False
    # From the right, so that an unclosed quote of the client does not hide what a proxy added.
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
    values: list[str] = []
    at = 0
    while at < len(element) and (pair := _PAIR.match(element, at)):
        at = pair.end()
        if pair[1].lower() == "for":
            values.append(pair[2])
    if at < len(element.rstrip("; \t")) or len(values) != 1:
        return "unknown"
    value = values[0]
    if value.startswith('"'):
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    return value or "unknown"
