"""One extension limits one or several applications; an application has one extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import flask
import pytest
from sites import get

import penstock
from penstock.flask import Penstock

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


def hello() -> str:
    return "hello"


def test_view_of_an_extension_that_is_not_installed_is_an_error(
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    Penstock(app, people)
    app.testing = True
    app.get("/")(Penstock(None, partners).limit("PerKey")(hello))
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
    app: flask.Flask, people: penstock.Limiter, partners: penstock.Limiter
) -> None:
    Penstock(app, people)
    with pytest.raises(penstock.ConfigError, match="has another Penstock"):
        Penstock(app, partners)
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
