"""The limits of Boulder, the certificate authority software of Let's Encrypt.

With this file beside yours, its limits files load unchanged:

    import boulder
    from penstock import Limits

    limits = Limits.load("defaults.yml", overrides="overrides.yml", names=boulder.LimitName)

Source: names and numbers of the package `ratelimits` in
https://github.com/letsencrypt/boulder/tree/v0.20251208.0/ratelimits.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from penstock import ConfigError, Limit, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock import Limits
    from penstock.types import TransactionKind

    _Call: TypeAlias = "tuple[LimitName, str, TransactionKind]"

__all__ = [
    "LimitName",
    "authorization_failed",
    "authorization_succeeded",
    "certificate_issued",
    "new_account",
    "new_order",
    "override_requested",
]

_SPEND: Final = "spend"
_CHECK: Final = "check"
_SPEND_ONLY: Final = "spend_only"


class LimitName(enum.IntEnum):
    """The names of the limits, and the numbers at the start of their bucket keys.

    Attributes:
        id_format: The format of the limit's ids, as in a limits file.
    """

    id_format: str

    def __new__(cls, number: int, id_format: str) -> Self:
        """Create a member from its number and id format."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.id_format = id_format
        return member

    NewRegistrationsPerIPAddress = 1, "ipAddress"
    """Accounts created from one address."""

    NewRegistrationsPerIPv6Range = 2, "ipv6RangeCIDR"
    """Accounts created from one IPv6 /48."""

    NewOrdersPerAccount = 3, "regId"
    """Orders of one account."""

    FailedAuthorizationsPerDomainPerAccount = 4, "regId:identValue"
    """Failed validations of one name or address by one account; overrides name the account."""

    # Overrides may name a host below a registered domain, as some of the authority's own files do.
    CertificatesPerDomain = 5, "domainOrCIDR/exact"
    """Certificates for one registered domain, IPv4 address or /64 of IPv6 addresses."""

    CertificatesPerDomainPerAccount = 6, "regId:domain"
    """The same for one account; it has no default, and overrides name the account."""

    CertificatesPerFQDNSet = 7, "fqdnSet"
    """Certificates for exactly one set of names and addresses."""

    FailedAuthorizationsForPausingPerDomainPerAccount = 8, "regId:identValue"
    """Failed validations after which an account is paused for a name or address."""

    LimitOverrideRequestsPerIPAddress = 9, "ipAddress"
    """Requests for an override from one address."""


_MAX_IDENTIFIERS: Final = 100


def new_account(limits: Limits, address: str) -> list[Transaction]:
    """Return the transactions of creating an account; for `Limiter.spend_all`.

    Raises:
        InvalidId: `address` is not an IP address.

    Examples:
        >>> import boulder
        >>> import penstock
        >>> limits = penstock.Limits.parse(
        ...     "NewRegistrationsPerIPAddress: {count: 10, burst: 10, period: 3h}",
        ...     names=boulder.LimitName,
        ... )
        >>> limiter = penstock.Limiter(limits, clock=penstock.ManualClock())
        >>> limiter.spend_all(boulder.new_account(limits, "192.0.2.7")).remaining
        9
    """
    found: list[_Call] = [(LimitName.NewRegistrationsPerIPAddress, address, _SPEND)]
    if ":" in address:
        found.append((LimitName.NewRegistrationsPerIPv6Range, address, _SPEND))
    return _transactions(limits, found)


def new_order(
    limits: Limits, account: int, identifiers: Sequence[str], *, is_renewal: bool = False
) -> list[Transaction]:
    """Return the transactions of ordering a certificate; for `Limiter.spend_all`.

    Failed authorizations and certificates are only checked: they are spent when they happen.

    Raises:
        ConfigError: There are more than 100 identifiers.
        InvalidId: An identifier is not a name or an address.
    """
    _check_number(identifiers)
    found: list[_Call] = []
    if not is_renewal:
        found.append((LimitName.NewOrdersPerAccount, str(account), _SPEND))
    found += [
        (LimitName.FailedAuthorizationsPerDomainPerAccount, f"{account}:{identifier}", _CHECK)
        for identifier in identifiers
    ]
    if not is_renewal:
        for identifier in identifiers:
            if _has_override(limits, account, identifier):
                name, id = LimitName.CertificatesPerDomainPerAccount, f"{account}:{identifier}"
            else:
                name, id = LimitName.CertificatesPerDomain, identifier
            found.append((name, id, _CHECK))
    found.append((LimitName.CertificatesPerFQDNSet, ",".join(identifiers), _CHECK))
    return _transactions(limits, found)


def certificate_issued(
    limits: Limits, account: int, identifiers: Sequence[str], *, is_renewal: bool = False
) -> list[Transaction]:
    """Return the transactions of an issued certificate, which is counted and never denied.

    Raises:
        ConfigError: As `new_order`.
        InvalidId: As `new_order`.
    """
    _check_number(identifiers)
    found: list[_Call] = []
    for identifier in () if is_renewal else identifiers:
        found.append((LimitName.CertificatesPerDomain, identifier, _SPEND_ONLY))
        if _has_override(limits, account, identifier):
            id = f"{account}:{identifier}"
            found.append((LimitName.CertificatesPerDomainPerAccount, id, _SPEND_ONLY))
    found.append((LimitName.CertificatesPerFQDNSet, ",".join(identifiers), _SPEND_ONLY))
    return _transactions(limits, found)


def authorization_failed(limits: Limits, account: int, identifier: str) -> list[Transaction]:
    """Return the transactions of a failed validation; if denied, pause the account for it.

    Raises:
        InvalidId: As `new_order`.
    """
    id = f"{account}:{identifier}"
    pausing = LimitName.FailedAuthorizationsForPausingPerDomainPerAccount
    return _transactions(
        limits,
        [
            (LimitName.FailedAuthorizationsPerDomainPerAccount, id, _SPEND_ONLY),
            (pausing, id, _SPEND),
        ],
    )


def authorization_succeeded(account: int, identifier: str) -> list[tuple[str, str]]:
    """Return the buckets that a successful validation clears; for `Limiter.reset_all`."""
    name = LimitName.FailedAuthorizationsForPausingPerDomainPerAccount.name
    return [(name, f"{account}:{identifier}")]


def override_requested(limits: Limits, address: str) -> list[Transaction]:
    """Return the transactions of requesting an override.

    Raises:
        InvalidId: As `new_account`.
    """
    return _transactions(limits, [(LimitName.LimitOverrideRequestsPerIPAddress, address, _SPEND)])


def _transactions(limits: Limits, calls: Iterable[_Call]) -> list[Transaction]:
    # By bucket, because several names of one registered domain share one.
    found: dict[str, Transaction] = {}
    for name, id, kind in calls:
        # A limit that was not loaded is disabled.
        if name.name in limits:
            key = limits.explain(name.name, id).bucket_key
            found.setdefault(key, Transaction(name.name, id, 1, kind))
    return list(found.values())


def _has_override(limits: Limits, account: int, identifier: str) -> bool:
    name = LimitName.CertificatesPerDomainPerAccount.name
    if name not in limits:
        return False
    return limits.resolve(name, f"{account}:{identifier}") != Limit.unlimited()


def _check_number(identifiers: Sequence[str]) -> None:
    if not 1 <= len(identifiers) <= _MAX_IDENTIFIERS:
        raise ConfigError(
            f"identifiers must be 1 to {_MAX_IDENTIFIERS} names or addresses, "
            f"found {len(identifiers)}"
        )
