"""One driver per framework, which serves routes with limits and calls them by its test client.

A case of the suite describes its routes in neutral terms (`Route`, `Request`, `Reply`); a driver
builds them in its framework. A new adapter needs a driver in `DRIVERS`; one with decorators, an
application in `test_decorators.py`, too; one with commands, a site in `test_commands.py`.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import parse_qsl

import django.http
import django.test
import django.urls
import fastapi
import flask
import httpx
import litestar
import pytest
import quart
import starlette.testclient
import werkzeug.test
import werkzeug.wrappers
from adapters.case import Answer, Driver, Limited, Reply, Request, Route, Sent, Site, View
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.utils.module_loading import import_string
from litestar.middleware import DefineMiddleware
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route as StarletteRoute
from werkzeug.datastructures import EnvironHeaders
from werkzeug.exceptions import default_exceptions

import penstock
import penstock.asgi
import penstock.django
import penstock.fastapi
import penstock.flask
import penstock.wsgi
from penstock.django import checks
from penstock.django.drf import PenstockThrottle
from penstock.identity import by_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

METHODS = ["GET", "HEAD", "POST", "PROPFIND"]
"""The methods of every route."""


def each_sent(times: int, send: Callable[[], Answer]) -> list[Answer]:
    """Return the responses; a 500 without fields if the client propagates an exception."""

    def answer() -> Answer:
        try:
            return send()
        except Exception as error:  # noqa: BLE001  what a server does
            return Answer(500, (), repr(error).encode())

    return [answer() for _ in range(times)]


def send_to_asgi(app: Any, sent: Sent, times: int) -> list[Answer]:
    """Send requests to an ASGI application, on one event loop; an exception of it is a 500."""
    client: Any = None if sent.peer is None else (sent.peer, 50000)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=client, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as session:
            return await session.request(sent.method, sent.url, headers=sent.headers)

    async def ask_each() -> list[httpx.Response]:
        return [await ask() for _ in range(times)]

    return [
        Answer(response.status_code, response.headers.multi_items(), response.content)
        for response in asyncio.run(ask_each())
    ]


def starlette_response(reply: Reply) -> StarletteResponse:
    """Return the response of a view as one of Starlette."""
    body, status, headers = reply
    kind: Any = PlainTextResponse if isinstance(body, str) else StreamingResponse
    response: StarletteResponse = kind(body, status, headers)
    return response


class Wsgi(Driver):
    """The middleware around a plain WSGI application, one for each route."""

    name = "wsgi"
    has_routes = False
    is_wsgi = True

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._apps = {route.path: self._app(route) for route in site.routes}

    def _app(self, route: Route) -> Any:
        app: Any = partial(self._serve, route.view)
        for limits, options in reversed(route.stack):
            app = penstock.wsgi.PenstockMiddleware(
                app,
                self.site.limiter,
                **(self.limit(limits, options) | self.site.options),
            )
        return app

    def application(self) -> Any:
        return self._apps["/"]

    def _serve(self, view: View, environ: dict[str, Any], start_response: Any) -> Any:
        reply = view(self.request(environ))
        response = werkzeug.wrappers.Response(reply.body, reply.status, dict(reply.headers))
        return response(environ, start_response)

    def send(self, sent: Sent, times: int) -> list[Answer]:
        return self.send_to(self._apps[sent.path], sent, times)

    def send_to(self, app: Any, sent: Sent, times: int) -> list[Answer]:
        """Send requests to a WSGI application."""

        def send() -> Answer:
            response = werkzeug.test.Client(app).open(
                sent.url,
                method=sent.method,
                headers=sent.headers,
                environ_base={"REMOTE_ADDR": sent.peer or ""},
                environ_overrides=self.environ,
                buffered=True,
            )
            return Answer(response.status_code, [*response.headers], response.data)

        return each_sent(times, send)

    @staticmethod
    def request(native: Any) -> Request:
        return Request(
            native["REQUEST_METHOD"],
            native["PATH_INFO"],
            dict(parse_qsl(native["QUERY_STRING"])),
            cast("Mapping[str, str]", EnvironHeaders(native)),
            native.get("penstock.decision"),
            native,
        )

    @staticmethod
    def form(native: Any) -> Mapping[str, Any]:
        body = native["wsgi.input"].read(int(native["CONTENT_LENGTH"]))
        return dict(parse_qsl(body.decode()))

    @staticmethod
    def response(status: int, text: str) -> Any:
        return werkzeug.wrappers.Response(text, status)


class Asgi(Driver):
    """The middleware around a plain ASGI application, one for each route."""

    name = "asgi"
    has_routes = False
    is_async = True

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._apps = {route.path: self.app(route) for route in site.routes}

    def application(self) -> Any:
        return self._apps["/"]

    def app(self, route: Route) -> Any:
        """Return the application that serves a route."""

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            reply = route.view(self.request(scope))
            await starlette_response(reply)(scope, receive, send)

        app: Any = serve
        for options in reversed([*self.middlewares(route)]):
            app = penstock.asgi.PenstockMiddleware(app, **options)
        return app

    def middlewares(self, route: Route) -> list[dict[str, Any]]:
        """Return the options of a route's middlewares, the outermost first."""
        return [
            {"limiter": self.site.limiter} | self.limit(limits, options) | self.site.options
            for limits, options in route.stack
        ]

    def send(self, sent: Sent, times: int) -> list[Answer]:
        return send_to_asgi(self._apps[sent.path], sent, times)

    @staticmethod
    def request(native: Any) -> Request:
        request = StarletteRequest(native)
        decision = native.get("state", {}).get("penstock")
        return Request(
            request.method,
            request.url.path,
            dict(request.query_params),
            request.headers,
            decision,
            native,
        )

    @staticmethod
    def response(status: int, text: str) -> Any:
        return PlainTextResponse(text, status)


