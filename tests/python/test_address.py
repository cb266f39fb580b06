"""The client's address: only entries of trusted proxies are read."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock._web.address import ClientAddress, client_address
from penstock._web.request import EnvironRequest, MissingId

OURS = "10.0.0.1"
TRUSTED = ["10.0.0.0/8", "2001:db8:ffff::/48"]
CLIENT = "203.0.113.7"


def behind_ours(forwarded_for: str | None = None, forwarded: str | None = None) -> str:
    """Return the client's address of a request that a trusted proxy forwards."""
    return ClientAddress(trusted_proxies=TRUSTED).of(OURS, forwarded_for, forwarded)


def test_without_proxies_headers_are_not_read() -> None:
    assert client_address(CLIENT, {"X-Forwarded-For": "198.51.100.9"}) == CLIENT
    assert client_address(CLIENT, {"Forwarded": "for=198.51.100.9"}) == CLIENT


def test_untrusted_peer_is_the_client() -> None:
    find = ClientAddress(trusted_proxies=TRUSTED)
    assert find.of(CLIENT, "198.51.100.9", "for=198.51.100.9") == CLIENT


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (CLIENT, CLIENT),
        (f" {CLIENT} ", CLIENT),
        (f"198.51.100.9, {CLIENT}", CLIENT),
        (f"{CLIENT}, 10.0.0.2, 10.9.9.9", CLIENT),
        (f"{CLIENT},,10.0.0.2,", CLIENT),
        (f"{CLIENT}:4711", CLIENT),
        ("2001:db8::1", "2001:db8::"),
        ("[2001:db8::1]", "2001:db8::"),
        ("[2001:db8::1]:4711", "2001:db8::"),
        ("2001:db8::1%eth0", "2001:db8::"),
        ("::ffff:203.0.113.7", CLIENT),
        ("[::ffff:cb00:7107]:80", CLIENT),
        ("2001:DB8:0:0:1::1, 2001:db8:ffff::9", "2001:db8::"),
        # All are trusted: the request began at the furthest.
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        # No proxy added an entry: it began at the peer, such as a health check.
        ("", OURS),
        (" , ,", OURS),
    ],
)
def test_x_forwarded_for_is_read_from_the_right(header: str, address: str) -> None:
    assert behind_ours(header) == address


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (f"for={CLIENT}", CLIENT),
        (f"For={CLIENT};proto=https;by=10.0.0.9", CLIENT),
        (f"by=10.0.0.9 ; for={CLIENT}", CLIENT),
        (f'for="{CLIENT}:4711"', CLIENT),
        (f'for="{CLIENT}:_obfuscated"', CLIENT),
        ('for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::"),
        ('for="[2001:db8:cafe::17]"', "2001:db8:cafe::"),
        (f'for=198.51.100.9, for={CLIENT}, for="10.0.0.2"', CLIENT),
        # An unclosed quote of a client hides nothing that a proxy appended.
        (f'for="198.51.100.9, for={CLIENT}', CLIENT),
        (f'for="a\\", for={CLIENT}', CLIENT),
        (f'host="a,b;c";for={CLIENT}', CLIENT),
        # An escaped quote ends nothing; a quote after an escaped backslash does.
        (f'for={CLIENT};host="a,b\\"c"', CLIENT),
        (f'for={CLIENT};host="a,b\\\\"', CLIENT),
        (f'for={CLIENT};host="a,b\\\\\\"c"', CLIENT),
        (f'for={CLIENT}, for=10.0.0.2;host="x, for=198.51.100.9"', CLIENT),
        ("", OURS),
    ],
)
def test_forwarded_is_read_from_the_right(header: str, address: str) -> None:
    assert behind_ours(None, header) == address


@pytest.mark.parametrize(
    "header",
    [
        "unknown",
        "_hidden",
        "example.org",
        "1.2.3",
        "1.2.3.4.5",
        "01.2.3.4",
        "1.2.3.4:port",
        "[::1",
        "::1]",
    ],
)
def test_invalid_entry_is_missing_and_not_skipped(header: str) -> None:
    with pytest.raises(MissingId):
        behind_ours(f"{CLIENT}, {header}")


@pytest.mark.parametrize(
    "element",
    [
        "for=unknown",
        "for=_hidden",
        'for=""',
        "for=",
        "proto=https",
        f"for={CLIENT};for={CLIENT}",
        "for=2001:db8::1;;;=",
        "nonsense",
    ],
)
def test_element_without_an_address_is_missing_and_not_skipped(element: str) -> None:
    with pytest.raises(MissingId):
        behind_ours(None, f"for={CLIENT}, {element}")


