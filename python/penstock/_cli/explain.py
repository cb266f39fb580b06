"""`penstock explain`: the limit that applies to an id, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import penstock
from penstock._cli.errors import FAULT, CommandError
from penstock._cli.limits import add_file_options, load_limits
from penstock._explain import explain, fact_lines

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


EXAMPLES: Final = """\
examples:
  penstock explain OrdersPerAddress 203.0.113.7 --limits limits.yaml
  penstock explain Orders ada --limits limits.yaml --overrides overrides.yaml
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", help="the name of a limit")
    parser.add_argument("id", help="the id of a client")
    add_file_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    """Explain which limit applies."""
    limits = load_limits(options.limits, options.overrides)
    try:
        facts = explain(limits, options.name, options.id)
    except penstock.Error as error:
        raise CommandError(str(error), FAULT) from error
    if options.json:
        print(json.dumps(facts))
    else:
        print(*fact_lines(facts), sep="\n")
    return 0
