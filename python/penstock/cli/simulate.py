"""`penstock simulate`: a limit on synthetic traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import penstock
from penstock.cli.errors import FAULT, WRONG_USE, CommandError
from penstock.cli.limits import add_limit_options, add_worker_option, selected_limit
from penstock.cli.output import check_report_file, print_report
from penstock.simulate import Simulator, Trace, traffic
from penstock.simulate.report.page import Report

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


EXAMPLES: Final = """\
examples:
  penstock simulate --limit "60/minute, burst 20" --rate 5 --clients 3
  penstock simulate --limits limits.yaml --name Searches --traffic bursts
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_limit_options(parser)
    add_worker_option(parser)
    group = parser.add_argument_group("traffic (the same seed gives the same traffic)")
    group.add_argument(
        "--traffic", choices=("poisson", "bursts", "diurnal", "attack"), default="poisson",
        help="the kind of traffic (default: poisson)",
    )  # fmt: skip
    group.add_argument(
        "--rate", type=float, metavar="N",
        help="events per second of all clients together (default: 10; not for bursts)",
    )  # fmt: skip
    group.add_argument(
        "--duration", default="1h", metavar="TIME",
        help="the length of the traffic, such as 90s or 24h (default: 1h)",
    )  # fmt: skip
    group.add_argument(
        "--clients", type=int, default=10, metavar="N", help="number of clients (default: 10)"
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the traffic (default: 0)"
    )
    group.add_argument(
        "--size", type=int, metavar="N",
        help="events in a burst, for bursts (default: 10)",
    )  # fmt: skip
    group.add_argument(
        "--every", metavar="TIME",
        help="time between two bursts of a client, for bursts (default: 1m)",
    )  # fmt: skip


def synthetic_traffic(options: Namespace) -> Trace:
    """Generate the traffic that the options describe; its name describes it too.

    Raises:
        ValueError: A number is out of range, or an option is for another kind of traffic.
    """
    is_bursts = options.traffic == "bursts"
    for option in ("rate",) if is_bursts else ("size", "every"):
        if getattr(options, option) is not None:
            kinds = "poisson, diurnal or attack" if is_bursts else "bursts"
            raise ValueError(f"--{option} is for --traffic {kinds}, found {options.traffic}")
    rate = 10.0 if options.rate is None else options.rate
    size = 10 if options.size is None else options.size
    every = "1m" if options.every is None else options.every
    duration, clients, seed = options.duration, options.clients, options.seed
    if seed < 0:
        raise ValueError(f"seed must be at least 0, found {seed}")
    pace = f"{rate:g} per second"
    if is_bursts:
        trace = traffic.bursts(size, every, duration, clients, seed)
        pace = f"{size} every {every}"
    else:
        trace = getattr(traffic, options.traffic)(rate, duration, clients, seed)
    trace.name = f"{options.traffic}: {pace} for {duration}, clients: {clients:,}, seed: {seed}"
    return trace


def run(options: Namespace) -> int:
    """Simulate the limit and print the result."""
    selected = selected_limit(options)
    try:
        trace = synthetic_traffic(options)
    except (MemoryError, OverflowError, ValueError) as error:
        raise CommandError(str(error), WRONG_USE) from error
    check_report_file(options.report)
    try:
        simulator = Simulator(selected.limits, selected.name, workers=options.workers)
        simulator.feed(trace, columns=["allowed"])
    except penstock.Error as error:
        raise CommandError(str(error), FAULT) from error
    except ValueError as error:
        raise CommandError(str(error), WRONG_USE) from error
    report = Report(results=[simulator.limit_result()], source=f"synthetic, {trace.name}")
    print_report(report, as_json=options.json, file=options.report)
    return 0
