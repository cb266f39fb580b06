"""`flask penstock`, through Flask's test runner and once as a program."""

from __future__ import annotations

import functools
import json
import tomllib
from typing import TYPE_CHECKING, Any

import flask
import programs
import pytest
from click.testing import CliRunner
from flask.cli import ScriptInfo
from flask.views import MethodView

import penstock
from penstock.flask import Penstock
from penstock.flask.commands import commands
from penstock.identity import by_user, shared

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result
    from conftest import MakeLimiter

LIMITS = """
PerAddress: {burst: 5, count: 5, period: 1m, id: ipAddress}
PerUser: {algorithm: fixed-window, count: 100, period: 1h, mode: shadow}
Forgotten: {burst: 5, count: 5, period: 1m}
"""
OVERRIDES = "- PerAddress: {burst: 50, count: 5, period: 1m, ids: [192.0.2.1]}"


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
    return make_limiter(penstock.Limits.parse(LIMITS, OVERRIDES))


@pytest.fixture
def app(limiter: penstock.Limiter) -> flask.Flask:
    """An application with a limit of each kind."""
    app = flask.Flask("shop")
    limits = Penstock(app, limiter)

    @app.route("/orders", methods=["GET", "POST"])
    @limits.limit("PerAddress", methods="POST", cost=2)
    @limits.limit("PerUser", id=by_user, mode="shadow")
    def orders() -> str:
        return ""

    @app.get("/search")
    @limits.limit("30/minute", exempt_when=lambda: False, deduct_when=bool)
    def search() -> str:
        return ""

    class Mails(MethodView):
        def get(self) -> str:
            return ""

        @limits.limit("PerAddress", cost=lambda: 3, id=shared("192.0.2.7"))
        def post(self) -> str:
            return ""

    app.add_url_rule("/mails", view_func=Mails.as_view("mails"))
    return app


def run(app: flask.Flask, *arguments: str) -> Result:
    """Run a command of `flask penstock`."""
    return app.test_cli_runner().invoke(commands, arguments)


def test_show_lists_routes_with_their_limits(app: flask.Flask) -> None:
    done = run(app, "show")
    assert done.exit_code == 0
    assert done.output == (
        "/mails  GET  (mails)\n"
        "    no limits\n"
        "/mails  POST  (mails)\n"
        "    PerAddress: 5 per minute, shared('192.0.2.7'), cost by request\n"
        "/orders  GET  (orders)\n"
        "    PerUser: 100 per hour, by_user, shadow\n"
        "/orders  POST  (orders)\n"
        "    PerAddress: 5 per minute, by_address, cost 2\n"
        "    PerUser: 100 per hour, by_user, shadow\n"
        "/search  GET  (search)\n"
        "    search: 30 per minute, by_address, "
        "exempt_when, deduct_when\n"
        "/static/<path:filename>  GET  (static)\n"
        "    no limits\n"
    )


def test_show_prints_json(app: flask.Flask) -> None:
    routes = json.loads(run(app, "show", "--json").output)
    (orders,) = [r for r in routes if r["route"] == "/orders" and r["methods"] == ["POST"]]
    assert orders["endpoint"] == "orders"
    facts = orders["limits"][0]
    assert (facts["name"], facts["limit"], facts["cost"]) == ("PerAddress", "5 per minute", 2)
    assert facts["numbers"] == penstock.Limit.parse("5/minute").describe()
    assert (facts["id"], facts["mode"], facts["enabled"]) == ("by_address", "enforce", True)
    # Options that the limit does not have, in the form in which others would be read.
    absent = ("choices", "exempt_when", "block_for", "on_store_error")
    assert [facts[name] for name in absent] == [None, False, [], None]


def test_defaults_blueprints_and_exemptions_are_shown(limiter: penstock.Limiter) -> None:
    app = flask.Flask("shop")
    limits = Penstock(app, limiter, enabled=False)
    limits.default("PerAddress")
    inner, outer = flask.Blueprint("inner", "x"), flask.Blueprint("outer", "x", url_prefix="/outer")
    inner.get("/both", endpoint="both")(lambda: "")
    inner.get("/free", endpoint="free")(limits.exempt(lambda: ""))
    outer.register_blueprint(limits.limit("Forgotten")(inner))
    app.register_blueprint(limits.limit("PerUser")(outer))
    lines = run(app, "show").output.splitlines()
    assert [line.partition(":")[0].strip() for line in lines[:4]] == [
        "/outer/both  GET  (outer.inner.both)",
        "PerAddress",
        "PerUser",
        "Forgotten",
    ]
    assert lines[1].endswith("switched off")
    assert lines[4:6] == ["/outer/free  GET  (outer.inner.free)", "    no limits"]


def test_limits_around_another_decorator_are_shown_too(limiter: penstock.Limiter) -> None:
    app = flask.Flask("shop")
    limits = Penstock(app, limiter)

    def view() -> str:
        return ""

    wrapped = limits.limit("PerUser", id=shared("ada"))(view)
    between = limits.limit("PerAddress")(_login_required(wrapped))
    app.get("/")(between)
    shown = run(app, "show").output
    assert shown.index("PerAddress") < shown.index("PerUser")


