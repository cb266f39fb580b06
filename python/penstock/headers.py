"""Response headers of a decision, in each supported style."""

from penstock.web.headers import STYLES, Fields, HeaderValues, headers, values

__all__ = ["STYLES", "Fields", "HeaderValues", "headers", "values"]
