"""`manage.py penstock`, and the app as Django loads it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import programs
import pytest
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from penstock.django import limit
from penstock.identity import shared

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import DjangoSite

FILE = """\
PerAddress: {burst: 2, count: 2, period: 1m, id: ipAddress}
PerUser: {burst: 5, count: 5, period: 1h}
"""
OVERRIDES = """\
- PerUser: {burst: 50, count: 50, period: 1h, ids: [ada]}
"""
# Calls that the settings of a project may make before apps are loaded.
SETTINGS = """
import sys
from penstock.django import PenstockMiddleware, exempt, limit
assert "django.contrib.auth" not in sys.modules
from django.apps import apps
from django.conf import settings
assert not apps.ready and not settings.configured
settings.configure(
    PENSTOCK={"DEFAULT": limit("1/minute", methods=["GET"])},
    INSTALLED_APPS=["penstock.django"],
    MIDDLEWARE=["penstock.django.PenstockMiddleware"],
    ROOT_URLCONF=(),
)
import django
django.setup()
from django.core.management import execute_from_command_line
print(apps.get_app_config("penstock").name)
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@pytest.fixture
def folder(site: DjangoSite, tmp_path: Path) -> Path:
    """A site with limits files."""
    (tmp_path / "limits.yaml").write_text(FILE, encoding="utf-8")
    (tmp_path / "overrides.yaml").write_text(OVERRIDES, encoding="utf-8")
    site.set(BASE_DIR=tmp_path, PENSTOCK={"LIMITS": "limits.yaml", "OVERRIDES": "overrides.yaml"})
    return tmp_path