def _login_required(view: Any) -> Any:
    @functools.wraps(view)
    def checked() -> Any:
        return view()

    return checked


def test_check_finds_no_faults_and_names_unused_limits(app: flask.Flask) -> None:
    done = run(app, "check")
    assert done.exit_code == 0
    summary, unused = done.output.splitlines()
    assert summary.startswith("4 routes, 3 of them limited")
    assert "Forgotten" in unused
    found = json.loads(run(app, "check", "--json").output)
    assert found == {"problems": [], "routes": 4, "limited": 3, "unused": ["Forgotten"]}


def test_limits_that_keep_blocks_are_not_unused(limiter: penstock.Limiter) -> None:
    app = flask.Flask("shop")
    limits = Penstock(app, limiter)
    app.get("/")(limits.limit("PerAddress", block_for=["1m", "5m"])(lambda: ""))
    _, *unused = run(app, "check").output.splitlines()
    assert [line.rpartition(" ")[2] for line in unused] == ["PerUser", "Forgotten"]
    assert "block_for 60 s, 300 s" in run(app, "show").output


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ("PerAddress: {burst: 0, count: 5, period: 0s}", "limits.yaml:1: PerAddress: "),
        ("Other: {burst: 5, count: 5, period: 1s}", "'PerAddress'"),
    ],
)
def test_check_reports_faults_of_an_application_that_does_not_load(
    tmp_path: Path, limits: str, fault: str
) -> None:
    (tmp_path / "limits.yaml").write_text(limits, encoding="utf-8")

    def create_app() -> flask.Flask:
        app = flask.Flask("shop", root_path=str(tmp_path))
        Penstock(app, limits="limits.yaml").limit("PerAddress")(lambda: "")
        return app

    done = CliRunner().invoke(commands, ["check"], obj=ScriptInfo(create_app=create_app))
    assert done.exit_code == 1
    assert fault in done.output
    assert "Traceback" not in done.output
    done = CliRunner().invoke(commands, ["check", "--json"], obj=ScriptInfo(create_app=create_app))
    assert done.exit_code == 1
    (problem,) = json.loads(done.output)["problems"]
    if problem["file"] is not None:
        assert (problem["line"], problem["limit"]) == (1, "PerAddress")
    else:
        assert fault in problem["message"]


@pytest.mark.parametrize(
    "command", [["check"], ["show"], ["explain", "A", "b"], ["reset", "A", "b"]]
)
def test_application_without_the_extension_is_a_fault(command: list[str]) -> None:
    done = run(flask.Flask("shop"), *command)
    assert done.exit_code == 1
    assert "Penstock(app, ...)" in done.output


def test_commands_know_limits_that_requests_find_late(limiter: penstock.Limiter) -> None:
    app = flask.Flask("shop")
    limits = Penstock(app, limiter)

    @limits.limit("1/hour")
    def export() -> str:
        return ""

    class Orders(MethodView):
        # As in Flask-RESTful.
        method_decorators = (limits.limit("2/hour"),)

        def get(self) -> str:
            return ""

    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    app.get("/export")(lambda: f"{export()} rows")
    assert "    Orders.get: 2 per hour, by_address\n" in run(app, "show").output
    for name in ("Orders.get", f"{__name__}.{export.__qualname__}"):
        assert "per hour" in run(app, "explain", name, "192.0.2.1").output
    assert "hour" not in run(app, "check").output


def test_limit_is_explained_while_the_store_fails(tmp_path: Path) -> None:
    app = flask.Flask("shop")
    Penstock(app, limits={"PerAddress": "5/minute"}, store=f"unix://{tmp_path}/absent.sock")
    done = run(app, "explain", "PerAddress", "192.0.2.1", "--json")
    facts = json.loads(done.stdout)
    assert (done.exit_code, facts["limit"], facts["remaining"]) == (0, "5 per minute", None)
    assert "cannot be reached" in facts["store_error"]


APP = """
import flask
from penstock.flask import Penstock

app = flask.Flask(__name__)
limits = Penstock(app, limits={"PerAddress": "5/minute"})

@app.get("/")
@limits.limit("PerAddress")
def index():
    return ""
"""


def test_flask_finds_the_commands(root: Path, tmp_path: Path) -> None:
    # As an installed package declares them.
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["entry-points"]["flask.commands"]
    folder = tmp_path / "declared-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1\n")
    lines = [f"{name} = {place}" for name, place in declared.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[flask.commands]", *lines, ""]))
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    program = f"import sys; sys.path[:0] = {[str(tmp_path), str(root / 'python')]!r}\n"
    program += "from flask.cli import main; main()"
    shown = programs.run(program, "--app", "shop", "penstock", "show")
    assert shown.startswith("/  GET  (index)\n    PerAddress: 5 per minute, by_address\n")


def test_check_finds_a_limit_above_its_route(app: flask.Flask) -> None:
    limits = app.extensions["penstock"].owner
    above = limits.limit("PerAddress")(app.get("/above", endpoint="above")(lambda: ""))
    done = CliRunner().invoke(commands, ["check"], obj=ScriptInfo(create_app=lambda: app))
    assert above is not None
    assert done.exit_code == 1
    assert "the limit of above has no effect" in done.output
