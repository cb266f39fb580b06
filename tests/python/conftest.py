"""Fixtures: a manual clock, limiters on that clock, a Flask application and a Django site."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import django
import flask
import hypothesis
import pytest
from django.apps import apps
from django.conf import settings
from redis_servers import INSTALLED, Cluster, Server, start_cluster, start_sentinels
from store_kinds import LOCAL

import penstock
from penstock._cli.main import main
from penstock.flask import Penstock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from django.http.response import HttpResponseBase
    from redis_servers import SentinelSet

PROGRAMS = INSTALLED or ("redis-server",)
"""The servers with which tests of a server run: without any, these fail."""

# Background jobs of a shell ignore SIGINT, and so do their children. Tests send it to themselves
# and to programs that they run.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline, for slow machines. Hypothesis itself uses the same examples each time on CI.
hypothesis.settings.register_profile("penstock", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("penstock")

# A process has one set of Django settings; tests override what they need.
settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "rest_framework",
        "penstock.django",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "penstock.django.PenstockMiddleware",
    ],
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    REST_FRAMEWORK={"TEST_REQUEST_DEFAULT_FORMAT": "json"},
    SECRET_KEY="only for tests",  # noqa: S106  it protects nothing
    TEMPLATES=[
        {
            "APP_DIRS": True,
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "context_processors": [
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                    "django.template.context_processors.request",
                ]
            },
        }
    ],
    USE_TZ=True,
)


class MakeLimiter(Protocol):
    """Creates limiters on the test's clock."""

    def __call__(
        self,
        limits: penstock.Limits | Mapping[str, penstock.Limit | str] = ...,
        *,
        store: str = ...,
    ) -> penstock.Limiter: ...


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture
def root() -> Path:
    """The project's root folder."""
    return Path(__file__).parents[2]


@pytest.fixture
def clock() -> penstock.ManualClock:
    """A manual clock at 2001-09-09T01:46:40Z."""
    return penstock.ManualClock(start=1_000_000_000)


@pytest.fixture
def make_limiter(clock: penstock.ManualClock) -> MakeLimiter:
    """Creates limiters on `clock`, each with its own store."""

    def make(
        limits: penstock.Limits | Mapping[str, penstock.Limit | str] = {"Orders": "4/second"},  # noqa: B006  read only
        *,
        store: str = "memory://",
    ) -> penstock.Limiter:
        return penstock.Limiter(limits, store=store, clock=clock)

    return make


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
    """The limiter of `app`."""
    return make_limiter(
        {"PerAddress": "2/minute", "PerUser": "5/hour", "Large": "100/minute", "Other": "9/minute"}
    )


@pytest.fixture
def app() -> flask.Flask:
    """A Flask application without routes."""
    return flask.Flask("shop")


@pytest.fixture
def limits(app: flask.Flask, limiter: penstock.Limiter) -> Penstock:
    """The extension of `app`."""
    return Penstock(app, limiter)


class Command:
    """Runs commands of `penstock`, and keeps the output of the last one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def run(self, *arguments: str) -> int:
        """Run a command; return its exit status."""
        self._capsys.readouterr()
        try:
            return main(arguments)
        finally:
            self.out, self.err = self._capsys.readouterr()

    def json(self) -> Any:
        """Return the JSON that the last command printed."""
        return json.loads(self.out)

    def json_of(self, *arguments: str) -> Any:
        """Run a command, which must succeed; return the JSON that it prints."""
        assert self.run(*arguments, "--json") == 0, self.err
        return self.json()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs commands of `penstock`."""
    return Command(capsys)


