"""`flask penstock`: what an application limits, seen from the command line.

The exit status is 0, 1 for a fault that was looked for and found, 2 for wrong use.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click
from flask import current_app
from flask.cli import AppGroup, ScriptInfo, pass_script_info

from penstock.errors import Error
from penstock.web.messages import describe_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask

    from penstock._core import Limiter
    from penstock.flask.app_limits import AppLimits
    from penstock.web.rule import CompiledLimit

__all__ = ["commands"]

# Flask adds them to every route, and they are limited as GET is, or answered by Flask itself.
_IMPLIED: Final = frozenset({"HEAD", "OPTIONS"})


@click.group("penstock", cls=AppGroup)
def commands() -> None:
    """Look at the limits of an application."""


@commands.command("check", with_appcontext=False)
@pass_script_info
def check(info: ScriptInfo) -> None:
    """Find the faults of the configuration, by loading the application."""
    try:
        app = info.load_app()
        with app.app_context():
            routes = list(_routes(app))
            unused = _unused(app)
            misplaced = [name for one in _installed(app) for name in one.misplaced()]
    except Error as error:
        # One fault a line, as for the files on their own.
        problems = getattr(error, "problems", ()) or (str(error),)
        raise click.ClickException("\n".join(problems)) from error
    if misplaced:
        raise click.ClickException(
            f"limits stand above their routes, where they have no effect: {', '.join(misplaced)}; "
            f"put the decorator below the route's, nearest to the view"
        )
    every = {(route["route"], route["endpoint"]) for route in routes}
    limited = {(route["route"], route["endpoint"]) for route in routes if route["limits"]}
    click.echo(f"{len(every)} routes, {len(limited)} of them limited, no faults")
    for name in unused:
        click.echo(f"no route has the limit {name}")


@commands.command("show")
@click.option("--json", "as_json", is_flag=True, help="Answer for a program.")
def show(*, as_json: bool) -> None:
    """Show each route with its limits."""
    routes = list(_routes(current_app))
    if as_json:
        click.echo(json.dumps(routes, ensure_ascii=False))
        return
    for route in routes:
        click.echo(f"{route['route']}  {', '.join(route['methods'])}  ({route['endpoint']})")
        for limit in route["limits"]:
            details = "".join(f", {limit[key]}" for key in ("cost", "when", "mode") if limit[key])
            click.echo(f"    {limit['name']}: {limit['limit']}, {limit['id']}{details}")
        if not route["limits"]:
            click.echo("    no limits")


@commands.command("explain")
@click.argument("name")
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="Answer for a program.")
def explain(name: str, id: str, *, as_json: bool) -> None:
    """Say which limit applies to an id, why, and what is left of it."""
    for limiter in _limiters(name):
        try:
            why = limiter.limits.explain(name, id)
            decision = None if _is_own(limiter) else limiter.check(name, id, 0)
        except Error as error:
            raise click.ClickException(str(error)) from error
        facts = {
            "name": why.name,
            "id": why.id,
            "limit": describe_limit(why.limit),
            "algorithm": why.limit.algorithm,
            "rule": why.rule,
            "place": "" if why.file is None else f"{why.file}:{why.line}",
            "bucket key": why.bucket_key,
            "remaining": "" if decision is None or decision.unlimited else decision.remaining,
        }
        if as_json:
            click.echo(json.dumps(facts, ensure_ascii=False))
            continue
        width = max(map(len, facts))
        for fact, value in facts.items():
            if value != "":
                click.echo(f"{fact:<{width}}  {value}")


@commands.command("reset")
@click.argument("name")
@click.argument("id")
def reset(name: str, id: str) -> None:
    """Forget the bucket of an id, so that it starts afresh."""
    for limiter in _limiters(name):
        if _is_own(limiter):
            raise click.ClickException(
                f"{limiter.store} is a memory of each process, and this command is another than "
                f"the one that serves; a shared store would do"
            )
        try:
            was_there = limiter.reset(name, id)
        except Error as error:
            raise click.ClickException(str(error)) from error
        click.echo("forgotten" if was_there else "there was nothing to forget")


def _is_own(limiter: Limiter) -> bool:
    """Whether what a limiter remembers is in the process that made it, and nowhere else."""
    return limiter.store.startswith("memory:")


def _installed(app: Flask) -> list[AppLimits]:
    first: AppLimits | None = app.extensions.get("penstock")
    if first is None:
        raise click.ClickException(
            f"the application {app.name} has no Penstock; Penstock(app, ...) would do"
        )
    return first.all


def _limiters(name: str) -> list[Limiter]:
    """Give the limiters that know a name, each once.

    Raises:
        ClickException: None does; known are which.
    """
    # Texts on routes are limits too, from when they are bound.
    list(_routes(current_app))
    all_of_them = dict.fromkeys(one.guard.limiter for one in _installed(current_app))
    found = [limiter for limiter in all_of_them if name in limiter.limits]
    if not found:
        known = dict.fromkeys(known for limiter in all_of_them for known in limiter.limits)
        raise click.ClickException(
            f'no limit is named "{name}"; known are {", ".join(known) or "none"}'
        )
    return found


def _routes(app: Flask) -> Iterator[dict[str, Any]]:
    """Give each route with its limits; methods that are limited alike stand together."""
    all_of_them = _installed(app)
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: (rule.rule, rule.endpoint)):
        by_limits: dict[str, dict[str, Any]] = {}
        methods = (rule.methods or {"GET"}) - _IMPLIED or rule.methods or set()
        for method in sorted(methods):
            limits = [
                _described(installed, term)
                for installed in all_of_them
                for term in installed.terms_of(rule.endpoint, method)
                if term.methods is None or method in term.methods
            ]
            route = {"route": rule.rule, "endpoint": rule.endpoint, "methods": [], "limits": limits}
            by_limits.setdefault(json.dumps(limits), route)["methods"].append(method)
        yield from by_limits.values()


def _described(installed: AppLimits, term: CompiledLimit) -> dict[str, str]:
    default = installed.guard.limiter.limits.default(term.name)
    conditions = {"exempt_when": term.exempt_when, "deduct_when": term.deduct_when}
    modes = {"shadow": term.is_shadow, "switched off": not installed.guard.enabled}
    cost = term.rule.cost
    return {
        "name": term.name,
        "limit": "by override only" if default is None else describe_limit(default),
        "id": _named(term.rule.id),
        "cost": "" if cost == 1 else "cost by request" if callable(cost) else f"cost {cost}",
        "when": ", ".join(name for name, given in conditions.items() if given is not None),
        "mode": ", ".join(name for name, is_so in modes.items() if is_so),
    }


def _named(given: object) -> str:
    """Give what a reader knows a callable by; anything else as it is written."""
    return getattr(given, "__name__", None) or repr(given)


def _unused(app: Flask) -> list[str]:
    """Give the loaded limits that no route has, for they may be misspelled or forgotten."""
    used = {limit["name"] for route in _routes(app) for limit in route["limits"]}
    loaded = dict.fromkeys(name for one in _installed(app) for name in one.guard.limiter.limits)
    return [name for name in loaded if name not in used]
