"""Client ids: the ready-made ones, and callables of the user."""

from __future__ import annotations

import functools
import operator
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import penstock
from penstock._web.identity import IdSource, compile_id
from penstock.adapter import EnvironRequest, Guard, MissingId, make_rule
from penstock.identity import (
    ClientAddress,
    by_address,
    by_api_key,
    by_header,
    by_user,
    everyone,
    per_route,
    shared,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ADDRESS = "203.0.113.7"


class RoutedRequest(EnvironRequest):
    """A request with a route."""

    @property
    def route(self) -> str | None:
        return self._environ.get("route")


def found(source: IdSource, **environ: object) -> object:
    """Return the id of a request from `ADDRESS`."""
    request = RoutedRequest({"REMOTE_ADDR": ADDRESS, **environ})
    return compile_id(source, ClientAddress())(request)


TENANT = by_header("X-Tenant")
NO_USER = by_user(missing="refuse")


@pytest.mark.parametrize(
    ("source", "environ", "id"),
    [
        (by_address, {}, ADDRESS),
        (by_address, {"REMOTE_ADDR": "2001:db8::1:2:3:4"}, "2001:db8::"),
        (by_user, {"REMOTE_USER": "ada"}, "ada"),
        # An anonymous user cannot be taken for a user.
        (by_user, {}, f"address:{ADDRESS}"),
        (by_user, {"REMOTE_USER": ADDRESS}, f"user:{ADDRESS}"),
        (by_user(missing=shared("unknown")), {}, "unknown"),
        (NO_USER, {"REMOTE_USER": "ada"}, "ada"),
        (TENANT, {"HTTP_X_TENANT": " blue "}, "blue"),
        (by_header("Content-Type"), {"CONTENT_TYPE": "text/csv"}, "text/csv"),
        # A server passes UTF-8 on byte by byte.
        (TENANT, {"HTTP_X_TENANT": "Zoë".encode().decode("latin-1")}, "Zoë"),
        (TENANT, {"HTTP_X_TENANT": "Zoë"}, "Zoë"),
        (by_header("X-Tenant", missing=shared("none")), {}, "none"),
        (by_header("X-Tenant", missing="address"), {}, f"address:{ADDRESS}"),
        (by_api_key, {}, f"address:{ADDRESS}"),
        (by_api_key, {"HTTP_AUTHORIZATION": "Basic YTpi"}, f"address:{ADDRESS}"),
        # By template, and not by path.
        (per_route(by_address), {"route": "/o/<id>", "PATH_INFO": "/o/1"}, f"/o/<id> {ADDRESS}"),
        (per_route(by_address), {"route": "/o/<id>", "PATH_INFO": "/o/2"}, f"/o/<id> {ADDRESS}"),
        (per_route(), {"route": "/"}, f"/ {ADDRESS}"),
        (per_route(by_user), {"route": "/", "REMOTE_USER": "ada"}, "/ ada"),
        (per_route(lambda: b"bytes"), {"route": "/"}, "/ bytes"),
        # A callable takes the request or nothing.
        (lambda: "fixed", {}, "fixed"),
        (lambda environ: environ["user"], {"user": "ada"}, "ada"),
        (operator.itemgetter("user"), {"user": "ada"}, "ada"),
        (lambda *given: f"{len(given)} given", {}, "1 given"),
        # A default value binds something to a closure; it does not ask for the request.
        (lambda kept="mine": kept, {}, "mine"),
        (functools.partial(lambda kept, environ: kept + environ["user"], "a"), {"user": "b"}, "ab"),
        (everyone, {}, "everyone"),
        (shared(7), {}, 7),
        (shared(b"bytes"), {}, b"bytes"),
        (shared(IPv4Address(ADDRESS)), {}, IPv4Address(ADDRESS)),
    ],
)
def test_request_has_its_id(source: IdSource, environ: dict[str, object], id: object) -> None:
    assert found(source, **environ) == id


@pytest.mark.parametrize(
    ("source", "environ", "why"),
    [
        (NO_USER, {}, "by_user"),
        (TENANT, {}, "X-Tenant"),
        (TENANT, {"HTTP_X_TENANT": ""}, "X-Tenant"),
        (TENANT, {"HTTP_X_TENANT": "  "}, "X-Tenant"),
        (by_api_key(missing="refuse"), {}, "by_api_key"),
        (per_route(lambda: b"\xff"), {}, "UTF-8"),
        (lambda: None, {}, "returned None"),
        (lambda: "", {}, "returned ''"),
    ],
)
def test_missing_id_is_refused(source: IdSource, environ: dict[str, object], why: str) -> None:
    with pytest.raises(MissingId, match=why):
        found(source, **environ)


@pytest.mark.parametrize("name", ["", "X Tenant", "X-Tenant:", "HTTP_X_TENANT", "Größe"])
def test_invalid_header_name_is_an_error(name: str) -> None:
    with pytest.raises(penstock.ConfigError, match="letters, digits and hyphens"):
        by_header(name)


@pytest.mark.parametrize(
    "environ",
    [
        {"HTTP_X_API_KEY": "s3cret"},
        {"HTTP_AUTHORIZATION": "Bearer s3cret"},
        {"HTTP_AUTHORIZATION": "bearer  s3cret "},
        {"HTTP_AUTHORIZATION": "Token s3cret"},
    ],
)
def test_api_key_is_one_id_in_every_header_and_never_shown(environ: dict[str, str]) -> None:
    id = found(by_api_key, **environ)
    assert id == found(by_api_key, HTTP_X_API_KEY="s3cret")
    assert id != found(by_api_key, HTTP_X_API_KEY="s3cret2")
    assert isinstance(id, str)
    assert id.startswith("key:")
    assert "s3cret" not in id


class Views:
    """An object with a method."""

    def who(self, environ: dict[str, Any]) -> str:
        return f"method of {environ['user']}"


def test_bound_method_gets_the_request() -> None:
    assert found(Views().who, user="ada") == "method of ada"


@pytest.mark.parametrize("nothing", [True, 1.5, ["ada"], {"name": "ada"}, object()])
@pytest.mark.parametrize("source", [lambda given: given, per_route], ids=["bare", "per_route"])
def test_callable_with_an_invalid_result_is_a_missing_id(nothing: object, source: Any) -> None:
    # A client may have sent it in a body, so it is not a bug of the application.
    with pytest.raises(MissingId, match=f"found a {type(nothing).__name__}$"):
        found(source(lambda: nothing))


async def later(request: object) -> str:
    return str(request)


def wants_two(one: object, two: object) -> str:
    return f"{one}{two}"


def wants_a_name(*, name: str) -> str:
    return name


@pytest.mark.parametrize("source", [later, wants_two, wants_a_name])
def test_callable_with_other_arguments_is_an_error_at_startup(source: Callable[..., Any]) -> None:
    with pytest.raises(penstock.ConfigError, match=source.__name__):
        compile_id(source, ClientAddress())


@pytest.mark.parametrize("source", [None, True, 1.5, "", b"", ["ada"]], ids=repr)
def test_invalid_id_is_an_error_at_startup(source: Any) -> None:
    with pytest.raises(penstock.ConfigError, match="id must be"):
        compile_id(source, ClientAddress())


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("ip", "id=by_address"),
        ("ipAddress", "id=by_address"),
        ("remote_addr", "id=by_address"),
        ("by_address", "id=by_address"),
        ("adress", "id=by_address"),
        ("user", "id=by_user"),
        ("user_or_ip", "id=by_user"),
        ("api_key", "id=by_api_key"),
        ("header:x-key", r"id=by_header\('x-key'\)"),
        ("post:name", r"id=lambda request: request.POST.get\('name'\)"),
        ("get:q", r"id=lambda request: request.GET.get\('q'\)"),
        ("all", "id=everyone"),
        ("everyone", "id=everyone"),
        ("reports", r"id=shared\('reports'\)"),
        (7, r"id=shared\(7\)"),
        (b"reports", "id=shared"),
        ("", "id=by_address"),
        (None, "id=by_address"),
        (True, "id=by_address"),
        (by_header, r"id=by_header\("),
        (per_route, r"id=per_route\(\)"),
        (shared, r"id=shared\("),
    ],
)
def test_id_that_would_be_one_bucket_is_an_error(given: Any, instead: str) -> None:
    for rule in (lambda: given, lambda: per_route(given)):
        with pytest.raises(penstock.ConfigError, match=instead):
            make_rule(["PerAddress"], "", {"id": rule()})


