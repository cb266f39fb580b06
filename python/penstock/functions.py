"""Limits of plain functions and blocks of code: jobs, tasks of a queue, calls to a service."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast, overload

from penstock._validation import check_call, check_flag, read_timeout, slots_error
from penstock.aio import AsyncLimiter, plain_limiter
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penstock._core import Decision, Limiter
    from penstock.types import Id, Period

__all__ = ["limited"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class limited:  # noqa: N801  a decorator
    """Limit a function or a block of code: `@limited(...)`, `with` or `async with`.

    A call that is denied raises `RateLimited`, and the function is not called. Functions can be
    `async def`.

    Args:
        limiter: The limiter.
        name: The name of one of its limits.
        id: The client: an id, or a callable that takes the arguments of the function and returns
            one. The default is the name of the function; a block needs an id.
        cost: Tokens, or a callable as above.
        timeout: The longest wait for a turn, in seconds, as a string or as a `timedelta`; 0, the
            default, never waits, and `None` waits as long as necessary.
        refund_on_error: Whether the tokens are returned if the function or the block raises.

    Raises:
        ConfigError: An argument is invalid.

    Examples:
        >>> from penstock.functions import limited
        >>> limiter = penstock.Limiter({"Mails": "1/minute"}, clock=penstock.ManualClock())
        >>> @limited(limiter, "Mails", id=lambda to: to)
        ... def send_mail(to):
        ...     return f"sent to {to}"
        >>> send_mail("ada")
        'sent to ada'
        >>> try:
        ...     send_mail("ada")
        ... except penstock.RateLimited as error:
        ...     error.decision.retry_after
        60.0
    """

    # Type checkers infer the parameters of a lambda from a callable with as many.
    @overload
    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        name: str,
        *,
        id: Id | Callable[[Any], Id] | None = None,
        cost: int | Callable[[Any], int] = 1,
        timeout: Period | None = 0,
        refund_on_error: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        name: str,
        *,
        id: Id | Callable[[Any, Any], Id] | Callable[..., Id] | None = None,
        cost: int | Callable[[Any, Any], int] | Callable[..., int] = 1,
        timeout: Period | None = 0,
        refund_on_error: bool = False,
    ) -> None: ...

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        name: str,
        *,
        id: Id | Callable[..., Id] | None = None,
        cost: int | Callable[..., int] = 1,
        timeout: Period | None = 0,
        refund_on_error: bool = False,
    ) -> None:
        self._limiter: Final = plain_limiter(limiter)
        if check_call(self._limiter.limits, name, id, cost):
            raise slots_error(name)
        check_flag("refund_on_error", refund_on_error)
        self._name: Final = name
        self._id: Final = id
        self._cost: Final = cost
        timeout_ns = read_timeout(timeout)
        self._timeout: Final = None if timeout_ns is None else timeout_ns / 1e9
        self._refund_on_error: Final = refund_on_error

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Limit a function."""
        if not callable(function):
            raise ConfigError(f"limit a function, found {function!r}")
        default = f"{function.__module__}.{function.__qualname__}"
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def limited_coroutine(*args: Any, **kwargs: Any) -> Any:
                id, cost = self._read(default, args, kwargs)
                await self._aspend(id, cost)
                try:
                    return await cast("Any", function)(*args, **kwargs)
                except Exception:
                    await self._arefund(id, cost)
                    raise

            return cast("Callable[_Arguments, _Result]", limited_coroutine)

        @wraps(function)
        def limited_function(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            id, cost = self._read(default, args, kwargs)
            self._spend(id, cost)
            try:
                return function(*args, **kwargs)
            except Exception:
                self._refund(id, cost)
                raise

        return limited_function

    def __enter__(self) -> Decision:
        """Take the tokens of a block; return the decision.

        Raises:
            RateLimited: The limit denies it.
            ConfigError: The id or the cost is a callable, or there is no id.
        """
        return self._spend(*self._of_block())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Return the tokens of a block that raised, with `refund_on_error`."""
        if isinstance(error, Exception):
            self._refund(*self._of_block())

    async def __aenter__(self) -> Decision:
        """Do the same as `__enter__` without blocking the event loop."""
        return await self._aspend(*self._of_block())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do the same as `__exit__` without blocking the event loop."""
        if isinstance(error, Exception):
            await self._arefund(*self._of_block())

    def _read(self, default: str, args: Any, kwargs: Any) -> tuple[Id, int]:
        id = self._id(*args, **kwargs) if callable(self._id) else self._id
        cost = self._cost(*args, **kwargs) if callable(self._cost) else self._cost
        return default if id is None and self._id is None else cast("Id", id), cost

    def _of_block(self) -> tuple[Id, int]:
        if self._id is None or callable(self._id) or callable(self._cost):
            raise ConfigError(
                "a block has no arguments: pass limited() an id, and a number as cost"
            )
        return self._id, self._cost

    def _spend(self, id: Id, cost: int) -> Decision:
        if self._timeout != 0:
            return self._limiter.acquire(self._name, id, cost, timeout=self._timeout)
        decision = self._limiter.spend(self._name, id, cost)
        decision.raise_if_denied()
        return decision

    async def _aspend(self, id: Id, cost: int) -> Decision:
        limiter = AsyncLimiter(self._limiter)
        if self._timeout != 0:
            return await limiter.acquire(self._name, id, cost, timeout=self._timeout)
        decision = await limiter.spend(self._name, id, cost)
        decision.raise_if_denied()
        return decision

    def _refund(self, id: Id, cost: int) -> None:
        if self._refund_on_error:
            self._limiter.refund(self._name, id, cost)

    async def _arefund(self, id: Id, cost: int) -> None:
        if self._refund_on_error:
            await AsyncLimiter(self._limiter).refund(self._name, id, cost)
