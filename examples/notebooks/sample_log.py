"""Synthetic access logs that look like real ones, for the notebooks, the tests and the docs."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import io
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray


_LINES_AT_ONCE: Final = 50_000
_START: Final = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
_SHARES: Final = (1 - 0.1 - 0.05, 0.1, 0.05)
# The share of visitors with an IPv6 address.
_IPV6: Final = 0.3
_MONTHS: Final = tuple("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())  # noqa: SIM905  as people read them
_PAGES: Final = (
    "/", "/about", "/api/v1/items", "/api/v1/items/{}", "/api/v1/search?q=item{}", "/basket",
    "/blog/{}", "/favicon.ico", "/robots.txt", "/static/app.js", "/static/style.css?v={}",
)  # fmt: skip
_MOZILLA: Final = "Mozilla/5.0"
_AGENTS: Final = (
    f"{_MOZILLA} (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0",
    f"{_MOZILLA} (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/142.0.0.0 Safari/537.36",
    f"{_MOZILLA} (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 Version/19.1",
    "ShopApp/3.2 (Android 16)",
    r"Friend of \"quotes\"/1.0",
    r"Friend of \x22quotes\x22/2.0",
    "-",
)
_BOT: Final = "Mozilla/5.0 (compatible; ExampleBot/2.1; +http://bot.example/about)"
_ATTACKER: Final = "python-requests/2.32.5"
# The traffic of each hour of a day, relative to the others.
_DAY: Final = (4, 3, 2, 2, 2, 3, 5, 8, 11, 13, 14, 14, 13, 14, 14, 13, 13, 13, 14, 15, 14, 11, 8, 6)


def write_access_log(
    path: str | os.PathLike[str],
    events: int = 100_000,
    seed: int = 0,
    *,
    clients: int = 2_000,
    hours: float = 24.0,
) -> Path:
    """Write a synthetic access log in the combined format, sorted by time.

    A few clients send most requests, traffic follows a daily cycle, some clients are crawlers, and
    for ten minutes an attacker tries passwords. The same arguments write the same file.

    Args:
        path: The file; compressed if its name ends in `.gz`.
        events: Number of lines.
        seed: The seed of the random generator.
        clients: Number of visitors, without bots and the attacker.
        hours: The length of the log.
    """
    random = np.random.default_rng(seed)
    # Visitors, crawlers and an attacker.
    kinds = random.choice(3, events, p=_SHARES).astype(np.int8)
    seconds = _seconds(random, kinds, hours * 3600)
    order = np.argsort(seconds, kind="stable")
    kinds, seconds = kinds[order], seconds[order]
    visitors = _visitors(random, clients)
    # The number of requests of a client follows a power law of its rank.
    weights = 1 / np.arange(1, clients + 1) ** 1.1
    file = Path(path)
    with _open_output(file) as out:
        for first in range(0, events, _LINES_AT_ONCE):
            part = slice(first, first + _LINES_AT_ONCE)
            visits = random.choice(clients, len(kinds[part]), p=weights / weights.sum())
            out.writelines(_lines(random, seconds[part], kinds[part], visits, visitors))
    return file


def _seconds(random: np.random.Generator, kinds: NDArray[Any], length: float) -> NDArray[np.int64]:
    """Choose the time of each event, in whole seconds from the start."""
    hours = np.arange(0, length / 3600 + 1)
    rates = np.array([_DAY[int(hour) % 24] for hour in hours[:-1]] or [1], np.float64)
    steps = np.concatenate([[0.0], np.cumsum(rates)])
    edges = np.minimum(hours[: len(steps)] * 3600, length)
    at = np.interp(random.random(len(kinds)) * steps[-1], steps, edges)
    attacked = kinds == 2  # noqa: PLR2004  the third kind
    window = min(600.0, length / 4)
    at[attacked] = length / 2 + random.random(int(attacked.sum())) * window
    whole: NDArray[np.int64] = at.astype(np.int64)
    return whole


def _visitors(random: np.random.Generator, clients: int) -> list[str]:
    """Choose addresses from networks that are reserved for documentation."""
    numbers = random.permutation(max(clients, 1))
    is_six = random.random(clients) < _IPV6
    return [
        f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::{number % 250 + 1:x}"
        if six
        else f"{(198, 203)[number & 1]}.{18 + number % 2}.{number >> 8 & 255}.{number & 255}"
        for number, six in zip(numbers.tolist(), is_six.tolist(), strict=True)
    ]


def _lines(
    random: np.random.Generator,
    seconds: NDArray[np.int64],
    kinds: NDArray[Any],
    visits: NDArray[Any],
    visitors: list[str],
) -> Iterator[str]:
    count = len(kinds)
    draws = random.random(count).tolist()
    numbers = random.integers(1, 5_000, count).tolist()
    stamps: dict[int, str] = {}
    columns = zip(seconds.tolist(), kinds.tolist(), visits.tolist(), draws, numbers, strict=True)
    for second, kind, client, draw, number in columns:
        stamp = stamps.get(second)
        if stamp is None:
            stamp = stamps[second] = _stamp(_START + datetime.timedelta(seconds=second))
        if kind == 0:
            agent = _AGENTS[client % len(_AGENTS)]
            page = _PAGES[int(draw * len(_PAGES))].format(number)
            status = 200 if draw < 0.9 or client % 3 else 404  # noqa: PLR2004  nine of ten
            referer = "https://shop.example/" if number % 3 else "-"
            user = f"user{client}" if client % 10 == 1 else "-"
            yield (
                f'{visitors[client]} - {user} [{stamp}] "GET {page} HTTP/1.1" {status} '
                f'{number * 7} "{referer}" "{agent}"\n'
            )
        elif kind == 1:
            address = f"66.249.{64 + client % 8}.{client % 250 + 1}"
            yield (
                f'{address} - - [{stamp}] "GET /blog/{number} HTTP/2.0" 200 {number * 11} '
                f'"-" "{_BOT}"\n'
            )
        else:
            address = f"192.0.2.{client % 16 + 1}"
            yield (f'{address} - - [{stamp}] "POST /login HTTP/1.1" 401 187 "-" "{_ATTACKER}"\n')


def _stamp(when: datetime.datetime) -> str:
    # Not %b: its month names depend on the locale.
    return f"{when:%d}/{_MONTHS[when.month - 1]}/{when:%Y:%H:%M:%S} {when:%z}"


@contextlib.contextmanager
def _open_output(path: Path) -> Iterator[IO[str]]:
    with path.open("wb") as file:
        if path.suffix != ".gz":
            with io.TextIOWrapper(file, encoding="utf-8", newline="\n") as out:
                yield out
            return
        # No file name and no time in the header: the same log is the same file.
        with (
            gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
            io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as out,
        ):
            yield out
