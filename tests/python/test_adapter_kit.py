"""The kit that framework adapters share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import _explain as explain
from penstock._web import guard as options
from penstock._web import route_table
from penstock.adapter import EnvironRequest, Guard, Rule, admit, make_rule
from penstock.identity import ClientAddress
from penstock.messages import explain_limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.adapter import Outcome


def refused(**options: object) -> tuple[Guard, Outcome]:
    """Return a guard and the outcome of a request that it refuses."""
    guard = Guard(limits={"Orders": "1/day"}, clock=penstock.ManualClock(), **options)  # type: ignore[arg-type]  # any of them
    limits = guard.route_limits([make_rule(["Orders"], "orders", {})])
    outcomes = [admit(limits, EnvironRequest({"REMOTE_ADDR": "203.0.113.7"})) for _ in range(2)]
    return guard, outcomes[1]


def test_options_are_split_between_guard_and_limit() -> None:
    guard, limit = options.split_options({"headers": "ietf", "cost": 2}, "App")
    assert (guard, limit) == ({"headers": "ietf"}, {"cost": 2})
    with pytest.raises(penstock.ConfigError, match="'cots'"):
        options.split_options({"cots": 2}, "App")


@pytest.mark.parametrize(
    ("answer", "content_type", "body"),
    [
        ("slow down", "text/plain; charset=utf-8", b"slow down"),
        (b"slow down", "text/plain; charset=utf-8", b"slow down"),
        ({"wait": 1}, "application/json", b'{"wait": 1}'),
        (["wait"], "application/json", b'["wait"]'),
    ],
)
def test_answer_of_on_denied_is_the_body(answer: object, content_type: str, body: bytes) -> None:
    guard, outcome = refused(on_denied=lambda _: answer)
    found = guard.custom_response(outcome)
    fields = [("Content-Type", content_type)]
    assert outcome.body(found, "a response") == (fields, body)


def test_file_is_looked_for_beside_the_application_first(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text("{}")
    assert options.find_file("limits.yaml", tmp_path) == tmp_path / "limits.yaml"
    assert str(options.find_file("other.yaml", tmp_path)) == "other.yaml"
    assert str(options.find_file("limits.yaml", None)) == "limits.yaml"


def decorate(view: Callable[[], None], name: str) -> Callable[[], None]:
    limits = route_table.ViewLimits.stacked(view, make_rule([name], "", {}))

    @functools.wraps(view)
    def wrapper() -> None:
        limits.view()

    limits.put_on(wrapper)
    return wrapper


def orders() -> None:
    """A view."""


def test_stacked_decorators_share_one_wrapper() -> None:
    inner = decorate(orders, "A")
    # The inner view may have a route of its own.
    for view, names in ((decorate(inner, "B"), [("B",), ("A",)]), (inner, [("A",)])):
        limits = route_table.outermost_limits(view)
        assert limits is not None
        assert limits.view is orders
        assert [rule.limits for rule in limits.rules] == names


def test_limits_within_another_decorator_are_nested() -> None:
    @functools.wraps(limited := decorate(orders, "A"))
    def other() -> None:
        limited()

    assert route_table.outermost_limits(other) is None
    view = decorate(other, "B")
    nested = [limits.rules[0].limits for limits in route_table.nested_limits([view, limited])]
    assert nested == [("B",), ("A",)]


def test_every_process_names_unnamed_limits_alike() -> None:
    rules = [make_rule([text], "orders", {}) for text in ("1/day", "2/day")]

    class App(route_table.RouteTable):
        def registered_rules(self) -> list[Rule]:
            return [make_rule(["Missing"], "orders", {}), *rules]

    app = App(Guard())
    compiled = app.compile(rules[1:])
    assert compiled is not None
    assert [limit.name for limit in compiled.limits] == ["orders-2"]
    assert app.compile(()) is None


def test_explain_has_stable_keys() -> None:
    limits = penstock.Limits({"Orders": "5/minute"})
    facts = explain.explain(limits, "Orders", "203.0.113.7")
    assert facts == {
        "name": "Orders",
        "id": "203.0.113.7",
        "limit": "5 per minute",
        "algorithm": "token-bucket",
        "rule": "the default",
        "file": None,
        "line": None,
        "comment": None,
        "bucket_key": "Orders:203.0.113.7",
        "admits": explain_limit(limits.resolve("Orders", "203.0.113.7")),
        "numbers": limits.resolve("Orders", "203.0.113.7").describe(),
    }
    assert list(
        explain.fact_lines({"bucket_key": "a:b", "file": None, "line": 7200, "numbers": {}})
    ) == ["bucket key  a:b", "line        7,200"]


def test_reset_fills_the_bucket_of_the_addresss_requests(tmp_path: Path) -> None:
    limits = penstock.Limits.parse("Orders: {burst: 5, count: 5, period: 1h, id: ipAddress}")
    with penstock.Limiter(limits, f"shm://{tmp_path}/store") as limiter:
        limiter.spend("Orders", ClientAddress()(EnvironRequest({"REMOTE_ADDR": "2001:db8::1"})))
        facts = explain.reset_bucket(limiter, "Orders", "2001:db8::1")
        assert facts == {"bucket_key": "Orders:2001:db8::", "was_used": True}
        assert explain.explain_bucket(limiter, "Orders", "2001:db8::1")["remaining"] == 5
    with pytest.raises(penstock.StoreError):
        explain.reset_bucket(penstock.Limiter(limits), "Orders", "192.0.2.1")
