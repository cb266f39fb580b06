"""`penstock replay`: limits on the traffic of an access log."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Final

import penstock
from penstock._cli.errors import FAULT, WRONG_USE, CommandError
from penstock._cli.limits import (
    SelectedLimit,
    add_limit_options,
    is_limit_text,
    select_limit,
    selected_limit,
)
from penstock._cli.output import check_files, print_report
from penstock._core import parse_duration
from penstock._display import pluralize, printable
from penstock.simulate import Simulator, recommend
from penstock.simulate.check import check
from penstock.simulate.clients import match_clients
from penstock.simulate.format import format_value, list_clients
from penstock.simulate.log import LogError, read_log
from penstock.simulate.log.reader import concat_chunks
from penstock.simulate.report.page import Report, write_text
from penstock.simulate.run import as_trace

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from penstock.simulate.log import Chunk, LogReader
    from penstock.simulate.recommendation import Recommendation


# Options that are those of `read_log` unchanged.
_LOG_OPTIONS: Final = (
    "format", "duration", "duration_unit", "ended", "time", "tz", "where", "max_bad",
    "trusted_proxies", "hops",
)  # fmt: skip
# An option of Python in a message, such as `id=` or `where='status=200'`.
_OPTION: Final = re.compile(r"\b([a-z_]+)=(?=['.,:; ]|$)")
# A client with more than this share of all requests is not denied more than the least share of its
# own without a question, nor several of them more than this share together.
_LARGE: Final = 0.01
_LEAST: Final = 0.001
EXAMPLES: Final = """\
examples:
  penstock replay /var/log/nginx/access.log* --limit "60/minute, burst 20"
  penstock replay access.log --limits limits.yaml --name Pages --report out.html
  penstock replay access.log --limits limits.yaml --name Logins --where path=/login
  penstock replay app.jsonl --limit 1000/hour --id user --cost tokens
  tail -n 1000 app.log | penstock replay - --limit 5/s --format '%h %t "%r" %D'
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "logs", nargs="+", metavar="LOG",
        help="an access log, compressed or not; several are read as one; - is standard input",
    )  # fmt: skip
    add_limit_options(parser)
    parser.add_argument(
        "--compare", action="append", default=[], metavar="LIMITS",
        help="a limits file to compare with, with the same overrides or its own "
        "(limits.yaml+overrides.yaml), or a rate string; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--recommend",
        action="store_true",
        help="recommend limits, strict to lenient, and say whom each denies; keeps all events in "
        "memory",
    )
    parser.add_argument(
        "--write", metavar="FILE",
        help="for --recommend: write a new limits file with the chosen limit",
    )  # fmt: skip
    parser.add_argument(
        "--accept", action="extend", type=_clients, default=[], metavar="CLIENT",
        help="for --write: a client that the limit may deny although it has more than 1%% of all "
        "requests, or they lose more than that together; as for --exclude; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--choose", type=int, metavar="ROW", help="for --recommend: choose another row of the table"
    )
    parser.add_argument(
        "--fail-if-denied", type=_share, metavar="SHARE",
        help="exit with status 1, and list the clients, if a larger share of the events is denied, "
        "such as 0.1%%; for known good traffic",
    )  # fmt: skip
    parser.add_argument(
        "--period", type=_periods, metavar="TIMES",
        help="for --recommend: the period of the limit (default: that of the evaluated limit), or "
        "several with commas",
    )  # fmt: skip
    parser.add_argument(
        "--exclude", action="extend", type=_clients, default=[], metavar="CLIENT",
        help="for --recommend: clients that do not count: an id, a network, a pattern with * "
        "and ?, or @FILE with one of these on each line; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--protect", action="extend", type=_clients, default=[], metavar="CLIENT",
        help="clients that must not be denied, as for --exclude; the exit status is 1 if the "
        "limit denies them something; may be repeated",
    )  # fmt: skip
    log = parser.add_argument_group("the log")
    log.add_argument(
        "--format", default="auto",
        help="auto, combined, common, ingress, traefik, w3c, alb, elb, s3, haproxy, jsonl, or a "
        "format string of nginx or Apache",
    )  # fmt: skip
    log.add_argument(
        "--id", default="address", metavar="FIELDS",
        help="the field of the client id; several with commas, or none for one shared bucket "
        "(default: address)",
    )  # fmt: skip
    log.add_argument("--cost", metavar="FIELD", help="the field of the cost (default: 1 each)")
    log.add_argument(
        "--duration", metavar="FIELD",
        help="the field of the time that a request took, to count requests in flight",
    )  # fmt: skip
    log.add_argument(
        "--duration-unit", choices=("s", "ms", "us", "ns"),
        help="unit of durations, if nothing states it",
    )  # fmt: skip
    log.add_argument(
        "--ended",
        action="store_true",
        help="for --duration: the time of a line is the end of its request, as nginx writes it",
    )
    log.add_argument("--time", metavar="FIELD", help="the field of the time, if not detected")
    log.add_argument(
        "--tz", default="UTC", metavar="ZONE", help="zone of times without one (default: UTC)"
    )
    log.add_argument(
        "--where", action="append", default=[], metavar="CONDITION",
        help="only events such as path=/api/*, status!=4xx, method=GET,POST, client=192.0.2.*, "
        "time>=2026-11-20T10:00 or time<2026-11-21; may be repeated",
    )  # fmt: skip
    log.add_argument(
        "--trusted-proxies", default="", metavar="NETWORKS",
        help="as in production: networks of your proxies, with commas; the client is then found "
        "from the address and X-Forwarded-For",
    )  # fmt: skip
    log.add_argument(
        "--hops", type=int, default=0, metavar="N",
        help="instead: the number of proxies in front of the application",
    )  # fmt: skip
    log.add_argument(
        "--max-bad", type=_share, default=0.01, metavar="SHARE",
        help="largest share of lines that may be left out, such as 1%% or 0.01 (the default)",
    )  # fmt: skip


