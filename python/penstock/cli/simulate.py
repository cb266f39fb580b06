"""`penstock simulate`: what a limit makes of invented traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.errors import WRONG_USE, Refused
from penstock.cli.selection import add_limit_options, asked_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES: Final = """\
examples:
  penstock simulate --limit "60/minute, burst 20" --rate 5 --clients 3
  penstock simulate limits.yaml --name Searches --traffic bursts --size 8 --every 1m
"""

_KINDS: Final = ("poisson", "bursts", "diurnal", "attack")


def add_arguments(parser: ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("limits", nargs="?", help="the limits file")
    add_limit_options(parser)
    traffic = parser.add_argument_group("traffic, the same for the same seed")
    traffic.add_argument(
        "--traffic", choices=_KINDS, default="poisson", help="its kind (default: poisson)"
    )
    traffic.add_argument(
        "--rate", type=float, default=10.0, metavar="N",
        help="events a second, of all clients together (default: 10; not for bursts)",
    )  # fmt: skip
    traffic.add_argument(
        "--duration",
        default="1h",
        metavar="TIME",
        help="how long, such as 90s or 24h (default: 1h)",
    )
    traffic.add_argument(
        "--clients", type=int, default=10, metavar="N", help="how many come (default: 10)"
    )
    traffic.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="another number, other traffic (default: 0)",
    )
    traffic.add_argument(
        "--size", type=int, default=10, metavar="N",
        help="events in a burst, for bursts (default: 10)",
    )  # fmt: skip
    traffic.add_argument(
        "--every", default="1m", metavar="TIME",
        help="from one burst of a client to its next, for bursts (default: 1m)",
    )  # fmt: skip


def run(options: Namespace) -> int:
    """Simulate, and answer."""
    asked = asked_of(options)
    try:
        from penstock.cli import run  # noqa: PLC0415  needs NumPy, which is an extra
    except ImportError as error:
        raise Refused(str(error), WRONG_USE) from error
    arguments = {
        "kind": options.traffic,
        "rate": options.rate,
        "duration": options.duration,
        "clients": options.clients,
        "seed": options.seed,
        "size": options.size,
        "every": options.every,
    }
    try:
        trace = run.invented(**arguments)
    except (MemoryError, OverflowError, ValueError) as error:
        raise Refused(str(error), WRONG_USE) from error
    return run.answer_trace(asked, trace, report=options.report, is_for_program=options.json)
