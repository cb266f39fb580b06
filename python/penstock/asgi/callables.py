"""Callables of the user that are `async def`.

Limits are decided without waiting, so `RouteLimits` calls no coroutines. If one of a limit's
callables is `async def`, all of them are called beforehand, and their results are attached to the
request. Other limits take no extra step.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, cast

from penstock.validation import is_coroutine_function
from penstock.web.identity import IdSource, ReadyId, RequestValue, compile_reader, found_id
from penstock.web.rule import Cost, Mode, Reader, Rule, RuleOptions, make_rule

if TYPE_CHECKING:
    from penstock._core import Limit
    from penstock.asgi.request import AsgiRequest
    from penstock.types import Factor, Id, Period, StorePolicy
    from penstock.web.address import ClientAddress
    from penstock.web.request import Request

_AsyncReader: TypeAlias = Callable[[], Awaitable[Any]] | Callable[[Any], Awaitable[Any]]
# In this order, so that a request that does not count is not read further.
_OPTIONS: Final = ("exempt_when", "limit", "tier", "factor", "keep", "id", "cost")


class AsyncLimitOptions(TypedDict, total=False):
    """Keywords of `penstock.web.rule.LimitOptions`, whose callables may be `async def`."""

    id: IdSource | _AsyncReader
    cost: Cost | _AsyncReader
    tiers: Mapping[str, str | Limit | None]
    tier: Reader | _AsyncReader
    factor: Factor | Reader | _AsyncReader
    keep: int | Reader | _AsyncReader
    methods: str | Sequence[str] | None
    exempt_when: Reader | _AsyncReader | None
    deduct_when: Callable[[Any], Any] | None
    cost_from_response: Callable[[Any], Any] | None
    reserve: bool
    refund_on_error: bool
    mode: Mode
    count_denied: bool
    block_for: Period | Sequence[Period] | None


class AsyncRuleOptions(AsyncLimitOptions, total=False):
    """Keywords of `penstock.web.rule.RuleOptions`, whose callables may be `async def`."""

    limit: Reader | _AsyncReader
    override_defaults: bool | None
    on_store_error: StorePolicy | None


class ResolvedValue(ReadyId, RequestValue):
    """Stands for a value that is found before the limits are decided: an id, or another value."""

    def bind(self, address: ClientAddress) -> Callable[[Request], Id]:  # noqa: ARG002  the interface of ids
        """Return the function that returns the id found before."""
        return lambda request: found_id(self.value(request))

    def value(self, request: Request) -> Any:
        """Return the value found before; `None` if there is none."""
        resolved = cast("AsgiRequest", request).resolved
        return None if resolved is None else resolved[self]


class AsyncCallables:
    """Options of a limit, with a `ResolvedValue` in place of each callable that is awaited.

    Attributes:
        is_async: Whether one of the callables is a coroutine function.
    """

    def __init__(self, options: AsyncRuleOptions) -> None:
        given = cast("dict[str, Any]", options)
        callables = {
            name: given[name]
            for name in _OPTIONS
            if callable(given.get(name)) and not isinstance(given[name], ReadyId)
        }
        self.is_async: Final = any(is_coroutine_function(source) for source in callables.values())
        self._options: Final = dict(given)
        self._readers: Final[list[tuple[str, ResolvedValue, Callable[[Request], Any]]]] = []
        for name, source in callables.items() if self.is_async else ():
            value = self._options[name] = ResolvedValue()
            self._readers.append((name, value, compile_reader(source, name, may_wait=True)))
        self._methods: frozenset[str] | None = None

    def rule(self, limits: Sequence[str | Limit], scope: str, *, is_shared: bool = False) -> Rule:
        """Return a rule with the options; see `penstock.web.rule.make_rule`.

        Raises:
            ConfigError: An option is invalid.
        """
        rule = make_rule(limits, scope, cast("RuleOptions", self._options), is_shared=is_shared)
        self._methods = rule.methods
        return rule

    async def resolve(self, request: AsgiRequest) -> None:
        """Call and await the callables, and attach their results to the request."""
        if self._methods is not None and request.method not in self._methods:
            return
        if request.resolved is None:
            request.resolved = {}
        for name, resolved, read in self._readers:
            value = read(request)
            if inspect.isawaitable(value):
                value = await value
            request.resolved[resolved] = value
            if (value and name == "exempt_when") or (value is None and name == "limit"):
                return
