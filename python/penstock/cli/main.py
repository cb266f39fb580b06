"""The command line: `penstock`, also `python -m penstock`.

Results go to standard output, faults to standard error. The exit status is 0, 1 for a fault that
was looked for and found, 2 for wrong use.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

import penstock
from penstock.cli import replay, simulate, store
from penstock.cli.errors import FAULT, WRONG_USE, Refused
from penstock.demo import run as run_demo
from penstock.web.messages import describe_limit, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "Command", "main"]

_MINUTE_NS: Final = 60_000_000_000
_DAY_NS: Final = 86_400_000_000_000
# As shells say of a program that a signal ended.
_INTERRUPTED: Final = 130


class Command(NamedTuple):
    """One command; a new one is a line in `COMMANDS`.

    Attributes:
        name: What is typed.
        summary: What it does, for the list of commands.
        add_arguments: Adds what it takes.
        run: Does it, and gives the exit status.
        examples: How it is typed, for its own help.
    """

    name: str
    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    examples: str = ""


def _load(options: Namespace) -> penstock.Limits | None:
    """Load the files; `None` where they have faults, which are then told."""
    try:
        return penstock.Limits.load(options.limits, options.overrides)
    except penstock.ConfigError as error:
        problems = error.problems or (str(error),)
        if options.json:
            print(json.dumps({"problems": problems}, ensure_ascii=False))
        else:
            print(*problems, sep="\n", file=sys.stderr)
        return None


def _take_check(parser: ArgumentParser) -> None:
    parser.add_argument("limits", help="the limits file")
    parser.add_argument("overrides", nargs="?", help="the overrides file")
    parser.add_argument("--json", action="store_true", help="answer for a program")


def _check(options: Namespace) -> int:
    limits = _load(options)
    if limits is None:
        return FAULT
    if options.json:
        print(json.dumps({"problems": [], "limits": list(limits)}, ensure_ascii=False))
    else:
        number = len(limits)
        print(f"{options.limits}: {number} limit{'s' if number != 1 else ''}, no faults")
    return 0


def _take_explain(parser: ArgumentParser) -> None:
    parser.add_argument("limits", help="the limits file")
    parser.add_argument("name", help="the name of a limit")
    parser.add_argument("id", help="who is asking")
    parser.add_argument("--overrides", help="the overrides file")
    parser.add_argument("--json", action="store_true", help="answer for a program")


def _explain(options: Namespace) -> int:
    limits = _load(options)
    if limits is None:
        return FAULT
    try:
        why = limits.explain(options.name, options.id)
    except penstock.Error as error:
        print(error, file=sys.stderr)
        return FAULT
    place = "" if why.file is None else f"{why.file}:{why.line}"
    facts = {
        "name": why.name,
        "id": why.id,
        "limit": describe_limit(why.limit),
        "algorithm": why.limit.algorithm,
        "rule": why.rule,
        "place": place,
        "bucket key": why.bucket_key,
        **_numbers(why.limit),
    }
    if options.json:
        print(json.dumps(facts, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            if value != "":
                shown = f"{value:,}" if isinstance(value, int) else value
                print(f"{name:<{width}}  {shown}")
    return 0


def _numbers(limit: penstock.Limit) -> dict[str, int]:
    """Say how much a limit admits: at once, in a day, and at worst in a stretch of time."""
    match limit.algorithm:
        case "token-bucket":
            stretch = limit.period_ns
            once, day = limit.burst, _DAY_NS // limit.emission_interval_ns
            worst = limit.burst + stretch // limit.emission_interval_ns
        case "leaky-bucket":
            stretch = _MINUTE_NS
            once, day = limit.size, _DAY_NS * limit.drip_size // limit.drip_rate_ns
            worst = limit.size + (stretch // limit.drip_rate_ns + 1) * limit.drip_size
        case "fixed-window":
            stretch = limit.period_ns
            once, day = limit.count, limit.count * _DAY_NS // limit.period_ns
            worst = 2 * limit.count
        case "fixed-rate-window":
            stretch = limit.period_ns
            admitted = limit.count + limit.burst
            once, day = limit.burst + 1, admitted * _DAY_NS // limit.period_ns
            worst = limit.count + 2 + 2 * limit.burst
        case _:
            return {}
    return {"at once": once, "a day": day, f"worst in any {format_duration(stretch)}": worst}


def _take_nothing(_: ArgumentParser) -> None:
    pass


def _demo(_: Namespace) -> int:
    if find_spec("flask") is None:
        print("the demo is a Flask app: pip install 'penstock[flask]'", file=sys.stderr)
        return FAULT
    run_demo(sys.stdout)
    return 0


COMMANDS: Final = (
    Command("check", "find the faults of a limits file", _take_check, _check),
    Command("explain", "say which limit applies to an id, and why", _take_explain, _explain),
    Command(
        "simulate",
        "say what a limit makes of invented traffic",
        simulate.add_arguments,
        simulate.run,
        simulate.EXAMPLES,
    ),
    Command(
        "replay",
        "say what a limit would have done to an access log",
        replay.add_arguments,
        replay.run,
        replay.EXAMPLES,
    ),
    Command("store", "look into a store from outside", store.add_arguments, store.run),
    Command("demo", "serve an example app, and show what its clients see", _take_nothing, _demo),
)
"""The commands, in the order in which they are listed."""


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="penstock", description="Rate limits for Python programs.")
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        added = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary.capitalize()}.",
            epilog=command.examples,
            formatter_class=RawDescriptionHelpFormatter,
        )
        command.add_arguments(added)
        added.set_defaults(run=command.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; give the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # A reader that has seen enough (`| head`) is no fault. What Python still writes as it ends
        # goes to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Refused as refused:
        print(refused, file=sys.stderr)
        return refused.status
    except OSError as error:
        print(error, file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status
