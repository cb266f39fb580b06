"""`penstock store`: inspect or clear a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.errors import WRONG_USE, CommandError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


EXAMPLES: Final = ""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    inspect = actions.add_parser("inspect", help="print the store's statistics")
    inspect.add_argument("url", metavar="URL", help="the store")
    clear = actions.add_parser("clear", help="reset buckets")
    clear.add_argument("url", metavar="URL", help="the store")


def run(options: Namespace) -> int:
    """Refuse the store: only a process itself can reach its memory store."""
    if options.url.partition(":")[0] == "memory":
        raise CommandError(
            f"{options.url} is in the memory of one process and cannot be reached from another; "
            "call Limiter.stats() or Limiter.reset(name, id) there",
            WRONG_USE,
        )
    raise CommandError(f"a store must be memory://, found {options.url}", WRONG_USE)
