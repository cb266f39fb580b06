"""Write `llms.txt` and `llms-full.txt` into the built site: its pages for programs that read text.

Source: https://llmstxt.org. The pages and their order are those of the navigation in `mkdocs.yml`;
the full text leaves out the generated reference, whose text is in the package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HIDDEN = re.compile(r"<!--.*?-->\n*", re.DOTALL)


def pages() -> list[tuple[str, Path]]:
    """Return the sections and pages of the navigation, in order."""
    found, section = [], ""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    for line in navigation.splitlines():
        if match := re.fullmatch(r"  - ([\w -]+):", line):
            section = match[1]
        elif match := re.search(r"([\w/-]+\.md)$", line):
            found.append((section, ROOT / "docs" / match[1]))
    return found


def summary(text: str) -> str:
    """Return the first sentence after the title, without links and emphasis."""
    for paragraph in HIDDEN.sub("", text).split("\n\n")[1:]:
        if re.match(r"[A-Za-z*]|`[^`]", paragraph):
            plain = " ".join(paragraph.replace("**", "").split())
            line = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain)
            return re.split(r"(?<=[.:]) ", line)[0].rstrip(":.")
    return ""


def main(site: Path) -> None:
    """Write both files."""
    address = re.search(
        r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE
    )
    base = address[1] if address else "/"
    lines, full = [], []
    for section, path in pages():
        text = path.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        if not section:
            lines.append(f"# {title}\n\n> {summary(text)}\n")
        elif f"\n## {section}\n" not in lines:
            lines.append(f"\n## {section}\n")
        if section:
            name = str(path.relative_to(ROOT / "docs").with_suffix(""))
            link = base + (name.removesuffix("index") if name.endswith("index") else f"{name}/")
            about = summary(text)
            lines.append(f"- [{title}]({link})" + (f": {about}" if about else ""))
        if "\n::: " not in text:
            full.append(HIDDEN.sub("", text).strip())
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
