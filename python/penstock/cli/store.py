"""`penstock store`: look into a store from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.errors import WRONG_USE, Refused

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add what the command takes."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    inspect = actions.add_parser("inspect", help="say what it holds")
    inspect.add_argument("url", metavar="URL", help="the store")
    clear = actions.add_parser("clear", help="make buckets as never used")
    clear.add_argument("url", metavar="URL", help="the store")


def run(options: Namespace) -> int:
    """Say why there is nothing to see."""
    if options.url.partition(":")[0] == "memory":
        raise Refused(
            f"{options.url} lives in the memory of the process that made it, and no other process "
            "can look into it; there, Limiter.stats() and Limiter.reset(name, id) would do",
            WRONG_USE,
        )
    raise Refused(f"a store must be memory://, found {options.url}", WRONG_USE)