class Write(Protocol):
    """Writes files of the test."""

    def __call__(self, name: str, content: str | bytes) -> str: ...


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of the test, and returns its path."""

    def write(name: str, content: str | bytes) -> str:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return write


class DjangoSite:
    """A Django site for one test: routes, settings and clients."""

    def __init__(self, urls: ModuleType, overrides: list[Any]) -> None:
        self._urls = urls
        self._overrides = overrides

    @property
    def patterns(self) -> list[Any]:
        """The routes so far, as Django has them."""
        patterns: list[Any] = self._urls.urlpatterns
        return patterns

    def route(self, template: str, view: Any) -> None:
        """Serve a view, or included URLs, under a path without its first slash."""
        from django.urls import path  # noqa: PLC0415  after the settings

        self._urls.urlpatterns.append(path(template, view))

    def set(self, **values: Any) -> None:
        """Change settings until the test ends."""
        from django.test import override_settings  # noqa: PLC0415  as above

        override = override_settings(**values)
        override.enable()
        self._overrides.append(override)

    def get(self, path: str = "/", **options: Any) -> HttpResponseBase:
        """Request a page as a new client."""
        from django.test import Client  # noqa: PLC0415  as above

        return Client().get(path, **options)

    async def aget(self, path: str = "/", **options: Any) -> HttpResponseBase:
        """Request a page as a new client through the ASGI handler."""
        from django.test import AsyncClient  # noqa: PLC0415  as above

        return await AsyncClient().get(path, **options)


@pytest.fixture
def site(make_limiter: MakeLimiter) -> Iterator[DjangoSite]:
    """A Django site without routes, with a few limits on the test's clock."""
    if not apps.ready:
        django.setup()
    limits = {"PerAddress": "2/minute", "PerUser": "5/hour", "Large": "100/minute"}
    urls = ModuleType("urls_of_a_test")
    urls.urlpatterns = []  # type: ignore[attr-defined]
    overrides: list[Any] = []
    made = DjangoSite(urls, overrides)
    made.set(ROOT_URLCONF=urls, PENSTOCK={"LIMITER": make_limiter(limits)})
    yield made
    for override in reversed(overrides):
        override.disable()


@pytest.fixture(scope="session")
def django_database() -> Iterator[None]:
    """The tables of Django's own apps, in memory and shared between threads."""
    if not apps.ready:
        django.setup()
    from django.db import connections  # noqa: PLC0415  after the settings

    connection = connections["default"]
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, serialize=None)
    yield
    connection.creation.destroy_test_db(name, verbosity=0)
    connections.close_all()


class StartServer(Protocol):
    """Starts Redis servers that are stopped after the test."""

    def __call__(
        self,
        config: Mapping[str, str] = ...,
        *,
        certificate: Path | None = ...,
    ) -> Server: ...


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers with the given settings."""
    started: list[Server] = []

    def start(config: Mapping[str, str] = {}, *, certificate: Path | None = None) -> Server:
        folder = tmp_path / f"server-{len(started)}"
        started.append(Server(folder, config, certificate=certificate))
        return started[-1].start()

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def _empty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Returns the server of a program that all tests share, without its keys."""
    servers: dict[str, Server] = {}

    def empty(program: str) -> Server:
        if program not in servers:
            servers[program] = Server(tmp_path_factory.mktemp("redis"), program=program).start()
        servers[program].command("FLUSHALL")
        return servers[program]

    yield empty
    for server in servers.values():
        server.stop()


@pytest.fixture(params=PROGRAMS)
def redis_server(request: pytest.FixtureRequest, _empty_server: Callable[[str], Server]) -> Server:
    """An empty server of each installed kind, for tests that do not stop it."""
    return _empty_server(request.param)


@pytest.fixture
def shm_url(tmp_path: Path) -> str:
    """The URL of a table that no other test uses, and that does not exist yet."""
    return f"shm://{tmp_path}/table?capacity=1000"


def _local_url(kind: str, shm_url: str) -> str:
    return shm_url if kind == "shm" else f"{kind}://"


@pytest.fixture(params=LOCAL)
def local_store(request: pytest.FixtureRequest, shm_url: str) -> str:
    """The URL of an empty store of this machine, of each kind. A server decides at its own time."""
    return _local_url(request.param, shm_url)


@pytest.fixture(params=[*LOCAL, *PROGRAMS])
def any_store(
    request: pytest.FixtureRequest, shm_url: str, _empty_server: Callable[[str], Server]
) -> str:
    """The URL of an empty store, of each kind."""
    if request.param in LOCAL:
        return _local_url(request.param, shm_url)
    # A deadline for a busy machine.
    return f"{_empty_server(request.param).url}?deadline=20s"


@pytest.fixture(scope="session")
def _shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(_shared_cluster: Cluster) -> Cluster:
    """An empty cluster of three primaries."""
    for node in _shared_cluster.nodes:
        node.command("FLUSHALL")
    return _shared_cluster


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelSet]:
    """A primary, a replica and three Sentinels, for one test."""
    made = start_sentinels(tmp_path)
    try:
        yield made
    finally:
        made.stop()
