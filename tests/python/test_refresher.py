"""Overrides that change while a limiter is in use."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import logging
import sqlite3
import sys
from collections import namedtuple
from threading import Event, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import programs
import pytest
from django.db.models import QuerySet

import penstock
from penstock import ConfigError, Limit, Limits
from penstock.refresher import Refresher

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from conftest import Write

DEFAULTS = """
Orders: {burst: 4, count: 4, period: 1s}
PerAddress: {burst: 4, count: 4, period: 1s, id: ipAddress, number: 7, description: requests}
Searches: {algorithm: leaky-bucket, size: 3, mode: shadow}
"""
OVERRIDES = "- Orders: {burst: 9, count: 9, period: 1s, ids: [grace]}"


class Waits:
    """Waits by advancing a clock, and stops after a number of waits."""

    def __init__(self, clock: penstock.ManualClock, most: int) -> None:
        self.clock = clock
        self.most = most
        self.seconds: list[float] = []
        self._are_over = Event()

    def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        self.clock.advance(seconds)
        if len(self.seconds) > self.most:
            self._are_over.set()
            return True
        return False

    def run_out(self, refresher: Refresher) -> None:
        """Let a refresher wait as often as allowed, and stop it."""
        refresher.start()
        assert self._are_over.wait(60)
        refresher.stop()


AWAY = OSError("the database is away")


class Source:
    """A row that is loaded, except in the calls that fail."""

    def __init__(self, fails_in: Container[int], error: BaseException = AWAY) -> None:
        self.fails_in, self.error = fails_in, error
        self.calls = 0

    def __call__(self) -> list[object]:
        self.calls += 1
        if self.calls in self.fails_in:
            raise self.error
        return [row()]


class Held:
    """Nothing that is loaded, where the last of some calls waits until it is let go."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.inside, self.let_go = Event(), Event()

    def __call__(self) -> list[object]:
        self.calls -= 1
        if self.calls == 0:
            self.inside.set()
            assert self.let_go.wait(60)
        return []


@pytest.fixture
def limiter(clock: penstock.ManualClock) -> penstock.Limiter:
    """A limiter with an override for grace."""
    return penstock.Limiter(Limits.parse(DEFAULTS, OVERRIDES), clock=clock)


def row(**fields: object) -> dict[str, object]:
    """Return a valid row, with some fields replaced."""
    return {"name": "Orders", "id": "ada", "limit": "100/minute", **fields}


def bursts(limiter: penstock.Limiter, *ids: str) -> list[int]:
    """Return the bursts of ids under `Orders`."""
    return [limiter.limits.resolve("Orders", id).burst for id in ids]


def refreshed(limiter: penstock.Limiter | penstock.AsyncLimiter, load: Any) -> Refresher:
    """Load once."""
    refresher = Refresher(limiter, load)
    refresher.refresh()
    return refresher


def test_rows_replace_the_overrides_and_leave_the_defaults(limiter: penstock.Limiter) -> None:
    before = limiter.limits.to_yaml()
    refreshed(limiter, lambda: [row()])
    assert bursts(limiter, "ada", "grace") == [100, 4]
    assert limiter.limits.to_yaml() == before
    assert limiter.limits.explain("PerAddress", "2001:DB8::1").bucket_key == "7:2001:db8::1"


@pytest.mark.parametrize("rows", [[], [row(enabled=False, limit="nonsense"), row(enabled=0)]])
def test_set_without_an_enabled_row_clears(limiter: penstock.Limiter, rows: list[object]) -> None:
    refresher = refreshed(limiter, lambda: rows)
    assert limiter.limits.overrides_to_yaml() is None
    assert (refresher.loads, refresher.failures, refresher.ready) == (1, 0, True)


def sqlite_row() -> sqlite3.Row:
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.row_factory = sqlite3.Row
        columns = "'Orders' as name, 'ada' as id, '100/minute' as 'limit', null as comment"
        found: sqlite3.Row = base.execute(f"select {columns}, 1 as enabled, 'now'").fetchone()
        return found


