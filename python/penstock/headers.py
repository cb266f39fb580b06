"""Response headers of a decision, in each supported style, and those of other services."""

from penstock.web.headers import STYLES, Fields, headers
from penstock.web.received import ReceivedLimit, parse

__all__ = ["STYLES", "Fields", "ReceivedLimit", "headers", "parse"]
