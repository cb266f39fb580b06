"""Callables of the user that are `async def`.

Limits are decided without waiting, so `RouteLimits` calls no coroutines. If one of a limit's
callables is `async def`, all of them are called beforehand, and their results are attached to the
request. Other limits take no extra step.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, cast

from penstock._validation import is_coroutine_function
from penstock._web.identity import ReadyId, RequestValue, compile_reader, found_id
from penstock._web.rule import READ_OPTIONS, SKIPS, WrittenLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock._core import Limit
    from penstock._web.address import ClientAddress
    from penstock._web.request import Request
    from penstock._web.rule import AsyncRuleOptions, RuleOptions
    from penstock.asgi.request import AsgiRequest
    from penstock.types import Id


class ResolvedValue(ReadyId, RequestValue):
    """Stands for a value that is found before the limits are decided: an id, or another value."""

    def bind(self, address: ClientAddress) -> Callable[[Request], Id]:  # noqa: ARG002  the interface of ids
        """Return the function that returns the id found before."""
        return lambda request: found_id(self.value(request))

    def value(self, request: Request) -> Any:
        """Return the value found before; `None` if there is none."""
        resolved = cast("AsgiRequest", request).resolved
        return None if resolved is None else resolved[self]


class AsyncLimits(WrittenLimits):
    """Limits whose options have a `ResolvedValue` in place of each callable that is awaited.

    Attributes:
        is_async: Whether one of the callables is a coroutine function.
    """

    def __init__(
        self, limits: Sequence[str | Limit], options: AsyncRuleOptions, scope: str | None = None
    ) -> None:
        values = cast("dict[str, Any]", options)
        callables = {
            name: values[name]
            # In this order, a request that does not count is not read further.
            for name in READ_OPTIONS
            if callable(values.get(name)) and not isinstance(values[name], ReadyId)
        }
        self.is_async: Final = any(is_coroutine_function(source) for source in callables.values())
        replaced = dict(values)
        self._readers: Final[list[tuple[str, ResolvedValue, Callable[[Request], Any]]]] = []
        for name, source in callables.items() if self.is_async else ():
            value = replaced[name] = ResolvedValue()
            self._readers.append((name, value, compile_reader(source, name, may_wait=True)))
        super().__init__(limits, cast("RuleOptions", replaced), scope)

    async def resolve(self, request: AsgiRequest) -> None:
        """Call and await the callables, and attach their results to the request."""
        methods = self._written.methods
        if methods is not None and request.method not in methods:
            return
        if request.resolved is None:
            request.resolved = {}
        for name, resolved, read in self._readers:
            value = read(request)
            if inspect.isawaitable(value):
                value = await value
            request.resolved[resolved] = value
            if SKIPS[name](value) if name in SKIPS else (value is None and name == "limit"):
                return