Named = namedtuple("Named", ["id", "name", "limit"])  # noqa: PYI024  what drivers make of columns


ROWS = {
    "mapping": row(),
    "comment and unknown columns": row(enabled=True, comment="since May", changed_at=object()),
    "whole number for a bool": row(enabled=1, comment=None),
    "limit": row(limit=Limit.parse("100/minute")),
    "fields": row(limit={"burst": 100, "count": 100, "period": "1m"}),
    "columns": {"name": "Orders", "id": b"ada", "burst": 100, "count": 100, "period": 60},
    "object": SimpleNamespace(**row(period=datetime.timedelta(minutes=1))),
    "tuple": ("Orders", "ada", "100/minute"),
    "list": ["Orders", "ada", "100/minute", "a comment", True],
    "model": SimpleNamespace(_meta=None, **row()),
    "named tuple": Named("ada", "Orders", "100/minute"),
    "sqlite3": sqlite_row(),
}


@pytest.mark.parametrize("given", ROWS.values(), ids=ROWS)
def test_rows_are_read_as_a_driver_gives_them(limiter: penstock.Limiter, given: Any) -> None:
    assert refreshed(limiter, lambda: [given]).skipped_rows == 0
    assert limiter.limits.resolve("Orders", "ada") == Limit.parse("100/minute")


@pytest.mark.parametrize(
    ("name", "id", "canonical"),
    [
        ("Orders", 'quote " and \\ and \n line', 'quote " and \\ and \n line'),
        ("Orders", "😀\u2028\x85\x7f", "😀\u2028\x85\x7f"),
        ("Orders", "<overrides>:99", "<overrides>:99"),
        ("Orders", 12345678, "12345678"),
        ("PerAddress", ipaddress.ip_address("2001:db8::1"), "2001:db8::1"),
        ("PerAddress", ipaddress.ip_network("10.0.0.0/8"), "10.9.8.7"),
    ],
)
def test_id_arrives_whole(limiter: penstock.Limiter, name: str, id: object, canonical: str) -> None:
    refreshed(limiter, lambda: [row(name=name, id=id, comment=str(id))])
    assert limiter.limits.resolve(name, canonical).burst == 100


BAD_ROWS = [
    (row(name="Mails"), "name must be a limit that has a default, which are Orders, PerAddress"),
    (row(name=None), "name must be a limit that has a default"),
    (row(id=""), "id must not be empty"),
    (row(id=None), "id must be a str, int"),
    (row(id=True), "found bool True"),
    (row(id="\ud800"), "UTF-8"),
    (row(name="PerAddress", id="ada"), 'found "ada"'),
    (row(name="PerAddress", id="a\n<overrides>:1: b, from <overrides>:1"), "id must be an IPv4"),
    (row(limit="5/moth"), "expected second, minute, hour, day or week, found `moth`"),
    (row(limit=5), "limit must be a Limit, a rate string"),
    (row(limit={"burst": 0, "count": 1, "period": "1s"}), "burst must be at least 1, found 0"),
    (row(limit={"burst": 1, "ids": "x"}), "ids"),
    (row(limit={"burst": 1, "count": 1, "period": None}), "period must be"),
    (row(limit={}), "burst"),
    ({"name": "Orders", "id": "ada"}, "a row has a limit, such as '100/minute', or burst, count"),
    ({"name": "Orders", "id": "ada", "burst": 1, "count": 1, "period": -1}, "not be negative"),
    ({"name": "Orders", "id": "ada", "burst": True, "count": 1, "period": 1}, "bool"),
    ({"name": "Orders", "id": "ada", "burst": [], "count": 1, "period": 1}, "list"),
    (row(comment=5), "comment must be a str, found int 5"),
    (SimpleNamespace(_meta=None, **row(id=1)), "id is the primary key of a model, 1; load columns"),
    (SimpleNamespace(__table__=None, **row(id=UUID(int=1))), "id is the primary key of a model"),
    (row(enabled="yes"), "enabled must be true or false, found 'yes'"),
    (row(enabled=None), "enabled must be true or false, found None"),
    (("Orders", "ada", "1/second", "x", True, "more"), "a row without names has 3 to 5 fields"),
    (5, "name must be a limit"),
]