class InStarlette(Asgi):
    """The middleware on the routes of Starlette."""

    name = "starlette"

    def app(self, route: Route) -> Any:
        async def serve(request: StarletteRequest) -> StarletteResponse:
            return starlette_response(route.view(self.request(request.scope)))

        stack = [
            Middleware(penstock.asgi.PenstockMiddleware, **options)
            for options in self.middlewares(route)
        ]
        methods = METHODS
        return Starlette(
            routes=[StarletteRoute(route.path, serve, methods=methods, middleware=stack)]
        )


class InLitestar(Asgi):
    """The middleware on the routes of Litestar."""

    name = "litestar"
    sees_errors = False

    def app(self, route: Route) -> Any:
        async def serve(request: litestar.Request[Any, Any, Any]) -> litestar.Response[str]:
            body, status, headers = route.view(self.request(request.scope))
            return litestar.Response(
                cast("str", body),
                status_code=status,
                headers=dict(headers),
                media_type="text/plain",
            )

        serve.__annotations__ = {
            "request": litestar.Request[Any, Any, Any],
            "return": litestar.Response[str],
        }
        stack = [
            DefineMiddleware(penstock.asgi.PenstockMiddleware, **options)
            for options in self.middlewares(route)
        ]
        handler = litestar.route(route.path, http_method=["GET", "HEAD", "POST"], middleware=stack)(
            serve
        )
        return litestar.Litestar([handler], openapi_config=None, logging_config=None)


class InQuart(Asgi):
    """The middleware around the ASGI side of Quart."""

    name = "quart"
    sees_errors = False

    def app(self, route: Route) -> Any:
        app = quart.Quart(__name__)

        async def serve() -> quart.Response:
            scope: Any = quart.request.scope
            body, status, headers = route.view(self.request(scope))
            return quart.Response(body, status, dict(headers))

        app.add_url_rule(route.path, "serve", serve, methods=["GET", "POST"])
        asgi: Any = app.asgi_app
        for options in reversed(self.middlewares(route)):
            asgi = penstock.asgi.PenstockMiddleware(asgi, **options)
        app.asgi_app = asgi  # type: ignore[method-assign]
        return app


