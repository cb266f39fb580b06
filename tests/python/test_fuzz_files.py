"""Huge, broken or malicious limits files: an error, in little time and memory."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Limit the memory of this process to 300 MB more than now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 300_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


NESTED = 500_000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HUGE: dict[str, bytes] = {
    "an alias bomb": BOMB.encode(),
    "a bomb of merge keys": MERGES.encode(),
    "deep lists": b"a: " + b"[" * NESTED,
    "deep lists that end": b"a: " + b"[" * NESTED + b"]" * NESTED,
    "deep mappings": b"{a: " * (NESTED // 4),
    "deep blocks": b"".join(b" " * depth + b"a:\n" for depth in range(3_000)),
    "deep dashes": b"- " * NESTED,
    "NUL bytes": b"Orders: {burst: 1\x00}",
    "nothing but NUL bytes": b"\x00" * NESTED,
    "no UTF-8": b"Orders: {burst: 1, count: 1, period: 1s} # \xff\xfe",
    "half a letter": b"Orders: \xc3",
    "UTF-16": "Orders: {burst: 1, count: 1, period: 1s}".encode("utf-16"),
    "a byte order mark inside": "Orders: {burst: \ufeff1}".encode(),
    "one long line": b"a" * 10_000_000,
    "one long quoted text": b'"' + b"\\x41" * 2_000_000 + b'"',
    "one long number": b"Orders: {burst: " + b"9" * 5_000_000 + b"}",
    "many limits that are wrong": b"".join(b"L%d: 1\n" % n for n in range(100_000)),
    "many keys that are the same": b"{" + b"a: 1, " * 100_000 + b"}",
    "many documents": b"--- {}\n" * 300_000,
    "many anchors": b"".join(b"L%d: &a%d 1\n" % (n, n) for n in range(100_000)),
    "many question marks": b"? " * NESTED,
    "many blanks": b" " * 15_000_000,
    "many lines": b"\n" * 15_000_000,
    "many comments": b"#\n" * 5_000_000,
    "many tags": b"!" * NESTED,
    "many percent signs": b"%" * NESTED,
    "many escapes": b'"' + b"\\" * NESTED + b'"',
    "many colons": b":" * NESTED,
    "many pipes": b"|\n" * NESTED,
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.usefixtures("little_memory")
def test_huge_or_broken_file_is_an_error_in_little_time_and_memory(name: str) -> None:
    content = HUGE[name]
    file = Path("huge.yaml")
    file.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with pytest.raises(penstock.ConfigError) as caught:
        Limits.load(file)
    Path("good.yaml").write_text("{}", encoding="utf-8")
    with pytest.raises(penstock.ConfigError):
        Limits.load("good.yaml", overrides=file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 10
    assert len(str(caught.value)) < 50_000
    assert caught.value.file == "huge.yaml"


@pytest.mark.usefixtures("little_memory")
def test_file_of_100_mb_is_refused_before_it_is_read() -> None:
    file = Path("huge.yaml")
    with file.open("wb") as opened:
        # A sparse file, because only its length matters.
        opened.truncate(100 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with pytest.raises(penstock.ConfigError, match="at most 16777216 bytes long"):
        Limits.load(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 2


@pytest.mark.usefixtures("little_memory")
def test_many_good_limits_and_overrides_load() -> None:
    defaults = "".join(f"L{n}: {{burst: 1, count: 1, period: 1s}}\n" for n in range(20_000))
    ids = ", ".join(map(str, range(200_000)))
    limits = Limits.parse(defaults, f"- L7: {{burst: 2, count: 1, period: 1s, ids: [{ids}]}}")
    assert len(limits) == 20_000
    assert limits.resolve("L7", 199_999).burst == 2


@given(st.binary(max_size=200))
def test_files_of_any_bytes_load_or_are_refused(content: bytes) -> None:
    file = Path("fuzzed.yaml")
    file.write_bytes(content)
    for overrides in (None, file):
        try:
            assert list(Limits.load(file, overrides)) == []
        except penstock.ConfigError as error:
            assert error.file == "fuzzed.yaml"  # noqa: PT017  most contents are refused, not all
