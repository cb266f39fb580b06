"""What all tests share: a clock that moves by hand, and limiters that tell the time by it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hypothesis
import pytest

import penstock

if TYPE_CHECKING:
    from collections.abc import Mapping

# A slow machine is no fault. The rest is hypothesis's own: on CI the same examples each time.
hypothesis.settings.register_profile("penstock", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("penstock")


class MakeLimiter(Protocol):
    """Makes a limiter on the test's own clock."""

    def __call__(
        self,
        limits: penstock.Limits | Mapping[str, penstock.Limit | str] = ...,
        *,
        store: str = ...,
    ) -> penstock.Limiter: ...


@pytest.fixture
def root() -> Path:
    """The folder of the project."""
    return Path(__file__).parents[2]


@pytest.fixture
def clock() -> penstock.ManualClock:
    """A clock that stands at 2001-09-09T01:46:40Z until the test moves it."""
    return penstock.ManualClock(start=1_000_000_000)


@pytest.fixture
def make_limiter(clock: penstock.ManualClock) -> MakeLimiter:
    """A maker of limiters, each with a store of its own, all on `clock`."""

    def make(
        limits: penstock.Limits | Mapping[str, penstock.Limit | str] = {"Orders": "4/second"},  # noqa: B006  read only
        *,
        store: str = "memory://",
    ) -> penstock.Limiter:
        return penstock.Limiter(limits, store=store, clock=clock)

    return make
