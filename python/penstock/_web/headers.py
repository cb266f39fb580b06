"""Response headers of decisions. Seconds are always rounded up, so that no client retries early.

The `ietf` fields come from the core; this module has the other styles. A number or name that a
field cannot carry is left out.

Source: draft-ietf-httpapi-ratelimit-headers-11 (`ietf`) and its revisions 03, 06 and 07; RFC 9651
for structured fields; RFC 9110, section 10.2.3, for `Retry-After`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock._core import encoded_header_fields, header_fields, header_values
from penstock._validation import did_you_mean
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock._core import Decision

Fields = list[tuple[str, str]]
"""Header fields, in order, as names and values."""
EncodedFields = list[tuple[bytes, bytes]]
"""Header fields as bytes, with names in lower case."""

LIST_FIELDS: Final = frozenset(
    {"RateLimit", "RateLimit-Policy", "Link", "Access-Control-Expose-Headers"}
)
"""Fields whose items are added to those of the application; other fields have one value."""

_SECOND: Final = 1_000_000_000
_MILLISECOND: Final = 1_000_000
# RFC 9651, section 3.3.1: an Integer has at most 15 digits.
_MAX_INTEGER: Final = 999_999_999_999_999


class HeaderValues(NamedTuple):
    """Values of a decision as header fields show them, for a header style of your own.

    Attributes:
        label: The limit's name, quoted; `None` if it is not ASCII, or if no limit applied.
        quota: The tokens of the limit's quota.
        window: The seconds of the quota's window, rounded up; `None` for requests in flight.
        retry_ns: The wait of a denied client, in nanoseconds; at least that of `RateLimit`. For a
            limit on requests in flight, its field `retry_after`.
        reset_ns: The time until the bucket is full, in nanoseconds; for a limit on requests in
            flight, as `retry_ns`.
    """

    label: str | None
    quota: int
    window: int | None
    retry_ns: int
    reset_ns: int


def values(decision: Decision) -> HeaderValues:
    """Return the values of a decision for header fields.

    Examples:
        >>> from penstock.headers import values
        >>> clock = penstock.ManualClock()
        >>> limiter = penstock.Limiter({"Orders": "6/minute, burst 3"}, clock=clock)
        >>> values(limiter.spend("Orders", "ada"))[:3]
        ('"Orders"', 3, 30)
    """
    return HeaderValues._make(header_values(decision))


class _Decided(NamedTuple):
    """Decisions about one request.

    Attributes:
        parts: One for each limit.
        overall: The one over all.
        wait_ns: The time of `Retry-After`, before which no field may name another, in nanoseconds;
            `None` if the request is not refused.
    """

    parts: Sequence[Decision]
    overall: Decision
    wait_ns: int | None

    @property
    def remaining(self) -> int:
        """The tokens left; of a denied request, fewer than it costs."""
        overall = self.overall
        return overall.remaining if overall else min(overall.remaining, max(overall.cost - 1, 0))

    @property
    def reset_ns(self) -> int:
        """The time until the bucket is full, in nanoseconds."""
        return max(values(self.overall).reset_ns, self.wait_ns or 0)


def seconds(nanoseconds: int) -> int:
    """Return whole seconds, rounded up."""
    return -(-nanoseconds // _SECOND)


def _decimal(nanoseconds: int) -> str:
    """Return seconds with three decimals, rounded up."""
    milliseconds = -(-nanoseconds // _MILLISECOND)
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"


def strictest(decisions: Sequence[Decision]) -> Decision:
    """Return the decision that is denied, then has the longest wait, the fewest left, is last."""
    return min(
        reversed(decisions),
        key=lambda d: (d.allowed, not d.would_deny, d.unlimited, -d.retry_after_ns, d.remaining),
    )


def merge(own: Sequence[str], added: Fields, *, keeps_own: bool) -> tuple[list[bool], Fields]:
    """Merge the fields of an outcome into a response; a field with one value is there once.

    Args:
        own: The names of the response's fields, in any case.
        added: The fields of the outcome.
        keeps_own: Whether the response's own field stays where both have one.

    Returns:
        Which of the response's fields stay, and the fields to add.
    """
    names = [name.lower() for name in own]
    if keeps_own:
        present = frozenset(names)
        keep = [f for f in added if f[0] in LIST_FIELDS or f[0].lower() not in present]
        return [True] * len(names), keep
    replaced = {name.lower() for name, _ in added if name not in LIST_FIELDS}
    return [name not in replaced for name in names], added


def wait_ns(decision: Decision) -> int:
    """Return the wait of a refused client, in nanoseconds; at least the `t` of its headers."""
    denied = [values(part).retry_ns for part in decision.parts if not part]
    return max(denied, default=values(decision).retry_ns)


class _EncodedNames(dict[str, bytes]):
    """Field names as bytes, each encoded once."""

    def __missing__(self, name: str) -> bytes:
        encoded = self[name] = name.lower().encode()
        return encoded


_names: Final = _EncodedNames()


def encoded(fields: Fields) -> EncodedFields:
    """Return fields as bytes; names and values are ASCII."""
    return [(_names[name], value.encode()) for name, value in fields]


def _ietf(decided: _Decided) -> Fields:
    fields = header_fields(decided.parts)
    if decided.wait_ns is None:
        return fields
    items = [item for part in decided.parts for item in _ietf_items(part, decided)]
    return [(name, ", ".join(items) if name == "RateLimit" else value) for name, value in fields]


def _ietf_items(part: Decision, decided: _Decided) -> Iterator[str]:
    """Yield the item of a limit in the refusal of a request, with the wait of a denied one."""
    own = values(part).retry_ns
    wait = decided.wait_ns if own == wait_ns(decided.overall) else own
    for name, value in header_fields((part,)):
        if name == "RateLimit":
            yield value if part else re.sub(r";t=\d+\Z", f";t={seconds(wait or 0)}", value)


def _term(shown: HeaderValues) -> str | None:
    """Return a limit's quota and window, if it has one; `None` if the quota is not an Integer."""
    quota, window = shown.quota, shown.window
    if quota > _MAX_INTEGER:
        return None
    return str(quota) if window is None or window > _MAX_INTEGER else f"{quota};w={window}"


