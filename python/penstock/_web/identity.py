"""Client ids: the ready-made ones, and callables of the user."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_origin
from weakref import WeakKeyDictionary

from penstock._core import canonical_address
from penstock._validation import (
    OBSERVED,
    is_coroutine_function,
    is_name,
    is_whole,
    report_finding,
)
from penstock._web.address import ADDRESS_MARK
from penstock._web.request import MissingId, Request
from penstock.errors import ConfigError
from penstock.types import Id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._web.address import ClientAddress


class ReadyId:
    """A ready-made id; each guard binds it to its own way of finding the client's address.

    Attributes:
        needs_route: Whether it is known only with the route of a request.
        needs_user: Whether it may be known only once the user is.
    """

    needs_route = False
    needs_user = False

    @property
    def shared_id(self) -> Id | None:
        """The id of the bucket that clients share because the application asks for it."""
        return None

    def sample(self) -> Id | None:
        """Return a typical id, to be checked at startup; `None` if there is no typical one."""
        return None

    def bind(self, address: ClientAddress) -> Callable[[Request], Id]:
        """Return the function that finds the id; `address` finds the client's address."""
        raise NotImplementedError


class RequestValue:
    """A value that an adapter finds before the limits of a request are decided."""

    def value(self, request: Request) -> Any:
        """Return the value that was found for a request."""
        raise NotImplementedError


IdSource: TypeAlias = ReadyId | Callable[[], Id | None] | Callable[[Any], Id | None]
"""A ready-made id, or a callable that takes the request or nothing."""


Missing: TypeAlias = "Literal['refuse', 'address'] | SharedId"
"""What to do with a request without an id: refuse it, count its address, or use a bucket."""

OnMissing: TypeAlias = "Literal['refuse'] | SharedId"
"""What an application does with requests without an id."""

_SAMPLE_ADDRESS: Final = "192.0.2.1"
# From this ratio on, a string is taken for a misspelled word.
_SIMILARITY: Final = 0.8
# As long as the shortest digest of this module.
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


class ByAddress(ReadyId):
    """The client's address; IPv6 addresses that share a prefix are one client.

    Attributes:
        prefix: The length of the prefix; `None` for the guard's.
        ipv4_sample: A typical IPv4 address.
        ipv6_sample: A typical IPv6 address.
    """

    ipv4_sample: Final = _SAMPLE_ADDRESS
    ipv6_sample: Final = "2001:db8::"

    def __init__(self, prefix: int | None) -> None:
        if prefix is not None and not is_whole(prefix, 1, 128):
            raise ConfigError(f"prefix must be an integer from 1 to 128, found {prefix!r}")
        self.prefix: Final = prefix

    def sample(self) -> Id | None:
        """Return an IPv4 address."""
        return self.ipv4_sample

    def bind(self, address: ClientAddress) -> Callable[[Request], Id]:
        """Return the function that finds the address."""
        return address.finder(self.prefix)

    def __call__(self, *, prefix: int) -> ByAddress:
        """Return the same id with another IPv6 prefix, such as 48.

        Raises:
            ConfigError: The prefix is not from 1 to 128.
        """
        return ByAddress(prefix)

    def __repr__(self) -> str:
        return "by_address" if self.prefix is None else f"by_address(prefix={self.prefix})"


def _is_id(source: object) -> bool:
    return isinstance(source, Id) and not isinstance(source, bool)


class SharedId(ReadyId):
    """One bucket for all requests.

    Attributes:
        id: Its id.
    """

    def __init__(self, id: Id) -> None:
        if not _is_id(id) or id in ("", b""):
            raise ConfigError(f"shared needs the name of a bucket, such as 'reports', found {id!r}")
        self.id: Final = id

    @property
    def shared_id(self) -> Id | None:
        """The id of the bucket."""
        return self.id

    def sample(self) -> Id | None:
        """Return the id of the bucket."""
        return self.id

    def bind(self, address: ClientAddress) -> Callable[[Request], Id]:  # noqa: ARG002  the interface of ids
        """Return the function that returns the id of the bucket."""
        return lambda _: self.id

    def __call__(self) -> SharedId:
        """Return the same id, so that `everyone()` is `everyone`."""
        return self

    def __repr__(self) -> str:
        return "everyone" if self.id == "everyone" else f"shared({self.id!r})"


