"""The cost of each failure of a server: the table of guarantees, counted.

A burst that hardly refills is spent by several threads while the server fails. A lost reply may
have taken a token, and never gives one: as many are admitted as the table allows, at most. No call
takes longer than its deadline, and all works again afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from programs import run
from redis_servers import Server, start_cluster, tls_config, wait_until
from tcp_proxy import Proxy

import penstock
from penstock import Limit, Limiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path
    from typing import Self

    from conftest import StartServer
    from redis_servers import Cluster, SentinelSet

BURST = 2_000
LIMITS = {"Orders": Limit.token_bucket(burst=BURST, count=1, period="1h")}
SMALL = {"Orders": Limit.token_bucket(burst=5, count=1, period="1h")}
DEADLINE = 0.2
PATIENT = "deadline=20s"
"""The deadline of calls that must not fail on a loaded machine."""


class Load:
    """Threads that spend until they are stopped, and their results."""

    def __init__(self, limiter: Limiter, threads: int = 4) -> None:
        self.limiter = limiter
        self.allowed = 0
        self.denied = 0
        self.errors: Counter[type] = Counter()
        self.longest = 0.0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_over = False
        self._threads = [threading.Thread(target=self._spend) for _ in range(threads)]

    def _spend(self) -> None:
        clock = penstock.SystemClock()
        while not self._is_over:
            started = clock.now()
            try:
                decision: Any = self.limiter.spend("Orders", "ada")
            except penstock.StoreError as error:
                decision = error
            took = clock.now() - started
            with self._changed:
                self.longest = max(self.longest, took)
                if isinstance(decision, penstock.StoreError):
                    self.errors[type(decision)] += 1
                elif decision.allowed:
                    self.allowed += 1
                else:
                    self.denied += 1
                self._changed.notify_all()

    @property
    def lost(self) -> int:
        """The calls that failed."""
        return self.errors.total()

    def wait_for(self, what: Callable[[], bool]) -> None:
        """Wait until the load has had this effect."""
        with self._changed:
            assert self._changed.wait_for(what, timeout=60), vars(self)

    def wait_for_more(self, count: int) -> None:
        """Wait until this many more calls are answered by the server."""
        answered = self.allowed + self.denied
        self.wait_for(lambda: self.allowed + self.denied >= answered + count)

    def wait_for_errors(self, count: int) -> None:
        """Wait until this many more calls have failed."""
        failed = self.lost
        self.wait_for(lambda: self.lost >= failed + count)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the threads."""
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def spend_the_rest(self) -> int:
        """Stop, and spend until the bucket is empty; return the number of allowed requests."""
        self.stop()
        # With a long deadline: the server of a loaded machine may pause for a short one.
        url, _, _ = self.limiter.store.partition("?")
        with opened(f"{url}?{PATIENT}", self.limiter.limits) as limiter:
            while limiter.spend("Orders", "ada").allowed:
                self.allowed += 1
        return self.allowed


@contextmanager
def opened(url: str, limits: Any = LIMITS) -> Iterator[Limiter]:
    """A limiter without a deny cache, so that the server decides every call."""
    with Limiter(limits, f"{url}{'&' if '?' in url else '?'}deny_cache=0") as limiter:
        yield limiter


def prompt(url: str) -> str:
    """A URL with the deadline of these tests."""
    return f"{url}?deadline={int(DEADLINE * 1000)}ms"


