"""Decorators of functions and of classes of views, which Flask and Django have."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import django.http
import django.test
import django.urls
import django.views
import flask
import flask.views
import pytest
from sites import ADDRESS, limit_fields, remaining

import penstock
import penstock.django
import penstock.flask
from penstock.identity import shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import DjangoSite

LIMITS = {"PerAddress": "2/minute", "PerUser": "5/hour", "Large": "100/minute"}


class InFlask:
    """Views of Flask."""

    base: Any = flask.views.MethodView

    def __init__(self, limiter: penstock.Limiter) -> None:
        self.app = flask.Flask("shop")
        self.limits = penstock.flask.Penstock(self.app, limiter)
        self.limit: Callable[..., Any] = self.limits.limit
        self.exempt: Callable[..., Any] = self.limits.exempt
        self.shared: Callable[..., Any] = self.limits.shared

    def default(self, *names: str) -> None:
        """Limit every view."""
        self.limits.default(*names)

    def route(self, path: str, view: Any) -> None:
        """Serve a view or a class of views."""
        view = view.as_view(path) if hasattr(view, "as_view") else view
        self.app.add_url_rule(path, path, view)

    @staticmethod
    def view(reply: Callable[[Any], Any] = lambda _: "hello") -> Any:
        """Return a view; `reply` takes what `call` needs."""

        def hello() -> Any:
            """Greet."""
            return reply(None)

        return hello

    @staticmethod
    def call(view: Any, _: Any) -> Any:
        """Call a view from a view, and return its response."""
        return view()

    def ask(self, path: str = "/", method: str = "GET") -> Any:
        """Send a request as a new client."""
        return self.app.test_client().open(path, method=method)


class InDjango:
    """Views of Django."""

    base: Any = django.views.View
    middleware: ClassVar = ["penstock.django.PenstockMiddleware"]

    def __init__(self, limiter: penstock.Limiter, site: DjangoSite) -> None:
        self._limiter = limiter
        self._site = site
        self._urls = ModuleType("urls_of_a_test")
        self._urls.urlpatterns = []  # type: ignore[attr-defined]
        self.limit: Callable[..., Any] = penstock.django.limit
        self.exempt: Callable[..., Any] = penstock.django.exempt
        self.shared: Callable[..., Any] = penstock.django.limit.shared
        self.default()

    def default(self, *names: str) -> None:
        """Limit every view."""
        middleware = InDjango.middleware if names else self.middleware
        settings = {"LIMITER": self._limiter, "DEFAULT": list(names) or None}
        self._site.set(PENSTOCK=settings, MIDDLEWARE=middleware, ROOT_URLCONF=self._urls)

    def route(self, path: str, view: Any) -> None:
        """Serve a view or a class of views."""
        view = view.as_view() if hasattr(view, "as_view") else view
        self._urls.urlpatterns.append(django.urls.path(path.lstrip("/"), view))

    @staticmethod
    def view(reply: Callable[[Any], Any] = lambda _: "hello") -> Any:
        """Return a view; `reply` takes what `call` needs."""

        def hello(request: Any) -> Any:
            """Greet."""
            body = reply(request)
            return django.http.HttpResponse(body) if isinstance(body, str) else body

        return hello

    @staticmethod
    def call(view: Any, request: Any) -> Any:
        """Call a view from a view, and return its response."""
        return view(request)

    def ask(self, path: str = "/", method: str = "GET") -> Any:
        """Send a request as a new client."""
        return django.test.Client().generic(method, path)


class InDjangoWithoutMiddleware(InDjango):
    """Views of Django, without the middleware unless a case has default limits."""

    middleware: ClassVar = []


@pytest.fixture(params=["flask", "django", "django-decorator"])
def app(request: pytest.FixtureRequest, limiter: penstock.Limiter) -> InFlask | InDjango:
    """An application without views."""
    if request.param == "flask":
        return InFlask(limiter)
    made = InDjango if request.param == "django" else InDjangoWithoutMiddleware
    return made(limiter, request.getfixturevalue("site"))


@pytest.fixture
def limiter(clock: penstock.ManualClock) -> penstock.Limiter:
    return penstock.Limiter(LIMITS, clock=clock)


@pytest.fixture(params=["sync", "async"])
def hello(request: pytest.FixtureRequest, app: InFlask | InDjango) -> Any:
    """A method of a class of views."""
    response: Any = flask.Response if isinstance(app, InFlask) else django.http.HttpResponse

    def hello(self: object, *_: object) -> Any:
        return response(type(self).__name__)

    async def hello_async(self: object, *_: object) -> Any:
        return response(type(self).__name__)

    return hello_async if request.param == "async" else hello


def test_decorator_does_not_hide_the_view(app: Any) -> None:
    view = app.view()
    limited = app.limit("PerAddress")(app.limit("Large")(view))
    assert (limited.__name__, limited.__doc__) == ("hello", "Greet.")
    assert inspect.signature(limited) == inspect.signature(view)
    assert inspect.unwrap(limited) is view


def test_shared_rate_is_one_limit_for_its_views(app: Any) -> None:
    search = app.shared("2/minute", scope="search")
    app.route("/a", search(app.view()))
    app.route("/b", search(app.view()))
    app.route("/c", app.shared("2/minute", scope="search")(app.view()))
    assert [app.ask(path).status_code for path in ("/a", "/b", "/c")] == [200, 200, 429]
    assert limit_fields(app.ask("/a"))["RateLimit-Policy"] == '"search";q=2;w=60'


def test_rate_that_is_written_while_a_request_is_served_is_one_limit(
    app: Any, limiter: penstock.Limiter
) -> None:
    inner = app.view()
    options: dict[str, Any] = {"limit": lambda _: "1/hour"}
    app.route("/", app.view(lambda request: app.call(app.limit("2/hour")(inner), request)))
    app.route("/chosen", app.view(lambda request: app.call(app.limit(**options)(inner), request)))
    assert [app.ask().status_code for _ in range(4)] == [200, 200, 429, 429]
    assert [app.ask("/chosen").status_code for _ in range(2)] == [200, 429]
    assert len([name for name in limiter.limits if name not in LIMITS]) == 2


def test_limit_above_an_exempt_view_leaves_it_exempt(app: Any, limiter: penstock.Limiter) -> None:
    app.default("PerAddress")
    app.route("/", app.limit("PerUser")(app.exempt(app.limit("Large")(app.view()))))
    assert limit_fields(app.ask())["RateLimit"] == '"PerUser";r=4;t=720, "Large";r=99;t=1'
    assert remaining(limiter, "PerAddress") == 2


def test_limit_below_another_decorator_is_evaluated_below_it(
    app: Any, limiter: penstock.Limiter
) -> None:
    is_known = iter([False, True])

    def login_required(view: Any) -> Any:
        @functools.wraps(view)
        def checked(*request: Any) -> Any:
            return view(*request) if next(is_known) else app.view()(*request)

        return checked

    inner = app.limit("PerUser", "Large")(app.view())
    app.route("/", app.limit("Large")(login_required(inner)))
    assert limit_fields(app.ask())["RateLimit"] == '"Large";r=99;t=1'
    assert limit_fields(app.ask())["RateLimit"] == '"Large";r=98;t=1, "PerUser";r=4;t=720'
    assert (remaining(limiter, "Large"), remaining(limiter, "PerUser")) == (98, 4)


def test_limited_function_denies_when_a_view_calls_it(app: Any, limiter: penstock.Limiter) -> None:
    search, mail = (
        app.limit("PerAddress")(app.view()),
        app.limit("PerUser", id=shared("ada"))(app.view()),
    )

    def both(request: Any) -> Any:
        return [app.call(view, request) for view in (search, search, mail, mail)][-1]

    app.route("/", app.limit("Large")(app.view(both)))
    # Each call counts; each bucket is in the fields once, with its final state.
    assert limit_fields(app.ask())["RateLimit"] == (
        '"Large";r=99;t=1, "PerAddress";r=0;t=30, "PerUser";r=3;t=720'
    )
    assert (remaining(limiter, "PerAddress"), remaining(limiter, "PerUser", "ada")) == (0, 3)


def test_second_call_of_a_function_in_a_request_counts(app: Any, limiter: penstock.Limiter) -> None:
    search = app.limit("PerAddress")(app.view())

    @functools.wraps(search)
    def twice(*request: Any) -> Any:
        search(*request)
        return search(*request)

    app.route("/", app.limit("PerUser")(twice))
    assert app.ask().status_code == 200
    assert (remaining(limiter, "PerAddress"), remaining(limiter, "PerUser")) == (0, 4)


def test_second_call_of_a_method_in_a_request_counts(app: Any, limiter: penstock.Limiter) -> None:
    calls = iter([True, False])

    def get(self: Any, *request: Any) -> Any:
        return self.get(*request) if next(calls) else app.view()(*request)

    methods = {"get": app.limit("PerAddress")(get)}
    app.route("/", app.limit("PerUser")(type("Orders", (app.base,), methods)))
    assert app.ask().status_code == 200
    assert (remaining(limiter, "PerAddress"), remaining(limiter, "PerUser")) == (0, 4)


def test_wrong_option_is_an_error_before_a_view_is_decorated(app: Any) -> None:
    for limit in (app.limit, functools.partial(app.shared, scope="search")):
        with pytest.raises(penstock.ConfigError):
            limit("PerAddress", cost=-1)


@pytest.mark.parametrize("target", [7, "view", dict])
def test_only_a_view_can_be_limited(app: Any, target: Any) -> None:
    with pytest.raises(penstock.ConfigError):
        app.limit("PerAddress")(target)


def test_decorator_without_its_call_is_an_error(app: Any) -> None:
    with pytest.raises(penstock.ConfigError):
        app.limit(app.view())


def test_class_is_limited_as_a_whole(app: Any, hello: Any) -> None:
    orders = app.limit("PerAddress")(type("Orders", (app.base,), {"get": hello, "post": hello}))
    app.route("/", orders)
    statuses = [app.ask(method=method).status_code for method in ("GET", "POST", "GET")]
    assert statuses == [200, 200, 429]


def test_method_is_limited_alone(app: Any, hello: Any) -> None:
    post = app.limit("PerAddress")(hello)
    app.route("/", type("Orders", (app.base,), {"get": hello, "post": post}))
    assert limit_fields(app.ask()) == {}
    posted = [app.ask(method="POST") for _ in range(3)]
    assert [response.status_code for response in posted] == [200, 200, 429]
    # It is bound to its instance.
    assert b"Orders" in (posted[0].data if isinstance(app, InFlask) else posted[0].content)


def test_class_method_and_default_are_one_decision(
    app: Any, hello: Any, limiter: penstock.Limiter
) -> None:
    app.default("Large")
    methods = {"get": app.limit("PerAddress")(hello), "post": hello}
    app.route("/", app.limit("PerUser")(type("Orders", (app.base,), methods)))
    first = app.ask()
    assert (first.status_code, limit_fields(first)["RateLimit"]) == (
        200,
        '"Large";r=99;t=1, "PerUser";r=4;t=720, "PerAddress";r=1;t=30',
    )
    # The function for GET answers HEAD, too.
    assert limit_fields(app.ask(method="HEAD"))["RateLimit"].endswith('"PerAddress";r=0;t=30')
    assert app.ask().status_code == 429
    assert (remaining(limiter, "Large"), remaining(limiter, "PerUser")) == (98, 3)
    posted = limit_fields(app.ask(method="POST"))["RateLimit"]
    assert posted == '"Large";r=97;t=1, "PerUser";r=2;t=720'


def test_function_for_get_answers_head(app: Any, hello: Any, limiter: penstock.Limiter) -> None:
    get = app.limit("PerUser")(hello)
    app.route("/", app.limit("PerAddress")(type("Orders", (app.base,), {"get": get})))
    assert [app.ask(method="HEAD").status_code for _ in range(3)] == [200, 200, 429]
    assert remaining(limiter, "PerUser") == 3


@pytest.mark.parametrize("override_defaults", [False, True])
def test_head_has_the_limits_of_the_function_for_get_and_its_defaults(
    app: Any, hello: Any, limiter: penstock.Limiter, *, override_defaults: bool
) -> None:
    app.default("Large")
    get = app.limit("PerAddress", override_defaults=override_defaults)(hello)
    app.route("/", type("Orders", (app.base,), {"get": get}))
    assert [app.ask(method="HEAD").status_code for _ in range(3)] == [200, 200, 429]
    # In one decision: the refused request has taken nothing.
    assert remaining(limiter, "Large") == (100 if override_defaults else 98)


def test_head_may_have_its_own_function(app: Any, hello: Any) -> None:
    methods = {"get": app.limit("PerAddress")(hello), "head": hello}
    app.route("/", app.limit("PerUser")(type("Orders", (app.base,), methods)))
    assert limit_fields(app.ask(method="HEAD"))["RateLimit"] == '"PerUser";r=4;t=720'


def test_default_of_a_class_with_a_limited_method_counts_for_its_other_methods(
    app: Any, hello: Any, limiter: penstock.Limiter
) -> None:
    app.default("Large")
    methods = {"get": hello, "post": app.limit("PerAddress")(hello)}
    app.route("/", type("Orders", (app.base,), methods))
    for number, method in enumerate(("GET", "POST"), 1):
        assert app.ask(method=method).status_code == 200
        assert remaining(limiter, "Large", ADDRESS) == 100 - number


def test_class_inherits_the_limit_of_its_parent_and_none_of_its_sister(
    app: Any, hello: Any
) -> None:
    base = type("Base", (app.base,), {"get": hello})
    parent = app.limit("1/minute")(type("Parent", (base,), {}))
    app.route("/parent", parent)
    app.route("/child", type("Child", (parent,), {}))
    app.route("/sister", type("Sister", (base,), {}))
    assert limit_fields(app.ask("/sister")) == {}
    assert [app.ask(path).status_code for path in ("/child", "/parent")] == [200, 429]


def test_rate_of_a_class_is_one_limit_for_all_its_routes(app: Any, hello: Any) -> None:
    orders = app.limit("1/minute")(type("Orders", (app.base,), {"get": hello}))
    app.route("/a", orders)
    app.route("/b", orders)
    assert [app.ask(path).status_code for path in ("/a", "/b")] == [200, 429]


def test_exempt_class_has_no_default(app: Any, hello: Any) -> None:
    app.default("PerAddress")
    app.route("/", app.exempt(type("Health", (app.base,), {"get": hello})))
    assert limit_fields(app.ask()) == {}
