"""What is found before the first request: system checks, and what the setting refuses."""

# ruff: noqa: ARG002  a method that is a view takes the request, whether it asks it or not

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

import penstock
from penstock.django import PenstockMiddleware, limit
from penstock.django.conf import KEYS, current

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import DjangoSite

ROUTE = "penstock.django.PenstockMiddleware"


class Derived(PenstockMiddleware):
    """A middleware of a project."""


def _derived() -> type[View]:
    return type("Orders", (View,), {})


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def found(*, deploy: bool = False) -> list[tuple[str, str]]:
    """Give id and text of what the checks find; each has a hint."""
    messages = checks.run_checks(tags=["penstock"], include_deployment_checks=deploy)
    assert all(message.hint for message in messages)
    return [(f"{message.id}".removeprefix("penstock."), message.msg) for message in messages]


def test_sound_site_has_no_faults(site: DjangoSite) -> None:
    site.route("", limit("PerAddress")(hello))
    assert found() == []


def test_file_that_does_not_load_is_told_with_its_lines(site: DjangoSite, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(
        "A: {burst: 0, count: 1, period: 1s}\nB: {burst: 1, cuont: 1, period: 1s}\n",
        encoding="utf-8",
    )
    site.set(BASE_DIR=tmp_path, PENSTOCK={"LIMITS": "limits.yaml"})
    told = found()
    assert [number for number, _ in told] == ["E001", "E001"]
    assert f"{tmp_path}/limits.yaml:1: A: burst must be at least 1, found 0" in told[0][1]
    assert f"{tmp_path}/limits.yaml:2: B: " in told[1][1]


def test_file_that_is_not_there_is_told(site: DjangoSite) -> None:
    site.set(PENSTOCK={"LIMITS": "nowhere.yaml"})
    ((number, message),) = found()
    assert (number, "nowhere.yaml: cannot be read" in message) == ("E001", True)


def test_limit_that_is_none_is_told(site: DjangoSite) -> None:
    site.set(PENSTOCK={"LIMITS": {"A": "10/month"}})
    ((number, message),) = found()
    assert (number, message.partition(":")[0]) == ("E001", "PENSTOCK['LIMITS']")


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (limit("PerAdress")(hello), "did you mean 'PerAddress'?"),
        (limit("10/month")(hello), "days or weeks would do"),
        (limit("PerAddress", cost=3)(hello), "cost must be at most 2"),
        (limit("PerAdress")(_derived()).as_view(), "did you mean 'PerAddress'?"),
        (limit("PerAdress")(View.as_view()), "did you mean 'PerAddress'?"),
    ],
)
def test_limit_of_a_view_that_cannot_be_is_told_with_its_route(
    site: DjangoSite, view: Any, message: str
) -> None:
    site.route("orders/<int:number>/", view)
    ((number, told),) = found()
    assert number == "E002"
    assert told.startswith("/orders/<int:number>/: ")
    assert message in told


def test_limits_are_found_below_other_decorators_in_classes_and_in_includes(
    site: DjangoSite,
) -> None:
    from django.contrib.auth.decorators import login_required  # noqa: PLC0415  once apps are ready
    from django.urls import include, path  # noqa: PLC0415  as above

    class Orders(View):
        @limit("Unknown-1")
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

        @method_decorator(limit("Unknown-2"))
        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    urls: Any = site._urls
    urls.urlpatterns.append(path("shop/", include([path("orders/", Orders.as_view())])))
    site.route("login", limit("Unknown-3")(login_required(limit("Unknown-4")(hello))))
    told = sorted(message for _, message in found())
    assert [message.partition(";")[0] for message in told] == [
        "/login: no limit is named 'Unknown-3'",
        "/login: no limit is named 'Unknown-4'",
        "/shop/orders/: no limit is named 'Unknown-1'",
        "/shop/orders/: no limit is named 'Unknown-2'",
    ]


