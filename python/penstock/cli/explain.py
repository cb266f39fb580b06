"""`penstock explain`: the limit that applies to an id, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import penstock
from penstock.cli.errors import FAULT, CommandError
from penstock.cli.limits import load_limits
from penstock.web.messages import describe_limit, format_duration

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["EXAMPLES", "add_arguments", "run"]

_MINUTE_NS: Final = 60_000_000_000
_DAY_NS: Final = 86_400_000_000_000

EXAMPLES: Final = """\
examples:
  penstock explain limits.yaml OrdersPerAddress 203.0.113.7
  penstock explain limits.yaml OrdersPerAddress 10.1.2.3 --overrides overrides.yaml --json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("limits", help="the limits file")
    parser.add_argument("name", help="the name of a limit")
    parser.add_argument("id", help="the id of a client")
    parser.add_argument("--overrides", help="the overrides file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    """Explain which limit applies."""
    limits = load_limits(options.limits, options.overrides)
    try:
        explanation = limits.explain(options.name, options.id)
    except penstock.Error as error:
        raise CommandError(str(error), FAULT) from error
    limit = explanation.limit
    admitted = _numbers(limit)
    facts = {
        "name": explanation.name,
        "id": explanation.id,
        "limit": describe_limit(limit),
        "algorithm": limit.algorithm,
        "rule": explanation.rule,
        "file": explanation.file,
        "line": explanation.line,
        "bucket_key": explanation.bucket_key,
    }
    if options.json:
        print(json.dumps(facts | admitted, ensure_ascii=False))
        return 0
    location = "" if explanation.file is None else f"{explanation.file}:{explanation.line}"
    rows = {key.replace("_", " "): value for key, value in facts.items() if key != "line"}
    rows["file"] = location
    if admitted:
        interval = format_duration(admitted["interval_ns"])
        rows["at once"] = f"{admitted['at_once']:,}"
        rows["per day"] = f"{admitted['per_day']:,}"
        rows["at most"] = f"{admitted['worst_in_interval']:,} in any {interval}"
    rows = {name: value for name, value in rows.items() if value}
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    return 0


def _numbers(limit: penstock.Limit) -> dict[str, int]:
    """Return how much a limit admits: at once, per day, and at worst in an interval."""
    match limit.algorithm:
        case "token-bucket":
            interval = limit.period_ns
            once, day = limit.burst, _DAY_NS // limit.emission_interval_ns
            worst = limit.burst + interval // limit.emission_interval_ns
        case "leaky-bucket":
            interval = _MINUTE_NS
            once, day = limit.size, _DAY_NS * limit.drip_size // limit.drip_rate_ns
            worst = limit.size + (interval // limit.drip_rate_ns + 1) * limit.drip_size
        case "fixed-window":
            interval = limit.period_ns
            once, day = limit.count, limit.count * _DAY_NS // limit.period_ns
            worst = 2 * limit.count
        case "fixed-rate-window":
            interval = limit.period_ns
            admitted = limit.count + limit.burst
            once, day = limit.burst + 1, admitted * _DAY_NS // limit.period_ns
            worst = limit.count + 2 + 2 * limit.burst
        case _:
            return {}
    names = ("at_once", "per_day", "interval_ns", "worst_in_interval")
    return dict(zip(names, (once, day, interval, worst), strict=True))
