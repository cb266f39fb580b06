"""The head of a response, as the options of a limit read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Response:
    """Head of a response that has not been sent yet, as `deduct_when` gets it.

    Attributes:
        status_code: The status, such as 401. For a WebSocket: 101 if it is accepted, 403 if it is
            closed instead.
        headers: The header fields that the application set.
    """

    status_code: int
    headers: Sequence[tuple[str, str]]
