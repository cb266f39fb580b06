"""The limits of Boulder, the certificate authority software of Let's Encrypt.

Its limits files load unchanged:

    from penstock import Limits
    from penstock.presets import boulder

    limits = Limits.load("defaults.yml", overrides="overrides.yml", names=boulder.LimitName)

Source: names and numbers of the package `ratelimits` in
https://github.com/letsencrypt/boulder/tree/v0.20251208.0/ratelimits.
"""

from __future__ import annotations

import enum
from typing import Self

__all__ = ["LimitName"]


class LimitName(enum.IntEnum):
    """The names of the limits, and the numbers at the start of their bucket keys.

    Attributes:
        id_format: The format of the limit's ids, as for `id:` in a limits file.
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

    # With an override for a host below its registered domain: the authority's own files have some.
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
