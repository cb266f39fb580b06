"""What the commands that simulate have in common: judge, find, answer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import penstock
from penstock.cli.errors import FAULT, WRONG_USE, Refused
from penstock.cli.output import tell
from penstock.simulate import Simulator, Trace, recommend, simulate, traffic
from penstock.simulate.log import LogError, read_log
from penstock.simulate.log.reader import joined
from penstock.simulate.report.findings import Finding, admits_of, finding_of
from penstock.simulate.report.optional import drawing_library
from penstock.simulate.report.page import Report
from penstock.simulate.report.tally import Tally
from penstock.simulate.report.text import limits_in_words, moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.cli.selection import Asked
    from penstock.simulate import Recommendation
    from penstock.simulate.log import Chunk, LogReader

__all__ = ["answer_log", "answer_trace", "invented"]

_COLUMNS: Final = ("allowed", "retry_after_ns")


def invented(
    kind: str, *, rate: float, duration: str, clients: int, seed: int, size: int, every: str
) -> Trace:
    """Invent traffic, whose name says how to have the same again.

    Raises:
        ValueError: A number out of range.
    """
    if seed < 0:
        raise ValueError(f"seed must be at least 0, found {seed}")
    match kind:
        case "bursts":
            trace = traffic.bursts(size, every, duration, clients, seed)
        case "diurnal":
            trace = traffic.diurnal(rate, duration, clients, seed)
        case "attack":
            trace = traffic.attack(rate, duration, clients, seed)
        case _:
            trace = traffic.poisson(rate, duration, clients, seed)
    pace = f"{size} every {every}" if kind == "bursts" else f"{rate:g} a second"
    trace.name = f"{kind}: {pace} for {duration}, clients: {clients:,}, seed: {seed}"
    return trace


def answer_trace(asked: Asked, trace: Trace, *, report: str | None, is_for_program: bool) -> int:
    """Simulate one limit over a trace, and tell what came of it."""
    _make_ready(report)
    try:
        found = finding_of(simulate(asked.limits, trace, name=asked.name))
    except penstock.Error as error:
        raise Refused(str(error), FAULT) from error
    # Alone, it needs no other name than its own.
    answer = Report(findings=[found], source=f"invented, {trace.name}")
    tell(answer, sys.stdout, sys.stderr, is_for_program=is_for_program)
    _write(answer, report)
    return 0


def answer_log(
    every: Sequence[Asked],
    logs: str | Sequence[str],
    reading: Mapping[str, Any],
    *,
    report: str | None,
    is_for_program: bool,
    is_to_recommend: bool,
) -> int:
    """Judge the events of a log part by part, in little memory, and tell what came of it."""
    _make_ready(report)
    kept: list[Chunk] | None = [] if is_to_recommend else None
    try:
        reader = read_log(logs, **reading)
        try:
            findings = _judged(reader, every, kept)
        finally:
            # Whoever stops it midway leaves no file open and no bar on the terminal.
            reader.close()
        recommendation = None if kept is None else _recommended(reader, kept)
    except LogError as error:
        # A file that is not there, or an option that says what no log has.
        is_misused = error.file is None or isinstance(error.__cause__, OSError)
        status = WRONG_USE if is_misused else FAULT
        raise Refused(str(error), status) from error
    except penstock.Error as error:
        raise Refused(str(error), FAULT) from error
    answer = Report(
        findings=findings,
        source=", ".join(reader.report.files),
        log=reader.report,
        recommendation=recommendation,
        name=every[0].name,
    )
    tell(answer, sys.stdout, sys.stderr, is_for_program=is_for_program)
    _write(answer, report)
    return 0


def _judged(reader: LogReader, every: Sequence[Asked], kept: list[Chunk] | None) -> list[Finding]:
    simulators = [Simulator(each.limits, each.name) for each in every]
    tallies = [Tally() for _ in every]
    for chunk in reader:
        part = Trace.from_codes(chunk.times, chunk.codes, reader.clients, chunk.costs)
        for simulator, tally in zip(simulators, tallies, strict=True):
            try:
                tally.add(simulator.feed(part, columns=_COLUMNS))
            except penstock.CostTooHigh as error:
                raise Refused(f"{error}; {_first_of_cost(part, error.cost)}", FAULT) from error
        if kept is not None:
            kept.append(chunk)
    findings = [
        Finding(
            called=each.called,
            asked=limits_in_words(each.limits, each.name),
            admits=admits_of(each.limits, each.name),
            overview=tally.overview(),
        )
        for each, tally in zip(every, tallies, strict=True)
    ]
    return findings if len(findings) > 1 else [replace(findings[0], called="")]


def _first_of_cost(part: Trace, cost: int) -> str:
    place = 0 if part.costs is None else int((part.costs == cost).argmax())
    code = 0 if part.codes is None else int(part.codes[place])
    when = moment(int(part.times[place]))
    return f"the first event of that cost is of {part.clients[code]!r}, at {when}"


def _recommended(reader: LogReader, kept: list[Chunk]) -> Recommendation:
    times, codes, costs = joined(kept)
    trace = Trace.from_codes(times, codes, reader.clients, costs)
    return recommend(trace)


def _make_ready(report: str | None) -> None:
    """Find out before a long reading whether a page can be written after it."""
    if report is None:
        return
    try:
        drawing_library("matplotlib", "--report")
    except ImportError as error:
        raise Refused(str(error), WRONG_USE) from error
    folder = Path(report).absolute().parent
    if not folder.is_dir():
        raise Refused(f"--report: there is no folder {folder}", WRONG_USE)
    if Path(report).is_dir():
        raise Refused(f"--report: {report} is a folder, and must be a file", WRONG_USE)


def _write(answer: Report, report: str | None) -> None:
    if report is not None:
        answer.write(report)