def _share(text: str) -> float:
    """Parse a share, such as `0.1%` or `0.001`.

    Raises:
        ArgumentTypeError: The text is no share.
    """
    number, percent, rest = text.partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    # A share of 1 would never fail, and is meant as one percent.
    if rest.strip() or not 0 <= share <= 1 or (share == 1 and not percent):
        raise ArgumentTypeError(f"must be a share such as 0.1% or 0.001, found {text!r}")
    return share


def _periods(text: str) -> list[str]:
    """Check lengths of time, separated by commas.

    Raises:
        ArgumentTypeError: An argument is no length of time.
    """
    periods = [each.strip() for each in text.split(",")]
    try:
        for each in periods:
            parse_duration(each, "--period")
    except penstock.Error as error:
        # The name of the option is in front of it anyway.
        raise ArgumentTypeError(str(error).removeprefix("--period: ")) from error
    return periods


def _clients(text: str) -> list[str]:
    """Return the clients that an option names, one or those of a file; text after `#` is a comment.

    Raises:
        ArgumentTypeError: The file cannot be read, or names no client.
    """
    if not text.startswith("@"):
        if Path(text).is_file():
            raise ArgumentTypeError(f"{text} is a file; pass @{text} to read it")
        return [text.strip()]
    try:
        lines = Path(text[1:]).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"cannot read {text[1:]}: {error}") from error
    bare = (re.sub(r"(?:^|\s)#.*", "", line).strip() for line in lines)
    if not (clients := [line for line in bare if line]):
        raise ArgumentTypeError(f"{text[1:]} names no client")
    return clients


def run(options: Namespace) -> int:
    """Simulate the limits on the log, part by part, and print the results."""
    _check(options)
    selected = _selected(options)
    check_files(options)
    chunks: list[Chunk] | None = [] if options.recommend else None
    try:
        simulators = [
            Simulator(each.limits, each.name, skip_invalid=True, denies_excess=True)
            for each in selected
        ]
        reader = _open_log(options)
        try:
            notes = _simulate(reader, selected, simulators, chunks)
        finally:
            # After an interrupt, close the files.
            reader.close()
    except LogError as error:
        # A missing file or a wrong option is wrong use.
        is_wrong_use = error.file is None or isinstance(error.__cause__, OSError)
        raise CommandError(_message(error), WRONG_USE if is_wrong_use else FAULT) from error
    except penstock.Error as error:
        raise CommandError(str(error), FAULT) from error
    except ValueError as error:
        # A limit on requests in flight needs an option.
        what = str(error).partition(";")[0]
        raise CommandError(f"{what}; pass --duration, its field", WRONG_USE) from error
    recommended, problems = _recommend(options, chunks, selected[0])
    denied = None
    if options.fail_if_denied is not None or (options.protect and not options.recommend):
        denied, not_found = check(simulators[0], options.fail_if_denied, options.protect)
        problems += [f"{selected[0].title}: {problem}" for problem in denied]
        notes += [f"{id}: protected, but not in the log" for id in not_found]
    titles = [""] if len(selected) == 1 else [each.title for each in selected]
    simulated = dict(zip(titles, simulators, strict=True))
    source = ", ".join(reader.report.files)
    report = Report(simulated, source, reader.report, recommended, denied)
    print_report(report, as_json=options.json, file=options.report, notes=notes)
    if options.write is not None and recommended is not None:
        problems += _write(options, selected[0], recommended)
    if problems:
        raise CommandError("\n".join(problems), FAULT)
    return 0


def _check(options: Namespace) -> None:
    """Check the options before a log is read.

    Raises:
        CommandError: An option needs another one, a log is given twice or is a limits file, or the
            file to write exists.
    """
    for option in ("write", "choose"):
        if getattr(options, option) is not None and not options.recommend:
            raise CommandError(f"--{option} needs --recommend", WRONG_USE)
    if options.recommend and options.limit is None and options.limits is None:
        raise CommandError(
            "--recommend begins with any limit, such as --limit 60/minute: only its algorithm and "
            "its period matter",
            WRONG_USE,
        )
    if options.write is not None and Path(options.write).is_file():
        raise CommandError(f"{options.write} exists; write another file, or remove it", WRONG_USE)
    files = [Path(log).resolve() for log in options.logs]
    for index, log in enumerate(options.logs):
        if files[index] in files[:index]:
            raise CommandError(f"{log} is given twice; its events would count twice", WRONG_USE)
        if log.endswith((".yaml", ".yml")):
            raise CommandError(f"{log} looks like a limits file; use --limits {log}", WRONG_USE)


