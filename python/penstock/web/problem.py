"""What a refused client is told: a problem document, a page or a line of text, and its headers.

Source: RFC 9457 for the document; draft-ietf-httpapi-ratelimit-headers-11, section 5, for its type
    and
`violated-policies`; RFC 6585, section 4, which forbids caches to keep a 429; RFC 9110, section
12.5.1, for `Accept`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Final

from penstock.web.headers import Fields, is_refused
from penstock.web.messages import DENIED, DENIED_ONE, SEE, Words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Decision

_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_JSON: Final = "application/problem+json"
_HTML: Final = "text/html"
_TEXT: Final = "text/plain"
# What can be sent, the preferred first, and what a client may write in `Accept` to get it.
_OFFERED: Final = (
    (_JSON, (_JSON, "application/json", "application/*", "*/*")),
    (_HTML, (_HTML, "text/*", "*/*")),
    (_TEXT, (_TEXT, "text/*", "*/*")),
)
# Longer than any browser's; what comes after it is not read, so that nobody can make us read for
# long.
_LONGEST_ACCEPT: Final = 2000
_LONGEST_ID: Final = 100

_PAGE: Final = """<!doctype html>
<html{lang}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 1.05rem/1.5 system-ui, sans-serif }}
body {{ max-width: 36rem; margin: 12vh auto; padding: 0 1rem; overflow-wrap: anywhere }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{detail}</p>
</body>
</html>
"""


@dataclass(frozen=True)
class Problem:
    """A refusal in HTTP's terms, before it is written in the form that the client accepts.

    Attributes:
        status: The status code.
        title: What happened, the same for every request.
        detail: What happened to this request: one sentence for people.
        type: The address of the problem's kind; `about:blank` says that the status says it all.
        policies: The names of the limits that refused.
        docs: The address of the documentation of the limit that refused, if it has one.
        language: The code of the language of title and detail; `None` where it is not known.
    """

    status: int
    title: str
    detail: str
    type: str = "about:blank"
    policies: tuple[str, ...] = ()
    docs: str | None = None
    language: str | None = "en"

    def body(self, accept: str | None = None) -> tuple[str, bytes]:
        """Give the content type and the body, in the form that an `Accept` header prefers."""
        form = _negotiated(accept)
        if form == _HTML:
            return "text/html; charset=utf-8", self._page().encode()
        if form == _TEXT:
            return "text/plain; charset=utf-8", f"{self.detail}\n".encode()
        return _JSON, self._document().encode()

    def headers(self) -> Fields:
        """Give the header fields that go with the body, the content's own not among them."""
        fields: Fields = [("Cache-Control", "no-store")]
        if self.docs is not None and _is_sendable_address(self.docs):
            fields.append(("Link", f'<{self.docs}>; rel="help"'))
        return fields

    def _document(self) -> str:
        members: dict[str, object] = {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if self.policies:
            members["violated-policies"] = list(self.policies)
        return json.dumps(members, ensure_ascii=False)

    def _page(self) -> str:
        detail = escape(self.detail)
        if self.docs is not None and _is_sendable_address(self.docs):
            address = escape(self.docs)
            detail = detail.replace(address, f'<a rel="help" href="{address}">{address}</a>')
        lang = "" if self.language is None else f' lang="{escape(self.language)}"'
        return _PAGE.format(title=escape(self.title), detail=detail, lang=lang)


def quota_exceeded(
    decision: Decision, parts: Sequence[Decision], wait_ns: int, words: Words | None = None
) -> Problem:
    """Make the problem of a request that a limit refused.

    Args:
        decision: The strictest one, of which the sentence speaks.
        parts: All decisions about the request.
        wait_ns: How long the client is told to wait, in nanoseconds.
        words: The language; English unless said.
    """
    words = words or Words()
    names = [part.name for part in parts if is_refused(part) and part.name is not None]
    return Problem(
        status=429,
        title=words.say("Too many requests"),
        detail=_sentence(decision, wait_ns, words),
        type=f"{_TYPES}quota-exceeded",
        policies=tuple(dict.fromkeys(names)),
        docs=decision.docs,
        language=words.language,
    )


def reduced_capacity(words: Words | None = None) -> Problem:
    """Make the problem of a request that cannot be decided, and is refused for safety."""
    words = words or Words()
    return Problem(
        status=503,
        title=words.say("Temporarily unavailable"),
        detail=words.say(
            "It cannot be checked just now whether this request may pass; try again soon."
        ),
        type=f"{_TYPES}temporary-reduced-capacity",
        language=words.language,
    )


def bad_request(detail: str, words: Words | None = None) -> Problem:
    """Make the problem of a request that no wait would help; `detail` is said already."""
    words = words or Words()
    title = words.say("Bad request")
    return Problem(status=400, title=title, detail=detail, language=words.language)


def _sentence(decision: Decision, wait_ns: int, words: Words) -> str:
    whom = _shown_id(decision.id)
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        # Up, as all times in HTTP: who comes back at the second shown is not too early.
        seconds=-(-(decision.now_ns + wait_ns) // 1_000_000_000)
    )
    denied = words.say(
        DENIED_ONE if whom else DENIED,
        # The limit's own description may be in the catalogue of the application too.
        what=words.say_given(decision.description or "requests"),
        whom=whom,
        limit=words.limit(decision.limit),
        time=instant.isoformat(sep=" ").removesuffix("+00:00"),
    )
    return f"{denied} {words.say(SEE, docs=decision.docs)}" if decision.docs else denied


def _shown_id(id: str | None) -> str | None:
    """Give the id if it can be read by people; whole or not at all."""
    if id is None or len(id) > _LONGEST_ID or not id.isprintable():
        return None
    return id


def _is_sendable_address(address: str) -> bool:
    """Whether an address can stand in a header, and be followed from a page."""
    plain = address.isascii() and address.isprintable() and not set(address) & set(' <>"\\^`{|}')
    return plain and address.lower().startswith(("https://", "http://", "/"))


def _negotiated(accept: str | None) -> str:
    """Choose the form that a client likes best; the document where it says nothing we can do."""
    if accept is None or not accept.strip():
        return _JSON
    wished = _wishes(accept[:_LONGEST_ACCEPT])
    best, best_quality = _JSON, 0.0
    for form, spellings in _OFFERED:
        # The most specific of a client's ranges decides, whatever its order (RFC 9110, section
        # 12.5.1).
        quality = next((wished[s] for s in spellings if s in wished), 0.0)
        if quality > best_quality:
            best, best_quality = form, quality
    return best


def _wishes(accept: str) -> dict[str, float]:
    wished: dict[str, float] = {}
    for item in accept.split(","):
        media, *parameters = item.split(";")
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "q":
                quality = _quality(value.strip())
        spelling = media.strip().lower()
        wished[spelling] = max(wished.get(spelling, 0.0), quality)
    return wished


def _quality(text: str) -> float:
    # A quality that cannot be read says that the client cares, but not how much.
    if not text.replace(".", "", 1).isdecimal() or not text.isascii():
        return 1.0
    return min(float(text), 1.0)
