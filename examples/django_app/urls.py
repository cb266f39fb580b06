"""The URLs of the shop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.urls import path

from django_app.api import Exports
from django_app.views import log_in, orders, prices
from penstock.django import limit

if TYPE_CHECKING:
    from django.http.response import HttpResponseBase


def was_shown_again(response: HttpResponseBase) -> bool:
    """Whether the admin's login failed: it then shows its form again instead of a redirect."""
    return response.status_code == 200  # noqa: PLR2004  OK


limited: Any = limit("LoginsPerAddress", methods=["POST"], deduct_when=was_shown_again)
site: Any = admin.site
site.login = limited(site.login)

urlpatterns = [
    path("orders/", orders),
    path("prices/", prices),
    path("login/", log_in),
    path("exports/", Exports.as_view()),
    path("admin/", admin.site.urls),
]
