"""`penstock check`: validate a limits file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from penstock._cli.errors import FAULT, CommandError
from penstock._cli.limits import add_file_options, load_limits
from penstock._display import pluralize
from penstock._validation import did_you_mean
from penstock.errors import ConfigProblem

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from penstock import Limits


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
    problems = tuple(_overrides_without_default(limits, options.overrides))
    if problems:
        raise CommandError("\n".join(problems), FAULT, problems)
    if options.json:
        print(json.dumps({"problems": [], "limits": list(limits)}))
    else:
        counts = [f"{options.limits}: {pluralize(len(limits), 'limit')}"]
        if options.overrides is not None:
            overrides = sum(limits.override_counts().values())
            counts.append(f"{options.overrides}: {pluralize(overrides, 'override')}")
        print(*counts, "no errors", sep=", ")
    return 0


def _overrides_without_default(limits: Limits, file: str | None) -> Iterator[ConfigProblem]:
    """Yield each name of overrides whose limit does not exist: all other ids would be unlimited."""
    known = [name for name in limits if limits.default(name) is not None]
    for name in limits:
        if name not in known:
            message = (
                f"no limit has this name; {did_you_mean(name, known)}; if only these ids are "
                f"limited, add `{name}: {{algorithm: unlimited}}` to the limits file"
            )
            problem = ConfigProblem(f"{file}: {name}: {message}")
            problem.file, problem.limit_name, problem.message = file, name, message
            yield problem
