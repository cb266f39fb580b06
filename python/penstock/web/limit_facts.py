"""Facts about the limits of routes, as the commands of the frameworks print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.messages import describe_limit
from penstock.web.per_request import PerRequestLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.web.guard import Guard
    from penstock.web.rule import CompiledLimit

_SECOND_NS: Final = 1_000_000_000
# Options that are shown by their names alone.
_FLAGS: Final = (
    "exempt_when",
    "deduct_when",
    "cost_from_response",
    "refund_on_error",
    "count_denied",
)


def limit_facts(guard: Guard, limit: CompiledLimit | PerRequestLimit) -> dict[str, Any]:
    """Return the facts about a limit of a route, as `show --json` prints them."""
    rule = limit.rule
    choices = limit.names() if isinstance(limit, PerRequestLimit) else None
    default = guard.limiter.limits.default(limit.name) if choices is None else None
    return {
        "name": limit.name,
        "limit": None if default is None else describe_limit(default),
        "choices": choices,
        "id": getattr(rule.id, "__name__", None) or repr(rule.id),
        "cost": None if callable(rule.cost) else rule.cost,
        **{name: bool(getattr(rule, name)) for name in _FLAGS},
        "block_for": [f"{block.period_ns / _SECOND_NS:g} s" for block in rule.blocks],
        "on_store_error": rule.on_store_error,
        "mode": "shadow" if limit.is_shadow else "enforce",
        "enabled": guard.enabled,
    }


def fact_text(facts: dict[str, Any]) -> str:
    """Return the facts about a limit as text: those that differ from a plain limit."""
    return f"{facts['name']}: {', '.join(_details(facts))}"


def _details(facts: dict[str, Any]) -> Iterator[str]:
    if facts["choices"] is None:
        yield facts["limit"] or "by override only"
    else:
        yield f"by request: {', '.join(facts['choices'])}" if facts["choices"] else "by request"
    yield facts["id"]
    yield from facts.get("methods") or ()
    if facts["cost"] != 1:
        yield "cost by request" if facts["cost"] is None else f"cost {facts['cost']}"
    yield from (name for name in _FLAGS if facts[name])
    if facts["block_for"]:
        yield f"block_for {', '.join(facts['block_for'])}"
    if facts["on_store_error"]:
        yield f"on_store_error {facts['on_store_error']}"
    if facts["mode"] == "shadow":
        yield "shadow"
    if not facts["enabled"]:
        yield "switched off"
