"""The throttle and the mixin for REST framework."""

# ruff: noqa: ARG002, RUF012  views take the request; the framework's lists are class attributes

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest
from adrf import views as adrf
from adrf.decorators import api_view as async_api_view
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.test import AsyncClient
from django.utils.decorators import method_decorator
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import (
    action,
    api_view,
    authentication_classes,
    permission_classes,
    throttle_classes,
)
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated, Throttled
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.response import Response
from rest_framework.test import APIClient
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet
from sites import limit_fields, site_remaining

from penstock._web.identity import by_address, by_user
from penstock.django import client_id, limit
from penstock.django.conf import current
from penstock.django.drf import PenstockMixin, PenstockThrottle
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import DjangoSite
    from rest_framework.request import Request

    import penstock

ANONYMOUS = "address:127.0.0.1"
WITHOUT = ["django.contrib.sessions.middleware.SessionMiddleware"]


class User:
    """A user that only REST framework knows."""

    is_authenticated = True
    pk = 7


class ByHeader(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        return (User(), None) if request.headers.get("X-Token") else None


class PerUser(PenstockThrottle):
    limit = "PerUser"


class Refusing(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        return False

    def wait(self) -> float:
        return 2.5


class Orders(APIView):
    authentication_classes = [ByHeader]
    permission_classes: list[Any] = []
    throttle_classes: list[Any] = [PenstockThrottle]
    throttle_scope: str | None = "PerAddress"

    def get(self, request: Request) -> Response:
        decision = request.penstock  # type: ignore[attr-defined]
        return Response({"left": decision and decision.remaining})


class Mixed(PenstockMixin, Orders):
    throttle_scope = "PerAddress"


def made(base: type[Orders] = Orders, **attributes: Any) -> Any:
    """Return a view with a class of its own."""
    derived: type[Orders] = type(f"{base.__name__}OfATest", (base,), attributes)
    return derived.as_view()


@pytest.fixture(params=["middleware", "mixin", "both"])
def either(request: pytest.FixtureRequest, site: DjangoSite) -> tuple[DjangoSite, type[Orders]]:
    """A site and a class of views that write header fields together."""
    if request.param == "mixin":
        site.set(MIDDLEWARE=WITHOUT)
    return site, Orders if request.param == "middleware" else Mixed


def test_throttle_responds_like_rest_framework(
    either: tuple[DjangoSite, type[Orders]], clock: penstock.ManualClock
) -> None:
    site, base = either
    site.route("", made(base))
    policy = {"RateLimit-Policy": '"PerAddress";q=2;w=60'}
    first = site.get()
    assert first.content == b'{"left":1}'  # type: ignore[attr-defined]
    assert limit_fields(first) == {**policy, "RateLimit": '"PerAddress";r=1;t=30'}
    site.get()
    clock.advance(0.5)
    refused = site.get()
    assert refused.status_code == 429
    body = b'{"detail":"Request was throttled. Expected available in 30 seconds."}'
    assert refused.content == body  # type: ignore[attr-defined]
    assert limit_fields(refused) == {
        **policy,
        "RateLimit": '"PerAddress";r=0;t=30',
        "Retry-After": "30",
        "Cache-Control": "no-store",
    }
    clock.advance(29.5)
    assert site.get().status_code == 200


def test_wait_is_exact(site: DjangoSite, clock: penstock.ManualClock) -> None:
    waits: list[float | None] = []

    class Waiting(PenstockThrottle):
        def wait(self) -> float | None:
            waits.append(super().wait())
            return waits[-1]

    site.route("", made(throttle_classes=[Waiting]))
    for _ in range(2):
        site.get()
    clock.advance_ns(1)
    assert site.get().headers["Retry-After"] == "30"
    clock.advance(29.25)
    assert site.get().headers["Retry-After"] == "1"
    assert waits == [29.999999999, 0.749999999]
    assert PenstockThrottle().wait() is None


def test_random_extra_wait_is_in_whole_seconds(site: DjangoSite) -> None:
    limiter = current().guard.limiter
    site.set(PENSTOCK={"LIMITER": limiter, "SPREAD": 1.0})
    limiter.spend("PerUser", "7", 5)
    site.route("", made(throttle_classes=[PerUser]))
    response = site.get(headers={"X-Token": "1"})
    wait = int(response.headers["Retry-After"])
    assert 720 <= wait <= 1440
    assert f"in {wait} seconds" in response.content.decode()  # type: ignore[attr-defined]


def test_exception_handler_sees_throttled(site: DjangoSite) -> None:
    seen: list[Exception] = []

    def handle(error: Exception, context: dict[str, Any]) -> Response:
        seen.append(error)
        return Response({"busy": True}, status=429)

    class Handled(Orders):
        def get_exception_handler(self) -> Any:
            return handle

    site.route("", made(Handled))
    *_, refused = [site.get() for _ in range(3)]
    assert refused.content == b'{"busy":true}'  # type: ignore[attr-defined]
    assert limit_fields(refused)["Retry-After"] == "30"
    (error,) = seen
    assert isinstance(error, Throttled)
    assert vars(error)["wait"] == 30


@pytest.mark.parametrize("base", [Orders, Mixed])
def test_two_throttles_are_all_or_nothing(site: DjangoSite, base: type[Orders]) -> None:
    site.route("", made(base, throttle_classes=[PerUser, PenstockThrottle]))
    fields = [limit_fields(site.get()) for _ in range(4)]
    assert fields[0]["RateLimit"] == '"PerUser";r=4;t=720, "PerAddress";r=1;t=30'
    assert [each.get("Retry-After") for each in fields] == [None, None, "30", "30"]
    assert (site_remaining("PerUser", ANONYMOUS), site_remaining("PerAddress", ANONYMOUS)) == (3, 0)


def test_every_throttle_of_a_denied_request_denies_it(site: DjangoSite) -> None:
    answers: list[tuple[bool, float | None]] = []

    class Checked(PenstockThrottle):
        def allow_request(self, request: Request, view: APIView) -> bool:
            is_allowed = super().allow_request(request, view)
            answers.append((is_allowed, self.wait()))
            return is_allowed

    class First(Checked):
        limit = "PerAddress"

    class Second(Checked):
        limit = "PerUser"

    site.route("", made(throttle_classes=[First, Second]))
    assert [site.get().status_code for _ in range(3)] == [200, 200, 429]
    assert answers == [(True, None)] * 4 + [(False, 30)] * 2


def test_mixin_evaluates_other_throttles_first(site: DjangoSite) -> None:
    site.route("", made(Mixed, throttle_classes=[PenstockThrottle, Refusing]))
    refused = site.get()
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "3")
    assert site_remaining("PerAddress", ANONYMOUS) == 2


def test_default_counts_a_request_that_authentication_refuses(site: DjangoSite) -> None:
    site.set(PENSTOCK={"LIMITER": current().guard.limiter, "DEFAULT": "PerUser"})
    site.route("", made(permission_classes=[IsAuthenticated]))
    assert NotAuthenticated.status_code == 401
    refused = site.get()
    assert refused.status_code in (401, 403)
    assert limit_fields(refused)["RateLimit"] == '"PerUser";r=4;t=720'
    assert site_remaining("PerAddress", ANONYMOUS) == 2


def test_user_of_rest_framework_counts_by_primary_key(site: DjangoSite) -> None:
    def ask(_: object, request: Request) -> Response:
        return Response(client_id(request, "PerAddress", by_user))

    site.route("", made(get=ask))
    assert site.get(headers={"X-Token": "1"}).content == b"7"  # type: ignore[attr-defined]
    assert (site_remaining("PerAddress", "7"), site_remaining("PerAddress", ANONYMOUS)) == (1, 2)


def test_user_of_the_test_client_counts_by_primary_key(site: DjangoSite) -> None:
    site.route("", made(authentication_classes=[]))
    client = APIClient()
    client.force_authenticate(user=User())  # type: ignore[arg-type]
    client.get("/")
    assert site_remaining("PerAddress", "7") == 1


def test_throttle_may_have_its_own_id_and_cost(site: DjangoSite) -> None:
    class PerTenant(PenstockThrottle):
        limit = "Large"
        options = {"cost": lambda request: int(request.query_params["rows"])}

        def get_id(self, request: Request, view: APIView) -> str | None:
            assert isinstance(view, Orders)
            return request.headers.get("X-Tenant")

    class PerAddress(PenstockThrottle):
        limit = "PerAddress"
        options = {"id": by_address}

    site.route("", made(throttle_classes=[PerTenant, PerAddress]))
    site.get("/?rows=10", headers={"X-Tenant": "blue"})
    assert (site_remaining("Large", "blue"), site_remaining("PerAddress", "127.0.0.1")) == (90, 1)
    site.get("/?rows=5")
    assert site_remaining("Large", ANONYMOUS) == 95


def test_view_without_a_scope_is_not_limited(site: DjangoSite) -> None:
    site.route("", made(throttle_scope=None))
    assert [site.get().status_code for _ in range(4)] == [200] * 4
    assert limit_fields(site.get()) == {}


def test_function_view_is_limited_by_its_throttles(site: DjangoSite) -> None:
    @api_view(["GET"])
    @throttle_classes([PerUser])
    def orders(request: Request) -> Response:
        return Response()

    site.route("", orders)
    assert [site.get().status_code for _ in range(6)] == [200] * 5 + [429]


def test_function_view_may_be_decorated_on_either_side(site: DjangoSite) -> None:
    def orders(request: Request) -> Response:
        return Response()

    site.route("out", limit("PerAddress")(api_view(["GET"])(orders)))
    site.route("in", api_view(["GET"])(limit("PerUser")(orders)))
    assert [site.get("/out").status_code for _ in range(3)] == [200, 200, 429]
    assert [site.get("/in").status_code for _ in range(6)] == [200] * 5 + [429]
    assert limit_fields(site.get("/in"))["Retry-After"] == "720"


class ByToken(BaseAuthentication):
    """Users whose token is their name; `bad` is a wrong token."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        token = request.headers.get("X-Token")
        if token == "bad":  # noqa: S105  no secret
            raise AuthenticationFailed
        return None if token is None else (type("Token", (User,), {"pk": token})(), None)


class WithTokens(APIView):
    authentication_classes = [ByToken]
    permission_classes: list[Any] = []

    def get(self, request: Request) -> Response:
        if "fail" in request.GET:
            raise ZeroDivisionError
        return Response({"left": request.penstock.remaining})  # type: ignore[attr-defined]


class AsyncWithTokens(adrf.APIView):  # type: ignore[misc]
    authentication_classes = [ByToken]
    permission_classes: list[Any] = []

    async def get(self, request: Request) -> Response:
        return WithTokens.get(cast("WithTokens", self), request)


def with_tokens(base: type[APIView] = WithTokens, **attributes: Any) -> Any:
    """Return a class of its own."""
    return type("Limited", (base,), attributes)


def as_class(_: DjangoSite, base: type[APIView]) -> Any:
    return limit("1/hour", id=by_user)(with_tokens(base)).as_view()


def as_dispatch(_: DjangoSite, base: type[APIView]) -> Any:
    decorate = method_decorator(limit("1/hour", id=by_user), name="dispatch")
    return decorate(with_tokens(base)).as_view()


def as_method(_: DjangoSite, base: type[APIView]) -> Any:
    get = limit("1/hour", id=by_user)(vars(base)["get"])
    return with_tokens(base, get=get).as_view()


def as_view(_: DjangoSite, base: type[APIView]) -> Any:
    return limit("1/hour", id=by_user)(base.as_view())


def as_callable(_: DjangoSite, base: type[APIView]) -> Any:
    by_pk = limit("1/hour", id=lambda request: request.user.pk or "anonymous")
    return by_pk(with_tokens(base)).as_view()


def as_function(_: DjangoSite, base: type[APIView]) -> Any:
    def orders(request: Request) -> Response:
        return Response({"left": request.penstock.remaining})  # type: ignore[attr-defined]

    async def async_orders(request: Request) -> Response:
        return orders(request)

    is_async = base is AsyncWithTokens
    view: Any = async_orders if is_async else orders
    api: Any = async_api_view if is_async else api_view
    decorated = authentication_classes([ByToken])(permission_classes([])(view))
    return limit("1/hour", id=by_user)(api(["GET"])(decorated))


def as_throttle(_: DjangoSite, base: type[APIView]) -> Any:
    class Hourly(PenstockThrottle):
        limit = "1/hour"

    return with_tokens(base, throttle_classes=[Hourly]).as_view()


def as_default(site: DjangoSite, base: type[APIView]) -> Any:
    options = {"LIMITER": current().guard.limiter, "DEFAULT": limit("1/hour", id=by_user)}
    site.set(PENSTOCK=options)
    return base.as_view()


# Limits that wait for the view's authentication.
WAITING = [as_class, as_dispatch, as_view, as_callable, as_function, as_default]

Ask: TypeAlias = "Callable[..., Any]"


@pytest.fixture(params=["sync", "async", "async-wsgi"])
def serve(request: pytest.FixtureRequest, site: DjangoSite) -> Callable[[Any], Ask]:
    """Serves a view, and returns a function that requests it with a token and header fields."""

    def get(token: str | None, path: str = "/", **headers: str) -> Any:
        given = headers if token is None else {"X-Token": token, **headers}
        if request.param == "async":
            return asyncio.run(site.aget(path, headers=given))
        return site.get(path, headers=given)

    def serve(make: Any) -> Ask:
        site.route("", make(site, WithTokens if request.param == "sync" else AsyncWithTokens))
        return get

    return serve


@pytest.mark.parametrize("make", WAITING)
def test_users_of_a_class_count_apart(serve: Callable[[Any], Ask], make: Any) -> None:
    by_token = serve(make)
    served = [by_token(token) for token in ("ada", "grace", None)]
    assert [response.content for response in served] == [b'{"left":0}'] * 3
    refused = [by_token(token) for token in ("ada", "grace", None)]
    assert [response.status_code for response in refused] == [429] * 3
    for response in refused:
        assert response.headers["Content-Type"] == "application/problem+json"
        assert limit_fields(response)["Retry-After"] == "3600"


@pytest.mark.parametrize("make", [as_method, as_throttle])
def test_users_that_the_view_has_authenticated_count_apart(
    serve: Callable[[Any], Ask], make: Any
) -> None:
    by_token = serve(make)
    for status in (200, 429):
        assert [by_token(token).status_code for token in ("ada", "grace", None)] == [status] * 3


@pytest.mark.parametrize("make", WAITING)
def test_failed_authentication_counts_for_the_address(
    serve: Callable[[Any], Ask], make: Any
) -> None:
    by_token = serve(make)
    assert by_token("bad").status_code in (401, 403)
    assert [by_token(token).status_code for token in ("bad", None, "ada")] == [429, 429, 200]


@pytest.mark.parametrize("make", WAITING)
def test_request_that_ends_before_the_authentication_counts(
    serve: Callable[[Any], Ask], make: Any
) -> None:
    by_token = serve(make)
    wrong = {"Accept": "text/unknown"}
    assert [by_token("ada", **wrong).status_code for _ in range(2)] == [406, 429]


@pytest.mark.parametrize("with_middleware", [True, False])
@pytest.mark.parametrize("base", [WithTokens, AsyncWithTokens])
def test_limits_of_a_class_follow_its_response(
    site: DjangoSite, base: type[APIView], *, with_middleware: bool
) -> None:
    if not with_middleware:
        site.set(MIDDLEWARE=WITHOUT)
    method = limit("Large", id=by_user, refund_on_error=True)
    failing = with_tokens(base, get=method(vars(base)["get"]))
    failures = limit(
        "PerAddress", id=by_user, deduct_when=lambda response: response.status_code == 401
    )
    whole = limit("PerUser", id=by_user, refund_on_error=True)
    site.route("", whole(failures(failing)).as_view())
    ada = {"X-Token": "ada"}
    assert site.get(headers=ada).status_code == 200
    with pytest.raises(ZeroDivisionError):
        site.get("/?fail", headers=ada)
    left = [site_remaining(name, "ada") for name in ("PerUser", "PerAddress", "Large")]
    assert left == [4, 2, 99]
    fields = limit_fields(site.get(headers=ada))["RateLimit"]
    assert fields == '"PerUser";r=3;t=720, "PerAddress";r=2, "Large";r=98;t=1'


def test_default_by_user_waits_on_an_event_loop_too(site: DjangoSite) -> None:
    site.route("", as_default(site, WithTokens))
    client = AsyncClient()

    async def ask(token: str, **headers: str) -> int:
        response = await client.get("/", headers={"X-Token": token, **headers})
        return response.status_code

    async def statuses() -> list[int]:
        return [
            await ask("ada"),
            await ask("grace", accept="text/unknown"),
            await ask("ada"),
            await ask("grace"),
            await ask("other", accept="text/unknown"),
        ]

    assert asyncio.run(statuses()) == [200, 406, 429, 200, 429]


def test_denied_user_of_a_class_does_not_reach_permissions(site: DjangoSite) -> None:
    asked: list[object] = []

    class Asked(BasePermission):
        def has_permission(self, request: Request, view: APIView) -> bool:
            asked.append(request.user.pk)
            return True

    orders = limit("1/hour", id=by_user)(with_tokens(permission_classes=[Asked]))
    site.route("", orders.as_view())
    statuses = [site.get(headers={"X-Token": "ada"}).status_code for _ in range(3)]
    assert (statuses, asked) == ([200, 429, 429], ["ada"])


def test_limit_by_address_of_a_class_comes_before_the_authentication(site: DjangoSite) -> None:
    site.route("", limit("1/hour")(with_tokens()).as_view())
    assert [site.get(headers={"X-Token": "bad"}).status_code for _ in range(2)] == [403, 429]


def test_action_of_a_view_set_has_a_scope_of_its_own(site: DjangoSite) -> None:
    from django.urls import include  # noqa: PLC0415  once the apps are ready
    from rest_framework.routers import SimpleRouter  # noqa: PLC0415  as above

    class Exports(PenstockMixin, ViewSet):
        throttle_classes = [PenstockThrottle]
        throttle_scope = "Large"

        def list(self, request: Request) -> Response:
            return Response()

        @action(detail=False, throttle_scope="PerAddress")
        def slow(self, request: Request) -> Response:
            return Response()

        @action(detail=False, throttle_scope=None)
        @limit("PerUser")
        def own(self, request: Request) -> Response:
            return Response()

    router = SimpleRouter()
    router.register("exports", Exports, basename="exports")
    site.route("", include(router.urls))
    assert [site.get("/exports/slow/").status_code for _ in range(3)] == [200, 200, 429]
    assert limit_fields(site.get("/exports/"))["RateLimit"] == '"Large";r=99;t=1'
    assert limit_fields(site.get("/exports/own/"))["RateLimit"] == '"PerUser";r=4;t=720'


def test_rate_belongs_to_the_view_as_scope_and_to_the_throttle_as_limit(
    site: DjangoSite,
) -> None:
    class Twice(PenstockThrottle):
        limit = "2/minute"

    site.route("a", made(throttle_scope="1/minute"))
    site.route("b", type("Other", (Orders,), {"throttle_scope": "1/minute"}).as_view())  # type: ignore[attr-defined]
    site.route("c", made(throttle_classes=[Twice]))
    site.route("d", type("Another", (Orders,), {"throttle_classes": [Twice]}).as_view())  # type: ignore[attr-defined]
    paths = ("/a", "/b", "/a", "/c", "/d", "/c")
    assert [site.get(path).status_code for path in paths] == [200, 200, 429, 200, 200, 429]


def test_invalid_id_is_a_bad_request(site: DjangoSite, tmp_path: Any) -> None:
    class Account(PenstockThrottle):
        limit = "PerAccount"

        def get_id(self, request: Request, view: APIView) -> str:
            return request.query_params["account"]

    (tmp_path / "limits.yaml").write_text(
        "PerAccount: {burst: 2, count: 2, period: 1m, id: regId}\n", encoding="utf-8"
    )
    site.set(PENSTOCK={"LIMITS": tmp_path / "limits.yaml"})
    site.route("", made(throttle_classes=[Account]))
    assert site.get("/?account=1").status_code == 200
    refused = site.get("/?account=ada")
    assert refused.status_code == 400
    assert set(json.loads(refused.content)) == {"detail"}  # type: ignore[attr-defined]


def test_unknown_scope_is_an_error_for_each_request(site: DjangoSite) -> None:
    site.route("orders", made(throttle_scope="PerAdress"))
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured, match="'PerAddress'"):
            site.get("/orders")
    (message,) = checks.run_checks(tags=["penstock"])
    assert message.id == "penstock.E007"
    assert message.msg.startswith("/orders: ")


def test_limit_may_depend_on_the_response(
    either: tuple[DjangoSite, type[Orders]],
) -> None:
    class Failures(PenstockThrottle):
        limit = "PerAddress"
        options = {"deduct_when": lambda response: response.status_code == 200}

    site, base = either
    site.route("", made(base, throttle_classes=[Failures]))
    assert [site.get().status_code for _ in range(3)] == [200, 200, 429]
    site.set(MIDDLEWARE=WITHOUT)
    site.route("alone", made(throttle_classes=[Failures]))
    with pytest.raises(ImproperlyConfigured, match="PenstockMixin"):
        site.get("/alone")


def test_failed_view_is_refunded(
    either: tuple[DjangoSite, type[Orders]],
) -> None:
    class Fair(PenstockThrottle):
        limit = "PerAddress"
        options = {"refund_on_error": True}

    def fail(self: object, request: Request) -> Response:
        raise ZeroDivisionError

    site, base = either
    site.route("", made(base, throttle_classes=[Fair], get=fail))
    with pytest.raises(ZeroDivisionError):
        site.get()
    assert site_remaining("PerAddress", ANONYMOUS) == 2


def test_rate_limited_of_a_view_is_a_response(
    either: tuple[DjangoSite, type[Orders]],
) -> None:
    def spend(self: object, request: Request) -> Response:
        current().guard.limiter.spend("PerUser", "ada", 5).raise_if_denied()
        return Response()

    site, base = either
    site.route("", made(base, get=spend))
    assert site.get().status_code == 200
    refused = site.get()
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "3600")
    assert limit_fields(refused)["RateLimit"] == '"PerAddress";r=0;t=30, "PerUser";r=0;t=3600'


def test_number_of_proxies_of_rest_framework_is_reported(site: DjangoSite) -> None:
    site.route("", made())
    site.set(REST_FRAMEWORK={"NUM_PROXIES": 2})
    (message,) = checks.run_checks(tags=["penstock"])
    assert message.id == "penstock.E008"
    assert "2" in (message.hint or "")
    site.set(PENSTOCK={"LIMITER": current().guard.limiter, "HOPS": 2})
    assert checks.run_checks(tags=["penstock"]) == []


def test_second_check_spends_again(site: DjangoSite) -> None:
    class Twice(Orders):
        def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
            super().initial(request, *args, **kwargs)
            self.check_throttles(request)

    site.route("", made(Twice, throttle_classes=[PerUser, PenstockThrottle]))
    assert site.get().status_code == 200
    assert (site_remaining("PerUser", ANONYMOUS), site_remaining("PerAddress", ANONYMOUS)) == (3, 0)


@pytest.mark.parametrize("others", [(PenstockThrottle,), (PerUser,)])
def test_request_is_counted_once_whatever_the_other_throttles_are(
    either: tuple[DjangoSite, type[Orders]], others: tuple[type[PenstockThrottle], ...]
) -> None:
    site, base = either
    site.route("", made(base, throttle_classes=[PerUser, *others], throttle_scope=None))
    assert site.get().status_code == 200
    assert site_remaining("PerUser", ANONYMOUS) == 4


@pytest.mark.parametrize("first", ["/list/", "/found/"])
def test_names_of_rates_of_throttles_do_not_depend_on_the_first_request(
    site: DjangoSite, first: str
) -> None:
    # Otherwise processes would use one key of a shared store for different limits.
    class Words(PenstockMixin, ViewSet):
        throttle_classes = [PenstockThrottle]
        throttle_scope = "5/minute"

        def list(self, request: Request) -> Response:
            return Response()

        @action(detail=False, throttle_scope="2/minute")
        def found(self, request: Request) -> Response:
            return Response()

    site.route("list/", Words.as_view({"get": "list"}))
    site.route("found/", Words.as_view({"get": "found"}, throttle_scope="2/minute"))
    site.get(first)
    assert limit_fields(site.get("/list/"))["RateLimit-Policy"] == '"Words";q=5;w=60'
    assert limit_fields(site.get("/found/"))["RateLimit-Policy"] == '"Words-2";q=2;w=60'


@pytest.mark.parametrize(
    "attribute", ["rate", "scope", "THROTTLE_RATES", "get_cache_key", "get_rate", "parse_rate"]
)
def test_attribute_of_the_frameworks_own_throttles_is_an_error(attribute: str) -> None:
    # Such a throttle would limit nothing.
    with pytest.raises(ConfigError, match=attribute):
        type("Burst", (PenstockThrottle,), {attribute: "60/min"})
    inherited = type("Rates", (), {attribute: "60/min"})
    with pytest.raises(ConfigError, match=attribute):
        type("Burst", (inherited, PenstockThrottle), {"limit": "60/min"})


@pytest.mark.parametrize(
    ("attribute", "instead"),
    [
        ("limits", "limit"),
        ("ids", "id"),
        ("option", "options"),
        ("get_idd", "get_id"),
        ("get_ident", "get_id"),
        ("ident", "use id"),
        ("cost", "options"),
        ("deduct_when", "options"),
        ("costs", "cost"),
        ("throttle_scope", "the view"),
        ("key", "id"),
    ],
)
def test_attribute_that_a_throttle_does_not_read_is_an_error(attribute: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=rf"Burst\.{attribute} .*{instead}"):
        type("Burst", (PenstockThrottle,), {attribute: "60/min"})


def test_throttle_may_have_attributes_of_its_own(site: DjangoSite) -> None:
    class PerTenant(PenstockThrottle):
        limit = "PerAddress"
        header = "X-Tenant"

        def get_id(self, request: Request, view: APIView) -> str | None:
            return self.tenant(request)

        def tenant(self, request: Request) -> str | None:
            return request.headers.get(self.header)

    site.route("", made(throttle_classes=[PerTenant]))
    site.get(headers={"X-Tenant": "blue"})
    assert site_remaining("PerAddress", "blue") == 1


def tenant_of(self: object, request: Request, view: object = None) -> str:
    return "blue"


@pytest.mark.parametrize(
    "attributes",
    [
        {"options": {"costs": 2}},
        {"options": {"cost": -1}},
        {"options": ["cost"]},
        {"limit": 60},
        {"limit": "1/minute", "options": {"limit": str}},
        {"id": by_address, "options": {"id": by_user}},
        {"id": by_address, "get_id": tenant_of},
        {"get_id": tenant_of, "options": {"id": by_user}},
        {"id": 1.5},
        {"id": tenant_of},
    ],
)
def test_wrong_option_of_a_throttle_is_an_error_of_its_class(attributes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Burst"):
        type("Burst", (PenstockThrottle,), attributes)


@pytest.mark.parametrize("source", [by_address, lambda request: request.META["REMOTE_ADDR"]])
def test_throttle_counts_by_its_id(site: DjangoSite, source: Any) -> None:
    class PerAddress(PenstockThrottle):
        limit = "PerAddress"
        id = source

    class Inherits(PerAddress):
        options = {"cost": 2}

    site.route("", made(throttle_classes=[PerAddress]))
    site.route("inherits", made(throttle_classes=[Inherits]))
    site.route("both", made(throttle_classes=[PerAddress, PerUser]))
    users = [{"X-Token": "1"}, {}]
    assert [site.get(headers=headers).status_code for headers in users] == [200, 200]
    assert [site.get(headers=headers).status_code for headers in users] == [429, 429]
    elsewhere = {"REMOTE_ADDR": "203.0.113.9"}
    assert [site.get("/inherits", **elsewhere).status_code for _ in range(2)] == [200, 429]
    site.get("/both", REMOTE_ADDR="203.0.113.10", headers=users[0])
    assert site_remaining("PerAddress", "203.0.113.10") == 1
    assert site_remaining("PerUser", "7") == 4


@pytest.mark.parametrize(
    "attribute", ["throttle_scop", "throttle_scopes", "throttled_scope", "throttle_class"]
)
@pytest.mark.parametrize("base", [Orders, Mixed])
def test_misspelled_attribute_of_a_view_is_an_error(
    site: DjangoSite, attribute: str, base: type[Orders]
) -> None:
    site.route("orders", made(base, **{attribute: PerUser}))
    with pytest.raises(ImproperlyConfigured, match=attribute):
        site.get("/orders")
    (message,) = checks.run_checks(tags=["penstock"])
    assert message.id == "penstock.E007"
    assert attribute in message.msg


def test_misspelled_list_of_throttles_is_found_by_the_checks(site: DjangoSite) -> None:
    site.route("orders", made(throttle_classes=[], throtle_classes=[PenstockThrottle]))
    (message,) = [x for x in checks.run_checks(tags=["penstock"]) if x.id == "penstock.E007"]
    assert "throtle_classes" in message.msg


def throttle_of(key: str) -> type[PenstockThrottle]:
    """Return a class whose name and text are those of others."""
    attributes = {"limit": "1/minute", "options": {"id": lambda: key}, "__qualname__": "Throttle"}
    return type("Throttle", (PenstockThrottle,), {"__module__": __name__, **attributes})


def test_throttles_of_one_name_and_text_are_two_limits(site: DjangoSite) -> None:
    one, two = throttle_of("ada"), throttle_of("ada")
    site.route("one", made(throttle_classes=[one], throttle_scope=None))
    site.route("both", made(throttle_classes=[one, two], throttle_scope=None))
    assert site.get("/both").headers["RateLimit"].count(";r=0") == 2
    assert site.get("/one").status_code == 429
    assert len([name for name in current().guard.limiter.limits if "Throttle" in name]) == 2