class InFlask(Driver):
    """Views of Flask."""

    name = "flask"
    is_wsgi = True

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._app = flask.Flask(__name__)
        limits = penstock.flask.Penstock(self._app, site.limiter, **site.options)
        if site.default is not None:
            names, options = site.default
            limits.default(*names, **self.options(options))
        for number, route in enumerate(site.routes):
            view = self.view(route, number)
            for names, options in reversed(route.stack):
                view = limits.limit(*names, **self.options(options))(view)
            view = limits.exempt(view) if route.is_exempt else view
            self._app.add_url_rule(route.path, f"view_{number}", view, methods=METHODS)
        self._limits = limits

    def view(self, route: Route, number: int) -> Any:
        """Return the route's view."""

        def serve(**_: object) -> flask.Response:
            return self.reply(route)

        serve.__qualname__ = route.name or f"view_{number}"
        return serve

    def reply(self, route: Route) -> flask.Response:
        """Return the response of the route's view."""
        request = self.request(flask.request)._replace(decision=self._limits.decision())
        return flask.Response(*route.view(request))

    def client_id(self, _: Request, *arguments: Any) -> Any:
        return self._limits.client_id(*arguments)

    def send(self, sent: Sent, times: int) -> list[Answer]:
        def send() -> Answer:
            response = self._app.test_client().open(
                sent.url,
                method=sent.method,
                headers=sent.headers,
                environ_base={"REMOTE_ADDR": sent.peer or ""},
                environ_overrides=self.environ,
                buffered=True,
            )
            return Answer(response.status_code, [*response.headers], response.data)

        return each_sent(times, send)

    def application(self) -> Any:
        return self._app

    def pass_errors_on(self) -> None:
        self._app.config["PROPAGATE_EXCEPTIONS"] = True

    @staticmethod
    def request(native: Any) -> Request:
        query = native.args.to_dict()
        return Request(native.method, native.path, query, native.headers, native=native)

    @staticmethod
    def form(native: Any) -> Mapping[str, Any]:
        form: Mapping[str, Any] = native.form
        return form

    @staticmethod
    def response(status: int, text: str) -> Any:
        return flask.Response(text, status)

    @staticmethod
    def raised(status: int) -> Exception:
        return default_exceptions[status]()


class InAsyncFlask(InFlask):
    """Views of Flask that are coroutines."""

    name = "flask-async"

    def view(self, route: Route, number: int) -> Any:
        async def serve(**_: object) -> flask.Response:
            return self.reply(route)

        serve.__qualname__ = route.name or f"view_{number}"
        return serve


