"""Names of limits that are written on views: short, distinct and the same in every process."""

from __future__ import annotations

import penstock
from penstock._web.compile import view_scope
from penstock.adapter import Guard, make_rule


def names(limiter: penstock.Limiter, *scopes: str) -> list[str]:
    """Return the names of a text on views with these scopes, in a new guard."""
    guard = Guard(limiter)
    found = []
    for scope in scopes:
        (limit,) = guard.route_limits([make_rule(["5/minute"], scope, {})]).limits
        found.append(limit.name)
    return found


ORDERS = view_scope("shop.views", "orders")
OTHER = view_scope("blog.views", "orders")
THIRD = view_scope("news.views", "orders")


def test_name_is_that_of_the_view() -> None:
    limiter = penstock.Limiter({})
    inner = view_scope("shop.app", "create_app.<locals>.Orders.get")
    assert names(limiter, ORDERS, inner, "default") == ["orders", "Orders.get", "default"]


def test_further_view_of_the_same_name_has_its_module() -> None:
    assert names(penstock.Limiter({}), ORDERS, OTHER, THIRD) == [
        "orders",
        "views.orders",
        "news.views.orders",
    ]
    loaded = penstock.Limiter({"orders": "5/minute"})
    assert names(loaded, ORDERS) == ["views.orders"]


def test_two_applications_on_one_limiter_share_names_only_for_the_same_views() -> None:
    limiter = penstock.Limiter({})
    assert names(limiter, ORDERS) == names(limiter, ORDERS) == ["orders"]
    assert names(limiter, OTHER) == ["views.orders"]
