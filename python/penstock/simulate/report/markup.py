"""Parts of an HTML page. All texts are escaped here, and nowhere else."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.display import printable
from penstock.simulate.report.style import SCRIPT, STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable


_MAX_TEXT: Final = 300


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: The text.
        value: The sort key; None to sort by the text.
        share: A share of 1 to show as a small bar, if any.
        is_id: Whether it is an id.
    """

    text: str
    value: float | None = None
    share: float | None = None
    is_id: bool = False


def escape_text(text: str, *, is_whole: bool = False) -> str:
    """Escape a text for HTML and replace control characters.

    A long text is truncated, unless it is to stay whole, with its lines.
    """
    if is_whole:
        return escape("\n".join(map(printable, text.split("\n"))))
    return escape(printable(text, _MAX_TEXT))


def page(title: str, mark: str, lead: str, body: Iterable[str], foot: str) -> str:
    """Return a self-contained page, whose content security policy forbids network access."""
    digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape_text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<p class="mark">{escape_text(mark)}</p>
<h1>{escape_text(title)}</h1>
<p class="lead">{escape_text(lead)}</p>
</header>
<main>
{chr(10).join(body)}
</main>
<footer><p>{escape_text(foot)}</p></footer>
<script>{SCRIPT}</script>
</body>
</html>
"""


def section(name: str, heading: str, *parts: str, level: int = 2) -> str:
    """Return a section with its heading."""
    inside = "\n".join(part for part in parts if part)
    return (
        f'<section aria-labelledby="{name}">'
        f'<h{level} id="{name}">{escape_text(heading)}</h{level}>\n'
        f"{inside}</section>"
    )


def paragraph(text: str, kind: str = "soft") -> str:
    """Return a paragraph."""
    return f'<p class="{kind}">{escape_text(text)}</p>'


def figure(drawing: str, caption: str = "") -> str:
    """Return a drawing with its caption."""
    text = f"<figcaption>{escape_text(caption)}</figcaption>" if caption else ""
    return f"<figure>{drawing}{text}</figure>"


def tiles(facts: Iterable[tuple[str, str, str, str]]) -> str:
    """Return the main numbers: name, value, note in small type, and CSS class."""
    inside = "".join(
        f'<div class="{kind}"><dt>{escape_text(name)}</dt><dd>{escape_text(value)}'
        f"{f'<small>{escape_text(note)}</small>' if note else ''}</dd></div>"
        for name, value, note, kind in facts
    )
    return f'<dl class="tiles">{inside}</dl>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of facts, one per row."""
    body = "".join(
        f'<tr><th scope="row">{escape_text(head)}</th><td>{escape_text(value)}</td></tr>'
        for head, value in rows
    )
    return f'<div class="wide"><table class="facts"><tbody>{body}</tbody></table></div>'


def table(
    label: str, heads: Iterable[str], rows: Iterable[Iterable[Cell]], *, kind: str = "numbers"
) -> str:
    """Return a table that a click on a head sorts; the first cell of a row is its head.

    Its kind is `numbers` (aligned to the right) or `texts`.
    """
    first = "".join(
        f'<th scope="col"><button type="button">{escape_text(head)}</button></th>' for head in heads
    )
    body = "".join(
        f"<tr>{''.join(_cell(cell, is_head=index == 0) for index, cell in enumerate(row))}</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table class="{kind}" aria-label="{escape_text(label)}">'
        f"<thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell, *, is_head: bool) -> str:
    tag, scope = ("th", ' scope="row"') if is_head else ("td", "")
    value = "" if cell.value is None else f' data-value="{cell.value:.12g}"'
    kind = ' class="id"' if cell.is_id else ""
    text = escape_text(cell.text)
    if cell.share is not None:
        wide = min(max(cell.share, 0.0), 1.0)
        text += f'<span class="share"><i style="width:{wide:.1%}"></i></span>'
    return f"<{tag}{scope}{kind}{value}>{text}</{tag}>"
