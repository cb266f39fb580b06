"""`penstock migrate-check`, on programs that use other rate limiters."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flask
import pytest
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

from penstock.cli.migrations import PACKAGES
from penstock.flask import Penstock
from penstock.identity import by_address, per_route

if TYPE_CHECKING:
    from conftest import Command

    from penstock.cli.migrations import Package

PROGRAMS = {
    "flask-limiter": (
        """\
from flask import Flask
from flask_limiter import Limiter as RateLimiter
from flask_limiter.util import get_remote_address
app = Flask(__name__)
app.config["RATELIMIT_STORAGE_URI"] = "redis://localhost"
limiter = RateLimiter(get_remote_address, app=app, default_limits=["200/day"])

@app.get("/slow")
@limiter.limit("1/day", per_method=True)
@limiter.exempt
def slow(): ...
""",
        {
            (2, "Limiter"),
            (3, "get_remote_address"),
            (5, "RATELIMIT_STORAGE_URI"),
            (6, "default_limits="),
            (9, "limit"),
            (9, "per_method="),
            (10, "exempt"),
        },
    ),
    "slowapi": (
        """\
import slowapi
from slowapi.middleware import SlowAPIMiddleware
limiter = slowapi.Limiter(key_func=None)
app.state.limiter = limiter

@limiter.limit("5/minute", error_message="no")
async def home(request): ...
""",
        {
            (1, "import slowapi"),
            (2, "SlowAPIMiddleware"),
            (3, "Limiter"),
            (3, "key_func="),
            (6, "limit"),
            (6, "error_message="),
        },
    ),
    "fastapi-limiter": (
        """\
from fastapi_limiter import FastAPILimiter
from fastapi_limiter.depends import RateLimiter

async def start():
    await FastAPILimiter.init(None)
""",
        {(1, "FastAPILimiter"), (2, "RateLimiter"), (5, "init")},
    ),
    "django-ratelimit": (
        """\
from django_ratelimit.decorators import ratelimit
RATELIMIT_ENABLE = False
REST = {"RATELIMIT_VIEW": "shop.views.limited"}

class Views:
    @ratelimit(key="ip", rate="5/m", block=True)
    def post(self, request): ...
""",
        {
            (1, "ratelimit"),
            (2, "RATELIMIT_ENABLE"),
            (3, "RATELIMIT_VIEW"),
            (6, "ratelimit"),
        },
    ),
    "Django REST framework": (
        """\
from rest_framework.throttling import UserRateThrottle
REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_RATES": {"user": "1000/day"},
}
class Burst(UserRateThrottle): ...
""",
        {(1, "UserRateThrottle"), (3, "DEFAULT_THROTTLE_RATES")},
    ),
    "limits": (
        """\
import limits
from limits.strategies import MovingWindowRateLimiter
class Gate:
    def __init__(self, storage):
        self.window = MovingWindowRateLimiter(storage)
    def may_pass(self):
        return self.window.hit(limits.parse("10/minute"), "ada")
