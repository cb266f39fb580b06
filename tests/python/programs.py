"""Python programs that tests run in another process."""

from __future__ import annotations

import subprocess
import sys


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
