"""Response headers of a decision, in each supported style."""

from penstock.web.headers import STYLES, Fields, headers

__all__ = ["STYLES", "Fields", "headers"]