@pytest.mark.parametrize("option", ["id", "cost", "exempt_when"])
@pytest.mark.parametrize("source", [str, Annotated[str, "the user"], list[str]])
def test_class_is_not_a_function_of_the_request(option: str, source: Any) -> None:
    options: Any = {option: source}
    guard = Guard(clock=penstock.ManualClock())
    with pytest.raises(penstock.ConfigError, match=f"{option} must be an ordinary function"):
        guard.check([make_rule(["1/minute"], "", options)])


@pytest.mark.parametrize("ready", [by_user, by_api_key, functools.partial(by_header, "X-Tenant")])
@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("adress", "use 'address'"),
        ("ip", "use 'address'"),
        ("deny", "use 'refuse'"),
        ("REFUSE", "use 'refuse'"),
        (by_address, "use 'address'"),
        ("everyone", "use everyone of"),
        ("visitors", r"use shared\('visitors'\) .* for one bucket of all"),
        ("", "everyone or shared"),
        (None, "everyone or shared"),
        (7, "everyone or shared"),
    ],
)
def test_missing_is_a_word_or_a_shared_bucket(ready: Any, given: Any, instead: str) -> None:
    with pytest.raises(penstock.ConfigError, match=instead):
        ready(missing=given)


@pytest.mark.parametrize("given", ["", b"", None, True, 1.5])
def test_shared_bucket_has_a_name(given: Any) -> None:
    with pytest.raises(penstock.ConfigError, match="name of a bucket"):
        shared(given)
