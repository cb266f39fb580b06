"""Response headers of a decision, in each supported style."""

from penstock._web.headers import STYLES, Fields, HeaderValues, headers, values

__all__ = ["STYLES", "Fields", "HeaderValues", "headers", "values"]
