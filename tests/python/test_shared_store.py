"""The shared-memory store, used by several processes of one machine."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = {"Orders": "500/day"}


POOL = """
import multiprocessing, sys, penstock

def spend(url):
    with penstock.Limiter({"Orders": "500/day"}, store=url) as limiter:
        return sum(limiter.spend("Orders", "ada").allowed for _ in range(300))

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(3) as pool:
        print(sum(pool.map(spend, [sys.argv[2]] * 3, chunksize=1)))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_a_pool_share_one_limit_exactly(
    shm_url: str, tmp_path: Path, method: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(POOL, encoding="utf-8")
    command = [sys.executable, str(program), method, shm_url]
    assert subprocess.check_output(command, text=True, timeout=60) == "500\n"


def test_forked_child_decides_by_the_same_buckets(shm_url: str) -> None:
    limiter = penstock.Limiter(LIMITS, store=shm_url)
    limiter.spend("Orders", "ada", 400)
    child = multiprocessing.get_context("fork").Process(
        target=limiter.spend, args=("Orders", "ada", 60)
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    assert limiter.peek("Orders", "ada").remaining == 40


def test_full_table_follows_its_overflow_policy(tmp_path: Path) -> None:
    def fill(overflow: str) -> penstock.Limiter:
        url = f"shm://{tmp_path}/{overflow}?capacity=10&overflow={overflow}"
        limiter = penstock.Limiter(LIMITS, store=url)
        for number in range(200):
            limiter.spend("Orders", str(number))
        return limiter

    denied = fill("deny")
    assert denied.stats()["refused"]
    assert not denied.spend("Orders", "one more")
    assert fill("evict").stats()["evicted"]
    shared = fill("share")
    assert shared.stats()["evicted"] in {0, 1, 2}
    assert shared.peek("Orders", "199").remaining <= 499


# Opens the table with the capacity that it is given, and tells what remains.
OPEN = """
import sys, penstock

try:
    limiter = penstock.Limiter({"Orders": "500/day"}, store=sys.argv[1])
except penstock.StoreUnavailable as error:
    print(error)
else:
    print(limiter.spend("Orders", "ada").remaining)
"""


def opened(url: str) -> str:
    return subprocess.check_output([sys.executable, "-c", OPEN, url], text=True, timeout=60)


def test_capacity_changes_when_no_process_uses_the_table(tmp_path: Path) -> None:
    url = f"shm://{tmp_path}/table"
    assert opened(f"{url}?capacity=1000") == "499\n"
    # A forked child has the table open too, even if its parent has ended.
    limiter = penstock.Limiter(LIMITS, store=f"{url}?capacity=1000")
    assert limiter.spend("Orders", "ada").remaining == 498
    is_over = multiprocessing.get_context("fork").Event()
    child = multiprocessing.get_context("fork").Process(target=is_over.wait, args=(60,))
    child.start()
    del limiter
    gc.collect()
    refused = opened(f"{url}?capacity=2000")
    assert "capacity=1000" in refused
    assert "another name" in refused
    assert opened(url) == "497\n"
    is_over.set()
    child.join()
    assert opened(f"{url}?capacity=2000") == "499\n"
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
