"""`manage.py penstock`: check, explain, reset and list the limits of the project."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.core.management.base import BaseCommand, CommandError

from penstock._display import pluralize
from penstock._explain import BUCKET_COMMANDS
from penstock._web.route_table import fact_text, limit_facts
from penstock.django import conf
from penstock.django.checks import FileError
from penstock.django.urls import all_routes, throttles_of
from penstock.django.view_limits import all_rules
from penstock.errors import ConfigProblem, Error
from penstock.messages import describe_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django.core.management.base import CommandParser

    from penstock._web.compiled_limit import CompiledLimit, PerRequestLimit
    from penstock._web.rule import Rule
    from penstock.django.app_limits import DjangoLimits


class Command(BaseCommand):
    """The command, with a subcommand for each task."""

    help = "Check, explain, reset and list the limits of this project."
    # The subcommand `check` runs the checks itself.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the subcommands."""
        parts = parser.add_subparsers(dest="part", metavar="COMMAND", required=True)
        check = parts.add_parser("check", help="report faults of the setting and of the views")
        explain = parts.add_parser("explain", help="show which limit applies to an id, and why")
        reset = parts.add_parser("reset", help="make a bucket full")
        show = parts.add_parser("show", help="list the limits, and the views that have some")
        for part in (explain, reset):
            part.add_argument("name", help="the name of a limit")
            part.add_argument("id", help="the id of a client")
        for part in (check, explain, reset, show):
            part.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *_: Any, part: str, **options: Any) -> None:
        """Run a subcommand."""
        if part == "check":
            self._check(as_json=options["json"])
            return
        try:
            app_limits = conf.current()
            # The rates of views are limits, too, under the names that they have in a server.
            app_limits.bind_all()
            if part == "show":
                self._show(app_limits, options)
            else:
                self._bucket(part, app_limits, options)
        except (Error, OSError) as error:
            raise CommandError(str(error)) from error

    def _check(self, *, as_json: bool) -> None:
        messages = [
            message
            for message in checks.run_checks(tags=["penstock"])
            if (message.id or "").startswith("penstock.") and not message.is_silenced()
        ]
        faults = [f"{m.msg}\n  {m.hint} ({m.id})" for m in messages if m.is_serious()]
        if as_json:
            problems = [
                {
                    **(m.problem if isinstance(m, FileError) else ConfigProblem(m.msg)).to_dict(),
                    "id": m.id,
                    "hint": m.hint,
                    "serious": m.is_serious(),
                }
                for m in messages
            ]
            limits = [] if faults else list(conf.current().guard.limiter.limits)
            self._print_json({"problems": problems, "limits": limits})
        else:
            for message in messages:
                if not message.is_serious():
                    self.stderr.write(f"{message.msg}\n  {message.hint} ({message.id})")
        if faults:
            raise CommandError("\n".join(faults))
        if not as_json:
            number = len(conf.current().guard.limiter.limits)
            self.stdout.write(f"PENSTOCK: {pluralize(number, 'limit')}, no errors")

    def _bucket(self, part: str, app_limits: DjangoLimits, options: dict[str, Any]) -> None:
        call, lines = BUCKET_COMMANDS[part]
        guard = app_limits.guard
        prefix = guard.address.ipv6_prefix
        facts = call(guard.limiter, options["name"], options["id"], prefix)
        if options["json"]:
            self._print_json(facts)
            return
        for line in lines(facts):
            self.stdout.write(line)

    def _show(self, app_limits: DjangoLimits, options: dict[str, Any]) -> None:
        guard = app_limits.guard
        used = dict(_used(app_limits))
        facts = {
            route: [
                {**limit_facts(guard, limit), "methods": sorted(limit.rule.methods or ()) or None}
                for limit in limits
            ]
            for route, limits in used.items()
        }
        names = {
            name
            for limits in facts.values()
            for limit in limits
            for name in limit["choices"] or [limit["name"]]
        }
        known = guard.limiter.limits
        # Without those that keep the blocks of others.
        defaults = {n: known.default(n) for n in known if n in names or n in guard.loaded_names}
        shown = {
            name: "by override only" if limit is None else describe_limit(limit)
            for name, limit in defaults.items()
        }
        unused = [name for name in shown if name not in names]
        if options["json"]:
            self._print_json({"limits": shown, "views": facts, "unused": unused})
            return
        width = max(map(len, shown), default=0)
        for name, description in shown.items():
            self.stdout.write(f"{name:<{width}}  {description}")
        for route, listed in facts.items():
            self.stdout.write(f"\n{route}")
            for limit in listed:
                self.stdout.write(f"    {fact_text(limit)}")
        if unused:
            self.stdout.write(f"\nno view has the limits {', '.join(unused)}")

    def _print_json(self, facts: object) -> None:
        self.stdout.write(json.dumps(facts, ensure_ascii=False))


def _used(app_limits: DjangoLimits) -> Iterator[tuple[str, list[CompiledLimit | PerRequestLimit]]]:
    """Yield the routes with limits of their own, and `DEFAULT`, each with its limits."""
    if app_limits.defaults:
        yield "DEFAULT", _compiled(app_limits, app_limits.defaults)
    for route, view in all_routes():
        rules = [*all_rules(view)]
        for throttle, scope, view_class in throttles_of(view):
            rule = throttle.penstock_rule(scope, view_class)
            rules += () if rule is None else (rule,)
        if rules:
            yield route, _compiled(app_limits, rules)


def _compiled(
    app_limits: DjangoLimits, rules: Iterable[Rule]
) -> list[CompiledLimit | PerRequestLimit]:
    return [limit for rule in rules for limit in app_limits.guard.route_limits([rule]).limits]
