"""The checks of a running set-up, behind nginx and under servers with several workers."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from servers import ask, free_port, gunicorn, running, uvicorn, wait_until_it_answers
from shops import DJANGO, FASTAPI, FLASK, shop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LOGGED = """
import logging
logging.basicConfig(filename="log.txt", level=logging.WARNING, format="%(name)s %(message)s")

def answer(client):
    return "hello"
"""
APPS = {"flask": FLASK, "fastapi": FASTAPI, "django": DJANGO}
PAGE = "/orders/ada"
PROXY_FIX = """
from werkzeug.middleware.proxy_fix import ProxyFix
app = ProxyFix(app, x_for=2)
"""
DENYING = """
inner = app

def app(environ, start_response):
    environ["wsgi.multiprocess"] = False
    return inner(environ, start_response)
"""
NGINX = """
daemon off;
pid nginx.pid;
error_log error.txt;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {
        listen 127.0.0.1:OUTSIDE;
        location / {
            proxy_pass http://127.0.0.1:INSIDE;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }
    }
}
"""


@contextmanager
def serving(
    app: str,
    folder: Path,
    options: str = "",
    workers: int = 1,
    *,
    resolves_proxies: bool = False,
    around: str = "",
) -> Iterator[int]:
    """Run an application under its usual server; yield its port."""
    text = shop(APPS[app], limits='"100000/hour"', options=options, answer=LOGGED) + around
    port = free_port()
    command = uvicorn(port, "--workers", str(workers))
    if app != "fastapi":
        command = gunicorn(port, folder, "--workers", str(workers))
        text += PROXY_FIX if resolves_proxies else ""
    elif resolves_proxies:
        command.remove("--no-proxy-headers")
    (folder / "shop.py").write_text(text, "utf-8")
    with running([*command, "shop:app"], folder) as process:
        wait_until_it_answers(process, port)
        yield port


@contextmanager
def nginx_before(inside: int, folder: Path) -> Iterator[int]:
    """Run nginx as the proxy of a port; yield its own port."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    assert program is not None, "the tests need nginx; `make servers` installs it"
    outside = free_port()
    text = NGINX.replace("INSIDE", str(inside)).replace("OUTSIDE", str(outside))
    (folder / "nginx.conf").write_text(text, "utf-8")
    prefix = f"{folder}/"
    command: Sequence[str] = [program, "-p", prefix, "-c", f"{prefix}nginx.conf", "-e", "error.txt"]
    with running(command, folder) as process:
        wait_until_it_answers(process, outside)
        yield outside


def findings(folder: Path) -> set[str]:
    """Return the codes that the checks have logged."""
    log = (folder / "log.txt").read_text("utf-8")
    lines = [line.removeprefix("penstock ") for line in log.splitlines()]
    return {line[:4] for line in lines if "/codes/#" in line}


@pytest.mark.parametrize(
    ("app", "options", "resolves_proxies", "expected"),
    [
        *((app, "", False, {"P001"}) for app in APPS),
        ("flask", "trusted_proxies=['127.0.0.1']", False, set()),
        # The server evaluates the header itself.
        ("flask", "", True, set()),
        ("fastapi", "", True, set()),
    ],
)
def test_proxy_that_is_not_trusted_is_reported(
    app: str, tmp_path: Path, options: str, *, resolves_proxies: bool, expected: set[str]
) -> None:
    with (
        serving(app, tmp_path, options, resolves_proxies=resolves_proxies) as inside,
        nginx_before(inside, tmp_path) as outside,
    ):
        # From another machine: a header with the peer's address is no evidence.
        for _ in range(3):
            assert ask(outside, PAGE, X_Forwarded_For="203.0.113.9")[0].status == 200
        assert findings(tmp_path) == expected
    hint = "trusted_proxies=['127.0.0.1']"
    assert (hint in (tmp_path / "log.txt").read_text("utf-8")) == bool(expected)


@pytest.mark.parametrize(
    ("app", "options", "workers", "around", "expected"),
    [
        *((app, "", 2, "", {"P003"}) for app in APPS),
        # Granian's WSGI workers deny that there are several.
        ("flask", "", 2, DENYING, {"P003"}),
        ("fastapi", "", 1, "", set()),
        ("flask", "expected_processes=2", 2, "", set()),
    ],
)
def test_workers_with_separate_buckets_are_reported(  # noqa: PLR0917  one row of the table
    app: str, tmp_path: Path, options: str, workers: int, around: str, expected: set[str]
) -> None:
    with serving(app, tmp_path, options, workers, around=around) as port:
        # A worker looks at its first request, and again when all others have started.
        for _ in range(250 if expected else 110):
            assert ask(port, PAGE)[0].status == 200
            if expected and findings(tmp_path):
                break
        assert findings(tmp_path) == expected


def test_servers_of_two_applications_are_not_workers_of_one(tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    with serving("fastapi", folders[0]) as first, serving("fastapi", folders[1]) as second:
        for _ in range(110):
            assert ask(first, PAGE)[0].status == ask(second, PAGE)[0].status == 200
    assert [findings(folder) for folder in folders] == [set(), set()]
