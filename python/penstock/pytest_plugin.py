"""The pytest plugin: a clock that tests move, limits off or on, and asserts about responses.

What it changes belongs to the process, and is put back when the test, or the run, is over. The
guard and the adapters are imported when a test or the configuration first needs them, so that a
suite which uses none of this pays for the core alone.
"""

from __future__ import annotations

import json
import re
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pytest

from penstock._core import Limiter, Limits, ManualClock, _set_default_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from penstock._core import Decision
    from penstock.types import Id

__all__ = ["Response", "assert_not_rate_limited", "assert_rate_limited", "exhaust"]

_T = TypeVar("_T")

_CLOCKS: Final = ("system", "manual")
# A midnight, so that windows that follow the calendar begin when a test does.
_START_NS: Final = 946_684_800_000_000_000
_DAY_NS: Final = 86_400_000_000_000
_MOST_ROUNDS: Final = 1000
_TOO_MANY_REQUESTS: Final = 429

_enabled: Final = pytest.StashKey[bool]()
_clock: Final = pytest.StashKey[ManualClock | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the options that stand in a project's pytest configuration."""
    parser.addini(
        "penstock_enabled",
        "whether limits are applied in tests that are not marked",
        type="bool",
        default=True,
    )
    parser.addini(
        "penstock_clock",
        "'manual': all limiters made without a clock, at import too, are on the one that "
        "penstock_clock gives; 'system': those made during a test that uses it",
        type="string",
        default="system",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Put the options in force before a conftest file imports the application."""
    _begin(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "penstock(enabled=..., limits=...): "
        "whether limits are applied in this test, and the limits of penstock_limiter",
    )
    # For a plugin that a conftest file brings in: it comes too late for the hook above.
    _begin(config)


def _begin(config: pytest.Config) -> None:
    if _enabled in config.stash:
        return
    try:
        enabled = config.getini("penstock_enabled")
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"penstock_enabled must be true or false: {error}") from error
    kind = config.getini("penstock_clock")
    if kind not in _CLOCKS:
        raise pytest.UsageError(f"penstock_clock must be system or manual, found {kind!r}")
    clock = ManualClock(start=_START_NS // 1_000_000_000) if kind == "manual" else None
    config.stash[_enabled] = enabled
    config.stash[_clock] = clock
    if clock is not None:
        config.add_cleanup(partial(_put_back, _set_default_clock, _set_default_clock(clock)))
    if not enabled:
        config.add_cleanup(partial(_put_back, _force_enabled, _force_enabled(False)))


def _put_back(put: Callable[[_T], _T], before: _T) -> None:
    put(before)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is configured, if anything is."""
    said = []
    if not config.stash[_enabled]:
        said.append("limits are off unless a test is marked")
    if config.stash[_clock] is not None:
        said.append("the clock is moved by hand")
    return [f"penstock: {', '.join(said)}"] if said else []


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Find at start what no marker can say."""
    if hasattr(config, "workerinput"):
        # What ends a worker of pytest-xdist here is told to nobody; each test tells it when its
        # turn comes.
        return
    for item in items:
        _check_markers(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Switch limits as the marker says, from the test's first fixture to its last."""
    enabled = _marked(item).get("enabled")
    if not isinstance(enabled, bool):
        return (yield)
    before = _force_enabled(enabled)
    try:
        return (yield)
    finally:
        _force_enabled(before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a day pass on the clock of the run, to a midnight: short limits are whole again."""
    _check_markers(item)
    clock = item.config.stash[_clock]
    if clock is not None:
        clock.set_ns((-(-clock.now_ns() // _DAY_NS) + 1) * _DAY_NS)


def _check_markers(item: pytest.Item) -> None:
    for mark in item.iter_markers("penstock"):
        unknown = [*map(repr, mark.args), *(mark.kwargs.keys() - {"enabled", "limits"})]
        if unknown:
            raise pytest.UsageError(
                f"{item.nodeid}: the marker penstock takes enabled= and limits=, "
                f"found {', '.join(unknown)}"
            )
        enabled = mark.kwargs.get("enabled")
        if not isinstance(enabled, bool | None):
            raise pytest.UsageError(
                f"{item.nodeid}: enabled must be True or False, found {enabled!r}"
            )


def _marked(item: pytest.Item) -> dict[str, Any]:
    """Join a test's markers; the closest says most."""
    said: dict[str, Any] = {}
    for mark in item.iter_markers("penstock"):
        said = {**mark.kwargs, **said}
    return said


def _force_enabled(enabled: bool | None) -> bool | None:
    from penstock.web.guard import force_enabled  # noqa: PLC0415  most suites never need it

    return force_enabled(enabled)


@pytest.fixture
def penstock_clock(pytestconfig: pytest.Config) -> Iterator[ManualClock]:
    """A clock that stands at a midnight until the test moves it.

    Limiters that are made without a clock while the test runs are on it, in whatever thread. Those
    that exist already are not, unless the option `penstock_clock` is `manual`.
    """
    clock = pytestconfig.stash[_clock]
    if clock is not None:
        yield clock
        return
    clock = ManualClock(start=_START_NS // 1_000_000_000)
    before = _set_default_clock(clock)
    yield clock
    _set_default_clock(before)


@pytest.fixture
def penstock_limiter(request: pytest.FixtureRequest, penstock_clock: ManualClock) -> Limiter:
    """A limiter with the marker's `limits`, whose buckets are all full, on `penstock_clock`.

    They are what `Limiter` takes, or the path of a limits file; without them, `define` some.
    """
    limits = _marked(request.node).get("limits", {})
    if isinstance(limits, str | PathLike):
        limits = Limits.load(request.config.rootpath / limits)
    return Limiter(limits, clock=penstock_clock)


@pytest.fixture
def penstock_disabled() -> Iterator[None]:
    """No limit is applied to any request while the test runs; those made before are off too."""
    before = _force_enabled(False)
    yield
    _force_enabled(before)


def exhaust(limiter: Limiter, name: str, id: Id, cost: int = 1) -> Decision:
    """Spend until `cost` tokens more are denied, and give the denied decision.

    Takes a few spends, however large the bucket.

    Args:
        limiter: Best on a clock that stands still.
        name: A limit from the loaded limits.
        id: Who is asking.
        cost: What the last request asks for, at least 1.

    Raises:
        ValueError: No amount of spending would be denied: no limit applies to this id, `cost` is
            below 1, or tokens come back as fast as they are taken.

    Otherwise raises as `Limiter.spend`.

    Example:
        >>> from penstock.pytest_plugin import exhaust
        >>> limiter = penstock.Limiter({"Orders": "100/minute"}, clock=penstock.ManualClock())
        >>> exhaust(limiter, "Orders", "ada").retry_after
        0.6
    """
    if cost < 1:
        raise ValueError(f"cost must be at least 1, found {cost}, which is never denied")
    for _ in range(_MOST_ROUNDS):
        decision = limiter.spend(name, id, cost)
        if decision.unlimited:
            raise ValueError(f"no limit of {name} applies to {id!r}, so it cannot be exhausted")
        if decision.would_deny or not decision.allowed:
            return decision
        rest = min(decision.remaining, decision.limit.max_cost) // cost * cost
        if rest:
            limiter.spend(name, id, rest)
    raise ValueError(
        f"{name} fills as fast as it is emptied on {limiter.clock!r}; "
        f"make its limiter on a clock that stands still, such as penstock_clock"
    )


class Response(Protocol):
    """What the asserts see: a response of Flask, Django, httpx or a test client."""

    @property
    def status_code(self) -> int:
        """The status, such as 429."""

    @property
    def headers(self) -> Any:
        """The fields, with `items()`."""


def assert_rate_limited(
    response: Response, *, limit: str | None = None, retry_after: int | None = None
) -> None:
    """Assert that a response is the refusal of a limit.

    Args:
        response: Of any framework or client.
        limit: The name of the limit that refused. Taken from the problem document; if the body is
            none, from the header fields, which name all limits of the request.
        retry_after: The wait that the client is told, in whole seconds.

    Raises:
        AssertionError: It is none, or another; the message shows status and fields.

    Example:
        >>> from flask import Flask
        >>> from penstock.flask import Penstock
        >>> from penstock.pytest_plugin import assert_not_rate_limited, assert_rate_limited
        >>> app = Flask("shop")
        >>> limits = Penstock(app, limits={"PerAddress": "1/minute"}, clock=penstock.ManualClock())
        >>> @app.get("/orders")
        ... @limits.limit("PerAddress")
        ... def orders():
        ...     return {"orders": []}
        >>> client = app.test_client()
        >>> assert_not_rate_limited(client.get("/orders"), remaining=0)
        >>> assert_rate_limited(client.get("/orders"), limit="PerAddress", retry_after=60)
    """
    __tracebackhide__ = True
    fields = _fields(response)
    if response.status_code != _TOO_MANY_REQUESTS:
        _fail("the refusal of a limit, status 429", f"status {response.status_code}", response)
    if limit is not None:
        names = _refusing(response, fields)
        if limit not in names:
            found = f"refused by {', '.join(names)}" if names else "no limit named in it"
            _fail(f"a refusal by the limit {limit}", found, response)
    if retry_after is not None:
        told = fields.get("retry-after", "")
        if told != str(retry_after):
            _fail(f"Retry-After: {retry_after}", told or "no such field", response)


def assert_not_rate_limited(
    response: Response, *, limit: str | None = None, remaining: int | None = None
) -> None:
    """Assert that a response is not the refusal of a limit; it may be any other, a 500 too.

    Args:
        response: Of any framework or client.
        limit: The limit of which `remaining` speaks, where the fields tell of several.
        remaining: The tokens that the fields say are left.

    Raises:
        AssertionError: It is one, or tells of another number; the message shows status and fields.
    """
    __tracebackhide__ = True
    fields = _fields(response)
    if response.status_code == _TOO_MANY_REQUESTS:
        _fail("no refusal by a limit", "status 429", response)
    if limit is not None and remaining is None:
        raise TypeError("limit says of which limit remaining speaks; give both")
    if remaining is not None:
        told = _remaining(fields, limit)
        if told != remaining:
            whose = "" if limit is None else f" of {limit}"
            nothing = f"no such number in a response of status {response.status_code}"
            found = nothing if told is None else str(told)
            _fail(f"{remaining} remaining{whose}", found, response)


def _fail(expected: str, found: str, response: Response) -> None:
    __tracebackhide__ = True
    shown = [
        f"  {name}: {value}"
        for name, value in response.headers.items()
        if "ratelimit" in name.lower() or name.lower() in ("retry-after", "content-type")
    ]
    raise AssertionError("\n".join([f"expected {expected}, found {found}; its fields:", *shown]))


def _fields(response: Response) -> dict[str, str]:
    """Give the fields by lower-case name; those of one name are one list."""
    if not hasattr(response, "status_code") or not hasattr(response, "headers"):
        raise TypeError(f"a response has status_code and headers, found {response!r}")
    fields: dict[str, str] = {}
    for name, value in response.headers.items():
        key = name.lower()
        fields[key] = f"{fields[key]}, {value}" if key in fields else str(value)
    return fields


_STRING: Final = r'"((?:[^"\\]|\\.)*)"'
# An item of the list fields: `"name";r=4;t=12`, with `q` in a policy.
_ITEM: Final = re.compile(rf"(?:^|,)\s*{_STRING}((?:;[^,]*)?)")


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _refusing(response: Response, fields: dict[str, str]) -> list[str]:
    """Give the names of the limits that refused, or else of all that the fields name."""
    if "json" in fields.get("content-type", ""):
        body: Any = getattr(response, "content", None)
        if body is None and hasattr(response, "get_data"):
            body = response.get_data()
        try:
            document = json.loads(body)
        except (TypeError, ValueError):
            document = None
        if isinstance(document, dict) and isinstance(document.get("violated-policies"), list):
            return [str(name) for name in document["violated-policies"]]
    listed = [*_ITEM.finditer(fields.get("ratelimit", ""))]
    listed += _ITEM.finditer(fields.get("ratelimit-policy", ""))
    listed += re.finditer(rf";name={_STRING}", fields.get("x-ratelimit-limit", ""))
    names = [_unescaped(item[1]) for item in listed]
    names += [fields[name] for name in ("x-ratelimit-resource",) if name in fields]
    return [*dict.fromkeys(names)]


def _remaining(fields: dict[str, str], limit: str | None) -> int | None:
    """Give the number that the fields tell, in whatever style."""
    found: dict[str, int] = {}
    for item in _ITEM.finditer(fields.get("ratelimit", "")):
        number = re.search(r";r=(\d+)", item[2])
        if number:
            found[_unescaped(item[1])] = int(number[1])
    if found:
        return min(found.values()) if limit is None else found.get(limit)
    single = re.search(r"remaining=(\d+)", fields.get("ratelimit", ""))
    told = (
        fields.get("ratelimit-remaining") or fields.get("x-ratelimit-remaining") or "",
        "" if single is None else single[1],
    )
    # A field of a single value speaks of one limit, and does not say which.
    return next((int(text) for text in told if text.isdecimal()), None)