def _terms(parts: Sequence[Decision]) -> str:
    terms = [_term(values(part)) for part in parts]
    return ", ".join(term for term in terms if term is not None)


def _integers(fields: Sequence[tuple[str, int]]) -> Fields:
    return [(name, str(value)) for name, value in fields if value <= _MAX_INTEGER]


def _draft_03(decided: _Decided) -> Fields:
    quota, reset = values(decided.overall).quota, seconds(decided.reset_ns)
    fields: Fields = []
    if quota <= _MAX_INTEGER:
        fields.append(("RateLimit-Limit", f"{quota}, {_terms(decided.parts)}"))
    return fields + _integers(
        [("RateLimit-Remaining", decided.remaining), ("RateLimit-Reset", reset)]
    )


def _draft_06(decided: _Decided) -> Fields:
    # Two policies with one quota are invalid in this revision, so the first is kept.
    by_quota: dict[int, Decision] = {}
    for part in decided.parts:
        by_quota.setdefault(values(part).quota, part)
    terms = _terms(tuple(by_quota.values()))
    fields: Fields = [("RateLimit-Policy", terms)] if terms else []
    return fields + _integers(
        [
            ("RateLimit-Limit", values(decided.overall).quota),
            ("RateLimit-Remaining", decided.remaining),
            ("RateLimit-Reset", seconds(decided.reset_ns)),
        ]
    )


def _draft_07(decided: _Decided) -> Fields:
    terms = _terms(decided.parts)
    fields: Fields = [("RateLimit-Policy", terms)] if terms else []
    remaining, quota = decided.remaining, values(decided.overall).quota
    reset = seconds(decided.reset_ns)
    if max(quota, remaining, reset) <= _MAX_INTEGER:
        fields.append(("RateLimit", f"limit={quota}, remaining={remaining}, reset={reset}"))
    return fields


