"""Reads the rate-limit headers of other services.

A malformed field is ignored as a whole. Source: RFC 9651 for structured fields, of which it reads
lists of items; draft-ietf-httpapi-ratelimit-headers, revisions 03 to 11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MAX_LENGTH: Final = 8192
# A time of this many seconds is not a wait but an instant: it is in 1973, or three years away.
_UNIX_TIME: Final = 100_000_000

_BARE: Final = (
    r'"(?:[ !#-\[\]-~]|\\["\\])*"|-?\d{1,15}(?:\.\d{1,3})?|:[A-Za-z0-9+/=]*:|\?[01]'
    r"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"
)
_KEY: Final = r"[a-z*][a-z0-9_.*-]*"
_ITEM: Final = re.compile(rf"({_BARE})((?: *; *{_KEY}(?:=(?:{_BARE}))?)*)")
_PARAMETER: Final = re.compile(rf" *; *({_KEY})(?:=({_BARE}))?")
_COMMA: Final = re.compile(r"[ \t]*,[ \t]*")
# Only from where a word begins: otherwise the time grows with the square of a long word.
_PAIR: Final = re.compile(r"(?<![a-z-])([a-z-]+)=(\d{1,15})")
_POLICY: Final = re.compile(r"(\d{1,15})((?: *; *[^;,]*)*)")


@dataclass(frozen=True, slots=True)
class ReceivedLimit:
    """One limit as a response describes it; `None` for what the response lacks.

    Attributes:
        name: The name of the limit.
        quota: Requests that the limit grants in a window.
        window: Seconds of the window.
        remaining: Requests that are left.
        reset_after: Seconds until more are.
    """

    name: str | None = None
    quota: int | None = None
    window: int | None = None
    remaining: int | None = None
    reset_after: float | None = None


def parse(
    headers: Mapping[str, str] | Iterable[tuple[str, str]], now: float | None = None
) -> list[ReceivedLimit]:
    """Return what the headers of a response say about its limits.

    Reads `RateLimit` and `RateLimit-Policy` (drafts 03 to 11), and `X-RateLimit-*` as GitHub,
    Envoy, Sharkey and many others send it.

    Args:
        headers: The header fields, whose names are in any case.
        now: The time in Unix seconds; without it, a reset that is an instant is left out.

    Examples:
        >>> from penstock.headers import parse
        >>> parse({"RateLimit-Policy": '"default";q=100;w=60', "RateLimit": '"default";r=50;t=30'})
        [ReceivedLimit(name='default', quota=100, window=60, remaining=50, reset_after=30)]
        >>> parse({"X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "1700000060"}, 1700000000.0)
        [ReceivedLimit(name=None, quota=None, window=None, remaining=7, reset_after=60.0)]
    """
    items = getattr(headers, "items", None)
    pairs: Iterable[tuple[str, str]] = items() if callable(items) else headers  # type: ignore[assignment]
    fields: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        if "ratelimit" in key.replace("-", "") and isinstance(value, str):
            fields[key] = f"{fields[key]}, {value}" if key in fields else value.strip()
    if any(len(value) > _MAX_LENGTH for value in fields.values()):
        return []
    found = _named(fields) or _draft_07(fields) or _single(fields, "ratelimit-", now)
    return found or _single(fields, "x-ratelimit-", now) or _single(fields, "x-rate-limit-", now)


def _named(fields: Mapping[str, str]) -> list[ReceivedLimit]:
    """Read drafts 08 to 11: lists of named items."""
    limits: dict[str, ReceivedLimit] = {}
    for name, parameters in _items(fields.get("ratelimit-policy", "")):
        quota = parameters.get("q")
        if quota is not None:
            limits[name] = ReceivedLimit(name, quota=quota, window=parameters.get("w") or None)
    for name, parameters in _items(fields.get("ratelimit", "")):
        remaining = parameters.get("r")
        if remaining is not None:
            known = limits.get(name, ReceivedLimit(name))
            limits[name] = replace(known, remaining=remaining, reset_after=parameters.get("t"))
    return list(limits.values())


def _items(text: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the items of a list with their integer parameters; nothing if it is malformed."""
    found: list[tuple[str, dict[str, int]]] = []
    at = 0
    text = text.strip(" ")
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            return
        name = item[1]
        if name.startswith('"'):
            name = re.sub(r"\\(.)", r"\1", name[1:-1])
        parameters = {
            key: int(value)
            for key, value in _PARAMETER.findall(item[2])
            if value.isascii() and value.isdigit()
        }
        found.append((name, parameters))
        at = item.end()
        if at < len(text):
            comma = _COMMA.match(text, at)
            # A comma at the end makes the list malformed.
            if comma is None or comma.end() == len(text):
                return
            at = comma.end()
    yield from found


def _draft_07(fields: Mapping[str, str]) -> list[ReceivedLimit]:
    pairs = dict(_PAIR.findall(fields.get("ratelimit", "")))
    if "remaining" not in pairs:
        return []
    quota, window = _first_policy(fields.get("ratelimit-policy", ""))
    limit = pairs.get("limit")
    return [
        ReceivedLimit(
            quota=quota if limit is None else int(limit),
            window=window,
            remaining=int(pairs["remaining"]),
            reset_after=int(pairs["reset"]) if "reset" in pairs else None,
        )
    ]


def _single(fields: Mapping[str, str], prefix: str, now: float | None) -> list[ReceivedLimit]:
    """Read fields with one number each, as drafts 03 to 06 and most services send them."""
    remaining = _number(fields.get(f"{prefix}remaining"))
    quota, window = _first_policy(fields.get(f"{prefix}limit", ""))
    if prefix == "ratelimit-" and window is None:
        _, window = _first_policy(fields.get("ratelimit-policy", ""))
    if remaining is None and quota is None:
        return []
    reset = _number(fields.get(f"{prefix}reset"))
    if reset is None:
        reset = _number(fields.get(f"{prefix}clear"))
    if reset is not None and reset >= _UNIX_TIME:
        reset = None if now is None else max(reset - now, 0.0)
    return [
        ReceivedLimit(
            quota=quota,
            window=window,
            remaining=None if remaining is None else int(remaining),
            reset_after=reset,
        )
    ]


def _first_policy(text: str) -> tuple[int | None, int | None]:
    """Return quota and window of `100` or of the first policy in `10, 10;w=1, 1000;w=3600`."""
    quota = window = None
    for part in text.split(","):
        policy = _POLICY.fullmatch(part.strip())
        if policy is None:
            return None, None
        quota = int(policy[1]) if quota is None else quota
        found = re.search(r"; *w=(\d{1,15}) *(?:;|$)", policy[2])
        if found is not None and int(policy[1]) == quota:
            return quota, int(found[1])
    return quota, window


def _number(text: str | None) -> float | None:
    text = (text or "").strip()
    if re.fullmatch(r"\d{1,15}(?:\.\d{1,9})?", text) is None:
        return None
    return float(text) if "." in text else int(text)
