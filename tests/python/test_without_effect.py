"""Set-ups that would limit nothing, or all clients together: an error, or a warning with a code."""

# ruff: noqa: ARG002, ARG005  views take the request

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import flask
import pytest
from click.testing import CliRunner
from django.contrib.admin import AdminSite
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.views import View
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.testclient import TestClient
from flask.cli import ScriptInfo
from flask.views import MethodView
from rest_framework.response import Response
from rest_framework.throttling import ScopedRateThrottle
from rest_framework.views import APIView
from starlette.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles

import penstock
import penstock.asgi
import penstock.wsgi
from penstock.adapter import EnvironRequest, Guard, admit, make_rule
from penstock.django import exempt, get_limiter, limit
from penstock.django.conf import current
from penstock.django.drf import PenstockThrottle
from penstock.fastapi import RateLimit, install
from penstock.fastapi import exempt as exempt_route
from penstock.flask import Penstock
from penstock.flask.commands import commands
from penstock.identity import everyone, shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import DjangoSite

    from penstock.adapter import Rule, RuleOptions

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
SCOPE: Any = len


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
        (lambda: flask_app(PENSTOCK_NUM_PROXIES=1), "use hops"),
        (lambda: flask_app(PENSTOCK_REDIS_URL="redis://a"), "use store"),
        (lambda: flask_app(PENSTOCK_DEFAULT=""), "'30/minute'"),
        (lambda: flask_app(PENSTOCK_DEFAULT=[]), "write None"),
        (lambda: Penstock(flask.Flask("shop"), LIMITS), "limits="),  # type: ignore[arg-type]
        (lambda: Penstock().shared("1/minute", scope=SCOPE), "scope must be a name"),
        (lambda: limit.shared("1/minute", scope=SCOPE), "scope must be a name"),
        (lambda: RateLimit("1/minute", scope=SCOPE), "scope must be a name"),
        (lambda: exempt(AdminSite()), "exempt_when on the default limit"),  # type: ignore[type-var]
        (lambda: Penstock().exempt("orders"), "exempt a view"),  # type: ignore[type-var]
        (lambda: exempt_route("/orders"), "exempt a view"),  # type: ignore[type-var]
        (lambda: RateLimit("A", burst=3), "'5/minute, burst 3'"),  # type: ignore[call-arg]
        (lambda: flask_app(PENSTOCK_DEFAULT={"A": "1/hour"}), "{'A': '1/hour'}"),
        (lambda: flask_app(PENSTOCK_DEFAULT=b"A"), "found b'A'"),
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
        ({"PENSTOCK": {"DEFAULT": []}}, "write None"),
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


def limit_of_request(request: Request):  # type: ignore[no-untyped-def]  # noqa: ANN201  as above
    return RateLimit("A")


async def limit_made_late(request: Request):  # type: ignore[no-untyped-def]  # noqa: ANN201
    return RateLimit("A")


ORDERS = RateLimit("A")


def call_limit(request: Request) -> None:
    ORDERS(request)  # type: ignore[unused-coroutine]  # the mistake


