"""Refuse phrases that are not plain technical English, in every text file of the project.

The phrases are in `phrases.toml`. `make lint` runs this script, which prints each phrase that it
finds, and how many files it read.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SUFFIXES = {".html", ".ipynb", ".lua", ".md", ".py", ".pyi", ".rs", ".toml", ".yaml", ".yml"}
NAMES = {"Makefile", "run"}
# The table itself, and the test that holds wrong sentences.
EXEMPT = ("tests/language/phrases.toml", "tests/python/test_language.py")


class Phrase(NamedTuple):
    """One row of the table."""

    match: re.Pattern[str]
    reason: str
    write: str
    wrong: str
    right: str


class Finding(NamedTuple):
    """A phrase that was found, and the line of its first letter."""

    line: int
    text: str
    phrase: Phrase


def load_phrases(path: Path = FOLDER / "phrases.toml") -> list[Phrase]:
    """Read the table of phrases."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["phrase"]
    flags = re.IGNORECASE | re.MULTILINE
    # Words may be apart by more than one space, where a line ended between them.
    return [Phrase(re.compile(row.pop("match").replace(" ", " +"), flags), **row) for row in rows]


def find_phrases(text: str, phrases: list[Phrase]) -> Iterator[Finding]:
    """Yield each phrase found in `text`, also in names, where `_` counts as a space."""
    # A phrase may run over a line's end and its comment mark; offsets stay as they are.
    flat = re.sub(r"(?<=\S)\n *(?:///?!?|#) (?=[a-z`])", blank, text.replace("_", " "))
    flat = re.sub(r"(?<=[a-z,;])\n(?= *[a-z`])", " ", flat)
    for phrase in phrases:
        for match in phrase.match.finditer(flat):
            found = match.group().lstrip()
            start = match.end() - len(found)
            yield Finding(text.count("\n", 0, start) + 1, text[start : match.end()], phrase)


def blank(match: re.Match[str]) -> str:
    """Return as many spaces as the match is long."""
    return " " * len(match.group())


def project_files() -> list[str]:
    """List the project's text files, without those that git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(
        name
        for name in set(done.stdout.splitlines())
        if (Path(name).suffix in SUFFIXES or Path(name).name in NAMES)
        and name not in EXEMPT
        and (ROOT / name).is_file()
    )


def main() -> int:
    """Print what was found in the given files, or in all; return 1 if anything was."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="files to read, relative to the project's root")
    names = parser.parse_args().files or project_files()
    phrases = load_phrases()
    found = 0
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        for line, words, phrase in sorted(find_phrases(text, phrases), key=lambda row: row.line):
            found += 1
            print(f"{name}:{line}: {words!r}: {phrase.reason}; write: {phrase.write}")
    print(f"language: {len(names)} files read, {len(phrases)} phrases, {found} found")
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
