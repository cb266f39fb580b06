"""The example app and its demo."""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from flask_app import demo

import penstock

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = demo.HERE


@pytest.fixture(scope="module")
def shown() -> str:
    """The output of the demo in a file."""
    out = io.StringIO()
    demo.run(out)
    return out.getvalue()


def test_demo_shows_what_clients_see(shown: str) -> None:
    assert 'RateLimit-Policy: "OrdersPerAddress";q=3;w=6' in shown
    assert 'RateLimit: "OrdersPerAddress";r=2;t=2' in shown
    assert shown.count("429 TOO MANY REQUESTS") == 2
    assert "Retry-After: " in shown
    assert (
        '"detail": "Too many orders for 203.0.113.7: at most 1 per 2 seconds, 3 at once.' in shown
    )
    # The override: fifty at once for the partner's office.
    assert 'RateLimit-Policy: "OrdersPerAddress";q=50;w=30' in shown
    # After the wait the first client is served again, on its one new token.
    recovered = shown.partition("4. After Retry-After")[2].partition("5. ")[0]
    assert "200 OK" in recovered
    assert 'RateLimit: "OrdersPerAddress";r=0;' in recovered


def test_demo_fits_a_terminal_and_has_no_colors_in_a_file(shown: str) -> None:
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown


def test_workers_of_the_demo_share_each_limit_exactly() -> None:
    out = io.StringIO()
    demo.run(out, workers=4)
    shown = out.getvalue()
    # The same as from one process.
    assert 'RateLimit: "OrdersPerAddress";r=2;t=2' in shown
    assert shown.count("429 TOO MANY REQUESTS") == 2
    workers = re.findall(r"worker (\d): +(\d+) allowed, +(\d+) refused", shown)
    assert len(workers) > 1
    assert sum(int(allowed) for _, allowed, _ in workers) == 30
    assert "together: 30 allowed, 30 refused" in shown


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_demo_is_coloured_on_a_terminal() -> None:
    out = Terminal()
    demo.run(out)
    assert "\x1b[32m200 OK\x1b[0m" in out.getvalue()
    assert "\x1b[31m429 TOO MANY REQUESTS\x1b[0m" in out.getvalue()


def test_last_line_of_the_demo_works_as_typed(root: Path) -> None:
    program = [sys.executable, "-m", "flask_app.demo"]
    environ = {"PYTHONPATH": "examples", "PATH": os.defpath}
    done = subprocess.run(
        program, capture_output=True, text=True, check=True, cwd=root, env=environ
    )
    assert done.stderr == ""
    assert "429 TOO MANY REQUESTS" in done.stdout
    # The routes of the same application, without serving it.
    *flask, last = shlex.split(done.stdout.splitlines()[-1])
    assert last == "run"
    routes = subprocess.run(
        [*flask, "routes"], capture_output=True, text=True, check=True, cwd=root, env=environ
    )
    assert "/orders" in routes.stdout


def test_files_of_the_example_have_no_faults() -> None:
    limits = penstock.Limits.load(EXAMPLE / "limits.yaml", EXAMPLE / "overrides.yaml")
    assert set(limits) == {"OrdersPerAddress", "LoginsPerAddress", "LoginsPerUser"}


def test_example_runs_in_its_folder() -> None:
    app = runpy.run_path(str(EXAMPLE / "app.py"), run_name="app")["app"]
    client = app.test_client()
    assert client.get("/orders").json == {"orders": ["tea", "bread"]}
    assert client.get("/search?q=tea").json == {"found": [], "wanted": "tea"}
    right = {"user": "ada", "password": "correct horse"}
    wrong = {"user": "ada", "password": "guess"}
    tried = [client.post("/login", data=form).status_code for form in (wrong, right, wrong, right)]
    assert tried == [401, 200, 401, 429]
