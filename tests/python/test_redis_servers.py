"""The servers that other tests start: each kind works, and none outlives its test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
import redis_servers
from redis_servers import HOST, ONCE, Server, start_cluster, start_sentinels, tls_config
from tcp_proxy import Proxy

if TYPE_CHECKING:
    from conftest import StartServer


def test_each_test_finds_an_empty_server(redis_server: Server) -> None:
    assert redis_server.command("DBSIZE") == 0
    redis_server.command("SET", "left", "behind")


def test_killed_server_loses_its_data_and_keeps_its_port(start_server: StartServer) -> None:
    server = start_server()
    port, first = server.port, server.pid
    server.command("SET", "key", "value")
    server.kill()
    assert not server.is_running
    server.start()
    assert server.port == port
    assert server.pid != first
    assert server.command("GET", "key") is None


def test_paused_server_answers_nothing_until_it_goes_on(start_server: StartServer) -> None:
    server = start_server()
    server.pause()
    with (
        redis.Redis(HOST, server.port, socket_timeout=0.05, retry=ONCE) as client,
        pytest.raises(redis.TimeoutError),
    ):
        client.ping()
    server.resume()
    assert server.command("PING")


def test_server_with_tls_refuses_a_client_of_another_authority(
    start_server: StartServer, tmp_path: Path
) -> None:
    config, authority = tls_config(tmp_path / "tls")
    _, other = tls_config(tmp_path / "other")
    server = start_server(config, certificate=authority)
    assert server.url.startswith("rediss://")
    with redis.Redis(HOST, server.port, ssl=True, ssl_ca_certs=str(authority)) as client:
        assert client.ping()
    with (
        redis.Redis(HOST, server.port, ssl=True, ssl_ca_certs=str(other), retry=ONCE) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


def test_server_with_a_user_refuses_everyone_else(start_server: StartServer) -> None:
    server = start_server({"user": "limits on >secret ~* +@all", "requirepass": "other"})
    with pytest.raises(redis.AuthenticationError):
        server.command("PING")
    with redis.Redis(HOST, server.port, username="limits", password="secret") as client:  # noqa: S106  of this test
        assert client.ping()


@pytest.mark.slow
def test_cluster_moves_a_slot_with_its_keys(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path)
    try:
        slot = int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", "key"))
        source = cluster.owner(slot)
        target = (source + 1) % 3
        cluster.nodes[source].command("SET", "key", "value")
        asked: list[int] = []
        cluster.migrate(slot, target, during=lambda: asked.append(cluster.owner(slot)))
        assert asked == [source]
        assert cluster.owner(slot) == target
        assert cluster.nodes[target].command("GET", "key") == "value"
    finally:
        cluster.stop()


@pytest.mark.slow
def test_sentinels_promote_the_replica_of_a_killed_primary(tmp_path: Path) -> None:
    made = start_sentinels(tmp_path)
    try:
        primary = made.primary()
        primary.command("SET", "key", "value")
        made.wait_for_replica()
        primary.kill()
        made.wait_for_another(primary.port)
        assert made.primary().command("GET", "key") == "value"
    finally:
        made.stop()


def test_proxy_loses_a_request_or_a_reply(start_server: StartServer) -> None:
    server = start_server()
    with Proxy(server.port) as proxy, redis.Redis(HOST, proxy.port, retry=ONCE) as client:
        client.ping()
        proxy.cut("request")
        with pytest.raises(redis.ConnectionError):
            client.incr("lost-request")
        client.ping()
        proxy.cut("reply")
        with pytest.raises(redis.ConnectionError):
            client.incr("lost-reply")
        assert proxy.cuts == 2
    assert server.command("GET", "lost-request") is None
    assert server.command("GET", "lost-reply") == "1"


START_AND_DIE = """
import os, pathlib, signal, sys
from redis_servers import Server
server = Server(pathlib.Path(sys.argv[1])).start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_server_ends_with_a_killed_process(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", START_AND_DIE, str(tmp_path)],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    pid = int(done.stdout)

    def is_gone() -> bool:
        status = Path(f"/proc/{pid}/status")
        return not status.exists() or "State:\tZ" in status.read_text(encoding="utf-8")

    redis_servers.wait_until(is_gone, "the server is gone", pace=lambda: None)


def test_missing_server_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_servers, "INSTALLED", ())
    with pytest.raises(redis_servers.ServerMissingError, match="apt-get install redis-server"):
        Server(tmp_path).start()
