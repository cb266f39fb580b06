"""Set-ups that would limit nothing, or all clients together: an error, or a warning with a code."""

# ruff: noqa: ARG002, ARG005  views take the request

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import flask
import pytest
from click.testing import CliRunner
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.views import View
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.testclient import TestClient
from flask.cli import ScriptInfo
from flask.views import MethodView
from rest_framework.response import Response
from rest_framework.throttling import ScopedRateThrottle
from rest_framework.views import APIView

import penstock
import penstock.asgi
import penstock.wsgi
from penstock.adapter import EnvironRequest, Guard, admit, make_rule
from penstock.django import exempt, limit
from penstock.django.conf import current
from penstock.django.drf import PenstockThrottle
from penstock.fastapi import RateLimit, install
from penstock.flask import Penstock
from penstock.flask.commands import commands
from penstock.identity import everyone, shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import DjangoSite

LIMITS = {"A": "5000/minute", "Slots": "5 in flight"}
PEER = {"REMOTE_ADDR": "203.0.113.7"}


def unwrapped(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without `functools.wraps`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    call.__name__ = view.__name__
    return call


def wrapped(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as it should be."""

    @functools.wraps(view)
    def call(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return call


def findings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the findings that were logged."""
    return [r.getMessage() for r in caplog.records if r.name == "penstock"]


async def asgi_app(scope: Any, receive: Any, send: Any) -> Any:
    """An ASGI application."""


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    """A WSGI application."""
    return []


# For the type checker, which would find the mistake, too.
ASGI: Any = asgi_app
WSGI: Any = wsgi_app


def flask_app(**config: Any) -> flask.Flask:
    """Return an application with a configuration."""
    app = flask.Flask("shop")
    app.config.update(config)
    Penstock(app, limits=LIMITS)
    return app


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda: penstock.wsgi.PenstockMiddleware(ASGI, limit="1/minute"), "penstock.asgi"),
        (lambda: penstock.asgi.PenstockMiddleware(WSGI, limit="1/minute"), "penstock.wsgi"),
        (lambda: penstock.asgi.PenstockMiddleware(asgi_app, limits=LIMITS), "limit='PerAddress'"),
        (lambda: penstock.wsgi.PenstockMiddleware(wsgi_app, limits=LIMITS), "'30/minute'"),
        (lambda: flask_app(PENSTOCK={"DEFAULT": "A"}), "PENSTOCK_DEFAULT"),
        (lambda: flask_app(penstock_default="A"), "PENSTOCK_DEFAULT"),
        (lambda: flask_app(Penstock_Limit="A"), "PENSTOCK_LIMITS"),
        (lambda: flask_app(PENSTOCK_DEFAULT=""), "'30/minute'"),
    ],
)
def test_set_up_without_effect_is_an_error(make: Callable[[], object], instead: str) -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        make()
    assert instead in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "instead"),
    [
        ({"PENSTOCK_DEFAULT": "A"}, "PENSTOCK = {'DEFAULT': ...}"),
        ({"PENSTOCK_ENABLED": False, "PENSTOCK": {}}, "PENSTOCK = {'ENABLED': ...}"),
        ({"PENSTOCK": {"DEFAULT": ""}}, "'30/minute'"),
    ],
)
def test_django_setting_without_effect_is_an_error(
    site: DjangoSite, settings: dict[str, Any], instead: str
) -> None:
    site.set(**settings)
    with pytest.raises(penstock.ConfigError) as caught:
        current()
    assert instead in str(caught.value)
    assert instead in "".join(message.msg for message in checks.run_checks(tags=["penstock"]))


@pytest.mark.parametrize("option", ["deduct_when", "cost_from_response", "settle"])
@pytest.mark.parametrize("slots", ["5 in flight", "Slots"])
def test_option_that_slots_ignore_is_an_error(option: str, slots: str) -> None:
    options: dict[str, Any] = {option: True if option == "settle" else lambda _: True}
    app = flask.Flask("shop")
    limits = Penstock(app, limits=LIMITS)
    with pytest.raises(penstock.ConfigError, match=option):
        limits.limit(slots, **options)(lambda: "")
    # The rate has the option.
    limits.limit(slots, "A", **options)(lambda: "")


