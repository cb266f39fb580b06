"""`penstock demo`: an example app, and the responses that its clients receive."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.cli.errors import FAULT, WRONG_USE, CommandError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


EXAMPLES: Final = """\
examples:
  penstock demo
  penstock demo --workers 4
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="serve the app by N processes that share one store (default: 1)",
    )


def run(options: Namespace) -> int:
    """Run the example app and print the responses to its clients."""
    if options.workers < 1:
        raise CommandError(f"--workers must be at least 1, found {options.workers}", WRONG_USE)
    if options.workers > 1 and sys.platform == "win32":
        raise CommandError("--workers needs Linux or macOS", FAULT)
    if find_spec("flask") is None:
        message = (
            "the demo needs Flask, which is not installed; run `pip install 'penstock[flask]'`"
        )
        raise CommandError(message, FAULT)
    from penstock.demo import run as run_demo  # noqa: PLC0415  needs Flask

    run_demo(sys.stdout, options.workers)
    return 0