def run(*arguments: str) -> tuple[str, str]:
    """Run the command; return its output and its error output."""
    out, err = io.StringIO(), io.StringIO()
    call_command("penstock", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


@pytest.mark.usefixtures("folder")
def test_check_counts_limits_without_faults(site: DjangoSite) -> None:
    site.route("", limit("PerAddress")(hello))
    assert run("check") == ("PENSTOCK: 2 limits, no errors\n", "")
    answer = json.loads(run("check", "--json")[0])
    assert answer == {"problems": [], "limits": ["PerAddress", "PerUser"]}


def test_check_reports_faults_of_files_and_of_views(site: DjangoSite, folder: Path) -> None:
    site.route("orders/", limit("PerAdress")(hello))
    with pytest.raises(CommandError, match=r"/orders/: .*PerAdress") as caught:
        run("check")
    assert caught.value.returncode == 1
    assert "(penstock.E002)" in str(caught.value)
    (folder / "limits.yaml").write_text("A: {burst: 0, count: 1, period: 1s}\n", encoding="utf-8")
    site.set(PENSTOCK={"LIMITS": "limits.yaml"})
    out = io.StringIO()
    with pytest.raises(CommandError, match=r"limits\.yaml:1: A: "):
        call_command("penstock", "check", "--json", stdout=out)
    (problem,) = json.loads(out.getvalue())["problems"]
    assert (problem["line"], problem["limit"], problem["id"]) == (1, "A", "penstock.E001")
    assert problem["file"].endswith("limits.yaml")
    assert problem["message"].startswith("burst")


def test_check_reports_warnings_and_succeeds(site: DjangoSite) -> None:
    site.route("", limit("PerAddress")(hello))
    site.set(MIDDLEWARE=[])
    out, err = run("check")
    assert out == "PENSTOCK: 3 limits, no errors\n"
    assert "(penstock.W002)" in err


@pytest.mark.usefixtures("folder")
def test_show_lists_limits_and_views(site: DjangoSite) -> None:
    from rest_framework.views import APIView  # noqa: PLC0415  once the apps are ready

    from penstock.django.drf import PenstockThrottle  # noqa: PLC0415  as above

    class Api(APIView):
        throttle_classes = (PenstockThrottle,)
        throttle_scope = "20/hour"

    @method_decorator(limit("7/hour", mode="shadow"), name="dispatch")
    class Decorated(View):
        pass

    site.route(
        "orders/", limit("PerAddress", id=shared("192.0.2.7"), cost=2, methods=["POST"])(hello)
    )
    site.route("api/", Api.as_view())
    site.route("decorated/", Decorated.as_view())
    site.route("free/", hello)
    log_in = limit("5/minute", block_for=["1m", "5m"], on_store_error="deny")
    site.route("log-in/", log_in(hello))
    out, _ = run("show")
    assert out.splitlines() == [
        "PerAddress          2 per minute",
        "PerUser             5 per hour",
        "Api                 20 per hour",
        "Decorated.dispatch  7 per hour",
        "hello               5 per minute",
        "",
        "/orders/",
        "    PerAddress: 2 per minute, shared('192.0.2.7'), POST, cost 2",
        "",
        "/api/",
        "    Api: 20 per hour, by_user",
        "",
        "/decorated/",
        "    Decorated.dispatch: 7 per hour, by_address, shadow",
        "",
        "/log-in/",
        "    hello: 5 per minute, by_address, block_for 60 s, 300 s, on_store_error deny",
        "",
        "no view has the limits PerUser",
    ]
    answer = json.loads(run("show", "--json")[0])
    assert list(answer["limits"]) == ["PerAddress", "PerUser", "Api", "Decorated.dispatch", "hello"]
    assert answer["unused"] == ["PerUser"]
    (orders,) = answer["views"]["/orders/"]
    assert (orders["name"], orders["cost"], orders["methods"]) == ("PerAddress", 2, ["POST"])
    (log_ins,) = answer["views"]["/log-in/"]
    assert (log_ins["block_for"], log_ins["numbers"]["at_once"]) == ([60, 300], 5)
    # Requests count under the names that are shown.
    policy = site.get("/decorated/").headers["RateLimit-Policy"]
    assert policy.startswith('"Decorated.dispatch";')


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["penstock", "check"], 0, "PENSTOCK: 0 limits, no errors"),
        (["penstock", "show"], 0, "default: 1 per minute, by_address, GET, HEAD"),
        (["penstock", "explain", "Unknown", "ada"], 1, "CommandError"),
        (["penstock"], 2, "required: COMMAND"),
        (["check"], 0, "no issues"),
    ],
)
def test_project_whose_settings_import_the_decorator(
    arguments: list[str], status: int, expected: str
) -> None:
    program = [sys.executable, "-c", SETTINGS, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith("penstock.django\n")
    assert expected in done.stdout + done.stderr


THROTTLED = """
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["penstock.django"],
    PENSTOCK={"LIMITS": {"A": "1/minute"}},
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_THROTTLE_CLASSES": ["penstock.django.drf.PenstockThrottle"],
        "UNAUTHENTICATED_USER": None,
    },
    ROOT_URLCONF=(),
)
import django
django.setup()
from django.test import RequestFactory
from rest_framework.response import Response
from rest_framework.views import APIView
class Orders(APIView):
    throttle_scope = "A"
    def get(self, request):
        return Response()
print([Orders.as_view()(RequestFactory().get("/")).status_code for _ in range(2)])
"""


def test_throttle_may_be_the_default_of_rest_framework() -> None:
    assert programs.run(THROTTLED) == "[200, 429]\n"


def test_faulty_setting_is_reported_without_a_traceback(site: DjangoSite) -> None:
    site.set(PENSTOCK={"LIMTS": {}})
    for arguments in (["show"], ["explain", "A", "b"], ["check"]):
        with pytest.raises(CommandError, match="'LIMITS'"):
            run(*arguments)


def test_app_has_no_models(site: DjangoSite) -> None:
    from django.apps import apps  # noqa: PLC0415  once they are ready

    config: Any = apps.get_app_config("penstock")
    assert list(config.get_models()) == []
