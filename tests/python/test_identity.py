"""Client ids: the ready-made ones, and callables of the user."""

from __future__ import annotations

import functools
import operator
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.guard import EnvironRequest, MissingId
from penstock.identity import ClientAddress, by_address, by_api_key, by_header, by_user, per_route
from penstock.web.identity import IdSource, compile_id

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


def test_by_address_is_the_clients_address() -> None:
    assert found(by_address) == ADDRESS
    assert found(by_address, REMOTE_ADDR="2001:db8::1:2:3:4") == "2001:db8::"


def test_by_user_is_the_user_of_the_server() -> None:
    assert found(by_user, REMOTE_USER="ada") == "ada"


def test_anonymous_user_counts_by_address_and_cannot_be_taken_for_a_user() -> None:
    assert found(by_user) == f"address:{ADDRESS}"
    assert found(by_user, REMOTE_USER=ADDRESS) == f"user:{ADDRESS}"


def test_anonymous_users_can_be_refused_or_share_a_bucket() -> None:
    with pytest.raises(MissingId, match="by_user"):
        found(by_user(missing="refuse"))
    assert found(by_user(missing="unknown")) == "unknown"
    assert found(by_user(missing="refuse"), REMOTE_USER="ada") == "ada"


def test_by_header_is_the_value_of_the_header() -> None:
    assert found(by_header("X-Tenant"), HTTP_X_TENANT=" blue ") == "blue"
    assert found(by_header("Content-Type"), CONTENT_TYPE="text/csv") == "text/csv"


def test_header_in_utf_8_is_read_as_such() -> None:
    assert found(by_header("X-Tenant"), HTTP_X_TENANT="Zoë".encode().decode("latin-1")) == "Zoë"
    assert found(by_header("X-Tenant"), HTTP_X_TENANT="Zoë") == "Zoë"


def test_missing_header_is_refused_by_default() -> None:
    for environ in ({}, {"HTTP_X_TENANT": ""}, {"HTTP_X_TENANT": "  "}):
        with pytest.raises(MissingId, match="X-Tenant"):
            found(by_header("X-Tenant"), **environ)
    assert found(by_header("X-Tenant", missing="none")) == "none"
    assert found(by_header("X-Tenant", missing="address")) == f"address:{ADDRESS}"


@pytest.mark.parametrize("name", ["", "X Tenant", "X-Tenant:", "Größe"])
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


def test_request_without_a_key_counts_by_address() -> None:
    assert found(by_api_key) == f"address:{ADDRESS}"
    assert found(by_api_key, HTTP_AUTHORIZATION="Basic YTpi") == f"address:{ADDRESS}"
    with pytest.raises(MissingId):
        found(by_api_key(missing="refuse"))


def test_per_route_counts_by_template_and_not_by_path() -> None:
    one = found(per_route(by_address), route="/orders/<id>", PATH_INFO="/orders/1")
    two = found(per_route(by_address), route="/orders/<id>", PATH_INFO="/orders/2")
    assert one == two == f"/orders/<id> {ADDRESS}"
    assert found(per_route(), route="/") == f"/ {ADDRESS}"
    assert found(per_route(by_user), route="/", REMOTE_USER="ada") == "/ ada"
    assert found(per_route(lambda: b"bytes"), route="/") == "/ bytes"


def test_callable_takes_the_request_or_nothing() -> None:
    assert found(lambda: "fixed") == "fixed"
    assert found(lambda environ: environ["user"], user="ada") == "ada"
    assert found(operator.itemgetter("user"), user="ada") == "ada"
    assert found(lambda *given: f"{len(given)} given") == "1 given"
    # A default value binds something to a closure; it does not ask for the request.
    assert found(lambda kept="mine": kept) == "mine"
    assert (
        found(functools.partial(lambda kept, environ: kept + environ["user"], "a"), user="b")
        == "ab"
    )


class Views:
    """An object with a method."""

    def who(self, environ: dict[str, Any]) -> str:
        return f"method of {environ['user']}"


def test_bound_method_gets_the_request() -> None:
    assert found(Views().who, user="ada") == "method of ada"


@pytest.mark.parametrize("nothing", [None, ""])
def test_callable_without_a_result_is_a_missing_id(nothing: str | None) -> None:
    with pytest.raises(MissingId):
        found(lambda: nothing)


@pytest.mark.parametrize("nothing", [True, 1.5, ["ada"], {"name": "ada"}, object()])
@pytest.mark.parametrize("source", [lambda given: given, per_route], ids=["bare", "per_route"])
def test_callable_with_an_invalid_result_is_a_missing_id(nothing: object, source: Any) -> None:
    # A client may have sent it in a body, so it is not a bug of the application.
    with pytest.raises(MissingId, match=f"found a {type(nothing).__name__}$"):
        found(source(lambda: nothing))


def test_invalid_utf_8_is_a_missing_id_on_a_route() -> None:
    with pytest.raises(MissingId, match="UTF-8"):
        found(per_route(lambda: b"\xff"))


@pytest.mark.parametrize("id", ["everyone", 7, b"bytes", IPv4Address(ADDRESS)])
def test_constant_is_one_bucket_for_all(id: str | int | bytes | IPv4Address) -> None:
    assert found(id) == id


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


@pytest.mark.parametrize("ready", [by_user, by_api_key])
def test_missing_must_not_be_empty(ready: Callable[..., object]) -> None:
    with pytest.raises(penstock.ConfigError, match="missing must be"):
        ready(missing="")