def test_headers_that_disagree_are_refused() -> None:
    assert behind_ours(CLIENT, f'for="{CLIENT}:80"') == CLIENT
    with pytest.raises(MissingId, match="forwarded_header"):
        behind_ours(CLIENT, "for=198.51.100.9")


def test_only_the_header_that_the_proxies_write_is_read() -> None:
    both = (OURS, CLIENT, "for=198.51.100.9")
    find = ClientAddress(trusted_proxies=TRUSTED, forwarded_header="x-forwarded-for")
    assert find.of(*both) == CLIENT
    find = ClientAddress(trusted_proxies=TRUSTED, forwarded_header="forwarded")
    assert find.of(*both) == "198.51.100.9"


def test_hops_count_entries_from_the_right() -> None:
    header = "192.0.2.9, 198.51.100.9, 203.0.113.7"
    assert ClientAddress(hops=1).of("192.0.2.250", header) == "203.0.113.7"
    assert ClientAddress(hops=2).of("192.0.2.250", header) == "198.51.100.9"
    assert ClientAddress(hops=1).of("", header) == "203.0.113.7"
    assert ClientAddress(hops=1).of("192.0.2.250", None) == "192.0.2.250"
    with pytest.raises(MissingId, match="fewer than 4"):
        ClientAddress(hops=4).of("192.0.2.250", header)


def test_unix_socket_is_trusted_only_with_the_option() -> None:
    find = ClientAddress(trusted_proxies=["unix", "10.0.0.0/8"])
    assert find.of("", f"{CLIENT}, 10.0.0.2") == CLIENT
    assert find.of(None, CLIENT) == CLIENT
    with pytest.raises(MissingId):
        ClientAddress(trusted_proxies=["10.0.0.0/8"]).of("", CLIENT)
    with pytest.raises(MissingId):
        find.of("", "198.51.100.9, unknown")


@pytest.mark.parametrize(
    ("options", "peer", "header", "why"),
    [
        ({}, "", None, "the socket has no address; trusted_proxies='unix'"),
        ({}, "testclient", None, "TestClient\\(app, client="),
        ({"trusted_proxies": "unix"}, "", None, "the socket has no address; no proxy"),
        ({"hops": 1}, "", None, "the socket has no address; no proxy"),
        ({"hops": 1}, "", "unknown", "not an address"),
    ],
)
def test_missing_address_has_a_hint(
    options: dict[str, Any], peer: str, header: str | None, why: str
) -> None:
    # The reason is for the operator: it is logged, and not sent to the client.
    with pytest.raises(MissingId, match=why):
        ClientAddress(**options).of(peer, header)


@pytest.mark.parametrize("peer", [None, "", "unix:", "testclient", "<local>"])
def test_peer_without_an_address_is_missing(peer: str | None) -> None:
    with pytest.raises(MissingId):
        ClientAddress().of(peer)
    with pytest.raises(MissingId):
        ClientAddress()(EnvironRequest({"REMOTE_ADDR": peer}))


@pytest.mark.parametrize(
    ("prefix", "address"),
    [
        (128, "2001:db8:1:2:3:4:5:6"),
        (64, "2001:db8:1:2::"),
        (56, "2001:db8:1::"),
        (48, "2001:db8:1::"),
    ],
)
def test_ipv6_is_one_client_by_its_prefix(prefix: int, address: str) -> None:
    assert ClientAddress(ipv6_prefix=prefix).of("2001:db8:1:2:3:4:5:6") == address


def test_widest_and_narrowest_prefix_and_longest_chain_are_valid() -> None:
    assert ClientAddress(ipv6_prefix=1).of("ffff::1") == "8000::"
    assert ClientAddress(hops=64).of("10.0.0.1", ",".join([CLIENT] * 64)) == CLIENT


def test_fast_path_finds_the_same_address() -> None:
    environ: dict[str, Any] = {"REMOTE_ADDR": "::ffff:203.0.113.7", "HTTP_FORWARDED": "for=1.2.3.4"}
    assert ClientAddress().finder()(EnvironRequest(environ)) == CLIENT
    assert ClientAddress()(EnvironRequest(environ)) == CLIENT
    find = ClientAddress(trusted_proxies=["203.0.113.0/24"]).finder()
    assert find(EnvironRequest(environ)) == "1.2.3.4"
    for peer in (None, "", "unix:"):
        with pytest.raises(MissingId):
            ClientAddress().finder()(EnvironRequest({"REMOTE_ADDR": peer}))


def test_ipv4_written_as_ipv6_is_ipv4_for_proxies_too() -> None:
    find = ClientAddress(trusted_proxies=TRUSTED)
    assert find.of("::ffff:10.0.0.1", CLIENT) == CLIENT


