"""Several extensions on one application decide independently and respond together."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import flask
import pytest
from flask.views import MethodView
from sites import get, remaining

import penstock
from penstock.flask import Penstock, RequestRefused
from penstock.flask.app_limits import AppLimits

if TYPE_CHECKING:
    from conftest import MakeLimiter


@pytest.fixture
def people(make_limiter: MakeLimiter) -> penstock.Limiter:
    """The limiter of the first extension."""
    return make_limiter({"PerAddress": "2/minute", "PerUser": "5/hour"})


@pytest.fixture
def partners(make_limiter: MakeLimiter) -> penstock.Limiter:
    """The limiter of the second extension, with a limit of the same name."""
    return make_limiter({"PerKey": "3/minute", "PerAddress": "1/hour"})


class Both(NamedTuple):
    """Two extensions on one application, and their limiters."""

    ours: Penstock
    theirs: Penstock
    people: penstock.Limiter
    partners: penstock.Limiter


@pytest.fixture
def both(app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter) -> Both:
    return Both(Penstock(app, people), Penstock(app, partners), people, partners)


def hello() -> str:
    return "hello"


def test_each_has_its_decorator_limiter_and_decision(app: flask.Flask, both: Both) -> None:
    ours, theirs, people, partners = both
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
    assert (remaining(people, "PerAddress"), remaining(partners, "PerAddress")) == (1, 0)


def test_registry_is_the_first_and_lists_all(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    ours = Penstock(app, people)
    first = app.extensions["penstock"]
    theirs = Penstock(app, partners)
    assert app.extensions["penstock"] is first
    assert isinstance(first, AppLimits)
    assert [extension.owner for extension in first.all] == [ours, theirs]
    assert first.all[1].all is first.all


@pytest.mark.parametrize("reverse", [False, True])
def test_response_has_the_fields_of_both(app: flask.Flask, both: Both, *, reverse: bool) -> None:
    ours, theirs, people, partners = both
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
    assert (remaining(people, "PerAddress"), remaining(partners, "PerKey")) == (1, 2)


def test_refusal_by_the_outer_limit_does_not_spend_the_inner(app: flask.Flask, both: Both) -> None:
    ours, theirs, _, partners = both
    app.get("/")(ours.limit("PerAddress")(theirs.limit("PerKey")(hello)))
    assert [get(app).status_code for _ in range(4)] == [200, 200, 429, 429]
    refused = get(app)
    assert refused.headers.getlist("RateLimit") == ['"PerAddress";r=0;t=30']
    assert refused.headers["Retry-After"] == "30"
    assert remaining(partners, "PerKey") == 1


def test_single_field_describes_the_refusal(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    # A field with one value can describe only one of the two.
    ours = Penstock(app, people, headers="github")
    theirs = Penstock(app, partners, headers="github")
    app.get("/")(ours.limit("PerAddress")(theirs.limit("PerAddress")(hello)))
    served, refused = get(app), get(app)
    assert (served.status_code, refused.status_code) == (200, 429)
    # On a served response, the stricter.
    assert served.headers["X-RateLimit-Limit"] == "1"
    assert refused.headers["X-RateLimit-Limit"] == "1"
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    assert refused.headers["Retry-After"] == "3600"


@pytest.mark.parametrize("reverse", [False, True])
def test_single_field_describes_the_stricter_of_both(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter, *, reverse: bool
) -> None:
    limiters = [partners, people] if reverse else [people, partners]
    for limiter in limiters:
        Penstock(app, limiter, headers="github").default("PerAddress")
    app.get("/")(hello)
    assert get(app).headers["X-RateLimit-Limit"] == "1"


def test_defaults_of_both_limit_a_view_that_one_has_decorated(app: flask.Flask, both: Both) -> None:
    ours, theirs, people, partners = both
    theirs.default("PerKey")
    before: list[int] = []

    def view() -> str:
        before.append(remaining(partners, "PerKey"))
        return "hello"

    app.get("/")(ours.limit("PerAddress")(view))
    assert get(app).status_code == 200
    # It was evaluated before the view.
    assert before == [2]
    assert remaining(people, "PerAddress") == 1


def test_refusal_by_one_is_not_counted_by_the_other(app: flask.Flask, both: Both) -> None:
    ours, theirs, _, partners = both
    ours.default("PerAddress")
    theirs.default("PerKey")
    app.get("/")(hello)
    assert [get(app).status_code for _ in range(4)] == [200, 200, 429, 429]
    assert remaining(partners, "PerKey") == 1


def test_route_whose_view_is_not_reached_counts_for_both(app: flask.Flask, both: Both) -> None:
    ours, theirs, people, partners = both
    ours.default("PerAddress")
    theirs.default("PerKey")

    view = theirs.limit("PerKey")(ours.limit("PerAddress")(hello))

    @app.get("/")
    @functools.wraps(view)
    def login_required() -> Any:
        flask.abort(401)

    assert get(app).status_code == 401
    assert (remaining(people, "PerAddress"), remaining(partners, "PerKey")) == (1, 2)
    assert [get(app).status_code for _ in range(2)] == [401, 429]
    assert remaining(partners, "PerKey") == 1


def test_exempt_from_one_is_not_exempt_from_the_other(app: flask.Flask, both: Both) -> None:
    ours, theirs, people, _ = both
    ours.default("PerAddress")
    theirs.default("PerKey")
    app.get("/")(ours.exempt(hello))
    assert get(app).headers.getlist("RateLimit") == ['"PerKey";r=2;t=20']
    assert remaining(people, "PerAddress") == 2


def test_blueprints_and_classes_belong_to_one_extension(app: flask.Flask, both: Both) -> None:
    ours, theirs, people, partners = both
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
    assert remaining(people, "PerAddress") == 1
    assert people.check("PerUser", "ada", 0).remaining == 4
    assert (remaining(partners, "PerAddress"), remaining(partners, "PerKey")) == (0, 2)


def test_each_refunds_and_settles_its_own_limits(app: flask.Flask, both: Both) -> None:
    ours, theirs, people, partners = both

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
    assert (remaining(people, "PerAddress"), remaining(partners, "PerKey")) == (2, 2)
    assert get(app, "/login").status_code == 401
    assert (remaining(people, "PerAddress"), remaining(partners, "PerKey")) == (1, 2)


def test_error_handler_sees_the_refusal_of_either(app: flask.Flask, both: Both) -> None:
    ours, theirs, *_ = both

    @app.errorhandler(RequestRefused)
    def slower(error: RequestRefused) -> Any:
        decision = error.outcome.decision
        assert decision is not None
        return f"slower: {decision.name} {decision.limit.count}", 429

    app.get("/")(ours.limit("PerUser")(theirs.limit("PerAddress")(hello)))
    get(app)
    assert get(app).text == "slower: PerAddress 1"


def test_fault_of_the_second_surfaces_at_init_app(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    Penstock(app, people)
    theirs = Penstock(None, partners)
    # An extension forgets a view that is not referenced.
    view = theirs.limit("PerUser")(hello)
    with pytest.raises(penstock.ConfigError, match="'PerUser'"):
        theirs.init_app(app)
    assert view() == hello()
    assert len(app.extensions["penstock"].all) == 1
    app.get("/")(hello)
    assert get(app).status_code == 200


def test_view_of_an_extension_that_is_not_installed_is_an_error(
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
    with pytest.raises(penstock.ConfigError, match="PENSTOCK_LIMITS"):
        Penstock(app)
    Penstock(app, config_prefix="PARTNERS_PENSTOCK_")
    app.get("/")(hello)
    response = get(app)
    assert response.headers["x-ratelimit-remaining"] == "1"
    assert response.headers["RateLimit"] == '"PerKey";r=2;t=20'


def test_shared_settings_apply_to_all(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    app.config["PENSTOCK_ENABLED"] = False
    Penstock(app, people).default("PerAddress")
    Penstock(app, partners).default("PerKey")
    app.get("/")(hello)
    assert "RateLimit" not in get(app).headers
    assert (remaining(people, "PerAddress"), remaining(partners, "PerKey")) == (2, 3)


@pytest.mark.parametrize("prefix", ["", "partners_", "PARTNERS", "PENSTOCK_PARTNERS_", 5, None])
def test_wrong_prefix_is_an_error(prefix: Any) -> None:
    with pytest.raises(penstock.ConfigError, match="config_prefix"):
        Penstock(config_prefix=prefix)


def test_unknown_key_with_a_prefix_is_an_error(app: flask.Flask) -> None:
    app.config["PARTNERS_LIMIT"] = {}
    with pytest.raises(penstock.ConfigError, match="'PARTNERS_LIMITS'"):
        Penstock(app, config_prefix="PARTNERS_")


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
