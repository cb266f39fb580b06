"""What every framework's integration is built on, for people who write an adapter.

docs/adapters.md has the duties of an adapter, and an example.
"""

from penstock._web.decide import RouteLimits
from penstock._web.events import used_share
from penstock._web.guard import Guard, GuardOptions, check_on_denied, check_options
from penstock._web.lifecycle import Visit, admit, refund_failed
from penstock._web.outcome import Outcome
from penstock._web.replacements import force_enabled, reset_guards
from penstock._web.request import EnvironRequest, MissingId, Request, Response
from penstock._web.route_table import (
    EXEMPT,
    PlaceLimits,
    Route,
    RouteTable,
    ViewLimits,
    nested_limits,
    scope_of,
)
from penstock._web.rule import METHODS, Rule, RuleOptions, WrittenLimits, make_rule
from penstock._web.wsgi_visit import VISIT_KEY, WsgiVisit, limit_responses

__all__ = [
    "EXEMPT",
    "METHODS",
    "VISIT_KEY",
    "EnvironRequest",
    "Guard",
    "GuardOptions",
    "MissingId",
    "Outcome",
    "PlaceLimits",
    "Request",
    "Response",
    "Route",
    "RouteLimits",
    "RouteTable",
    "Rule",
    "RuleOptions",
    "ViewLimits",
    "Visit",
    "WrittenLimits",
    "WsgiVisit",
    "admit",
    "check_on_denied",
    "check_options",
    "force_enabled",
    "limit_responses",
    "make_rule",
    "nested_limits",
    "refund_failed",
    "reset_guards",
    "scope_of",
    "used_share",
]
