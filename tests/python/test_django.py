"""The decorator in Django, on every kind of view."""

# ruff: noqa: ARG002  methods that are views take the request

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from sites import ADDRESS, limit_fields, site_remaining

import penstock
from penstock._web.identity import by_user
from penstock.django import exempt, limit

if TYPE_CHECKING:
    from conftest import DjangoSite

WITHOUT = ["django.contrib.sessions.middleware.SessionMiddleware"]


def statuses(site: DjangoSite, path: str = "/", times: int = 3, **options: Any) -> list[int]:
    return [site.get(path, **options).status_code for _ in range(times)]


def hello(request: HttpRequest) -> HttpResponse:
    """Greet."""
    return HttpResponse("hello")


@pytest.fixture(params=["with the middleware", "without it"])
def either(request: pytest.FixtureRequest, site: DjangoSite) -> DjangoSite:
    """A site with and without the middleware; the decorator works in both."""
    if request.param == "without it":
        site.set(MIDDLEWARE=WITHOUT)
    return site


def test_decorated_async_view_stays_a_coroutine_function(either: DjangoSite) -> None:
    @limit("PerAddress")
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert inspect.iscoroutinefunction(view)
    assert iscoroutinefunction(limit("Large")(view))
    either.route("", view)
    assert statuses(either) == [200, 200, 429]


class Bare(View):
    @limit("PerAddress")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@method_decorator(limit("PerAddress"), name="dispatch")
class OnDispatch(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class OnMethod(View):
    @method_decorator(limit("PerAddress"))
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@limit("PerAddress")
class Whole(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class BareAsync(View):
    @limit("PerAddress")
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@method_decorator(limit("PerAddress"), name="dispatch")
class OnAsyncDispatch(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class OnAsyncMethod(View):
    @method_decorator(limit("PerAddress"))
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@limit("PerAddress")
class WholeAsync(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class PlainAsync(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


VIEWS = {
    cls.__name__: cls.as_view()
    for cls in (
        *(Bare, OnDispatch, OnMethod, Whole),
        *(BareAsync, OnAsyncDispatch, OnAsyncMethod, WholeAsync),
    )
} | {
    "as_view": limit("PerAddress")(Plain.as_view()),
    "async as_view": limit("PerAddress")(PlainAsync.as_view()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_a_class_is_limited_however_it_is_decorated(either: DjangoSite, name: str) -> None:
    either.route("", VIEWS[name])
    responses = [either.get() for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[0].headers["RateLimit"] == '"PerAddress";r=1;t=30'
    assert asyncio.run(either.aget()).status_code == 429


@pytest.mark.parametrize("name", [name for name in VIEWS if "sync" in name])
def test_async_view_of_a_class_stays_async(site: DjangoSite, name: str) -> None:
    assert iscoroutinefunction(VIEWS[name])
    site.route("", VIEWS[name])
    assert asyncio.run(site.aget()).headers["RateLimit"] == '"PerAddress";r=1;t=30'


def test_limits_of_one_method_decorator_are_one_decision(either: DjangoSite) -> None:
    @method_decorator([limit("PerAddress"), limit("PerUser")], name="dispatch")
    class Orders(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    either.route("", Orders.as_view())
    assert limit_fields(either.get())["RateLimit"] == '"PerAddress";r=1;t=30, "PerUser";r=4;t=720'
    assert statuses(either) == [200, 429, 429]
    assert site_remaining("PerUser") == 3


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "stacked"])
def test_decorators_of_an_inherited_method_are_named_before_a_request(
    site: DjangoSite, *, is_list: bool
) -> None:
    class Base(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    outer, inner = limit("50/minute"), limit("70/hour")
    decorated: Any
    if is_list:
        decorated = method_decorator([outer, inner], name="get")(type("Orders", (Base,), {}))
    else:
        decorated = method_decorator(inner, name="get")(type("Orders", (Base,), {}))
        decorated = method_decorator(outer, name="get")(decorated)
    site.route("first", limit("9/minute")(View.as_view()))
    site.route("orders", decorated.as_view())
    site.get("/first")
    limiter = penstock.django.get_limiter()
    before = {*limiter.limits}
    assert {"Orders.get", "Orders.get-2"} <= before
    policy = limit_fields(site.get("/orders"))["RateLimit-Policy"]
    assert {part.partition(";")[0] for part in policy.split(", ")} == {
        '"Orders.get"',
        '"Orders.get-2"',
    }
    assert {*limiter.limits} == before


def test_rate_belongs_to_its_view(site: DjangoSite) -> None:
    twice_a_minute = limit("2/minute")

    @method_decorator(twice_a_minute, name="dispatch")
    class One(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    @method_decorator(twice_a_minute, name="dispatch")
    class Two(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    site.route("one", One.as_view())
    site.route("two", Two.as_view())
    site.route("three", twice_a_minute(hello))
    assert statuses(site, "/one") == [200, 200, 429]
    assert statuses(site, "/two") == [200, 200, 429]
    assert statuses(site, "/three") == [200, 200, 429]
    assert 'One.dispatch";q=2' in limit_fields(site.get("/one"))["RateLimit-Policy"]
    assert '"hello";q=2' in limit_fields(site.get("/three"))["RateLimit-Policy"]


def test_function_without_a_request_is_an_error(site: DjangoSite) -> None:
    with pytest.raises(penstock.ConfigError, match="request"):
        limit("PerAddress")(lambda: None)()


def test_view_may_be_called_with_a_request_of_the_factory(site: DjangoSite) -> None:
    request = RequestFactory().get("/")
    response = limit("PerAddress")(hello)(request)
    assert limit_fields(response)["RateLimit"] == '"PerAddress";r=1;t=30'
    assert request.penstock.remaining == 1  # type: ignore[attr-defined]


def test_request_may_be_a_keyword_argument(site: DjangoSite) -> None:
    response = limit("PerAddress")(hello)(request=RequestFactory().get("/"))
    assert limit_fields(response)["RateLimit"] == '"PerAddress";r=1;t=30'


def test_month_is_not_a_unit_of_a_rate(site: DjangoSite) -> None:
    site.route("", limit("10/month")(hello))
    with pytest.raises(penstock.LimitError, match="month"):
        site.get()


def test_view_of_a_class_and_bound_method_may_be_exempt(
    site: DjangoSite, clock: penstock.ManualClock
) -> None:
    site.set(PENSTOCK={"DEFAULT": "1/minute", "CLOCK": clock})
    site.route("free", exempt(Plain.as_view()))
    site.route("method", exempt(HttpResponseMaker().make))
    for path in ("/free", "/method"):
        assert statuses(site, path, 2) == [200, 200]
        assert limit_fields(site.get(path)) == {}


class HttpResponseMaker:
    def make(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def test_user_that_was_never_saved_counts_by_address(site: DjangoSite) -> None:
    class User:
        is_authenticated = True
        pk = None

    request: Any = RequestFactory().get("/")
    request.user = User()
    limit("PerUser", id=by_user)(hello)(request)
    assert site_remaining("PerUser", f"address:{ADDRESS}") == 4
