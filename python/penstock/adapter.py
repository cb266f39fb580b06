"""What every framework's integration is built on, for people who write an adapter.

docs/adapters.md has the duties of an adapter, and an example.
"""

from penstock.web.decide import RouteLimits
from penstock.web.events import used_share
from penstock.web.guard import Guard, GuardOptions, check_on_denied, check_options
from penstock.web.lifecycle import Visit, admit, refund_failed
from penstock.web.outcome import Outcome
from penstock.web.replacements import force_enabled, reset_guards
from penstock.web.request import EnvironRequest, MissingId, Request, Response
from penstock.web.route_table import (
    EXEMPT,
    Known,
    Route,
    RouteTable,
    ViewLimits,
    nested_limits,
    scope_of,
)
from penstock.web.rule import METHODS, Rule, RuleOptions, WrittenLimits, make_rule
from penstock.web.wsgi_visit import VISIT_KEY, WsgiVisit, limit_responses

__all__ = [
    "EXEMPT",
    "METHODS",
    "VISIT_KEY",
    "EnvironRequest",
    "Guard",
    "GuardOptions",
    "Known",
    "MissingId",
    "Outcome",
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