def test_environ_gives_peer_and_headers() -> None:
    find = ClientAddress(trusted_proxies=TRUSTED)
    environ: dict[str, Any] = {"REMOTE_ADDR": OURS, "HTTP_X_FORWARDED_FOR": CLIENT}
    assert find(EnvironRequest(environ)) == CLIENT
    environ = {"REMOTE_ADDR": OURS, "HTTP_FORWARDED": f"for={CLIENT}"}
    assert find(EnvironRequest(environ)) == CLIENT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trusted_proxies": ["10.0.0.1/8"]}, "'10.0.0.1/8'"),
        ({"trusted_proxies": ["nginx"]}, "'nginx'"),
        ({"trusted_proxies": ["10.0.0.0/8"], "hops": 1}, "trusted_proxies or hops"),
        ({"hops": -1}, "hops must be"),
        ({"hops": 65}, "from 0 to 64"),
        ({"hops": True}, "hops must be"),
        ({"hops": "1"}, "hops must be"),
        ({"ipv6_prefix": 0}, "ipv6_prefix must be"),
        ({"ipv6_prefix": 129}, "ipv6_prefix must be"),
        ({"forwarded_header": "X-Real-IP"}, "forwarded_header must be"),
        ({"forwarded_header": "forwarded"}, "no effect without a trusted proxy"),
    ],
)
def test_invalid_option_is_an_error_at_startup(options: dict[str, Any], message: str) -> None:
    with pytest.raises(penstock.ConfigError, match=message):
        ClientAddress(**options)


def test_proxies_can_be_one_text() -> None:
    find = ClientAddress(trusted_proxies="10.0.0.0/8, 192.0.2.0/24")
    assert find.of("192.0.2.1", f"{CLIENT}, 10.0.0.1") == CLIENT


HEADER = st.text('0123456789abcdef.:,;="\\[]%_- \tor', max_size=200) | st.text(max_size=200)


@given(spoofed=HEADER, client=st.ip_addresses(v=4))
def test_forged_entries_change_nothing(spoofed: str, client: ipaddress.IPv4Address) -> None:
    find = ClientAddress(trusted_proxies=["fd00::/8"])
    assert find.of("fd00::1", f"{spoofed},{client}", None) == str(client)
    assert find.of("fd00::1", None, f"{spoofed},for={client}") == str(client)
    assert find.of("fd00::1", f"{spoofed},{client}, fd00::2", None) == str(client)
    quoted = f'{spoofed},for="{client}:80";by=x, for="[fd00::2]:80"'
    assert find.of("fd00::1", None, quoted) == str(client)


@given(header=HEADER)
def test_any_header_has_an_address_or_is_missing(header: str) -> None:
    for find in (ClientAddress(trusted_proxies=TRUSTED), ClientAddress(hops=2)):
        for headers in ((header, None), (None, header), (header, header)):
            try:
                ipaddress.ip_address(find.of(OURS, *headers))
            except MissingId:
                continue


@pytest.mark.parametrize(
    "piece", ["10.0.0.1,", 'for="', 'for="\\', "\\", '"', "for=10.0.0.1,", " ", ",", ";", "for=a;"]
)
def test_enormous_header_is_read_only_at_its_end(piece: str) -> None:
    header = piece * (4_000_000 // len(piece))
    # Reading all of it would exceed the time of a test.
    for _ in range(50):
        assert behind_ours(f"{header},{CLIENT}") == CLIENT
        assert behind_ours(None, f"{header},for={CLIENT}") == CLIENT


def test_overlong_chain_is_not_read_to_its_end() -> None:
    chain = ", ".join(["203.0.113.7", *["10.0.0.2"] * 100])
    assert behind_ours(chain) == "10.0.0.2"


@pytest.mark.parametrize("piece", ["9", "for=", '"'])
def test_enormous_header_without_a_whole_entry_is_refused(piece: str) -> None:
    with pytest.raises(MissingId):
        behind_ours(piece * 20_000)
    with pytest.raises(MissingId):
        behind_ours(forwarded=piece * 20_000)


def test_more_peers_than_are_cached_keep_their_addresses() -> None:
    known = ClientAddress().known_ipv4
    assert known is not None
    peers = [f"10.0.{number // 256}.{number % 256}" for number in range(10_000)]
    assert [known.add(peer) for peer in peers] == peers
    assert len(known.ids) < len(peers)
    assert known.add("2001:db8::1") is None


@pytest.mark.parametrize("field", [";for=192.0.2.9", "for=192.0.2.9;", "by=a;;for=192.0.2.9; ;"])
def test_pairs_of_forwarded_may_be_empty(field: str) -> None:
    found = client_address("10.0.0.1", {"Forwarded": field}, trusted_proxies=["10.0.0.0/8"])
    assert found == "192.0.2.9"
