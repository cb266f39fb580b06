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
from penstock import ConfigError, Limiter, Limits, ManualClock, Transaction

if TYPE_CHECKING:
    from redis_servers import Server

    Scenario = dict[str, Any]
    Step = dict[str, Any]

VECTORS = Path(__file__).parents[1] / "data" / "vectors"
# The smallest number of scenarios: a shorter file has been cut by mistake.
MIN_SCENARIOS = {"token_bucket": 40, "leaky_bucket": 52, "windows": 21, "slots": 8}

ERRORS: dict[str, type[Exception]] = {
    "cost_negative": penstock.CostNegative,
    "cost_too_high": penstock.CostTooHigh,
    "unknown_limit": penstock.UnknownLimit,
    "invalid_id": penstock.InvalidId,
    "duplicate_bucket": penstock.TransactionError,
    "factor_negative": penstock.LimitError,
    "type_error": TypeError,
}
WAYS = ["limiter", "bound limit", "batch"]
"""How a call about one bucket is made: each must answer alike."""
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


def scenarios(kind: str) -> list[Any]:
    """Return the scenarios of all files that have this field."""
    return [
        pytest.param(scenario, id=f"{name}-{scenario['name']}")
        for name in MIN_SCENARIOS
        for scenario in read(name)
        if kind in scenario
    ]


SCENARIOS = scenarios("steps")
REFUSED = scenarios("refused")
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


class Play:
    """A scenario on an empty store, whose calls are made in one way."""

    def __init__(self, scenario: Scenario, store: str, way: str) -> None:
        self.way = way
        self.clock = ManualClock()
        self.clock.set_ns(scenario["start_ns"])
        self.held: dict[str, penstock.Reservation] = {}
        with Limiter(limits_of(scenario), store, self.clock) as self.limiter:
            compared = [self.step(step) for step in scenario["steps"]]
            for reservation in self.held.values():
                reservation.abandon()
        assert any(compared)

    def step(self, step: Step) -> bool:
        """Make a step and compare its answer; return whether there was one to compare."""
        match step["op"]:
            case "advance":
                now_ns = self.clock.now_ns() + step["advance_ns"]
                self.clock.set_ns(now_ns, allow_backwards=True)
            case "reload":
                self.limiter.reload(limits_of(step))
            case "abandon":
                self.held[step["of"]].abandon()
            case "reset":
                self.limiter.reset(step["name"], step["id"])
            case "release":
                assert self.held[step["of"]].release() == step["expect"]["released"], step
                return True
            case _:
                self.compare(step, dict(step["expect"]))
                return True
        return False

    def compare(self, step: Step, expected: dict[str, Any]) -> None:
        """Make the call of a step, and compare the decision or error."""
        error = expected.pop("error", None)
        if error is not None:
            assert expected == {}
            before = self.limiter.stats()["buckets"]
            with pytest.raises(ERRORS[error]):
                self.call(step)
            assert self.limiter.stats()["buckets"] == before
            return
        if "remaining" in expected:
            expected.setdefault("unlimited", False)
        *_, decision = [self.call(step) for _ in range(step.get("repeat", 1))]
        assert {name: getattr(decision, name) for name in expected} == expected, step

    def call(self, step: Step) -> Any:
        """Make the call of a step once."""
        if "transactions" in step:
            batch = [
                Transaction(one["name"], one["id"], one["cost"], one.get("kind", "spend"))
                for one in step["transactions"]
            ]
            return getattr(self.limiter, step["op"])(batch)
        verb, name, id, cost = (step[field] for field in ("op", "name", "id", "cost"))
        factor = {"factor": step["factor"]} if "factor" in step else {}
        match self.way:
            case "limiter":
                answer = getattr(self.limiter, verb)(name, id, cost, **factor)
            case "bound limit":
                answer = getattr(self.limiter.limit(name), verb)(id, cost, **factor)
            case _ if verb == "charge":
                return self.limiter.spend_all([Transaction(name, id, cost, "charge")]).parts[0]
            case _:
                transaction = Transaction(name, id, cost, **factor)
                answer = getattr(self.limiter, f"{verb}_all")([transaction])
        if verb == "reserve":
            self.held[step.get("as", "")] = answer
            return answer.decision
        return answer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_gives_its_numbers(scenario: Scenario, way: str) -> None:
    Play(scenario, "memory://", way)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_gives_the_same_numbers_in_shared_memory(scenario: Scenario, shm_url: str) -> None:
    Play(scenario, shm_url, "limiter")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["limiter", "batch"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_gives_the_same_numbers_over_a_server(
    scenario: Scenario, way: str, redis_server: Server
) -> None:
    Play(scenario, f"{redis_server.url}?deny_cache=0&deadline=20s", way)


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
