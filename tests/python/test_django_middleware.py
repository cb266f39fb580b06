"""The middleware, default limits, signals and refusals in Django."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import caches
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
)
from django.template.response import SimpleTemplateResponse
from rest_framework.views import APIView
from sites import limit_fields, site_remaining

import penstock
from penstock.django import PenstockMiddleware, exempt, limit
from penstock.django.drf import PenstockThrottle
from penstock.django.signals import limit_denied

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import DjangoSite

    from penstock._web.outcome import Outcome


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


async def hello_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@pytest.fixture
def default(site: DjangoSite, limiter: penstock.Limiter) -> DjangoSite:
    """A site with a default limit."""
    site.set(PENSTOCK={"LIMITER": limiter, "DEFAULT": "PerAddress"})
    return site


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("view", [hello, hello_async])
def test_default_limits_every_view(default: DjangoSite, view: Any, *, is_async: bool) -> None:
    default.route("", view)
    first, _, refused = [
        asyncio.run(default.aget()) if is_async else default.get() for _ in range(3)
    ]
    assert limit_fields(first)["RateLimit"] == '"PerAddress";r=1;t=30'
    assert (refused.status_code, limit_fields(refused)["Retry-After"]) == (429, "30")


def test_default_counts_if_the_limited_view_is_not_reached(
    default: DjangoSite,
) -> None:
    def login_required(view: Any) -> Any:
        def checked(request: HttpRequest) -> HttpResponse:
            return HttpResponseRedirect("/login")

        checked.__dict__.update(view.__dict__)
        return checked

    default.route("", login_required(limit("PerUser")(hello)))
    assert [default.get().status_code for _ in range(3)] == [302, 302, 429]
    assert [asyncio.run(default.aget()).status_code for _ in range(1)] == [429]
    assert site_remaining("PerUser") == 5


@pytest.mark.parametrize("is_async", [True, False])
def test_response_that_a_refusal_replaces_is_closed(default: DjangoSite, *, is_async: bool) -> None:
    closed: list[str] = []

    class Page(HttpResponse):
        def close(self) -> None:
            super().close()
            closed.append(self.headers["X-Number"])

    def guarded(request: HttpRequest) -> HttpResponse:
        return Page(headers={"X-Number": request.GET["number"]})

    # As another decorator does, which then does not call the view.
    guarded.__dict__.update(limit("PerUser")(hello).__dict__)
    default.route("", guarded)
    get: Any = (lambda path: asyncio.run(default.aget(path))) if is_async else default.get
    statuses = []
    for number in range(3):
        response = get(f"/?number={number}")
        statuses.append(response.status_code)
        if response.status_code == 429:
            assert closed[-1] == "2"
    assert statuses == [200, 200, 429]


@pytest.mark.parametrize(
    "default",
    [
        "PerAddress",
        ["PerAddress", "Large"],
        limit("PerAddress", methods=["GET"]),
        ["Large", limit("PerAddress", id=lambda request: request.META["REMOTE_ADDR"])],
        penstock.Limit.parse("2/minute"),
    ],
)
def test_default_may_be_one_limit_or_several(
    site: DjangoSite, limiter: penstock.Limiter, default: object
) -> None:
    site.set(PENSTOCK={"LIMITER": limiter, "DEFAULT": default})
    site.route("", hello)
    assert [site.get().status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.usefixtures("django_database")
def test_rate_limited_of_a_view_rolls_back_the_database(
    site: DjangoSite, limiter: penstock.Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.contrib.auth.models import Group  # noqa: PLC0415  once the apps are ready
    from django.db import connection  # noqa: PLC0415  as above

    @limit("Large")
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="half done")
        limiter.spend("PerUser", "ada", 5).raise_if_denied()
        return HttpResponse()

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    limiter.spend("PerUser", "ada")
    site.route("", view)
    for middleware in ([], ["penstock.django.PenstockMiddleware"]):
        site.set(MIDDLEWARE=middleware)
        assert site.get().status_code == 429
        assert not Group.objects.filter(name="half done").exists()


def test_file_is_sent_as_a_file(site: DjangoSite, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")

    @limit("PerAddress", refund_on_error=True)
    def view(request: HttpRequest) -> FileResponse:
        return FileResponse((tmp_path / "a.txt").open("rb"))

    site.route("", view)
    response: Any = site.get()
    assert response.getvalue() == b"a"
    assert limit_fields(response)["RateLimit"] == '"PerAddress";r=1;t=30'


@pytest.mark.parametrize("is_async", [True, False])
def test_signal_reports_denials_also_in_shadow_mode(site: DjangoSite, *, is_async: bool) -> None:
    signals: list[dict[str, Any]] = []

    def receive(**arguments: Any) -> None:
        signals.append(arguments)

    get = (lambda path: asyncio.run(site.aget(path))) if is_async else site.get
    view = hello_async if is_async else hello
    watched = limit("PerUser", mode="shadow", cost=5)(view)
    site.route("watched", watched)
    limited = limit("PerAddress")(watched)
    site.route("limited", limited)
    limit_denied.connect(receive)
    try:
        for _ in range(2):
            assert get("/watched").status_code == 200
        (one,) = signals
        assert (one["sender"], one["shadow"]) == (watched, True)
        assert (one["decision"].name, one["request"].path) == ("PerUser", "/watched")
        for _ in range(3):
            get("/limited")
        *_, last = signals
        assert [each["shadow"] for each in signals] == [True, True, True, False]
        assert (last["sender"], last["decision"].binding or last["decision"].name) == (
            limited,
            "PerAddress",
        )
        assert last["outcome"].status == 429
    finally:
        limit_denied.disconnect(receive)


def test_failing_receiver_is_logged(site: DjangoSite, caplog: pytest.LogCaptureFixture) -> None:
    def receive(**_: Any) -> None:
        raise ZeroDivisionError

    limit_denied.connect(receive)
    try:
        site.route("", limit("PerAddress")(hello))
        with caplog.at_level(logging.ERROR):
            assert [site.get().status_code for _ in range(3)] == [200, 200, 429]
    finally:
        limit_denied.disconnect(receive)
    assert "ZeroDivisionError" in caplog.text or "receive" in caplog.text


def as_html(outcome: Outcome) -> str:
    return f"<p>wait {outcome.retry_after} s</p>"


def as_none(outcome: Outcome) -> None:
    return None


def as_template(outcome: Outcome) -> SimpleTemplateResponse:
    return SimpleTemplateResponse("429_of_a_test.html", {"outcome": outcome}, status=429)


def as_number(outcome: Outcome) -> Any:
    return 429


def test_text_of_on_denied_is_html(site: DjangoSite, limiter: penstock.Limiter) -> None:
    site.set(PENSTOCK={"LIMITER": limiter, "ON_DENIED": as_html})
    site.route("", limit("PerAddress")(hello))
    *_, response = [site.get() for _ in range(3)]
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"


def test_on_denied_may_be_a_path_and_return_a_template_or_none(
    site: DjangoSite, limiter: penstock.Limiter, tmp_path: Path
) -> None:
    (tmp_path / "429_of_a_test.html").write_text("in {{ outcome.retry_after }} s")
    backend = "django.template.backends.django.DjangoTemplates"
    site.set(TEMPLATES=[{"BACKEND": backend, "DIRS": [tmp_path]}])
    site.set(PENSTOCK={"LIMITER": limiter, "ON_DENIED": f"{__name__}.as_template"})
    site.route("", limit("PerAddress")(hello))
    *_, response = [site.get() for _ in range(3)]
    assert response.content == b"in 30 s"  # type: ignore[attr-defined]
    site.set(PENSTOCK={"LIMITER": limiter, "ON_DENIED": as_none})
    response = site.get()
    assert json.loads(response.content)["status"] == 429  # type: ignore[attr-defined]
    site.set(PENSTOCK={"LIMITER": limiter, "ON_DENIED": as_number})
    with pytest.raises(penstock.ConfigError, match="on_denied"):
        site.get()


def test_switch_of_another_package_is_not_read(site: DjangoSite, limiter: penstock.Limiter) -> None:
    site.route("", limit("PerAddress")(hello))
    site.set(PENSTOCK={"LIMITER": limiter}, RATELIMIT_ENABLE=False)
    assert [site.get().status_code for _ in range(3)] == [200, 200, 429]


def test_middleware_is_async_if_what_it_wraps_is() -> None:
    from asgiref.sync import iscoroutinefunction  # noqa: PLC0415  beside its only use

    assert PenstockMiddleware.sync_capable
    assert PenstockMiddleware.async_capable
    assert not iscoroutinefunction(PenstockMiddleware(hello))
    assert iscoroutinefunction(PenstockMiddleware(hello_async))
    assert iscoroutinefunction(PenstockMiddleware(hello_async).process_view)
    with pytest.raises(penstock.ConfigError, match="callable"):
        PenstockMiddleware(None)  # type: ignore[arg-type]


def test_middleware_listed_twice_works_once(default: DjangoSite) -> None:
    default.set(MIDDLEWARE=["penstock.django.PenstockMiddleware"] * 2)
    default.route("", hello)
    assert limit_fields(default.get())["RateLimit"] == '"PerAddress";r=1;t=30'
    assert limit_fields(asyncio.run(default.aget()))["RateLimit"] == '"PerAddress";r=0;t=30'


@pytest.mark.parametrize("asynchronous", [False, True])
def test_page_from_the_cache_of_the_site_shows_no_other_clients_fields(
    site: DjangoSite, asynchronous: bool
) -> None:
    site.set(
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        MIDDLEWARE=[
            "django.middleware.cache.UpdateCacheMiddleware",
            "penstock.django.PenstockMiddleware",
            "django.middleware.cache.FetchFromCacheMiddleware",
        ],
    )
    site.route("cached/", limit("PerAddress")(hello))
    get = (lambda path: asyncio.run(site.aget(path))) if asynchronous else site.get
    caches["default"].clear()
    assert limit_fields(get("/cached/"))["RateLimit"] == '"PerAddress";r=1;t=30'
    assert "RateLimit" not in limit_fields(get("/cached/"))
    caches["default"].clear()
    assert limit_fields(get("/cached/"))["RateLimit"] == '"PerAddress";r=0;t=30'


def test_override_settings_starts_with_full_buckets(
    site: DjangoSite, clock: penstock.ManualClock
) -> None:
    site.route("", limit("A")(hello))
    for text, expected in (("1/minute", [200, 429, 429]), ("2/minute", [200, 200, 429])):
        site.set(PENSTOCK={"LIMITS": {"A": text}, "CLOCK": clock})
        assert [site.get().status_code for _ in range(3)] == expected


@pytest.mark.usefixtures("django_database")
def test_login_of_the_admin_site_can_be_limited(site: DjangoSite) -> None:
    from django.contrib import admin  # noqa: PLC0415  once the apps are ready

    class Limited(admin.AdminSite):
        @limit("PerUser", methods=["POST"])
        def login(self, request: Any, extra_context: Any = None) -> Any:
            return super().login(request, extra_context)

    patched = admin.AdminSite("patched")
    patched.login = limit("PerAddress", methods=["POST"])(patched.login)  # type: ignore[method-assign]
    derived = Limited("derived")
    for name, made in (("patched", patched), ("derived", derived)):
        site.route(f"{name}/", made.urls)
    data = SimpleNamespace(data={"username": "ada", "password": "guess"})
    assert site.get("/patched/login/").status_code == 200
    assert [post(site, "/patched/login/", data.data) for _ in range(3)] == [200, 200, 429]
    assert [post(site, "/derived/login/", data.data) for _ in range(6)] == [200] * 5 + [429]


def post(site: DjangoSite, path: str, data: dict[str, str]) -> int:
    from django.test import Client  # noqa: PLC0415  after the settings

    return Client().post(path, data).status_code


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("place", ["default", "decorator", "throttle"])
def test_refusal_because_the_store_fails_is_no_error_of_django(
    site: DjangoSite, caplog: pytest.LogCaptureFixture, place: str, is_async: bool
) -> None:
    # Django mails the administrators each record of an error.
    limiter = penstock.Limiter({"PerAddress": "2/minute"}, clock=penstock.ManualClock())
    default = {"DEFAULT": limit("PerAddress", on_store_error="deny")} if place == "default" else {}
    middleware = ["penstock.django.PenstockMiddleware"] if default else []
    site.set(PENSTOCK={"LIMITER": limiter, **default}, MIDDLEWARE=middleware)

    def unavailable(_: object) -> HttpResponse:
        return HttpResponse(status=503)

    class Throttle(PenstockThrottle):
        limit = "PerAddress"
        options: ClassVar[Any] = {"on_store_error": "deny"}

    class Limited(APIView):
        throttle_classes = (Throttle,)
        authentication_classes = ()

    view: Any = hello
    if place == "decorator":
        view = limit("PerAddress", on_store_error="deny")(hello)
    elif place == "throttle":
        view = Limited.as_view()
    site.route("", view)
    site.route("other", exempt(unavailable))

    def status(path: str) -> int:
        ask = async_to_sync(site.aget) if is_async else site.get
        return int(ask(path).status_code)

    status("/")
    limiter.close()
    caplog.clear()
    assert status("/") == 503
    assert [record for record in caplog.records if record.name == "django.request"] == []
    assert status("/other") == 503
    (record,) = [record for record in caplog.records if record.name == "django.request"]
    assert record.levelname == "ERROR"
