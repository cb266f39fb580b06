"""The views of the shop, each with its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from unicodedata import normalize

from django.contrib.auth import authenticate, login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render

from penstock.django import limit
from penstock.identity import by_user

if TYPE_CHECKING:
    from django.http.response import HttpResponseBase

    from penstock.adapter import Outcome

UNAUTHORIZED = 401


def too_many(outcome: Outcome) -> HttpResponse | None:
    """Return a custom page for browsers; `None` selects the default response."""
    request = cast("HttpRequest", outcome.request.native)
    if request.get_preferred_type(["application/problem+json", "text/html"]) == "text/html":
        context = {"problem": outcome.problem, "wait": outcome.retry_after}
        return render(request, "refused.html", context, status=outcome.status)
    return None


@limit("OrdersPerAddress")
def orders(request: HttpRequest) -> HttpResponse:
    """List the orders."""
    return JsonResponse({"orders": ["tea", "bread"]})


@limit("PricesPerUser", id=by_user)
async def prices(request: HttpRequest) -> HttpResponse:
    """List the prices, in an async view whose user is loaded without blocking."""
    return JsonResponse({"tea": 3, "bread": 4})


def failed(response: HttpResponseBase) -> bool:
    """Whether a login failed; only failed logins count."""
    return response.status_code == UNAUTHORIZED


def name_of(request: HttpRequest) -> str:
    """Return the submitted user name in one spelling, as Django's own form normalizes it."""
    return normalize("NFKC", request.POST.get("username", "")).strip().casefold()


@limit("LoginsPerAddress", methods=["POST"], deduct_when=failed)
@limit("LoginsPerUser", id=name_of, methods=["POST"], deduct_when=failed)
def log_in(request: HttpRequest) -> HttpResponse:
    """Log in. Successful logins are not counted."""
    if request.method != "POST":
        return render(request, "login.html")
    user = authenticate(
        request,
        username=request.POST.get("username", ""),
        password=request.POST.get("password", ""),
    )
    if user is None:
        return render(request, "login.html", {"has_failed": True}, status=UNAUTHORIZED)
    login(request, user)
    return redirect("/prices/")
