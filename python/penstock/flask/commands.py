"""`flask penstock`: the limits of an application on the command line.

The exit status is 0, 1 if a fault is found, and 2 for wrong usage.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click
from flask import current_app
from flask.cli import AppGroup, ScriptInfo, pass_script_info

from penstock.errors import Error
from penstock.web import adapter
from penstock.web.limit_facts import fact_text, limit_facts, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask

    from penstock._core import Limiter
    from penstock.flask.app_limits import AppLimits

# Flask adds them to every route. HEAD is limited as GET is, and Flask itself answers OPTIONS.
_IMPLIED: Final = frozenset({"HEAD", "OPTIONS"})


@click.group("penstock", cls=AppGroup)
def commands() -> None:
    """Inspect the limits of an application."""


@commands.command("check", with_appcontext=False)
@pass_script_info
def check(info: ScriptInfo) -> None:
    """Load the application and report faults of its configuration."""
    try:
        app = info.load_app()
        with app.app_context():
            routes = list(_routes(app))
            unused = _unused(app)
            misplaced = [
                name for extension in _extensions(app) for name in extension.check_decorator_order()
            ]
    except Error as error:
        # One fault a line, as `penstock check` prints those of a file.
        problems = getattr(error, "problems", ()) or (str(error),)
        raise click.ClickException("\n".join(problems)) from error
    if misplaced:
        raise click.ClickException(
            f"limits above the route's decorator have no effect: {', '.join(misplaced)}; "
            f"put the limit below the route, next to the view"
        )
    every = {(route["route"], route["endpoint"]) for route in routes}
    limited = {(route["route"], route["endpoint"]) for route in routes if route["limits"]}
    click.echo(f"{len(every)} routes, {len(limited)} of them limited, no faults")
    for name in unused:
        click.echo(f"no route has the limit {name}")


@commands.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(*, as_json: bool) -> None:
    """List the routes with their limits."""
    routes = list(_routes(current_app))
    if as_json:
        click.echo(json.dumps(routes, ensure_ascii=False))
        return
    for route in routes:
        click.echo(f"{route['route']}  {', '.join(route['methods'])}  ({route['endpoint']})")
        for limit in route["limits"]:
            click.echo(f"    {fact_text(limit)}")
        if not route["limits"]:
            click.echo("    no limits")


@commands.command("explain")
@click.argument("name")
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(name: str, id: str, *, as_json: bool) -> None:
    """Show which limit applies to an id, why, and how many tokens remain."""
    _print("explain", name, id, as_json=as_json)


@commands.command("reset")
@click.argument("name")
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reset(name: str, id: str, *, as_json: bool) -> None:
    """Reset the bucket of an id, so that it is full again."""
    _print("reset", name, id, as_json=as_json)


def _print(command: str, name: str, id: str, *, as_json: bool) -> None:
    """Print what a command says about the buckets of a limit and an id."""
    call, lines = adapter.BUCKET_COMMANDS[command]
    prefixes = {
        extension.guard.limiter: extension.guard.address.ipv6_prefix
        for extension in _extensions(current_app)
    }
    for limiter in _limiters(name):
        try:
            facts = call(limiter, name, id, prefixes[limiter])
        except Error as error:
            raise click.ClickException(str(error)) from error
        for line in [json.dumps(facts, ensure_ascii=False)] if as_json else lines(facts):
            click.echo(line)


def _extensions(app: Flask) -> list[AppLimits]:
    first: AppLimits | None = app.extensions.get("penstock")
    if first is None:
        raise click.ClickException(
            f"the application {app.name} has no Penstock; create one with Penstock(app, ...)"
        )
    return [first]


def _limiters(name: str) -> list[Limiter]:
    """Return the limiters that have a limit of this name, each once.

    Raises:
        ClickException: No limiter has one.
    """
    # Limits without a name of their own are named when the routes are read.
    list(_routes(current_app))
    limiters = dict.fromkeys(extension.guard.limiter for extension in _extensions(current_app))
    found = [limiter for limiter in limiters if name in limiter.limits]
    if not found:
        known = dict.fromkeys(known for limiter in limiters for known in limiter.limits)
        raise click.ClickException(
            f'no limit is named "{name}"; known limits: {", ".join(known) or "none"}'
        )
    return found


def _routes(app: Flask) -> Iterator[dict[str, Any]]:
    """Yield the routes with their limits; methods with the same limits are one entry."""
    extensions = _extensions(app)
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: (rule.rule, rule.endpoint)):
        by_limits: dict[str, dict[str, Any]] = {}
        methods = (rule.methods or {"GET"}) - _IMPLIED or rule.methods or set()
        for method in sorted(methods):
            limits = [
                limit_facts(extension.guard, limit)
                for extension in extensions
                for limit in extension.limits_of_route(rule.endpoint, method)
                if limit.rule.methods is None or method in limit.rule.methods
            ]
            route = {"route": rule.rule, "endpoint": rule.endpoint, "methods": [], "limits": limits}
            by_limits.setdefault(json.dumps(limits), route)["methods"].append(method)
        yield from by_limits.values()


def _unused(app: Flask) -> list[str]:
    """Return the loaded limits that no route has; they may be misspelled or forgotten."""
    used = {
        name
        for extension in _extensions(app)
        for rule in app.url_map.iter_rules()
        for method in rule.methods or {"GET"}
        for limit in extension.limits_of_route(rule.endpoint, method)
        for name in names_in(limit)
    }
    loaded = dict.fromkeys(
        name for extension in _extensions(app) for name in extension.guard.limiter.limits
    )
    return [name for name in loaded if name not in used]
