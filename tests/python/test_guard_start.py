"""Configuration errors: found at startup, with a hint."""

from __future__ import annotations

from typing import Any

import pytest
from guards import asks, request
from programs import run

import penstock
from penstock import ConfigError, Limiter, Limits, ManualClock
from penstock._web.guard import Guard, GuardOptions
from penstock._web.rule import RuleOptions
from penstock.flask import Penstock
from penstock.identity import by_user, everyone, per_route, shared


class Later:
    """A callable whose result has to be awaited."""

    async def __call__(self, _: object) -> bool:
        return False


@pytest.fixture
def guard(limiter: Limiter) -> Guard:
    return Guard(limiter)


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ([], {}, "at least one"),
        (["PerAdress"], {}, "no limit is named 'PerAdress'; did you mean 'PerAddress'"),
        (["x"], {}, "Large, Other, PerAddress, PerUser"),
        ([len], {}, "limit\\('PerAddress'\\)"),
        ([7], {}, "a limit is a name"),
        (["PerAddress"], {"cost": 3}, "PerAddress: cost must be at most 2, found 3"),
        (["2/minute"], {"cost": 3}, "2/minute: cost must be at most 2, found 3"),
        (["PerAddress"], {"cost": -1}, "cost must be"),
        (["PerAddress"], {"cost": True}, "cost must be"),
        (["PerAddress"], {"cost": 1.5}, "cost must be"),
        (["PerAddress"], {"methods": []}, "methods must name at least one"),
        (["PerAddress"], {"methods": ["GET", 7]}, "methods must name at least one"),
        (["PerAddress"], {"methods": True}, "methods must name at least one"),
        (["PerAddress"], {"methods": "ALL"}, "leave methods out"),
        (["PerAddress"], {"methods": ["*"]}, "leave methods out"),
        ([["PerAddress", "PerUser"]], {}, "write several as arguments"),
        (["PerAddress"], {"exempt_when": True}, "exempt_when must"),
        (["PerAddress"], {"deduct_when": 401}, "deduct_when must be"),
        (["PerAddress"], {"mode": "dry-run"}, "mode must be 'enforce' or 'shadow'"),
        (["PerAddress"], {"on_store_error": "open"}, "on_store_error must be one of allow"),
        (["PerAddress"], {"id": None}, "id must be"),
        (["PerAddress"], {"key": "ip"}, "use id"),
        (["PerAddress"], {"exempt_when": Later()}, "exempt_when must"),
        (["PerAddress"], {"deduct_when": Later()}, "deduct_when must be"),
        (["PerAddress"], {"deduct_when": lambda: True}, "deduct_when must be"),
        (["PerAddress"], {"factor": 2}, "PerAddress: .*token-bucket"),
        (["PerAddress"], {"factor": lambda: 2}, "PerAddress: .*token-bucket"),
        (["PerAddress"], {"tier": lambda: "pro"}, "PerAddress has no tiers"),
        (["x"], {"tier": lambda: "pro"}, "x has no tiers"),
        ([], {"tiers": {"free": "PerAdress"}, "tier": lambda: "free"}, "did you mean 'PerAddress'"),
        ([], {"tiers": {"free": "1/minute"}}, "tier"),
        ([], {"tiers": {}, "tier": len}, "tiers"),
        ([], {"tiers": ["1/minute"], "tier": len}, "tiers"),
        ([], {"tiers": {"free": 5}, "tier": len}, "found 5"),
        ([], {"limit": len, "tier": len}, "tier"),
        ([], {"limit": len, "tiers": {"free": "1/minute"}, "tier": len}, "tiers"),
        ([], {"limit": "PerAddress"}, "limit"),
        ([], {"tiers": {"free": "1/minute"}, "tier": len, "factor": True}, "factor"),
        ([], {"tier": len}, "at least one"),
        (["PerAddress"], {"block_for": []}, "block_for"),
        (["PerAddress"], {"block_for": ["1h", "1m"]}, "block_for"),
        (["PerAddress"], {"block_for": ["1m", "1m"]}, "block_for"),
        (["PerAddress"], {"count_denied": "yes"}, "count_denied"),
        (["PerAddress"], {"costs": 2}, "did you mean 'cost'"),
        (["PerAddress"], {"refund_on_error": "no"}, "refund_on_error must be True or False"),
    ],
)
def test_invalid_rule_is_an_error_at_startup_with_a_hint(
    guard: Guard, limits: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        asks(guard, *limits, **options)


def test_invalid_text_is_quoted(guard: Guard) -> None:
    with pytest.raises(penstock.LimitError, match="10/fortnight"):
        asks(guard, "10/fortnight")


@pytest.mark.parametrize("length", ["1 fortnight", "100us", 0])
def test_block_of_an_invalid_length_is_refused(guard: Guard, length: Any) -> None:
    with pytest.raises(penstock.LimitError):
        asks(guard, "PerAddress", block_for=length)


def test_limit_without_a_default_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    limits = penstock.Limits.parse(
        "Orders: 3/minute", overrides="- Order: {burst: 9, count: 9, period: 1m, ids: [ada]}"
    )
    guard = Guard(limits=limits, clock=penstock.ManualClock())
    for _ in range(2):
        asks(guard, "Order")
    (record,) = caplog.records
    assert "P008: Order has no default" in record.getMessage()


def test_block_without_a_unit_is_an_error_of_block_for(guard: Guard) -> None:
    with pytest.raises(penstock.LimitError, match="block_for: a duration must have"):
        asks(guard, "PerAddress", block_for="60")


def test_error_of_a_later_rule_defines_no_earlier_text(guard: Guard, limiter: Limiter) -> None:
    with pytest.raises(ConfigError):
        asks(guard, "2/minute", "Unknown")
    assert "views.search" not in limiter.limits


@pytest.mark.parametrize(
    ("id", "sample"),
    [
        (by_user, "address:192.0.2.1"),
        (per_route(), "/ 192.0.2.1"),
        (everyone, "everyone"),
        (by_user(missing=shared("unknown")), "unknown"),
    ],
)
def test_ids_that_can_never_fit_are_an_error_at_startup(
    clock: ManualClock, id: Any, sample: str
) -> None:
    limits = Limits.parse("PerAccount: {burst: 1, count: 1, period: 1m, id: regId}")
    guard = Guard(Limiter(limits, clock=clock))
    with pytest.raises(ConfigError, match=f"PerAccount: .*'{sample}'"):
        asks(guard, "PerAccount", id=id)
    asks(guard, "PerAccount", id=by_user(missing="refuse"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": {"A": "1/minute"}}, "found both"),
        ({"clock": ManualClock()}, "found both"),
        ({"store": "memory://"}, "found both"),
        ({"headers": "itef"}, "did you mean 'ietf'"),
        ({"headers": 5}, "headers must be"),
        ({"headers": ["ietf", 5]}, "no header style"),
        ({"spread": -0.1}, "spread must be"),
        ({"spread": 3}, "0.03 is 3 %"),
        ({"spread": "0.1"}, "spread must be"),
        ({"enabled": "false"}, "enabled must be True or False, found 'false'"),
        ({"expose_headers": "no"}, "expose_headers must be True or False"),
        ({"on_missing_id": None}, "on_missing_id must be .*, found None"),
        ({"on_store_error": {"PerAdress": "deny"}}, "did you mean 'PerAddress'"),
        ({"on_store_error": None}, "on_store_error must be one of"),
        ({"trusted_proxies": None}, "trusted_proxies must be a list"),
        ({"trusted_proxies": 10}, "trusted_proxies must be a list"),
        ({"trusted_proxies": [10]}, "trusted_proxies must be networks"),
        ({"expected_processes": 0}, "expected_processes must be"),
        ({"on_missing_id": ""}, "on_missing_id must be"),
        ({"on_store_error": "close"}, "on_store_error must be one of"),
        ({"on_store_error": {"PerAddress": "close"}}, "on_store_error must be one of"),
        ({"on_denied": lambda: "sorry"}, "on_denied must"),
        ({"on_denied": "sorry"}, "on_denied must"),
        ({"trusted_proxies": ["nginx"]}, "trusted_proxies must be"),
        ({"trusted_proxies": "10.0.0.0/99"}, "trusted_proxies"),
        ({"trusted_proxies": "0.0.0.0/0"}, "trusted_proxies"),
        ({"trusted_proxies": ["::/0"]}, "trusted_proxies"),
        ({"on_decision": 7}, "on_decision"),
        ({"on_decision": lambda decision: decision}, "on_decision"),
        ({"near_limit": 80}, "near_limit"),
        ({"near_limit": "0.8"}, "near_limit"),
    ],
)
def test_invalid_option_is_an_error_at_startup(
    limiter: Limiter, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Guard(limiter, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": ["5/minute"]}, "limits must be"),
        ({"limits": {"A": 5}}, "A must be a Limit or a rate string"),
        ({"clock": 5}, "clock must be"),
        ({"store": 5}, "store must be"),
        ({"store": ""}, "store must be"),
        ({"limits": "limits.yaml", "names": 5}, "names must be"),
        ({"limits": {"A": "1/minute"}, "overrides": "overrides.yaml"}, "overrides"),
        ({"limiter": "limits.yaml"}, r"must be a penstock\.Limiter"),
        ({"limiter": penstock.AsyncLimiter({})}, r"pass its attribute limiter"),
    ],
)
def test_option_of_the_wrong_type_is_an_error_at_startup(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Guard(**options)


def test_limits_can_be_a_mapping_a_file_or_limits(tmp_path: Any, clock: ManualClock) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("A: {burst: 1, count: 1, period: 1m}\n", encoding="utf-8")
    for limits in ({"A": "1/minute"}, file, str(file), Limits({"A": "1/minute"})):
        ask = asks(Guard(limits=limits, clock=clock), "A")
        assert [ask(request()).refusal for _ in range(2)] == [None, "denied"]


def test_guard_without_limits_accepts_texts(clock: ManualClock) -> None:
    ask = asks(Guard(clock=clock), "1/minute")
    assert [ask(request()).refusal for _ in range(2)] == [None, "denied"]


def test_misspelled_attribute_is_an_error() -> None:
    guard: Any = Guard()
    with pytest.raises(AttributeError):
        guard.enable = False
    extension: Any = Penstock()
    with pytest.raises(AttributeError):
        extension.enabled = False


def test_guard_and_its_options_name_the_same_keywords() -> None:
    parameters = set(Guard.__init__.__annotations__) - {"limiter", "return"}
    assert set(GuardOptions.__optional_keys__) == parameters
    assert RuleOptions.__optional_keys__ & parameters == {"on_store_error", "override_defaults"}


def test_web_layer_imports_no_framework() -> None:
    code = (
        "import sys, penstock._web.guard, penstock.wsgi, penstock._cli.main\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    imported = run(code).split()
    assert "penstock" in imported
    assert {"flask", "werkzeug", "django", "numpy"}.isdisjoint(imported)
