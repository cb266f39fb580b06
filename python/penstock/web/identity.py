"""Who is asking: the ready-made ids, and callables of the user made to fit.

The client's address, with all that proxies do to it, is found in `address.py`.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from penstock.errors import ConfigError
from penstock.validation import is_callable, is_coroutine_function
from penstock.web.request import Id, MissingId, Request


class ReadyId:
    """An id that penstock knows how to find; made for each guard, which knows the proxies."""

    needs_route = False

    def sample(self) -> Id | None:
        """Give an id as it could come, to be tried at start; `None` where nothing can be said."""
        return None

    def bind(self, address: Callable[[Request], str]) -> Callable[[Request], Id]:
        """Give the function that finds the id; `address` finds the client's address."""
        raise NotImplementedError


IdSource: TypeAlias = Id | ReadyId | Callable[[], Id | None] | Callable[[Any], Id | None]
"""Where an id comes from: ready-made, a callable with or without the request, or one for all."""


_SAMPLE_ADDRESS: Final = "192.0.2.1"


class _ByAddress(ReadyId):
    def sample(self) -> Id | None:
        return _SAMPLE_ADDRESS

    def bind(self, address: Callable[[Request], str]) -> Callable[[Request], Id]:
        return address

    def __repr__(self) -> str:
        return "by_address"


class _Missing(ReadyId):
    """An id that may be missing, and what to do then: refuse, count by address, or one bucket."""

    def __init__(self, missing: str) -> None:
        if not missing:
            message = "missing must be 'refuse', 'address' or the name of a bucket, found ''"
            raise ConfigError(message)
        self.missing = missing

    def read(self, request: Request) -> Id | None:
        raise NotImplementedError

    def sample(self) -> Id | None:
        if self.missing == "address":
            return f"address:{_SAMPLE_ADDRESS}"
        return None if self.missing == "refuse" else self.missing

    def bind(self, address: Callable[[Request], str]) -> Callable[[Request], Id]:
        read, missing = self.read, self.missing

        def find(request: Request) -> Id:
            id = read(request)
            if id is not None and id != "":
                return id
            if missing == "address":
                # Marked, so that nobody spends another's tokens by calling himself as an address.
                return f"address:{address(request)}"
            if missing == "refuse":
                message = f"{self!r} found none"
                raise MissingId(message)
            return missing

        return find


class _ByUser(_Missing):
    def read(self, request: Request) -> Id | None:
        return request.user

    def __call__(self, *, missing: str = "address") -> _ByUser:
        """Say what to do with those who have not logged in."""
        return _ByUser(missing)

    def __repr__(self) -> str:
        return "by_user"


class _ByHeader(_Missing):
    def __init__(self, name: str, missing: str) -> None:
        super().__init__(missing)
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ConfigError(f"a header's name has letters, digits and hyphens, found {name!r}")
        self.name = name

    def read(self, request: Request) -> Id | None:
        value = request.header(self.name)
        return value.strip() if value else None

    def __repr__(self) -> str:
        return f"by_header({self.name!r})"


class _ByApiKey(_Missing):
    def read(self, request: Request) -> Id | None:
        key = request.header("X-Api-Key")
        if not key:
            scheme, _, credentials = (request.header("Authorization") or "").strip().partition(" ")
            key = credentials if scheme.lower() in ("bearer", "apikey", "token") else None
        if not key or not key.strip():
            return None
        # A digest: the key is a secret, and ids are shown in messages, figures and logs.
        return f"key:{hashlib.sha256(key.strip().encode()).hexdigest()[:32]}"

    def __call__(self, *, missing: str = "address") -> _ByApiKey:
        """Say what to do with those who bring no key."""
        return _ByApiKey(missing)

    def __repr__(self) -> str:
        return "by_api_key"


class _PerRoute(ReadyId):
    needs_route = True

    def __init__(self, inner: IdSource) -> None:
        self.inner = inner

    def sample(self) -> Id | None:
        return f"/ {_SAMPLE_ADDRESS}"

    def bind(self, address: Callable[[Request], str]) -> Callable[[Request], Id]:
        inner = compile_id(self.inner, address)

        def find(request: Request) -> Id:
            # The template, never the concrete address, or each order of `/orders/<id>` had a
            # bucket.
            return f"{request.route or '*'} {_text(inner(request))}"

        return find

    def __repr__(self) -> str:
        return f"per_route({self.inner!r})"