def _named_term(decision: Decision) -> str | None:
    shown = values(decision)
    term, label = _term(shown), shown.label
    return term if term is None or label is None else f"{term};name={label}"


def _envoy(decided: _Decided) -> Fields:
    quota, reset = values(decided.overall).quota, seconds(decided.reset_ns)
    fields: Fields = []
    if quota <= _MAX_INTEGER:
        listed = [_named_term(part) for part in decided.parts]
        terms = dict.fromkeys(term for term in listed if term is not None)
        fields.append(("x-ratelimit-limit", ", ".join([str(quota), *terms])))
    return fields + _integers(
        [("x-ratelimit-remaining", decided.remaining), ("x-ratelimit-reset", reset)]
    )


def _github(decided: _Decided) -> Fields:
    overall, shown = decided.overall, values(decided.overall)
    quota, name = shown.quota, overall.name
    fields: Fields = [
        ("X-RateLimit-Limit", str(quota)),
        ("X-RateLimit-Remaining", str(decided.remaining)),
        ("X-RateLimit-Used", str(max(quota - overall.remaining, 0))),
        ("X-RateLimit-Reset", str(seconds(overall.now_ns + decided.reset_ns))),
    ]
    if name is not None and shown.label is not None:
        fields.append(("X-RateLimit-Resource", name))
    return fields


def _sharkey(decided: _Decided) -> Fields:
    fields = [
        ("X-RateLimit-Remaining", str(decided.remaining)),
        ("X-RateLimit-Clear", _decimal(decided.reset_ns)),
    ]
    if decided.wait_ns is not None:
        wait = max(decided.overall.retry_after_ns, decided.wait_ns)
        fields.append(("X-RateLimit-Reset", _decimal(wait)))
    return fields


# 2^53 - 1, which is what Sharkey sends where no limit applies.
_SHARKEY_LIFTED: Final = (
    ("X-RateLimit-Remaining", "9007199254740991"),
    ("X-RateLimit-Clear", "0.000"),
)
_LIMIT_REMAINING_RESET: Final = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")

