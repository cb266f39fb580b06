"""Checks of a running set-up: mistakes that no option shows, found in the first requests.

Each check has a code, and is logged once.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock._validation import OBSERVED, report_finding
from penstock._web.address import forwarded_addresses
from penstock._web.identity import ReadyId
from penstock._web.request import MissingId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock._core import Limiter
    from penstock._web.address import ClientAddress
    from penstock._web.compiled_limit import CompiledLimit, Entry, PerRequestLimit
    from penstock._web.fallback import StoreAccess
    from penstock._web.request import Request
    from penstock.types import Id

# Of the observed requests, those of one private peer.
_NEARLY_ALL: Final = 0.95
_MAX_PEERS: Final = 64
# More than one client has.
_MANY_CLIENTS: Final = 100
# So many requests are not all exempt, and not all of clients that come once.
_MANY_REQUESTS: Final = 100
_HEADERS: Final = ("X-Forwarded-For", "Forwarded")
_PRIVATE: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "::1/128",
            "fc00::/7",
            "fe80::/10",
        ),
    )
)

# The settings of similar packages, and what to write instead.
_INSTEAD: Final = {
    # flask-limiter
    "RATELIMIT_APPLICATION": "PENSTOCK_DEFAULT",
    "RATELIMIT_DEFAULT": "limits.default(..., id=per_route()), a bucket for each route",
    "RATELIMIT_DEFAULTS_COST": "cost= of limits.default(...)",
    "RATELIMIT_DEFAULTS_DEDUCT_WHEN": "deduct_when= of limits.default(...)",
    "RATELIMIT_DEFAULTS_EXEMPT_WHEN": "exempt_when= of limits.default(...)",
    "RATELIMIT_DEFAULTS_PER_METHOD": "limits.default(..., methods=[...]) for each method",
    "RATELIMIT_ENABLED": "PENSTOCK_ENABLED",
    "RATELIMIT_HEADERS_ENABLED": "PENSTOCK_HEADERS; headers are on by default",
    "RATELIMIT_IN_MEMORY_FALLBACK": "PENSTOCK_ON_STORE_ERROR = 'local'",
    "RATELIMIT_IN_MEMORY_FALLBACK_ENABLED": "PENSTOCK_ON_STORE_ERROR = 'local'",
    "RATELIMIT_KEY_PREFIX": "the prefix in the URL of PENSTOCK_STORE",
    "RATELIMIT_META": "block_for on a limit",
    "RATELIMIT_ON_BREACH_CALLBACK": "PENSTOCK_ON_DENIED",
    "RATELIMIT_STORAGE_OPTIONS": "parameters of the URL in PENSTOCK_STORE",
    "RATELIMIT_STORAGE_URI": "PENSTOCK_STORE",
    "RATELIMIT_STRATEGY": "the algorithm of each limit, in the limits file",
    "RATELIMIT_SWALLOW_ERRORS": "PENSTOCK_ON_STORE_ERROR = 'allow', which is the default",
    # slowapi, and older versions of flask-limiter
    "RATELIMIT_STORAGE_URL": "store= of install(...), or PENSTOCK_STORE in Flask",
    # django-ratelimit
    "RATELIMIT_CACHE_PREFIX": "nothing: buckets are not in a cache",
    "RATELIMIT_ENABLE": "PENSTOCK = {'ENABLED': ...}",
    "RATELIMIT_EXCEPTION_CLASS": "PENSTOCK = {'ON_DENIED': ...}",
    "RATELIMIT_FAIL_OPEN": "PENSTOCK = {'ON_STORE_ERROR': ...}",
    "RATELIMIT_HASH_ALGORITHM": "nothing: ids are hashed with a keyed hash",
    "RATELIMIT_IPV4_MASK": "an override for the network, in the limits file",
    "RATELIMIT_IPV6_MASK": "PENSTOCK = {'IPV6_PREFIX': ...}",
    "RATELIMIT_IP_META_KEY": "PENSTOCK = {'TRUSTED_PROXIES': ...} or {'HOPS': ...}",
    "RATELIMIT_USE_CACHE": "PENSTOCK = {'STORE': ...}",
    "RATELIMIT_VIEW": "PENSTOCK = {'ON_DENIED': ...}",
}
_FOREIGN: Final = "RATELIMIT_"


def report_foreign_settings(names: Iterable[str]) -> None:
    """Log settings of another package among names, with what to write here."""
    foreign = sorted(name for name in names if name.startswith(_FOREIGN))
    if foreign:
        hints = [f"{name} (here {_INSTEAD.get(name, 'not needed')})" for name in foreign]
        report_finding(
            "P005",
            f"penstock does not read the settings of another package: {', '.join(hints)}",
            "set the options of penstock, and remove these",
        )


class Watch:
    """Looks at decided requests while there is something to see: at first, and while a store fails.

    Attributes:
        is_awake: Whether `look` has something to do.
    """

    def __init__(self, checks: SetupChecks, store: StoreAccess) -> None:
        self.is_awake = True
        self._checks: Final = checks
        self._store: Final = store
        store.on_failure = self.wake

    def wake(self) -> None:
        """Look at the next requests, because the store fails."""
        self.is_awake = True

    def look(
        self,
        request: Request,
        entries: Sequence[Entry],
        limits: Sequence[CompiledLimit | PerRequestLimit],
    ) -> None:
        """Look at a request that has been decided, or allowed because the store fails.

        Args:
            request: The request.
            entries: What has been asked of the store.
            limits: The limits that could count the request, unless it is refused.
        """
        checks = self._checks
        if checks.is_open:
            checks.observe(request, entries, limits)
        self.is_awake = checks.is_open or self._store.is_failing


class _Clients:
    """The clients of a limit: the hashes of their ids, and their addresses."""

    __slots__ = ("addresses", "ids", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.ids: Final[set[int]] = set()
        self.addresses: Final[set[Id]] = set()


class SetupChecks:
    """Observes the first requests of a guard.

    Args:
        limiter: The limiter of the guard.
        address: Finds the client's address.
        shared_id: The bucket of requests without an id, if the application asks for one.
        reads_headers: Whether headers of proxies are read.
        expected_processes: The number of processes that the operator has declared.
    """

    def __init__(
        self,
        limiter: Limiter,
        address: ClientAddress,
        shared_id: Id | None,
        *,
        reads_headers: bool,
        expected_processes: int,
    ) -> None:
        self._limiter: Final = limiter
        self._find_address: Final = address.finder()
        self._shared_id: Final = shared_id
        self._clients: Final[dict[str, _Clients]] = {}
        # By limit: how many requests it could count until it has counted one; then `None`.
        self._uncounted: Final[dict[str, int | None]] = {}
        self._reads_headers: Final = reads_headers
        # With a number declared, the operator knows that counts are per process.
        self._may_be_multiprocess = expected_processes == 1 and not limiter.is_shared
        self._count = 0
        self._peers: dict[str, int] = {}
        self._reported: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether more requests are to be observed."""
        return self._count < OBSERVED

    def observe(
        self,
        request: Request,
        entries: Sequence[Entry],
        limits: Sequence[CompiledLimit | PerRequestLimit],
    ) -> None:
        """Look at a request that has been decided; see `Watch.look`."""
        self._count += 1
        # Later again, because the other workers may start after the first request.
        if self._may_be_multiprocess and self._count in {1, OBSERVED // 10}:
            self._check_processes(request)
        self._look_at(request)
        for limit, id, _ in entries:
            self._look_at_id(request, limit, id)
        for each in limits:
            self._look_at_limit(request, each, entries)
        if self._count == OBSERVED:
            self._check_peers()
            self._check_ids()
            self._check_uncounted()

    def _check_processes(self, request: Request) -> None:
        """Warn, once, if the server seems to have several processes, each with its own counts."""
        known = getattr(request, "is_multiprocess", None)
        if has_sibling_workers() if known is None else known:
            self._may_be_multiprocess = False
            report_finding(
                "P003",
                f"{self._limiter.store} counts per process, and this server runs several, so a "
                f"client can get a multiple of each limit",
                "use store='shm://NAME', which all processes of a machine share, or acknowledge it "
                "with expected_processes=N",
            )

    def _look_at(self, request: Request) -> None:
        peer = request.peer or ""
        forwarded = next(
            ((name, value) for name in _HEADERS if (value := request.header(name))), None
        )
        if self._reads_headers and forwarded is not None:
            return
        if peer in self._peers or len(self._peers) < _MAX_PEERS:
            self._peers[peer] = self._peers.get(peer, 0) + 1
        if self._reads_headers or forwarded is None or _is_address_from(peer, *forwarded):
            return
        private = _is_private(peer) or not peer
        kind = f"P001 {private}"
        if kind not in self._reported:
            self._reported.add(kind)
            # A server that evaluates the header itself may take any text from it.
            shown = peer[:64] if peer.isprintable() else repr(peer[:64])
            source = f"{shown}, which is not a trusted proxy" if peer else "a Unix socket"
            trusted = repr(peer[:64]) if peer else "'unix'"
            report_finding(
                "P001",
                f"{forwarded[0]} came from {source}, so all clients behind it share one bucket",
                f"if it is your proxy, set trusted_proxies=[{trusted}]"
                + ("" if private else "; a client may also have made the header up"),
            )

    def _look_at_id(self, request: Request, limit: CompiledLimit, id: Id) -> None:
        source = limit.rule.id
        asked_for = source.shared_id if isinstance(source, ReadyId) else None
        if id in (asked_for, self._shared_id):
            # The application asked for one bucket.
            return
        clients = self._clients.setdefault(limit.name, _Clients())
        clients.requests += 1
        clients.ids.add(hash(id))
        with suppress(MissingId):
            clients.addresses.add(self._find_address(request))

    def _look_at_limit(
        self, request: Request, limit: CompiledLimit | PerRequestLimit, entries: Sequence[Entry]
    ) -> None:
        rule = limit.rule
        could_count = rule.methods is None or request.method in rule.methods
        if not could_count or getattr(limit, "is_ipv6_only", False):
            return
        if any(
            (x.rule is rule or x.name == limit.name) and (cost or rule.is_settled)
            for x, _, cost in entries
        ):
            self._uncounted[limit.name] = None
        else:
            before = self._uncounted.get(limit.name, 0)
            self._uncounted[limit.name] = None if before is None else before + 1

    def _check_ids(self) -> None:
        for name, clients in [*self._clients.items()]:
            ids, addresses = len(clients.ids), len(clients.addresses)
            if ids == 1 and addresses >= _MANY_CLIENTS:
                report_finding(
                    "P007",
                    f"all {addresses} addresses whose requests {name} has counted had one id, "
                    f"so they share one bucket",
                    "if they are different clients, correct the function that is the id; if they "
                    "are to share it, write id=everyone or shared('NAME')",
                )
            elif ids == clients.requests >= max(_MANY_REQUESTS, 2 * addresses):
                report_finding(
                    "P009",
                    f"each of {ids} requests of {addresses} addresses had an id of its own under "
                    f"{name}, so none is ever denied",
                    "the id must be the same for all requests of a client",
                )

    def _check_uncounted(self) -> None:
        for name, number in [*self._uncounted.items()]:
            if number is not None and number >= _MANY_REQUESTS:
                report_finding(
                    "P008",
                    f"{name} has counted none of {number} requests, because of exempt_when, a cost "
                    f"of 0, or a limit or tier that is None",
                    "correct what the function returns; if no request was to count so far, "
                    "nothing is wrong",
                )

    def _check_peers(self) -> None:
        # Copies, because other threads add to both meanwhile.
        if any(kind.startswith("P001") for kind in [*self._reported]):
            return
        peer, count = max([*self._peers.items()], key=lambda item: item[1], default=("", 0))
        if count < _NEARLY_ALL * self._count or not _is_private(peer):
            return
        trust = "" if self._reads_headers else f", and set trusted_proxies=[{peer!r}]"
        report_finding(
            "P002",
            f"{count} of the first {self._count} requests came from {peer} without "
            f"X-Forwarded-For, as from a proxy: all clients behind it share one bucket",
            f"if it is one, have it add X-Forwarded-For{trust}, and see that the server does not "
            f"remove the header",
        )


def _is_address_from(peer: str, header: str, value: str) -> bool:
    """Whether a server or middleware seems to have taken the peer's address from a header.

    Two proxies on one machine name the loopback address, too, beside that of the client.
    """
    own = forwarded_addresses("X-Forwarded-For", peer)
    named = forwarded_addresses(header, value)
    if not own or own[0] not in named:
        return False
    return set(named) == {own[0]} or not ipaddress.ip_address(own[0]).is_loopback


def _is_private(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return any(address in network for network in _PRIVATE)


def has_sibling_workers() -> bool:
    """Whether this process is one of several workers, as far as can be seen from it.

    On Linux: whether the parent process has other children that run the same command in the same
    folder.
    """
    if "pytest" in sys.modules:
        # Processes of a test run share no clients.
        return False
    parent = os.getppid()
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii").split()
        own = _command_of(str(os.getpid()))
        others = [child for child in children if child != str(os.getpid())]
        return own is not None and any(_command_of(child) == own for child in others)
    except OSError:
        return False


def _command_of(process: str) -> tuple[str, bytes] | None:
    """Return the folder and command of a process, without what differs between workers."""
    try:
        folder = Path(f"/proc/{process}/cwd").readlink()
        # Numbers, such as those of pipes.
        command = re.sub(rb"\d+", b"0", Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        # It has ended, or it belongs to another user.
        return None
    return str(folder), command