def _message(error: Exception) -> str:
    """Return the message of an error with the command's options in place of those of Python."""
    first, *lines = str(error).split("\n")
    first = _OPTION.sub(lambda match: f"--{match[1].replace('_', '-')} ", first)
    # No blank before a comma or at the end.
    return "\n".join([re.sub(r"(--[a-z-]+) (?=[.,:; ]|$)", r"\1", first), *lines])


def _selected(options: Namespace) -> list[SelectedLimit]:
    """Load the limits to compare; the overrides are those of all files."""
    first = selected_limit(options)
    selected = [first]
    # A rate string has no name that could select a limit in other files.
    name = options.name if options.limits is None else first.name
    for value in options.compare:
        file, separator, overrides = value.partition("+")
        if not Path(file).exists() and is_limit_text(value):
            other = SelectedLimit(value, penstock.Limit.parse(value), first.name)
        else:
            other = select_limit(file, overrides if separator else options.overrides, name)
        if value in {each.title for each in selected}:
            raise CommandError(f"--compare {value}: this limit is compared already", WRONG_USE)
        selected.append(other._replace(title=value))
    return selected


def _recommend(
    options: Namespace, chunks: list[Chunk] | None, selected: SelectedLimit
) -> tuple[Recommendation | None, list[str]]:
    """Recommend a limit; return it and problems."""
    if chunks is None:
        return None, []
    trace = as_trace(concat_chunks(chunks))
    # Not kept twice.
    chunks.clear()
    try:
        recommended = recommend(
            trace,
            options.period,
            exclude=options.exclude,
            protect=options.protect,
            limits=selected.limits,
            name=selected.name,
        )
    except (penstock.Error, ValueError) as error:
        return None, [f"no limit can be recommended for {selected.name}: {_message(error)}"]
    except KeyError as error:
        # The text of a KeyError has quotes around it.
        raise CommandError(f"--{error.args[0]}", WRONG_USE) from error
    try:
        return recommended if options.choose is None else recommended.choose(options.choose), []
    except ValueError as error:
        raise CommandError(f"--choose: {error}", WRONG_USE) from error


def _write(options: Namespace, selected: SelectedLimit, recommended: Recommendation) -> list[str]:
    """Write a limits file with the chosen limit.

    Nothing is written if it denies something of a large client that is not accepted, or much of
    many; returns this problem.
    """
    rows = [row for row in recommended.denied_clients().rows() if row["denied_share"] > _LEAST]
    is_accepted, _ = match_clients(options.accept, [row["id"] for row in rows])
    rows = [row for row, is_known in zip(rows, is_accepted, strict=True) if not is_known]
    lost = sum(row["event_share"] * row["denied_share"] for row in rows)
    what = f"{format_value('denied_share', lost)} of all requests, those of"
    if lost <= _LARGE:
        what = "clients with more than 1 % of all requests:"
        rows = [row for row in rows if row["event_share"] > _LARGE]
    if rows:
        losses = [
            (row["id"], f"{format_value('denied_share', row['denied_share'])} of its requests")
            for row in rows
        ]
        problem = (
            f"{options.write} is not written: {selected.name} denies {what} "
            f"{list_clients(losses)}; protect them with --protect, choose another row with "
            "--choose, or pass --accept with their names"
        )
        return [problem]
    lines = [f"# {printable(line)}\n" for line in recommended.explain().splitlines()]
    write_text(options.write, "".join([*lines, recommended.yaml(selected.name)]))
    return []


def _open_log(options: Namespace) -> LogReader:
    return read_log(
        options.logs if len(options.logs) > 1 else options.logs[0],
        id=None if options.id == "none" else options.id.split(","),
        cost=options.cost,
        **{name: getattr(options, name) for name in _LOG_OPTIONS},
    )


def _simulate(
    reader: LogReader,
    selected: Sequence[SelectedLimit],
    simulators: Sequence[Simulator],
    chunks: list[Chunk] | None,
) -> list[str]:
    """Simulate all limits on the log; return notes on events that were left out.

    Keeps the chunks of the log if a list is given.
    """
    for chunk in reader:
        for simulator in simulators:
            simulator.feed(chunk)
        if chunks is not None:
            chunks.append(chunk)
    notes = []
    for each, simulator in zip(selected, simulators, strict=True):
        title = "" if len(selected) == 1 else f"{each.title}: "
        if simulator.invalid:
            notes.append(
                f"{title}{pluralize(simulator.invalid, 'event')} left out because the id is not "
                f"valid for {each.name}, first {simulator.first_invalid!r}"
            )
        if simulator.excess:
            notes.append(
                f"{title}{pluralize(simulator.excess, 'event')} denied because they cost more than "
                "the limit ever admits"
            )
    return notes
