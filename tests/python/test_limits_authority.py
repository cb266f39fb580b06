"""The limits files of a certificate authority, current and historical.

Every file that the authority has ever loaded must load here, with the entries in
`tests/data/boulder_configs/entries.txt`. The others must fail for the same reason.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Self

import boulder
import pytest
import yaml

import penstock
from penstock import Limit, Limits

FOLDER = Path(__file__).parents[1] / "data" / "boulder_configs"
NONE = FOLDER.parent / "limits" / "working_none.yaml"


def expected_entries() -> dict[str, dict[str, list[str]]]:
    """Return the numbers and the comment of each entry, by file and bucket key."""
    files: dict[str, dict[str, list[str]]] = {}
    for line in (FOLDER / "entries.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            key, *rest = line.split(maxsplit=4)
            files[next(reversed(files))][key] = rest
        else:
            files[line] = {}
    return files


EXPECTED = expected_entries()
BUSTED = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("busted_*.yml"))


class FirstYear(enum.IntEnum):
    """The names of the first year. The last two had different numbers, and sets an account."""

    id_format: str

    def __new__(cls, number: int, id_format: str) -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.id_format = id_format
        return member

    NewRegistrationsPerIPAddress = 1, "ipAddress"
    NewRegistrationsPerIPv6Range = 2, "ipv6RangeCIDR"
    NewOrdersPerAccount = 3, "regId"
    CertificatesPerDomainPerAccount = 5, "regId:domain"
    CertificatesPerFQDNSetPerAccount = 6, "regId:fqdnSet"


def names_of(file: str) -> type[enum.IntEnum]:
    """Return the names of the time of a file."""
    return FirstYear if file.startswith("legacy/055f620c4/") else boulder.LimitName


def load(file: str) -> Limits:
    """Load a file alone."""
    path, names = FOLDER / file, names_of(file)
    return Limits.load(path, None, names) if "default" in file else Limits.load(NONE, path, names)


def overridden(limits: Limits) -> list[tuple[str, str]]:
    """Return the names and ids of all overrides, as another reader of YAML sees them."""
    return [
        (name, str(one["id"] if isinstance(one, dict) else one))
        for entry in yaml.safe_load(limits.overrides_to_yaml() or "[]")
        for name, limit in entry.items()
        for one in limit["ids"]
    ]


def found_entries(limits: Limits) -> dict[str, list[str]]:
    """Return the name, numbers and comment of each loaded entry, by bucket key."""
    entries: dict[str, list[str]] = {}

    def add(name: str, key: str, limit: Limit, comment: str | None) -> None:
        assert key not in entries
        numbers = (limit.burst, limit.count, limit.period_ns // 10**9)
        entries[key] = [name, *map(str, numbers), *filter(None, [comment])]

    for name, fields in yaml.safe_load(limits.to_yaml()).items():
        default = limits.default(name)
        if default is not None:
            add(name, str(fields["number"]), default, None)
    for name, id in overridden(limits):
        # An override for an account applies to all ids of the account.
        is_account = name.endswith("DomainPerAccount") and ":" not in id
        why = limits.explain(name, f"{id}:example.com" if is_account else id)
        key = why.bucket_key.removesuffix(":example.com") if is_account else why.bucket_key
        add(name, key, why.limit, why.comment)
    return entries


def test_all_files_are_there() -> None:
    assert (len(EXPECTED), len(BUSTED)) == (38, 40)
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yml")}
    assert files == {*EXPECTED, *BUSTED}


@pytest.mark.parametrize("file", EXPECTED)
def test_file_that_was_ever_loaded_has_its_entries(file: str) -> None:
    limits, expected = load(file), dict(EXPECTED[file])
    more, *_ = expected.pop("and", ["0"])
    found = found_entries(limits)
    assert len(found) == len(expected) + int(more)
    names = {int(name): name.name for name in names_of(file)}
    for key, (name, *numbers) in found.items():
        assert name == names[int(key.partition(":")[0])]
        assert numbers[: len(expected.get(key, []))] == expected.get(key, []), key
    assert expected.keys() <= found.keys()


FAULTS = {
    "burst_0": "NewRegistrationsPerIPAddress: burst must be at least 1, found 0",
    "empty_name": "a limit's name must not be empty",
    # The earlier addresses are in reserved blocks, which is no error here.
    "bad_id": "NewRegistrationsPerIPAddress: id must be an IPv4 or IPv6 address",
    "invalid_name": "UsageRequestsPerIPv10Address: LimitName has no member of this name",
    "bad_name": "UsageRequestsPerIPv10Address: LimitName has no member of this name",
    # The name is checked before the missing id.
    "empty_id": "UsageRequestsPerIPv10Address: LimitName has no member of this name",
}


@pytest.mark.parametrize("file", BUSTED)
def test_file_that_was_never_loaded_is_refused(file: str) -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        load(file)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line is None) == (str(FOLDER / file), False)
    (fault,) = [text for end, text in FAULTS.items() if end in file]
    text = f"{problem}".removeprefix(f"{problem.file}:{problem.line}: ")
    assert text.replace("FirstYear", "LimitName").startswith(fault)


@pytest.mark.parametrize(
    ("name", "id", "key", "burst"),
    [
        ("CertificatesPerDomain", "www.le.wtf", "5:le.wtf", 10_000),
        ("CertificatesPerDomain", "ecdsa.le.wtf", "5:ecdsa.le.wtf", 10_000),
        ("CertificatesPerDomain", "www.example.com", "5:example.com", 2),
        ("CertificatesPerDomain", "2001:db8::1", "5:2001:db8::/64", 2),
        ("NewRegistrationsPerIPAddress", "64.112.117.1", "1:64.112.117.1", 1_000_000),
        ("NewRegistrationsPerIPv6Range", "2001:db8::1", "2:2001:db8::/48", 99_999),
        ("NewOrdersPerAccount", "007", "3:7", 1500),
        # A known name with neither a default nor an override is unlimited.
        ("CertificatesPerDomainPerAccount", "7:example.com", "6:7:example.com", 2**63 - 1),
    ],
)
def test_current_files_have_the_same_effect_as_at_the_authority(
    name: str, id: str, key: str, burst: int
) -> None:
    folder = FOLDER / "test/config-next"
    files = folder / "ratelimit-defaults.yml", folder / "ratelimit-overrides.yml"
    why = Limits.load(*files, names=boulder.LimitName).explain(name, id)
    assert (why.bucket_key, why.limit.max_cost) == (key, burst)


def test_override_for_an_account_applies_to_all_its_ids() -> None:
    limits = load("ratelimits/testdata/working_override_13371338.yml")
    for name, id in (
        ("CertificatesPerDomainPerAccount", "13371338:www.example.com"),
        ("FailedAuthorizationsPerDomainPerAccount", "13371338:2001:db8::1"),
        ("FailedAuthorizationsForPausingPerDomainPerAccount", "013371338:example.com"),
    ):
        assert limits.resolve(name, id).burst == 1337
