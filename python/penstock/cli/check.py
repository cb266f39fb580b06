"""`penstock check`: validate a limits file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from penstock.cli.limits import add_file_options, load_limits
from penstock.display import pluralize

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


EXAMPLES: Final = """\
examples:
  penstock check --limits limits.yaml
  penstock check --limits limits.yaml --overrides overrides.yaml --json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_file_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    """Load the files; raise their errors as a `CommandError`."""
    limits = load_limits(options.limits, options.overrides)
    if options.json:
        print(json.dumps({"problems": [], "limits": list(limits)}, ensure_ascii=False))
    else:
        found = [f"{options.limits}: {pluralize(len(limits), 'limit')}"]
        if options.overrides is not None:
            overrides = sum(limits.override_counts().values())
            found.append(f"{options.overrides}: {pluralize(overrides, 'override')}")
        print(*found, "no faults", sep=", ")
    return 0
