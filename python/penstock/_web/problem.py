"""Bodies and headers of refusals: a problem document, an HTML page or a line of text.

Source: RFC 9457 for the document; draft-ietf-httpapi-ratelimit-headers-11, section 5, for its type
and `violated-policies`; RFC 6585, section 4, which forbids caching a 429; RFC 9110, section 12.5,
for `Accept` and `Vary`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Final

from penstock._validation import has_slots
from penstock._web.identity import printable_id
from penstock.errors import ConfigError
from penstock.messages import (
    DENIED,
    DENIED_FOR,
    DENIED_IN_FLIGHT,
    SEE,
    STORE_FAILED,
    Translator,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Decision
    from penstock._web.headers import Fields

_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_JSON: Final = "application/problem+json"
_HTML: Final = "text/html"
_TEXT: Final = "text/plain"
TEXT: Final = f"{_TEXT}; charset=utf-8"
"""The content type of text."""
# Media types in order of preference, each with the ranges of `Accept` that match it.
_OFFERED: Final = (
    (_JSON, (_JSON, "application/json", "application/*", "*/*")),
    (_HTML, (_HTML, "text/*", "*/*")),
    (_TEXT, (_TEXT, "text/*", "*/*")),
)
# Longer than any browser's. The rest is ignored, to bound the time that a client can cost.
_MAX_ACCEPT_LENGTH: Final = 2000
_MAX_ID_LENGTH: Final = 100
# RFC 5646, as far as its characters go.
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")

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
    """A refusal in terms of HTTP (RFC 9457).

    Attributes:
        status: The status code.
        title: What happened, the same for every request.
        detail: What happened to this request, in one sentence.
        type: The URL of the problem type; `about:blank` if the status says it all.
        policies: The names of the limits that denied the request.
        docs: The URL of the denying limit's documentation, if it has one.
        language: The language code of title and detail; `None` if it is not known.
        is_translated: Whether the language depends on the request.
    """

    status: int
    title: str
    detail: str
    type: str = "about:blank"
    policies: tuple[str, ...] = ()
    docs: str | None = None
    language: str | None = "en"
    is_translated: bool = False

    def body(self, accept: str | None = None) -> tuple[Fields, bytes]:
        """Return the body in the form that an `Accept` header prefers, and its header fields."""
        form = _negotiated(accept)
        if form == _HTML:
            content_type, body = "text/html; charset=utf-8", self._page()
        elif form == _TEXT:
            content_type, body = TEXT, f"{self.detail}\n"
        else:
            content_type, body = _JSON, self._document()
        fields: Fields = [("Content-Type", content_type)]
        if self.language is not None and _LANGUAGE.fullmatch(self.language):
            fields.append(("Content-Language", self.language))
        fields.append(("Vary", "Accept, Accept-Language" if self.is_translated else "Accept"))
        return fields, body.encode()

    def headers(self) -> Fields:
        """Return the header fields of the refusal, without those of its content."""
        fields: Fields = [("Cache-Control", "no-store")]
        if self.docs is not None and _is_sendable_url(self.docs):
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
        if self.docs is not None and _is_sendable_url(self.docs):
            url = escape(self.docs)
            detail = detail.replace(url, f'<a rel="help" href="{url}">{url}</a>')
        lang = "" if self.language is None else f' lang="{escape(self.language)}"'
        return _PAGE.format(title=escape(self.title), detail=detail, lang=lang)


def quota_exceeded(
    decision: Decision, parts: Sequence[Decision], wait_ns: int, translator: Translator
) -> Problem:
    """Return the problem of a request that a limit denied.

    The detail describes a limit on requests in flight only if no rate denies, too: the client has
    to wait for the rate in any case.

    Args:
        decision: The strictest decision.
        parts: All decisions about the request.
        wait_ns: How long the client has to wait, in nanoseconds.
        translator: Translates the messages.
    """
    denials = [part for part in parts if not part]
    names = [part.name for part in denials if part.name is not None]
    if has_slots(decision.limit):
        rates = [part for part in denials if not has_slots(part.limit)]
        decision = max(rates, key=lambda part: part.retry_after_ns, default=decision)
    return Problem(
        status=429,
        title=translator.translate("Too many requests"),
        detail=_detail(decision, wait_ns, translator),
        type=f"{_TYPES}quota-exceeded",
        policies=tuple(dict.fromkeys(names)),
        docs=decision.docs,
        language=translator.language,
        is_translated=translator.is_translated,
    )


def reduced_capacity(translator: Translator) -> Problem:
    """Return the problem of a request that is refused because the store failed."""
    return Problem(
        status=503,
        title=translator.translate("Temporarily unavailable"),
        detail=translator.translate(STORE_FAILED),
        type=f"{_TYPES}temporary-reduced-capacity",
        language=translator.language,
        is_translated=translator.is_translated,
    )


def bad_request(detail: str, translator: Translator) -> Problem:
    """Return the problem of a request whose id or cost is invalid; `detail` is translated."""
    title = translator.translate("Bad request")
    return Problem(
        status=400,
        title=title,
        detail=detail,
        language=translator.language,
        is_translated=translator.is_translated,
    )


def _detail(decision: Decision, wait_ns: int, translator: Translator) -> str:
    # The description of a limit may be in the application's catalogue.
    what = translator.translate_text(decision.description or "requests")
    if has_slots(decision.limit):
        denied = translator.translate(DENIED_IN_FLIGHT, what=what, count=decision.limit.count)
    else:
        denied = _too_often(decision, what, wait_ns, translator)
    return f"{denied} {translator.translate(SEE, docs=decision.docs)}" if decision.docs else denied


def _too_often(decision: Decision, what: str, wait_ns: int, translator: Translator) -> str:
    client = _printable_id(decision.id)
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        # Rounded up, so that a client that returns at the second shown is not too early.
        seconds=-(-(decision.now_ns + wait_ns) // 1_000_000_000)
    )
    return translator.translate(
        DENIED_FOR if client else DENIED,
        what=what,
        client=client,
        limit=translator.limit(decision.limit),
        time=instant.isoformat(sep=" ").removesuffix("+00:00"),
    )


def _printable_id(id: str | None) -> str | None:
    """Return the id without marks if it is printable; whole or not at all."""
    id = printable_id(id)
    if id is None or len(id) > _MAX_ID_LENGTH or not id.isprintable():
        return None
    return id


def _is_sendable_url(url: str) -> bool:
    """Whether a URL is valid in a header and a safe link in a page."""
    plain = url.isascii() and url.isprintable() and not set(url) & set(' <>"\\^`{|}')
    return plain and url.lower().startswith(("https://", "http://", "/"))


def _negotiated(accept: str | None) -> str:
    """Return the media type that a client prefers; the problem document if it accepts none."""
    if accept is None or not accept.strip():
        return _JSON
    accepted = _qualities(accept[:_MAX_ACCEPT_LENGTH])
    best, best_quality = _JSON, 0.0
    for form, ranges in _OFFERED:
        # The most specific range decides, not the first one (RFC 9110, section 12.5.1).
        quality = next((accepted[r] for r in ranges if r in accepted), 0.0)
        if quality > best_quality:
            best, best_quality = form, quality
    return best


def _qualities(accept: str) -> dict[str, float]:
    accepted: dict[str, float] = {}
    for item in accept.split(","):
        media, *parameters = item.split(";")
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "q":
                quality = _quality(value.strip())
        media_range = media.strip().lower()
        accepted[media_range] = max(accepted.get(media_range, 0.0), quality)
    return accepted


def _quality(text: str) -> float:
    # A malformed quality counts as 1.
    if not text.replace(".", "", 1).isdecimal() or not text.isascii():
        return 1.0
    return min(float(text), 1.0)


def custom_body(answer: object, expected: str, text_type: str) -> tuple[Fields, bytes]:
    """Return the header fields and the body that the application has for a refusal.

    Raises:
        ConfigError: `answer` cannot be a body.
    """
    if isinstance(answer, str | bytes):
        body = answer.encode() if isinstance(answer, str) else answer
        return [("Content-Type", text_type)], body
    if isinstance(answer, dict | list):
        body = json.dumps(answer, ensure_ascii=False).encode()
        return [("Content-Type", "application/json")], body
    raise ConfigError(f"on_denied must return {expected}, text, a dict or None, found {answer!r}")