def code_of_the_page() -> dict[str, Any]:
    """Return the names of the framework and the adapter on the page about adapters."""
    page = Path(__file__).parents[3] / "docs/adapters.md"
    found: dict[str, Any] = {"__name__": "tiny"}
    for code in re.findall(
        r"```python\n(# The .*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    ):
        exec(code, found)  # noqa: S102  our own page
    return found


TINY = code_of_the_page()


class InTiny(Wsgi):
    """Views of the framework on the page about adapters."""

    name = "tiny"
    has_routes = True
    parameter = "*"

    def __init__(self, site: Site) -> None:
        Driver.__init__(self, site)
        self._tiny = TINY["Tiny"]()
        self._limits = limits = TINY["Limits"](self._tiny, site.limiter, **site.options)
        if site.default is not None:
            names, options = site.default
            limits.default(*names, **self.options(options))
        for number, route in enumerate(site.routes):
            view = self._view(route, number)
            for names, options in reversed(route.stack):
                view = limits.limit(*names, **self.options(options))(view)
            self._tiny.route(route.path)(limits.exempt(view) if route.is_exempt else view)

    def _view(self, route: Route, number: int) -> Any:
        def serve(environ: Any) -> Any:
            body, status, headers = route.view(self.request(environ))
            parts = [body] if isinstance(body, str) else body
            return TINY["Response"]((part.encode() for part in parts), status, headers)

        serve.__qualname__ = route.name or f"view_{number}"
        return serve

    def application(self) -> Any:
        return self._tiny

    def start(self) -> Any:
        self._limits.check()

    def client_id(self, request: Request, *arguments: Any) -> Any:
        return self._limits.client_id(request.native, *arguments)

    def send(self, sent: Sent, times: int) -> list[Answer]:
        return self.send_to(self._tiny, sent, times)

    @staticmethod
    def response(status: int, text: str) -> Any:
        return TINY["Response"]([text.encode()], status)

    @staticmethod
    def raised(status: int) -> Exception:
        error: Exception = TINY["HttpError"](status)
        return error


class InFastapi(Driver):
    """Endpoints of FastAPI that are coroutines."""

    name = "fastapi"
    is_async = True
    parameter = "{number}"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._app = fastapi.FastAPI(dependencies=self._depends([site.default]))
        penstock.fastapi.install(self._app, site.limiter, **site.options)
        for number, route in enumerate(site.routes):
            view = self.view(route, number)
            self._app.api_route(
                route.path,
                methods=METHODS,
                dependencies=self._depends(route.stack),
            )(penstock.fastapi.exempt(view) if route.is_exempt else view)

    def _depends(self, stack: Sequence[Limited | None]) -> list[Any]:
        return [
            fastapi.Depends(penstock.fastapi.RateLimit(*names, **self.options(options)))
            for names, options in filter(None, stack)
        ]

    def view(self, route: Route, number: int) -> Any:
        """Return the route's endpoint."""

        async def serve(request: fastapi.Request) -> StarletteResponse:
            return starlette_response(route.view(self.request(request)))

        return self.named(serve, route, number)

    def named(self, serve: Any, route: Route, number: int) -> Any:
        """Set the name and the annotations that FastAPI reads."""
        serve.__qualname__ = route.name or f"view_{number}"
        serve.__annotations__ = {"request": fastapi.Request}
        return serve

    def send(self, sent: Sent, times: int) -> list[Answer]:
        return send_to_asgi(self._app, sent, times)

    def application(self) -> Any:
        return self._app

    def client_id(self, request: Request, *arguments: Any) -> Any:
        return penstock.fastapi.client_id(StarletteRequest(request.native), *arguments)

    def start(self) -> Any:
        with starlette.testclient.TestClient(self._app):
            pass

    @staticmethod
    def request(native: Any) -> Request:
        return Asgi.request(native.scope)

    @staticmethod
    def response(status: int, text: str) -> Any:
        return PlainTextResponse(text, status)

    @staticmethod
    def raised(status: int) -> Exception:
        return fastapi.HTTPException(status)


class InSyncFastapi(InFastapi):
    """Endpoints of FastAPI that run in its threads."""

    name = "fastapi-sync"

    def view(self, route: Route, number: int) -> Any:
        def serve(request: fastapi.Request) -> StarletteResponse:
            return starlette_response(route.view(self.request(request)))

        return self.named(serve, route, number)


class InDjango(Driver):
    """Views of Django, served by its WSGI handler."""

    name = "django"
    is_wsgi = True
    middleware: ClassVar[list[str]] = ["penstock.django.PenstockMiddleware"]

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert site.django is not None
        given: dict[str, Any] = {key.upper(): value for key, value in site.options.items()}
        if site.limiter is not None:
            given["LIMITER"] = site.limiter
        if site.default is not None:
            names, options = site.default
            given["DEFAULT"] = penstock.django.limit(*names, **self.options(options))
        urls = ModuleType("urls_of_a_case")
        urls.urlpatterns = []  # type: ignore[attr-defined]
        for number, route in enumerate(site.routes):
            view = self.limited(self.view(route, number), route)
            view = penstock.django.exempt(view) if route.is_exempt else view
            urls.urlpatterns.append(django.urls.path(route.path.lstrip("/"), view))
        site.django.set(PENSTOCK=given, MIDDLEWARE=self.middleware, ROOT_URLCONF=urls)
        # As a server does at startup: errors in the settings are raised here.
        for middleware in self.middleware:
            import_string(middleware)(lambda _: django.http.HttpResponse())

    def limited(self, view: Any, route: Route) -> Any:
        """Return a route's view with its limits."""
        for names, options in reversed(route.stack):
            view = penstock.django.limit(*names, **self.options(options))(view)
        return view

    def application(self) -> Any:
        return WSGIHandler() if self.is_wsgi else ASGIHandler()

    def client_id(self, request: Request, *arguments: Any) -> Any:
        return penstock.django.client_id(request.native, *arguments)

    def start(self) -> Any:
        for message in checks.check_views(None):
            raise penstock.ConfigError(message.msg)

    def view(self, route: Route, number: int) -> Any:
        """Return the route's view."""

        def serve(request: Any, **_: object) -> Any:
            return self.reply(route, request)

        serve.__qualname__ = route.name or f"view_{number}"
        return serve

    def reply(self, route: Route, request: Any) -> Any:
        """Return the response of the route's view."""
        body, status, headers = route.view(self.request(request))
        if isinstance(body, str):
            return django.http.HttpResponse(body, status=status, headers=dict(headers))
        return self.stream(body, status=status, headers=dict(headers))

    def stream(self, body: Any, **options: Any) -> Any:
        """Return a response that is generated while it is sent."""
        return django.http.StreamingHttpResponse(body, **options)

    def send(self, sent: Sent, times: int) -> list[Answer]:
        def send() -> Answer:
            client = django.test.Client(raise_request_exception=False)
            environ: Any = {"REMOTE_ADDR": sent.peer or "", **self.environ}
            response: Any = client.generic(sent.method, sent.url, headers=sent.headers, **environ)
            body = response.getvalue() if response.streaming else response.content
            return Answer(response.status_code, [*response.headers.items()], body)

        return each_sent(times, send)

    def pass_errors_on(self) -> None:
        assert self.site.django is not None
        self.site.django.set(DEBUG_PROPAGATE_EXCEPTIONS=True)

    @staticmethod
    def request(native: Any) -> Request:
        return Request(
            native.method,
            native.path,
            native.GET.dict(),
            native.headers,
            getattr(native, "penstock", None),
            native,
        )

    @staticmethod
    def response(status: int, text: str) -> Any:
        return django.http.HttpResponse(text, status=status)

    @staticmethod
    def raised(status: int) -> Exception:
        return django.http.Http404() if status == 404 else PermissionDenied()

    @staticmethod
    def form(native: Any) -> Mapping[str, Any]:
        form: Mapping[str, Any] = native.POST
        return form


class InDjangoWithoutMiddleware(InDjango):
    """Views of Django without the middleware: the decorator works alone."""

    name = "django-decorator"
    starts = False
    middleware: ClassVar[list[str]] = []


class InRestFramework(InDjango):
    """Views of REST framework, limited by throttles."""

    name = "rest-framework"
    writes_refusals = False

    def view(self, route: Route, number: int) -> Any:
        def serve(_: object, request: Any, **__: object) -> Any:
            return self.reply(route, request)

        attributes = {
            **dict.fromkeys(map(str.lower, METHODS), serve),
            "http_method_names": [*map(str.lower, METHODS)],
            "authentication_classes": [],
            "permission_classes": [],
            "throttle_classes": [self.throttle(number, *limited) for limited in route.stack],
        }
        return type(route.name or f"view_{number}", (APIView,), attributes).as_view()  # type: ignore[attr-defined]

    def throttle(self, number: int, names: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Return a class of throttles with limits."""
        # Without one, an authenticated user is the client.
        given = {"id": by_address, **self.options(options)}
        attributes = {"limit": [*names] or None, "options": given}
        return type(f"Throttle{number}", (PenstockThrottle,), attributes)

    def limited(self, view: Any, _: Route) -> Any:
        return view


class InAsyncDjango(InDjango):
    """Views of Django that are coroutines, served by its ASGI handler."""

    name = "django-async"
    is_wsgi = False

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._handler = ASGIHandler()

    def view(self, route: Route, number: int) -> Any:
        async def serve(request: Any, **_: object) -> Any:
            return self.reply(route, request)

        serve.__qualname__ = route.name or f"view_{number}"
        return serve

    def send(self, sent: Sent, times: int) -> list[Answer]:
        return send_to_asgi(self._handler, sent, times)

    def stream(self, body: Any, **options: Any) -> Any:
        async def parts() -> AsyncIterator[str]:
            for part in body:
                yield part

        return super().stream(parts(), **options)


class InAsyncDjangoWithoutMiddleware(InAsyncDjango):
    """Views of Django that are coroutines, without the middleware."""

    name = "django-async-decorator"
    starts = False
    middleware: ClassVar[list[str]] = []


DRIVERS: list[type[Driver]] = [
    Wsgi,
    Asgi,
    InStarlette,
    InLitestar,
    InQuart,
    InFlask,
    InAsyncFlask,
    InTiny,
    InFastapi,
    InSyncFastapi,
    InDjango,
    InDjangoWithoutMiddleware,
    InRestFramework,
    InAsyncDjango,
    InAsyncDjangoWithoutMiddleware,
]


def only(is_included: Callable[[type[Driver]], bool]) -> pytest.MarkDecorator:
    """Run a case with some of the drivers."""
    drivers = [driver for driver in DRIVERS if is_included(driver)]
    return pytest.mark.parametrize("driver", drivers, ids=lambda driver: driver.name)


with_routes = only(lambda driver: driver.has_routes)
with_refusals = only(lambda driver: driver.writes_refusals)
