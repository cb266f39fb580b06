"""Make the links and pictures of the README absolute, for the page of the package on PyPI.

`python docs/assets/pypi_readme.py` rewrites README.md in place; the release workflow runs it before
it builds. In the repository the links stay relative, so that they work in every copy and branch.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?)(\[[^]]*\])\((?!https?://|#)([^)]+)\)")


def absolute(text: str, repository: str, revision: str) -> str:
    """Return the text with links to pages, and pictures as files, of one revision."""

    def link(match: re.Match[str]) -> str:
        is_picture, label, target = match.groups()
        kind = "raw" if is_picture else "blob"
        return f"{is_picture}{label}({repository}/{kind}/{revision}/{target})"

    return LINK.sub(link, text)


def main() -> None:
    """Rewrite README.md with the addresses of pyproject.toml and the version of Cargo.toml."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    crate = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    repository = re.findall(r'^Homepage = "(.+)"$', project, re.MULTILINE)[0]
    version = re.findall(r'^version = "(.+)"$', crate, re.MULTILINE)[0]
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(absolute(text, repository, f"v{version}"), encoding="utf-8")


if __name__ == "__main__":
    main()
