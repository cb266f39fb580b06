"""`penstock demo`: an example app, and what its clients see."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.cli.errors import FAULT, CommandError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


EXAMPLES: Final = ""


def add_arguments(_: ArgumentParser) -> None:
    """Add nothing: the command has no arguments."""


def run(_: Namespace) -> int:
    """Run the example app and print what its clients see."""
    if find_spec("flask") is None:
        message = (
            "the demo needs Flask, which is not installed; run `pip install 'penstock[flask]'`"
        )
        raise CommandError(message, FAULT)
    from penstock.demo import run as run_demo  # noqa: PLC0415  needs Flask

    run_demo(sys.stdout)
    return 0
