"""Which limits a command asks about."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import penstock
from penstock.cli.errors import FAULT, WRONG_USE, Refused
from penstock.validation import did_you_mean

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["Asked", "add_limit_options", "asked_of", "loaded"]


class Asked(NamedTuple):
    """One of the limits that a command asks about.

    Attributes:
        called: What it is called among several: the file, or the text.
        limits: All limits of the file, or the limit that stands for one.
        name: Which of them.
    """

    called: str
    limits: penstock.Limits | penstock.Limit
    name: str


def add_limit_options(parser: ArgumentParser) -> None:
    """Add what says which limit."""
    parser.add_argument(
        "--limit", metavar="TEXT", help='a limit in place of a file, such as "100/minute, burst 20"'
    )
    parser.add_argument("--overrides", metavar="FILE", help="the overrides file")
    parser.add_argument(
        "--name", metavar="NAME", help="which limit of the file; may be left out where there is one"
    )
    parser.add_argument("--json", action="store_true", help="answer for a program")
    parser.add_argument(
        "--report", metavar="FILE", help="also write a page that a browser shows, such as out.html"
    )


def asked_of(options: Namespace) -> Asked:
    """Load the limits that the options name.

    Raises:
        Refused: There is none or too much of it, the file has faults, or not this limit.
        OSError: A file cannot be read.
    """
    if (options.limit is None) == (options.limits is None):
        raise Refused("say which limit, either by a limits file or by --limit", WRONG_USE)
    if options.limit is None:
        return loaded(options.limits, options.overrides, options.name)
    if options.overrides is not None:
        raise Refused("--overrides goes with a limits file, and not with --limit", WRONG_USE)
    name = "Limit" if options.name is None else options.name
    try:
        limit = penstock.Limit.parse(options.limit)
    except penstock.Error as error:
        raise Refused(f"--limit: {error}", WRONG_USE) from error
    return Asked(options.limit, limit, name)


def loaded(file: str, overrides: str | None, name: str | None) -> Asked:
    """Load one limit of a file.

    Raises:
        Refused: The file has faults, or not this limit.
        OSError: It cannot be read.
    """
    try:
        limits = penstock.Limits.load(file, overrides)
    except penstock.ConfigError as error:
        raise Refused("\n".join(error.problems or (str(error),)), FAULT) from error
    names = list(limits)
    if name is None and len(names) != 1:
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise Refused(f"{file}: --name must say which limit; {known}", WRONG_USE)
    if name is not None and name not in names:
        raise Refused(f'{file}: no limit is named "{name}"; {did_you_mean(name, names)}', FAULT)
    return Asked(file, limits, names[0] if name is None else name)