""",
        {(1, "import limits"), (2, "MovingWindowRateLimiter"), (7, "hit"), (7, "parse")},
    ),
}


@pytest.mark.parametrize("package", PROGRAMS)
def test_each_use_is_found_with_its_line(package: str, tmp_path: Path, command: Command) -> None:
    program, expected = PROGRAMS[package]
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    uses = command.json()["uses"]
    assert {(use["line"], use["found"]) for use in uses} == expected
    assert {use["package"] for use in uses} == {package}
    assert all(use["write"] and use["file"] == str(tmp_path / "app.py") for use in uses)


FLASK = "from flask_limiter import Limiter\nfrom shop import ada\nlimiter = Limiter(ada)\n"
SLOWAPI = FLASK.replace("flask_limiter", "slowapi")
DJANGO = "from django_ratelimit.decorators import ratelimit\nRATES = UNSAFE = None\n\n"


@pytest.mark.parametrize(
    ("program", "write"),
    [
        (f"{FLASK}@limiter.limit('1/day')", "@limits.limit('1/day')"),
        (
            f"{FLASK}@limiter.limit('10 per hour,2/minute', key_func=ada, cost=2)",
            "@limits.limit('10 per hour; 2/minute', id=ada, cost=2)",
        ),
        (
            f"{FLASK}@limiter.limit(RATE, key_func=util.get_remote_address, methods=['GET'])",
            "@limits.limit(RATE, methods=['GET'])",
        ),
        (
            f"{FLASK}@limiter.shared_limit('1/day', scope='shop')",
            "@limits.shared('1/day', scope='shop')",
        ),
        (
            f"{SLOWAPI}@limiter.limit('5/minute', ada)",
            "dependencies=[Depends(RateLimit('5/minute', id=ada))]",
        ),
        (f"{DJANGO}@ratelimit(key='ip', rate='5/m')", "@limit('5/m')"),
        (
            f"{DJANGO}@ratelimit(key='user_or_ip', rate='100/10s', method=['GET'], block=False)",
            "@limit('100/10s', id=by_user, methods=['GET'], mode='shadow')",
        ),
        (
            f"{DJANGO}@ratelimit('shop', 'header:x-key', '5/m')",
            "@limit.shared('5/m', id=by_header('X-Key'), scope='shop')",
        ),
        (
            f"{DJANGO}@ratelimit(key='ip', rate='5/m', method=UNSAFE)",
            "@limit('5/m', methods=['POST', 'PUT', 'PATCH', 'DELETE'])",
        ),
        (
            f"{DJANGO}@ratelimit(key='post:name', rate=RATES)",
            "@limit(RATES, id=lambda request: request.POST.get('name'))",
        ),
    ],
)
def test_decorators_are_written_with_their_arguments(
    program: str, write: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "app.py").write_text(f"{program}\ndef view(): ...\n", encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    uses = command.json()["uses"]
    (found,) = [use["write"] for use in uses if use["line"] == 4]
    assert found.partition(", below")[0].partition(" on ")[0].partition(", from")[0] == write


@pytest.mark.parametrize(
    "decorator",
    [
        "limiter.limit('5/month')",
        "limiter.limit(lambda: '5/day')",
        "limiter.limit(*RATES)",
        "ratelimit(key=lambda group, request: 'ada', rate='5/m')",
        "ratelimit(key='shop.views.key', rate='5/m')",
        "ratelimit(key='ip', rate=lambda group, request: '5/m')",
        "ratelimit(key='ip', rate='5/m', method=methods())",
    ],
)
def test_decorators_that_only_the_program_knows_have_hints(
    decorator: str, tmp_path: Path, command: Command
) -> None:
    imports = "from django_ratelimit.decorators import ratelimit\n" + FLASK
    program = f"{imports}@{decorator}\ndef view(): ...\n"
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    uses = [use for use in command.json()["uses"] if use["line"] == 5]
    hint = "@limit('5/m')" if "ratelimit" in decorator else "@limits.limit(...)"
    assert any(use["write"].startswith(hint) for use in uses)


@pytest.mark.parametrize(
    ("package", "program", "write"),
    [
        (
            "flask_limiter",
            "Limiter(ada, default_limits=['1/day'])",
            "limits.default(..., id=per_route())",
        ),
        (
            "slowapi",
            "Limiter(ada, default_limits=['1/day'])",
            "FastAPI(dependencies=[Depends(RateLimit(..., id=per_route()))])",
        ),
        ("flask_limiter", "Limiter(key_func=get_remote_address)", "limits = Penstock("),
        ("slowapi", "util.Limiter(key_func=util.get_remote_address)", "install("),
    ],
)
def test_arguments_of_an_extension_are_written_for_its_framework(
    package: str, program: str, write: str, tmp_path: Path, command: Command
) -> None:
    imports = f"import {package} as util\nfrom {package} import Limiter\n"
    (tmp_path / "app.py").write_text(f"{imports}{program}\n", encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    uses = command.json()["uses"]
    assert any(use["write"].startswith(write) for use in uses)
    assert not any(use["found"] == "key_func=" for use in uses)


@pytest.mark.parametrize(
    ("theirs", "ours", "write"),
    [
        ("RATELIMIT_APPLICATION", by_address, "PENSTOCK_DEFAULT"),
        ("RATELIMIT_DEFAULT", per_route(), "limits.default(..., id=per_route())"),
    ],
)
def test_default_limits_of_flask_limiter_admit_the_same_when_written_here(
    theirs: str, ours: Any, write: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "config.py").write_text(f"{theirs} = '2 per day'\n", encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    assert command.json()["uses"][0]["write"].startswith(write)

    def statuses(app: flask.Flask) -> list[int]:
        for path in ("a", "b"):
            app.add_url_rule(f"/{path}", path, lambda: "page")
        return [
            app.test_client().get(path, environ_base={"REMOTE_ADDR": client}).status_code
            for client in ("203.0.113.7", "203.0.113.8")
            for path in ("/a", "/b", "/b", "/b")
        ]

    former, app = flask.Flask("former"), flask.Flask("app")
    former.config |= {theirs: "2 per day", "RATELIMIT_STORAGE_URI": "memory://"}
    Limiter(get_remote_address, app=former)
    Penstock(app).default("2 per day, fixed window", id=ours)
    assert statuses(app) == statuses(former)


def test_names_are_found_by_their_full_paths_and_before_their_objects(
    tmp_path: Path, command: Command
) -> None:
    program = """\
