"""Several extensions on one application: each decides for itself, and one answer has all of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import flask
import pytest
from flask.views import MethodView

import penstock
from penstock.flask import Penstock, RequestRefused
from penstock.flask.app_limits import AppLimits

if TYPE_CHECKING:
    from conftest import MakeLimiter
    from werkzeug.test import TestResponse

ADDRESS = "127.0.0.1"


@pytest.fixture
def app() -> flask.Flask:
    return flask.Flask(__name__)


@pytest.fixture
def people(make_limiter: MakeLimiter) -> penstock.Limiter:
    """What limits people."""
    return make_limiter({"PerAddress": "2/minute", "PerUser": "5/hour"})


@pytest.fixture
def partners(make_limiter: MakeLimiter) -> penstock.Limiter:
    """What limits partners: a limiter of its own, of which one name is the same."""
    return make_limiter({"PerKey": "3/minute", "PerAddress": "1/hour"})


def get(app: flask.Flask, path: str = "/") -> TestResponse:
    """Get a page as a new client."""
    return app.test_client().get(path)


def left(limiter: penstock.Limiter, name: str) -> int:
    """Give what a bucket has left."""
    return limiter.check(name, ADDRESS, 0).remaining


def hello() -> str:
    return "hello"


def test_each_has_its_decorator_limiter_and_decision(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)
    seen: list[object] = []

    def view() -> str:
        seen.extend((ours.decision(), theirs.decision()))
        return "hello"

    app.get("/ours", endpoint="ours")(ours.limit("PerAddress")(view))
    app.get("/theirs", endpoint="theirs")(theirs.limit("PerAddress")(view))
    assert get(app, "/ours").headers.getlist("RateLimit") == ['"PerAddress";r=1;t=30']
    assert get(app, "/theirs").headers.getlist("RateLimit") == ['"PerAddress";r=0;t=3600']
    with app.app_context():
        assert (ours.guard.limiter, theirs.guard.limiter) == (people, partners)
    assert [decision is None for decision in seen] == [False, True, True, False]
    assert (left(people, "PerAddress"), left(partners, "PerAddress")) == (1, 0)


def test_registry_is_the_first_and_lists_all(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours = Penstock(app, people)
    first = app.extensions["penstock"]
    theirs = Penstock(app, partners)
    assert app.extensions["penstock"] is first
    assert isinstance(first, AppLimits)
    assert [installed.owner for installed in first.all] == [ours, theirs]
    assert first.all[1].all is first.all


@pytest.mark.parametrize("reverse", [False, True])
def test_both_on_one_view_are_told_in_one_answer(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter, *, reverse: bool
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)
    if reverse:
        view = theirs.limit("PerKey")(ours.limit("PerAddress")(hello))
    else:
        view = ours.limit("PerAddress")(theirs.limit("PerKey")(hello))
    app.get("/")(view)
    response = get(app)
    assert response.status_code == 200
    assert sorted(response.headers.getlist("RateLimit")) == [
        '"PerAddress";r=1;t=30',
        '"PerKey";r=2;t=20',
    ]
    assert len(response.headers.getlist("RateLimit-Policy")) == 2
    assert (left(people, "PerAddress"), left(partners, "PerKey")) == (1, 2)


def test_refusal_of_the_outer_leaves_the_inner_alone(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)
    app.get("/")(ours.limit("PerAddress")(theirs.limit("PerKey")(hello)))
    assert [get(app).status_code for _ in range(4)] == [200, 200, 429, 429]
    refused = get(app)
    assert refused.headers.getlist("RateLimit") == ['"PerAddress";r=0;t=30']
    assert refused.headers["Retry-After"] == "30"
    assert left(partners, "PerKey") == 1


def test_refusal_is_told_by_the_one_that_refuses(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    # One field for all, so that only one of the two can be told.
    ours = Penstock(app, people, headers="github")
    theirs = Penstock(app, partners, headers="github")
    app.get("/")(ours.limit("PerAddress")(theirs.limit("PerAddress")(hello)))
    served, refused = get(app), get(app)
    assert (served.status_code, refused.status_code) == (200, 429)
    # Of a served request, what is left of the stricter.
    assert served.headers["X-RateLimit-Limit"] == "1"
    assert refused.headers["X-RateLimit-Limit"] == "1"
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    assert refused.headers["Retry-After"] == "3600"


@pytest.mark.parametrize("reverse", [False, True])
def test_stricter_is_told_whichever_was_installed_first(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter, *, reverse: bool
) -> None:
    limiters = [partners, people] if reverse else [people, partners]
    for limiter in limiters:
        Penstock(app, limiter, headers="github").default("PerAddress")
    app.get("/")(hello)
    assert get(app).headers["X-RateLimit-Limit"] == "1"


def test_defaults_of_both_limit_a_view_that_one_has_decorated(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)
    theirs.default("PerKey")
    asked: list[int] = []

    def view() -> str:
        asked.append(left(partners, "PerKey"))
        return "hello"

    app.get("/")(ours.limit("PerAddress")(view))
    assert get(app).status_code == 200
    # Before the view, not after it.
    assert asked == [2]
    assert left(people, "PerAddress") == 1


def test_refusal_by_one_is_not_counted_by_the_other(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)
    ours.default("PerAddress")
    theirs.default("PerKey")
    app.get("/")(hello)
    assert [get(app).status_code for _ in range(4)] == [200, 200, 429, 429]
    assert left(partners, "PerKey") == 1


def test_route_whose_view_is_not_reached_is_counted_by_both(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)
    ours.default("PerAddress")
    theirs.default("PerKey")

    view = theirs.limit("PerKey")(ours.limit("PerAddress")(hello))

    @app.get("/")
    @functools.wraps(view)
    def login_required() -> Any:
        flask.abort(401)

    assert get(app).status_code == 401
    assert (left(people, "PerAddress"), left(partners, "PerKey")) == (1, 2)
    assert [get(app).status_code for _ in range(2)] == [401, 429]
    assert left(partners, "PerKey") == 1


def test_exempt_from_one_is_not_exempt_from_the_other(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)
    ours.default("PerAddress")
    theirs.default("PerKey")
    app.get("/")(ours.exempt(hello))
    assert get(app).headers.getlist("RateLimit") == ['"PerKey";r=2;t=20']
    assert left(people, "PerAddress") == 2


def test_blueprints_and_classes_belong_to_one_each(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)
    shop = flask.Blueprint("shop", __name__)

    class Orders(MethodView):
        @theirs.limit("PerKey")
        def get(self) -> str:
            return "hello"

    shop.add_url_rule(
        "/orders", view_func=ours.limit("PerUser", id="ada")(Orders).as_view("orders")
    )
    app.register_blueprint(theirs.limit("PerAddress")(ours.limit("PerAddress")(shop)))
    response = get(app, "/orders")
    assert response.status_code == 200
    assert left(people, "PerAddress") == 1
    assert people.check("PerUser", "ada", 0).remaining == 4
    assert (left(partners, "PerAddress"), left(partners, "PerKey")) == (0, 2)


def test_errors_and_responses_are_looked_back_on_by_each(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)

    @app.get("/fail")
    @ours.limit("PerAddress", refund_on_error=True)
    @theirs.limit("PerKey")
    def fail() -> str:
        raise RuntimeError("out")

    @app.get("/login")
    @ours.limit("PerAddress", deduct_when=lambda response: response.status_code == 401)
    @theirs.limit("PerKey", deduct_when=lambda response: response.status_code == 200)
    def login() -> Any:
        return "no", 401

    assert get(app, "/fail").status_code == 500
    assert (left(people, "PerAddress"), left(partners, "PerKey")) == (2, 2)
    assert get(app, "/login").status_code == 401
    assert (left(people, "PerAddress"), left(partners, "PerKey")) == (1, 2)


def test_error_handler_sees_the_refusal_of_either(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours, theirs = Penstock(app, people), Penstock(app, partners)

    @app.errorhandler(RequestRefused)
    def slower(error: RequestRefused) -> Any:
        decision = error.outcome.decision
        assert decision is not None
        return f"slower: {decision.name} {decision.limit.count}", 429

    app.get("/")(ours.limit("PerUser")(theirs.limit("PerAddress")(hello)))
    get(app)
    assert get(app).text == "slower: PerAddress 1"


def test_second_of_them_surfaces_its_faults_at_init_app(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    Penstock(app, people)
    theirs = Penstock(None, partners)
    theirs.limit("PerUser")(hello)
    with pytest.raises(penstock.ConfigError, match="no limit is named 'PerUser'"):
        theirs.init_app(app)
    assert len(app.extensions["penstock"].all) == 1
    app.get("/")(hello)
    assert get(app).status_code == 200


def test_view_of_one_that_is_not_installed_says_so(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    Penstock(app, people)
    app.testing = True
    app.get("/")(Penstock(None, partners).limit("PerKey")(hello))
    with pytest.raises(penstock.ConfigError, match=r"call init_app\(app\)"):
        get(app)


def test_config_is_for_the_first_unless_the_second_has_a_prefix(app: flask.Flask) -> None:
    app.config["PENSTOCK_LIMITS"] = {"PerAddress": "2/minute"}
    app.config["PENSTOCK_HEADERS"] = "envoy"
    app.config["PARTNERS_PENSTOCK_LIMITS"] = {"PerKey": "3/minute"}
    app.config["PARTNERS_PENSTOCK_DEFAULT"] = "PerKey"
    Penstock(app).default("PerAddress")
    with pytest.raises(penstock.ConfigError, match="PENSTOCK_LIMITS is for one Penstock of an app"):
        Penstock(app)
    Penstock(app, config_prefix="PARTNERS_PENSTOCK_")
    app.get("/")(hello)
    response = get(app)
    assert response.headers["x-ratelimit-remaining"] == "1"
    assert response.headers["RateLimit"] == '"PerKey";r=2;t=20'


def test_settings_that_several_may_share_hold_for_all(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    app.config["PENSTOCK_ENABLED"] = False
    Penstock(app, people).default("PerAddress")
    Penstock(app, partners).default("PerKey")
    app.get("/")(hello)
    assert "RateLimit" not in get(app).headers
    assert (left(people, "PerAddress"), left(partners, "PerKey")) == (2, 3)


@pytest.mark.parametrize("prefix", ["", "partners_", "PARTNERS", "PENSTOCK_PARTNERS_", 5, None])
def test_prefix_that_cannot_be_is_refused(prefix: Any) -> None:
    with pytest.raises(penstock.ConfigError, match="config_prefix must be upper case, end in _"):
        Penstock(config_prefix=prefix)


def test_unknown_key_under_a_prefix_is_found(app: flask.Flask) -> None:
    app.config["PARTNERS_LIMIT"] = {}
    with pytest.raises(penstock.ConfigError, match="did you mean 'PARTNERS_LIMITS'"):
        Penstock(app, config_prefix="PARTNERS_")