@pytest.mark.parametrize(
    "factory",
    [
        limit_of,
        limit_by_plan,
        limit_of_request,
        limit_made_late,
        call_limit,
        lambda: RateLimit("A"),
        lambda: ORDERS,
    ],
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


def add_late_to_app(app: FastAPI) -> None:
    app.get("/")(lambda: "")
    app.router.dependencies.append(Depends(RateLimit("A")))


def add_late_to_route(app: FastAPI) -> None:
    app.get("/")(lambda: "")
    route: Any = app.routes[-1]
    route.dependencies.append(Depends(RateLimit("A")))


def add_in_time(app: FastAPI) -> None:
    app.router.dependencies.append(Depends(RateLimit("A")))
    app.get("/", dependencies=[Depends(ORDERS)])(lambda: "")


@pytest.mark.parametrize(
    ("set_up", "is_wrong"),
    [(add_late_to_app, True), (add_late_to_route, True), (add_in_time, False)],
)
def test_limit_that_is_added_after_the_route_is_an_error(
    set_up: Callable[[FastAPI], None], *, is_wrong: bool
) -> None:
    app = FastAPI()
    set_up(app)
    if is_wrong:
        with pytest.raises(penstock.ConfigError, match="before"):
            install(app, limits=LIMITS)
    else:
        install(app, limits=LIMITS)


def plain_page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("")


def with_a_route_of_starlette(app: FastAPI) -> None:
    app.add_route("/", plain_page)


def with_an_application_within(app: FastAPI) -> None:
    within = FastAPI()
    within.get("/")(lambda: "")
    app.mount("/shop", within)


def with_an_application_that_has_limits(app: FastAPI) -> None:
    within = FastAPI()
    within.get("/", dependencies=[Depends(ORDERS)])(lambda: "")
    app.mount("/shop", within)


def with_an_application_that_is_exempt(app: FastAPI) -> None:
    within = FastAPI()
    within.get("/")(lambda: "")
    app.mount("/shop", exempt_route(within))
    app.get("/")(lambda: "")


def with_files(app: FastAPI) -> None:
    app.mount("/files", StaticFiles(directory="."))
    app.get("/", dependencies=[Depends(ORDERS)])(lambda: "")


@pytest.mark.parametrize(
    ("set_up", "expected"),
    [
        (with_a_route_of_starlette, "/"),
        (with_an_application_within, "/shop"),
        (with_an_application_that_has_limits, None),
        (with_an_application_that_is_exempt, None),
        (with_files, None),
    ],
)
def test_fastapi_tells_which_routes_its_dependencies_do_not_reach(
    caplog: pytest.LogCaptureFixture, set_up: Callable[[FastAPI], None], expected: str | None
) -> None:
    app = FastAPI(dependencies=[Depends(RateLimit("A"))])
    install(app, limits=LIMITS)
    set_up(app)
    with TestClient(app, client=("203.0.113.7", 50000)):
        pass
    found = findings(caplog)
    assert [text[:4] for text in found] == ([] if expected is None else ["P008"])
    assert expected is None or f" {expected} " in found[0]


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


def with_a_limit_above_before_request(app: flask.Flask, limits: Penstock) -> None:
    @limits.limit("A")
    @app.before_request
    def count() -> None: ...

    app.extensions["kept"] = count
    app.get("/")(limits.limit("A")(lambda: ""))


def with_a_limit_below_before_request(app: flask.Flask, limits: Penstock) -> None:
    app.before_request(limits.limit("A")(lambda: None))
    app.get("/")(lambda: "")


def with_no_limit(app: flask.Flask, limits: Penstock) -> None:
    app.get("/")(lambda: "")


def with_a_config_that_is_late(app: flask.Flask, limits: Penstock) -> None:
    app.get("/")(limits.limit("A")(lambda: ""))
    app.config["PENSTOCK_DEFAULT"] = "A"


def with_a_misspelled_attribute(app: flask.Flask, limits: Penstock) -> None:
    class Orders(MethodView):
        decorator: ClassVar[list[object]] = [limits.limit("A")]

        def get(self) -> str:
            return ""

    app.add_url_rule("/", view_func=Orders.as_view("orders"))
    app.get("/mails")(limits.limit("A")(lambda: ""))


def with_calls_of_its_own(app: flask.Flask, limits: Penstock) -> None:
    def home() -> str:
        return str(limits.limiter.spend("A", "ada").remaining)

    app.get("/")(home)


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
        (with_a_config_that_is_late, "before init_app"),
        (with_a_misspelled_attribute, "decorators"),
        (with_a_limit_above_before_request, "put it below, next to the function"),
        (with_a_limit_below_before_request, None),
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


def default_without_init_app(app: flask.Flask) -> Penstock:
    limits = Penstock(limits=LIMITS)
    limits.default("A")
    return limits


def blueprint_without_init_app(app: flask.Flask) -> Penstock:
    limits = Penstock(limits=LIMITS)
    app.register_blueprint(limits.limit("A")(flask.Blueprint("shop", __name__)))
    return limits


def init_app_of_a_default(app: flask.Flask) -> Penstock:
    limits = default_without_init_app(app)
    limits.init_app(app)
    return limits


def nothing_of_its_own(app: flask.Flask) -> Penstock:
    return Penstock(limits=LIMITS)


@pytest.mark.parametrize(
    ("set_up", "expected"),
    [
        (default_without_init_app, ["P008"]),
        (blueprint_without_init_app, ["P008"]),
        (init_app_of_a_default, []),
        (nothing_of_its_own, []),
    ],
)
def test_limits_of_flask_that_are_not_installed_are_logged_once(
    caplog: pytest.LogCaptureFixture,
    set_up: Callable[[flask.Flask], Penstock],
    expected: list[str],
) -> None:
    app = flask.Flask("shop")
    app.get("/")(lambda: "")
    limits = set_up(app)
    for _ in range(3):
        assert app.test_client().get("/").status_code == 200
    found = findings(caplog)
    assert [text[:4] for text in found] == expected
    assert all("init_app(app)" in text for text in found)
    assert isinstance(limits, Penstock)


@pytest.mark.parametrize(
    ("set_up", "expected"),
    [(with_no_limit, ["P008"]), (with_calls_of_its_own, []), (with_all_right, [])],
)
def test_flask_tells_that_nothing_is_limited(
    caplog: pytest.LogCaptureFixture,
    set_up: Callable[[flask.Flask, Penstock], None],
    expected: list[str],
) -> None:
    app = flask.Flask("shop")
    set_up(app, Penstock(app, limits=LIMITS))
    for _ in range(2):
        app.test_client().get("/", environ_base=PEER)
    assert [text[:4] for text in findings(caplog)] == expected


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
        (of_class(Orders, decorators=[limit("A")]), "above the class"),
        (of_class(Orders, limit=limit("A")), "above the class"),
        (of_class(Mails, throttle_scope="A"), "PenstockThrottle"),
        (of_class(Mails, throttle_scope="A", throttle_classes=[Scoped]), None),
        (of_class(Mails, throttle_scope="A", throttle_classes=[PenstockThrottle]), None),
        (of_class(Mails, throttle_scope="another"), None),
        (of_class(Mails, scope="A", throttle_classes=[PenstockThrottle]), "throttle_scope"),
        (of_class(Mails, limit="A", throttle_classes=[PenstockThrottle]), "throttle_scope"),
        (of_class(Mails, throttle_classes=[PenstockThrottle]), "throttle_scope"),
        (of_class(Mails, throttle_classes=[PenstockThrottle], throttle_scope="A"), None),
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


@pytest.mark.parametrize("scope", [["A"], ("A",), 5])
def test_scope_that_is_no_limit_is_an_error(site: DjangoSite, scope: object) -> None:
    site.set(PENSTOCK={"LIMITS": LIMITS})
    site.route("orders", of_class(Mails, throttle_classes=[PenstockThrottle], throttle_scope=scope))
    reported = checks.run_checks(tags=["penstock"])
    assert [message.id for message in reported] == ["penstock.E007"]
    with pytest.raises(ImproperlyConfigured, match="throttle_scope must be one limit"):
        site.get("/orders")


def route_another(site: DjangoSite) -> None:
    limit("A")(hello)
    site.route("orders", hello)


def route_both(site: DjangoSite) -> None:
    site.route("orders", hello)
    site.route("mails", limit("A")(hello))


@pytest.mark.parametrize(("set_up", "expected"), [(route_another, ["P008"]), (route_both, [])])
def test_limited_view_that_the_urlconf_does_not_have_is_reported(
    site: DjangoSite,
    caplog: pytest.LogCaptureFixture,
    set_up: Callable[[DjangoSite], None],
    expected: list[str],
) -> None:
    site.set(PENSTOCK={"LIMITS": LIMITS, "DEFAULT": "A"})
    set_up(site)
    site.get("/orders")
    assert [text[:4] for text in findings(caplog)] == expected


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def spend_in_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(get_limiter().spend("A", "ada").remaining))


