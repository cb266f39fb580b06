"""The types of the web layer; checked, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from flask import Blueprint, Flask, Response, request
from flask.views import MethodView

import penstock
from penstock._web.outcome import Outcome
from penstock.adapter import Guard
from penstock.flask import Penstock, RequestRefused
from penstock.headers import headers
from penstock.identity import by_address, by_api_key, by_header, by_user, per_route
from penstock.wsgi import PenstockMiddleware
from penstock.wsgi import Response as Head

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

app = Flask(__name__)
limiter = penstock.Limiter({"PerAddress": "5/minute"})
limits = Penstock(
    app, limits="limits.yaml", overrides="overrides.yaml", trusted_proxies=["10.0.0.0/8"]
)


@app.get("/orders/<int:number>")
@limits.limit("PerAddress", id=per_route(by_address), cost=lambda: 2)
def order(number: int) -> str:
    assert_type(limits.decision(), penstock.Decision)
    assert_type(limits.outcome(), Outcome | None)
    return f"{number}"


assert_type(order(7), str)
order("7")  # type: ignore[arg-type]  # the decorator keeps the view's signature


@limits.limit("30/minute", penstock.Limit.parse("5/hour"), methods=["GET"], mode="shadow")
async def later() -> str:
    return ""


@limits.limit("PerAddress", id=by_user, exempt_when=lambda request: bool(request.args))
class Orders(MethodView):
    @limits.limit("PerAddress", id=by_api_key(missing="refuse"), on_store_error="local")
    def get(self) -> str:
        return ""


assert_type(limits.limit("PerAddress")(Blueprint("shop", __name__)), Blueprint)
assert_type(limits.exempt(Orders), type[Orders])


def failed(response: Response) -> bool:
    return response.status_code == 401


@limits.limit("PerAddress", id=lambda: request.form["user"], deduct_when=failed)
def login() -> str:
    return ""


limits.limit("PerAddress", mode="dry")  # type: ignore[arg-type]  # no such mode
limits.limit("PerAddress", key="ip")  # type: ignore[call-arg]  # no such option
limits.shared("PerAddress")  # type: ignore[call-arg]  # a scope is needed
limits.default("PerAddress", id=by_header("X-Tenant", missing="address"))
assert_type(limits.guard, Guard)


@app.errorhandler(RequestRefused)
def too_many(error: RequestRefused) -> tuple[str, int]:
    assert_type(error.outcome.decision, penstock.Decision | None)
    return f"wait {error.outcome.retry_after} s", 429


def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    return []


def head_failed(head: Head) -> bool:
    return head.status_code == 401


limited: WSGIApplication = PenstockMiddleware(
    wsgi, limits="limits.yaml", limit="PerAddress", deduct_when=head_failed, spread=0.03
)
PenstockMiddleware(wsgi, limiter, limit=["PerAddress", "100/minute"], on_store_error={"a": "deny"})
PenstockMiddleware(wsgi, limiter, limit=lambda: "5/minute", factor="1/3", keep=2)

assert_type(headers(limiter.spend("PerAddress", "a"), ["ietf", "github"]), dict[str, str])
