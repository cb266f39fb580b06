"""System checks, and wrong settings."""

# ruff: noqa: ARG002  methods that are views take the request

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


class Derived(PenstockMiddleware):
    """A middleware of a project."""


def _derived() -> type[View]:
    return type("Orders", (View,), {})


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def found(*, deploy: bool = False) -> list[tuple[str, str]]:
    """Return id and text of what the checks find; each has a hint."""
    messages = checks.run_checks(tags=["penstock"], include_deployment_checks=deploy)
    assert all(message.hint for message in messages)
    return [(f"{message.id}".removeprefix("penstock."), message.msg) for message in messages]


def test_correct_site_has_no_faults(site: DjangoSite) -> None:
    site.route("", limit("PerAddress")(hello))
    assert found() == []


def test_hint_has_the_names_as_they_are_written(site: DjangoSite) -> None:
    site.set(MIDDLEWARE=[], PENSTOCK={"DEFAULT": "5/minute"})
    site.route("", limit("5/minute", methods=["POST"])(hello))
    hints = [message.hint for message in checks.run_checks(tags=["penstock"])]
    assert hints[0] == (
        "Add 'penstock.django.PenstockMiddleware' to MIDDLEWARE, below AuthenticationMiddleware."
    )


def test_faulty_file_is_reported_with_its_lines(site: DjangoSite, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(
        "A: {burst: 0, count: 1, period: 1s}\nB: {burst: 1, cuont: 1, period: 1s}\n",
        encoding="utf-8",
    )
    site.set(BASE_DIR=tmp_path, PENSTOCK={"LIMITS": "limits.yaml"})
    faults = found()
    assert [number for number, _ in faults] == ["E001", "E001"]
    assert f"{tmp_path}/limits.yaml:1: A: " in faults[0][1]
    assert f"{tmp_path}/limits.yaml:2: B: " in faults[1][1]


def test_missing_file_is_reported(site: DjangoSite) -> None:
    site.set(PENSTOCK={"LIMITS": "nowhere.yaml"})
    ((number, message),) = found()
    assert (number, "nowhere.yaml" in message) == ("E001", True)


def test_wrong_rate_is_reported(site: DjangoSite) -> None:
    site.set(PENSTOCK={"LIMITS": {"A": "10/month"}})
    ((number, message),) = found()
    assert (number, message.partition(":")[0]) == ("E001", "PENSTOCK['LIMITS']")


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (limit("PerAdress")(hello), "'PerAddress'"),
        (limit("10/month")(hello), "month"),
        (limit("PerAddress", cost=3)(hello), "at most 2"),
        (limit("PerAdress")(_derived()).as_view(), "'PerAddress'"),
        (limit("PerAdress")(View.as_view()), "'PerAddress'"),
    ],
)
def test_wrong_limit_of_a_view_is_reported_with_its_route(
    site: DjangoSite, view: Any, message: str
) -> None:
    site.route("orders/<int:number>/", view)
    ((number, fault),) = found()
    assert number == "E002"
    assert fault.startswith("/orders/<int:number>/: ")
    assert message in fault


def test_limits_within_other_decorators_classes_and_includes_are_checked(
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

    site.route("shop/", include([path("orders/", Orders.as_view())]))
    site.route("login", limit("Unknown-3")(login_required(limit("Unknown-4")(hello))))
    faults = [message.split(":")[0] for _, message in found()]
    assert sorted(faults) == ["/login", "/login", "/shop/orders/", "/shop/orders/"]
    assert {name for _, message in found() for name in re.findall(r"Unknown-\d", message)} == {
        f"Unknown-{number}" for number in range(1, 5)
    }


@pytest.mark.parametrize(
    ("setting", "number", "message"),
    [
        ({"LIMTS": "x"}, "E005", "'LIMITS'"),
        ({"limits": {}}, "E005", "did you mean 'LIMITS'"),
        ({"NUM_PROXIES": 1}, "E005", "use hops"),
        ({1: {}}, "E005", "key 1"),
        ("limits.yaml", "E005", "dict"),
        ({"DEFAULT": "PerAddress"}, "E003", "'PerAddress'"),
        ({"DEFAULT": "1/mnute"}, "E003", "mnute"),
        ({"TRUSTED_PROXIES": 10}, "E006", "trusted_proxies"),
        ({"DEFAULT": ["1/minute", 7]}, "E003", "found 7"),
        ({"FORWARDED_HEADER": "x-forwarded-for"}, "E006", "forwarded_header"),
        ({"HEADERS": "itef"}, "E006", "'ietf'"),
        ({"ON_DENIED": "nowhere.refuse"}, "E006", "ON_DENIED"),
        ({"LIMITER": 7}, "E006", "found 7"),
    ],
)
def test_wrong_setting_is_reported(
    site: DjangoSite, setting: Any, number: str, message: str
) -> None:
    site.set(PENSTOCK=setting)
    ((first, fault), *rest) = found()
    assert (first, message in fault, rest) == (number, True, [])
    with pytest.raises((penstock.ConfigError, penstock.LimitError)):
        current()


def test_async_on_denied_is_reported(site: DjangoSite) -> None:
    async def refuse(_: object) -> str:
        return ""

    site.set(PENSTOCK={"ON_DENIED": refuse})
    ((number, message),) = found()
    assert (number, "ON_DENIED" in message) == ("E006", True)


def test_default_without_the_middleware_is_reported(site: DjangoSite) -> None:
    site.set(PENSTOCK={"DEFAULT": "1/minute"}, MIDDLEWARE=["nowhere.Middleware"])
    assert [number for number, _ in found()] == ["E009"]


def test_limits_without_the_middleware_are_a_warning(site: DjangoSite) -> None:
    site.route("", limit("PerAddress")(hello))
    site.set(MIDDLEWARE=[])
    assert [number for number, _ in found()] == ["W002"]
    site.set(MIDDLEWARE=[f"{__name__}.Derived"])
    assert found() == []


@pytest.mark.parametrize(("processes", "numbers"), [(None, ["W001"]), (4, ["W001"]), (1, [])])
def test_memory_store_is_a_warning_if_several_processes_may_serve(
    site: DjangoSite, processes: int | None, numbers: list[str]
) -> None:
    setting = {} if processes is None else {"EXPECTED_PROCESSES": processes}
    site.set(PENSTOCK=setting)
    assert found() == []
    assert [number for number, _ in found(deploy=True)] == numbers


def test_faulty_file_is_reported_once_when_deploying(site: DjangoSite) -> None:
    site.set(PENSTOCK={"LIMITS": "nowhere.yaml"})
    site.route("", limit("PerAddress")(hello))
    assert [number for number, _ in found(deploy=True)] == ["E001"]


def test_checks_leave_the_active_limits_alone(site: DjangoSite) -> None:
    site.route("", limit("1/minute")(hello))
    before = list(current().guard.limiter.limits)
    found()
    assert list(current().guard.limiter.limits) == before


def test_project_without_the_setting_has_rates(site: DjangoSite) -> None:
    from django.conf import settings  # noqa: PLC0415  beside its only use

    site.set(PENSTOCK={})
    del settings.PENSTOCK
    site.route("", limit("1/minute")(hello))
    assert found() == []
    assert [site.get().status_code for _ in range(2)] == [200, 429]


def test_every_option_of_a_guard_is_a_documented_key(root: Path) -> None:
    assert {"DEFAULT", "LIMITER", "LIMITS", "TRUSTED_PROXIES", "EXPECTED_PROCESSES"} <= set(KEYS)
    page = (root / "docs/options.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"| `{key.lower()}` |" not in page] == []
