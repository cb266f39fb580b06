"""The servers that other tests start are stopped after each test.

That they fail as asked is what `test_redis_faults.py` needs for its own numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis_servers
from redis_servers import Server

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

    redis_servers.wait_until(is_gone, "the server is gone")


def test_missing_server_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_servers, "INSTALLED", ())
    with pytest.raises(redis_servers.ServerMissingError, match="apt-get install redis-server"):
        Server(tmp_path).start()