def _text(id: Id) -> str:
    try:
        return id.decode() if isinstance(id, bytes) else str(id)
    except UnicodeDecodeError as error:
        message = "the id is no text in UTF-8"
        raise MissingId(message) from error


by_address: Final[ReadyId] = _ByAddress()
"""The client's address, IPv6 by its prefix; proxies as the guard was told."""

by_user: Final = _ByUser("address")
"""Who has logged in, by the framework's own account of it; else the address.

`by_user(missing="refuse")` refuses those who have not logged in, and any other text is one bucket
that they share.
"""

by_api_key: Final = _ByApiKey("address")
"""A digest of the key in `X-Api-Key` or `Authorization: Bearer`; else the address.

`missing` as in `by_user`. The key is not checked: that is the application's part.
"""


def by_header(name: str, *, missing: str = "refuse") -> ReadyId:
    """Make the id that a header holds.

    Anybody can write any header, so use one that your own proxy sets, or that you check elsewhere.

    Args:
        name: The header.
        missing: What to do without it: `"refuse"`, `"address"`, or the name of a bucket for all
            such.

    Raises:
        ConfigError: The name cannot be a header's.

    Example:
        >>> from penstock.web.identity import by_header
        >>> by_header("X-Tenant", missing="address")
        by_header('X-Tenant')
    """
    return _ByHeader(name, missing)


def per_route(inner: IdSource = by_address) -> ReadyId:
    """Make an id that counts each route apart, by its template, and in it by `inner`.

    Example:
        >>> from penstock.web.identity import by_user, per_route
        >>> per_route(by_user)
        per_route(by_user)
    """
    return _PerRoute(inner)


def compile_id(source: IdSource, address: Callable[[Request], str]) -> Callable[[Request], Id]:
    """Give the function that finds an id; it raises `MissingId` where there is none.

    Raises:
        ConfigError: `source` is nothing that an id can come from.
    """
    if isinstance(source, ReadyId):
        return source.bind(address)
    if callable(source):
        read = compile_reader(source, "id")
        return lambda request: found_id(read(request))
    if not _is_id(source) or source in ("", b""):
        raise ConfigError(
            f"id must be a callable, a ready-made id or an id for all, found {source!r}"
        )
    return lambda _: source


def found_id(found: object) -> Id:
    """Give what a callable of the user has found, if it names anybody.

    It may be a client's own words, such as a field of a body, so that what is no id is no fault of
    the application.

    Raises:
        MissingId: It is nothing, or no id.
    """
    if type(found) is str and found:
        return found
    if found is None or found == "":
        message = "the id callable found none"
        raise MissingId(message)
    if not _is_id(found):
        kind = type(found).__name__
        raise MissingId(f"the id callable must give a str, int, bytes or address, found a {kind}")
    return cast("Id", found)


def _is_id(source: object) -> bool:
    return isinstance(source, Id) and not isinstance(source, bool)


def compile_reader(
    source: Callable[..., Any], what: str, *, may_wait: bool = False
) -> Callable[[Request], Any]:
    """Give a user's callable, which takes the framework's request or nothing, one of ours.

    Args:
        source: The callable.
        what: What it is for.
        may_wait: Whether it may be a coroutine function; ours then gives what is to be awaited.

    Raises:
        ConfigError: It is a coroutine function and may not be, or wants more than one argument.
    """
    if not is_callable(source) or (is_coroutine_function(source) and not may_wait):
        raise ConfigError(f"{what} must be an ordinary function, found {source!r}")
    try:
        parameters = inspect.signature(source).parameters.values()
    except ValueError:
        # Some built-in callables do not say what they take.
        return lambda request: source(request.native)
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    spread = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    named = [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    if len(needed) > 1 or named:
        wanted = inspect.signature(source)
        raise ConfigError(f"{what} takes the request or nothing, found {source!r} with {wanted}")
    if needed or spread:
        return lambda request: source(request.native)
    return lambda _: source()
