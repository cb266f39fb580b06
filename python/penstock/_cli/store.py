"""`penstock store clear`: reset the buckets of a store."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import penstock
from penstock._cli.errors import FAULT, WRONG_USE, CommandError
from penstock._cli.limits import add_file_options, load_limits
from penstock._core import open_existing
from penstock._display import pluralize
from penstock._explain import reset_bucket, reset_lines

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

EXAMPLES: Final = """\
examples:
  penstock store clear shm://myapp
  penstock store clear shm://myapp PerAddress 203.0.113.7 --limits limits.yaml
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    clear = actions.add_parser("clear", help="reset all buckets, or one")
    clear.add_argument(
        "url", metavar="URL", help="the store, such as shm://shop or redis://localhost"
    )
    clear.add_argument("name", nargs="?", help="the limit of the bucket; all buckets by default")
    clear.add_argument("id", nargs="?", help="the id of the bucket's client")
    add_file_options(clear, required=False)
    clear.add_argument("--yes", action="store_true", help="reset all buckets without asking")
    clear.add_argument("--json", action="store_true", help="print JSON")
    clear.set_defaults(action=_clear)


def run(options: Namespace) -> int:
    """Run the action on a store that exists."""
    limits: penstock.Limits | dict[str, str] = {}
    if options.limits is not None:
        limits = load_limits(options.limits, options.overrides)
    elif options.overrides is not None:
        raise CommandError("--overrides needs --limits", WRONG_USE)
    try:
        options.action(options, partial(open_existing, options.url, limits))
    except penstock.ConfigError as error:
        raise CommandError(str(error), WRONG_USE) from error
    except penstock.Error as error:
        raise CommandError(str(error), FAULT) from error
    return 0


def _clear(options: Namespace, open_store: Callable[[], penstock.Limiter]) -> None:
    if options.name is None:
        cleared, message = _clear_all(options, open_store())
    elif options.id is None or options.limits is None:
        raise CommandError("pass --limits, and a limit's name and an id", WRONG_USE)
    else:
        cleared, message = _clear_bucket(options, open_store())
    print(json.dumps({"cleared": cleared}) if options.json else message)


def _clear_all(options: Namespace, limiter: penstock.Limiter) -> tuple[int, str]:
    if not options.yes:
        if not sys.stdin.isatty():
            raise CommandError("pass --yes to reset all buckets", WRONG_USE)
        count = limiter.stats()["buckets"]
        buckets = "all buckets" if count is None else f"all {count:,} buckets"
        answer = input(f"Reset {buckets} of {options.url}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            return 0, "nothing was reset"
    cleared = limiter.reset_all()
    return cleared, f"reset {pluralize(cleared, 'bucket')}"


def _clear_bucket(options: Namespace, limiter: penstock.Limiter) -> tuple[int, str]:
    facts = reset_bucket(limiter, options.name, options.id)
    return int(bool(facts["was_used"])), "".join(reset_lines(facts))
