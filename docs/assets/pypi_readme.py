"""Write the README for the page of the package on PyPI.

`python docs/assets/pypi_readme.py` rewrites README.md in place; the release workflow runs it before
it builds. Links and pictures become absolute, and the installation is that from PyPI. In the
repository the links stay relative, so that they work in every copy and branch.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?)(\[[^]]*\])\((?!https?://|#)([^)]+)\)")
# From the commands of a checkout to the installation from it.
CHECKOUT = re.compile(r"(?<=## Try it\n\n)```sh\nmake demo.*?pip install \.\S*.*?```\n", re.DOTALL)
INSTALLATION = """\
```sh
pip install penstock            # no dependencies
pip install "penstock[django]"  # with an extra
```
"""


def installed(text: str) -> str:
    """Return the text with the installation from PyPI in place of that from a checkout."""
    text, replaced = CHECKOUT.subn(INSTALLATION, text)
    if replaced != 1:
        raise ValueError(
            "README.md has no installation from a checkout, which PyPI's page replaces"
        )
    return text


def absolute(text: str, repository: str, revision: str) -> str:
    """Return the text with links to pages, and pictures as files, of one revision."""

    def link(match: re.Match[str]) -> str:
        is_picture, label, target = match.groups()
        kind = "raw" if is_picture else "blob"
        return f"{is_picture}{label}({repository}/{kind}/{revision}/{target})"

    return LINK.sub(link, text)


def main() -> None:
    """Rewrite README.md with the address in pyproject.toml and the version in Cargo.toml."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    crate = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    repository = re.findall(r'^Homepage = "(.+)"$', project, re.MULTILINE)[0]
    version = re.findall(r'^version = "(.+)"$', crate, re.MULTILINE)[0]
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(absolute(installed(text), repository, f"v{version}"), encoding="utf-8")


if __name__ == "__main__":
    main()