import limits
class Gate:
    def may_pass(self):
        return self.window.hit(self.rate, "ada")
    def start(self, url):
        storage = limits.storage.storage_from_string(url)
        self.window = limits.strategies.MovingWindowRateLimiter(storage)
"""
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    assert {(use["line"], use["found"]) for use in command.json()["uses"]} == {
        (1, "import limits"),
        (4, "hit"),
        (6, "storage_from_string"),
        (7, "MovingWindowRateLimiter"),
    }


def test_functions_that_decide_have_no_hints_of_decorators(
    tmp_path: Path, command: Command
) -> None:
    program = (
        "from django_ratelimit.core import is_ratelimited\n"
        "limited = is_ratelimited(request, group='shop', key='ip', rate='5/m')\n"
    )
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    uses = command.json()["uses"]
    assert {(use["line"], use["found"]) for use in uses} == {
        (1, "is_ratelimited"),
        (2, "is_ratelimited"),
    }


def test_objects_are_followed_to_the_modules_that_import_them(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "extensions.py").write_text(
        "from flask_limiter import Limiter\nlimiter = Limiter()\n", encoding="utf-8"
    )
    views = "from extensions import limiter\n@limiter.limit('1/s')\ndef view(): ...\n"
    (tmp_path / "views.py").write_text(views, encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path)) == 1
    assert f"{tmp_path}/views.py:2: flask-limiter: limit\n" in command.out


@pytest.mark.parametrize(
    "program",
    [
        "from flask_limiter import RequestLimit",
        "from flask_limiter.extension import LimiterKey",
        "from django_ratelimit import UNSAFE",
        "from limits import RateLimitItemPerMinute",
        "from limits.storage import RedisStorage",
    ],
)
def test_imports_without_a_counterpart_are_found(
    program: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    (use,) = command.json()["uses"]
    assert use["found"] == program.rpartition(" ")[2]


def test_module_of_the_program_that_is_called_limits_is_not_the_package(
    tmp_path: Path, command: Command
) -> None:
    program = "from limits import MAX_UPLOAD\nfrom limits.models import Quota\n"
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path)) == 0


def test_projects_without_other_limiters_have_no_hints(tmp_path: Path, command: Command) -> None:
    own = "from penstock.flask import Penstock\nlimits = Penstock()\nlimits.default('1/s')\n"
    (tmp_path / "app.py").write_text(own, encoding="utf-8")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/other.py").write_text("import slowapi\n", encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path)) == 0
    assert "1 file read" in command.out


def test_file_that_is_no_python_is_reported_and_the_others_are_read(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "a.py").write_text("print 'Python 2'\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("import slowapi\n", encoding="utf-8")
    assert command.run("migrate-check", str(tmp_path)) == 1
    assert "a.py" in command.err
    assert "b.py:1: slowapi" in command.out
    assert "1 file read, 1 left out" in command.out
    assert command.run("migrate-check", str(tmp_path), "--json") == 1
    assert command.json()["left_out"] == [str(tmp_path / "a.py")]
    assert command.run("migrate-check", str(tmp_path / "none")) == 2


@pytest.mark.parametrize(
    "package",
    # fastapi-limiter is not among the packages that the benchmarks install.
    [package for package in PACKAGES if package.name != "fastapi-limiter"],
    ids=lambda package: package.name,
)
def test_names_of_the_table_are_in_the_source_of_the_package(package: Package) -> None:
    spec = importlib.util.find_spec(package.modules[0].partition(".")[0])
    assert spec is not None
    assert spec.origin is not None
    files = Path(spec.origin).parent.rglob("*.py")
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    found = set(re.findall(r"\w+", source))
    names = [*package.names, *package.settings]
    assert [name for name in names if name not in found] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_names_of_the_table_are_on_the_page(package: Package, pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs/coming-from.md").read_text(encoding="utf-8")
    found = set(re.findall(r"\w+", page))
    assert [name for name in [*package.names, *package.settings] if name not in found] == []