@pytest.mark.parametrize(("bad", "why"), BAD_ROWS, ids=[why for _, why in BAD_ROWS])
def test_invalid_row_is_skipped_alone(
    limiter: penstock.Limiter, caplog: pytest.LogCaptureFixture, bad: Any, why: str
) -> None:
    refresher = refreshed(limiter, lambda: [row(id="before"), bad, row(id="after")])
    assert bursts(limiter, "before", "after", "ada") == [100, 100, 4]
    assert (refresher.skipped_rows, refresher.loads, refresher.failures) == (1, 1, 0)
    (record,) = caplog.records
    message = record.getMessage()
    assert (record.name, record.levelno) == ("penstock", logging.WARNING)
    assert message.startswith("row 2 of the overrides is skipped, ")
    assert why in message
    assert "\n" not in message


def test_first_row_of_a_repeated_id_is_kept(
    limiter: penstock.Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        ("PerAddress", "192.0.2.9", "300/minute"),
        ("PerAddress", "2001:DB8::1", "100/minute"),
        # Other spellings of the second.
        ("PerAddress", "2001:db8:0::1", "300/minute"),
        ("PerAddress", "2001:db8::0:1", "200/minute"),
    ]
    refresher = refreshed(limiter, lambda: rows)
    assert limiter.limits.resolve("PerAddress", "2001:db8::1").burst == 100
    assert limiter.limits.resolve("PerAddress", "192.0.2.9").burst == 300
    assert refresher.skipped_rows == 2
    assert [message[:5] for message in caplog.messages] == ["row 3", "row 4"]
    assert caplog.messages[0].endswith("<rows>:2")


def test_skipped_row_is_logged_once_until_it_changes(
    limiter: penstock.Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[Any] = []
    refresher = Refresher(limiter, rows)
    misspelled, again = row(limit="5/moth"), row(limit="5/weak")
    for given, logged in (
        ([row(id="fine"), misspelled], 1),
        ([row(id="fine"), misspelled], 1),
        ([row(id="another"), row(id="fine"), misspelled], 1),
        ([row(id="another"), row(id="fine"), again], 2),
        ([row(id="another")], 2),
        ([row(id="another"), misspelled], 3),
    ):
        rows[:] = given
        refresher.refresh()
        assert len(caplog.messages) == logged


def test_many_bad_rows_do_not_fill_the_log(
    limiter: penstock.Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [row(name="PerAddress", id=f"x{number}") for number in range(350)]
    assert refreshed(limiter, lambda: [row(), *bad]).skipped_rows == 350
    assert len(caplog.messages) == 21
    assert caplog.messages[-1] == "330 more rows of the overrides are skipped"


@pytest.mark.parametrize("number", [1, 50])
def test_table_without_a_valid_row_is_refused(limiter: penstock.Limiter, number: int) -> None:
    refresher = Refresher(limiter, lambda: [{"renamed": "Orders", "id": "ada"}] * number)
    with pytest.raises(ConfigError, match=f"{number} rows.*'id'"):
        refresher.refresh()
    assert bursts(limiter, "grace") == [9]
    assert (refresher.ready, refresher.failures) == (False, 1)


def test_thousands_of_invalid_rows_refuse_the_table(limiter: penstock.Limiter) -> None:
    bad = [row(name="PerAddress", id=f"x{number}") for number in range(1100)]
    with pytest.raises(ConfigError, match=r"^1100 rows cannot be used"):
        refreshed(limiter, lambda: [row(), *bad])
    assert bursts(limiter, "ada", "grace") == [4, 9]


def test_hundred_thousand_rows_load(limiter: penstock.Limiter) -> None:
    rows = [("Orders", f"client-{n}", f"{n % 7 + 5}/minute") for n in range(100_000)]
    assert refreshed(limiter, lambda: rows).skipped_rows == 0
    assert bursts(limiter, "client-0", "client-99999") == [5, 5 + 99_999 % 7]


FOR_ADA = "- Orders: {burst: 50, count: 5, period: 1s, ids: [ada]}"


def test_file_is_read_again(limiter: penstock.Limiter, write: Write) -> None:
    refresher = refreshed(limiter, write("overrides.yaml", FOR_ADA))
    assert bursts(limiter, "ada", "grace") == [50, 4]
    write("overrides.yaml", "{}")
    refresher.refresh()
    assert bursts(limiter, "ada", "grace") == [4, 4]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "{file}: "),
        (
            OVERRIDES + "\n- Orders: {burst: 0, count: 5, period: 1s, ids: [bob]}",
            "{file}:2: Orders: burst must be at least 1, found 0",
        ),
        ("Orders: {burst: 5, count: 5, period: 1s}", "{file}:1: an override's key must be a"),
        (None, "{file}: cannot be read: "),
        (b"\xff", "{file}:1: "),
    ],
)
def test_invalid_file_is_refused_entirely(
    limiter: penstock.Limiter, tmp_path: Path, text: str | bytes | None, fault: str
) -> None:
    file = tmp_path / "overrides.yaml"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    refresher = Refresher(limiter, str(file))
    with pytest.raises(ConfigError) as caught:
        refresher.refresh()
    assert str(caught.value).startswith(fault.format(file=file))
    assert (caught.value.file, len(caught.value.problems)) == (str(file), 1)
    assert refresher.last_error is caught.value
    assert bursts(limiter, "ada", "grace") == [4, 9]


