"""Presets: unchanged definitions of Sharkey, and the transactions of actions in Boulder."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING, Any

import boulder
import pytest
import sharkey

import penstock
from penstock import ConfigError, Limiter, Limits, ManualClock, Transaction

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.parametrize(
    ("definition", "size", "drip_rate", "drip_size"),
    [
        ({"type": "bucket", "size": 10}, 10, 1.0, 1),
        ({"type": "bucket", "size": 20, "dripRate": 250, "dripSize": 5, "key": "x"}, 20, 0.25, 5),
        ({"max": 10, "duration": 10_000}, 10, 1.0, 1),
        ({"max": 10, "duration": 5000, "minInterval": 1000}, 10, 1.0, 2),
        ({"duration": 3_600_000, "max": 300, "minInterval": 1000}, 300, 12.0, 1),
        ({"minInterval": 2000}, 1, 2.0, 1),
    ],
)
def test_definition_loads_as_it_is(
    definition: dict[str, Any], size: int, drip_rate: float, drip_size: int
) -> None:
    limit = sharkey.limit(definition)
    assert (limit.size, limit.drip_rate, limit.drip_size) == (size, drip_rate, drip_size)


@pytest.mark.parametrize(
    "definition",
    [
        {},
        {"key": "x"},
        {"type": "window", "size": 1},
        {"type": "bucket"},
        {"type": "bucket", "size": 10, "max": 10},
        {"size": 10},
        {"max": "10", "duration": 1000},
        {"max": True, "duration": 1000},
        {"max": 10, "duration": "1s"},
        {"max": 0, "duration": 1000},
        {"type": "bucket", "size": 0},
        {"type": "bucket", "size": 1, "dripRate": 0},
    ],
)
def test_faulty_definition_is_an_error(definition: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, penstock.LimitError)):
        sharkey.limits({"i": definition})


def test_definitions_with_one_key_are_one_limit() -> None:
    one = {"key": "write", "max": 5, "duration": 1000}
    limits = sharkey.limits({"a": one, "b": one, "c": {"minInterval": 500}})
    assert list(limits) == ["write", "c"]
    with pytest.raises(ConfigError, match="write"):
        sharkey.limits({"a": one, "b": {**one, "max": 6}})


def test_lifted_limit_has_the_fields_of_the_style(clock: ManualClock) -> None:
    limiter = Limiter(sharkey.limits({"i": {"max": 1, "duration": 1000}}), clock=clock)
    factor = sharkey.role_factor([0])
    assert limiter.spend("i", "ada", factor=factor).headers(sharkey.HEADERS) == {
        "X-RateLimit-Remaining": "9007199254740991",
        "X-RateLimit-Clear": "0.000",
    }
    assert limiter.spend("i", "ada", factor=factor).headers("sharkey") == {}
    assert sharkey.role_factor([0.001]) == 0.01


DEFAULTS = """
NewRegistrationsPerIPAddress: {count: 1, burst: 10, period: 1h}
NewRegistrationsPerIPv6Range: {count: 1, burst: 10, period: 1h}
NewOrdersPerAccount: {count: 1, burst: 10, period: 1h}
FailedAuthorizationsPerDomainPerAccount: {count: 1, burst: 5, period: 1h}
CertificatesPerDomain: {count: 1, burst: 2, period: 1h}
CertificatesPerFQDNSet: {count: 1, burst: 2, period: 1h}
FailedAuthorizationsForPausingPerDomainPerAccount: {count: 1, burst: 2, period: 1h}
LimitOverrideRequestsPerIPAddress: {count: 1, burst: 1, period: 1h}
"""
OVERRIDES = """
- CertificatesPerDomainPerAccount:
    {count: 1, burst: 9, period: 1h, ids: [{id: "7", comment: a large customer}]}
"""


@pytest.fixture
def limits() -> Limits:
    return Limits.parse(DEFAULTS, OVERRIDES, names=boulder.LimitName)


@pytest.fixture
def limiter(limits: Limits, clock: ManualClock) -> Limiter:
    return Limiter(limits, clock=clock)


def kinds(transactions: list[Transaction]) -> list[tuple[str, str]]:
    return [(each.name, each.kind) for each in transactions]


def test_new_account_counts_ranges_of_ipv6_only(limits: Limits) -> None:
    assert kinds(boulder.new_account(limits, "192.0.2.7")) == [
        ("NewRegistrationsPerIPAddress", "spend")
    ]
    assert kinds(boulder.new_account(limits, "2001:db8::7")) == [
        ("NewRegistrationsPerIPAddress", "spend"),
        ("NewRegistrationsPerIPv6Range", "spend"),
    ]


def test_new_order_checks_limits_that_are_spent_at_issuance(
    limits: Limits, limiter: Limiter
) -> None:
    names = ["example.com", "www.example.com"]
    order = boulder.new_order(limits, 1, names)
    assert kinds(order) == [
        ("NewOrdersPerAccount", "spend"),
        ("FailedAuthorizationsPerDomainPerAccount", "check"),
        ("FailedAuthorizationsPerDomainPerAccount", "check"),
        # One registered domain is one bucket.
        ("CertificatesPerDomain", "check"),
        ("CertificatesPerFQDNSet", "check"),
    ]
    for _ in range(2):
        assert limiter.spend_all(order)
        assert limiter.spend_all(boulder.certificate_issued(limits, 1, names))
    denied = limiter.spend_all(order)
    assert (denied.allowed, denied.binding) == (False, "CertificatesPerFQDNSet")
    assert limiter.peek("NewOrdersPerAccount", "1").remaining == 8
    # A renewal is neither an order nor a new certificate of its domain.
    assert kinds(boulder.new_order(limits, 1, names, is_renewal=True)) == [
        ("FailedAuthorizationsPerDomainPerAccount", "check"),
        ("FailedAuthorizationsPerDomainPerAccount", "check"),
        ("CertificatesPerFQDNSet", "check"),
    ]


def test_override_of_an_account_replaces_the_limit_of_the_domain(limits: Limits) -> None:
    order = kinds(boulder.new_order(limits, 7, ["example.com"]))
    assert ("CertificatesPerDomainPerAccount", "check") in order
    assert ("CertificatesPerDomain", "check") not in order
    assert kinds(boulder.certificate_issued(limits, 7, ["example.com"])) == [
        ("CertificatesPerDomain", "spend_only"),
        ("CertificatesPerDomainPerAccount", "spend_only"),
        ("CertificatesPerFQDNSet", "spend_only"),
    ]


def test_failures_pause_an_account_until_one_succeeds(limits: Limits, limiter: Limiter) -> None:
    failed = boulder.authorization_failed(limits, 1, "example.com")
    assert [limiter.spend_all(failed).allowed for _ in range(3)] == [True, True, False]
    assert limiter.reset_all(boulder.authorization_succeeded(1, "example.com")) == 1
    assert limiter.spend_all(failed)


def test_override_requests_count_by_address(limits: Limits, limiter: Limiter) -> None:
    request = boulder.override_requested(limits, "192.0.2.7")
    assert [limiter.spend_all(request).allowed for _ in range(2)] == [True, False]


@pytest.mark.parametrize("number", [0, 101])
def test_number_of_identifiers_is_bounded(limits: Limits, number: int) -> None:
    with pytest.raises(ConfigError):
        boulder.new_order(limits, 1, ["example.com"] * number)


@pytest.mark.parametrize("module", [boulder, sharkey])
def test_examples_of_the_files_show_what_happens(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