# Other words for them, which a user may guess.
_MEANT: Final = {
    **dict.fromkeys(("block", "deny", "error", "none", "raise", "reject"), "refuse"),
    **dict.fromkeys(("ip", "by_address", "remote_addr"), "address"),
}


def check_missing(option: str, value: object, known: Sequence[str]) -> Any:
    """Return what to do without an id, as the user wrote it.

    Args:
        option: The name of the option, for the error message.
        value: What the user wrote.
        known: The words that it may be.

    Raises:
        ConfigError: It is neither a known word nor a `SharedId`.
    """
    if isinstance(value, SharedId) or (isinstance(value, str) and value in known):
        return value
    written = value if isinstance(value, str) else repr(value) if value is by_address else ""
    word = written.lower()
    near = get_close_matches(_MEANT.get(word, word), known, 1)
    bucket = "everyone" if word == "everyone" else f"shared({written or 'visitors'!r})"
    instead = (
        repr(near[0]) if near else f"{bucket} of penstock.identity for one bucket of all of them"
    )
    listed = ", ".join(map(repr, known))
    raise ConfigError(
        f"{option} must be {listed}, everyone or shared(...), found {value!r}; use {instead}"
    )


# What the ids of this module begin with, so that a client cannot choose the id of another one.
_KEY: Final = "key:"
_USER: Final = "user:"
_KEY_HEADERS: Final = ("X-Api-Key", "Authorization")
_SCHEMES: Final = ("bearer", "apikey", "token")
_MARKS: Final = (ADDRESS_MARK, _KEY, _USER, "/", "* ")


class OptionalId(ReadyId):
    """An id that may be missing: then refuse, use the address, or use one bucket."""

    def __init__(self, missing: Missing) -> None:
        self.missing: Final = check_missing("missing", missing, ("refuse", "address"))

    def read(self, request: Request) -> Id | None:
        """Return the id; `None` if it is missing."""
        raise NotImplementedError

    @property
    def shared_id(self) -> Id | None:
        """The id of the bucket of requests without an id; `None` if there is none."""
        return self.missing.id if isinstance(self.missing, SharedId) else None

    def search(self, _address: ClientAddress) -> _UserSearch:
        """Return what looks at the ids of the first requests of an application."""
        return _CLOSED

    def sample(self) -> Id | None:
        """Return a typical id of a request without one."""
        if self.missing == "address":
            return f"{ADDRESS_MARK}{_SAMPLE_ADDRESS}"
        return self.shared_id

    def bind(self, address: ClientAddress, *, is_text: bool = True) -> Callable[[Request], Id]:
        """Return the function that finds the id.

        Args:
            address: Finds the client's address.
            is_text: Whether the limit's ids have any form. Then an id that could be an address, or
                one of the ids of this module, is marked.
        """
        read, missing, find_address = self.read, self.missing, address.finder()
        bucket = self.shared_id
        ids, add_peer = address.marked_peers.ids, address.marked_peers.add
        marks = is_text and not isinstance(self, _ByApiKey)
        search = self.search(address)

        def find(request: Request) -> Id:
            id = read(request)
            if search.is_open:
                search.look(request, id)
            if id is not None and id != "":
                return _marked(id) if marks and isinstance(id, str) else id
            if missing == "address":
                peer = request.peer
                marked = ids[peer] if peer in ids else add_peer(peer)
                return f"{ADDRESS_MARK}{find_address(request)}" if marked is None else marked
            if bucket is None:
                message = f"{self!r} found none"
                raise MissingId(message)
            return bucket

        return find


class _UserSearch:
    """Looks at the users of the first requests of an application.

    Attributes:
        is_open: Whether no user was found, and more requests are to be looked at.
    """

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self._count = 0

    def look(self, request: Request, user: object) -> None:
        """Look at the user of a request; warn if none of the first requests has one."""
        self._count += 1
        if user is not None or getattr(request, "knows_users", False):
            self.is_open = False
        elif self._count == OBSERVED:
            self.is_open = False
            report_finding(
                "P006",
                f"by_user found no user in the first {OBSERVED} requests, so none was counted by "
                f"user",
                "if your users log in, write an id that finds them, such as "
                "id=lambda: flask.session['user']",
            )


