"""Rate limiting for Python, with a Rust core."""

from penstock._core import (
    BoundLimit,
    Decision,
    Limit,
    Limiter,
    Limits,
    ManualClock,
    Reservation,
    SystemClock,
    __version__,
)
from penstock._decisions import Decisions
from penstock._explanation import Explanation
from penstock._hints import attach_hints
from penstock.errors import (
    ConfigError,
    CostError,
    CostNegative,
    CostTooHigh,
    Error,
    InvalidId,
    LimitError,
    RateLimited,
    ReservationError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    TransactionError,
    UnknownLimit,
)

# `typing` would take longer to import than everything else here; type checkers know the name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from penstock.aio import AsyncBoundLimit, AsyncLimiter, AsyncReservation
    from penstock.types import Transaction

__all__ = [
    "AsyncBoundLimit",
    "AsyncLimiter",
    "AsyncReservation",
    "BoundLimit",
    "ConfigError",
    "CostError",
    "CostNegative",
    "CostTooHigh",
    "Decision",
    "Decisions",
    "Error",
    "Explanation",
    "InvalidId",
    "Limit",
    "LimitError",
    "Limiter",
    "Limits",
    "ManualClock",
    "RateLimited",
    "Reservation",
    "ReservationError",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "SystemClock",
    "Transaction",
    "TransactionError",
    "UnknownLimit",
    "__version__",
]

attach_hints(Limiter, BoundLimit)


def __getattr__(name: str) -> object:
    # Imported on first use, because it imports asyncio.
    if name in {"AsyncBoundLimit", "AsyncLimiter", "AsyncReservation"}:
        from penstock import aio  # noqa: PLC0415  as above

        return getattr(aio, name)
    # Also on first use, because its module imports `typing`.
    if name == "Transaction":
        from penstock.types import Transaction  # noqa: PLC0415  as above

        return Transaction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
