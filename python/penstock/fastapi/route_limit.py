"""A limit in the dependencies of a route."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar, Unpack, cast

from fastapi.params import Depends
from starlette.requests import HTTPConnection

from penstock._web.rule import READ_OPTIONS, AsyncRuleOptions
from penstock.asgi.callables import AsyncLimits, ResolvedValue
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from penstock._core import Limit

_Result = TypeVar("_Result")
# Where the classes of `Depends`, `Header`, `Query` and others are.
_DECLARED: Final = ("fastapi.params", "fastapi.param_functions")


def refuse_endpoint(
    call: Callable[..., Coroutine[Any, Any, _Result]],
) -> Callable[..., Coroutine[Any, Any, _Result]]:
    """Make the `__call__` of a limit refuse an endpoint, which a decorator would pass to it.

    A coroutine could not: nothing awaits what a decorator returns.
    """

    # FastAPI awaits the dependency, because it looks at what is wrapped.
    @functools.wraps(call)
    def checked(
        self: RouteLimit, connection: HTTPConnection, **values: Any
    ) -> Coroutine[Any, Any, _Result]:
        if callable(connection):
            place = (
                "dependencies=[...] of the route"
                if self.is_per_request
                else "a parameter of the endpoint"
            )
            raise ConfigError(
                f"{self!r} is a dependency, not a decorator; write Depends({self!r}) in {place}"
            )
        return call(self, connection, **values)

    return checked


def _check_unwrapped(option: str, source: object) -> None:
    """Check that a callable does not need FastAPI to resolve its parameters.

    Raises:
        ConfigError: It does; or it is an alias with `Depends`, such as of a parameter.
    """
    for declared in getattr(source, "__metadata__", ()):
        if isinstance(declared, Depends):
            name = getattr(declared.dependency, "__name__", repr(declared.dependency))
            raise ConfigError(f"{option}: write {option}=Depends({name}), without Annotated")
    if not inspect.isroutine(source):
        return
    try:
        parameters = inspect.signature(source, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError):
        return
    for parameter in parameters:
        declared = (parameter.default, *getattr(parameter.annotation, "__metadata__", ()))
        if any(type(each).__module__ in _DECLARED for each in declared):
            name = getattr(source, "__name__", repr(source))
            raise ConfigError(
                f"{option}: FastAPI has to resolve {parameter.name} of {name}; "
                f"write {option}=Depends({name})"
            )


class RouteLimit(AsyncLimits):
    """One or several limits of a route, as its dependencies declare them.

    Attributes:
        is_per_request: Whether it is decided before the endpoint runs.
        has_dependencies: Whether FastAPI resolves one of its options, such as its id.
    """

    is_per_request: ClassVar[bool]

    def __init__(
        self, *limits: str | Limit, scope: str | None = None, **options: Unpack[AsyncRuleOptions]
    ) -> None:
        values = cast("dict[str, Any]", options)
        depends = {
            name: value for name in READ_OPTIONS if isinstance(value := values.get(name), Depends)
        }
        for name in READ_OPTIONS:
            _check_unwrapped(name, values.get(name))
        self._resolved: Final = {name: ResolvedValue() for name in depends}
        super().__init__(limits, cast("AsyncRuleOptions", {**values, **self._resolved}), scope)
        self.has_dependencies: Final = bool(depends)
        kind = inspect.Parameter.KEYWORD_ONLY
        self._signature: Final = inspect.Signature(
            [
                inspect.Parameter("connection", kind, annotation=HTTPConnection),
                *(
                    inspect.Parameter(name, kind, annotation=Any, default=default)
                    for name, default in depends.items()
                ),
            ]
        )

    def __getattr__(self, name: str) -> Any:
        """Return the signature, by which FastAPI finds out what to pass for each request."""
        if name != "__signature__":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self.is_used = True
        return self._signature

    @property
    def dependency(self) -> NoReturn:
        """The attribute that FastAPI reads in `dependencies=[...]`, where only `Depends` belongs.

        Raises:
            ConfigError: Always; the message says what to write.
        """
        raise ConfigError(f"{self!r} needs Depends; write dependencies=[Depends({self!r})]")

    def resolved(self, values: Mapping[str, Any]) -> dict[object, Any]:
        """Return what FastAPI resolved, as `AsgiRequest.resolved` stores it."""
        return {resolved: values[name] for name, resolved in self._resolved.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._limits))})"
