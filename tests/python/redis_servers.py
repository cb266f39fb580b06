"""Real Redis or Valkey servers for tests and benchmarks: one, a cluster, a set with Sentinels.

Every server has a free port and a temporary folder, and ends with the process that started it, even
if that process is killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

HOST: Final = "127.0.0.1"
WANTED: Final = os.environ.get(  # noqa: TID251  the program under test, not configuration of penstock
    "PENSTOCK_TEST_SERVER", "redis-server valkey-server"
).split()
"""The programs to test with, by name or by path."""
INSTALLED: Final = tuple(name for name in WANTED if shutil.which(name) is not None)
"""Those of them that are installed."""
MISSING: Final = (
    f"these tests start a real server, and found none: {' and '.join(WANTED)}; "
    "install one (Debian and Ubuntu: apt-get install redis-server redis-sentinel; "
    "Fedora: dnf install valkey; macOS: brew install redis)"
)
SECONDS_TO_START: Final = 30
SLOTS: Final = 16384
ONCE: Final = Retry(NoBackoff(), 0)
"""The policy of clients that see each error."""

# Reads process ids, and kills those processes when its input ends.
_WATCHDOG: Final = """
import os, signal, sys
alive = set()
for line in sys.stdin:
    (alive.add if line[0] == "+" else alive.discard)(int(line[1:]))
for pid in alive:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class ServerMissingError(Exception):
    """No server is installed."""

    def __init__(self) -> None:
        super().__init__(MISSING)


def free_port() -> int:
    """Return a port that is free at the moment."""
    with closing(socket.socket()) as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def wait_until(
    condition: Callable[[], bool], what: str, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Call `condition` until it is true; `process`, if any, runs on for a moment in between."""
    clock = SystemClock()
    deadline = clock.now() + SECONDS_TO_START
    while not condition():
        if clock.now() > deadline:
            raise TimeoutError(f"waited {SECONDS_TO_START} s in vain until {what}")
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)


class _Watchdog:
    """A process that kills our servers if this process dies without stopping them."""

    def __init__(self) -> None:
        # A separate session: Ctrl-C in the tests must not end it first.
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _WATCHDOG],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(self.close)

    def send(self, sign: str, pid: int) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(f"{sign}{pid}\n")
        stdin.flush()

    def close(self) -> None:
        self._process.communicate()


_watchdog: _Watchdog | None = None


def _watch(sign: str, pid: int) -> None:
    global _watchdog  # noqa: PLW0603  one for this process
    if _watchdog is None:
        _watchdog = _Watchdog()
    _watchdog.send(sign, pid)


@dataclass
class Server:
    """One server process. `config` holds its settings, as in a redis.conf.

    Call `start` before anything else, and `stop` at the end.
    """

    folder: Path
    config: Mapping[str, str] = field(default_factory=dict)
    program: str | None = None
    is_sentinel: bool = False
    certificate: Path | None = None
    """The certificate authority that clients of a server with TLS trust."""
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket_path(self) -> Path:
        """The server's Unix socket. Its folder is short: such a path has at most 107 bytes."""
        return self.folder / "s"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        assert self.process is not None, "the server was not started"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> Server:
        """Start the server, again on its port and with its data if it ran before."""
        is_new = self.port == 0
        for _ in range(10):
            self.port = free_port() if is_new else self.port
            if self._launch():
                return self
            if not is_new:
                break
        raise RuntimeError(f"the server does not start:\n{self.log()}")

    def _launch(self) -> bool:
        if not INSTALLED:
            raise ServerMissingError
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.program or INSTALLED[0]
        # A Sentinel rewrites its file, and continues from it after a restart.
        path = self.folder / "server.conf"
        if not (self.is_sentinel and path.exists()):
            path.write_text(self._config(), encoding="utf-8")
        executable = shutil.which(program)
        assert executable is not None, f"{program} is not on the PATH"
        command = [executable, str(path), *(["--sentinel"] if self.is_sentinel else [])]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        _watch("+", self.pid)
        wait_until(lambda: not self.is_running or self._answers(), "it answers", self.process)
        return self.is_running

    def _config(self) -> str:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "unixsocket": str(self.socket_path),
            "dir": str(self.folder),
            "daemonize": "no",
            **({} if self.is_sentinel else {"save": '""', "enable-debug-command": "yes"}),
            **self.config,
        }
        if "tls-cert-file" in settings:
            settings |= {"port": "0", "tls-port": str(self.port)}
        return "".join(f"{name} {value}\n" for name, value in settings.items())

    def _answers(self) -> bool:
        try:
            self.command("PING")
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return True

    def log(self) -> str:
        """The log of the server."""
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")

    def client(self) -> redis.Redis:
        """A client of the server's Unix socket, without a password."""
        return redis.Redis(
            unix_socket_path=str(self.socket_path),
            decode_responses=True,
            socket_timeout=SECONDS_TO_START,
            retry=ONCE,
        )

    def command(self, *words: str | int) -> Any:
        """Send one command and return its reply."""
        with closing(self.client()) as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]

    def info(self, name: str) -> str:
        """Return one field of INFO."""
        with closing(self.client()) as client:
            return str(client.info("everything")[name])

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None, "the server was not started"
        self.process.send_signal(number)

    def pause(self) -> None:
        """Suspend the process; its sockets stay open."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a suspended process."""
        self.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process; data that is not on disk is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process if it is running."""
        if self.is_running:
            self.resume()
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, pid = self.process, self.pid
        assert process is not None
        self.send_signal(number)
        try:
            process.wait(SECONDS_TO_START)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _watch("-", pid)

    @property
    def url(self) -> str:
        """The store's URL."""
        scheme = "rediss" if self.certificate else "redis"
        query = f"?ca={self.certificate}" if self.certificate else ""
        return f"{scheme}://{HOST}:{self.port}{query}"

    @property
    def unix_url(self) -> str:
        """The store's URL over the Unix socket."""
        return f"unix://{self.socket_path}"