def test_callable_may_return_a_path_or_limits(limiter: penstock.Limiter, write: Write) -> None:
    refreshed(limiter, lambda: write("overrides.yaml", FOR_ADA))
    assert bursts(limiter, "ada") == [50]
    refreshed(limiter, lambda: Limits({"Mails": "1/second"}))
    assert list(limiter.limits) == ["Mails"]


def test_list_is_read_again_each_time(limiter: penstock.Limiter) -> None:
    rows = [row()]
    refresher = refreshed(limiter, rows)
    rows.clear()
    refresher.refresh()
    assert bursts(limiter, "ada") == [4]


def test_generator_function_serves(limiter: penstock.Limiter) -> None:
    def load() -> Any:
        yield row()

    refreshed(limiter, load).refresh()
    assert bursts(limiter, "ada") == [100]


def test_limits_that_were_defined_stay(limiter: penstock.Limiter) -> None:
    limiter.define("shop.orders", "3/minute")
    refresher = Refresher(limiter, lambda: [row(), row(name="shop.orders")])
    limiter.define("shop.later", "3/minute")
    refresher.refresh()
    assert bursts(limiter, "ada") == [100]
    assert set(limiter.limits) >= {"Orders", "shop.orders", "shop.later"}
    assert limiter.limits.resolve("shop.orders", "ada").burst == 3
    assert refresher.skipped_rows == 1


def test_limits_that_take_a_defined_name_are_a_failure(limiter: penstock.Limiter) -> None:
    limiter.define("shop.orders", "3/minute")
    with pytest.raises(ConfigError, match=r"shop\.orders"):
        refreshed(limiter, lambda: Limits({"shop.orders": "1/minute"}))
    assert bursts(limiter, "grace") == [9]


async def coroutine() -> list[object]:
    return [row()]


