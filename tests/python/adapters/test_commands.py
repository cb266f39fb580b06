"""The commands of Flask and Django that explain and reset buckets."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import django.http
import flask
import pytest
from django.core.management import CommandError, call_command

import penstock
import penstock.django
import penstock.flask
from penstock._explain import explain_bucket, fact_lines
from penstock.flask.commands import commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMITS = """
PerAddress: {burst: 2, count: 2, period: 1m, id: ipAddress}
PerUser: {burst: 5, count: 5, period: 1h}
"""
OVERRIDES = """
- PerAddress: {burst: 50, count: 5, period: 1m, ids: [192.0.2.1]}
- PerUser: {burst: 50, count: 50, period: 1h, ids: [ada]}
"""


class Done(NamedTuple):
    """The end of a command."""

    output: str
    is_fault: bool


class Site(NamedTuple):
    """An application with a rate on a view, and its commands."""

    limiter: penstock.Limiter
    run: Callable[..., Done]


def in_flask(request: pytest.FixtureRequest, limiter: penstock.Limiter) -> Site:
    app = flask.Flask("shop")
    limits = penstock.flask.Penstock(app, limiter)
    app.get("/search", endpoint="search")(limits.limit("30/minute")(search))

    def run(*arguments: str) -> Done:
        done = app.test_cli_runner().invoke(commands, arguments)
        return Done(done.output, done.exit_code == 1)

    return Site(limiter, run)


def in_django(request: pytest.FixtureRequest, limiter: penstock.Limiter) -> Site:
    site = request.getfixturevalue("site")
    site.set(PENSTOCK={"LIMITER": limiter})
    site.route("search", penstock.django.limit("30/minute")(search))

    def run(*arguments: str) -> Done:
        out = io.StringIO()
        try:
            call_command("penstock", *arguments, stdout=out)
        except CommandError as error:
            return Done(str(error), is_fault=True)
        return Done(out.getvalue(), is_fault=False)

    return Site(limiter, run)


def search(*_: object) -> Any:
    return django.http.HttpResponse()


Make: TypeAlias = "Callable[[str], Site]"


@pytest.fixture(params=[in_flask, in_django], ids=["flask", "django"])
def make(request: pytest.FixtureRequest, clock: penstock.ManualClock) -> Make:
    """Creates a site with a store."""

    def make(store: str) -> Site:
        limits = penstock.Limits.parse(LIMITS, OVERRIDES)
        made: Site = request.param(request, penstock.Limiter(limits, store, clock))
        return made

    return make


@pytest.fixture
def shop(make: Make) -> Site:
    """A site whose store is in the memory of the process."""
    return make("memory://")


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("PerUser", "ada"),
        ("PerUser", "grace"),
        # As a request of this client, whose address is mapped.
        ("PerAddress", "::ffff:192.0.2.1"),
        # A rate of a view has the view's name.
        ("search", "192.0.2.1"),
    ],
)
def test_explain_shows_which_limit_applies_and_why(shop: Site, name: str, id: str) -> None:
    done = shop.run("explain", name, id)
    facts = explain_bucket(shop.limiter, name, id)
    assert (done.output.splitlines(), done.is_fault) == ([*fact_lines(facts)], False)
    assert json.loads(shop.run("explain", name, id, "--json").output) == facts
    is_overridden = id in {"ada", "::ffff:192.0.2.1"}
    assert (facts["file"] == "<overrides>") == is_overridden
    assert facts["id"] == id.removeprefix("::ffff:")


@pytest.mark.parametrize("command", ["explain", "reset"])
def test_unknown_name_and_invalid_id_are_faults(shop: Site, command: str) -> None:
    unknown = shop.run(command, "PerUsr", "ada")
    assert unknown.is_fault
    assert "PerUsr" in unknown.output
    assert "PerUser" in unknown.output
    invalid = shop.run(command, "PerAddress", "not-an-address")
    assert invalid.is_fault
    assert "not-an-address" in invalid.output


def test_reset_refuses_a_store_in_process_memory(shop: Site) -> None:
    shop.limiter.spend("PerUser", "ada")
    done = shop.run("reset", "PerUser", "ada")
    assert done.is_fault
    assert "memory://" in done.output
    assert shop.limiter.check("PerUser", "ada", 0).remaining == 49


def test_reset_fills_a_bucket_of_a_shared_store(make: Make, tmp_path: Path) -> None:
    site = make(f"shm://{tmp_path}/store?capacity=100")
    site.limiter.spend("PerUser", "ada", 50)
    assert json.loads(site.run("explain", "PerUser", "ada", "--json").output)["remaining"] == 0
    assert site.run("reset", "PerUser", "ada").output == "PerUser:ada: reset\n"
    assert site.limiter.check("PerUser", "ada", 0).remaining == 50
    assert site.run("reset", "PerUser", "grace").output == "PerUser:grace: was full already\n"
    answer = json.loads(site.run("reset", "PerUser", "ada", "--json").output)
    assert answer == {"bucket_key": "PerUser:ada", "was_used": False}