def tls_config(folder: Path) -> tuple[dict[str, str], Path]:
    """Make certificates; return the settings of a server that has them, and their authority."""
    import trustme  # noqa: PLC0415  not needed by benchmarks

    authority = trustme.CA()
    issued = authority.issue_cert("localhost", HOST)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.pem" for name in ("authority", "certificate", "key")}
    authority.cert_pem.write_to_path(paths["authority"])
    issued.private_key_pem.write_to_path(paths["key"])
    issued.cert_chain_pems[0].write_to_path(paths["certificate"])
    config = {
        "tls-cert-file": str(paths["certificate"]),
        "tls-key-file": str(paths["key"]),
        "tls-ca-cert-file": str(paths["authority"]),
        "tls-auth-clients": "no",
    }
    return config, paths["authority"]


@dataclass
class Cluster:
    """Three primaries that share the slots."""

    nodes: list[Server]

    @property
    def url(self) -> str:
        """The store's URL."""
        nodes = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return f"redis+cluster://{nodes}"

    def owner(self, slot: int) -> int:
        """Return the index of the node that has a slot."""
        for index in range(len(self.nodes)):
            if any(first <= slot <= last for first, last in self._ranges(index)):
                return index
        raise LookupError(slot)

    def _ranges(self, index: int) -> Iterable[tuple[int, int]]:
        # The fields after the eighth are ranges, and slots in migration in brackets.
        own = next(
            line.split()
            for line in self._lines(self.nodes[index])
            if "myself" in line.split()[2].split(",")
        )
        for part in own[8:]:
            if not part.startswith("["):
                first, _, last = part.partition("-")
                yield int(first), int(last or first)

    @staticmethod
    def _lines(node: Server) -> list[str]:
        return str(node.command("CLUSTER", "NODES")).splitlines()

    def id(self, index: int) -> str:
        """Return the name that a node has in the cluster."""
        return str(self.nodes[index].command("CLUSTER", "MYID"))

    def migrate(self, slot: int, target: int, *, during: Callable[[], object]) -> None:
        """Move a slot and its keys to another node; `during` runs between the two steps."""
        source = self.owner(slot)
        from_, to = self.nodes[source], self.nodes[target]
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        from_.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(target))
        during()
        while keys := from_.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            from_.command("MIGRATE", HOST, to.port, "", 0, 5000, "KEYS", *keys)
        for node in (to, from_, *self.nodes):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", self.id(target))

    def stop(self) -> None:
        """Stop the nodes."""
        for node in self.nodes:
            node.stop()


