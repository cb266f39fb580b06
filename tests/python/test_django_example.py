"""The example site, in a separate process with its own settings."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Runs each script of its argument in a child process, with the site as it is at the start.
BEGIN = """
import json, sys, traceback
sys.path.insert(0, "examples")
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "django_app.settings"
import django
import penstock
from django.conf import settings
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
settings.PENSTOCK["CLOCK"] = penstock.ManualClock()
from django.core.management import call_command
from django.test.utils import setup_databases, setup_test_environment
django.setup()
setup_test_environment()
setup_databases(0, interactive=False)
from django.contrib.auth.models import User
from django.test import Client
ada = User.objects.create_superuser("ada", password="correct horse")
def ask(path, *, times=1, client=None, **options):
    return [(client or Client()).get(path, **options) for _ in range(times)]
def log_in(path, name, password, times=1):
    data = {"username": name, "password": password}
    return [Client().post(path, data).status_code for _ in range(times)]
def statuses(responses):
    return [response.status_code for response in responses]
def output_of(script):
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(write, 1)
        try:
            exec(script, globals())
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    with open(read) as output:
        found = output.read()
    os.waitpid(child, 0)
    return found
print(json.dumps({name: output_of(script) for name, script in json.loads(sys.argv[1]).items()}))
"""
PAGES = """
*_, refused = responses = ask("/orders/", times=4, headers={"Accept": "text/html"})
assert statuses(responses) == [200, 200, 200, 429], statuses(responses)
assert refused.headers["Retry-After"] == "2"
assert "<h1>Too many requests</h1>" in refused.text
assert ask("/orders/")[0].headers["Content-Type"] == "application/problem+json"
assert statuses(ask("/orders/", headers={"X-Forwarded-For": "198.51.100.20"})) == [200]
client = Client()
client.force_login(ada)
assert statuses(ask("/prices/", times=6, client=client)) == [200] * 5 + [429]
assert statuses(ask("/prices/")) == [200]
responses = ask("/exports/", times=3)
assert statuses(responses) == [200, 200, 429]
assert '"ExportsPerUser"' in responses[0].headers["RateLimit"]
"""
LOG_INS = """
assert log_in("/login/", "ada", "correct horse", 4) == [302] * 4
assert log_in("/login/", "ada", "guess", 3) == [401, 401, 429]
assert log_in("/login/", " ADA ", "guess") == [429]
assert log_in("/login/", "", "guess") == [400]
assert statuses(ask("/login/")) == [200]
assert log_in("/admin/login/", "ada", "correct horse", 3) == [302] * 3
assert log_in("/admin/login/", "grace", "guess", 19) == [200] * 18 + [429]
"""
EDITS = """
from django.core.exceptions import ValidationError
from django_app.models import LimitOverride
from django_app.overrides import refresher, rows
client = Client()
client.force_login(ada)
form = {"name": "OrdersPerAddress", "client": "192.0.2.1", "burst": 50, "count": 100}
form |= {"period": "1h30m", "comment": "many people", "enabled": "on"}
add = "/admin/shop/limitoverride/add/"
assert client.post(add, form).status_code == 302
faults = {"name": "Unknown"}, {"client": "not an address"}, {"period": "1 moth"}, {"burst": 0}
faults += ({"burst": ""},)
for wrong in faults:
    response = client.post(add, form | {"client": "192.0.2.2"} | wrong)
    assert response.status_code == 200 and "errorlist" in response.text, wrong
assert client.get("/admin/shop/limitoverride/").status_code == 200
print(*rows())
assert (refresher().loads, refresher().skipped_rows) == (1, 0)
policies = Client(REMOTE_ADDR="192.0.2.1").get("/orders/").headers["RateLimit-Policy"]
assert '"OrdersPerAddress";q=50;w=2700' in policies
"""
START = """
from django_app.models import LimitOverride
row = {"burst": 50, "count": 100, "period": "1m", "comment": "many people"}
LimitOverride.objects.create(name="OrdersPerAddress", client="192.0.2.1", **row)
from django_app.overrides import refresher
from django_app.wsgi import application
assert (refresher().is_running, refresher().loads) == (True, 1)
def left(address):
    response = ask("/orders/", headers={"X-Forwarded-For": address})[0]
    _, _, item = response.headers["RateLimit"].partition('"OrdersPerAddress";r=')
    return int(item.partition(";")[0])
assert (left("192.0.2.1"), left("192.0.2.2")) == (49, 2)
client = Client()
client.force_login(ada)
form = {"name": "OrdersPerAddress", "client": "192.0.2.2", "enabled": "on", **row}
assert client.post("/admin/shop/limitoverride/add/", form).status_code == 302
assert left("192.0.2.2") > 40
LimitOverride.objects.get(client="192.0.2.1").delete()
refresher().refresh()
assert left("192.0.2.1") <= 2
refresher().stop()
"""
CHECKS = """
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
call_command("check", fail_level="WARNING")
call_command("penstock", "check")
"""
SCRIPTS = {
    "pages": PAGES,
    "log-ins": LOG_INS,
    "edits": EDITS,
    "start": START,
    "checks": CHECKS,
}


@pytest.fixture(scope="module")
def printed(pytestconfig: pytest.Config) -> dict[str, str]:
    """What each script prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEGIN, json.dumps(SCRIPTS)],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_denied_views_respond_with_a_page(printed: dict[str, str]) -> None:
    assert printed["pages"] == ""


def test_only_failed_logins_count(printed: dict[str, str]) -> None:
    assert printed["log-ins"] == ""


def test_overrides_are_edited_in_the_admin(printed: dict[str, str]) -> None:
    expected = {
        "name": "OrdersPerAddress",
        "id": "192.0.2.1",
        "burst": 50,
        "count": 100,
        "period": "1h30m",
        "comment": "many people",
        "enabled": True,
    }
    assert printed["edits"] == f"{expected}\n"


def test_overrides_apply_at_start_and_after_an_edit(printed: dict[str, str]) -> None:
    assert printed["start"] == ""


def test_migrations_match_the_models_and_checks_pass(printed: dict[str, str]) -> None:
    assert "PENSTOCK: 6 limits, no errors" in printed["checks"]
    assert "Traceback" not in printed["checks"]