def limit_of(plan: str = "free") -> RateLimit:
    return RateLimit("A")


def limit_by_plan(plan: str = "free"):  # type: ignore[no-untyped-def]  # noqa: ANN201  the mistake
    return RateLimit("A")


ORDERS = RateLimit("A")


@pytest.mark.parametrize(
    "factory", [limit_of, limit_by_plan, lambda: RateLimit("A"), lambda: ORDERS]
)
def test_dependency_that_returns_a_limit_is_an_error(factory: Callable[..., object]) -> None:
    app = FastAPI()
    app.get("/", dependencies=[Depends(factory)])(lambda: "")
    with pytest.raises(penstock.ConfigError, match=r"write Depends\(RateLimit"):
        install(app, limits=LIMITS)


def test_dependency_may_call_a_limit() -> None:
    async def limited(request: Request) -> None:
        await ORDERS(request)

    app = FastAPI()
    install(app, limits={"A": "1/minute"})
    app.get("/", dependencies=[Depends(limited)])(lambda: "")
    client = TestClient(app, client=("203.0.113.7", 50000))
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(("methods", "is_wrong"), [("POST", True), ("GET", False), (None, False)])
def test_methods_that_no_route_of_fastapi_has_are_an_error(
    methods: str | None, *, is_wrong: bool
) -> None:
    app = FastAPI()
    router = APIRouter(dependencies=[Depends(RateLimit("A", methods=methods))])
    router.get("/")(lambda: "")
    app.include_router(router)
    if is_wrong:
        with pytest.raises(penstock.ConfigError, match="POST"):
            install(app, limits=LIMITS)
        router.post("/orders")(lambda: "")
        app.include_router(router, prefix="/v2")
    install(app, limits=LIMITS)


def above_the_route(app: flask.Flask, limits: Penstock) -> None:
    limits.limit("A")(app.get("/")(lambda: ""))


def after_as_view(app: flask.Flask, limits: Penstock) -> None:
    class Orders(MethodView):
        def get(self) -> str:
            return ""

    app.add_url_rule("/", view_func=Orders.as_view("orders"))
    limits.limit("A")(Orders)


def with_another_method(app: flask.Flask, limits: Penstock) -> None:
    app.get("/")(limits.limit("A", methods="POST")(lambda: ""))


def with_a_hidden_exemption(app: flask.Flask, limits: Penstock) -> None:
    limits.default("A")

    @limits.exempt
    def health() -> str:
        return ""

    app.get("/")(unwrapped(unwrapped(health)))


def with_all_right(app: flask.Flask, limits: Penstock) -> None:
    limits.default("A", methods=["GET", "POST"])

    @limits.exempt
    def health() -> str:
        return ""

    class Orders(MethodView):
        decorators = (unwrapped,)  # type: ignore[assignment]  # a list for Flask

        @limits.limit("A", methods="POST")
        def post(self) -> str:
            return ""

    app.get("/")(wrapped(health))
    app.add_url_rule("/orders", view_func=limits.limit("A")(Orders).as_view("orders"))
    app.get("/mails")(unwrapped(limits.limit("A")(lambda: "")))


