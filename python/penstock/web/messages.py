"""What penstock says to people, in their language: limits, times, and the sentences of refusals.

Every text is a template that a translation may replace. `TEMPLATES` and `PLURALS` list them, for a
catalogue of an application.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._core import Limit

_log: Final = logging.getLogger("penstock")

DENIED: Final = "Too many {what}: at most {limit}. Come back at {time} UTC."
DENIED_ONE: Final = "Too many {what} for {whom}: at most {limit}. Come back at {time} UTC."
SEE: Final = "See {docs}"

TEMPLATES: Final = (
    "Too many requests",
    DENIED,
    DENIED_ONE,
    SEE,
    "requests",
    "Temporarily unavailable",
    "It cannot be checked just now whether this request may pass; try again soon.",
    "Bad request",
    "This request costs {cost}, more than {limit} could ever allow.",
    "This request names its sender in a way that cannot be read.",
    "What this request costs cannot be read.",
    "This request does not say who sends it.",
    "no limit",
    "{count} per {period}",
    "{count} per {period}, {burst} at once",
    "{count} per {period}, evenly spaced",
    "{count} per {period}, evenly spaced, {burst} early",
    "{size} at once, {drip} more every {period}",
    "week",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "microsecond",
    "nanosecond",
)
"""The texts that are looked up by `gettext`."""

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
"""The texts that are looked up by `ngettext`, each with its plural."""

_UNITS: Final = (
    (604_800_000_000_000, "week"),
    (86_400_000_000_000, "day"),
    (3_600_000_000_000, "hour"),
    (60_000_000_000, "minute"),
    (1_000_000_000, "second"),
    (1_000_000, "millisecond"),
    (1_000, "microsecond"),
    (1, "nanosecond"),
)


class Translations(Protocol):
    """What knows the texts in a language: that of the request at hand.

    Such are `gettext.translation(...)`, and the modules `gettext`, `django.utils.translation` and
    `flask_babel` themselves.
    """

    @property
    def gettext(self) -> Any:
        """Give the translation of a text."""

    @property
    def ngettext(self) -> Any:
        """Give the translation of a text that goes with a number, from singular and plural."""


class Words:
    """Says things, translated where there are translations."""

    def __init__(self, translations: Translations | None = None) -> None:
        self._translations: Final = translations

    @property
    def language(self) -> str | None:
        """The code of the language, such as `en`; `None` where the translations do not say it."""
        if self._translations is None:
            return "en"
        ask = getattr(self._translations, "get_language", None)
        language = ask() if callable(ask) else None
        return language if isinstance(language, str) else None

    def say(self, template: str, /, **values: object) -> str:
        """Say a text with its values in their places."""
        if self._translations is None:
            return template.format(**values)
        return _filled(str(self._translations.gettext(template)), template, values)

    def say_given(self, text: str) -> str:
        """Say a text of the application's, which has no places for values."""
        return text if self._translations is None else str(self._translations.gettext(text))

    def span(self, nanoseconds: int) -> str:
        """Say a time exactly, as it stands after `per`."""
        for unit, name in _UNITS:
            if nanoseconds == unit:
                return self.say(name)
        words: list[str] = []
        rest = nanoseconds
        for (unit, _), (one, many) in zip(_UNITS, PLURALS, strict=True):
            number, rest = divmod(rest, unit)
            if number:
                words.append(self._counted(number, one, many))
        return " ".join(words)

    def limit(self, limit: Limit) -> str:
        """Say a limit as people would."""
        match limit.algorithm:
            case "token-bucket" if limit.burst != limit.count:
                template = "{count} per {period}, {burst} at once"
            case "token-bucket" | "fixed-window":
                template = "{count} per {period}"
            case "fixed-rate-window" if limit.burst:
                template = "{count} per {period}, evenly spaced, {burst} early"
            case "fixed-rate-window":
                template = "{count} per {period}, evenly spaced"
            case "leaky-bucket":
                return self.say(
                    "{size} at once, {drip} more every {period}",
                    size=limit.size,
                    drip=limit.drip_size,
                    period=self.span(limit.drip_rate_ns),
                )
            case _:
                return self.say("no limit")
        burst = None if limit.algorithm == "fixed-window" else limit.burst
        period = self.span(limit.period_ns)
        return self.say(template, count=limit.count, period=period, burst=burst)

    def _counted(self, number: int, one: str, many: str) -> str:
        english = one if number == 1 else many
        if self._translations is None:
            return english.format(number=number)
        # A language's plural forms are told by numbers that need not be held exactly beyond this.
        found = str(self._translations.ngettext(one, many, number))
        return _filled(found, english, {"number": number})


def words_of(translations: Translations | None) -> Words:
    """Give the words in the language of some translations.

    Raises:
        ConfigError: They do not translate.
    """
    for name in () if translations is None else ("gettext", "ngettext"):
        if not callable(getattr(translations, name, None)):
            raise ConfigError(
                f"translations must have gettext and ngettext, as gettext.translation(...) and "
                f"the module django.utils.translation have; found {translations!r} without {name}"
            )
    return Words(translations)


def describe_limit(limit: Limit) -> str:
    """Say a limit as people would, in English.

    Example:
        >>> from penstock.web.messages import describe_limit
        >>> describe_limit(penstock.Limit.parse("100/minute, burst 20"))
        '100 per minute, 20 at once'
        >>> describe_limit(penstock.Limit.leaky_bucket(size=60, drip_rate=1))
        '60 at once, 1 more every second'
    """
    return _ENGLISH.limit(limit)


def format_duration(nanoseconds: int) -> str:
    """Say a time exactly, in English, as it stands after `per`.

    Example:
        >>> from penstock.web.messages import format_duration
        >>> format_duration(60_000_000_000), format_duration(5_400_000_000_000)
        ('minute', '1 hour 30 minutes')
    """
    return _ENGLISH.span(nanoseconds)


def _filled(template: str, original: str, values: dict[str, object]) -> str:
    """Put the values into a translated template; into the original where that one is faulty."""
    try:
        return template.format(**values)
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        # A client must not be answered with an error because a catalogue has one.
        _log.warning("the translation %r of %r is faulty: %r", template, original, error)
        return original.format(**values)


_ENGLISH: Final = Words()
