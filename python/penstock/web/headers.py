"""From a decision to header fields. Rounding to seconds happens here, and always up.

What is said about one limit, its quota, its window and its items of the `ietf` fields, comes with
the decision from `src/fields.rs`; here are the styles and the lists.

A client told to wait must never come back early. A number or a name that a field cannot carry is
left out, and never sent malformed. Nothing here asks the store: a decision has every number its
headers need.

Source: draft-ietf-httpapi-ratelimit-headers-11 (`ietf`) and its revisions 03, 06 and 07; RFC 9651
for structured fields; RFC 9110, section 10.2.3, for `Retry-After`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.errors import ConfigError
from penstock.validation import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock._core import Decision

Fields = list[tuple[str, str]]
"""Header fields, in order."""

_SECOND: Final = 1_000_000_000
_MILLISECOND: Final = 1_000_000
# RFC 9651, section 3.3.1: an Integer has at most 15 digits.
_LARGEST_INTEGER: Final = 999_999_999_999_999


class _Told(NamedTuple):
    """What is told of one request."""

    parts: Sequence[Decision]
    chief: Decision
    is_refused: bool


def seconds(nanoseconds: int) -> int:
    """Give whole seconds, rounded up."""
    return -(-nanoseconds // _SECOND)


def _decimal(nanoseconds: int) -> str:
    """Give seconds with three decimals, rounded up."""
    milliseconds = -(-nanoseconds // _MILLISECOND)
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"


def is_refused(decision: Decision) -> bool:
    """Whether the request must be refused: denied, by a limit that does more than watch."""
    return not decision


def strictest(decisions: Sequence[Decision]) -> Decision:
    """Give the one that is denied, then waits longest, then has the fewest left, then is last."""
    return min(
        reversed(decisions),
        key=lambda d: (d.allowed, not d.would_deny, d.unlimited, -d.retry_after_ns, d.remaining),
    )


def wait_ns(decision: Decision) -> int:
    """Give the wait of a refused client, in nanoseconds: never shorter than the `t` it is shown."""
    return max(decision.retry_after_ns, decision.header_wait_ns)


def _ietf_one(decision: Decision, refused: bool) -> Fields:
    """Do what `_ietf` does for the common case, in one piece: it is on the way of every request."""
    policy, item = decision.header_items
    if policy is None or item is None:
        return [] if decision.unlimited else _ietf(_Told((decision,), decision, refused))
    return [("RateLimit-Policy", policy), ("RateLimit", item)]


def _ietf(told: _Told) -> Fields:
    policies: list[str] = []
    items: list[str] = []
    for part in told.parts:
        policy, item = part.header_items
        # One limit may decide for several ids at once; its policy is still one.
        if policy is not None and policy not in policies:
            policies.append(policy)
        if item is not None:
            items.append(item)
    fields: Fields = []
    if policies:
        fields.append(("RateLimit-Policy", ", ".join(policies)))
    if items:
        fields.append(("RateLimit", ", ".join(items)))
    return fields


def _quota(decision: Decision) -> int:
    return decision.header_quota


def _term(decision: Decision) -> str | None:
    """Write a limit's quota and window; `None` where the quota is no Integer."""
    quota, window = decision.header_quota, decision.header_window
    if quota > _LARGEST_INTEGER:
        return None
    return f"{quota};w={window}" if window <= _LARGEST_INTEGER else str(quota)


def _terms(parts: Sequence[Decision]) -> str:
    terms = [_term(part) for part in parts]
    return ", ".join(term for term in terms if term is not None)


def _integers(fields: Sequence[tuple[str, int]]) -> Fields:
    return [(name, str(value)) for name, value in fields if value <= _LARGEST_INTEGER]


def _draft_03(told: _Told) -> Fields:
    chief = told.chief
    quota = _quota(chief)
    fields: Fields = []
    if quota <= _LARGEST_INTEGER:
        fields.append(("RateLimit-Limit", f"{quota}, {_terms(told.parts)}"))
    reset = seconds(chief.reset_after_ns)
    return fields + _integers(
        [("RateLimit-Remaining", chief.remaining), ("RateLimit-Reset", reset)]
    )


def _draft_06(told: _Told) -> Fields:
    chief = told.chief
    # Two policies of one quota are invalid in this revision; the first stands for both.
    by_quota: dict[int, Decision] = {}
    for part in told.parts:
        by_quota.setdefault(_quota(part), part)
    terms = _terms(tuple(by_quota.values()))
    fields: Fields = [("RateLimit-Policy", terms)] if terms else []
    return fields + _integers(
        [
            ("RateLimit-Limit", _quota(chief)),
            ("RateLimit-Remaining", chief.remaining),
            ("RateLimit-Reset", seconds(chief.reset_after_ns)),
        ]
    )


def _draft_07(told: _Told) -> Fields:
    chief = told.chief
    terms = _terms(told.parts)
    fields: Fields = [("RateLimit-Policy", terms)] if terms else []
    quota, remaining, reset = _quota(chief), chief.remaining, seconds(chief.reset_after_ns)
    if max(quota, remaining, reset) <= _LARGEST_INTEGER:
        fields.append(("RateLimit", f"limit={quota}, remaining={remaining}, reset={reset}"))
    return fields


def _named_term(decision: Decision) -> str | None:
    term, label = _term(decision), decision.header_label
    return term if term is None or label is None else f"{term};name={label}"


