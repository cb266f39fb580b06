"""The display in a notebook and the explanation of a limit: readable, escaped, and correct."""

from __future__ import annotations

import re
from typing import Any

import pytest
from core_limits import EACH
from hypothesis import example, given
from hypothesis import strategies as st
from pages import Page

import penstock
from penstock import Limit, Limiter, Limits, ManualClock
from penstock._display import decision_html, limit_html, limits_html
from penstock.messages import explain_limit

SCRIPT = "<script>alert('1')</script>\"&<!--\u202e\x00"
LIMITS = [
    Limit.token_bucket(burst=20, count=10, period="1m"),
    Limit.fixed_window(count=10, period="1h", anchor="aligned", phase="per-key"),
    *EACH.values(),
]


def read(page: str) -> list[str]:
    """Return the texts of a page that is as plain as it must be."""
    found = Page(page)
    assert found.open == []
    assert found.comments == []
    assert set(found.tags) <= {"table", "caption", "tr", "th", "td", "strong"}
    # Nothing that is fetched, run, or coloured in one way for all.
    assert found.attributes <= {"style", "scope"}
    assert "color" not in found.styles
    assert "background" not in found.styles
    assert all(text.isprintable() for text in found.texts)
    assert len(page) < 60_000
    return found.texts


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.algorithm)
def test_html_of_a_limit_has_its_numbers_and_their_meaning(limit: Limit) -> None:
    texts = read(limit_html(limit))
    assert limit._repr_html_() == limit_html(limit)
    assert texts[0] == "Limit"
    assert texts[1:3] == ["algorithm", limit.algorithm]
    assert texts[-2:] == ["admits", explain_limit(limit)]
    fields = dict(zip(texts[3:-2:2], texts[4:-2:2], strict=True))
    assert fields == {name: str(value) for name, value in limit.fields().items()}


def test_limits_are_shown_a_row_each_with_their_overrides() -> None:
    limits = Limits.parse(
        "Orders: {burst: 20, count: 10, period: 1m}",
        """
        - Orders: {burst: 40, count: 10, period: 1m, ids: [ada, eve]}
        - Elsewhere: {burst: 1, count: 1, period: 1s, ids: [ada]}
        """,
    )
    page = limits._repr_html_()
    assert page == limits_html(limits, {"Orders": 2, "Elsewhere": 1})
    texts = read(page)
    assert texts[:5] == ["Limits", "name", "limit", "admits", "overrides"]
    assert texts[5:9] == ["Orders", "10 per minute, 20 at once", explain_limit(LIMITS[0]), "2"]
    assert texts[9:] == ["Elsewhere", "no default: unlimited", "1"]
    assert read(Limits()._repr_html_())[0] == "Limits"


def test_many_limits_are_shown_in_part() -> None:
    limits = Limits({f"Limit {number:04}": "1/second" for number in range(2_000)})
    texts = read(limits._repr_html_())
    assert "Limit 0099" in texts
    assert "Limit 0100" not in texts
    assert texts[-1] == "and 1,900 more"


def test_decision_is_shown_with_every_number() -> None:
    limiter = Limiter({"Orders": "10/minute, burst 20"}, clock=ManualClock())
    limiter.spend("Orders", "ada", 20)
    decision = limiter.spend("Orders", "ada", 2)
    page = decision._repr_html_()
    assert page == decision_html(decision)
    texts = read(page)
    assert texts[0] == "denied"
    facts = dict(zip(texts[1::2], texts[2::2], strict=True))
    assert facts == {
        "limit": "Orders",
        "id": "ada",
        "cost": "2",
        "remaining": "0",
        "retry after": "12.0 s",
        "reset after": "120.0 s",
        "admits": explain_limit(decision.limit),
    }


def test_repr_of_a_decision_shows_special_attributes() -> None:
    limits = Limits.parse(
        "Watch: {burst: 1, count: 1, period: 1m, mode: shadow, description: logins}\n"
        "Free: {algorithm: unlimited}"
    )
    limiter = Limiter(limits, clock=ManualClock())
    limiter.spend("Watch", "ada")
    shadow = read(limiter.spend("Watch", "ada")._repr_html_())
    assert shadow[0] == "allowed (would deny)"
    assert shadow[-2:] == ["counts", "logins"]
    free = read(limiter.spend("Free", "ada")._repr_html_())
    assert free[0] == "allowed (unlimited)"
    assert "remaining" not in free
    assert read(limiter.spend_all([])._repr_html_())[0] == "allowed (unlimited)"


