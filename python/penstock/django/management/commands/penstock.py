"""`manage.py penstock`: check the limits, explain one, reset a bucket, show them all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.core.management.base import BaseCommand, CommandError

from penstock.django import conf
from penstock.django.urls import all_routes, rules_of, throttles_of
from penstock.errors import Error
from penstock.web import adapter
from penstock.web.messages import describe_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.management.base import CommandParser

    from penstock._core import Limit
    from penstock.django.app_limits import AppLimits

__all__ = ["Command"]


class Command(BaseCommand):
    """One command with four parts."""

    help = "Check, explain, reset and show the limits of this project."
    # The faults that it is asked for are found by the command itself.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Say what each part takes."""
        parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
        check = parts.add_parser("check", help="find the faults of the setting and of the views")
        explain = parts.add_parser("explain", help="say which limit applies to an id, and why")
        reset = parts.add_parser("reset", help="make a bucket full")
        show = parts.add_parser("show", help="list the limits, and the views that have some")
        for part in (explain, reset):
            part.add_argument("name", help="the name of a limit")
            part.add_argument("id", help="who is asking")
        for part in (check, explain, reset, show):
            part.add_argument("--json", action="store_true", help="answer for a program")

    def handle(self, *_: Any, part: str, **options: Any) -> None:
        """Do the part that was asked for."""
        if part == "check":
            self._check(as_json=options["json"])
            return
        try:
            installed = conf.current()
            # Texts of views are limits too, under the names that they have in a server.
            installed.bind_all()
            run = {"explain": self._explain, "reset": self._reset, "show": self._show}[part]
            run(installed, options)
        except (Error, OSError) as error:
            raise CommandError(str(error)) from error

    def _check(self, *, as_json: bool) -> None:
        found = [
            message
            for message in checks.run_checks(tags=["penstock"])
            if (message.id or "").startswith("penstock.") and not message.is_silenced()
        ]
        faults = [f"{m.msg}\n  {m.hint} ({m.id})" for m in found if m.is_serious()]
        if as_json:
            problems = [
                {"id": m.id, "message": m.msg, "hint": m.hint, "serious": m.is_serious()}
                for m in found
            ]
            limits = [] if faults else list(conf.current().guard.limiter.limits)
            self._tell({"problems": problems, "limits": limits})
        else:
            for message in found:
                if not message.is_serious():
                    self.stderr.write(f"{message.msg}\n  {message.hint} ({message.id})")
        if faults:
            raise CommandError("\n".join(faults))
        if not as_json:
            number = len(conf.current().guard.limiter.limits)
            self.stdout.write(f"PENSTOCK: {number} limit{'s' if number != 1 else ''}, no faults")

    def _explain(self, installed: AppLimits, options: dict[str, Any]) -> None:
        facts = adapter.explain(installed.guard.limiter.limits, options["name"], options["id"])
        if options["json"]:
            self._tell(facts)
        else:
            self.stdout.write("\n".join(adapter.fact_lines(facts)))

    def _reset(self, installed: AppLimits, options: dict[str, Any]) -> None:
        limiter = installed.guard.limiter
        key = limiter.limits.explain(options["name"], options["id"]).bucket_key
        was_used = limiter.reset(options["name"], options["id"])
        if limiter.store.startswith("memory"):
            self.stderr.write(
                "the store is in the memory of each process: this reaches the buckets of this "
                "command, and not those of a running server"
            )
        if options["json"]:
            self._tell({"bucket_key": key, "was_used": was_used})
        else:
            self.stdout.write(f"{key}: {'reset' if was_used else 'was full already'}")

    def _show(self, installed: AppLimits, options: dict[str, Any]) -> None:
        known = installed.guard.limiter.limits
        limits = {name: _words(known.default(name)) for name in known}
        views = dict(_views(installed))
        if options["json"]:
            self._tell({"limits": limits, "views": views})
            return
        width = max(map(len, [*limits, *views]), default=0)
        for name, words in limits.items():
            self.stdout.write(f"{name:<{width}}  {words}")
        if views:
            self.stdout.write("")
        for route, names in views.items():
            self.stdout.write(f"{route:<{width}}  {', '.join(names)}")

    def _tell(self, facts: object) -> None:
        self.stdout.write(json.dumps(facts, ensure_ascii=False))


def _words(limit: Limit | None) -> str:
    return "no default: unlimited" if limit is None else describe_limit(limit)


def _views(installed: AppLimits) -> Iterable[tuple[str, list[str]]]:
    """Give the routes that have limits of their own, each with their names and texts."""
    for route, view in all_routes():
        found = [str(limit) for rule in rules_of(view) for limit in rule.limits]
        for throttle, scope, view_class in throttles_of(view):
            rule = throttle.penstock_rule(scope, view_class)
            found += () if rule is None else [str(limit) for limit in rule.limits]
        if found:
            yield route, list(dict.fromkeys(found))