def _envoy(told: _Told) -> Fields:
    chief = told.chief
    quota = _quota(chief)
    fields: Fields = []
    if quota <= _LARGEST_INTEGER:
        listed = [_named_term(part) for part in told.parts]
        terms = dict.fromkeys(term for term in listed if term is not None)
        fields.append(("x-ratelimit-limit", ", ".join([str(quota), *terms])))
    reset = seconds(chief.reset_after_ns)
    return fields + _integers(
        [("x-ratelimit-remaining", chief.remaining), ("x-ratelimit-reset", reset)]
    )


def _github(told: _Told) -> Fields:
    chief = told.chief
    quota, name = _quota(chief), chief.name
    fields: Fields = [
        ("X-RateLimit-Limit", str(quota)),
        ("X-RateLimit-Remaining", str(chief.remaining)),
        ("X-RateLimit-Used", str(max(quota - chief.remaining, 0))),
        ("X-RateLimit-Reset", str(seconds(chief.now_ns + chief.reset_after_ns))),
    ]
    if name is not None and chief.header_label is not None:
        fields.append(("X-RateLimit-Resource", name))
    return fields


def _sharkey(told: _Told) -> Fields:
    chief = told.chief
    fields = [
        ("X-RateLimit-Remaining", str(chief.remaining)),
        ("X-RateLimit-Clear", _decimal(chief.reset_after_ns)),
    ]
    if told.is_refused:
        fields.append(("X-RateLimit-Reset", _decimal(chief.retry_after_ns)))
    return fields


_LIMIT_REMAINING_RESET: Final = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")

# Each style: what writes it, and every field it may write. A new style is a function and a line
# here.
_TABLE: Final[dict[str, tuple[Callable[[_Told], Fields], tuple[str, ...]]]] = {
    "ietf": (_ietf, ("RateLimit-Policy", "RateLimit")),
    "sharkey": (_sharkey, ("X-RateLimit-Remaining", "X-RateLimit-Clear", "X-RateLimit-Reset")),
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

STYLES: Final = tuple(_TABLE)
"""The names of the header styles."""


class _One(Protocol):
    def __call__(self, decision: Decision, refused: bool) -> Fields: ...


class Writer:
    """One or several styles, ready to write."""

    def __init__(self, styles: Sequence[str]) -> None:
        claimed: dict[str, tuple[str, str]] = {}
        for style in styles:
            for name in _TABLE[style][1]:
                other = claimed.setdefault(name.lower(), (style, name))[0]
                if other != style:
                    raise ConfigError(
                        f"header styles {other!r} and {style!r} both write {name}; choose one"
                    )
        self._writes: Final = tuple(_TABLE[style][0] for style in styles)
        self.names: Final = tuple(name for _, name in claimed.values())
        """Every field that may be written, `Retry-After` not among them."""
        self.one: Final[_One] = _ietf_one if tuple(styles) == ("ietf",) else self._one
        """Give the fields of a decision of one limit: the fast path of `many`."""

    def _one(self, decision: Decision, refused: bool) -> Fields:
        return self.many((decision,), decision, refused=refused)

    def many(self, decisions: Sequence[Decision], chief: Decision, *, refused: bool) -> Fields:
        """Give the fields of several decisions about one request, `Retry-After` not among them.

        A list field has one item for each, in order; a field of a single value speaks of the chief.

        Args:
            decisions: In the order of their limits; unlimited ones are not spoken of.
            chief: The decision over all; an unlimited one has the strictest speak in its place.
            refused: Whether the request is refused.
        """
        parts = [decision for decision in decisions if not decision.unlimited]
        if not parts:
            return []
        if chief.unlimited:
            chief = strictest(parts)
        told = _Told(parts, chief, refused)
        fields: Fields = []
        for write in self._writes:
            fields += write(told)
        return fields


_writers: dict[tuple[str, ...], Writer] = {}


def compile_style(style: str | Sequence[str]) -> Writer:
    """Give what writes a style, or several at once.

    Raises:
        ConfigError: No style has this name, none is given, or two of them write one field.
    """
    if not isinstance(style, str) and not _is_sequence(style):
        raise ConfigError(f"headers must be a style or a list of styles, found {style!r}")
    styles = (style,) if isinstance(style, str) else tuple(dict.fromkeys(style))
    writer = _writers.get(styles)
    if writer is None:
        _refuse_unknown(styles)
        writer = _writers[styles] = Writer(styles)
    return writer


def _is_sequence(given: object) -> bool:
    return isinstance(given, Iterable)


def _refuse_unknown(styles: tuple[str, ...]) -> None:
    if not styles:
        raise ConfigError(f"at least one header style is needed, {did_you_mean('', STYLES)}")
    for style in styles:
        if style not in _TABLE:
            hint = did_you_mean(str(style), STYLES)
            raise ConfigError(f"no header style is called {style!r}; {hint}")


def headers(decision: Decision, style: str | Sequence[str] = "ietf") -> dict[str, str]:
    """Give the response headers of a decision, `Retry-After` included where it refuses.

    Args:
        decision: Of one limit or of several; an unlimited one has no headers.
        style: One of `STYLES`, or several that share no field.

    Raises:
        ConfigError: As `compile_style`.

    Example:
        >>> from penstock.web.headers import headers
        >>> clock = penstock.ManualClock()
        >>> limiter = penstock.Limiter({"Orders": "6/minute, burst 3"}, clock=clock)
        >>> headers(limiter.spend("Orders", "ada"))
        {'RateLimit-Policy': '"Orders";q=3;w=30', 'RateLimit': '"Orders";r=2;t=10'}
    """
    refused = is_refused(decision)
    fields = dict(compile_style(style).many(decision.parts, decision, refused=refused))
    if refused:
        fields["Retry-After"] = str(seconds(wait_ns(decision)))
    return fields