class Awaited:
    async def __call__(self) -> list[object]:
        return [row()]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"load": coroutine}, "asyncio.run"),
        ({"load": Awaited()}, "load must be a plain function"),
        ({"load": None}, "load must be a path, a callable or rows, found None"),
        ({"load": {"Orders": "1/second"}}, "load must be a path, a callable or rows, found {"),
        ({"load": Limits()}, "load must be a path, a callable or rows"),
        ({"load": iter([])}, "used up by the first load"),
        ({"load": QuerySet()}, "a QuerySet, which keeps the rows of the first load"),
        ({"every": "30"}, 'every: a duration must have a unit, found "30"; use 30s or 30ms'),
        ({"every": 0}, "every must be longer than 0s, found 0"),
        ({"every": True}, "seconds or a timedelta, found bool True"),
        ({"every": None}, "seconds or a timedelta, found None"),
        ({"retry": "1 month"}, "retry: months and years vary in length"),
        ({"on_first_error": "ignore"}, "on_first_error must be 'raise' or 'retry'"),
        ({"limiter": {}}, "limiter must be a penstock.Limiter, found {}"),
    ],
)
def test_invalid_options_are_refused(
    limiter: penstock.Limiter, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Refresher(**{"limiter": limiter, "load": list, **options})
    assert fault in str(caught.value)


@pytest.mark.parametrize("given", [None, 5, {"Orders": "1/second"}], ids=repr)
def test_load_that_returns_another_type_is_a_failure(limiter: penstock.Limiter, given: Any) -> None:
    with pytest.raises(ConfigError, match="rows"):
        refreshed(limiter, lambda: given)
    assert bursts(limiter, "grace") == [9]


def test_hidden_coroutine_is_an_error_with_a_hint(limiter: penstock.Limiter) -> None:
    load: Any = lambda: coroutine()  # noqa: E731, PLW0108  what does not look like a coroutine function
    with pytest.raises(ConfigError, match="has to be awaited"):
        refreshed(limiter, load)
    refreshed(limiter, lambda: asyncio.run(coroutine()))
    assert bursts(limiter, "ada") == [100]


def test_interval_is_kept_and_age_is_the_time_since_the_load(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    waits = Waits(clock, 5)
    ages: list[float | None] = []

    def load() -> list[object]:
        ages.append(refresher.age)
        return []

    refresher = Refresher(limiter, load, every="30m", wait=waits)
    assert (refresher.ready, refresher.age, refresher.is_running) == (False, None, False)
    waits.run_out(refresher)
    assert (refresher.loads, refresher.ready, refresher.is_running) == (6, True, False)
    assert len(waits.seconds) == 6
    assert all(1620 <= seconds <= 1800 for seconds in waits.seconds)
    assert len(set(waits.seconds)) > 1
    assert ages == [None, *(pytest.approx(seconds) for seconds in waits.seconds[:5])]
    assert refresher.age == pytest.approx(waits.seconds[5])


def test_failures_are_retried_with_backoff_and_logged_once(
    limiter: penstock.Limiter, clock: penstock.ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    waits = Waits(clock, 16)
    refresher = Refresher(limiter, Source(range(2, 16)), every="30m", wait=waits)
    waits.run_out(refresher)
    assert (refresher.loads, refresher.failures, refresher.last_error) == (3, 14, None)
    longest = [min(2.0**failed, 1800) for failed in range(14)]
    for seconds, most in zip(waits.seconds[1:15], longest, strict=True):
        assert most / 2 <= seconds <= most
    assert waits.seconds[15] > 1600
    assert caplog.messages == [
        "the overrides cannot be loaded, the active ones stay: OSError: the database is away",
        "the overrides are loaded again",
    ]


def test_failure_leaves_the_loaded_set_active(limiter: penstock.Limiter) -> None:
    refresher = refreshed(limiter, Source({2, 3}))
    for failures in (1, 2):
        with pytest.raises(OSError, match="away"):
            refresher.refresh()
        assert bursts(limiter, "ada") == [100]
        assert (refresher.failures, refresher.last_error) == (failures, AWAY)
    assert refresher.ready


def test_first_failure_is_raised_and_starts_nothing(limiter: penstock.Limiter) -> None:
    refresher = Refresher(limiter, "/nowhere/overrides.yaml")
    with pytest.raises(ConfigError, match=r"/nowhere/overrides\.yaml"):
        refresher.start()
    assert not refresher.is_running


def test_first_failure_may_be_retried(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    waits = Waits(clock, 1)
    ready: list[bool] = []
    source = Source({1})

    def load() -> list[object]:
        ready.append(refresher.ready)
        return source()

    refresher = Refresher(limiter, load, on_first_error="retry", retry=8, wait=waits)
    waits.run_out(refresher)
    assert ready == [False, False]
    assert 4 <= waits.seconds[0] <= 8
    assert (refresher.ready, bursts(limiter, "ada")) == (True, [100])


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_thread_survives_every_exception(
    limiter: penstock.Limiter, clock: penstock.ManualClock, error: type[BaseException]
) -> None:
    waits = Waits(clock, 2)
    refresher = Refresher(limiter, Source({2}, error("out")), wait=waits)
    waits.run_out(refresher)
    assert (refresher.failures, refresher.loads) == (1, 2)


def test_stop_ends_the_wait_and_start_begins_again(limiter: penstock.Limiter) -> None:
    refresher = Refresher(limiter, lambda: [row()], every="1h")
    assert refresher.start() is refresher
    running = [refresher.start().loads, refresher.is_running]
    refresher.stop()
    running.append(refresher.is_running)
    refresher.stop()
    with refresher:
        running += [refresher.loads, refresher.is_running]
    assert [*running, refresher.is_running] == [1, True, False, 2, True, False]


def test_two_concurrent_starts_start_one_thread(limiter: penstock.Limiter) -> None:
    load = Held(1)
    refresher = Refresher(limiter, load, every="1h")
    threads = [Thread(target=refresher.start) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert load.inside.wait(60)
    load.let_go.set()
    for thread in threads:
        thread.join()
    assert refresher.loads == 1
    refresher.stop()


def test_async_limiters_are_accepted(limiter: penstock.Limiter) -> None:
    refreshed(penstock.AsyncLimiter(limiter), [row()])
    assert bursts(limiter, "ada") == [100]


def test_stop_does_not_wait_forever(limiter: penstock.Limiter) -> None:
    load = Held(2)
    refresher = Refresher(limiter, load, every="1ms").start()
    assert load.inside.wait(60)
    refresher.stop(timeout=0.01)
    assert refresher.is_running
    load.let_go.set()
    refresher.stop(timeout=None)
    assert (refresher.is_running, refresher.loads) == (False, 2)


def test_load_may_stop_its_own_refresher(limiter: penstock.Limiter) -> None:
    done = Event()

    def load() -> list[object]:
        if refresher.is_running:
            refresher.stop()
            done.set()
        return []

    refresher = Refresher(limiter, load, every="1ms")
    refresher.start()
    assert done.wait(60)
    refresher.stop(timeout=None)
    assert refresher.loads == 2


FORK = """
import os, sys, threading, warnings
import penstock
from penstock.refresher import Refresher

sys.stderr = sys.stdout
# Newer Pythons warn of any fork beside a thread.
warnings.simplefilter("ignore", DeprecationWarning)
limiter = penstock.Limiter({"Orders": "4/second"})
parent = os.getpid()
inside, let_go, loaded = threading.Event(), threading.Event(), threading.Event()

def load():
    if os.getpid() != parent:
        loaded.set()
        return [("Orders", "child", "100/minute")]
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        let_go.wait(60)
    return [("Orders", "parent", "100/minute")]

refresher = Refresher(limiter, load, every="1ms").start()
assert inside.wait(60)
# The thread holds the refresher's lock now.
child = os.fork()
if child == 0:
    fine = loaded.wait(60)
    refresher.stop()
    fine = fine and refresher.loads >= 2 and limiter.limits.resolve("Orders", "child").burst == 100
    os._exit(0 if fine else 1)
_, status = os.waitpid(child, 0)
let_go.set()
refresher.stop()
assert limiter.limits.resolve("Orders", "parent").burst == 100
assert limiter.limits.resolve("Orders", "child").burst == 4
# A stopped refresher stays stopped.
child = os.fork()
if child == 0:
    os._exit(refresher.is_running)
_, stopped = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), os.waitstatus_to_exitcode(stopped))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_refresher_survives_a_fork() -> None:
    assert programs.run(FORK) == "0 0\n"


def test_import_starts_no_thread() -> None:
    program = "import threading, penstock.refresher; print(threading.active_count())"
    assert programs.run(program) == "1\n"
