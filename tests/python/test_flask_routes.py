"""Defaults, classes, blueprints, config and several applications in Flask."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import flask
import pytest
from flask.views import MethodView
from sites import get, limit_fields, remaining

import penstock
from penstock.flask import Penstock
from penstock.identity import by_user, per_route

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLimiter


def hello() -> str:
    """Greet."""
    return "hello"


def test_refusal_of_a_view_that_is_not_reached_passes_the_functions_of_the_application(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    """A browser shows no refusal without the fields that a CORS extension adds."""
    limits.default("PerAddress")

    @app.after_request
    def allow(response: flask.Response) -> flask.Response:
        response.headers["Access-Control-Allow-Origin"] = "*"
        return response

    @app.before_request
    def reject() -> None:
        flask.abort(401)

    @app.errorhandler(429)
    def slow_down(_: Exception) -> Any:
        return "slow down", 429

    app.get("/")(limits.limit("Large")(hello))
    responses = [get(app) for _ in range(3)]
    assert [response.status_code for response in responses] == [401, 401, 429]
    assert limit_fields(responses[0])["RateLimit"] == '"PerAddress";r=1;t=30'
    assert remaining(limiter, "Large") == 100
    assert responses[2].get_data() == b"slow down"
    assert responses[2].headers["Access-Control-Allow-Origin"] == "*"
    assert responses[2].headers["Retry-After"] == "30"


@pytest.mark.parametrize("rejects", [lambda: flask.abort(401), lambda: ("no token", 401)])
def test_default_without_a_known_id_leaves_the_response_unchanged(
    app: flask.Flask, limits: Penstock, caplog: pytest.LogCaptureFixture, rejects: Any
) -> None:
    limits.default("PerAddress", id=lambda: flask.g.tenant)
    app.before_request(rejects)
    app.get("/")(hello)
    app.testing = False
    assert [get(app).status_code for _ in range(2)] == [401, 401]
    assert len([each for each in caplog.records if each.name == "penstock"]) == 1


def test_default_uses_results_of_before_request_functions(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    limits.default("PerUser", id=by_user)
    limits.default("PerAddress", id=lambda: flask.g.tenant)
    orders = flask.Blueprint("orders", __name__)

    @app.before_request
    def load_user() -> None:
        flask.g.user = {"id": "ada"}

    @orders.before_request
    def load_tenant() -> None:
        flask.g.tenant = "acme"

    class Orders(MethodView):
        def get(self) -> str:
            return hello()

    orders.get("/orders")(hello)
    orders.add_url_rule("/class", view_func=Orders.as_view("class"))
    orders.get("/decorated", endpoint="decorated")(limits.limit("Large")(hello))
    app.register_blueprint(orders)
    paths = ("/orders", "/class")
    assert [get(app, path).status_code for path in paths] == [200, 200]
    assert get(app, "/decorated").status_code == 429
    assert remaining(limiter, "PerUser", "ada") == 3
    assert remaining(limiter, "PerAddress", "acme") == 0


def test_view_named_static_is_a_view(limiter: penstock.Limiter) -> None:
    app = flask.Flask(__name__, static_folder=None)
    Penstock(app, limiter).default("PerAddress")
    pages = flask.Blueprint("pages", __name__)

    def static() -> str:
        return "no file"

    app.get("/static")(static)
    pages.get("/pages/static")(static)
    app.register_blueprint(pages)
    paths = ("/static", "/pages/static", "/static")
    assert [get(app, path).status_code for path in paths] == [200, 200, 429]


def test_static_files_do_not_count(tmp_path: Path, limiter: penstock.Limiter) -> None:
    (tmp_path / "logo.txt").write_text("logo", encoding="utf-8")
    app = flask.Flask(__name__, static_folder=str(tmp_path), static_url_path="/static")
    Penstock(app, limiter).default("PerAddress")
    pages = flask.Blueprint("pages", __name__, static_folder=str(tmp_path), url_prefix="/pages")
    app.register_blueprint(pages)
    for path in ("/static/logo.txt", f"/pages/{tmp_path.name}/logo.txt"):
        with get(app, path) as response:
            assert response.get_data() == b"logo"
    assert remaining(limiter, "PerAddress") == 2


def test_default_may_follow_the_views(app: flask.Flask, limits: Penstock) -> None:
    app.get("/")(limits.limit("PerUser")(hello))
    limits.default("Large")
    assert limit_fields(get(app))["RateLimit"] == '"Large";r=99;t=1, "PerUser";r=4;t=720'


def test_decorating_in_each_request_leaks_nothing(
    app: flask.Flask, limits: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock._web.compile._MAX_COMPILED", 50)

    def ask() -> None:
        with app.test_request_context("/", environ_base={"REMOTE_ADDR": "203.0.113.7"}):
            limits.limit("9000/hour")(hello)()

    def kept() -> int:
        gc.collect()
        return sum(type(each).__name__ == "Rule" for each in gc.get_objects())

    ask()
    before = kept()
    for _ in range(100):
        ask()
    assert kept() - before <= 50


def test_further_default_may_follow_the_first_request(app: flask.Flask, limits: Penstock) -> None:
    limits.default("Large")
    app.get("/")(hello)
    get(app)
    limits.default("PerUser")
    assert limit_fields(get(app))["RateLimit"] == '"Large";r=98;t=1, "PerUser";r=4;t=720'


def test_first_default_after_the_first_request_is_an_error(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    app.get("/")(hello)
    get(app)
    with pytest.raises(penstock.ConfigError, match="first request"):
        limits.default("PerAddress")
    assert limit_fields(get(app)) == {}
    # It was not kept for the next application either.
    other = flask.Flask("other")
    limits.init_app(other)
    other.get("/")(hello)
    assert limit_fields(get(other)) == {}


@pytest.mark.parametrize(("of_function", "replaces"), [(None, False), (True, True)])
def test_limit_before_the_views_is_no_limit_of_a_route(
    app: flask.Flask, *, of_function: bool | None, replaces: bool
) -> None:
    limits = Penstock(app, limits={"All": "9/minute", "Each": "2/minute"}, override_defaults=True)
    limits.default("Each", id=per_route())
    app.before_request(limits.limit("All", override_defaults=of_function)(lambda: None))
    app.get("/")(hello)
    app.get("/own", endpoint="own")(limits.limit("3/minute")(hello))
    assert "Each" not in get(app, "/own").headers["RateLimit"]
    assert ("Each" not in get(app).headers["RateLimit"]) is replaces


def test_decorators_of_classes_keep_rates_apart(app: flask.Flask, limits: Penstock) -> None:
    class Orders(MethodView):
        decorators: ClassVar = [limits.limit("1/minute")]

        def get(self) -> str:
            return "get"

    class Parcels(Orders):
        pass

    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    app.add_url_rule("/parcels", view_func=Parcels.as_view("parcels"))
    assert limit_fields(get(app, "/orders"))["RateLimit"] == '"orders";r=0;t=60'
    assert limit_fields(get(app, "/parcels"))["RateLimit"] == '"parcels";r=0;t=60'


@pytest.mark.parametrize("is_late", [False, True])
def test_limit_above_its_route_is_logged(
    app: flask.Flask, is_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Penstock(limits={"PerAddress": "1/minute"}, clock=penstock.ManualClock())
    if not is_late:
        limits.init_app(app)
    parcels = flask.Blueprint("parcels", __name__)
    # As in a factory, nothing keeps the decorated view.
    limits.limit("PerAddress")(app.get("/")(lambda: "hello"))
    above = limits.limit("PerAddress")(parcels.get("/parcels", endpoint="list")(hello))
    app.register_blueprint(parcels)
    # The right order, and a view that an extension registered and the application limits.
    app.get("/below", endpoint="below")(limits.limit("PerAddress")(lambda: "hello"))
    app.get("/others", endpoint="others")(lambda: "hello")
    app.view_functions["others"] = limits.limit("PerAddress")(app.view_functions["others"])
    gc.collect()
    if is_late:
        limits.init_app(app)
    for path in ("/", "/", "/parcels"):
        assert get(app, path).status_code == 200
    endpoints = ["parcels.list"] if is_late else ["<lambda>", "parcels.list"]
    found = sorted(record.getMessage() for record in caplog.records)
    assert [text.partition(" has no effect")[0] for text in found] == [
        f"P008: the limit of {name}" for name in endpoints
    ]
    assert above is not None


def test_application_is_no_view(app: flask.Flask, limits: Penstock) -> None:
    # A server calls it, so a wrapper around it would limit nothing.
    decorate: Any = limits.limit("PerAddress")
    with pytest.raises(penstock.ConfigError, match=r"limits\.default"):
        decorate(app)


def test_decorators_of_methods_are_read_as_their_framework_does(
    app: flask.Flask, limits: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    class Resource(MethodView):
        # As that of Flask-RESTful and Flask-RESTX.
        method_decorators: ClassVar[list[Any]] = []

        def dispatch_request(self, **arguments: Any) -> Any:
            answer = super().dispatch_request
            for decorate in self.method_decorators:
                answer = decorate(answer)
            return answer(**arguments)

    class Orders(Resource):
        method_decorators: ClassVar = [limits.limit("PerAddress")]

        def get(self) -> str:
            return "hello"

    class Parcels(MethodView):
        method_decorators: ClassVar = [limits.limit("PerAddress")]

        def get(self) -> str:
            return "hello"

    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    app.add_url_rule("/parcels", view_func=Parcels.as_view("parcels"))
    assert limit_fields(get(app, "/orders"))["RateLimit"] == '"PerAddress";r=1;t=30'
    (record,) = caplog.records
    assert "method_decorators of the class of parcels" in record.getMessage()


def test_blueprint_is_limited_with_its_children_only(app: flask.Flask, limits: Penstock) -> None:
    parent = limits.limit("PerAddress")(flask.Blueprint("parent", __name__, url_prefix="/parent"))
    child = flask.Blueprint("child", __name__, url_prefix="/child")
    child.get("/")(hello)
    parent.get("/")(hello)
    parent.register_blueprint(child)
    app.register_blueprint(parent)
    app.get("/")(hello)
    assert limit_fields(get(app)) == {}
    assert get(app, "/parent/").status_code == 200
    assert limit_fields(get(app, "/parent/child/"))["RateLimit"] == '"PerAddress";r=0;t=30'
    assert get(app, "/parent/").status_code == 429


def test_limits_of_default_blueprint_and_view_are_one_decision(
    app: flask.Flask, limits: Penstock
) -> None:
    limits.default("Large")
    blueprint = limits.limit("PerUser")(flask.Blueprint("shop", __name__))
    blueprint.get("/")(limits.limit("PerAddress")(hello))
    app.register_blueprint(blueprint)
    assert limit_fields(get(app))["RateLimit"] == (
        '"Large";r=99;t=1, "PerUser";r=4;t=720, "PerAddress";r=1;t=30'
    )


def test_blueprint_may_be_registered_before_the_extension(limiter: penstock.Limiter) -> None:
    app, limits = flask.Flask(__name__), Penstock(None, limiter)
    blueprint = limits.limit("PerAddress")(flask.Blueprint("shop", __name__))
    blueprint.get("/")(hello)
    app.register_blueprint(blueprint)
    limits.init_app(app)
    assert limit_fields(get(app))["RateLimit"] == '"PerAddress";r=1;t=30'


def test_exempt_blueprint_has_no_default(app: flask.Flask, limits: Penstock) -> None:
    limits.default("PerAddress")
    blueprint = limits.exempt(flask.Blueprint("health", __name__))
    blueprint.get("/")(hello)
    app.register_blueprint(blueprint)
    assert limit_fields(get(app)) == {}


def test_config_has_precedence_over_the_options(clock: penstock.ManualClock) -> None:
    app, limits = flask.Flask(__name__), Penstock(limits={"A": "9/minute"}, headers="github")
    app.config.update(PENSTOCK_LIMITS={"A": "1/minute"}, PENSTOCK_CLOCK=clock, PENSTOCK_DEFAULT="A")
    limits.init_app(app)
    app.get("/")(hello)
    response = get(app)
    assert response.headers["X-RateLimit-Limit"] == "1"
    assert get(app).status_code == 429


def test_limiter_of_the_config_replaces_limits_and_limits_a_limiter(
    app: flask.Flask, limiter: penstock.Limiter
) -> None:
    app.config.update(PENSTOCK_LIMITER=limiter, PENSTOCK_DEFAULT=["PerAddress", "PerUser"])
    Penstock(app, limits="missing.yaml", store="memory://")
    app.get("/")(hello)
    assert limit_fields(get(app))["RateLimit"] == '"PerAddress";r=1;t=30, "PerUser";r=4;t=720'
    other = flask.Flask("other")
    other.config["PENSTOCK_LIMITS"] = {"Only": "1/minute"}
    assert list(Penstock(other, limiter).guard.limiter.limits) == ["Only"]


def test_file_is_found_in_the_application_or_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, text in (("app", "Beside"), ("run", "Here")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "limits.yaml").write_text(
            f"{text}: {{burst: 1, count: 1, period: 1m}}\n", encoding="utf-8"
        )
    (tmp_path / "run" / "only.yaml").write_text(
        "Only: {burst: 1, count: 1, period: 1m}\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path / "run")
    for file, name in (("limits.yaml", "Beside"), ("only.yaml", "Only")):
        app = flask.Flask(__name__, root_path=str(tmp_path / "app"))
        limits = Penstock(app, limits=file)
        with app.app_context():
            assert list(limits.limiter.limits) == [name]


def test_disabled_extension_still_checks_its_configuration(
    limiter: penstock.Limiter,
) -> None:
    app = flask.Flask(__name__)
    limits = Penstock(app, limiter, enabled=False)
    limits.default("PerAddress")
    app.get("/")(limits.limit("PerAddress")(hello))
    assert [limit_fields(get(app)) for _ in range(3)] == [{}] * 3
    with pytest.raises(penstock.ConfigError):
        limits.limit("Unknown")(hello)


def test_fault_of_a_view_surfaces_at_init_app(limiter: penstock.Limiter) -> None:
    app, limits = flask.Flask(__name__), Penstock(None, limiter)
    view = limits.limit("PerAdress")(hello)
    with pytest.raises(penstock.ConfigError, match="'PerAddress'"):
        limits.init_app(app)
    assert "penstock" not in app.extensions
    assert view.__name__ == "hello"


def test_fault_of_a_default_or_blueprint_surfaces_at_init_app(limiter: penstock.Limiter) -> None:
    limits = Penstock(None, limiter)
    limits.default("Unknown")
    with pytest.raises(penstock.ConfigError, match="'Unknown'"):
        limits.init_app(flask.Flask(__name__))
    app, limits = flask.Flask(__name__), Penstock(None, limiter)
    app.register_blueprint(limits.limit("Unheard")(flask.Blueprint("shop", __name__)))
    with pytest.raises(penstock.ConfigError, match="'Unheard'"):
        limits.init_app(app)


@pytest.mark.parametrize(
    ("path", "status", "register"),
    [
        ("/unknown", 404, lambda app, view: app.errorhandler(404)(view)),
        ("/broken", 500, lambda app, view: app.errorhandler(LookupError)(view)),
        ("/broken", 500, lambda app, view: app.errorhandler(500)(view)),
        ("/", 200, lambda app, view: app.after_request(view)),
        ("/", 200, lambda app, view: app.before_request(lambda: view(None))),
    ],
)
def test_limit_outside_of_a_view_refuses_with_429(
    app: flask.Flask, path: str, status: int, register: Any
) -> None:
    limits = Penstock(app, limits={})

    @limits.limit("1/hour")
    def limited(given: Any) -> Any:
        return (str(given), status) if isinstance(given, Exception) else given

    @app.get("/broken")
    def broken() -> str:
        raise LookupError

    app.get("/")(hello)
    register(app, limited)
    answers = [get(app, path) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, 429]
    assert answers[1].headers["Retry-After"] == "3600"


def test_fault_after_init_app_surfaces_where_it_is_written(limits: Penstock) -> None:
    with pytest.raises(penstock.ConfigError, match="'PerAddress'"):
        limits.limit("PerAdress")(hello)
    with pytest.raises(penstock.ConfigError, match="'Unknown'"):
        limits.default("Unknown")
    with pytest.raises(penstock.ConfigError, match="mode"):
        limits.limit("PerAddress", mode="dry")  # type: ignore[arg-type]  # the mistake itself


def test_second_init_app_on_one_application_is_an_error(app: flask.Flask, limits: Penstock) -> None:
    with pytest.raises(penstock.ConfigError, match="init_app"):
        limits.init_app(app)


def test_one_extension_serves_several_applications_apart(make_limiter: MakeLimiter) -> None:
    limits = Penstock(limits={"PerAddress": "1/minute"})
    view = limits.limit("PerAddress")(hello)
    apps = []
    for _ in range(2):
        app = flask.Flask(__name__)
        app.config["PENSTOCK_LIMITER"] = make_limiter({"PerAddress": "1/minute"})
        limits.init_app(app)
        app.get("/")(view)
        apps.append(app)
    assert [get(app).status_code for app in apps] == [200, 200]
    assert [get(app).status_code for app in apps] == [429, 429]


def test_extension_keeps_no_application_alive(limiter: penstock.Limiter) -> None:
    limits = Penstock(None, limiter)

    def create_app() -> tuple[Any, ...]:
        app = flask.Flask(__name__)
        limits.init_app(app)
        view = limits.limit("PerAddress")(lambda: "")
        app.get("/")(view)
        get(app)
        return tuple(map(weakref.ref, (app, app.extensions["penstock"], view)))

    references = create_app()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_application_within_another_counts_apart(make_limiter: MakeLimiter) -> None:
    inner, outer = flask.Flask("inner"), flask.Flask("outer")
    inner_limits = Penstock(inner, make_limiter({"A": "5/minute"}))
    outer_limits = Penstock(outer, make_limiter({"A": "5/minute", "B": "5/minute"}))
    inner.get("/")(inner_limits.limit("A")(hello))

    @outer.get("/")
    @outer_limits.limit("A", "B")
    def view() -> flask.Response:
        return flask.Response.from_app(inner, flask.request.environ)  # type: ignore[return-value]  # it is one

    assert limit_fields(get(outer))["RateLimit"] == '"A";r=4;t=12, "B";r=4;t=12'
    assert limit_fields(get(inner))["RateLimit"] == '"A";r=3;t=12'


@pytest.mark.parametrize(
    ("given", "message"), [(("Unknown", None), "Unknown"), (("PerAddress", "2m"), "same block_for")]
)
def test_blueprint_with_a_wrong_limit_is_an_error_where_it_is_registered(
    app: flask.Flask, limiter: penstock.Limiter, given: Any, message: str
) -> None:
    limits = Penstock(None, limiter)
    name, block_for = given
    blueprint = limits.limit(name, block_for=block_for)(flask.Blueprint("shop", __name__))
    limits.init_app(app)
    app.get("/")(limits.limit("PerAddress", block_for="1m")(hello))
    with pytest.raises(penstock.ConfigError, match=message):
        app.register_blueprint(blueprint)


def test_view_of_an_extension_that_is_not_installed_is_an_error(
    app: flask.Flask, limiter: penstock.Limiter, make_limiter: MakeLimiter
) -> None:
    Penstock(app, limiter)
    app.testing = True
    app.get("/")(Penstock(None, make_limiter()).limit("Orders")(hello))
    with pytest.raises(penstock.ConfigError, match=r"call init_app\(app\)"):
        get(app)


def test_guard_is_known_outside_of_the_only_application() -> None:
    limits = Penstock()
    with pytest.raises(penstock.ConfigError, match="app_context"):
        _ = limits.guard
    one = flask.Flask("one")
    limits.init_app(one)
    assert limits.guard is one.extensions["penstock"].guard
    two = flask.Flask("two")
    limits.init_app(two)
    with pytest.raises(penstock.ConfigError, match="app_context"):
        _ = limits.guard
    with two.app_context():
        assert limits.guard is two.extensions["penstock"].guard


def test_second_extension_of_an_application_is_an_error(
    app: flask.Flask, limiter: penstock.Limiter, make_limiter: MakeLimiter
) -> None:
    Penstock(app, limiter)
    with pytest.raises(penstock.ConfigError, match="has another Penstock"):
        Penstock(app, make_limiter())
    app.get("/")(hello)
    assert get(app).status_code == 200


@pytest.mark.parametrize("first", [0, 1])
def test_applications_of_one_limiter_name_their_limits_in_the_order_of_their_creation(
    make_limiter: MakeLimiter, first: int
) -> None:
    limiter = make_limiter({})
    apps = [flask.Flask(name) for name in ("shop", "partners")]
    for number, app in enumerate(apps):

        def orders() -> str:
            return "hello"

        # As in modules of their own.
        orders.__module__, orders.__qualname__ = f"{app.name}.views", "orders"
        app.get("/")(Penstock(app, limiter).limit(f"{number + 1}/minute")(orders))
    get(apps[first])
    assert {name: limit.count for name, limit in limiter.limits.items()} == {
        "orders": 1,
        "views.orders": 2,
    }
