"""The limits of an application, the same for every framework, and the options of entry points.

A guard compiles the rules of routes, which the `Visit` of each request enters. If the store fails,
`on_store_error` applies: `allow` (serve, without headers), `deny` (503), `local` (this process
decides, at its share of the limit) or `raise` (`StoreError` reaches the framework).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from penstock._core import IPV6_PREFIX, Limit, Limiter, Limits, ManualClock, SystemClock
from penstock._validation import (
    check_flag,
    check_names,
    is_coroutine_function,
    is_name,
    report_finding,
    takes,
)
from penstock._web.address import ClientAddress, ForwardedHeader
from penstock._web.compile import ClientIds, Compiler
from penstock._web.decide import RouteLimits
from penstock._web.events import Observers
from penstock._web.fallback import StoreAccess
from penstock._web.headers import Writer, compile_style
from penstock._web.identity import IdSource, OnMissing, ReadyId, by_address
from penstock._web.outcome import Outcome, ResponseSettings
from penstock._web.replacements import switch
from penstock._web.rule import LIMIT_HINTS, LimitOptions
from penstock._web.setup_checks import SetupChecks, Watch
from penstock.errors import ConfigError, ConfigProblem
from penstock.messages import Translations, make_translator

if TYPE_CHECKING:
    import enum

    from penstock._core import Decision
    from penstock._web.request import Request
    from penstock._web.rule import Rule
    from penstock.types import Id, StorePolicy


_OK: Final = 200


class Guard:
    """The limits of an application, and how they are applied to requests.

    Args:
        limiter: A limiter, instead of `limits`, `overrides`, `names`, `store` and `clock`.
        limits: A limits file, a mapping of names to limits, or `Limits`. Without it, routes can
            only use rate strings such as `"30/minute"`.
        overrides: An overrides file, together with a limits file.
        names: An `IntEnum` that numbers the limits, together with a limits file.
        store: The URL of the store. The default is `memory://`.
        clock: The clock of the limiter.
        headers: The header style or styles; `None` for no rate-limit headers.
        enabled: Whether limits are applied. They are checked at startup in any case.
        trusted_proxies: See `ClientAddress`, also for `hops`, `ipv6_prefix` and
            `forwarded_header`.
        on_missing_id: `"refuse"` (400), or a bucket that requests without a client id share, such
            as `everyone` or `shared("unknown")`.
        on_store_error: What to do if the store fails, for all limits or by limit name.
        expected_processes: How many processes share the limits, for `on_store_error="local"`.
        on_denied: Returns the response of a refusal from its outcome, or `None` for the usual one.
        on_decision: Called with each decision and the framework's request; it must not wait.
        near_limit: The used share of a quota from which decisions are counted, such as 0.8; see
            `incidents`.
        spread: Random extra wait of refused clients, as a share: 0.03 is up to 3 %.
        expose_headers: Whether scripts of other origins may read the headers (CORS).
        override_defaults: Whether default limits do not apply to routes with limits of their own;
            a limit can say otherwise for its route.
        translations: Translations of refusals: an object with `gettext` and `ngettext`, such as the
            module `django.utils.translation`.

    Raises:
        ConfigError: An option is invalid, or a file does not load; the message says what to write
            instead.

    Examples:
        >>> from penstock.adapter import EnvironRequest, Guard, admit, make_rule
        >>> guard = Guard(limits={"PerAddress": "1/minute"}, clock=penstock.ManualClock())
        >>> orders = guard.route_limits([make_rule(["PerAddress"], "orders", {})])
        >>> request = EnvironRequest({"REMOTE_ADDR": "203.0.113.7"})
        >>> admit(orders, request).refusal is None
        True
        >>> refused = admit(orders, request)
        >>> refused.refusal, refused.status, refused.retry_after
        ('denied', 429, 60)
    """

    # An attribute that is misspelled is an error.
    __slots__ = (
        "__weakref__",
        "_compiler",
        "_ids",
        "_is_status_reported",
        "_observers",
        "_settings",
        "_watch",
        "address",
        "enabled",
        "field_names",
        "limiter",
        "loaded_names",
        "on_denied",
        "override_defaults",
        "store_access",
    )

    def __init__(
        self,
        limiter: Limiter | None = None,
        *,
        limits: LimitsOption | None = None,
        overrides: str | os.PathLike[str] | None = None,
        names: type[enum.IntEnum] | None = None,
        store: str | None = None,
        clock: SystemClock | ManualClock | None = None,
        headers: str | Sequence[str] | None = "ietf",
        enabled: bool = True,
        trusted_proxies: str | Sequence[str] = (),
        hops: int = 0,
        ipv6_prefix: int = IPV6_PREFIX,
        forwarded_header: ForwardedHeader = "auto",
        on_missing_id: OnMissing = "refuse",
        on_store_error: StorePolicy | Mapping[str, StorePolicy] = "allow",
        expected_processes: int = 1,
        on_denied: Callable[[Outcome], Any] | None = None,
        on_decision: Callable[[Decision, Any], object] | None = None,
        near_limit: float | None = None,
        spread: float = 0.0,
        expose_headers: bool = False,
        override_defaults: bool = False,
        translations: Translations | None = None,
    ) -> None:
        limiter = make_limiter(
            limiter, limits=limits, overrides=overrides, names=names, store=store, clock=clock
        )
        check_flag("enabled", enabled)
        check_flag("expose_headers", expose_headers)
        check_flag("override_defaults", override_defaults)
        if on_denied is not None and not takes(on_denied, 1):
            raise ConfigError(f"on_denied must be a function of the outcome, found {on_denied!r}")
        self.override_defaults: Final = override_defaults
        writer = Writer(()) if headers is None else compile_style(headers)
        exposed = ", ".join((*writer.names, "Retry-After")) if expose_headers else None
        self.limiter: Final = limiter
        self.loaded_names: Final = tuple(limiter.limits)
        self.enabled = enabled
        self.on_denied: Final = on_denied
        self._is_status_reported = False
        self.address: Final = ClientAddress(
            trusted_proxies=trusted_proxies,
            hops=hops,
            ipv6_prefix=ipv6_prefix,
            forwarded_header=forwarded_header,
        )
        self.store_access: Final = StoreAccess(limiter, expected_processes)
        self.field_names: Final = writer.names
        observers = Observers(limiter.clock, on_decision, near_limit)
        settings = ResponseSettings(
            writer,
            exposed,
            spread,
            make_translator(translations),
            self.store_access,
            observers.is_observed,
        )
        self._ids: Final = ClientIds(limiter, self.address, on_missing_id)
        checks = SetupChecks(
            limiter,
            self.address,
            self._ids.shared_id,
            reads_headers=bool(trusted_proxies or hops),
            expected_processes=expected_processes,
        )
        watch = Watch(checks, self.store_access)
        self._settings: Final = settings
        self._observers: Final = observers
        self._watch: Final = watch
        self._compiler: Final = Compiler(self.store_access, self._ids, on_store_error)
        switch.register(self)

    def check(self, rules: Iterable[Rule], *, may_hold: bool = True) -> None:
        """Check rules at startup, so that they do not fail at the first request.

        Args:
            rules: The rules.
            may_hold: Whether they may be on requests in flight, because each ends with a response.

        Raises:
            ConfigError: No limit has a name, ids do not fit a limit, a cost exceeds its burst,
                rules of one limit have different `block_for`, or a limit may not hold slots.
            LimitError: A rate string is malformed.
        """
        self._compiler.check(rules, may_hold=may_hold)

    def route_limits(self, rules: Sequence[Rule]) -> RouteLimits:
        """Compile rules, which are then decided together.

        A rate string becomes a limit of the limiter, named after the view of its rule; further ones
        get the suffixes `-2`, `-3`.

        Raises:
            ConfigError: As `check`.
            LimitError: As `check`.
        """
        compiled = self._compiler.compile(rules)
        return RouteLimits(self._settings, self._watch, self._observers.report, compiled)

    def end_start(self) -> None:
        """Name the limits of further views in full, and reuse the limit of an equal rate there.

        Adapters call it once all routes have been named. Processes find the views that follow in
        different orders, and a view can decorate a function again for each request.
        """
        self._compiler.names.end_start()

    def denied(
        self, request: Request, decision: Decision, earlier: Outcome | None = None
    ) -> Outcome:
        """Return the outcome of a request that was denied by a limit that the view checked.

        Args:
            request: The request.
            decision: The decision of the error that `raise_if_denied` raised.
            earlier: The earlier outcome of the same request.
        """
        outcome = Outcome(self._settings, request, decision, (), decision.parts)
        self._observers.report_refusal(outcome.refuse("denied"))
        return outcome.merge_earlier(earlier)

    def client_id(self, request: Request, name: str, id: IdSource = by_address) -> Id:
        """Return the id of a request's client under a limit, as a route with this limit has it.

        Args:
            request: The request.
            name: The name of a loaded limit.
            id: As in a limit on a route.

        Raises:
            UnknownLimit: No limit has this name.
            MissingId: The request has no id, or a malformed one.

        Examples:
            >>> from penstock.adapter import EnvironRequest, Guard
            >>> guard = Guard(limits={"PerAddress": "1/minute"}, trusted_proxies="10.0.0.0/8")
            >>> environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "203.0.113.7"}
            >>> guard.client_id(EnvironRequest(environ), "PerAddress")
            '203.0.113.7'
        """
        return self._ids.finder(id, self.limiter.limit(name))(request)

    def custom_response(self, outcome: Outcome) -> Any:
        """Return what `on_denied` makes of a refusal; `None` for the usual response."""
        if self.on_denied is None:
            return None
        answer = self.on_denied(outcome)
        if getattr(answer, "status_code", None) == _OK and not self._is_status_reported:
            self._is_status_reported = True
            report_finding(
                "P008",
                "on_denied answers with status 200, so clients take a refused request for served",
                "create the response with outcome.status",
            )
        return answer

    def incidents(self) -> dict[str, dict[str, int]]:
        """Return what the limiter does not count, by kind and limit name.

        `"degraded"`: decisions made by a policy because the store failed. `"bad_requests"`:
        requests refused with status 400. `"near_limit"`: decisions that used at least the share
        `near_limit` of a quota.
        """
        store = self.store_access
        return {
            "degraded": store.degraded.read(),
            "bad_requests": store.bad_requests.read(),
            "near_limit": self._observers.near.read(),
        }


LimitsOption = Limits | Mapping[str, Limit | str] | str | os.PathLike[str]

_DEFAULTS: Final = (
    "use the adapter's default limits: limits.default('100/minute') in Flask, DEFAULT in Django's "
    "settings, FastAPI(dependencies=[Depends(RateLimit('100/minute'))])"
)
_SHARED_DEFAULTS: Final = (
    "use a default limit that all routes share: limits.default('100/minute') in Flask, "
    "FastAPI(dependencies=[Depends(RateLimit('100/minute', scope='all'))])"
)
_STORE: Final = "use store, such as store='redis://localhost:6379'"
# Keywords of similar packages, and what to write here.
GUARD_HINTS: Final = {
    **{
        name: f"it is an option of each limit, such as limit('PerAddress', {name}=...)"
        for name in LimitOptions.__optional_keys__
    },
    "application_limits": _SHARED_DEFAULTS,
    "auto_check": "limits are always checked; enabled=False turns them off",
    "cache": "use store; a cache is not a store",
    "config_filename": "pass the options here, or as settings of the application",
    "default": _DEFAULTS,
    "default_limits": _DEFAULTS,
    "default_limits_cost": "use cost on the default limits",
    "default_limits_deduct_when": "use deduct_when on the default limits",
    "default_limits_exempt_when": "use exempt_when on the default limits",
    "default_limits_per_method": "use one default limit for each method, with methods=['GET']",
    "fail_on_first_breach": "limits of a route are decided together, all or nothing",
    "header_name_mapping": "use headers, such as headers='github'",
    "headers_enabled": "headers are on by default; headers=None turns them off",
    "in_memory_fallback": "use on_store_error='local'",
    "in_memory_fallback_enabled": "use on_store_error='local'",
    "key_func": "use id on each limit, such as limit('PerUser', id=by_user)",
    "key_prefix": "use the prefix of the store's URL, such as store='redis://host?prefix=shop'",
    "meta_limits": "use block_for or count_denied on a limit",
    "num_proxies": "use hops",
    "on_breach": "use on_denied",
    "redis": _STORE,
    "redis_url": _STORE,
    "request_identifier": "use id=per_route() on a limit",
    "retry_after": "Retry-After is in seconds",
    "storage_options": "use the parameters of the store's URL",
    "storage_uri": _STORE,
    "strategy": "the limits file chooses the algorithm of each limit",
    "swallow_errors": "use on_store_error='allow', which is the default",
    "url": _STORE,
}


class GuardOptions(TypedDict, total=False):
    """Keywords of a guard, which every entry point takes; see `Guard`."""

    limits: LimitsOption | None
    overrides: str | os.PathLike[str] | None
    names: type[enum.IntEnum] | None
    store: str | None
    clock: SystemClock | ManualClock | None
    headers: str | Sequence[str] | None
    enabled: bool
    trusted_proxies: str | Sequence[str]
    hops: int
    ipv6_prefix: int
    forwarded_header: ForwardedHeader
    on_missing_id: OnMissing
    on_store_error: StorePolicy | Mapping[str, StorePolicy]
    expected_processes: int
    on_denied: Callable[[Outcome], Any] | None
    on_decision: Callable[[Decision, Any], object] | None
    near_limit: float | None
    spread: float
    expose_headers: bool
    override_defaults: bool
    translations: Translations | None


def check_options(options: Iterable[str], entry_point: str) -> None:
    """Check the names of a guard's keywords.

    Raises:
        ConfigError: A name is unknown.
    """
    check_names(options, GuardOptions.__optional_keys__, entry_point, GUARD_HINTS)


def split_options(
    options: Mapping[str, Any], entry_point: str
) -> tuple[GuardOptions, dict[str, Any]]:
    """Split the keywords of an entry point into those of its guard and those of its limit.

    Raises:
        ConfigError: An option is unknown.
    """
    guard_keys = GuardOptions.__optional_keys__
    known = guard_keys | LimitOptions.__optional_keys__
    check_names(options, known, entry_point, {**GUARD_HINTS, **LIMIT_HINTS})
    of_guard = {name: value for name, value in options.items() if name in guard_keys}
    of_limit = {name: value for name, value in options.items() if name not in guard_keys}
    return cast("GuardOptions", of_guard), of_limit


def split_limit(
    limit: str | Limit | Sequence[str | Limit] | Callable[..., Any] | None,
    options: Mapping[str, Any],
) -> tuple[tuple[str | Limit, ...], dict[str, Any]]:
    """Return the `limit` of a middleware as the limits and options of a rule."""
    if limit is None:
        return (), dict(options)
    if callable(limit):
        return (), {**options, "limit": limit}
    return tuple(limit) if isinstance(limit, list | tuple) else (cast("str", limit),), dict(options)


def check_on_denied(on_denied: object, option: str = "on_denied") -> None:
    """Check that a synchronous adapter can call `on_denied`.

    Raises:
        ConfigError: It is a coroutine function.
    """
    if is_coroutine_function(on_denied):
        raise ConfigError(f"{option} must be an ordinary function, found {on_denied!r}")


def check_routeless(rule: Rule, instead: str) -> None:
    """Check that a rule can be applied where the route of a request is not known.

    Raises:
        ConfigError: Its id needs the route; the message recommends `instead`.
    """
    if isinstance(rule.id, ReadyId) and rule.id.needs_route:
        raise ConfigError(f"{rule.id!r} needs the route, which is not known here; {instead}")


LIMITER_OPTIONS: Final = ("limits", "overrides", "names", "store", "clock")
"""Options that describe a limiter, in place of a ready one."""


def make_limiter(
    limiter: object,
    *,
    limits: LimitsOption | None,
    overrides: str | os.PathLike[str] | None,
    names: type[enum.IntEnum] | None,
    store: str | None,
    clock: SystemClock | ManualClock | None,
) -> Limiter:
    """Return a ready limiter, or the one that options describe.

    Raises:
        ConfigError: Both are given, an option is wrong, or a file does not load.
    """
    if limiter is not None:
        if any(option is not None for option in (limits, overrides, names, store, clock)):
            raise ConfigError(
                "pass limiter, or limits, overrides, names, store and clock; found both"
            )
        if not isinstance(limiter, Limiter):
            hint = "limits, or their file, are the option limits="
            if isinstance(getattr(limiter, "limiter", None), Limiter):
                hint = "pass its attribute limiter"
            raise ConfigError(f"limiter must be a penstock.Limiter, found {limiter!r}; {hint}")
        return limiter
    if store is not None and not is_name(store):
        raise ConfigError(f"store must be a URL such as 'memory://', found {store!r}")
    try:
        loaded = _load(limits, overrides, names)
        return Limiter(loaded, store=store or "memory://", clock=clock)
    except TypeError as error:
        # A value of the wrong type; the message of the core says which.
        raise ConfigError(str(error)) from error


def _load(
    limits: LimitsOption | None,
    overrides: str | os.PathLike[str] | None,
    names: type[enum.IntEnum] | None,
) -> Limits:
    if isinstance(limits, str | os.PathLike):
        try:
            return Limits.load(limits, overrides, names)
        except ConfigError as error:
            if Path(limits).exists() or error.file is None:
                raise
            raise _no_file(limits) from error
    if overrides is not None or names is not None:
        raise ConfigError(
            f"overrides and names need a limits file, found {limits!r}; "
            f"use Limits.load(limits, overrides, names)"
        )
    if limits is None:
        return Limits()
    return limits if isinstance(limits, Limits) else Limits(limits)


def _no_file(limits: str | os.PathLike[str]) -> ConfigError:
    text = os.fspath(limits).replace(os.sep, "/")
    hint = f"; for a rate string, write {{'PerAddress': {text!r}}}" if text[:1].isdigit() else ""
    error = ConfigError(f"limits: there is no file {Path(limits).absolute()}{hint}")
    error.file, error.problems = str(limits), (ConfigProblem(error),)
    return error


def find_file(path: str | os.PathLike[str], base: str | os.PathLike[str] | None) -> Path:
    """Return the path of a file, looked for in `base` first, then in the working directory."""
    in_base = None if base is None else Path(base) / path
    return in_base if in_base is not None and in_base.exists() else Path(path)