@pytest.mark.parametrize(
    ("view", "settings", "expected"),
    [
        (page, {}, ["P008"]),
        (page, {"DEFAULT": None}, ["P008"]),
        (page, {"ENABLED": False}, []),
        (spend_in_view, {}, []),
        (limit("A")(Orders.as_view()), {}, []),
    ],
)
def test_django_tells_that_nothing_is_limited(
    site: DjangoSite,
    caplog: pytest.LogCaptureFixture,
    view: Any,
    settings: dict[str, Any],
    expected: list[str],
) -> None:
    site.set(PENSTOCK={"LIMITS": LIMITS, **settings})
    site.route("orders", view)
    for _ in range(2):
        site.get("/orders")
    assert [text[:4] for text in findings(caplog)] == expected


@pytest.mark.parametrize(("dependencies", "expected"), [([], ["P008"]), ([Depends(ORDERS)], [])])
def test_fastapi_tells_that_nothing_is_limited(
    caplog: pytest.LogCaptureFixture, dependencies: list[Any], expected: list[str]
) -> None:
    app = FastAPI()
    app.get("/", dependencies=dependencies)(lambda: "")
    install(app, limits=LIMITS)
    with TestClient(app, client=("203.0.113.7", 50000)) as client:
        client.get("/")
    assert [text[:4] for text in findings(caplog)] == expected


