"""The limits that a command works on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import penstock
from penstock._cli.errors import FAULT, WRONG_USE, CommandError
from penstock._display import UNNAMED
from penstock.errors import ConfigProblem

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


class SelectedLimit(NamedTuple):
    """One limit of a command.

    Attributes:
        title: Its label among several: the file or the rate string.
        limits: All limits of the file, or the limit of the rate string.
        name: The name of the limit.
    """

    title: str
    limits: penstock.Limits | penstock.Limit
    name: str


def add_limit_options(parser: ArgumentParser) -> None:
    """Add the options that select a limit, and those for the output."""
    add_file_options(parser, required=False)
    parser.add_argument(
        "--limit", metavar="LIMIT", help='a limit instead of a file, such as "100/minute, burst 20"'
    )
    parser.add_argument(
        "--name", metavar="NAME", help="the limit to use, if the file has more than one"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--report", metavar="FILE", help="also write an HTML report, such as out.html"
    )


def add_file_options(parser: ArgumentParser, *, required: bool = True) -> None:
    """Add the options for a limits file and its overrides."""
    parser.add_argument("--limits", required=required, metavar="FILE", help="the limits file")
    parser.add_argument("--overrides", metavar="FILE", help="the overrides file")


def load_limits(file: str, overrides: str | None) -> penstock.Limits:
    """Load a limits file and its overrides.

    Raises:
        CommandError: A file has faults, or there is no such file.
        OSError: A file cannot be read.
    """
    for path in filter(None, (file, overrides)):
        if not Path(path).exists():
            raise CommandError(f"{path}: there is no such file", WRONG_USE)
    try:
        return penstock.Limits.load(file, overrides)
    except penstock.ConfigError as error:
        problems = error.problems or (ConfigProblem(error),)
        raise CommandError("\n".join(problems), FAULT, problems) from error


def selected_limit(options: Namespace) -> SelectedLimit:
    """Load the limit that the options select.

    Raises:
        CommandError: The options select no limit or two, or the file has faults or no such limit.
        OSError: A file cannot be read.
    """
    if (options.limit is None) == (options.limits is None):
        raise CommandError(
            "pass one limit, such as --limit 60/minute, or a limits file with --limits FILE",
            WRONG_USE,
        )
    if options.limit is None:
        return select_limit(options.limits, options.overrides, options.name)
    if options.overrides is not None:
        raise CommandError("--overrides needs --limits; it has no use with --limit", WRONG_USE)
    name = UNNAMED if options.name is None else options.name
    try:
        limit = penstock.Limit.parse(options.limit)
    except penstock.Error as error:
        raise CommandError(f"--limit: {error}", WRONG_USE) from error
    return SelectedLimit(options.limit, limit, name)


def is_limit_text(text: str) -> bool:
    """Whether an argument is a rate string, such as `100/minute`."""
    try:
        penstock.Limit.parse(text)
    except penstock.Error:
        return False
    return True


def select_limit(file: str, overrides: str | None, name: str | None) -> SelectedLimit:
    """Load one limit of a file.

    Raises:
        CommandError: The file has faults or no such limit.
        OSError: The file cannot be read.
    """
    limits = load_limits(file, overrides)
    names = list(limits)
    if name is None and len(names) != 1:
        found = f"found {', '.join(names)}" if names else "found no limits"
        raise CommandError(f"{file}: pass --name to select a limit; {found}", WRONG_USE)
    if name is None:
        return SelectedLimit(file, limits, names[0])
    try:
        _ = limits[name]
    except penstock.UnknownLimit as error:
        raise CommandError(f"{file}: {error}", FAULT) from error
    return SelectedLimit(file, limits, name)
