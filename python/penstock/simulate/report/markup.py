"""Parts of a page. Every text is made safe here, so that nobody else has to think of it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.simulate.report.style import SCRIPT, STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cell", "facts", "figure", "page", "paragraph", "section", "table", "tiles", "visible"]

_LONGEST: Final = 300


class Cell(NamedTuple):
    """One place of a table.

    Attributes:
        text: What is read.
        value: What is sorted by; the text itself if `None`.
        share: A share of 1 that a small bar shows, if any.
        is_id: Whether it is an id.
    """

    text: str
    value: float | None = None
    share: float | None = None
    is_id: bool = False


def visible(text: str, *, is_whole: bool = False) -> str:
    """Make a text safe to stand in a page, and what is not seen in it visible.

    Unless it is to stay whole, with its lines, no novel is made of it.
    """
    cut = text if is_whole or len(text) <= _LONGEST else text[:_LONGEST] + "…"
    kept = "\n" if is_whole else ""
    seen = "".join(letter if letter.isprintable() or letter in kept else "\ufffd" for letter in cut)
    return escape(seen)


def page(title: str, mark: str, lead: str, body: Iterable[str], foot: str) -> str:
    """Give a whole page, which asks nothing of any network and would not be let."""
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
<title>{visible(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<p class="mark">{visible(mark)}</p>
<h1>{visible(title)}</h1>
<p class="lead">{visible(lead)}</p>
</header>
<main>
{chr(10).join(body)}
</main>
<footer><p>{visible(foot)}</p></footer>
<script>{SCRIPT}</script>
</body>
</html>
"""


def section(name: str, heading: str, *parts: str, level: int = 2) -> str:
    """Give a section with its heading, of this level."""
    inside = "\n".join(part for part in parts if part)
    return (
        f'<section aria-labelledby="{name}">'
        f'<h{level} id="{name}">{visible(heading)}</h{level}>\n'
        f"{inside}</section>"
    )


def paragraph(text: str, kind: str = "soft") -> str:
    """Give a paragraph."""
    return f'<p class="{kind}">{visible(text)}</p>'


def figure(drawing: str, caption: str = "") -> str:
    """Give a drawing with what is said of it."""
    told = f"<figcaption>{visible(caption)}</figcaption>" if caption else ""
    return f"<figure>{drawing}{told}</figure>"


def tiles(facts: Iterable[tuple[str, str, str, str]]) -> str:
    """Give the chief numbers: what, how much, beside it in small, and its kind."""
    inside = "".join(
        f'<div class="{kind}"><dt>{visible(what)}</dt><dd>{visible(value)}'
        f"{f'<small>{visible(small)}</small>' if small else ''}</dd></div>"
        for what, value, small, kind in facts
    )
    return f'<dl class="tiles">{inside}</dl>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Give a table of facts, a row each."""
    body = "".join(
        f'<tr><th scope="row">{visible(head)}</th><td>{visible(value)}</td></tr>'
        for head, value in rows
    )
    return f'<div class="wide"><table class="facts"><tbody>{body}</tbody></table></div>'


def table(
    label: str, heads: Iterable[str], rows: Iterable[Iterable[Cell]], *, kind: str = "numbers"
) -> str:
    """Give a table that a click on a head sorts; the first cell of a row is its head.

    Its kind is `numbers`, or `texts` where they are more to be read than to be compared.
    """
    first = "".join(
        f'<th scope="col"><button type="button">{visible(head)}</button></th>' for head in heads
    )
    body = "".join(
        f"<tr>{''.join(_cell(cell, is_head=place == 0) for place, cell in enumerate(row))}</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table class="{kind}" aria-label="{visible(label)}">'
        f"<thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell, *, is_head: bool) -> str:
    tag, scope = ("th", ' scope="row"') if is_head else ("td", "")
    value = "" if cell.value is None else f' data-value="{cell.value:.12g}"'
    kind = ' class="id"' if cell.is_id else ""
    text = visible(cell.text)
    if cell.share is not None:
        wide = min(max(cell.share, 0.0), 1.0)
        text += f'<span class="share"><i style="width:{wide:.1%}"></i></span>'
    return f"<{tag}{scope}{kind}{value}>{text}</{tag}>"
