"""Exceptions. A denied request is not an error; a request that could never be allowed is."""

# Neither `__future__` nor `typing` is imported: they would take most of the time of
# `import penstock`.
TYPE_CHECKING = False

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

DOCUMENTATION = "https://penstock.readthedocs.io"
"""Where the pages are that messages name."""


class Error(Exception):
    """Base class of every exception of penstock."""


class ConfigProblem(str):  # noqa: SLOT000  see below
    """One problem of a limits file or an overrides file, as a line of text.

    Attributes:
        file: Path of the file; `None` if the content came from elsewhere.
        line: Line number from 1; `None` if unknown.
        limit_name: Name of the limit; `None` if the problem is not in one limit.
        message: The problem, without the file, the line and the name.
    """

    # The attributes are set by the core, so instances have a dictionary.
    file: str | None = None
    line: int | None = None
    limit_name: str | None = None
    message: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the problem for programs, as the commands print it with `--json`."""
        return {
            "file": self.file,
            "line": self.line,
            "limit": self.limit_name,
            "message": self.message or str(self),
        }


class ConfigError(Error, ValueError):
    """Invalid limits file, overrides file or option.

    Attributes:
        file: Path of the file; `None` if the content came from elsewhere.
        line: Line number from 1; `None` if unknown.
        limit_name: Name of the limit; `None` if the problem is not in one limit.
        problems: All problems found, as lines of text with the same attributes.
    """

    file: str | None = None
    line: int | None = None
    limit_name: str | None = None
    problems: tuple[ConfigProblem, ...] = ()


class LimitError(Error, ValueError):
    """Invalid limit: a number out of range, or a string that is not a rate.

    Attributes:
        field: Name of the invalid parameter; `None` if it is not a single one.
        limit_name: Name of the limit; `None` if it has none.
    """

    field: str | None = None
    limit_name: str | None = None


class UnknownLimit(Error, KeyError):
    """No loaded limit has this name.

    Attributes:
        limit_name: The name.
    """

    limit_name: str = ""

    # KeyError shows the repr of its argument, which would put the message in quotes.
    __str__ = Exception.__str__


class InvalidId(Error, ValueError):
    """The id does not fit the id format of its limit.

    Attributes:
        limit_name: Name of the limit; `None` if no limit accepts the id.
    """

    limit_name: str | None = None


class CostError(Error, ValueError):
    """Base class of errors about costs.

    Attributes:
        cost: The cost, in tokens.
        limit_name: Name of the limit.
    """

    cost: int = 0
    limit_name: str = ""


class CostNegative(CostError):
    """The cost is below 0."""


class CostTooHigh(CostError):
    """The cost exceeds what the limit can ever allow, so waiting would not help."""


class TransactionError(Error, ValueError):
    """The transactions cannot be decided together: two of them name the same bucket.

    Attributes:
        limit_name: Name of the limit.
        bucket_key: Key of the bucket.
    """

    limit_name: str = ""
    bucket_key: str = ""


class StoreError(Error, RuntimeError):
    """The store failed, or the limiter is closed."""


class StoreUnavailable(StoreError):
    """The store did not do the call: its server does not answer, or its table cannot be used."""


class StoreTimeout(StoreError):
    """The store did not answer in time; it may have done the call."""


class ReservationError(Error, RuntimeError):
    """The reservation was settled, cancelled or used for a block before."""


class RateLimited(Error):
    """The request was denied, or `acquire` would have waited longer than its timeout.

    Attributes:
        decision: The denied decision; its `retry_after` is the wait in seconds.
    """

    decision: "Decision"

    def __init__(self, message: str, decision: "Decision") -> None:
        super().__init__(message, decision)
        self.decision = decision

    def __str__(self) -> str:
        return str(self.args[0])
