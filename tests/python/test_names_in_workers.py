"""Workers name the limits of views alike, whichever view each of them serves first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import fastapi
import flask
import pytest
import starlette.testclient
from django.http import HttpResponse
from django.utils.decorators import method_decorator
from django.views.generic import View
from flask.views import MethodView
from guards import PEER

import penstock
import penstock.django
from penstock.fastapi import RateLimit, install
from penstock.flask import Penstock

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import DjangoSite

VERSIONS = {"v1": "5/hour", "v2": "2/hour"}
"""Two versions of a view of one name, and the limits of their clients."""

Ask: TypeAlias = Callable[[str], Any]
"""Requests a version of the view, and returns the response."""


def named(thing: Any, version: str, name: str = "orders") -> Any:
    """Let a view look as if the module of a version had defined it."""
    thing.__module__, thing.__qualname__ = f"api_{version}.views", name
    return thing


class Limited(MethodView):
    """As Flask-RESTful's `Resource`: the decorators are applied again for each request."""

    method_decorators: Any = ()

    def dispatch_request(self, **values: Any) -> Any:
        method: Any = self.get  # type: ignore[attr-defined]
        decorators = self.method_decorators
        for decorate in decorators["get"] if isinstance(decorators, dict) else decorators:
            method = decorate(method)
        return method(**values)


def flask_worker(limiter: penstock.Limiter, add: Callable[[flask.Flask, Penstock], None]) -> Ask:
    app = flask.Flask("shop")
    add(app, Penstock(app, limiter))
    return lambda version: app.test_client().get(f"/{version}", environ_base={"REMOTE_ADDR": PEER})


def in_method_decorators(limiter: penstock.Limiter, _: Any) -> Ask:
    def add(app: flask.Flask, limits: Penstock) -> None:
        for version, rate in VERSIONS.items():

            class Orders(Limited):
                method_decorators = {"get": [limits.limit(rate)]}  # noqa: RUF012  as users write it

                @staticmethod
                def get() -> str:
                    return "orders"

            named(Orders, version, "Orders")
            named(Orders.get, version, "Orders.get")
            app.add_url_rule(f"/{version}", version, Orders.as_view(version))

    return flask_worker(limiter, add)


def in_functions_of_views(limiter: penstock.Limiter, _: Any) -> Ask:
    def add(app: flask.Flask, limits: Penstock) -> None:
        for version, rate in VERSIONS.items():
            export = limits.limit(rate)(named(lambda: "rows", version, "export"))
            app.add_url_rule(f"/{version}", version, lambda export=export: export())

    return flask_worker(limiter, add)


def in_functions_decorated_by_views(limiter: penstock.Limiter, _: Any) -> Ask:
    def add(app: flask.Flask, limits: Penstock) -> None:
        for version, rate in VERSIONS.items():

            def view(version: str = version, rate: str = rate) -> Any:
                return limits.limit(rate)(named(lambda: "rows", version, "export"))()

            app.add_url_rule(f"/{version}", version, view)

    return flask_worker(limiter, add)


def in_applications_by_host(limiter: penstock.Limiter, _: Any) -> Ask:
    app = fastapi.FastAPI()
    install(app, limiter)
    for version, rate in VERSIONS.items():
        inner = fastapi.FastAPI()
        view = named(lambda: "orders", version)
        inner.get("/orders", dependencies=[fastapi.Depends(RateLimit(rate))])(view)
        app.host(f"{version}.example", inner)
    client = starlette.testclient.TestClient(app, client=(PEER, 50000))
    return lambda version: client.get("/orders", headers={"Host": f"{version}.example"})


def in_routes_added_later(limiter: penstock.Limiter, _: Any) -> Ask:
    app = fastapi.FastAPI()
    install(app, limiter)

    def ask(version: str) -> Any:
        with starlette.testclient.TestClient(app, client=(PEER, 50000)) as client:
            if version not in added:
                added.add(version)
                view = named(lambda: "orders", version)
                limit = fastapi.Depends(RateLimit(VERSIONS[version]))
                app.get(f"/{version}", dependencies=[limit])(view)
            return client.get(f"/{version}")

    added: set[str] = set()
    return ask


def django_worker(
    limiter: penstock.Limiter, site: DjangoSite, decorated: Callable[[type, str], type]
) -> Ask:
    site.set(PENSTOCK={"LIMITER": limiter})
    for version, rate in VERSIONS.items():

        class Orders(View):
            @staticmethod
            def get(_: Any) -> HttpResponse:
                return HttpResponse("orders")

        named(Orders.get, version, "Orders.get")
        site.route(version, decorated(named(Orders, version, "Orders"), rate).as_view())  # type: ignore[attr-defined]

    def ask(version: str) -> Any:
        # Each worker has settings of its own.
        site.set(PENSTOCK={"LIMITER": limiter})
        return site.get(f"/{version}", REMOTE_ADDR=PEER)

    return ask


def in_method_decorators_of_classes(limiter: penstock.Limiter, site: DjangoSite) -> Ask:
    def decorated(view: type, rate: str) -> type:
        return method_decorator(penstock.django.limit(rate), name="dispatch")(view)

    return django_worker(limiter, site, decorated)


def in_method_decorators_of_methods(limiter: penstock.Limiter, site: DjangoSite) -> Ask:
    def decorated(view: type, rate: str) -> type:
        def get(self: Any, request: Any) -> HttpResponse:
            return HttpResponse("orders")

        decorate = method_decorator(penstock.django.limit(rate))
        view.get = decorate(named(get, view.__module__[4:6], "Orders.get"))  # type: ignore[attr-defined]
        return view

    return django_worker(limiter, site, decorated)


@pytest.mark.parametrize(
    "start",
    [
        in_method_decorators,
        in_functions_of_views,
        in_functions_decorated_by_views,
        in_applications_by_host,
        in_routes_added_later,
        in_method_decorators_of_classes,
        in_method_decorators_of_methods,
    ],
)
def test_workers_do_not_mix_up_the_buckets_of_views(
    start: Callable[[penstock.Limiter, Any], Ask],
    clock: penstock.ManualClock,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    site = request.getfixturevalue("site") if "decorators_of" in start.__name__ else None
    store = f"shm://{tmp_path}/store?capacity=100"
    one, two = (start(penstock.Limiter({}, store=store, clock=clock), site) for _ in range(2))
    served = {"v1": 0, "v2": 0}
    names: dict[str, set[str]] = {"v1": set(), "v2": set()}
    # The first worker sees one version first, the second worker the other one.
    for ask, version in [(one, "v1"), (two, "v2"), (one, "v2"), (two, "v1")] * 3:
        answer = ask(version)
        served[version] += answer.status_code == 200
        names[version].add(answer.headers["RateLimit-Policy"])
    assert served == {"v1": 5, "v2": 2}
    assert [len(each) for each in names.values()] == [1, 1], names
