"""Async views with users and sessions from a real database: nothing is asked on the event loop."""

# ruff: noqa: ARG002  a method that is a view takes the request, whether it asks it or not

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from penstock.django import limit
from penstock.django.signals import limit_denied
from penstock.web.identity import by_user, per_route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import DjangoSite
    from django.contrib.auth.models import User
    from django.http.response import HttpResponseBase

pytestmark = pytest.mark.usefixtures("django_database")

LIMITED = limit("PerUser", id=by_user)


def left(name: str, id: str) -> int:
    """Give what a bucket of the site has left."""
    from penstock.django.conf import current  # noqa: PLC0415  as the settings are by now

    return current().guard.limiter.check(name, id, 0).remaining


@pytest.fixture
def ada(site: DjangoSite) -> Iterator[User]:
    from django.contrib.auth.models import User  # noqa: PLC0415  once the apps are ready

    user = User.objects.create_user("ada")
    yield user
    user.delete()


def ask(user: User | None, path: str = "/", *, is_async: bool = True) -> HttpResponseBase:
    """Ask as somebody who has logged in, with a session that lies in the database."""
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
        # Callables of the user may ask the database too, as in any view.
        limit("PerUser", id=lambda request: request.user.pk)(view),
        limit("PerUser", id=lambda request: request.session["_auth_user_id"])(view),
    ],
)
def test_limit_by_user_reads_the_session_from_the_database(
    site: DjangoSite, ada: User, limited: Any, *, is_async: bool
) -> None:
    site.route("", limited)
    responses = [ask(ada, is_async=is_async) for _ in range(6)]
    assert [response.status_code for response in responses] == [200] * 5 + [429]
    assert responses[0].headers["RateLimit"] == '"PerUser";r=4;t=720'


@pytest.mark.parametrize("is_async", [True, False])
def test_default_by_user_knows_the_user(site: DjangoSite, ada: User, *, is_async: bool) -> None:
    from penstock.django.conf import current  # noqa: PLC0415  as the settings are by now

    site.set(PENSTOCK={"LIMITER": current().guard.limiter, "DEFAULT": LIMITED})
    site.route("async", view)
    site.route("sync", sync_view)
    for path in ("/async", "/sync"):
        assert ask(ada, path, is_async=is_async).status_code == 200
    assert left("PerUser", str(ada.pk)) == 3


@pytest.mark.parametrize("is_async", [True, False])
def test_who_has_not_logged_in_counts_by_address(site: DjangoSite, *, is_async: bool) -> None:
    site.route("", LIMITED(view))
    assert ask(None, is_async=is_async).status_code == 200
    assert left("PerUser", "address:127.0.0.1") == 4


def test_site_without_users_counts_by_address_or_as_the_server_says(site: DjangoSite) -> None:
    site.set(MIDDLEWARE=["penstock.django.PenstockMiddleware"])
    site.route("", LIMITED(Whole.as_view()))
    asyncio.run(site.aget())
    assert left("PerUser", "address:127.0.0.1") == 4
    site.get(REMOTE_USER="grace")
    assert left("PerUser", "grace") == 4


def test_async_view_is_limited_on_the_thread_of_its_loop(site: DjangoSite) -> None:
    threads: list[int] = []

    def id_of(request: HttpRequest) -> str:
        threads.append(threading.get_ident())
        return "ada"

    async def where(request: HttpRequest) -> HttpResponse:
        threads.append(threading.get_ident())
        return HttpResponse()

    async def ask_on_loop() -> None:
        threads.append(threading.get_ident())
        await site.aget()

    site.set(MIDDLEWARE=["penstock.django.PenstockMiddleware"])
    site.route("", limit("PerUser", id=id_of)(where))
    asyncio.run(ask_on_loop())
    assert len(threads) == 3
    assert len(set(threads)) == 1


def test_receiver_and_refusal_may_ask_the_database(site: DjangoSite, ada: User) -> None:
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
    site.route("", limit("PerUser", id="all", cost=5, deduct_when=deduct)(view))
    limit_denied.connect(receive)
    try:
        responses = [ask(ada) for _ in range(2)]
    finally:
        limit_denied.disconnect(receive)
    assert responses[1].content == b"one of 1 users"  # type: ignore[attr-defined]
    assert seen == [1]


def test_view_called_with_a_request_of_the_factory(site: DjangoSite) -> None:
    request = AsyncRequestFactory().get("/")
    limited: Any = limit("PerAddress")(Whole.as_view())
    response = asyncio.run(limited(request))
    assert response.headers["RateLimit"] == '"PerAddress";r=1;t=30'
