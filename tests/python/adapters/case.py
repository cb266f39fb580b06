"""The neutral terms of a case: routes with limits, requests and responses of views, and drivers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias
from urllib.parse import urlencode

from guards import PEER

if TYPE_CHECKING:
    from conftest import DjangoSite

    import penstock


class Request(NamedTuple):
    """A request as the views and callables of a case see it, in every framework."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    decision: penstock.Decision | None = None
    native: Any = None


class Sent(NamedTuple):
    """A request as a client sends it."""

    method: str
    url: str
    headers: dict[str, str]
    peer: str | None

    @property
    def path(self) -> str:
        """The path of the URL."""
        return self.url.partition("?")[0]


class Reply(NamedTuple):
    """The response of a view; a body of parts is a stream."""

    body: str | Iterable[str] = "hello"
    status: int = 200
    headers: Mapping[str, str] = {}


class Answer(NamedTuple):
    """The response that a client receives."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return a field, with its lines joined as HTTP allows; `None` if it is missing."""
        lines = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(lines) if lines else None

    @property
    def limit_fields(self) -> dict[str, str]:
        """The fields that an adapter writes."""
        names = {key.lower() for key, _ in self.headers}
        ours = ("ratelimit", "x-ratelimit", "retry-after", "cache-control", "link")
        return {name: self.header(name) or "" for name in names if name.startswith(ours)}


View: TypeAlias = Callable[[Request], Reply]
Limited: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def limited(*limits: Any, **options: Any) -> Limited:
    """Return limits with their options, as a route or the default of a site has them."""
    return limits, options


def hello(_: Request) -> Reply:
    """Respond with a greeting."""
    return Reply()


@dataclass(frozen=True)
class Route:
    """A route with its limits, the outermost first; it may be exempt from the defaults.

    Its view has the name, or a number.
    """

    path: str
    stack: tuple[Limited, ...] = ()
    view: View = hello
    is_exempt: bool = False
    name: str = ""


@dataclass
class Site:
    """The routes and settings of a case.

    Attributes:
        limiter: The limiter, on the test's own clock.
        routes: The routes.
        default: The limits of all routes.
        options: The options of the adapter.
        django: The settings and URLconf of the test, for Django.
    """

    limiter: penstock.Limiter | None
    routes: list[Route]
    default: Limited | None = None
    options: dict[str, Any] = field(default_factory=dict)
    django: DjangoSite | None = None


class Driver:
    """Serves a site in one framework.

    Attributes:
        name: The test's id.
        has_routes: Whether the adapter knows routes: templates, stacked limits, texts of a view,
            `RateLimited` raised by a view, defaults.
        starts: Whether the adapter is set up for a whole application: it checks its options at
            start, and may limit routes that have no limit of their own.
        sees_errors: Whether exceptions of a view reach the adapter; else the framework has answered
            them before.
        writes_refusals: Whether the adapter responds to a refused request; else the framework does.
        is_async: Whether callables may be awaited.
        is_wsgi: Whether a server passes it an environ.
        parameter: A number in the path of a route, in the framework's syntax.
    """

    name: ClassVar[str]
    has_routes: ClassVar[bool] = True
    starts: ClassVar[bool] = True
    sees_errors: ClassVar[bool] = True
    writes_refusals: ClassVar[bool] = True
    is_async: ClassVar[bool] = False
    is_wsgi: ClassVar[bool] = False
    parameter: ClassVar[str] = "<int:number>"

    def __init__(self, site: Site) -> None:
        self.site = site
        self.environ: dict[str, Any] = {}
        """The variables that a WSGI server adds to the environ of each request."""

    def ask(self, path: str = "/", **options: Any) -> Answer:
        """Send a request as a new client; the options are those of `ask_each`."""
        (answer,) = self.ask_each(1, path, **options)
        return answer

    def statuses(self, times: int, path: str = "/", **options: Any) -> list[int]:
        """Send the same request several times, and return the statuses."""
        return [answer.status for answer in self.ask_each(times, path, **options)]

    def ask_each(
        self,
        times: int,
        path: str,
        *,
        method: str = "GET",
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        peer: str | None = PEER,
    ) -> list[Answer]:
        """Send the same request several times, each time as a new client."""
        url = path if query is None else f"{path}?{urlencode(query)}"
        return self.send(Sent(method, url, dict(headers or {}), peer), times)

    def start(self) -> Any:
        """Start the application as a server does, or run the check of its framework."""

    def application(self) -> Any:
        """Return the WSGI or ASGI application that a server calls, whose route is `/`."""
        raise NotImplementedError

    def pass_errors_on(self) -> None:
        """Let the framework raise the exceptions of views, where it has a setting for that."""

    def send(self, sent: Sent, times: int) -> list[Answer]:
        """Send a request several times through the framework's test client."""
        raise NotImplementedError

    @staticmethod
    def request(native: Any) -> Request:
        """Return the framework's request in neutral form."""
        raise NotImplementedError

    @staticmethod
    def response(status: int, text: str) -> Any:
        """Return a response of the framework, as `on_denied` may."""
        raise NotImplementedError

    @staticmethod
    def raised(status: int) -> Exception:
        """Return the exception that is a response of a status, 403 or 404."""
        raise NotImplementedError

    @staticmethod
    def form(native: Any) -> Mapping[str, Any]:
        """Read the form in the body of the framework's request."""
        raise NotImplementedError

    def client_id(self, request: Request, *arguments: Any) -> Any:
        """Call the adapter's `client_id` in a view."""
        raise NotImplementedError

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Let the callables of a case receive the framework's request."""
        return {
            key: (lambda native, read=value: read(self.request(native)))
            if key in ("id", "cost", "exempt_when", "limit", "tier", "factor", "keep")
            and inspect.isfunction(value)
            else value
            for key, value in options.items()
        }

    def limit(self, limits: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a middleware, including its limits."""
        chosen = not limits and not options.keys().isdisjoint({"limit", "tiers"})
        return ({} if chosen else {"limit": limits}) | self.options(options)
