"""Which client a request belongs to: the same in every framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import PEER, Request, Route, limited
from adapters.drivers import with_routes

from penstock.identity import by_address, by_header, per_route

if TYPE_CHECKING:
    from adapters.case import Driver
    from adapters.conftest import Serve

    import penstock

PROXY = "10.0.0.1"
ORDERS = Route("/", (limited("Orders"),))


def forwarded(app: Driver, client: str, header: str = "X-Forwarded-For") -> int:
    """Send a request through the proxy, and return its status."""
    return app.ask(headers={header: client}, peer=PROXY).status


def test_clients_behind_a_trusted_proxy_count_apart(serve: Serve) -> None:
    app = serve(ORDERS, trusted_proxies=["10.0.0.0/8"])
    assert [forwarded(app, "203.0.113.7") for _ in range(3)] == [200, 200, 429]
    # The left part is the client's to write.
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


@pytest.mark.parametrize("client", ["unknown", "1.2.3.4.5", "x" * 5000, "[::1", "../.."])
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


def test_number_of_proxies_may_be_given_instead(serve: Serve) -> None:
    app = serve(Route("/", (limited("1/minute"),)), hops=1)
    clients = ("198.51.100.1", "198.51.100.2", "spoofed, 198.51.100.2")
    assert [forwarded(app, client) for client in clients] == [200, 200, 429]


def test_request_without_an_address_is_refused_or_shares_one_bucket(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    route = Route("/", (limited("PerUser"),))
    answer = serve(route).ask(peer=None)
    assert (answer.status, answer.limit_fields) == (400, {"cache-control": "no-store"})
    shared = serve(Route("/shared", route.stack), on_missing_id="unknown")
    assert shared.ask("/shared", peer=None).status == 200
    assert limiter.check("PerUser", "unknown", 0).remaining == 4


def test_id_may_be_a_header_or_follow_from_the_request(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    def account(request: Request) -> str:
        return request.query["account"]

    app = serve(
        Route("/header", (limited("PerUser", id=by_header("X-Account")),)),
        Route("/query", (limited("PerUser", id=account),)),
        Route("/everyone", (limited("PerUser", id="everyone"),)),
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


@pytest.mark.parametrize("id", [None, "", 1.5])
def test_callable_without_a_valid_id_is_a_bad_request(
    serve: Serve, limiter: penstock.Limiter, id: Any
) -> None:
    app = serve(Route("/", (limited("PerUser", id=lambda _: id),)))
    assert app.ask().status == 400
    assert len(limiter) == 0


@with_routes
def test_routes_may_count_apart(serve: Serve, limiter: penstock.Limiter) -> None:
    stack = (limited("PerAddress", id=per_route(by_address)),)
    app = serve(Route("/one/", stack), Route("/two/", stack))
    assert app.statuses(3, "/one/") == [200, 200, 429]
    assert app.ask("/two/").status == 200
    assert limiter.check("PerAddress", f"/two/ {PEER}", 0).remaining == 1
