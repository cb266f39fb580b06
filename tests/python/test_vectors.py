"""The golden decisions, compared exactly, through the Python API.

`tests/data/vectors/README.md` describes the fields of a scenario; `test_headers.py` reads
`headers.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import ConfigError, Decision, Limiter, Limits, ManualClock, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis_servers import Server

    Scenario = dict[str, Any]
    Step = dict[str, Any]
    Caller = Callable[[Limiter, Step], Decision]

VECTORS = Path(__file__).parents[1] / "data" / "vectors"
# The smallest number of scenarios: a shorter file has been cut by mistake.
MIN_SCENARIOS = {"token_bucket": 39, "leaky_bucket": 51, "windows": 20, "slots": 8}

ERRORS: dict[str, tuple[type[Exception], ...]] = {
    "cost_negative": (penstock.CostNegative,),
    "cost_too_high": (penstock.CostTooHigh,),
    "unknown_limit": (penstock.UnknownLimit,),
    "invalid_id": (penstock.InvalidId,),
    "duplicate_bucket": (penstock.TransactionError,),
    "factor_negative": (penstock.LimitError,),
    "type_error": (TypeError,),
}
NANOSECONDS = {
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}


def read(name: str) -> list[Scenario]:
    """Return the scenarios of a file."""
    found: list[Scenario] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return found


SCENARIOS = [
    pytest.param(scenario, id=f"{name}-{scenario['name']}")
    for name in MIN_SCENARIOS
    for scenario in read(name)
    if "steps" in scenario
]
REFUSED = [
    pytest.param(scenario, id=f"{name}-{scenario['name']}")
    for name in MIN_SCENARIOS
    for scenario in read(name)
    if "refused" in scenario
]
IDS = [
    pytest.param(case, id=f"{index}-{case['format']}-{'good' if case['valid'] else 'bad'}")
    for index, case in enumerate(read("ids"))
]


def yaml(value: object) -> str:
    """Write YAML; JSON is YAML, and keeps texts and names quoted."""
    return json.dumps(value, ensure_ascii=False)


def limits_of(scenario: Scenario) -> Limits:
    """Create the limits of a scenario, or of a step that reloads."""
    overrides = scenario.get("overrides")
    return Limits.parse(yaml(scenario["limits"]), None if overrides is None else yaml(overrides))


def options(step: Step) -> dict[str, Any]:
    """Return the keywords that only some steps have."""
    return {"factor": step["factor"]} if "factor" in step else {}


def by_limiter(limiter: Limiter, step: Step) -> Decision:
    """Call the limiter, by position."""
    verb = getattr(limiter, step["op"])
    decision: Decision = verb(step["name"], step["id"], step["cost"], **options(step))
    return decision


def by_bound_limit(limiter: Limiter, step: Step) -> Decision:
    """Call the limit itself, by keyword."""
    verb = getattr(limiter.limit(step["name"]), step["op"])
    decision: Decision = verb(id=step["id"], cost=step["cost"], **options(step))
    return decision


def by_transactions(limiter: Limiter, step: Step) -> Decision:
    """Call for several at once, with one: it must answer as the call for one."""
    verb = getattr(limiter, f"{step['op']}_all")
    transaction = Transaction(step["name"], step["id"], step["cost"], **options(step))
    decision: Decision = verb([transaction])
    return decision


def reserve(
    limiter: Limiter, step: Step, caller: Caller, held: dict[str, penstock.Reservation]
) -> Decision:
    """Reserve slots, and keep them under the name in the step."""
    name, id, cost = step["name"], step["id"], step["cost"]
    if caller is by_transactions:
        reservation = limiter.reserve_all([(name, id, cost)])
    elif caller is by_bound_limit:
        reservation = limiter.limit(name).reserve(id, cost)
    else:
        reservation = limiter.reserve(name, id, cost)
    if "as" in step:
        held[step["as"]] = reservation
    return reservation.decision


def one_call(
    limiter: Limiter, step: Step, caller: Caller, held: dict[str, penstock.Reservation]
) -> Decision:
    """Make the call of a step once."""
    if step["op"] == "reserve":
        return reserve(limiter, step, caller, held)
    if step["op"] in {"spend", "check", "refund"}:
        return caller(limiter, step)
    transactions = [
        Transaction(one["name"], one["id"], one["cost"], one.get("kind", "spend"))
        for one in step["transactions"]
    ]
    verb = {"spend_all": limiter.spend_all, "refund_all": limiter.refund_all}[step["op"]]
    return verb(transactions)


def numbers(decision: Decision) -> dict[str, Any]:
    """Return the numbers that an expectation may contain."""
    return {
        "allowed": decision.allowed,
        "unlimited": decision.unlimited,
        "remaining": decision.remaining,
        "retry_after_ns": decision.retry_after_ns,
        "reset_after_ns": decision.reset_after_ns,
    }


def make_step(
    limiter: Limiter,
    clock: ManualClock,
    step: Step,
    caller: Caller,
    held: dict[str, penstock.Reservation],
) -> bool:
    """Make a step and compare its answer; whether there was one to compare."""
    match step["op"]:
        case "advance":
            clock.set_ns(clock.now_ns() + step["advance_ns"], allow_backwards=True)
        case "reload":
            limiter.reload(limits_of(step))
        case "release":
            assert held[step["of"]].release() == step["expect"]["released"], step
            return True
        case "abandon":
            held[step["of"]].abandon()
        case "reset":
            limiter.reset(step["name"], step["id"])
        case _:
            expected = dict(step["expect"])
            error = expected.pop("error", None)
            if error is not None:
                assert expected == {}
                before = limiter.stats()["buckets"]
                with pytest.raises(ERRORS[error]):
                    one_call(limiter, step, caller, held)
                assert limiter.stats()["buckets"] == before
                return True
            if "remaining" in expected:
                expected.setdefault("unlimited", False)
            decisions = [
                one_call(limiter, step, caller, held) for _ in range(step.get("repeat", 1))
            ]
            found = numbers(decisions[-1])
            assert {name: found[name] for name in expected} == expected, step
            return True
    return False


@pytest.mark.parametrize("caller", [by_limiter, by_bound_limit, by_transactions])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_gives_its_numbers(scenario: Scenario, caller: Caller) -> None:
    play(scenario, "memory://", caller)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_gives_the_same_numbers_in_shared_memory(
    scenario: Scenario, tmp_path: Path
) -> None:
    play(scenario, f"shm://{tmp_path}/table?capacity=100", by_limiter)


@pytest.mark.slow
@pytest.mark.parametrize("caller", [by_limiter, by_transactions])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_gives_the_same_numbers_over_a_server(
    scenario: Scenario, caller: Caller, redis_server: Server
) -> None:
    play(scenario, f"{redis_server.url}?deny_cache=0&deadline=20s", caller)


def play(scenario: Scenario, store: str, caller: Caller) -> None:
    """Play a scenario on an empty store."""
    clock = ManualClock()
    clock.set_ns(scenario["start_ns"])
    with Limiter(limits_of(scenario), store, clock) as limiter:
        held: dict[str, penstock.Reservation] = {}
        compared = [make_step(limiter, clock, step, caller, held) for step in scenario["steps"]]
        for reservation in held.values():
            reservation.abandon()
    assert any(compared)


def nanoseconds(text: str) -> int | None:
    """Parse a duration such as `1ms500us`; return `None` for other text."""
    parts = re.findall(r"(\d+)([a-z]+)", text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        return None
    return sum(int(number) * NANOSECONDS[unit] for number, unit in parts)


@pytest.mark.parametrize("scenario", REFUSED)
def test_error_of_a_limit_has_limit_field_and_value(scenario: Scenario) -> None:
    refused = scenario["refused"]
    with pytest.raises(ConfigError) as caught:
        limits_of(scenario)
    message = str(caught.value)
    assert caught.value.limit_name == refused["limit"]
    assert refused["limit"] in message
    assert any(re.search(rf"\b{field}\b", message) for field in refused["field"]), message
    found = set(re.findall(r"[\w.]+", message))
    spelled = {word for word in found if nanoseconds(word) == nanoseconds(refused["found"])}
    wanted = {refused["found"]} if nanoseconds(refused["found"]) is None else spelled
    assert wanted
    assert wanted & found, message
    assert refused.get("mentions", "") in message


# A request may have any name or address, which counts for its domain or network; an override must
# have the domain or the network itself. An override may also apply to a network of addresses.
ONLY_IN_REQUESTS = {
    ("domainOrCIDR", "a.foo.github.io"),
    ("domainOrCIDR", "co.uk"),
    ("domainOrCIDR", "foo.ck"),
    ("ipv6RangeCIDR", "2602:80a:6000::"),
    ("ipv6RangeCIDR", "2001:db8:abcd:12::1"),
}
ONLY_IN_OVERRIDES = {("ipAddress", "10.0.0.0/8")}


def override_of(case: Scenario) -> Limits:
    """Return the limits of a case with an override for its id."""
    override = {"Limit": {"burst": 2, "count": 2, "period": "1s", "ids": [case["id"]]}}
    return Limits.parse(one_limit(case), yaml([override]))


def one_limit(case: Scenario) -> str:
    """Write a limits file with one limit whose ids have the format of a case."""
    number = {"number": case["number"]} if "number" in case else {}
    parameters = {"burst": 1, "count": 1, "period": "1s"}
    return yaml({"Limit": {**parameters, **number, "id": case["format"]}})


@pytest.mark.parametrize("case", IDS)
def test_id_of_a_request_has_its_canonical_spelling_or_is_refused(case: Scenario) -> None:
    limits = Limits.parse(one_limit(case))
    limiter = Limiter(limits, clock=ManualClock())
    if case["valid"]:
        why = limits.explain("Limit", case["id"])
        assert (why.id, why.bucket_key) == (case["canonical"], case["key"])
        assert limiter.spend("Limit", case["id"]).id == case["canonical"]
        # The canonical spelling is the same client, except for sets, which are known by a digest.
        if "fqdnSet" not in case["format"] and "domain" not in case["format"]:
            assert limits.explain("Limit", case["canonical"]).id == case["canonical"]
    elif (case["format"], case["id"]) in ONLY_IN_REQUESTS:
        assert limiter.spend("Limit", case["id"])
    else:
        with pytest.raises(penstock.InvalidId, match=r"^Limit: "):
            limits.explain("Limit", case["id"])
        with pytest.raises(penstock.InvalidId):
            limiter.spend("Limit", case["id"])
        assert len(limiter) == 0


@pytest.mark.parametrize("case", IDS)
def test_id_of_an_override_is_valid_or_refused(case: Scenario) -> None:
    asked = case["format"], case["id"]
    if asked in ONLY_IN_OVERRIDES:
        assert override_of(case).resolve("Limit", "10.9.9.9").burst == 2
    elif case["valid"] and asked not in ONLY_IN_REQUESTS:
        assert override_of(case).resolve("Limit", case["id"]).burst == 2
    else:
        with pytest.raises(ConfigError) as caught:
            override_of(case)
        assert caught.value.limit_name == "Limit"


def test_all_vectors_exist() -> None:
    for name, min_count in MIN_SCENARIOS.items():
        names = [scenario["name"] for scenario in read(name)]
        assert len(names) >= min_count, name
        assert len(set(names)) == len(names), name
    assert len(SCENARIOS) >= 95
    assert len(REFUSED) >= 12
    assert len(IDS) >= 112
    assert {case["valid"] for case in read("ids")} == {True, False}
    ids = {(case["format"], case["id"]) for case in read("ids")}
    assert ids >= ONLY_IN_REQUESTS | ONLY_IN_OVERRIDES
