"""Messages for clients: limits, durations and the sentences of refusals, translated if configured.

Every message is a template that a translation may replace. `TEMPLATES` and `PLURALS` list them, for
the message catalogue of an application.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock._core import parse_duration
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._core import Limit

_log: Final = logging.getLogger("penstock")

DENIED: Final = "Too many {what}: at most {limit}. Try again at {time} UTC."
DENIED_FOR: Final = "Too many {what} for {client}: at most {limit}. Try again at {time} UTC."
DENIED_IN_FLIGHT: Final = (
    "Too many {what} at the same time. The limit is {count}. Try again when one of them has ended."
)
SEE: Final = "See {docs}"
STORE_FAILED: Final = "Rate limits cannot be checked at the moment. Try again shortly."
COST_TOO_HIGH: Final = "The cost of this request is {cost}, more than {limit} can ever allow."
MALFORMED_ID: Final = "The client id of this request is malformed."
MALFORMED_COST: Final = "The cost of this request is malformed."
MISSING_ID: Final = "This request has no client id."

TEMPLATES: Final = (
    "Too many requests",
    DENIED,
    DENIED_FOR,
    DENIED_IN_FLIGHT,
    SEE,
    "requests",
    "Temporarily unavailable",
    STORE_FAILED,
    "Bad request",
    COST_TOO_HIGH,
    MALFORMED_ID,
    MALFORMED_COST,
    MISSING_ID,
    "no limit",
    "{count} per {period}",
    "{count} per {period}, {burst} at once",
    "{count} per {period}, evenly spaced",
    "{count} per {period}, evenly spaced, {burst} early",
    "{size} at once, {drip_size} more every {drip_rate}",
    "{count} in flight",
    "{count} per calendar day ({zone})",
    "{count} per calendar week ({zone})",
    "{count} per calendar month ({zone})",
    "{count} per calendar year ({zone})",
    "week",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "microsecond",
    "nanosecond",
)
"""Texts that are looked up with `gettext`."""

PLURALS: Final = (
    ("{number} week", "{number} weeks"),
    ("{number} day", "{number} days"),
    ("{number} hour", "{number} hours"),
    ("{number} minute", "{number} minutes"),
    ("{number} second", "{number} seconds"),
    ("{number} millisecond", "{number} milliseconds"),
    ("{number} microsecond", "{number} microseconds"),
    ("{number} nanosecond", "{number} nanoseconds"),
)
"""Texts that are looked up with `ngettext`, each with its plural."""

_SECOND: Final = 1_000_000_000
_MINUTE: Final = 60 * _SECOND
_UNITS: Final = (
    (604_800_000_000_000, "week"),
    (86_400_000_000_000, "day"),
    (3_600_000_000_000, "hour"),
    (_MINUTE, "minute"),
    (_SECOND, "second"),
    (1_000_000, "millisecond"),
    (1_000, "microsecond"),
    (1, "nanosecond"),
)
# Spaces in a duration of two units, such as `1 hour 30 minutes`.
_LONGEST_SPAN: Final = 3


class Translations(Protocol):
    """Translations into the language of the current request.

    For example `gettext.translation(...)`, or one of the modules `gettext`,
    `django.utils.translation` and `flask_babel`.
    """

    @property
    def gettext(self) -> Any:
        """A function that returns the translation of a message."""

    @property
    def ngettext(self) -> Any:
        """A function that returns the translation for a number, from singular and plural."""


class Translator:
    """Formats messages for clients, in English or in the language of some translations."""

    def __init__(self, translations: Translations | None = None) -> None:
        self._translations: Final = translations

    @property
    def is_translated(self) -> bool:
        """Whether messages are translated, into the language of each request."""
        return self._translations is not None

    @property
    def language(self) -> str | None:
        """The language code, such as `en`; `None` if the translations have no `get_language`.

        English if the catalog for the language has no refusal.
        """
        if self._translations is None:
            return "en"
        ask = getattr(self._translations, "get_language", None)
        language = ask() if callable(ask) else None
        if not isinstance(language, str):
            return None
        ask_text = self._translations.gettext
        is_english = all(str(ask_text(text)) == text for text in (DENIED, DENIED_FOR))
        return "en" if is_english and not language.startswith("en") else language

    def translate(self, template: str, /, **values: object) -> str:
        """Return a template of this module, translated and filled with values."""
        if self._translations is None:
            return template.format(**values)
        return _filled(str(self._translations.gettext(template)), template, values)

    def translate_text(self, text: str) -> str:
        """Return a message of the application, which is not a template, translated."""
        return text if self._translations is None else str(self._translations.gettext(text))

    def duration(self, nanoseconds: int) -> str:
        """Return an exact duration as text, as after `per`: `minute`, `1 hour 30 minutes`."""
        for unit, name in _UNITS:
            if nanoseconds == unit:
                return self.translate(name)
        parts: list[str] = []
        rest = nanoseconds
        for (unit, _), (one, many) in zip(_UNITS, PLURALS, strict=True):
            number, rest = divmod(rest, unit)
            if number:
                parts.append(self._plural(number, one, many))
        return " ".join(parts)

    def limit(self, limit: Limit) -> str:
        """Return a limit as text: `100 per minute, 20 at once`."""
        values = limit.fields()
        if self._translations is None:
            numbers = {name: value for name, value in values.items() if isinstance(value, int)}
            values |= {name: f"{number:,}" for name, number in numbers.items()}
        for name in ("period", "drip_rate", "lease", "retry_after", "max_hold"):
            # The period of a calendar window is a word, because its length is not fixed.
            if isinstance(getattr(limit, name, None), float):
                values[name] = self.duration(parse_duration(values[name], name))
        return self.translate(limit.summary_template, **values)

    def _plural(self, number: int, one: str, many: str) -> str:
        english = one if number == 1 else many
        if self._translations is None:
            return english.format(number=number)
        translated = str(self._translations.ngettext(one, many, number))
        return _filled(translated, english, {"number": number})


def make_translator(translations: Translations | None) -> Translator:
    """Return a translator; without translations, into English.

    Raises:
        ConfigError: `translations` has no `gettext` or `ngettext`.
    """
    for name in () if translations is None else ("gettext", "ngettext"):
        if not callable(getattr(translations, name, None)):
            raise ConfigError(
                f"translations must have gettext and ngettext, such as gettext.translation(...) or "
                f"the module django.utils.translation; found {translations!r} without {name}"
            )
    return Translator(translations)


def describe_limit(limit: Limit) -> str:
    """Return a limit in English words.

    Examples:
        >>> from penstock.messages import describe_limit
        >>> describe_limit(penstock.Limit.parse("100/minute, burst 20"))
        '100 per minute, 20 at once'
        >>> describe_limit(penstock.Limit.leaky_bucket(size=60, drip_rate=1))
        '60 at once, 1 more every second'
        >>> describe_limit(penstock.Limit.parse("100000/day, burst 1000"))
        '100,000 per day, 1,000 at once'
    """
    return _ENGLISH.limit(limit)


def explain_limit(limit: Limit) -> str:
    """Return the numbers of `Limit.describe` as a sentence: at once, then, a day, at worst.

    Examples:
        >>> from penstock.messages import explain_limit
        >>> explain_limit(penstock.Limit.parse("10/minute, burst 20"))
        '20 at once, then 1 every 6 seconds, 14,400 a day; at worst 30 in any minute'
    """
    facts = limit.describe()
    if facts is None:
        return describe_limit(limit)
    if hasattr(limit, "zone"):
        then = f"{facts['refill_count']:,} every calendar {limit.period} ({limit.zone})"
    else:
        then = _every(facts["refill_count"], facts["refill_interval_ns"])
    spacing = ", evenly spaced" if facts["evenly_spaced"] else ""
    # A quota of a month may be less than one a day.
    daily = f", {facts['per_day']:,} a day" if facts["per_day"] else ""
    return (
        f"{facts['at_once']:,} at once, then {then}{spacing}{daily}; "
        f"at worst {facts['worst_in_interval']:,} in any {format_duration(facts['interval_ns'])}"
    )


def format_duration(nanoseconds: int) -> str:
    """Return an exact duration in English words, as after `per`.

    Examples:
        >>> from penstock.messages import format_duration
        >>> format_duration(60_000_000_000), format_duration(5_400_000_000_000)
        ('minute', '1 hour 30 minutes')
    """
    return _ENGLISH.duration(nanoseconds)


def _every(tokens: int, nanoseconds: int) -> str:
    # Three significant figures are enough.
    step = 10 ** max(len(str(nanoseconds)) - 3, 0)
    rounded = (nanoseconds + step // 2) // step * step
    if _SECOND < rounded < _MINUTE:
        words, is_exact = f"{rounded / _SECOND:g} seconds", rounded == nanoseconds
    else:
        words = format_duration(nanoseconds)
        is_exact = words.count(" ") <= _LONGEST_SPAN
        words = words if is_exact else format_duration(rounded)
    return f"{tokens:,} {'' if is_exact else 'about '}every {words}"


def _filled(template: str, original: str, values: dict[str, object]) -> str:
    """Fill a translated template with values, or the original if the translation is faulty."""
    try:
        return template.format(**values)
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        # A mistake in a catalogue must not become an error for the client.
        _log.warning("the translation %r of %r is faulty: %r", template, original, error)
        return original.format(**values)


_ENGLISH: Final = Translator()
