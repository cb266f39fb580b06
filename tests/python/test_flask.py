"""The decorator of the Flask extension, on functions."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import flask
import pytest
from sites import ADDRESS, get, limit_fields, remaining
from werkzeug.test import Client, create_environ
from werkzeug.wrappers import Response

from penstock.flask import Penstock
from penstock.web.identity import by_user, per_route

if TYPE_CHECKING:
    from collections.abc import Callable

    import penstock


def hello() -> str:
    """Greet."""
    return "hello"


def test_decorator_does_not_hide_the_view(limits: Penstock) -> None:
    def view(number: int) -> str:
        """Return a number."""
        return f"{number}"

    limited = limits.limit("PerAddress")(view)
    assert (limited.__name__, limited.__doc__) == ("view", "Return a number.")
    assert inspect.signature(limited) == inspect.signature(view)
    assert inspect.unwrap(limited) is view


def test_view_called_without_a_request_is_not_limited(app: flask.Flask, limits: Penstock) -> None:
    view = limits.limit("PerAddress")(hello)
    assert [view() for _ in range(3)] == ["hello"] * 3
    with app.app_context():
        assert [view() for _ in range(3)] == ["hello"] * 3


def test_limited_function_denies_when_a_view_calls_it(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    search = limits.limit("PerAddress")(hello)
    mail = limits.limit("PerUser", id=lambda: flask.request.args["to"])(hello)

    @app.get("/")
    def view() -> str:
        return search() + search() + mail() + mail()

    responses = [get(app, "/?to=ada") for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    # Each call counts; each bucket is in the fields once, with its final state.
    assert limit_fields(responses[0])["RateLimit"] == '"PerAddress";r=0;t=30, "PerUser";r=3;t=720'
    assert (remaining(limiter, "PerAddress"), remaining(limiter, "PerUser", "ada")) == (0, 3)


def test_outcome_is_there_when_asked_for_after_the_checks_of_the_setup(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    search = limits.limit("Other")(hello)
    seen: list[str] = []

    @app.get("/<what>")
    @limits.limit("PerAddress")
    def view(what: str) -> str:
        @flask.after_this_request
        def note(response: flask.Response) -> flask.Response:
            outcome = limits.outcome()
            assert outcome is not None
            assert outcome.decision == limits.decision()
            seen.extend(limit.name for limit, _, _ in outcome.entries)
            return response

        if what == "fail":
            raise ValueError(what)
        return search() if what == "search" else ""

    end_checks(app, "/ask")
    seen.clear()
    asked, failed = get(app, "/ask"), get(app, "/fail")
    assert limit_fields(asked)["RateLimit"] == '"PerAddress";r=1;t=30'
    assert (failed.status_code, limit_fields(failed)["RateLimit"]) == (500, '"PerAddress";r=0;t=30')
    both = get(app, "/search", environ_base={"REMOTE_ADDR": "203.0.113.9"})
    assert limit_fields(both)["RateLimit"] == '"PerAddress";r=1;t=30, "Other";r=8;t=7'
    assert seen == ["PerAddress", "PerAddress", "Other"]
    assert remaining(limiter, "PerAddress") == 0


@pytest.mark.parametrize("is_checked", [False, True])
def test_fields_are_written_once_however_the_application_is_called(
    app: flask.Flask, limiter: penstock.Limiter, *, is_checked: bool
) -> None:
    """Some servers keep `app.wsgi_app` as it is before an extension replaces it."""
    inner: Any = app.wsgi_app
    app.get("/")(Penstock(app, limiter).limit("Large")(hello))
    if is_checked:
        end_checks(app)

    def copied(environ: dict[str, Any], start_response: Any) -> Any:
        return app.wsgi_app({**environ}, start_response)

    def nested(environ: dict[str, Any], start_response: Any) -> Any:
        # The client is limited by both.
        return Response.from_app(app.wsgi_app, environ)(environ, start_response)

    for number, serve in enumerate((inner, app.wsgi_app, app, copied, nested), 1):
        response = Client(serve).get("/", environ_base={"REMOTE_ADDR": ADDRESS})
        assert response.headers.getlist("RateLimit") == [f'"Large";r={100 - number};t=1']
        assert len(response.headers.getlist("RateLimit-Policy")) == 1


@pytest.mark.parametrize("is_checked", [False, True])
def test_request_leaves_nothing_for_the_garbage_collector(
    app: flask.Flask, limits: Penstock, *, is_checked: bool
) -> None:
    class Environ(dict[str, Any]):
        pass

    app.get("/")(limits.limit("Large")(hello))
    app.get("/user", endpoint="user")(limits.limit("Large", id=by_user)(hello))
    if is_checked:
        end_checks(app)
    parts: list[bytes] = []

    def serve(path: str) -> weakref.ref[Environ]:
        environ = Environ(create_environ(path, environ_base={"REMOTE_ADDR": ADDRESS}))

        def start(status: str, *_: object) -> Callable[[bytes], object]:
            # As in some servers, it refers to the environ.
            environ["status"] = status
            return parts.append

        parts.extend(app.wsgi_app(environ, start))
        return weakref.ref(environ)

    gc.disable()
    try:
        assert [serve(path)() for path in ("/", "/user")] == [None, None]
    finally:
        gc.enable()
    assert parts == [b"hello", b"hello"]


def test_id_callable_may_take_no_argument(app: flask.Flask, limits: Penstock) -> None:
    @app.post("/")
    @limits.limit("PerAddress", id=lambda: flask.request.form["user"])
    def login() -> str:
        return ""

    client = app.test_client()
    statuses = [client.post("/", data={"user": "ada"}).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert client.post("/", data={"user": "grace"}).status_code == 200
    # Flask itself answers 400 for a missing field.
    assert client.post("/").status_code == 400


def test_id_may_use_results_of_before_request_functions(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    app.get("/")(limits.limit("PerAddress", id=lambda: flask.g.account)(hello))

    @app.before_request
    def load() -> None:
        flask.g.account = "a-7"

    get(app)
    assert remaining(limiter, "PerAddress", "a-7") == 1


def test_per_route_counts_by_template(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    @app.get("/orders/<int:number>")
    @limits.limit("PerAddress", id=per_route())
    def order(number: int) -> str:
        return str(number)

    statuses = [get(app, f"/orders/{number}").status_code for number in range(3)]
    assert statuses == [200, 200, 429]
    assert remaining(limiter, "PerAddress", f"/orders/<int:number> {ADDRESS}") == 0


def end_checks(app: flask.Flask, path: str = "/") -> None:
    """Send the requests that the checks of the set-up observe; later ones need no outcome."""
    for _ in range(1000):
        get(app, path, environ_base={"REMOTE_ADDR": "203.0.113.200"})


USERS: Final = (
    (None, f"address:{ADDRESS}"),
    ("", f"address:{ADDRESS}"),
    ("ada", "ada"),
    ("203.0.113.7", "user:203.0.113.7"),
    (7, "7"),
    ({"id": 7, "name": "ada"}, "7"),
    (SimpleNamespace(id="u-7"), "u-7"),
    (SimpleNamespace(id=UUID(int=7)), str(UUID(int=7))),
    ({"id": UUID(int=7)}, str(UUID(int=7))),
    (SimpleNamespace(id=object()), f"address:{ADDRESS}"),
    (SimpleNamespace(get_id=lambda: "u-8"), "u-8"),
    (SimpleNamespace(is_anonymous=True, id="guest"), f"address:{ADDRESS}"),
    (SimpleNamespace(), f"address:{ADDRESS}"),
)


@pytest.mark.parametrize("is_checked", [False, True])
def test_by_user_reads_the_user_of_the_application(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter, *, is_checked: bool
) -> None:
    users = iter(USERS)

    @app.before_request
    def load() -> None:
        if flask.request.remote_addr == ADDRESS:
            flask.g.user = next(users)[0]

    app.get("/")(limits.limit("PerUser", id=by_user)(hello))
    if is_checked:
        end_checks(app)
    for _, id in USERS:
        assert limit_fields(get(app))["RateLimit"] == '"PerUser";r=4;t=720'
        assert remaining(limiter, "PerUser", id) == 4
        limiter.reset("PerUser", id)


def test_by_user_reads_flask_login_where_it_is_used(
    app: flask.Flask,
    limits: Penstock,
    limiter: penstock.Limiter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login = ModuleType("flask_login")
    user = SimpleNamespace(is_anonymous=False, get_id=lambda: "17")
    monkeypatch.setattr(login, "current_user", user, raising=False)
    monkeypatch.setitem(sys.modules, "flask_login", login)
    monkeypatch.setattr(app, "login_manager", object(), raising=False)
    app.get("/")(limits.limit("PerUser", id=by_user)(hello))
    get(app)
    assert remaining(limiter, "PerUser", "17") == 4


def test_limit_below_another_decorator_is_evaluated_below_it(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    def login_required(view: Callable[[], str]) -> Callable[[], str]:
        @functools.wraps(view)
        def checked() -> str:
            if "user" not in flask.request.args:
                flask.abort(401)
            return view()

        return checked

    app.get("/")(limits.limit("Large")(login_required(limits.limit("PerUser", "Large")(hello))))
    assert get(app).status_code == 401
    response = get(app, "/?user=ada")
    assert limit_fields(response)["RateLimit"] == '"Large";r=98;t=1, "PerUser";r=4;t=720'
    assert (remaining(limiter, "Large"), remaining(limiter, "PerUser")) == (98, 4)


def test_names_of_rates_follow_the_order_of_registration(
    app: flask.Flask, limits: Penstock
) -> None:
    for number, text in enumerate(("1/minute", "2/minute")):
        app.add_url_rule(f"/{number}", f"{number}", limits.limit(text)(hello))
    assert '"hello-2";q=2' in limit_fields(get(app, "/1"))["RateLimit-Policy"]
    assert '"hello";q=1' in limit_fields(get(app, "/0"))["RateLimit-Policy"]


def test_shared_rate_is_one_limit_for_its_views(app: flask.Flask, limits: Penstock) -> None:
    search = limits.shared("2/minute", scope="search")
    app.add_url_rule("/a", "a", search(hello))
    app.add_url_rule("/b", "b", search(hello))
    app.add_url_rule("/c", "c", limits.shared("2/minute", scope="search")(hello))
    assert get(app, "/a").status_code == 200
    assert get(app, "/b").status_code == 200
    assert get(app, "/c").status_code == 429
    assert limit_fields(get(app, "/a"))["RateLimit-Policy"] == '"search";q=2;w=60'