def start_cluster(folder: Path, count: int = 3, config: Mapping[str, str] | None = None) -> Cluster:
    """Start a cluster and wait until it serves all slots."""
    nodes = []
    for index in range(count):
        settings = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": "2000",
            "cluster-port": str(free_port()),
            **(config or {}),
        }
        nodes.append(Server(folder / f"{index}", settings).start())
    for index, node in enumerate(nodes):
        first, last = SLOTS * index // count, SLOTS * (index + 1) // count - 1
        node.command("CLUSTER", "ADDSLOTSRANGE", first, last)
        node.command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
    for node in nodes[1:]:
        nodes[0].command("CLUSTER", "MEET", HOST, node.port, node.config["cluster-port"])
    cluster = Cluster(nodes)

    def is_ready() -> bool:
        return all(
            sum(1 for line in cluster._lines(node) if "connected" in line.split()) == count
            and "cluster_state:ok" in node.command("CLUSTER", "INFO")
            for node in nodes
        )

    try:
        wait_until(is_ready, "the cluster serves all slots", nodes[0].process)
    except BaseException:
        cluster.stop()
        raise
    return cluster


@dataclass
class SentinelSet:
    """A primary, a replica, and three Sentinels that watch them."""

    servers: list[Server]
    sentinels: list[Server]
    service: str = "limits"

    @property
    def url(self) -> str:
        """The store's URL."""
        sentinels = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{sentinels}/{self.service}"

    def primary(self) -> Server:
        """Return the server that the Sentinels call the primary."""
        address = self.sentinels[0].command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return next(server for server in self.servers if server.port == int(address[1]))

    def wait_for_replica(self) -> None:
        """Wait until the replica has all data of the primary."""
        primary = self.primary()
        with closing(primary.client()) as client:
            client.wait(1, SECONDS_TO_START * 1000)

    def fail_over(self) -> None:
        """Promote the replica, and wait until the two have changed their roles."""
        before = self.primary()
        self.sentinels[0].command("SENTINEL", "FAILOVER", self.service)
        self.wait_for_another(before.port)

        def is_replica() -> bool:
            # It closes all connections as it changes its role.
            with suppress(redis.ConnectionError):
                return before.info("role") == "slave"
            return False

        # Until then it would accept writes that are lost.
        self._wait_until(is_replica, "the old primary is a replica")

    def wait_for_another(self, port: int) -> None:
        """Wait until the primary has a different port."""

        def is_promoted() -> bool:
            primary = self.primary()
            return primary.port != port and primary.info("role") == "master"

        self._wait_until(is_promoted, "the replica is promoted")

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, self.sentinels[0].process)

    def stop(self) -> None:
        """Stop all processes, the Sentinels first."""
        for server in (*self.sentinels, *self.servers):
            server.stop()


def start_sentinels(folder: Path, count: int = 3) -> SentinelSet:
    """Start a primary, a replica and Sentinels that know both."""
    primary = Server(folder / "primary").start()
    replication = {"replicaof": f"{HOST} {primary.port}", "repl-diskless-sync-delay": "0"}
    replica = Server(folder / "replica", replication).start()
    service = "limits"
    monitor = {
        "sentinel monitor": f"{service} {HOST} {primary.port} {count // 2 + 1}",
        "sentinel down-after-milliseconds": f"{service} 1000",
        "sentinel failover-timeout": f"{service} 5000",
    }
    sentinels = [
        Server(folder / f"sentinel-{index}", monitor, is_sentinel=True).start()
        for index in range(count)
    ]
    made = SentinelSet([primary, replica], sentinels, service)

    def is_ready() -> bool:
        is_linked = replica.info("master_link_status") == "up"
        return is_linked and all(
            len(sentinel.command("SENTINEL", "REPLICAS", service)) == 1
            and len(sentinel.command("SENTINEL", "SENTINELS", service)) == count - 1
            for sentinel in sentinels
        )

    try:
        wait_until(is_ready, "the Sentinels know the servers", sentinels[0].process)
    except BaseException:
        made.stop()
        raise
    return made
