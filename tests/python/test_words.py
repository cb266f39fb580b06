"""The language of refusals: English, or a catalogue of the application."""

from __future__ import annotations

import gettext
import json
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from penstock import Limit, Limits, ManualClock
from penstock._web.guard import Guard
from penstock._web.rule import make_rule
from penstock.adapter import EnvironRequest, admit
from penstock.errors import ConfigError
from penstock.messages import (
    COST_TOO_HIGH,
    DENIED_FOR,
    PLURALS,
    TEMPLATES,
    Translator,
    make_translator,
)
from penstock.types import CalendarPeriod

if TYPE_CHECKING:
    from penstock._web.outcome import Outcome

GERMAN = {
    "Too many requests": "Zu viele Anfragen",
    DENIED_FOR: "Zu viele {what} von {client}: höchstens {limit}. Wieder ab {time} UTC.",
    "orders": "Bestellungen",
    "{count} per {period}": "{count} je {period}",
    "minute": "Minute",
    "{number} minute": "{number} Minute",
    "{number} minutes": "{number} Minuten",
    COST_TOO_HIGH: "Diese Anfrage kostet {cost}, mehr als {limit} je erlaubt.",
    "Bad request": "Fehlerhafte Anfrage",
}


class Catalogue(gettext.NullTranslations):
    """A catalogue in memory that records its look-ups."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__()
        self.texts = texts
        self.asked: set[str] = set()

    def gettext(self, message: str) -> str:
        self.asked.add(message)
        return self.texts.get(message, message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        self.asked |= {msgid1, msgid2}
        return self.gettext(msgid1 if n == 1 else msgid2)


class Django(Catalogue):
    """A catalogue that knows its language, as Django's module does."""

    def get_language(self) -> str:
        return 'de"'


def refused(
    catalogue: object, limit: str = "1/minute", cost: int = 1, clock: ManualClock | None = None
) -> Outcome:
    """Return the outcome of a request that a guard with a catalogue refuses."""
    text = f"Orders: {{burst: 1, count: 1, period: {limit}, description: orders}}"
    guard = Guard(
        limits=Limits.parse(text),
        clock=clock or ManualClock(start=1_000_000_000),
        translations=catalogue,  # type: ignore[typeddict-item,arg-type,unused-ignore]
    )
    plan = guard.route_limits([make_rule(["Orders"], "orders", {"cost": lambda: cost})])
    request = EnvironRequest({"REMOTE_ADDR": "192.0.2.1", "HTTP_ACCEPT": "text/html"})
    outcome = admit(plan, request)
    return admit(plan, request) if outcome.refusal is None else outcome


def test_refusal_is_in_the_language_of_the_catalogue() -> None:
    problem = refused(Catalogue(GERMAN), "1m").problem
    assert problem.title == "Zu viele Anfragen"
    assert problem.detail == (
        "Zu viele Bestellungen von 192.0.2.1: höchstens 1 je Minute. "
        "Wieder ab 2001-09-09 01:47:40 UTC."
    )


def test_numbers_choose_the_plural() -> None:
    assert "höchstens 1 je 5 Minuten." in refused(Catalogue(GERMAN), "5m").problem.detail
    assert "höchstens 1 je 1 Minute 30 seconds." in refused(Catalogue(GERMAN), "90s").problem.detail


def test_cost_that_is_too_high_is_refused_in_the_language_of_the_catalogue() -> None:
    problem = refused(Catalogue(GERMAN), "1m", cost=7).problem
    assert (problem.status, problem.title) == (400, "Fehlerhafte Anfrage")
    assert problem.detail == "Diese Anfrage kostet 7, mehr als Orders je erlaubt."


def test_document_keeps_its_type_whatever_the_language() -> None:
    document = json.loads(refused(Catalogue(GERMAN), "1m").problem.body()[1])
    assert document["type"].endswith("#quota-exceeded")
    assert document["violated-policies"] == ["Orders"]


@pytest.mark.parametrize("faulty", ["{missing}", "{0}", "{", "{what.nothing}", "}"])
def test_faulty_translation_is_replaced_by_the_original(
    faulty: str, caplog: pytest.LogCaptureFixture
) -> None:
    problem = refused(Catalogue({DENIED_FOR: faulty}), "1m").problem
    assert problem.detail.startswith("Too many orders for 192.0.2.1: at most 1 per minute.")
    assert "is faulty" in caplog.text


def test_page_has_a_language_only_if_it_is_known() -> None:
    page = refused(None, "1m").body()[1].decode()
    assert '<html lang="en">' in page
    page = refused(Catalogue(GERMAN), "1m").body()[1].decode()
    assert "<html>" in page
    page = refused(Django(GERMAN), "1m").body()[1].decode()
    assert '<html lang="de&quot;">' in page


def test_invalid_translations_are_an_error_at_startup() -> None:
    with pytest.raises(ConfigError, match="ngettext"):
        refused(object(), "1m")
    assert isinstance(make_translator(gettext), Translator)


def test_lists_have_every_text_that_is_looked_up() -> None:
    catalogue = Catalogue({})
    translator = Translator(catalogue)
    for limit in (
        Limit.token_bucket(burst=2, count=1, period=1),
        Limit.token_bucket(burst=1, count=1, period="2w"),
        Limit.leaky_bucket(size=2),
        Limit.fixed_window(count=1, period="1h"),
        Limit.fixed_rate_window(count=1, period="1d"),
        Limit.fixed_rate_window(count=1, period="2ms", burst=1),
        Limit.in_flight(2),
        *(Limit.calendar_window(count=1, period=period) for period in get_args(CalendarPeriod)),
        Limit.unlimited(),
    ):
        translator.limit(limit)
    for unit in (1, 10**3, 10**6, 10**9, 60 * 10**9, 3600 * 10**9, 86400 * 10**9, 604800 * 10**9):
        translator.duration(unit)
        translator.duration(2 * unit)
    refused(catalogue, "1m").problem.body()
    refused(catalogue, "1m", cost=7).problem.body()
    known = {*TEMPLATES, *(text for pair in PLURALS for text in pair)}
    assert catalogue.asked - known == {"orders"}
    # The others: ids and costs that are missing or malformed, a failing store, a denial without an
    # id or by a limit in flight, and limits with other parameters.
    assert len(known - catalogue.asked) == 9


def test_texts_have_every_summary_of_a_limit() -> None:
    summaries: set[str] = set()
    for file in (Path(__file__).parents[2] / "src/engine/algorithm").glob("*.rs"):
        function = (
            file.read_text(encoding="utf-8").partition("fn summary(")[2].partition("\n    }")[0]
        )
        summaries.update(re.findall(r'"(.*)"', function))
    assert len(summaries) >= 10
    assert summaries - {*TEMPLATES} == set()


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_can_be_filled(template: str) -> None:
    fields = {name for _, name, _, _ in string.Formatter().parse(template) if name}
    assert "{" not in Translator().translate(template, **dict.fromkeys(fields, "x"))