@pytest.mark.parametrize(
    ("setting", "number", "message"),
    [
        ({"LIMTS": "x"}, "E005", "PENSTOCK has no key 'LIMTS'; did you mean 'LIMITS'?"),
        ({"limits": {}}, "E005", "PENSTOCK has no key 'limits'"),
        ({1: {}}, "E005", "PENSTOCK has no key 1"),
        ("limits.yaml", "E005", "PENSTOCK must be a dict"),
        ({"DEFAULT": "PerAddress"}, "E003", "no limit is named 'PerAddress'"),
        ({"DEFAULT": "1/mnute"}, "E003", "expected second, minute"),
        ({"TRUSTED_PROXIES": 10}, "E006", "trusted_proxies must be a list"),
        ({"LIMITS": ["1/minute"]}, "E006", "limits must be"),
        ({"CLOCK": 7}, "E006", "clock must be"),
        ({"HEADERS": 7}, "E006", "headers must be"),
        ({"DEFAULT": ["1/minute", 7]}, "E003", "DEFAULT must be a name of a limit"),
        ({"FORWARDED_HEADER": "x-forwarded-for"}, "E004", "no proxy is trusted to write it"),
        ({"TRUSTED_PROXIES": ["0.0.0.0/0"]}, "E004", "trusts every client"),
        ({"TRUSTED_PROXIES": "10.0.0.0/8, ::/0"}, "E004", "trusts every client"),
        ({"HEADERS": "itef"}, "E006", "did you mean 'ietf'?"),
        ({"TRUSTED_PROXIES": ["proxy.local"]}, "E006", "trusted_proxies must be networks"),
        ({"ON_DENIED": "nowhere.refuse"}, "E006", "ON_DENIED must be an object or its dotted path"),
        ({"LIMITER": 7}, "E006", "limiter must be a penstock.Limiter, found 7"),
    ],
)
def test_setting_that_cannot_be_is_told(
    site: DjangoSite, setting: Any, number: str, message: str
) -> None:
    site.set(PENSTOCK=setting)
    ((first, told), *rest) = found()
    assert (first, message in told, rest) == (number, True, [])
    if number != "E004":
        with pytest.raises((penstock.ConfigError, penstock.LimitError)):
            current()


def test_async_on_denied_is_refused(site: DjangoSite) -> None:
    async def refuse(_: object) -> str:
        return ""

    site.set(PENSTOCK={"ON_DENIED": refuse})
    ((number, message),) = found()
    assert (number, "must be an ordinary function" in message) == ("E006", True)


def test_default_that_nothing_applies_is_told(site: DjangoSite) -> None:
    site.set(PENSTOCK={"DEFAULT": "1/minute"}, MIDDLEWARE=["nowhere.Middleware"])
    assert [number for number, _ in found()] == ["E009"]


def test_limits_without_the_middleware_are_a_warning(site: DjangoSite) -> None:
    site.route("", limit("PerAddress")(hello))
    site.set(MIDDLEWARE=[])
    assert [number for number, _ in found()] == ["W002"]
    site.set(MIDDLEWARE=[f"{__name__}.Derived"])
    assert found() == []


@pytest.mark.parametrize(("processes", "numbers"), [(None, ["W001"]), (4, ["W001"]), (1, [])])
def test_memory_store_is_a_warning_where_several_processes_may_serve(
    site: DjangoSite, processes: int | None, numbers: list[str]
) -> None:
    said = {} if processes is None else {"EXPECTED_PROCESSES": processes}
    site.set(PENSTOCK=said)
    assert found() == []
    assert [number for number, _ in found(deploy=True)] == numbers


def test_faulty_file_is_told_once_also_when_deploying(site: DjangoSite) -> None:
    site.set(PENSTOCK={"LIMITS": "nowhere.yaml"})
    site.route("", limit("PerAddress")(hello))
    assert [number for number, _ in found(deploy=True)] == ["E001"]


def test_checks_leave_the_limits_in_force_alone(site: DjangoSite) -> None:
    site.route("", limit("1/minute")(hello))
    before = list(current().guard.limiter.limits)
    found()
    assert list(current().guard.limiter.limits) == before


def test_project_without_the_setting_has_texts(site: DjangoSite) -> None:
    from django.conf import settings  # noqa: PLC0415  beside its only use

    site.set(PENSTOCK={})
    del settings.PENSTOCK
    site.route("", limit("1/minute")(hello))
    assert found() == []
    assert [site.get().status_code for _ in range(2)] == [200, 429]


def test_every_option_of_a_guard_has_a_key_and_a_place_on_the_page(root: Path) -> None:
    assert {"DEFAULT", "LIMITER", "LIMITS", "TRUSTED_PROXIES", "EXPECTED_PROCESSES"} <= set(KEYS)
    page = (root / "docs/django.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"`{key}`" not in page] == []


def test_every_check_has_a_place_on_the_page(root: Path) -> None:
    source = (root / "python/penstock/django/checks.py").read_text(encoding="utf-8")
    numbers = set(re.findall(r"\b[EW]00\d\b", source))
    assert len(numbers) == 11
    page = (root / "docs/django.md").read_text(encoding="utf-8")
    assert [number for number in sorted(numbers) if f"`penstock.{number}`" not in page] == []
