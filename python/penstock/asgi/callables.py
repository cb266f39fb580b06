"""Callables of the user that are awaited before the limits are asked.

A decision itself never waits, so a plan knows no coroutines. Where one of a limit's callables is
`async def`, all of them are read beforehand, and the plan finds their values with the request. A
limit without such a callable takes no step more.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, cast

from penstock.validation import is_coroutine_function
from penstock.web.identity import IdSource, ReadyId, compile_reader, found_id
from penstock.web.rule import Cost, Mode, Reader, Rule, RuleOptions, StorePolicy, make_rule

if TYPE_CHECKING:
    from penstock._core import Limit
    from penstock.asgi.request import AsgiRequest
    from penstock.web.request import Id, Request

_AsyncReader: TypeAlias = Callable[[], Awaitable[Any]] | Callable[[Any], Awaitable[Any]]
# In this order, so that nothing is read of a request that does not count.
_READ: Final = ("exempt_when", "id", "cost")


class AsyncLimitOptions(TypedDict, total=False):
    """The keywords of `penstock.web.rule.LimitOptions`, whose callables may be `async def` here."""

    id: IdSource | _AsyncReader
    cost: Cost | _AsyncReader
    methods: str | Sequence[str] | None
    exempt_when: Reader | _AsyncReader | None
    deduct_when: Callable[[Any], Any] | None
    refund_on_error: bool
    mode: Mode


class AsyncRuleOptions(AsyncLimitOptions, total=False):
    """The keywords of `penstock.web.rule.RuleOptions`, whose callables may be `async def` here."""

    on_store_error: StorePolicy | None


class ResolvedValue(ReadyId):
    """Where a value stands that was found before: as an id, or as any other value."""

    def bind(self, address: Callable[[Request], str]) -> Callable[[Request], Id]:  # noqa: ARG002  as every id
        """Give the function that finds the id in its place."""
        return lambda request: found_id(self.value(request))

    def value(self, request: Request) -> Any:
        """Give what was found."""
        found = cast("AsgiRequest", request).found
        return None if found is None else found[self]


class AsyncCallables:
    """The options of a limit, with slots in place of the callables that are awaited.

    Attributes:
        is_async: Whether one of the callables is a coroutine function.
    """

    def __init__(self, options: AsyncRuleOptions) -> None:
        given = cast("dict[str, Any]", options)
        callables = {
            name: given[name]
            for name in _READ
            if callable(given.get(name)) and not isinstance(given[name], ReadyId)
        }
        self.is_async: Final = any(is_coroutine_function(source) for source in callables.values())
        self._options: Final = dict(given)
        self._reads: Final[list[tuple[str, ResolvedValue, Callable[[Request], Any]]]] = []
        for name, source in callables.items() if self.is_async else ():
            slot = self._options[name] = ResolvedValue()
            self._reads.append((name, slot, compile_reader(source, name, may_wait=True)))
        self._methods: frozenset[str] | None = None

    def rule(self, limits: Sequence[str | Limit], scope: str, *, is_shared: bool = False) -> Rule:
        """Make a rule of the options; see `penstock.web.rule.make_rule`.

        Raises:
            ConfigError: Something that cannot be, and what would do.
        """
        slots = {
            name: slot.value
            for name in ("cost", "exempt_when")
            if isinstance(slot := self._options.get(name), ResolvedValue)
        }
        plain = {name: given for name, given in self._options.items() if name not in slots}
        rule = make_rule(limits, scope, cast("RuleOptions", plain), is_shared=is_shared)
        self._methods = rule.methods
        # Their types are those of the two fields, which a mapping cannot say.
        return replace(rule, **cast("dict[str, Any]", slots))

    async def find(self, request: AsgiRequest) -> None:
        """Await what the limit wants to know of a request, and leave it there."""
        if self._methods is not None and request.method not in self._methods:
            return
        if request.found is None:
            request.found = {}
        for name, slot, read in self._reads:
            value = read(request)
            if inspect.isawaitable(value):
                value = await value
            request.found[slot] = value
            if value and name == "exempt_when":
                return
