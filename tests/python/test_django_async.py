"""Async views with users and sessions of a real database, without queries on the event loop."""

# ruff: noqa: ARG002  methods that are views take the request

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from sites import site_remaining

from penstock._web.identity import by_user, per_route
from penstock.django import limit
from penstock.django.signals import limit_denied
from penstock.identity import shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import DjangoSite
    from django.contrib.auth.models import User
    from django.http.response import HttpResponseBase

pytestmark = pytest.mark.usefixtures("django_database")

LIMITED = limit("PerUser", id=by_user)


@pytest.fixture
def ada(site: DjangoSite) -> Iterator[User]:
    from django.contrib.auth.models import User  # noqa: PLC0415  once the apps are ready

    user = User.objects.create_user("ada")
    yield user
    user.delete()


def send(user: User | None, path: str = "/", *, is_async: bool = True) -> HttpResponseBase:
    """Send a request as an authenticated user, with a session in the database."""
    from asgiref.sync import async_to_sync  # noqa: PLC0415  beside its only use
    from django.test import AsyncClient, Client  # noqa: PLC0415  once the apps are ready

    client: Any = AsyncClient() if is_async else Client()
    if user is not None:
        client.force_login(user)
    return async_to_sync(client.get)(path) if is_async else client.get(path)  # type: ignore[no-any-return]


async def view(request: HttpRequest) -> HttpResponse:
    user = await request.auser()
    return HttpResponse(f"{user}")


def sync_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Whole(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def derived() -> type[Whole]:
    return type("Derived", (Whole,), {})


class Bare(View):
    @LIMITED
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Decorated(View):
    @method_decorator(LIMITED)
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "limited",
    [
        LIMITED(view),
        LIMITED(derived()).as_view(),
        LIMITED(Whole.as_view()),
        Bare.as_view(),
        Decorated.as_view(),
        method_decorator(LIMITED, name="dispatch")(derived()).as_view(),
        limit("PerUser", id=per_route(by_user))(view),
        # Callables may query the database.
        limit("PerUser", id=lambda request: request.user.pk)(view),
        limit("PerUser", id=lambda request: request.session["_auth_user_id"])(view),
    ],
)
def test_limit_by_user_reads_the_session_from_the_database(
    site: DjangoSite, ada: User, limited: Any, *, is_async: bool
) -> None:
    site.route("", limited)
    responses = [send(ada, is_async=is_async) for _ in range(6)]
    assert [response.status_code for response in responses] == [200] * 5 + [429]
    assert responses[0].headers["RateLimit"] == '"PerUser";r=4;t=720'


@pytest.mark.parametrize("is_async", [True, False])
def test_default_by_user_knows_the_user(site: DjangoSite, ada: User, *, is_async: bool) -> None:
    from penstock.django.conf import current  # noqa: PLC0415  as the settings are by now

    site.set(PENSTOCK={"LIMITER": current().guard.limiter, "DEFAULT": LIMITED})
    site.route("async", view)
    site.route("sync", sync_view)
    for path in ("/async", "/sync"):
        assert send(ada, path, is_async=is_async).status_code == 200
    assert site_remaining("PerUser", str(ada.pk)) == 3


@pytest.mark.parametrize("is_async", [True, False])
def test_anonymous_client_counts_by_address(site: DjangoSite, *, is_async: bool) -> None:
    site.route("", LIMITED(view))
    assert send(None, is_async=is_async).status_code == 200
    assert site_remaining("PerUser", "address:127.0.0.1") == 4


def test_site_without_users_counts_by_address_or_remote_user(site: DjangoSite) -> None:
    site.set(MIDDLEWARE=["penstock.django.PenstockMiddleware"])
    site.route("", LIMITED(Whole.as_view()))
    asyncio.run(site.aget())
    assert site_remaining("PerUser", "address:127.0.0.1") == 4
    site.get(REMOTE_USER="grace")
    assert site_remaining("PerUser", "grace") == 4


def test_async_view_is_limited_on_the_thread_of_its_loop(site: DjangoSite) -> None:
    threads: list[int] = []

    def id_of(request: HttpRequest) -> str:
        threads.append(threading.get_ident())
        return "ada"

    async def where(request: HttpRequest) -> HttpResponse:
        threads.append(threading.get_ident())
        return HttpResponse()

    async def send_on_loop() -> None:
        threads.append(threading.get_ident())
        await site.aget()

    site.set(MIDDLEWARE=["penstock.django.PenstockMiddleware"])
    site.route("", limit("PerUser", id=id_of)(where))
    asyncio.run(send_on_loop())
    assert len(threads) == 3
    assert len(set(threads)) == 1


def test_receivers_and_refusals_may_query_the_database(site: DjangoSite, ada: User) -> None:
    from django.contrib.auth.models import User  # noqa: PLC0415  once the apps are ready

    from penstock.django.conf import current  # noqa: PLC0415  as the settings are by now

    seen: list[int] = []

    def receive(**_: Any) -> None:
        seen.append(User.objects.count())

    def deduct(_: Any) -> bool:
        return User.objects.exists()

    def refuse(_: Any) -> str:
        return f"one of {User.objects.count()} users"

    site.set(PENSTOCK={"LIMITER": current().guard.limiter, "ON_DENIED": refuse})
    site.route("", limit("PerUser", id=shared("all"), cost=5, deduct_when=deduct)(view))
    limit_denied.connect(receive)
    try:
        responses = [send(ada) for _ in range(2)]
    finally:
        limit_denied.disconnect(receive)
    assert responses[1].content == b"one of 1 users"  # type: ignore[attr-defined]
    assert seen == [1]


def test_view_called_with_a_request_of_the_factory(site: DjangoSite) -> None:
    request = AsyncRequestFactory().get("/")
    limited: Any = limit("PerAddress")(Whole.as_view())
    response = asyncio.run(limited(request))
    assert response.headers["RateLimit"] == '"PerAddress";r=1;t=30'
