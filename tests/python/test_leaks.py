"""Failed calls leak no references."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from collections.abc import Callable


def wrong_id(limiter: penstock.Limiter) -> None:
    limiter.limit("Orders").spend(object())  # type: ignore[arg-type]


def wrong_cost(limiter: penstock.Limiter) -> None:
    limiter.spend("Orders", "ada", "1")  # type: ignore[arg-type]


def unknown_keyword(limiter: penstock.Limiter) -> None:
    limiter.check("Orders", "ada", tokens=1)  # type: ignore[call-arg]


def too_many(limiter: penstock.Limiter) -> None:
    limiter.limit("Orders").check("ada", 1, None, 1)  # type: ignore[call-arg]


@pytest.mark.parametrize("call", [wrong_id, wrong_cost, unknown_keyword, too_many])
def test_refused_call_keeps_no_reference(call: Callable[[penstock.Limiter], None]) -> None:
    limiter = penstock.Limiter({"Orders": "6/minute"}, clock=penstock.ManualClock())
    before = sys.getrefcount(TypeError)
    for _ in range(200):
        with pytest.raises(TypeError):
            call(limiter)
    assert sys.getrefcount(TypeError) < before + 100


class Client(str):  # noqa: SLOT000  it has an attribute on purpose
    """An id that refers to its last decision."""

    decision: penstock.Decision


def test_decision_is_in_no_cycle_with_its_id() -> None:
    limiter = penstock.Limiter({"Orders": "6/minute"}, clock=penstock.ManualClock())
    freed: list[int] = []
    client: Client | None = None
    for number in range(20):
        client = Client(f"user-{number}")
        client.decision = limiter.spend("Orders", client)
        assert client.decision.id == client
        weakref.finalize(client, freed.append, number)
    client = None
    gc.collect()
    assert freed


@pytest.mark.parametrize("call", ["spend", "check"])
def test_an_id_beyond_64_bits_leaves_nothing_behind(call: str) -> None:
    limiter = penstock.Limiter({"Orders": "100/minute"})
    spend = getattr(limiter, call)
    for _ in range(10):
        spend("Orders", 2**127)
    before = sys.getallocatedblocks()
    for _ in range(10_000):
        spend("Orders", 2**127)
    # The interpreter itself allocates some hundred blocks now and then.
    assert sys.getallocatedblocks() - before < 1_000