def test_several_transactions_are_shown_a_row_each_and_the_binding_one_marked() -> None:
    limiter = Limiter({"Orders": "10/minute", "Mails": "1/minute"}, clock=ManualClock())
    both: list[Any] = [("Orders", "ada", 3), ("Mails", 7), ("Mails", 8)]
    limiter.spend("Mails", 8)
    texts = read(limiter.spend_all(both)._repr_html_())
    assert texts[0] == "denied"
    heads = ["limit", "id", "cost", "answer", "remaining", "retry after", "reset after"]
    assert texts[1:8] == heads
    assert texts[8:15] == ["Orders", "ada", "3", "allowed", "10", "0.0 s", "0.0 s"]
    assert texts[15:22] == ["Mails", "7", "1", "allowed", "1", "0.0 s", "0.0 s"]
    assert texts[22:] == ["→", "Mails", "8", "1", "denied", "0", "60.0 s", "60.0 s"]
    many = read(limiter.check_all([("Orders", id) for id in range(500)])._repr_html_())
    assert many[-1] == "and 400 more"


def test_hostile_names_and_ids_are_shown_as_text() -> None:
    name = SCRIPT.replace("\x00", "").replace(":", "")
    limiter = Limiter({name: "10/minute"}, clock=ManualClock())
    for page in (
        limiter.spend(name, SCRIPT)._repr_html_(),
        limiter.spend_all([(name, SCRIPT), (name, "x" * 1_000_000)])._repr_html_(),
        limiter.limits._repr_html_(),
    ):
        texts = read(page)
        shown = SCRIPT.replace("\u202e", "\ufffd").replace("\x00", "\ufffd")
        assert shown in texts or shown[:-1] in texts
        assert "script" not in Page(page).tags


@given(st.text(min_size=1, max_size=50))
@example("color")
def test_any_id_is_shown_safely(id: str) -> None:
    limiter = Limiter({"Orders": "10/minute"}, clock=ManualClock())
    try:
        decision = limiter.spend("Orders", id)
    except penstock.InvalidId:
        return
    texts = read(decision._repr_html_())
    visible = "".join(letter if letter.isprintable() else "\ufffd" for letter in id)
    assert texts[texts.index("id") + 1] == visible


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            Limit.token_bucket(burst=20, count=10, period="1m"),
            "20 at once, then 1 every 6 seconds, 14,400 a day; at worst 30 in any minute",
        ),
        (
            Limit.token_bucket(burst=1, count=1, period="168h"),
            "1 at once, then 1 every week; at worst 2 in any week",
        ),
        (
            Limit.leaky_bucket(size=300, drip_rate=12),
            "300 at once, then 1 every 12 seconds, 7,200 a day; at worst 600 in any hour",
        ),
        (
            Limit.fixed_window(count=1_000, period="1h"),
            "1,000 at once, then 1,000 every hour, 24,000 a day; at worst 2,000 in any hour",
        ),
        (
            Limit.fixed_rate_window(count=5, period=1, burst=2),
            (
                "3 at once, then 5 every second, evenly spaced, 604,800 a day;"
                " at worst 10 in any second"
            ),
        ),
        (Limit.unlimited(), "no limit"),
    ],
    ids=lambda value: getattr(value, "algorithm", ""),
)
def test_limit_is_explained(limit: Limit, words: str) -> None:
    assert explain_limit(limit) == words


@pytest.mark.parametrize(
    ("limit", "often"),
    [
        ("40/minute", "1 every 1.5 seconds"),
        ("54/minute", "1 about every 1.11 seconds"),
        ("8/minute", "1 every 7.5 seconds"),
        ("3/hour, burst 1", "1 every 20 minutes"),
        ("7/day", "1 about every 3 hours 25 minutes"),
        ("7/second", "1 about every 143 milliseconds"),
        ("1/week", "1 every week"),
    ],
)
def test_uneven_durations_are_rounded_in_texts(limit: str, often: str) -> None:
    assert f"then {often}" in re.split("[,;] ", explain_limit(penstock.Limit.parse(limit)))