def test_killed_server_without_persistence_costs_one_burst(start_server: StartServer) -> None:
    server = start_server()
    with opened(prompt(server.url)) as limiter, Load(limiter) as load:
        load.wait_for_more(BURST // 4)
        server.kill()
        load.wait_for_errors(20)
        server.start()
        load.wait_for_more(BURST // 4)
        total = load.spend_the_rest()
    assert set(load.errors) <= {penstock.StoreUnavailable, penstock.StoreTimeout}
    assert BURST < total <= 2 * BURST
    # Much more than the deadline, for a loaded machine; a hang would be endless.
    assert load.longest < DEADLINE + 20


def test_killed_server_with_an_append_only_file_forgets_nothing(start_server: StartServer) -> None:
    server = start_server({"appendonly": "yes", "appendfsync": "always"})
    burst = 200
    limits = {"Orders": Limit.token_bucket(burst=burst, count=1, period="1h")}
    with opened(prompt(server.url), limits) as limiter, Load(limiter) as load:
        load.wait_for_more(20)
        server.kill()
        load.wait_for_errors(5)
        server.start()
        load.wait_for_more(20)
        total = load.spend_the_rest()
    assert burst - load.lost <= total <= burst


@pytest.mark.parametrize("how", ["SIGSTOP", "DEBUG SLEEP"])
def test_stalled_server_delays_no_call_beyond_the_deadline(
    start_server: StartServer, how: str
) -> None:
    server = start_server()
    with opened(prompt(server.url)) as limiter, Load(limiter) as load:
        load.wait_for_more(100)
        if how == "SIGSTOP":
            server.pause()
            load.wait_for_errors(20)
            server.resume()
        else:
            # Again if a loaded machine made fewer calls during the sleep.
            while load.lost < 20:
                server.command("DEBUG", "SLEEP", "1.5")
        load.wait_for_more(100)
        total = load.spend_the_rest()
    timeouts = load.errors[penstock.StoreTimeout]
    assert load.longest < DEADLINE + 20
    assert timeouts >= 1
    # A lost reply may have taken a token.
    assert BURST - timeouts <= total <= BURST


def test_flushed_scripts_cost_no_tokens(start_server: StartServer) -> None:
    server = start_server()
    with opened(f"{server.url}?{PATIENT}") as limiter, Load(limiter) as load:
        while load.allowed < BURST // 2:
            server.command("SCRIPT", "FLUSH")
        assert load.spend_the_rest() == BURST
    assert not load.errors


def test_connection_cut_before_the_server_costs_nothing(start_server: StartServer) -> None:
    server = start_server()
    with Proxy(server.port) as proxy, opened(f"{proxy.url}?{PATIENT}") as limiter:
        limiter.spend("Orders", "ada")
        proxy.cut("request")
        with pytest.raises(penstock.StoreError):
            limiter.spend("Orders", "ada")
        assert limiter.peek("Orders", "ada").remaining == BURST - 1


def test_lost_reply_costs_one_token_and_is_never_sent_again(start_server: StartServer) -> None:
    server = start_server()
    with Proxy(server.port) as proxy, opened(f"{proxy.url}?{PATIENT}") as limiter:
        limiter.spend("Orders", "ada")
        for lost in range(1, 4):
            proxy.cut("reply")
            # A call that may have been executed is a timeout to the caller.
            with pytest.raises(penstock.StoreTimeout):
                limiter.spend("Orders", "ada")
            assert limiter.peek("Orders", "ada").remaining == BURST - 1 - lost
        reservation = limiter.reserve("Orders", "ada", 10)
        proxy.cut("reply")
        with pytest.raises(penstock.StoreTimeout):
            reservation.settle(4)
        # It was settled, and must not be settled twice.
        with pytest.raises(penstock.ReservationError):
            reservation.settle(4)
        assert limiter.peek("Orders", "ada").remaining == BURST - 4 - 4
        assert proxy.cuts == 4


def test_connections_cut_under_load_admit_no_more(start_server: StartServer) -> None:
    server = start_server()
    with Proxy(server.port) as proxy, opened(prompt(proxy.url)) as limiter, Load(limiter) as load:
        for fault in ("reply", "request") * 5:
            load.wait_for_more(20)
            cuts = proxy.cuts
            proxy.cut(fault)
            load.wait_for(lambda before=cuts: proxy.cuts > before)  # type: ignore[misc]
        load.wait_for_more(20)
        total = load.spend_the_rest()
    assert load.lost >= 1
    assert BURST - load.lost <= total <= BURST


@pytest.mark.slow
def test_promoted_replica_costs_at_most_one_burst(sentinels: SentinelSet) -> None:
    with opened(prompt(sentinels.url)) as limiter, Load(limiter) as load:
        load.wait_for_more(100)
        primary = sentinels.primary()
        primary.kill()
        load.wait_for_errors(5)
        sentinels.wait_for_another(primary.port)
        load.wait_for_more(50)
        total = load.spend_the_rest()
    assert BURST - load.lost <= total <= 2 * BURST


@pytest.mark.slow
def test_replica_that_has_everything_is_promoted_at_no_cost(sentinels: SentinelSet) -> None:
    with opened(f"{sentinels.url}?{PATIENT}") as limiter:
        allowed = sum(limiter.spend("Orders", "ada").allowed for _ in range(500))
        sentinels.wait_for_replica()
        sentinels.fail_over()
        with Load(limiter) as load:
            load.wait_for_more(10)
        total = allowed + load.spend_the_rest()
    assert BURST - load.lost <= total <= BURST


@pytest.mark.slow
def test_slot_that_moves_under_load_costs_nothing(cluster: Cluster) -> None:
    with opened(f"{cluster.url}?{PATIENT}") as limiter:
        limiter.spend("Orders", "ada")
        [(node, key)] = [(node, key) for node in cluster.nodes for key in node.command("KEYS", "*")]
        slot = int(node.command("CLUSTER", "KEYSLOT", key))
        with Load(limiter) as load:
            for _ in range(3):
                target = (cluster.owner(slot) + 1) % 3
                cluster.migrate(slot, target, during=lambda: load.wait_for_more(20))
                load.wait_for_more(20)
        total = 1 + load.spend_the_rest()
    assert BURST - load.lost <= total <= BURST


@pytest.mark.slow
def test_dead_node_of_a_cluster_is_not_asked_again_and_again(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path)
    try:
        with opened(prompt(cluster.url)) as limiter:
            limiter.spend("Orders", "ada")
            [owner] = [node for node in cluster.nodes if node.command("DBSIZE")]
            owner.kill()
            for _ in range(6):
                with pytest.raises(penstock.StoreError):
                    limiter.spend("Orders", "ada")
            calls = limiter.stats()["calls"]["spend"]
            # Those that were sent from node to node count as well; the others were not made.
            assert limiter.stats()["failures"] == 1
            assert sum(sum(times["calls"]) for times in calls.values()) < 7
            assert "error" not in calls
    finally:
        cluster.stop()


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_slots_of_a_cluster_are_asked_at_the_same_time(cluster: Cluster, is_async: bool) -> None:
    stall, is_over = 0.2, threading.Event()

    def keep_busy(node: Server) -> None:
        with closing(node.client()) as client:
            while not is_over.is_set():
                client.execute_command("DEBUG", "SLEEP", str(stall))  # type: ignore[no-untyped-call]

    busy = [threading.Thread(target=keep_busy, args=(node,)) for node in cluster.nodes]
    clients = [("Orders", f"client-{number}") for number in range(12)]
    with opened(f"{cluster.url}?{PATIENT}") as limiter:
        assert limiter.spend_all(clients).allowed

        async def spend_all() -> penstock.Decision:
            return await penstock.AsyncLimiter(limiter).spend_all(clients)

        def seconds() -> float:
            started = clock.now()
            assert (asyncio.run(spend_all()) if is_async else limiter.spend_all(clients)).allowed
            return clock.now() - started

        clock = penstock.SystemClock()
        for thread in busy:
            thread.start()
        try:
            took = [seconds() for _ in range(3)]
        finally:
            is_over.set()
            for thread in busy:
                thread.join()
        # One after another, the twelve slots would take six stalls on average.
        assert min(took) < 3 * stall
        # A denial returns what the other slots have charged.
        before = [limiter.peek(*client).remaining for client in clients]
        while limiter.spend(*clients[5]).allowed:
            pass
        denied = limiter.spend_all(clients)
        assert not denied.allowed
        assert [part.allowed for part in denied.parts] == [n != 5 for n in range(12)]
        after = [limiter.peek(*client).remaining for client in clients]
        assert after == [0 if n == 5 else left for n, left in enumerate(before)]


@pytest.mark.slow
def test_a_denial_in_a_cluster_returns_what_it_has_charged_and_no_more(cluster: Cluster) -> None:
    limits = {"Orders": "100/day", "Pages": "1/day", "Hits": "100/day, fixed window"}
    names = [*limits, "Calls"]
    with opened(f"{cluster.url}?{PATIENT}", {**limits, "Calls": "2 in flight"}) as limiter:
        clients = ["ada", *(f"client-{number}" for number in range(5))]

        def left() -> list[list[int]]:
            return [[limiter.peek(name, id).remaining for name in names] for id in clients]

        held = [limiter.reserve_all([(n, id, 1) for n in names if n != "Pages"]) for id in clients]
        limiter.spend("Pages", "ada")
        before = left()
        assert before == [[99, int(id != "ada"), 99, 1] for id in clients]
        # The other buckets of the client that is denied are in one slot with the one that denies.
        for kind in ("reserve", "spend"):
            for _ in range(5):
                if kind == "reserve":
                    assert not limiter.reserve_all([(n, id, 1) for id in clients for n in names])
                else:
                    assert not limiter.spend_all([(n, id, 1) for id in clients for n in limits])
            assert left() == before
        for reservation in held:
            assert reservation.release()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-ttl"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_server_that_evicts_costs_one_burst_per_bucket(
    start_server: StartServer, policy: str
) -> None:
    server = start_server({"maxmemory-policy": policy})
    with opened(f"{server.url}?{PATIENT}", SMALL) as limiter:
        clients = [f"client-{number:06}" for number in range(2_000)]
        limiter.spend_each("Orders", clients, 5)
        # Less than the buckets need.
        server.command("CONFIG", "SET", "maxmemory", int(server.info("used_memory")) - 100_000)
        again = limiter.spend_each("Orders", clients, 5).allowed
        evicted = int(server.info("evicted_keys"))
    assert 0 < again.sum() <= evicted


def test_wrong_password_is_an_error_at_the_start_without_the_password(
    start_server: StartServer,
) -> None:
    server = start_server({"user": "limits on >secret ~* +@all", "requirepass": "other"})
    for credentials in ("limits:wrong-one@", ":wrong-one@", ""):
        url = server.url.replace("redis://", f"redis://{credentials}")
        with pytest.raises(penstock.StoreUnavailable) as refused, opened(f"{url}?{PATIENT}"):
            pass
        assert "wrong-one" not in str(refused.value)
    url = server.url.replace("redis://", "redis://limits:secret@")
    with opened(f"{url}?{PATIENT}") as limiter:
        assert limiter.spend("Orders", "ada").allowed


def test_tls_needs_a_trusted_authority(start_server: StartServer, tmp_path: Path) -> None:
    config, authority = tls_config(tmp_path / "tls")
    _, other = tls_config(tmp_path / "other")
    server = start_server(config, certificate=authority)
    with opened(f"{server.url}&{PATIENT}") as limiter:
        assert limiter.spend("Orders", "ada").remaining == BURST - 1
    url = server.url.replace(str(authority), str(other))
    with pytest.raises(penstock.StoreUnavailable, match="ca=FILE"), opened(f"{url}&{PATIENT}"):
        pass


def test_foreign_values_are_logged_once_and_counted(
    redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(f"{redis_server.url}?{PATIENT}", SMALL) as limiter:
        clients = ["ada", "grace", "alan"]
        limiter.spend_each("Orders", clients)
        keys = sorted(redis_server.command("KEYS", "*"))
        for key in keys:
            redis_server.command("SET", key, "garbage")
        assert limiter.spend("Orders", "ada").remaining == 4
        assert limiter.spend_each("Orders", ["grace"]).remaining.tolist() == [4]
        assert limiter.spend_all([("Orders", "alan")]).remaining == 4
        assert limiter.stats()["healed"] == 3
    [record] = caplog.records
    assert (record.name, record.levelname) == ("penstock", "WARNING")
    assert (vars(record)["event"], vars(record)["store"]) == ("healed", limiter.store)
    assert "{penstock:ada}token-bucket:Orders" in record.getMessage()


def test_each_change_of_a_failing_server_is_logged_once(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server({"requirepass": "secret", "user": "limits on >secret ~* +@all"})
    url = server.url.replace("redis://", "redis://limits:secret@")
    with opened(f"{url}?{PATIENT}") as limiter:
        limiter.spend("Orders", "ada")
        for turn in range(1, 3):
            server.kill()
            for _ in range(6):
                with pytest.raises(penstock.StoreError):
                    limiter.spend("Orders", "ada")
            assert [vars(record)["event"] for record in caplog.records] == ["failing"]
            server.start()
            wait_for_answer(limiter)
            limiter.spend("Orders", "ada")
            events = [vars(record)["event"] for record in caplog.records]
            assert events == ["failing", "answering"]
            assert limiter.stats()["failures"] == turn
            assert "secret" not in caplog.text
            caplog.clear()


def wait_for_answer(limiter: Limiter) -> None:
    """Spend until the server answers."""
    while True:
        with suppress(penstock.StoreError):
            limiter.spend("Orders", "ada")
            return


def test_handler_that_fails_fails_no_call(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ZeroDivisionError(record)

    unraisable: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: unraisable.append(one.exc_type))
    monkeypatch.setattr(logging.getLogger("penstock"), "handlers", [Broken()])
    with opened(f"{redis_server.url}?{PATIENT}", SMALL) as limiter:
        redis_server.command("SET", "{penstock:ada}token-bucket:Orders", "garbage")
        assert limiter.spend("Orders", "ada").remaining == 4
    assert unraisable == [ZeroDivisionError]


@pytest.mark.parametrize("step", [-86_400, -60, 60, 86_400])
def test_stepped_clock_costs_at_most_a_burst_or_its_refill(redis_server: Server, step: int) -> None:
    limits = {"Orders": "10/minute"}
    # The instant is sent in place of the server's own, as by a server whose clock was stepped.
    start = 1_000_000_000
    clocks = [penstock.ManualClock(start=start), penstock.ManualClock(start=start + step)]
    url = f"{redis_server.url}?{PATIENT}"
    before, after = (Limiter(limits, url, clock) for clock in clocks)
    assert before.spend("Orders", "ada", 10).allowed
    decision = after.spend("Orders", "ada")
    # Forwards: what was added meanwhile, at most a burst. Backwards: a wait that is longer by the
    # step, because a state is taken at its word.
    assert decision.remaining <= 10
    if step > 0:
        assert decision.allowed
    else:
        assert decision.retry_after <= -step + 6
        clocks[1].advance(decision.retry_after)
        assert after.spend("Orders", "ada").allowed
    before.close()
    after.close()


def spend(limiter: Limiter) -> int:
    """Spend 900 times; return how many were allowed."""
    return sum(limiter.spend("Orders", "ada").allowed for _ in range(900))


def test_forked_children_connect_on_their_own(redis_server: Server) -> None:
    with opened(f"{redis_server.url}?{PATIENT}") as limiter:
        # The parent's connection is in use while it forks.
        with Load(limiter, 2) as load:
            load.wait_for_more(10)
            context = multiprocessing.get_context("fork")
            results = context.Queue()

            def child() -> None:
                results.put(spend(limiter))

            children = [context.Process(target=child) for _ in range(3)]
            for one in children:
                one.start()
            allowed = sum(results.get(timeout=60) for _ in children)
            for one in children:
                one.join()
        assert not load.errors
        assert load.spend_the_rest() + allowed == BURST


def test_many_threads_that_wait_are_all_served(redis_server: Server) -> None:
    limits = {"Orders": Limit.token_bucket(burst=1, count=500, period="1s")}
    with opened(f"{redis_server.url}?{PATIENT}", limits) as limiter:
        served: list[bool] = []

        def wait(_: int) -> None:
            served.append(limiter.acquire("Orders", "ada").allowed)

        with ThreadPoolExecutor(200) as pool:
            list(pool.map(wait, range(200)))
        assert served == [True] * 200


@pytest.mark.slow
def test_thousands_of_waiting_tasks_are_all_served(redis_server: Server) -> None:
    limits = {"Orders": Limit.token_bucket(burst=1, count=5_000, period="1s")}
    limiter = penstock.AsyncLimiter(limits, f"{redis_server.url}?{PATIENT}")

    async def main() -> int:
        calls = (limiter.acquire("Orders", "ada") for _ in range(4_000))
        return sum(decision.allowed for decision in await asyncio.gather(*calls))

    assert asyncio.run(main()) == 4_000


def test_processes_share_debt(redis_server: Server) -> None:
    # 4 per second: the two of the other process follow those of this one.
    limits = {"Orders": Limit.token_bucket(burst=4, count=4, period="1s")}
    clock = penstock.ManualClock(start=1_000_000_000)
    url = f"{redis_server.url}?{PATIENT}"
    one, other = (Limiter(limits, url, clock) for _ in range(2))
    one.spend("Orders", "ada", 4)
    started: list[penstock.Decision] = []
    waiting = threading.Thread(target=lambda: started.append(one.acquire("Orders", "ada", 3)))
    waiting.start()
    # The waiter's debt is in the store, where the other process finds it.
    while other.peek("Orders", "ada").reset_after < 1.75:
        pass
    with pytest.raises(penstock.RateLimited) as late:
        other.acquire("Orders", "ada", 1, timeout=0.9)
    assert late.value.decision.retry_after == 1.0
    # A turn is counted from the answer's arrival, which may be later on a busy machine.
    while waiting.is_alive():
        clock.advance(0.25)
        waiting.join(0.01)
    assert started[0].allowed
    assert started[0].now_ns >= 1_000_000_000_750_000_000
    one.close()
    other.close()


EXIT = """
import os, signal, sys, threading, penstock
limiter = penstock.Limiter({"Orders": "5/hour"}, sys.argv[1] + "?deadline=30s")
limiter.spend("Orders", "ada")
os.kill(int(sys.argv[2]), signal.SIGSTOP)
started = threading.Barrier(9)
def call():
    started.wait()
    limiter.spend("Orders", "ada")
for _ in range(8):
    threading.Thread(target=call, daemon=True).start()
started.wait()
print("ended")
"""


def test_interpreter_ends_while_daemon_threads_wait_for_a_reply(start_server: StartServer) -> None:
    server = start_server()
    assert run(EXIT, server.url, str(server.pid)) == "ended\n"


def test_a_reload_applies_to_a_waiter_that_is_being_charged(start_server: StartServer) -> None:
    server = start_server()
    slow, fast = Limit.parse("2/hour"), Limit.parse("1/second, burst 100000")
    with (
        Proxy(server.port) as proxy,
        Limiter({"Calls": slow}, f"{proxy.url}?{PATIENT}") as limiter,
        ThreadPoolExecutor(3) as pool,
    ):
        limiter.spend("Calls", "ada", 2)
        waiting: list[Future[Any]] = [pool.submit(limiter.acquire, "Calls", "ada")]
        wait_until(lambda: limiter.peek("Calls", "ada").retry_after > 0, "one is charged")
        proxy.hold()
        waiting.append(pool.submit(limiter.acquire, "Calls", "ada"))
        assert proxy.is_holding_one.wait(20)
        waiting.append(pool.submit(limiter.reload, {"Calls": fast}))
        wait_until(lambda: limiter.limits.resolve("Calls", "ada") == fast, "limits are replaced")
        proxy.resume()
        try:
            for future in waiting:
                future.result(20)
        finally:
            limiter.close()


@pytest.mark.parametrize(("end", "left"), [("cancel", 100), ("release", 60)])
def test_an_end_that_fails_is_repeated_by_its_caller_alone(
    start_server: StartServer, end: str, left: int
) -> None:
    server, clock = start_server(), penstock.ManualClock(start=1_000_000_000)
    with (
        Proxy(server.port) as proxy,
        Limiter({"Tokens": "100/day"}, f"{proxy.url}?{PATIENT}", clock) as limiter,
    ):

        def is_unavailable() -> bool:
            try:
                limiter.peek("Tokens", "ada")
            except penstock.StoreError as error:
                return isinstance(error, penstock.StoreUnavailable)
            return False

        reservation = limiter.reserve_all([("Tokens", "ada", 10)])
        if end == "release":
            reservation.settle("Tokens", 40)
        proxy.is_refusing = True
        proxy.cut_all()
        wait_until(is_unavailable, "no call reaches the server")
        for _ in range(3):
            with pytest.raises(penstock.StoreUnavailable):
                getattr(reservation, end)()
        proxy.is_refusing = False
        wait_until(lambda: not is_unavailable(), "the server answers")
        clock.advance(10)
        assert limiter.peek("Tokens", "ada").remaining == 90
        assert getattr(reservation, end)()
        assert limiter.spend("Tokens", "ada", 20).remaining == left - 20
        clock.advance(10)
        assert limiter.peek("Tokens", "ada").remaining == left - 20


def test_metrics_show_a_server_that_fails(start_server: StartServer) -> None:
    from prometheus_client import CollectorRegistry  # noqa: PLC0415  only here

    from penstock.metrics import PrometheusCollector  # noqa: PLC0415

    server = start_server()
    with Limiter(SMALL, f"{server.url}?{PATIENT}") as limiter:
        registry = CollectorRegistry()
        PrometheusCollector(limiter, registry=registry)
        for _ in range(8):
            limiter.spend("Orders", "ada")
        value = registry.get_sample_value
        assert value("penstock_store_failing") == 0
        # The first denial is the server's.
        assert value("penstock_denied_locally_total") == 2
        assert value("penstock_decisions_total", {"limit": "Orders", "outcome": "denied"}) == 3
        assert value("penstock_buckets") is None
        server.kill()
        for _ in range(5):
            with pytest.raises(penstock.StoreError):
                limiter.spend("Orders", "grace")
        assert value("penstock_store_failing") == 1
        assert value("penstock_store_failures_total") == 1
        assert value("penstock_healed_buckets_total") == 0
        calls = {
            (labels["call"], labels["result"]): sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name == "penstock_store_call_seconds_count"
            for labels in [sample.labels]
        }
        # The other two spends found the breaker open.
        assert calls.pop(("spend", "answered")) == 6
        assert sum(calls.values()) == 3 + calls.pop(("other", "answered"), 0)
        assert set(calls) <= {("spend", "lost"), ("spend", "unavailable")}
        assert value("penstock_store_call_seconds_sum", {"call": "spend", "result": "answered"})
        assert value("penstock_store_errors_total", {"limit": "Orders"}) == 5