# One for each application, whose routes look for users together.
_SEARCHES: Final[WeakKeyDictionary[ClientAddress, _UserSearch]] = WeakKeyDictionary()
_CLOSED: Final = _UserSearch(is_open=False)


class _ByUser(OptionalId):
    """The user who is logged in; otherwise the address.

    In Flask, the user of Flask-Login, `g.user` or `REMOTE_USER`; in Django, `request.user`; in
    ASGI, `scope["user"]`; in WSGI, `REMOTE_USER`. `by_user(missing="refuse")` refuses anonymous
    requests; with `missing=everyone`, or `shared("visitors")`, they share a bucket.
    """

    needs_user = True
    # As a method would, without a call of its own.
    read = attrgetter("user")  # type: ignore[assignment]

    def search(self, address: ClientAddress) -> _UserSearch:
        """Return what looks for users, and warns if the application has none."""
        # Without a user, `missing="refuse"` refuses a request, which shows at once.
        return _CLOSED if self.missing == "refuse" else _SEARCHES.setdefault(address, _UserSearch())

    def __call__(self, *, missing: Missing = "address") -> _ByUser:
        """Return the same id with another treatment of anonymous requests."""
        return _ByUser(missing)

    def __repr__(self) -> str:
        return "by_user"


class _ByHeader(OptionalId):
    def __init__(self, name: str, missing: Missing) -> None:
        super().__init__(missing)
        # Not an underscore: WSGI reads it as a hyphen, ASGI does not, and proxies drop such fields.
        if not (is_name(name) and re.fullmatch(r"[!#$%&'*+.^`|~0-9A-Za-z-]+", name)):
            raise ConfigError(f"a header name has letters, digits and hyphens, found {name!r}")
        self.name = name

    def read(self, request: Request) -> Id | None:
        value = request.header(self.name)
        if not value:
            return None
        # Servers decode each byte by itself.
        with suppress(UnicodeError):
            value = value.encode("latin-1").decode()
        return value.strip()

    def __repr__(self) -> str:
        return f"by_header({self.name!r})"


class _ByApiKey(OptionalId):
    """A digest of the key in `X-Api-Key` or `Authorization: Bearer`; otherwise the address.

    The application has to verify the key. A request with different keys in the two headers is
    refused; `by_api_key(header="Authorization")` reads one of them.
    """

    def __init__(self, missing: Missing, header: str | None = None) -> None:
        super().__init__(missing)
        known = [n for n in _KEY_HEADERS if header is None or n.lower() == str(header).lower()]
        if not known:
            raise ConfigError(f"header must be one of {', '.join(_KEY_HEADERS)}, found {header!r}")
        self._headers: Final = known

    def read(self, request: Request) -> Id | None:
        keys = {key for name in self._headers if (key := _key_in(request, name))}
        if not keys:
            return None
        # The application verifies one key. With a further one, a client would choose its bucket.
        if len(keys) > 1:
            message = (
                "X-Api-Key and Authorization have different keys; "
                "use by_api_key(header='Authorization') if that is the one you verify"
            )
            raise MissingId(message)
        (key,) = keys
        if "," in key:
            message = "a key contains a comma, as if its header had several lines"
            raise MissingId(message)
        # A digest: the key is a secret, and ids appear in messages, metrics and logs.
        return f"{_KEY}{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def __call__(self, *, missing: Missing = "address", header: str | None = None) -> _ByApiKey:
        """Return the same id with another treatment of requests without a key.

        Args:
            missing: As in `by_header`.
            header: The only header to read: `"X-Api-Key"` or `"Authorization"`.

        Raises:
            ConfigError: The header is another one.
        """
        return _ByApiKey(missing, header)

    def __repr__(self) -> str:
        return "by_api_key"


def _key_in(request: Request, header: str) -> str:
    """Return the key in a header; an empty text if there is none."""
    value = (request.header(header) or "").strip()
    if header == "X-Api-Key":
        return value
    # At any white space, as some frameworks do: another spelling must not be another client.
    scheme, *credentials = value.split(None, 1) or [""]
    return credentials[0] if credentials and scheme.lower() in _SCHEMES else ""