@pytest.mark.parametrize(
    ("set_up", "expected"),
    [
        (above_the_route, "put it below"),
        (after_as_view, "put the decorator above the class"),
        (with_another_method, "leave them out: GET"),
        (with_a_hidden_exemption, "functools.wraps"),
        (with_all_right, None),
    ],
)
def test_flask_tells_what_has_no_effect(
    caplog: pytest.LogCaptureFixture,
    set_up: Callable[[flask.Flask, Penstock], None],
    expected: str | None,
) -> None:
    app = flask.Flask("shop")
    set_up(app, Penstock(app, limits=LIMITS))
    for _ in range(2):
        app.test_client().get("/", environ_base=PEER)
    found = findings(caplog)
    assert [text[:4] for text in found] == ([] if expected is None else ["P008"])
    done = CliRunner().invoke(commands, ["check"], obj=ScriptInfo(create_app=lambda: app))
    assert done.exit_code == (0 if expected is None else 1)
    assert expected is None or (expected in found[0] and expected in done.output)


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Orders(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Mails(APIView):
    permission_classes: Any = ()
    authentication_classes: Any = ()
    throttle_classes: Any = ()

    def get(self, request: Any) -> Response:
        return Response()


class Scoped(ScopedRateThrottle):
    """A throttle of REST framework that reads the scope."""

    THROTTLE_RATES: ClassVar[dict[str, str | None]] = {"A": "9/min"}  # type: ignore[misc]


def of_class(base: type[View], **attributes: Any) -> Any:
    """Return a view with a class of its own."""
    derived: Any = type("OfATest", (base,), attributes)
    return derived.as_view()


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (unwrapped(exempt(lambda request: HttpResponse())), "functools.wraps"),
        (wrapped(exempt(lambda request: HttpResponse())), None),
        (limit("A", methods="POST")(hello), None),
        (limit("A", methods="POST")(Orders.as_view()), "leave them out: GET"),
        (limit("A", methods="HEAD")(Orders.as_view()), None),
        (of_class(Mails, throttle_scope="A"), "PenstockThrottle"),
        (of_class(Mails, throttle_scope="A", throttle_classes=[Scoped]), None),
        (of_class(Mails, throttle_scope="A", throttle_classes=[PenstockThrottle]), None),
        (of_class(Mails, throttle_scope="another"), None),
        (of_class(Mails, scope="A", throttle_classes=[PenstockThrottle]), "throttle_scope"),
        (of_class(Mails, limit="A", throttle_classes=[PenstockThrottle]), "throttle_scope"),
    ],
)
def test_django_tells_what_has_no_effect(
    site: DjangoSite, caplog: pytest.LogCaptureFixture, view: Any, expected: str | None
) -> None:
    site.set(PENSTOCK={"LIMITS": LIMITS, "DEFAULT": "A"})
    site.route("orders", view)
    reported = checks.run_checks(tags=["penstock"])
    assert [message.id for message in reported] == ([] if expected is None else ["penstock.W003"])
    for _ in range(2):
        site.get("/orders")
    found = findings(caplog)
    assert [text[:4] for text in found] == ([] if expected is None else ["P008"])
    assert expected is None or expected in found[0]


def test_scope_is_reported_although_nothing_else_is_limited(
    site: DjangoSite, caplog: pytest.LogCaptureFixture
) -> None:
    site.set(PENSTOCK={"LIMITS": LIMITS})
    site.route("orders", of_class(Mails, throttle_scope="A"))
    site.get("/orders")
    assert [text[:4] for text in findings(caplog)] == ["P008"]


def test_default_without_the_middleware_is_logged_where_settings_load(
    site: DjangoSite, caplog: pytest.LogCaptureFixture
) -> None:
    site.set(MIDDLEWARE=[], PENSTOCK={"DEFAULT": "1/minute"})
    current()
    (text,) = findings(caplog)
    assert text.startswith("P008: PENSTOCK['DEFAULT']")


@pytest.mark.parametrize(
    ("id", "addresses", "expected"),
    [
        (lambda: "shop", 200, ["P007"]),
        (lambda: "shop", 50, []),
        (lambda environ: environ["REMOTE_ADDR"], 200, []),
        (everyone, 200, []),
        (shared("shop"), 200, []),
        (lambda: None, 200, []),
    ],
)
def test_one_id_of_many_addresses_is_reported(
    caplog: pytest.LogCaptureFixture, id: Any, addresses: int, expected: list[str]
) -> None:
    guard = Guard(limits=LIMITS, on_missing_id=shared("unknown"))
    plan = guard.route_limits([make_rule(["A"], "orders", {"id": id})])
    for number in range(1001):
        admit(plan, EnvironRequest({"REMOTE_ADDR": f"203.0.113.{number % addresses}"}))
    assert [text[:4] for text in findings(caplog)] == expected
