"""Response headers of a decision, in each supported style, and those of other services."""

from penstock.parse_headers import ReceivedLimit, parse
from penstock.web.headers import STYLES, Fields, HeaderValues, headers, values

__all__ = ["STYLES", "Fields", "HeaderValues", "ReceivedLimit", "headers", "parse", "values"]
