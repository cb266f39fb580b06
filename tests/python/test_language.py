"""The language lint finds the phrases of its table, and leaves ordinary English alone."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import check
import pytest

if TYPE_CHECKING:
    from pathlib import Path

PHRASES = check.load_phrases()

WRONG = [
    "m or minute would do",
    "a leaky bucket would do, for instance",
    "the limits in force stay",
    "def describe_in_words(limit): ...",
    "told = limiter.spend('Orders', 'ada')",
    "at most so many\n    buckets",
    "/// Gives the bucket's state.",
    "# dropped for\n# want of room",
    "Who gives up gives the place back.",
    "a bucket as never used",
    "- Who came first is served first.",
]

RIGHT = [
    "use `m` or `minute`",
    "What the limit would do to last week's traffic is printed.",
    "A brute force attack fails; enforcing a limit is cheap.",
    "GCRA stands for generic cell rate algorithm.",
    "This is a stand-in for a server; the standard library has a standing queue.",
    "Who may call this?",
    "the value is None, and there is none",
    "not for all clients, but for each of them",
    "There are so many clients that a table helps.",
    "Amended commits, recommended limits, a mendacious header.",
    "Give it a name. The caller can give up.",
    "untold, retold_by; enhance; handout",
    "if words: in_wording = 1",
    "for (index, word) in words.iter() {}",
]


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.wrong)
def test_phrase_is_found_in_its_wrong_sentence_only(phrase: check.Phrase) -> None:
    assert phrase in [finding.phrase for finding in check.find_phrases(phrase.wrong, PHRASES)]
    assert list(check.find_phrases(phrase.right, PHRASES)) == []


@pytest.mark.parametrize("sentence", WRONG)
def test_old_voice_is_found(sentence: str) -> None:
    assert list(check.find_phrases(sentence, PHRASES))


@pytest.mark.parametrize("sentence", RIGHT)
def test_ordinary_english_is_left_alone(sentence: str) -> None:
    assert list(check.find_phrases(sentence, PHRASES)) == []


def test_line_of_a_phrase_is_reported() -> None:
    (finding,) = check.find_phrases("one\ntwo\nan id that is none\n", PHRASES)
    assert (finding.line, finding.text) == (3, "is none")


def test_lint_that_reads_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "language").mkdir()
    for name in ("check.py", "phrases.toml"):
        (tmp_path / "language" / name).write_text((check.FOLDER / name).read_text(encoding="utf-8"))
    subprocess.run(["git", "init", "-q", tmp_path / "empty"], check=True)  # noqa: S607  the user's git
    (tmp_path / "empty/.gitignore").write_text("*\n", encoding="utf-8")
    moved = tmp_path / "empty/tests/language"
    moved.parent.mkdir()
    (tmp_path / "language").rename(moved)
    done = subprocess.run(
        [sys.executable, moved / "check.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "language: 0 files read" in done.stdout