class _PerRoute(ReadyId):
    needs_route = True

    def __init__(self, inner: IdSource) -> None:
        check_id(inner)
        self.inner = inner
        self.needs_user = inner.needs_user if isinstance(inner, ReadyId) else callable(inner)

    @property
    def shared_id(self) -> Id | None:
        return self.inner.shared_id if isinstance(self.inner, ReadyId) else None

    def sample(self) -> Id | None:
        return f"/ {_SAMPLE_ADDRESS}"

    def bind(self, address: ClientAddress) -> Callable[[Request], Id]:
        inner = compile_id(self.inner, address)

        def find(request: Request) -> Id:
            # The template, not the path: otherwise each order of `/orders/<id>` had a bucket.
            return f"{request.route or '*'} {_text(inner(request))}"

        return find

    def __repr__(self) -> str:
        return f"per_route({self.inner!r})"


def _marked(id: str) -> str:
    """Return the id of a user, with a mark if it could be taken for another client's."""
    is_ambiguous = id.startswith(_MARKS) or (
        (":" in id or "." in id) and id.isascii() and canonical_address(id, 128) is not None
    )
    return f"{_USER}{id}" if is_ambiguous else id


def printable_id(id: str | None) -> str | None:
    """Return what people may read of an id, without marks; `None` if it is a digest.

    Examples:
        >>> from penstock._web.identity import printable_id
        >>> printable_id("address:203.0.113.7"), printable_id("/orders/<id> ada")
        ('203.0.113.7', 'ada')
        >>> printable_id("key:594e519ae499312b29433b7dd8a97ff0") is None
        True
    """
    if id is None or _DIGEST.search(id):
        return None
    if id.startswith(("/", "* ")) and " " in id:
        id = id.partition(" ")[2]
    if id.startswith(_KEY):
        return None
    if id.startswith(_USER):
        return id.removeprefix(_USER)
    return id.removeprefix(ADDRESS_MARK)


def _text(id: Id) -> str:
    try:
        return id.decode() if isinstance(id, bytes) else str(id)
    except UnicodeDecodeError as error:
        message = "the id is not valid UTF-8"
        raise MissingId(message) from error


everyone: Final = SharedId("everyone")
"""One bucket for all requests."""


def shared(name: Id) -> SharedId:
    """Return an id that is one bucket for all requests, next to other ones.

    Args:
        name: The id of the bucket, as overrides name it.

    Raises:
        ConfigError: The name is empty, or not an id.

    Examples:
        >>> from penstock._web.identity import by_user, shared
        >>> shared("reports")
        shared('reports')
        >>> by_user(missing=shared("visitors"))
        by_user
    """
    return SharedId(name)


by_address: Final = ByAddress(None)
"""The client's address, behind the proxies that the guard trusts; IPv6 by its prefix.

`by_address(prefix=48)` has a prefix of its own, for a second limit on wider ranges.
"""

by_user: Final = _ByUser("address")
"""The user who is logged in; otherwise the address.

In Flask, the user of Flask-Login, `g.user` or `REMOTE_USER`; in Django, `request.user`; in ASGI,
`scope["user"]`; in WSGI, `REMOTE_USER`. `by_user(missing="refuse")` refuses anonymous requests;
with `missing=everyone`, or `shared("visitors")`, they share a bucket.
"""

by_api_key: Final = _ByApiKey("address")
"""A digest of the key in `X-Api-Key` or `Authorization: Bearer`; otherwise the address.

`missing` is as in `by_user`. The application has to verify the key. A request with different keys
in the two headers is refused; `by_api_key(header="Authorization")` reads one of them.
"""


def by_header(name: str, *, missing: Missing = "refuse") -> ReadyId:
    """Return an id that is the value of a header.

    Clients can send any header: use one that your own proxy sets, or that you verify elsewhere.

    Args:
        name: The name of the header.
        missing: What to do without it: `"refuse"`, `"address"`, or a bucket that such requests
            share, such as `everyone` or `shared("visitors")`.

    Raises:
        ConfigError: The name is not valid for a header.

    Examples:
        >>> from penstock._web.identity import by_header
        >>> by_header("X-Tenant", missing="address")
        by_header('X-Tenant')
    """
    return _ByHeader(name, missing)


def per_route(inner: IdSource = by_address) -> ReadyId:
    """Return an id that counts each route separately: its template together with `inner`.

    Examples:
        >>> from penstock._web.identity import by_user, per_route
        >>> per_route(by_user)
        per_route(by_user)
    """
    return _PerRoute(inner)


