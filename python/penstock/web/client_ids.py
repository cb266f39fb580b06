"""The ids of clients under the limits of a guard: how each is found, and whether it fits."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError, InvalidId
from penstock.types import Id
from penstock.web.identity import ByAddress, IdSource, OptionalId, ReadyId, compile_id
from penstock.web.request import MissingId

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock._core import BoundLimit, Limiter
    from penstock.web.address import ClientAddress
    from penstock.web.request import Request
    from penstock.web.rule import Rule


class ClientIds:
    """The ids of the clients of a guard.

    Args:
        limiter: The limiter of the guard.
        address: Finds the client's address.
        shared_bucket: The bucket of requests without an id; `None` if they are refused.
    """

    def __init__(self, limiter: Limiter, address: ClientAddress, shared_bucket: str | None) -> None:
        self._limiter: Final = limiter
        self._address: Final = address
        self._shared_bucket: Final = shared_bucket

    def finder(self, source: IdSource, bound: BoundLimit | None = None) -> Callable[[Request], Id]:
        """Return the function that finds an id, under a limit if one is given.

        Raises:
            ConfigError: `source` is not an id.
        """
        find: Callable[[Request], Id]
        if isinstance(source, ByAddress) and bound is not None:
            find = self._address.limit_finder(bound, source.prefix)
        elif isinstance(source, OptionalId) and bound is not None:
            find = source.bind(self._address, is_text=self._has_text_ids(bound.name))
        else:
            find = compile_id(source, self._address)
        bucket = self._shared_bucket
        if bucket is None:
            return find

        def find_or_share(request: Request) -> Id:
            try:
                return find(request)
            except MissingId:
                return bucket

        return find_or_share

    def _has_text_ids(self, name: str) -> bool:
        with suppress(InvalidId):
            self._limiter.limits.resolve(name, "user:a text")
            return True
        return False

    def is_ipv6_only(self, rule: Rule, name: str) -> bool:
        """Check that the ids of a rule fit a limit, and return whether only IPv6 addresses do.

        Raises:
            ConfigError: They do not fit.
        """
        if isinstance(rule.id, ByAddress) and self._shared_bucket is None:
            with suppress(InvalidId):
                self._limiter.limits.resolve(name, rule.id.ipv4_sample)
                return False
            with suppress(InvalidId):
                self._limiter.limits.resolve(name, rule.id.ipv6_sample)
                return True
        typical = rule.id.sample() if isinstance(rule.id, ReadyId) else rule.id
        for sample in (typical, self._shared_bucket):
            try:
                if isinstance(sample, Id):
                    self._limiter.limits.resolve(name, sample)
            except InvalidId as error:
                raise ConfigError(
                    f"{name}: ids of {rule.id!r} such as {sample!r} do not fit: {error}"
                ) from error
        return False
