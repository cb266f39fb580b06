"""Response headers of a decision, in each supported style, and those of other services."""

from penstock.parse_headers import ReceivedLimit, parse
from penstock.web.headers import STYLES, Fields, headers

__all__ = ["STYLES", "Fields", "ReceivedLimit", "headers", "parse"]
