"""`flask penstock`: the limits of an application on the command line.

The exit status is 0, 1 if a fault is found, and 2 for wrong usage.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click
from flask import current_app
from flask.cli import AppGroup, ScriptInfo, pass_script_info

from penstock._explain import BUCKET_COMMANDS
from penstock._validation import did_you_mean
from penstock._web.route_table import fact_text, limit_facts
from penstock.errors import ConfigProblem, Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask

    from penstock.flask.app_limits import FlaskLimits

# Flask adds them to every route. HEAD is limited as GET is, and Flask itself answers OPTIONS.
_IMPLIED: Final = frozenset({"HEAD", "OPTIONS"})


class _Group(AppGroup):
    """Prints errors of penstock as those of a command, one problem a line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Error as error:
            problems = getattr(error, "problems", ()) or (str(error),)
            raise click.ClickException("\n".join(problems)) from error


@click.group("penstock", cls=_Group)
def commands() -> None:
    """Inspect the limits of an application."""


@commands.command("check", with_appcontext=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_script_info
def check(info: ScriptInfo, *, as_json: bool) -> None:
    """Load the application and report faults of its configuration."""
    try:
        facts = _check(info.load_app())
    except (click.ClickException, Error) as error:
        if not as_json:
            raise
        problems = getattr(error, "problems", ()) or (ConfigProblem(error),)
        _echo_json({"problems": [problem.to_dict() for problem in problems]})
        raise click.exceptions.Exit(1) from error
    if as_json:
        _echo_json({"problems": [], **facts})
        return
    click.echo(f"{facts['routes']} routes, {facts['limited']} of them limited, no errors")
    for name in facts["unused"]:
        click.echo(f"no route has the limit {name}")


def _check(app: Flask) -> dict[str, Any]:
    """Return the number of routes and of those with limits, and the limits that no route has."""
    with app.app_context():
        app_limits = _limits_of(app)
        routes = list(_routes(app))
        mistakes = [f"{sentence}; {fix}" for sentence, fix in app_limits.mistakes()]
    if mistakes:
        raise click.ClickException("\n".join(mistakes))
    every = {(route["route"], route["endpoint"]) for route in routes}
    limited = {(route["route"], route["endpoint"]) for route in routes if route["limits"]}
    used = {name for route in routes for limit in route["limits"] for name in _names(limit)}
    unused = [name for name in app_limits.guard.loaded_names if name not in used]
    return {"routes": len(every), "limited": len(limited), "unused": unused}


def _echo_json(facts: object) -> None:
    click.echo(json.dumps(facts, ensure_ascii=False))


def _names(limit: dict[str, Any]) -> list[str]:
    return limit["choices"] or [limit["name"]]


@commands.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(*, as_json: bool) -> None:
    """List the routes with their limits."""
    routes = list(_routes(current_app))
    if as_json:
        _echo_json(routes)
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
    call, lines = BUCKET_COMMANDS[command]
    guard = _limits_of(current_app).guard
    # Limits without a name of their own are named when the routes are read.
    list(_routes(current_app))
    if name not in guard.limiter.limits:
        hint = did_you_mean(name, guard.limiter.limits)
        raise click.ClickException(f"no limit is named {name!r}; {hint}")
    facts = call(guard.limiter, name, id, guard.address.ipv6_prefix)
    for line in [json.dumps(facts, ensure_ascii=False)] if as_json else lines(facts):
        click.echo(line)


def _limits_of(app: Flask) -> FlaskLimits:
    app_limits: FlaskLimits | None = app.extensions.get("penstock")
    if app_limits is None:
        raise click.ClickException(
            f"the application {app.name} has no Penstock; create one with Penstock(app, ...)"
        )
    return app_limits


def _routes(app: Flask) -> Iterator[dict[str, Any]]:
    """Yield the routes with their limits; methods with the same limits are one entry."""
    app_limits = _limits_of(app)
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: (rule.rule, rule.endpoint)):
        by_limits: dict[str, dict[str, Any]] = {}
        methods = (rule.methods or {"GET"}) - _IMPLIED or rule.methods or set()
        for method in sorted(methods):
            limits = [
                limit_facts(app_limits.guard, limit)
                for limit in app_limits.limits_of_route(rule.endpoint, method)
                if limit.rule.methods is None or method in limit.rule.methods
            ]
            route = {"route": rule.rule, "endpoint": rule.endpoint, "methods": [], "limits": limits}
            by_limits.setdefault(json.dumps(limits), route)["methods"].append(method)
        yield from by_limits.values()
