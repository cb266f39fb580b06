"""`penstock store`: inspect, watch or clear a store."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

import penstock
from penstock._core import inspect_store, open_existing
from penstock.cli.errors import FAULT, WRONG_USE, CommandError
from penstock.cli.limits import add_file_options, load_limits
from penstock.cli.store_view import Report, lines, report
from penstock.display import pluralize
from penstock.explain import reset_bucket, reset_lines

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator


EXAMPLES: Final = """\
examples:
  penstock store inspect shm://myapp
  penstock store inspect shm://myapp --limits limits.yaml --ids 203.0.113.7
  penstock store top shm://myapp
  penstock store clear shm://myapp
  penstock store clear shm://myapp PerAddress 203.0.113.7 --limits limits.yaml
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    inspect = actions.add_parser("inspect", help="print the statistics and the slowest buckets")
    _add_view_options(inspect)
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(action=_inspect)
    top = actions.add_parser("top", help="print the same every two seconds, with rates")
    _add_view_options(top)
    top.add_argument("--interval", type=float, default=2.0, help="seconds between two readings")
    top.add_argument("--once", action="store_true", help="print it once")
    top.set_defaults(action=_top, json=False)
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


def _add_view_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", help="the store, such as shm://shop or redis://localhost"
    )
    add_file_options(parser, required=False)
    parser.add_argument(
        "--ids", nargs="+", default=[], metavar="ID", help="clients whose buckets to show"
    )


def _report(options: Namespace, open_store: Callable[[], penstock.Limiter]) -> Report:
    if options.ids and options.limits is None:
        raise CommandError("--ids needs --limits: a store keeps hashes of ids", WRONG_USE)
    return report(open_store(), options.ids)


def _inspect(options: Namespace, open_store: Callable[[], penstock.Limiter]) -> None:
    shown = _report(options, open_store)
    if options.json:
        print(json.dumps(shown, ensure_ascii=False))
    else:
        print(*lines(shown), sep="\n")


def _top(options: Namespace, open_store: Callable[[], penstock.Limiter]) -> None:
    if not options.interval > 0:
        raise CommandError("--interval must be above 0", WRONG_USE)
    clock = penstock.SystemClock()
    # Opened for each reading, because a store may be replaced meanwhile.
    shown, read_at = _report(options, open_store), clock.now()
    if options.once:
        print(*lines(shown), sep="\n")
        return
    try:
        with _screen() as show:
            show("\n".join(lines(shown)))
            while True:
                time.sleep(options.interval)  # noqa: TID251  a view for people
                before, before_at = shown, read_at
                shown, read_at = _report(options, open_store), clock.now()
                show("\n".join(lines(shown, before, read_at - before_at)))
    except KeyboardInterrupt:
        # The usual way to quit.
        return


@contextmanager
def _screen() -> Iterator[Callable[[str], None]]:
    """Yield a function that replaces the shown text, or appends to it in a pipe."""
    if not sys.stdout.isatty():
        yield lambda text: print(text, end="\n\n", flush=True)
        return
    try:
        live, text = (import_module(f"rich.{name}") for name in ("live", "text"))
    except ImportError:
        # Clear the screen, move the cursor to its start, and print the text.
        yield lambda text: print(f"\x1b[2J\x1b[H{text}", flush=True)
        return
    with live.Live(screen=True, auto_refresh=False) as screen:
        # As a Text object, in which rich's markup has no effect.
        yield lambda shown: screen.update(text.Text(shown), refresh=True)


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
        buckets = inspect_store(limiter, 0)["buckets"]
        answer = input(f"Reset all {buckets:,} buckets of {options.url}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            return 0, "nothing was reset"
    cleared = limiter.reset_all()
    return cleared, f"reset {pluralize(cleared, 'bucket')}"


def _clear_bucket(options: Namespace, limiter: penstock.Limiter) -> tuple[int, str]:
    facts = reset_bucket(limiter, options.name, options.id)
    return int(bool(facts["was_used"])), "".join(reset_lines(facts))
