"""Synthetic logs: reproducible and realistic."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.simulate import Trace
from penstock.simulate.log import write_access_log

if TYPE_CHECKING:
    from pathlib import Path


def test_the_same_seed_writes_the_same_file(tmp_path: Path) -> None:
    written = [
        write_access_log(tmp_path / f"{number}.log", events=2_000, seed=seed).read_bytes()
        for number, seed in enumerate((1, 1, 2))
    ]
    assert written[0] == written[1] != written[2]
    packed = write_access_log(tmp_path / "a.log.gz", events=2_000, seed=1)
    again = write_access_log(tmp_path / "b.log.gz", events=2_000, seed=1)
    assert packed.read_bytes() == again.read_bytes()
    assert gzip.decompress(packed.read_bytes()) == written[0]


def test_log_looks_realistic(tmp_path: Path) -> None:
    path = write_access_log(tmp_path / "a.log", events=20_000, clients=1_000, seed=5)
    text = path.read_text(encoding="utf-8")
    assert all(sign in text for sign in (r"\"quotes\"", r"\x22quotes", "2001:db8:", "ExampleBot"))
    trace = Trace.from_log(path)
    assert trace.is_sorted
    assert 23 * 3600 < trace.duration_ns / 10**9 < 24 * 3600
    assert trace.codes is not None
    # A tenth of the clients sends more than half of the requests.
    counts = np.sort(np.bincount(trace.codes))[::-1]
    assert counts[: len(counts) // 10].sum() > len(trace) / 2
    assert counts[0] > 100 * counts[-1]
    # Nights are quiet.
    hours = np.bincount((trace.times // (3600 * 10**9) % 24).astype(np.intp), minlength=24)
    assert hours[2:5].sum() * 3 < hours[9:12].sum()


def test_an_attack_tries_passwords_for_ten_minutes(tmp_path: Path) -> None:
    path = write_access_log(tmp_path / "a.log", events=10_000, attack=0.2, seed=5)
    tried = Trace.from_log(path, id=("path", "address"), cost="status")
    assert tried.codes is not None
    logins = [number for number, id in enumerate(tried.clients) if id.startswith("/login")]
    is_login = np.isin(tried.codes, logins)
    assert 1_800 < is_login.sum() < 2_200
    assert np.ptp(tried.times[is_login]) <= 600 * 10**9
    assert tried.costs is not None
    assert set(tried.costs[is_login].tolist()) == {401}


@pytest.mark.parametrize(
    "options",
    [
        {"events": 0},
        {"events": 1},
        {"clients": 1},
        {"hours": 0.01},
        {"hours": 100},
        {"bots": 1, "attack": 0},
        {"bots": 0, "attack": 0, "ipv6": 1},
        {"start": "2026-12-31T23:00:00-03:30"},
    ],
)
def test_extreme_options_give_lines_that_parse(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_access_log(tmp_path / "a.log", **{"events": 500, **options})
    events = options.get("events", 500)
    assert len(path.read_bytes().splitlines()) == events
    if events:
        trace = Trace.from_log(path)
        assert (len(trace), trace.skipped.skipped) == (events, 0)
        start = np.datetime64("2027-01-01T02:30") if "start" in options else None
        assert start is None or trace.times[0] >= start.astype("datetime64[ns]").astype(np.int64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"events": -1}, "events and clients"),
        ({"clients": 0}, "events and clients"),
        ({"bots": 1.5}, "bots"),
        ({"bots": 0.6, "attack": 0.6}, "bots and attack"),
        ({"hours": 0}, "hours"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_access_log(tmp_path / "a.log", **options)
