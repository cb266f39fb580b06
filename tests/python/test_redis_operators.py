"""Tasks of operators: resets in a cluster, warnings, and options of connections."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis_servers import Server, tls_config

import penstock
from penstock import Limit, Limiter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Command, StartServer
    from redis_servers import Cluster

LIMITS = {"Orders": Limit.token_bucket(burst=50, count=1, period="1h")}
PATIENT = "deadline=20s"
DOCS = Path(__file__).parents[2] / "docs"
# More than the keys of one slot, and of one portion of a scan.
CLIENTS = [f"client-{number}" for number in range(300)]


@pytest.fixture
def filled(cluster: Cluster) -> Iterator[str]:
    """The URL of a cluster with a bucket for each client."""
    for node in cluster.nodes:
        node.command("FLUSHALL")
    url = f"{cluster.url}?{PATIENT}"
    with Limiter(LIMITS, url) as limiter:
        for number, client in enumerate(CLIENTS):
            limiter.spend("Orders", client, 1 + number % 2)
        limiter.spend("Orders", CLIENTS[7], 40)
        yield url


@pytest.mark.slow
def test_whole_cluster_is_cleared(cluster: Cluster, filled: str, command: Command) -> None:
    assert all(node.command("DBSIZE") > 0 for node in cluster.nodes)
    cluster.nodes[0].command("SET", "{penstock2:ada}other", "stays")
    assert command.json_of("store", "clear", filled, "--yes") == {"cleared": len(CLIENTS)}
    assert sum(node.command("DBSIZE") for node in cluster.nodes) == 1


@pytest.mark.slow
def test_one_node_that_evicts_is_a_warning(cluster: Cluster) -> None:
    url = f"{cluster.url}?{PATIENT}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Limiter(LIMITS, url).close()
    node = cluster.nodes[2]
    node.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.warns(RuntimeWarning, match="allkeys-lru"):
            Limiter(LIMITS, url).close()
    finally:
        node.command("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")


@pytest.mark.slow
def test_a_url_of_another_kind_of_server_is_an_error_that_names_the_right_one(
    redis_server: Server, cluster: Cluster, start_server: StartServer, tmp_path: Path
) -> None:
    config, authority = tls_config(tmp_path / "tls")
    encrypted = start_server(config, certificate=authority)
    locked = start_server({"requirepass": "secret"})
    monitor = {"sentinel monitor": f"limits 127.0.0.1 {redis_server.port} 1"}
    sentinel = Server(tmp_path / "sentinel", monitor, is_sentinel=True).start()
    servers = {
        "plain": redis_server,
        "TLS": encrypted,
        "locked": locked,
        "node": cluster.nodes[0],
        "Sentinel": sentinel,
    }
    ca = f"&ca={authority}"
    right = {("plain", "redis"), ("node", "redis+cluster"), ("Sentinel", "redis+sentinel")}
    found = {}
    for name, server in servers.items():
        for kind in ("redis", "redis+cluster", "redis+sentinel"):
            path = "/limits" if kind == "redis+sentinel" else ""
            url = f"{kind}://127.0.0.1:{server.port}{path}?connect_timeout=500ms"
            for given in (url, "rediss" + url.removeprefix("redis") + ca):
                scheme, _, _ = given.partition("://")
                if (name, scheme) in right | {("TLS", "rediss")}:
                    Limiter(LIMITS, given).close()
                    continue
                with pytest.raises(penstock.StoreUnavailable) as caught:
                    Limiter(LIMITS, given)
                found[name, scheme] = str(caught.value)
    sentinel.stop()
    kinds = {"node": "+cluster://", "Sentinel": "+sentinel://HOST/SERVICE"}
    for (name, scheme), message in found.items():
        family, plus, topology = scheme.partition("+")
        if family != ("rediss" if name == "TLS" else "redis"):
            expected = f"{'redis' if family == 'rediss' else 'rediss'}{plus}{topology}://"
        elif name == "locked":
            expected = "NOAUTH"
        else:
            expected = family + kinds.get(name, "://")
        assert expected in message.partition(" in place of ")[0], (name, scheme, message)


def test_a_url_of_a_replica_is_an_error_until_it_is_promoted(
    redis_server: Server, start_server: StartServer
) -> None:
    replica = start_server({"replicaof": f"127.0.0.1 {redis_server.port}"})
    url = f"redis://127.0.0.1:{replica.port}"
    with pytest.raises(penstock.StoreUnavailable, match=r"a replica.*its primary"):
        Limiter(LIMITS, url)
    replica.command("REPLICAOF", "NO", "ONE")
    with Limiter(LIMITS, url) as limiter:
        assert limiter.spend("Orders", "ada").allowed
        # Of a server that was a primary, a failover made a replica: an outage.
        replica.command("REPLICAOF", "127.0.0.1", str(redis_server.port))
        with pytest.raises(penstock.StoreError):
            limiter.spend("Orders", "ada")
        replica.command("REPLICAOF", "NO", "ONE")
        assert limiter.spend("Orders", "ada").remaining == 48


def test_an_answer_that_is_not_of_redis_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        answer = threading.Thread(target=serve)
        answer.start()
        with pytest.raises(penstock.StoreUnavailable, match="check the host and the port"):
            Limiter(LIMITS, f"redis://127.0.0.1:{listener.getsockname()[1]}")
        answer.join()


def test_unix_socket_is_the_same_store(redis_server: Server) -> None:
    with (
        Limiter(LIMITS, f"{redis_server.unix_url}?{PATIENT}") as near,
        Limiter(LIMITS, f"{redis_server.url}?{PATIENT}") as far,
    ):
        assert near.spend("Orders", "ada", 10).remaining == 40
        assert far.spend("Orders", "ada", 10).remaining == 30


def test_client_certificate_is_sent(start_server: StartServer, tmp_path: Path) -> None:
    config, authority = tls_config(tmp_path / "tls")
    server = start_server({**config, "tls-auth-clients": "yes"}, certificate=authority)
    certificate, key = config["tls-cert-file"], config["tls-key-file"]
    with Limiter(LIMITS, f"{server.url}&{PATIENT}&cert={certificate}&key={key}") as limiter:
        assert limiter.spend("Orders", "ada").remaining == 49
    with Limiter(LIMITS, f"{server.url}&{PATIENT}") as limiter, pytest.raises(penstock.StoreError):
        limiter.spend("Orders", "ada")


def test_rights_that_the_docs_name_suffice(redis_server: Server, command: Command) -> None:
    page = (DOCS / "redis.md").read_text("utf-8")
    documented = re.search(r"^ACL (SETUSER limits .+)$", page, re.MULTILINE)
    for_commands = re.search(r"`penstock store clear` also needs `([^`]+)`", page)
    assert documented is not None
    assert for_commands is not None
    redis_server.command("ACL", *documented[1].split())
    url = redis_server.url.replace("://", "://limits:secret@") + f"?{PATIENT}"
    windows = {"Pages": Limit.fixed_window(count=9, period="1h")}
    try:
        with Limiter(LIMITS | windows, url) as limiter:
            assert limiter.spend("Orders", "ada", 5)
            assert limiter.check("Orders", "ada")
            assert limiter.refund("Orders", "ada", 2)
            assert limiter.spend_all([("Orders", "ada", 1), ("Pages", "ada", 1)])
            assert limiter.spend_each("Pages", ["ada", "grace"]).allowed.all()
            limiter.reserve("Orders", "ada", 3).settle(1)
            assert limiter.acquire("Orders", "ada")
            assert limiter.peek("Orders", "ada").remaining == 44
            assert limiter.reset("Orders", "ada")
        assert command.run("store", "clear", url, "--yes") != 0
        redis_server.command("ACL", "SETUSER", "limits", *for_commands[1].split())
        assert command.run("store", "clear", url, "--yes") == 0
    finally:
        redis_server.command("ACL", "DELUSER", "limits")


def open_sockets() -> set[str]:
    folder = Path("/proc/self/fd")
    return {each.name for each in folder.iterdir() if each.exists() and each.is_socket()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sockets of a process are listed in /proc")
def test_calls_are_sent_without_delay(redis_server: Server, cluster: Cluster) -> None:
    for url in (redis_server.url, cluster.url):
        before = open_sockets()
        with Limiter(LIMITS, f"{url}?{PATIENT}") as limiter:
            for client in CLIENTS:
                limiter.spend("Orders", client)
            delays = []
            for number in open_sockets() - before:
                with socket.socket(fileno=os.dup(int(number))) as opened:
                    if opened.family == socket.AF_INET:
                        delays.append(opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        assert delays
        assert all(delays)
