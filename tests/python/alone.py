"""Run blocks of code that were copied from the docs, each in a process of its own.

Reads a JSON list of blocks from standard input, and writes those that fail: their title and error.
The frameworks are imported once, and each block runs in a child process, which begins with what
they define and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import django
import flask  # noqa: F401  imported before the children start
import starlette.routing  # noqa: F401
from django.conf import settings

# A project's settings, which are there before its views.
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "penstock.django"],
    PENSTOCK={"LIMITS": {}},
    USE_TZ=True,
)
django.setup()

import django.contrib.admin  # noqa: E402

import penstock.django.drf  # noqa: E402
import penstock.fastapi  # noqa: E402
import penstock.flask  # noqa: E402, F401


def fails(block: dict[str, Any]) -> str:
    """Run a block in a child process, and return its error, or an empty string."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, run(block).encode())
        # The end of the interpreter would be that of the whole program.
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        error = answer.read()
    os.waitpid(child, 0)
    return error


def run(block: dict[str, Any]) -> str:
    folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for name, text in block["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
    # A table that no other run uses, and that is removed with the folder.
    code = re.sub(r"shm://(?=\w)", f"shm://{folder}/", block["code"])
    names = {"__name__": "__main__", **{name: [] for name in block["lists"]}}
    try:
        exec(compile(code, block["title"], "exec"), names)  # noqa: S102  from the docs
    except Exception as error:  # noqa: BLE001  any error is reported
        return f"{type(error).__name__}: {error}"
    return ""


errors = ((block["title"], fails(block)) for block in json.load(sys.stdin))
sys.stdout.write("".join(f"{title}: {error}\n" for title, error in errors if error))
