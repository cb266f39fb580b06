"""The client of a request is the same in every framework."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Reply, Request, Route, limited
from adapters.drivers import InDjango, InFlask, only, with_refusals, with_routes
from guards import PEER

import penstock
from penstock.adapter import MissingId
from penstock.identity import by_address, by_api_key, by_header, everyone, per_route, shared

if TYPE_CHECKING:
    from adapters.case import Driver
    from adapters.conftest import Serve

PROXY = "10.0.0.1"
ORDERS = Route("/", (limited("Orders"),))


def forwarded(app: Driver, client: str, header: str = "X-Forwarded-For") -> int:
    """Send a request through the proxy, and return its status."""
    return app.ask(headers={header: client}, peer=PROXY).status


def test_clients_behind_a_trusted_proxy_count_apart(serve: Serve) -> None:
    app = serve(ORDERS, trusted_proxies=["10.0.0.0/8"])
    assert [forwarded(app, "203.0.113.7") for _ in range(3)] == [200, 200, 429]
    # The client writes the left part.
    assert forwarded(app, "203.0.113.7, 203.0.113.8") == 200
    assert forwarded(app, "203.0.113.9, 203.0.113.7") == 429
    # An IPv4-mapped address is the IPv4 address.
    assert forwarded(app, "::ffff:203.0.113.7") == 429


def test_ipv6_clients_count_by_network(serve: Serve) -> None:
    app = serve(ORDERS, trusted_proxies=["10.0.0.0/8"])
    spellings = ("2001:DB8::1", "[2001:db8::ffff]:443", "2001:db8:0:0:1::")
    assert [forwarded(app, client) for client in spellings] == [200, 200, 429]
    assert forwarded(app, "2001:db8:0:1::1") == 200
    whole = serve(ORDERS, trusted_proxies=["10.0.0.0/8"], ipv6_prefix=128)
    assert [forwarded(whole, client) for client in spellings[1:]] == [200, 200]


@pytest.mark.parametrize("client", ["unknown", "x" * 5000])
def test_address_that_does_not_parse_is_a_bad_request(
    serve: Serve, limiter: penstock.Limiter, client: str
) -> None:
    app = serve(ORDERS, trusted_proxies=["10.0.0.0/8"])
    answer = app.ask(headers={"X-Forwarded-For": client}, peer=PROXY)
    assert (answer.status, answer.limit_fields) == (400, {"cache-control": "no-store"})
    assert len(limiter) == 0


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
def test_header_of_an_untrusted_peer_changes_nothing(serve: Serve, header: str) -> None:
    app = serve(ORDERS)
    spoofed = (f"{'for=' if header == 'Forwarded' else ''}198.51.100.{n}" for n in range(3))
    assert [forwarded(app, client, header) for client in spoofed] == [200, 200, 429]


def test_request_without_an_address_is_refused_or_shares_one_bucket(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    route = Route("/", (limited("PerUser"),))
    answer = serve(route).ask(peer=None)
    assert (answer.status, answer.limit_fields) == (400, {"cache-control": "no-store"})
    lenient = serve(Route("/shared", route.stack), on_missing_id=shared("unknown"))
    assert lenient.ask("/shared", peer=None).status == 200
    assert limiter.check("PerUser", "unknown", 0).remaining == 4


def test_id_may_be_a_header_or_follow_from_the_request(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    def account(request: Request) -> str:
        return request.query["account"]

    app = serve(
        Route("/header", (limited("PerUser", id=by_header("X-Account")),)),
        Route("/query", (limited("PerUser", id=account),)),
        Route("/everyone", (limited("PerUser", id=everyone),)),
    )
    assert app.ask("/header", headers={"X-Account": "ada"}).status == 200
    assert app.ask("/query", query={"account": "ada"}).status == 200
    assert app.ask("/everyone").status == 200
    left = {id: limiter.check("PerUser", id, 0).remaining for id in ("ada", "everyone")}
    assert left == {"ada": 3, "everyone": 4}


def test_id_is_normalized_by_the_format_of_the_limit(serve: Serve) -> None:
    app = serve(Route("/", (limited("Accounts", id=by_header("X-Account")),)))
    accounts = ("12", "0012", "13", "12x", "")
    statuses = [app.ask(headers={"X-Account": account}).status for account in accounts]
    assert statuses == [200, 429, 200, 400, 400]
    assert app.ask().status == 400


def test_client_cannot_choose_which_of_its_keys_is_limited(serve: Serve) -> None:
    """The application verifies one of them; another one must not select a full bucket."""
    app = serve(Route("/", (limited("PerAddress", id=by_api_key),)))
    good = {"Authorization": "Bearer good"}
    assert app.ask(headers=good).status == 200
    assert app.ask(headers={**good, "X-Api-Key": "other"}).status == 400
    # Two lines of one header arrive as one.
    assert app.ask(headers={"Authorization": "Bearer good, Bearer other"}).status == 400
    assert app.ask(headers={"X-Api-Key": "good, other"}).status == 400
    # Other spellings of the same key, in each header that a framework may read.
    assert app.ask(headers={"Authorization": "bearer\tgood"}).status == 200
    assert app.ask(headers={**good, "X-Api-Key": "good"}).status == 429


@pytest.mark.parametrize("header", ["X-Api-Key", "authorization"])
def test_key_may_be_that_of_one_header(serve: Serve, header: str) -> None:
    app = serve(Route("/", (limited("PerAddress", id=by_api_key(header=header)),)))
    keys = {"X-Api-Key": "Bearer good", "Authorization": "Bearer good"}
    other = next(name for name in keys if name.lower() != header.lower())
    assert app.ask(headers=keys).status == 200
    assert app.ask(headers={**keys, other: "Bearer other"}).status == 200
    assert app.ask(headers={**keys, other: "Bearer another"}).status == 429
    with pytest.raises(penstock.ConfigError):
        by_api_key(header="X-Key")


@pytest.mark.parametrize("id", [None, 1.5])
def test_callable_without_a_valid_id_is_a_bad_request(
    serve: Serve, limiter: penstock.Limiter, id: Any
) -> None:
    app = serve(Route("/", (limited("PerUser", id=lambda _: id),)))
    assert app.ask().status == 400
    assert len(limiter) == 0


OVERRIDES = """
- Orders: {burst: 5, count: 5, period: 1h, ids: ["2001:db8:1:2::42", "2001:db8:1:4::/126"]}
- Orders: {burst: 9, count: 9, period: 1h, ids: ["198.51.100.0/24"]}
"""


def quota(app: Driver, peer: str) -> str:
    """Return the quota and the remaining tokens, as the header fields show them."""
    answer = app.ask(peer=peer)
    policy, state = answer.header("RateLimit-Policy") or "", answer.header("RateLimit") or ""
    return f"{policy.split(';')[1]} {state.split(';')[1]}"


def test_override_within_an_ipv6_prefix_applies_to_its_addresses(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    limits = penstock.Limits.parse(
        "Orders: {burst: 3, count: 3, period: 1h, id: ipAddress}", overrides=OVERRIDES
    )
    app = serve(ORDERS, limiter=penstock.Limiter(limits, clock=clock))
    assert quota(app, "2001:db8:1:2::42") == "q=5 r=4"
    # The other addresses of the prefix share a bucket, which is not that of the host.
    assert quota(app, "2001:db8:1:2::43") == "q=3 r=2"
    assert quota(app, "2001:db8:1:2::44") == "q=3 r=1"
    assert quota(app, "2001:db8:1:2::42") == "q=5 r=3"
    # The addresses of a small network share one.
    assert quota(app, "2001:db8:1:4::1") == "q=5 r=4"
    assert quota(app, "2001:db8:1:4::2") == "q=5 r=3"
    assert quota(app, "2001:db8:1:4::9") == "q=3 r=2"
    # The office.
    assert quota(app, "198.51.100.20") == "q=9 r=8"


@pytest.mark.parametrize("name", [PEER, f"address:{PEER}", f"user:{PEER}", "2001:DB8::1", "/ a"])
def test_no_name_is_another_clients_address(
    serve: Serve, limiter: penstock.Limiter, name: str
) -> None:
    """A client that chooses its name cannot spend the bucket of an address."""
    by_name = by_header("X-Name", missing="address")
    stack = (limited("PerUser", id=by_name),)
    app = serve(Route("/", stack), Route("/address", (limited("PerUser"),)))
    assert app.statuses(6, headers={"X-Name": name}) == [200] * 5 + [429]
    assert app.ask().header("RateLimit") == '"PerUser";r=4;t=720'
    assert app.ask("/address").header("RateLimit") == '"PerUser";r=4;t=720'
    assert app.ask(headers={"X-Name": f"user:user:{name}"}).status == 200
    assert limiter.check("PerUser", "ada", 0).remaining == 5


@with_refusals
@pytest.mark.parametrize(
    ("id", "shown"),
    [
        (by_header("X-Name", missing="address"), PEER),
        (by_api_key, None),
        (by_address, PEER),
    ],
    ids=["missing", "key", "address"],
)
def test_people_read_addresses_and_no_marks(serve: Serve, id: Any, shown: str | None) -> None:
    app = serve(Route("/", (limited("PerAddress", id=id),)))
    headers = {} if shown else {"X-Api-Key": "secret"}
    app.statuses(2, headers=headers)
    detail = json.loads(app.ask(headers=headers).body)["detail"]
    assert (PEER in detail) == (shown is not None)
    assert "address:" not in detail
    assert "key:" not in detail


@with_routes
def test_routes_may_count_apart(
    serve: Serve, driver: type[Driver], limiter: penstock.Limiter
) -> None:
    stack = (limited("PerAddress", id=per_route(by_address)),)
    orders = f"/orders/{driver.parameter}/"
    app = serve(Route(orders, stack), Route("/", stack))
    # By the template, not by the path.
    assert [app.ask(f"/orders/{number}/").status for number in range(3)] == [200, 200, 429]
    assert app.ask("/").status == 200
    left = [limiter.check("PerAddress", f"{route} {PEER}", 0).remaining for route in (orders, "/")]
    assert left == [0, 1]


@only(lambda driver: driver in (InFlask, InDjango))
def test_prefix_of_the_server_does_not_change_a_route(serve: Serve) -> None:
    app = serve(Route("/", (limited("PerAddress", id=per_route()),)))
    statuses = []
    for prefix in ("", "/one", "/two"):
        app.environ["SCRIPT_NAME"] = prefix
        statuses.append(app.ask().status)
    # Behind some servers, clients choose it freely, and would get a bucket for each value.
    assert statuses == [200, 200, 429]


IN_VIEWS = "Orders: {burst: 9, count: 9, period: 1m, id: ipAddress}\nPerUser: 9/minute"
OF_ONE_ADDRESS = "- Orders: {burst: 99, count: 9, period: 1m, ids: ['2001:db8::7']}"


@with_routes
@pytest.mark.parametrize(
    ("peer", "forwarded", "id", "left"),
    [
        (PEER, "198.51.100.1", PEER, 8),
        (PROXY, "198.51.100.1, 203.0.113.7", "203.0.113.7", 8),
        (PROXY, "2001:db8:0:0:9::1", "2001:db8::", 8),
        # An override for one address of a /64 has a separate bucket.
        (PROXY, "2001:db8::7", "2001:db8::7", 98),
    ],
)
def test_id_that_a_view_asks_for_is_that_of_its_limits(
    serve: Serve, peer: str, forwarded: str, id: str, left: int
) -> None:
    limits = penstock.Limits.parse(IN_VIEWS, overrides=OF_ONE_ADDRESS)
    limiter = penstock.Limiter(limits)

    def view(request: Request) -> Reply:
        with pytest.raises(penstock.UnknownLimit):
            app.client_id(request, "Order")
        with pytest.raises(penstock.ConfigError):
            app.client_id(request, "Orders", None)
        found = app.client_id(request, "Orders")
        user = app.client_id(request, "PerUser", by_header("X-Tenant", missing="address"))
        return Reply(f"{found} {limiter.peek('Orders', found).remaining} {user}")

    route = Route("/", (limited("Orders"),), view)
    app = serve(route, limiter=limiter, trusted_proxies=["10.0.0.0/8"])
    answer = app.ask(headers={"X-Forwarded-For": forwarded}, peer=peer).body.decode()
    assert answer.startswith(f"{id} {left} address:")


@with_routes
def test_id_that_a_view_asks_for_may_be_missing(serve: Serve) -> None:
    def view(request: Request) -> Reply:
        with pytest.raises(MissingId):
            app.client_id(request, "PerAddress")
        return Reply()

    app = serve(Route("/", view=view))
    assert app.ask(peer="nowhere").status == 200