@pytest.mark.parametrize("make", [Penstock(flask.Flask("shop")).limit, limit, RateLimit])
def test_limit_that_is_dropped_unused_is_reported_once(
    caplog: pytest.LogCaptureFixture, make: Callable[..., object]
) -> None:
    rate = f"{id(make)}/minute"
    for _ in range(2):
        make(rate)
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


def admitted(rule: Rule, number: int, addresses: int) -> None:
    """Admit a number of requests of some addresses."""
    guard = Guard(limits=LIMITS)
    plan = guard.route_limits([rule])
    for index in range(number):
        environ = {"REMOTE_ADDR": f"203.0.113.{index % addresses}", "number": index}
        admit(plan, EnvironRequest(environ))


@pytest.mark.parametrize(
    ("id", "addresses", "expected"),
    [
        (lambda environ: f"request {environ['number']}", 20, ["P009"]),
        (lambda environ: f"user {environ['number'] // 2}", 20, []),
        (lambda environ: environ["REMOTE_ADDR"], 200, []),
    ],
)
def test_id_that_no_two_requests_share_is_reported(
    caplog: pytest.LogCaptureFixture, id: Any, addresses: int, expected: list[str]
) -> None:
    admitted(make_rule(["A"], "orders", {"id": id}), 1001, addresses)
    assert [text[:4] for text in findings(caplog)] == expected


@pytest.mark.parametrize(
    ("limits", "options", "expected"),
    [
        (["A"], {"exempt_when": lambda _: True}, ["P008"]),
        (["A"], {"exempt_when": lambda environ: environ["number"] != 700}, []),
        (["A"], {"cost": lambda _: 0}, ["P008"]),
        (["A"], {"methods": ["POST"], "exempt_when": lambda _: True}, []),
        ([], {"limit": lambda: None}, ["P008"]),
        ([], {"limit": lambda: "A"}, []),
        ([], {"tiers": {"free": None, "pro": "A"}, "tier": lambda: "free"}, ["P008"]),
        (["A"], {"cost": 0, "settle": True}, []),
    ],
)
def test_limit_that_counts_no_request_is_reported(
    caplog: pytest.LogCaptureFixture,
    limits: list[str],
    options: RuleOptions,
    expected: list[str],
) -> None:
    admitted(make_rule(limits, "orders", options), 1001, 20)
    assert [text[:4] for text in findings(caplog)] == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"deduct_when": lambda status: status == "200"}, ["P008"]),
        ({"deduct_when": lambda status: status == 401}, []),
        ({"cost_from_response": lambda _: 0}, ["P008"]),
    ],
)
def test_limit_that_counts_no_response_is_reported(
    caplog: pytest.LogCaptureFixture, options: RuleOptions, expected: list[str]
) -> None:
    plan = Guard(limits=LIMITS).route_limits([make_rule(["A"], "orders", options)])
    for number in range(1001):
        admit(plan, EnvironRequest(PEER)).settle(401 if number == 500 else 200)
    assert [text[:4] for text in findings(caplog)] == expected


@pytest.mark.parametrize("answer", [None, "no", 0, 1, [], object()])
@pytest.mark.parametrize("option", ["exempt_when", "deduct_when"])
def test_answer_that_is_not_a_bool_is_an_error(option: Any, answer: object) -> None:
    rule = make_rule(["A"], "orders", {option: lambda _: answer})  # type: ignore[misc]
    plan = Guard(limits=LIMITS).route_limits([rule])
    with pytest.raises(TypeError, match=f"{option} must return True or False"):
        admit(plan, EnvironRequest(PEER)).settle(200)
