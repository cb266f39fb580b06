"""pytest plugin: a manual clock, full buckets, a switch for limits, and assertions on responses.

All changes are global to the process, and are undone when the test or the run ends. The guard and
the adapters are imported when a test or the configuration first needs them, so that a suite which
uses none of this imports only the core.
"""

from __future__ import annotations

import json
import re
import sys
import time
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pytest

from penstock._core import Limiter, ManualClock, SystemClock, set_default_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from penstock._core import Decision
    from penstock.types import Id

__all__ = [
    "Response",
    "assert_not_rate_limited",
    "assert_rate_limited",
    "exhaust",
    "reset_limits",
]

_T = TypeVar("_T")

_CLOCKS: Final = ("system", "manual")
# A midnight, so that aligned windows begin at the start of the test.
_START_NS: Final = 946_684_800_000_000_000
_DAY_NS: Final = 86_400_000_000_000
_MAX_ROUNDS: Final = 1000
_TOO_MANY_REQUESTS: Final = 429

_enabled: Final = pytest.StashKey[bool]()
_clock: Final = pytest.StashKey[ManualClock | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the pytest configuration."""
    parser.addini(
        "penstock_enabled",
        "whether limits are applied in tests without a marker",
        type="bool",
        default=True,
    )
    parser.addini(
        "penstock_clock",
        "'manual': all limiters created without a clock, at import too, use the clock of the "
        "fixture penstock_clock; 'system': only those created during a test that uses the fixture",
        type="string",
        default="system",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Apply the options before a conftest file imports the application."""
    _begin(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "penstock(enabled=...): whether limits are applied in this test",
    )
    # If a conftest file loads the plugin, the hook above is not called.
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
        config.add_cleanup(partial(_restore, set_default_clock, set_default_clock(clock)))
    if not enabled:
        config.add_cleanup(partial(_restore, _force_enabled, _force_enabled(False)))


def _restore(set_value: Callable[[_T], _T], before: _T) -> None:
    set_value(before)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report options that differ from the defaults."""
    lines = []
    if not config.stash[_enabled]:
        lines.append("limits are off unless a test is marked")
    if config.stash[_clock] is not None:
        lines.append("manual clock")
    return [f"penstock: {', '.join(lines)}"] if lines else []


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Report invalid markers at the start."""
    if hasattr(config, "workerinput"):
        # An error here would end a worker of pytest-xdist without a message, so each test reports
        # its own.
        return
    for item in items:
        _check_markers(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Apply the marker's `enabled`, including the setup and teardown of fixtures."""
    # The closest marker takes precedence.
    marked = (mark.kwargs.get("enabled") for mark in item.iter_markers("penstock"))
    enabled = next((flag for flag in marked if flag is not None), None)
    before = _force_enabled(enabled) if isinstance(enabled, bool) else None
    try:
        return (yield)
    finally:
        if isinstance(enabled, bool):
            _force_enabled(before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Advance the clock of the run to another midnight, so that limits of up to a day are full."""
    _check_markers(item)
    clock = item.config.stash[_clock]
    if clock is not None:
        latest_ns = max(clock.now_ns(), clock.steady_ns())
        clock.set_wall_ns(clock.steady_ns())
        clock.set_ns((-(-latest_ns // _DAY_NS) + 1) * _DAY_NS)


def _check_markers(item: pytest.Item) -> None:
    for mark in item.iter_markers("penstock"):
        unknown = [*map(repr, mark.args), *(mark.kwargs.keys() - {"enabled"})]
        if unknown:
            raise pytest.UsageError(
                f"{item.nodeid}: the marker penstock takes enabled=, found {', '.join(unknown)}"
            )
        enabled = mark.kwargs.get("enabled")
        if not isinstance(enabled, bool | None):
            raise pytest.UsageError(
                f"{item.nodeid}: enabled must be True or False, found {enabled!r}"
            )


def _force_enabled(enabled: bool | None) -> bool | None:
    from penstock._web.replacements import force_enabled  # noqa: PLC0415  most suites never need it

    return force_enabled(enabled)


@pytest.fixture
def penstock_clock(pytestconfig: pytest.Config) -> Iterator[ManualClock]:
    """Manual clock that starts at midnight.

    Limiters that are created without a clock during the test use it, in any thread, and so do the
    limits of Django's settings, with full buckets. Other existing limiters do not, unless the
    option `penstock_clock` is `manual`; if requests of the test use one, and the test moves the
    clock, the test fails. A limiter that is created on this clock needs a store of its own, such
    as `memory://`.
    """
    clock = pytestconfig.stash[_clock]
    if clock is not None:
        yield clock
        return
    clock = ManualClock(start=_START_NS // 1_000_000_000)
    before = set_default_clock(clock)
    _forget_django()
    existing = {limiter: limiter.counts() for limiter in _system_limiters()}
    yield clock
    set_default_clock(before)
    is_moved = clock.now_ns() != _START_NS
    used = [limiter for limiter, counts in existing.items() if limiter.counts() != counts]
    _forget_django()
    if is_moved and used:
        names = ", ".join(name for limiter in used for name in limiter.limits)
        pytest.fail(
            f"the test has moved penstock_clock, but requests used a limiter that is older than "
            f"the test and keeps the time of the system (limits: {names}); set the option "
            f"penstock_clock = manual, or create the application in a fixture that requests "
            f"penstock_clock",
            pytrace=False,
        )


def _system_limiters() -> list[Limiter]:
    """Return the limiters of existing guards that keep the time of the system."""
    # Without this module, there are no guards.
    switch = sys.modules.get("penstock._web.replacements")
    guards = [] if switch is None else switch.switch.guards()
    return [g.limiter for g in guards if isinstance(g.limiter.clock, SystemClock)]


def _forget_django() -> None:
    """Let Django's settings create a limiter, with the default clock of that time."""
    conf = sys.modules.get("penstock.django.conf")
    if conf is not None:
        conf.forget()


@pytest.fixture
def penstock_limiter(penstock_clock: ManualClock) -> Limiter:
    """Limiter without limits on `penstock_clock`; add limits with `define` or `reload`."""
    return Limiter({}, clock=penstock_clock)


@pytest.fixture
def penstock_disabled() -> Iterator[None]:
    """Disable all limits on requests during the test, including those of existing guards."""
    before = _force_enabled(False)
    yield
    _force_enabled(before)


@pytest.fixture
def penstock_reset() -> None:
    """Refill all buckets before the test, as `reset_limits()` does."""
    reset_limits()


class _Follower:
    """Moves a clock to Python's time after each call of some methods."""

    def __init__(self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock: Final = clock
        self._monkeypatch: Final = monkeypatch
        # Reading the time may itself move it, in freezegun's `auto_tick_seconds`.
        self._is_reading = False

    def follow(self) -> None:
        if self._is_reading:
            return
        self._is_reading = True
        try:
            now = time.time_ns()  # noqa: TID251  the time that tests have set
        finally:
            self._is_reading = False
        self._clock.set_ns(now, allow_backwards=True)

    def follow_after(self, owner: type, names: tuple[str, ...]) -> None:
        for name in names:
            changed = vars(owner).get(name)
            if changed is not None and not hasattr(changed, "__wrapped__"):
                self._monkeypatch.setattr(owner, name, self._following(changed))

    def _following(self, changed: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(changed)
        def change(*args: Any, **kwargs: Any) -> Any:
            result = changed(*args, **kwargs)
            # The result of `start` has the methods that move the time.
            for owner in type(result).__mro__:
                self.follow_after(owner, ("move_to", "shift", "tick"))
            self.follow()
            return result

        return change


@pytest.fixture
def penstock_travel(penstock_clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Move `penstock_clock` to the time that freezegun or time-machine sets, at each change.

    All buckets are refilled first, as that time may be earlier. Between two changes the clock does
    not move, even if the other one ticks.
    """
    travellers = [
        getattr(sys.modules[module], name)
        for module, name in (("time_machine", "travel"), ("freezegun.api", "_freeze_time"))
        if module in sys.modules
    ]
    if not travellers:
        raise pytest.UsageError("penstock_travel needs freezegun or time-machine, imported first")
    reset_limits()
    follower = _Follower(penstock_clock, monkeypatch)
    for owner in travellers:
        follower.follow_after(owner, ("start", "stop"))
    follower.follow()
    return penstock_clock


def reset_limits(*limiters: Limiter) -> None:
    """Refill all buckets of these limiters; without arguments, of all applications.

    The applications are those of all guards of the process. Buckets in a shared store are refilled
    for all processes that share it.

    Raises:
        StoreError: A store failed.

    Examples:
        >>> from penstock.pytest_plugin import reset_limits
        >>> limiter = penstock.Limiter({"Orders": "1/minute"}, clock=penstock.ManualClock())
        >>> limiter.spend("Orders", "ada").allowed, limiter.spend("Orders", "ada").allowed
        (True, False)
        >>> reset_limits(limiter)
        >>> limiter.spend("Orders", "ada").allowed
        True
    """
    if not limiters:
        from penstock._web.replacements import reset_guards  # noqa: PLC0415  most suites never need it

        reset_guards()
    for limiter in limiters:
        limiter.reset_all()


def exhaust(limiter: Limiter, name: str, id: Id, cost: int = 1) -> Decision:
    """Spend until a request of `cost` tokens is denied, and return the denied decision.

    This takes a few spends, regardless of the size of the bucket.

    Args:
        limiter: A limiter, preferably on a manual clock.
        name: Name of a loaded limit.
        id: The client.
        cost: The cost of the denied request, at least 1.

    Raises:
        ValueError: The bucket cannot be exhausted: no limit applies to this id, `cost` is below 1,
            or tokens are added as fast as they are taken.

    Otherwise raises as `Limiter.spend`.

    Examples:
        >>> from penstock.pytest_plugin import exhaust
        >>> limiter = penstock.Limiter({"Orders": "100/minute"}, clock=penstock.ManualClock())
        >>> exhaust(limiter, "Orders", "ada").retry_after
        0.6
    """
    if cost < 1:
        raise ValueError(f"cost must be at least 1, found {cost}, which is never denied")
    for _ in range(_MAX_ROUNDS):
        decision = limiter.spend(name, id, cost)
        if decision.unlimited:
            raise ValueError(f"no limit of {name} applies to {id!r}, so it cannot be exhausted")
        if decision.would_deny or not decision.allowed:
            return decision
        rest = min(decision.remaining, decision.limit.max_cost) // cost * cost
        if rest:
            limiter.spend(name, id, rest)
    raise ValueError(
        f"{name} refills as fast as it is spent on {limiter.clock!r}; "
        f"create the limiter with a manual clock, such as penstock_clock"
    )


class Response(Protocol):
    """A response of Flask, Django, httpx or a test client."""

    @property
    def status_code(self) -> int:
        """The status code, such as 429."""

    @property
    def headers(self) -> Any:
        """The header fields, with `items()`."""


def assert_rate_limited(
    response: Response, *, limit: str | None = None, retry_after: int | None = None
) -> None:
    """Assert that a response is a refusal by a limit.

    Args:
        response: A response of any framework or client.
        limit: The name of the limit that refused. It is read from the problem document or, if
            there is none, from the header fields, which name all limits of the request.
        retry_after: The value of `Retry-After`, in seconds.

    Raises:
        AssertionError: The response differs; the message shows its status and header fields.

    Examples:
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
        _fail("a refusal by a limit, status 429", f"status {response.status_code}", response)
    if limit is not None:
        names = _refusing(response, fields)
        if limit not in names:
            actual = f"refused by {', '.join(names)}" if names else "no limit named in the response"
            _fail(f"a refusal by the limit {limit}", actual, response)
    if retry_after is not None:
        value = fields.get("retry-after", "")
        if value != str(retry_after):
            _fail(f"Retry-After: {retry_after}", value or "no such field", response)


def assert_not_rate_limited(
    response: Response, *, limit: str | None = None, remaining: int | None = None
) -> None:
    """Assert that a response is not a refusal by a limit. It can have any other status.

    Args:
        response: A response of any framework or client.
        limit: The limit that `remaining` refers to, if the header fields describe several.
        remaining: The remaining tokens in the header fields.

    Raises:
        AssertionError: The response differs; the message shows its status and header fields.
    """
    __tracebackhide__ = True
    fields = _fields(response)
    if response.status_code == _TOO_MANY_REQUESTS:
        _fail("no refusal by a limit", "status 429", response)
    if limit is not None and remaining is None:
        raise TypeError("limit requires remaining; pass both")
    if remaining is not None:
        value = _remaining(fields, limit)
        if value != remaining:
            owner = "" if limit is None else f" of {limit}"
            missing = f"no such number in a response of status {response.status_code}"
            _fail(
                f"{remaining} remaining{owner}", missing if value is None else str(value), response
            )


def _fail(expected: str, actual: str, response: Response) -> None:
    __tracebackhide__ = True
    shown = [
        f"  {name}: {value}"
        for name, value in response.headers.items()
        if "ratelimit" in name.lower() or name.lower() in ("retry-after", "content-type")
    ]
    raise AssertionError(
        "\n".join([f"expected {expected}, found {actual}; header fields:", *shown])
    )


def _fields(response: Response) -> dict[str, str]:
    """Return the header fields by lower-case name; repeated fields are joined."""
    if not hasattr(response, "status_code") or not hasattr(response, "headers"):
        raise TypeError(f"a response must have status_code and headers, found {response!r}")
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
    """Return the limits that refused, or otherwise all limits named in the header fields."""
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
    """Return the remaining tokens from the header fields, in any style."""
    by_limit: dict[str, int] = {}
    for item in _ITEM.finditer(fields.get("ratelimit", "")):
        number = re.search(r";r=(\d+)", item[2])
        if number:
            by_limit[_unescaped(item[1])] = int(number[1])
    if by_limit:
        return min(by_limit.values()) if limit is None else by_limit.get(limit)
    single = re.search(r"remaining=(\d+)", fields.get("ratelimit", ""))
    values = (
        fields.get("ratelimit-remaining") or fields.get("x-ratelimit-remaining") or "",
        "" if single is None else single[1],
    )
    # A field with a single value describes one limit without naming it.
    return next((int(text) for text in values if text.isdecimal()), None)
