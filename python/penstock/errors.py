"""The exceptions. Denied is not an error; impossible is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock._core import Decision

__all__ = [
    "ConfigError",
    "CostError",
    "CostNegative",
    "CostTooHigh",
    "Error",
    "InvalidId",
    "LimitError",
    "RateLimited",
    "ReservationError",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "TransactionError",
    "UnknownLimit",
]


class Error(Exception):
    """The base of every exception that penstock raises on purpose."""


class ConfigError(Error, ValueError):
    """A limits file, an overrides file or an option that cannot be used.

    Attributes:
        file: The file, or `None` where the text came from elsewhere.
        line: The line, from 1, or `None` where there is none.
        limit: The limit's name, or `None` where the fault lies outside any limit.
        problems: All faults that were found, one line each.
    """

    file: str | None = None
    line: int | None = None
    limit: str | None = None
    problems: tuple[str, ...] = ()


class LimitError(Error, ValueError):
    """A limit that cannot be: a number out of range, or a text that says none.

    Attributes:
        field: The parameter at fault, or `None` where it is not one parameter.
    """

    field: str | None = None


class UnknownLimit(Error, KeyError):
    """A name that no loaded limit has."""

    # KeyError shows the repr of its argument, which would put the sentence in quotes.
    __str__ = Exception.__str__


class InvalidId(Error, ValueError):
    """An id that does not fit the format of its limit."""


class CostError(Error, ValueError):
    """A cost that no request can have.

    Attributes:
        cost: The cost, in tokens.
        limit: The limit's name.
    """

    cost: int = 0
    limit: str = ""


class CostNegative(CostError):
    """A cost below 0."""


class CostTooHigh(CostError):
    """A cost above what the limit can ever allow, so that waiting would not help."""


class TransactionError(Error, ValueError):
    """Transactions that cannot be decided together, such as one bucket named twice."""


class StoreError(Error, RuntimeError):
    """The store could not answer."""


class StoreUnavailable(StoreError):
    """The store cannot be reached."""


class StoreTimeout(StoreError):
    """The store did not answer in time."""


class ReservationError(Error, RuntimeError):
    """A reservation that was settled or cancelled before."""


class RateLimited(Error):
    """A denied decision, raised by `Decision.raise_if_denied` and by those who would wait too long.

    Attributes:
        decision: The decision; its `retry_after` says how long to wait, in seconds.
    """

    decision: Decision

    def __init__(self, message: str, decision: Decision) -> None:
        super().__init__(message, decision)
        self.decision = decision

    def __str__(self) -> str:
        return str(self.args[0])