# Words with which other packages, or limits files, name a client, and what to write here.
_WORDS: Final = {
    "by_address": "address client clientip clientaddress host ip ipaddress ipaddr peer remoteaddr",
    "by_user": "account login user userid username useroraddress userorip",
    "by_api_key": "apikey key token",
    "everyone": "* all any anyone anybody everyone global shared site",
    "by_header('X-Tenant')": "header headers",
}
_INSTEAD: Final = {word: name for name, words in _WORDS.items() for word in words.split()}


def _instead_of(text: str) -> str:
    """Return what to write in place of a string as an id."""
    kind, _, name = text.partition(":")
    if kind.lower() == "header" and name:
        return f"by_header({name.strip()!r})"
    if kind.lower() in ("get", "post") and name:
        return f"lambda request: request.{kind.upper()}.get({name.strip()!r})"
    plain = text.lower().replace("_", "").replace("-", "").replace(" ", "").removeprefix("by")
    near = get_close_matches(plain, _INSTEAD, 1, _SIMILARITY)
    return _INSTEAD[near[0]] if near else f"shared({text!r})"


def check_id(source: object) -> None:
    """Check an id as the user wrote it.

    Raises:
        ConfigError: It is not an id; the message says what to write instead.
    """
    if source is by_header or source is shared:
        call = "by_header('X-Tenant')" if source is by_header else "shared('reports')"
        raise ConfigError(f"id: call it, such as id={call}")
    if source is per_route:
        raise ConfigError("id: call it, such as id=per_route()")
    if isinstance(source, ReadyId) or callable(source):
        return
    if isinstance(source, str) and source:
        instead = _instead_of(source)
    elif _is_id(source) and source:
        instead = f"shared({source!r})"
    else:
        instead = "by_address"
    if instead.startswith("shared("):
        instead += " for one bucket of all clients"
    raise ConfigError(
        f"id must be one of penstock.identity or a function, found {source!r}; use id={instead}"
    )


def compile_id(source: IdSource, address: ClientAddress) -> Callable[[Request], Id]:
    """Return the function that finds an id, and raises `MissingId` if there is none.

    Raises:
        ConfigError: `source` is not an id.
    """
    check_id(source)
    if isinstance(source, ReadyId):
        return source.bind(address)
    read = compile_reader(source, "id")
    return lambda request: found_id(read(request))


def found_id(id: object) -> Id:
    """Return what a callable of the user returned, if it is an id.

    It may come from the client, such as a field of a form, so an invalid one is not a bug of the
    application.

    Raises:
        MissingId: It is empty, or not an id.
    """
    if type(id) is str and id:
        return id
    if id is None or id == "":
        message = f"the id callable returned {id!r}"
        raise MissingId(message)
    if not _is_id(id):
        kind = type(id).__name__
        raise MissingId(f"the id callable must return a str, int, bytes or address, found a {kind}")
    return cast("Id", id)


def compile_reader(
    source: Callable[..., Any] | RequestValue, option: str, *, may_wait: bool = False
) -> Callable[[Request], Any]:
    """Return a function of a `Request` that calls a callable of the user.

    Args:
        source: The callable; it takes the framework's request, or nothing.
        option: The name of the option, for error messages.
        may_wait: Whether it may be a coroutine function; the result is then awaitable.

    Raises:
        ConfigError: It is a class, or a coroutine function and may not be, or needs other
            arguments.
    """
    if isinstance(source, RequestValue):
        return source.value
    # What a class returns is its instance; `Annotated[str, ...]` is called like the class `str`.
    is_class = isinstance(source, type) or get_origin(source) is not None
    if (is_coroutine_function(source) and not may_wait) or is_class or not callable(source):
        raise ConfigError(f"{option} must be an ordinary function, found {source!r}")
    try:
        parameters = inspect.signature(source).parameters.values()
    except ValueError:
        # Some built-in callables have no signature.
        return lambda request: source(request.native)
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    spread = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    named = [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    if len(needed) > 1 or named:
        signature = inspect.signature(source)
        raise ConfigError(
            f"{option} must take the request or nothing, found {source!r} with {signature}"
        )
    if needed or spread:
        return lambda request: source(request.native)
    return lambda _: source()
