"""The command line: `penstock`, also `python -m penstock`.

Results go to standard output, errors to standard error. The exit status is 0, 1 if the input has
faults, or 2 for wrong use.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import penstock
from penstock._cli.errors import WRONG_USE, CommandError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


# The status that shells report for a program that was interrupted.
_INTERRUPTED: Final = 130


class _Module(Protocol):
    """The module of a command."""

    EXAMPLES: str

    def add_arguments(self, parser: ArgumentParser, /) -> None: ...

    def run(self, options: Namespace, /) -> int: ...


class Command(NamedTuple):
    """One command; its module in `penstock._cli` has the same name, with underscores.

    Attributes:
        name: Its name.
        summary: What it does, for the list of commands.
    """

    name: str
    summary: str

    def module(self) -> _Module:
        """Import the module of the command, which may need optional libraries."""
        return cast("_Module", import_module(f"penstock._cli.{self.name.replace('-', '_')}"))


COMMANDS: Final = (
    Command("check", "validate a limits file"),
    Command("explain", "show which limit applies to an id, and why"),
    Command("replay", "simulate limits on the traffic of an access log"),
    Command("store", "reset the buckets of a store"),
)
"""The commands, in the order of the list of commands."""


def _parser(used: str | None) -> ArgumentParser:
    """Create the parser, with the arguments of the selected command."""
    parser = ArgumentParser(prog="penstock", description="Rate limits for Python programs.")
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        added = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary.capitalize()}.",
            formatter_class=RawDescriptionHelpFormatter,
        )
        if command.name == used:
            module = command.module()
            module.add_arguments(added)
            added.epilog = module.EXAMPLES
            added.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = None
    try:
        options = _parser(next(iter(arguments), None)).parse_args(arguments)
        if isinstance(sys.stdout, TextIOWrapper):
            # Not every terminal and not every pipe has the characters of ids and arrows.
            sys.stdout.reconfigure(errors="backslashreplace")
        status: int = options.run(options)
        # Without an output, as in a service, there is nothing to flush.
        print(end="", flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`), which is not an error. Output that
        # Python still flushes at exit goes to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CommandError as error:
        if error.problems and options is not None and options.json:
            problems = [problem.to_dict() for problem in error.problems]
            print(json.dumps({"problems": problems}))
        else:
            print(error, file=sys.stderr)
        return error.status
    except (ImportError, OSError) as error:
        # An optional library or a file is missing.
        print(error, file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status
