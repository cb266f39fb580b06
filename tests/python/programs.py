"""Python programs that tests run in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run(program: str, *arguments: str, python: tuple[str, ...] = (sys.executable,)) -> str:
    """Run a program to its end, which must not be an error; return what it prints."""
    done = subprocess.run(
        [*python, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_so_in_a_child(check: Callable[[], bool]) -> bool:
    """Return the result of a function in a forked child process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
