"""`penstock replay`: what a limit would have done to the traffic of an access log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.errors import WRONG_USE, Refused
from penstock.cli.selection import add_limit_options, asked_of, loaded

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES: Final = """\
examples:
  penstock replay /var/log/nginx/access.log* --limit "60/minute, burst 20"
  penstock replay access.log --limits limits.yaml --name Pages --report out.html
  penstock replay app.jsonl --limit 1000/hour --id user --cost tokens
  tail -n 100000 app.log | penstock replay - --limit 5/s --format '%h [%t] "%r" %D'
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument(
        "logs", nargs="+", metavar="LOG",
        help="an access log, compressed or not; several are one; - is standard input",
    )  # fmt: skip
    parser.add_argument("--limits", metavar="FILE", help="the limits file")
    add_limit_options(parser)
    parser.add_argument(
        "--compare", action="append", default=[], metavar="FILE",
        help="another limits file, to set beside the first; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--recommend", action="store_true",
        help="look for the smallest limit that denies next to nothing; holds all events in memory",
    )  # fmt: skip
    log = parser.add_argument_group("the log")
    log.add_argument(
        "--format", default="auto",
        help="auto, combined, common, jsonl, csv, parquet, or a format of nginx or Apache",
    )  # fmt: skip
    log.add_argument(
        "--id", default="address", metavar="FIELDS",
        help="who asks: a field, several with commas, or none for all as one (default: address)",
    )  # fmt: skip
    log.add_argument("--cost", metavar="FIELD", help="how much: a field, or a number for all")
    log.add_argument("--time", metavar="FIELD", help="when: a field, where it is not found")
    log.add_argument(
        "--time-unit", choices=("s", "ms", "us", "ns"),
        help="what epochs count, where their size does not tell it",
    )  # fmt: skip
    log.add_argument(
        "--tz", default="UTC", metavar="ZONE", help="of times that name none (default: UTC)"
    )
    log.add_argument(
        "--ipv6-prefix", type=int, default=64, metavar="BITS",
        help="addresses that share so many leading bits are one client (default: 64)",
    )  # fmt: skip
    log.add_argument(
        "--window", type=float, default=60.0, metavar="SECONDS",
        help="how much earlier than one before it a line may be (default: 60)",
    )  # fmt: skip
    log.add_argument(
        "--max-bad", type=float, default=0.01, metavar="SHARE",
        help="the share of lines, 0 to 1, that may be left out (default: 0.01)",
    )  # fmt: skip


def run(options: Namespace) -> int:
    """Replay, and answer."""
    first = asked_of(options)
    every = [first, *(loaded(file, None, first.name) for file in options.compare)]
    try:
        from penstock.cli import run  # noqa: PLC0415  needs NumPy, which is an extra
    except ImportError as error:
        raise Refused(str(error), WRONG_USE) from error
    cost = options.cost
    ids = None if options.id == "none" else tuple(options.id.split(","))
    reading = {
        "format": options.format,
        "id": ids,
        "cost": int(cost) if cost is not None and cost.isdecimal() else cost,
        "time": options.time,
        "time_unit": options.time_unit,
        "tz": options.tz,
        "ipv6_prefix": options.ipv6_prefix,
        "window": options.window,
        "max_bad": options.max_bad,
    }
    return run.answer_log(
        every,
        options.logs if len(options.logs) > 1 else options.logs[0],
        reading,
        report=options.report,
        is_for_program=options.json,
        is_to_recommend=options.recommend,
    )