# Each style: the function that writes it, and all fields that it may write.
_STYLES: Final[dict[str, tuple[Callable[[_Decided], Fields], tuple[str, ...]]]] = {
    "ietf": (_ietf, ("RateLimit-Policy", "RateLimit")),
    "draft-11": (_ietf, ("RateLimit-Policy", "RateLimit")),
    "sharkey": (_sharkey, ("X-RateLimit-Remaining", "X-RateLimit-Clear", "X-RateLimit-Reset")),
    "sharkey-always": (
        _sharkey,
        ("X-RateLimit-Remaining", "X-RateLimit-Clear", "X-RateLimit-Reset"),
    ),
    "github": (
        _github,
        (
            "X-RateLimit-Limit",
            "X-RateLimit-Remaining",
            "X-RateLimit-Used",
            "X-RateLimit-Reset",
            "X-RateLimit-Resource",
        ),
    ),
    "draft-03": (_draft_03, _LIMIT_REMAINING_RESET),
    "draft-06": (_draft_06, ("RateLimit-Policy", *_LIMIT_REMAINING_RESET)),
    "draft-07": (_draft_07, ("RateLimit-Policy", "RateLimit")),
    "envoy": (_envoy, ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")),
}

# `ietf` is the newest revision of the draft, under whichever name.
_NEWEST: Final = (("ietf",), ("draft-11",))
STYLES: Final = tuple(_STYLES)
"""The names of the header styles."""


class Writer:
    """Writes one or several header styles."""

    def __init__(self, styles: Sequence[str]) -> None:
        claimed: dict[str, tuple[str, str]] = {}
        for style in styles:
            for name in _STYLES[style][1]:
                other = claimed.setdefault(name.lower(), (style, name))[0]
                if other != style:
                    raise ConfigError(
                        f"header styles {other!r} and {style!r} both write {name}; choose one"
                    )
        self._writes: Final = tuple(_STYLES[style][0] for style in styles)
        # Clients of this style expect its fields in every response.
        self._lifted: Final = _SHARKEY_LIFTED if "sharkey-always" in styles else ()
        self.names: Final = tuple(name for _, name in claimed.values())
        """All fields that may be written, except `Retry-After`."""
        self.has_single_fields: Final = not LIST_FIELDS.issuperset(self.names)
        """Whether a field with one value may be written."""
        is_newest = tuple(styles) in _NEWEST
        self.fields: Final = header_fields if is_newest else self._all
        """Return fields of a response, and those of a decision that refuses nothing; as `many`."""
        self.encoded_fields: Final = encoded_header_fields if is_newest else self._all_encoded
        """Return the same as `fields`, as bytes."""

    def _all(self, decision: Decision, own: Iterable[tuple[str, str]] = ()) -> Fields:
        return [*own, *self.many(decision.parts, decision, None)]

    def _all_encoded(
        self, decision: Decision, own: Iterable[tuple[bytes, bytes]] = ()
    ) -> EncodedFields:
        return [*own, *encoded(self._all(decision))]

    def many(self, decisions: Sequence[Decision], overall: Decision, wait_ns: int | None) -> Fields:
        """Return the fields of several decisions about one request, except `Retry-After`.

        A list field has one item for each decision; a field with one value describes `overall`.

        Args:
            decisions: The decisions, in the order of their limits; unlimited ones are left out.
            overall: The decision over all; the strictest replaces an unlimited one.
            wait_ns: The wait of a refused request, in nanoseconds; `None` if it is not refused.
        """
        parts = [decision for decision in decisions if not decision.unlimited]
        if not parts:
            return list(self._lifted) if decisions else []
        if overall.unlimited:
            overall = strictest(parts)
        decided = _Decided(parts, overall, wait_ns)
        fields: Fields = []
        for write in self._writes:
            fields += write(decided)
        return fields


_writers: dict[tuple[str, ...], Writer] = {}


def compile_style(style: str | Sequence[str]) -> Writer:
    """Return a writer of one or several styles.

    Raises:
        ConfigError: A style is unknown, there is none, or two of them write the same field.
    """
    if not isinstance(style, str) and not _is_sequence(style):
        raise ConfigError(f"headers must be a style or a list of styles, found {style!r}")
    styles = (style,) if isinstance(style, str) else tuple(dict.fromkeys(style))
    writer = _writers.get(styles)
    if writer is None:
        _check_styles(styles)
        writer = _writers[styles] = Writer(styles)
    return writer


def _is_sequence(value: object) -> bool:
    return isinstance(value, Iterable)


def _check_styles(styles: tuple[str, ...]) -> None:
    if not styles:
        raise ConfigError(f"headers needs at least one style, {did_you_mean('', STYLES)}")
    for style in styles:
        if style not in _STYLES:
            hint = did_you_mean(str(style), STYLES)
            raise ConfigError(f"no header style is named {style!r}; {hint}")


def headers(decision: Decision, style: str | Sequence[str] = "ietf") -> dict[str, str]:
    """Return the response headers of a decision, with `Retry-After` if it is denied.

    Args:
        decision: A decision of one limit or of several; an unlimited one has no headers.
        style: One of `STYLES`, or several that do not share a field.

    Raises:
        ConfigError: As `compile_style`.

    Examples:
        >>> from penstock.headers import headers
        >>> clock = penstock.ManualClock()
        >>> limiter = penstock.Limiter({"Orders": "6/minute, burst 3"}, clock=clock)
        >>> headers(limiter.spend("Orders", "ada"))
        {'RateLimit-Policy': '"Orders";q=3;w=30', 'RateLimit': '"Orders";r=2;t=10'}
    """
    wait = None if decision else wait_ns(decision)
    fields = dict(compile_style(style).many(decision.parts, decision, wait))
    if wait is not None:
        fields["Retry-After"] = str(seconds(wait))
    return fields
