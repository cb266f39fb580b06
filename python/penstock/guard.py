"""Guards: what every framework's integration is built on, for people who write an adapter."""

from penstock.web.enforce import used_share
from penstock.web.guard import Guard
from penstock.web.lifecycle import admit
from penstock.web.options import GuardOptions
from penstock.web.outcome import Outcome
from penstock.web.replacements import force_enabled, replace_limits, reset_guards
from penstock.web.request import EnvironRequest, MissingId, Request
from penstock.web.route_limits import RouteLimits
from penstock.web.rule import Rule, make_rule

__all__ = [
    "EnvironRequest",
    "Guard",
    "GuardOptions",
    "MissingId",
    "Outcome",
    "Request",
    "RouteLimits",
    "Rule",
    "admit",
    "force_enabled",
    "make_rule",
    "replace_limits",
    "reset_guards",
    "used_share",
]
