"""`penstock check`: validate a limits file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from penstock.cli.limits import load_limits
from penstock.display import pluralize

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


EXAMPLES: Final = """\
examples:
  penstock check limits.yaml
  penstock check limits.yaml overrides.yaml --json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("limits", help="the limits file")
    parser.add_argument("overrides", nargs="?", help="the overrides file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    """Load the files; raise their errors as a `CommandError`."""
    limits = load_limits(options.limits, options.overrides)
    if options.json:
        print(json.dumps({"problems": [], "limits": list(limits)}, ensure_ascii=False))
    else:
        print(f"{options.limits}: {pluralize(len(limits), 'limit')}, no faults")
    return 0
