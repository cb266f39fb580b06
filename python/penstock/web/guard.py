"""Enforcement of limits, the same for every framework.

An adapter passes a request to a `RouteLimits` and writes its `Outcome` into the response. If the
store fails, `on_store_error` applies: `allow` (serve, without headers), `deny` (503), `local` (this
process decides, at its share of the limit) or `raise` (`StoreError` reaches the framework).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypedDict

from penstock._core import IPV6_PREFIX, BoundLimit, Limit, Limiter, Limits, ManualClock, SystemClock
from penstock.errors import ConfigError, InvalidId, LimitError
from penstock.locks import fork_safe
from penstock.messages import Translations, describe_limit, make_translator
from penstock.types import Id, StorePolicy
from penstock.validation import (
    check_flag,
    check_names,
    did_you_mean,
    is_coroutine_function,
    is_name,
    is_number,
    is_whole,
    takes,
)
from penstock.web.address import ClientAddress, ForwardedHeader
from penstock.web.enforce import Enforcer
from penstock.web.fallback import StoreAccess
from penstock.web.headers import Writer, compile_style
from penstock.web.identity import (
    ByAddress,
    IdSource,
    OptionalId,
    ReadyId,
    by_address,
    compile_id,
)
from penstock.web.limit_names import scope_name
from penstock.web.observers import Observers
from penstock.web.outcome import Outcome, ResponseSettings
from penstock.web.penalty import Penalty, buckets_of_blocks, define_blocks
from penstock.web.per_request import PerRequestLimit, tier_name, tiers_of
from penstock.web.request import MissingId
from penstock.web.route_limits import RouteLimits
from penstock.web.rule import CompiledLimit, Rule, check_policy
from penstock.web.setup_checks import SetupChecks, Watch, has_sibling_workers, report
from penstock.web.test_overrides import switch

if TYPE_CHECKING:
    import enum

    from penstock._core import Decision
    from penstock.web.request import Request

_log: Final = logging.getLogger("penstock")
_LimitsOption = Limits | Mapping[str, Limit | str] | str | os.PathLike[str]
_MAX_PROCESSES: Final = 100_000
# More than the routes of an application, each with its methods.
_MAX_COMPILED: Final = 2048

_DEFAULTS: Final = (
    "use the adapter's default limits: limits.default('100/minute') in Flask, DEFAULT in Django's "
    "settings, FastAPI(dependencies=[Depends(RateLimit('100/minute'))])"
)
# Keywords of similar packages, and what to write here.
GUARD_HINTS: Final = {
    "application_limits": "use the adapter's default limits with id='everyone'",
    "auto_check": "limits are always checked; enabled=False turns them off",
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
    "on_breach": "use on_denied",
    "request_identifier": "use id=per_route() on a limit",
    "retry_after": "Retry-After is in seconds",
    "storage_options": "use the parameters of the store's URL",
    "storage_uri": "use store",
    "strategy": "the limits file chooses the algorithm of each limit",
    "swallow_errors": "use on_store_error='allow', which is the default",
}


class GuardOptions(TypedDict, total=False):
    """Keywords of a guard, which every entry point takes; see `Guard`."""

    limits: _LimitsOption | None
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
    on_missing_id: str
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


class Guard:
    """The limits of an application, and how they are applied to requests.

    Args:
        limiter: A limiter, instead of `limits`, `overrides`, `names`, `store` and `clock`.
        limits: A limits file, a mapping of names to limits, or `Limits`. Without it, routes can
            only use texts such as `"30/minute"`.
        overrides: An overrides file, together with a limits file.
        names: An `IntEnum` that numbers the limits, together with a limits file.
        store: The URL of the store. The default is `memory://`.
        clock: The clock of the limiter.
        headers: The header style or styles; `None` for no rate-limit headers.
        enabled: Whether limits are applied. They are checked at startup in any case.
        trusted_proxies: See `ClientAddress`, also for `hops`, `ipv6_prefix` and
            `forwarded_header`.
        on_missing_id: `"refuse"` (400), or the name of a bucket that requests without a client id
            share.
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
        >>> from penstock.guard import EnvironRequest, Guard, make_rule
        >>> guard = Guard(limits={"PerAddress": "1/minute"}, clock=penstock.ManualClock())
        >>> orders = guard.route_limits([make_rule(["PerAddress"], "orders", {})])
        >>> request = EnvironRequest({"REMOTE_ADDR": "203.0.113.7"})
        >>> orders.admit(request).refusal is None
        True
        >>> refused = orders.admit(request)
        >>> refused.refusal, refused.status, refused.retry_after
        ('denied', 429, 60)
    """

    def __init__(
        self,
        limiter: Limiter | None = None,
        *,
        limits: _LimitsOption | None = None,
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
        on_missing_id: str = "refuse",
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
        if limiter is None:
            limiter = _make_limiter(limits, overrides, names, store, clock)
        elif any(given is not None for given in (limits, overrides, names, store, clock)):
            raise ConfigError(
                "pass limiter, or limits, overrides, names, store and clock; found both"
            )
        elif not _is_limiter(limiter):
            raise ConfigError(f"limiter must be a penstock.Limiter, found {limiter!r}")
        if on_denied is not None and not takes(on_denied, 1):
            raise ConfigError(f"on_denied must be a function of the outcome, found {on_denied!r}")
        if on_decision is not None and (
            is_coroutine_function(on_decision) or not takes(on_decision, 2)
        ):
            raise ConfigError(
                f"on_decision must be a function of the decision and the request, "
                f"found {on_decision!r}"
            )
        if near_limit is not None and not is_number(near_limit, 0, 1):
            raise ConfigError(f"near_limit must be from 0 to 1, found {near_limit!r}; 0.8 is 80 %")
        check_flag("enabled", enabled)
        check_flag("expose_headers", expose_headers)
        check_flag("override_defaults", override_defaults)
        self.override_defaults: Final = override_defaults
        if not is_number(spread, 0, 1):
            raise ConfigError(f"spread must be from 0 to 1, found {spread!r}; 0.03 is 3 %")
        if not is_whole(expected_processes, 1, _MAX_PROCESSES):
            raise ConfigError(f"expected_processes must be 1 or more, found {expected_processes!r}")
        if not is_name(on_missing_id):
            raise ConfigError(
                f"on_missing_id must be 'refuse' or the name of a bucket, found {on_missing_id!r}"
            )
        writer = Writer(()) if headers is None else compile_style(headers)
        exposed = ", ".join((*writer.names, "Retry-After")) if expose_headers else None
        self.limiter: Final = limiter
        self.loaded_names: Final = tuple(limiter.limits)
        self.enabled = enabled
        switch.register(self)
        self.on_denied: Final = on_denied
        self.address: Final = ClientAddress(
            trusted_proxies=trusted_proxies,
            hops=hops,
            ipv6_prefix=ipv6_prefix,
            forwarded_header=forwarded_header,
        )
        self.store_access: Final = StoreAccess(limiter, expected_processes)
        self.field_names: Final = writer.names
        self._settings: Final = ResponseSettings(
            writer,
            exposed,
            spread,
            make_translator(translations),
            self.store_access,
        )
        self._observers: Final = Observers(limiter.clock, on_decision, near_limit)
        checks = SetupChecks(
            reads_headers=bool(trusted_proxies or hops), check_processes=self._check_processes
        )
        watch = Watch(checks, self.store_access)
        self._enforcer: Final = Enforcer(self._settings, self._observers, watch)
        self._missing_id_bucket: Final = None if on_missing_id == "refuse" else on_missing_id
        self._policies: Final = _policies(on_store_error, limiter.limits)
        self._lock: Final = fork_safe(Lock())
        self._bound: Final[dict[Rule, tuple[BoundLimit, ...]]] = {}
        self._choices: Final[dict[Rule, tuple[PerRequestLimit, ...]]] = {}
        self._defined_names: Final[set[str]] = set()
        self._shared_blocks: Final[dict[tuple[str, Limit], tuple[Limit, ...]]] = {}
        self._is_started = False
        # With expected_processes set, the operator knows that counts are per process.
        self._may_be_multiprocess = expected_processes == 1 and not limiter.is_shared

    def check(self, rules: Iterable[Rule]) -> None:
        """Check rules at startup, so that they do not fail at the first request.

        Raises:
            ConfigError: No limit has a name, ids do not fit a limit, a cost exceeds its burst, or
            rules of one limit have different `block_for`.
            LimitError: A text is not a limit.
        """
        for rule in rules:
            self._id_of(rule.id)
            for given in self._limits_of(rule):
                limit = self._resolve(given)
                if isinstance(limit, Limit):
                    _check_numbers(rule, given, limit)
                    self._check_shared_blocks(rule, limit)
                    continue
                self._is_ipv6_only(rule, limit)
                default = self.limiter.limits.default(limit)
                if default is not None:
                    _check_numbers(rule, limit, default)
                if rule.blocks:
                    define_blocks(self.limiter, limit, rule.blocks)

    def _check_shared_blocks(self, rule: Rule, limit: Limit) -> None:
        """Check that rules which share a rate have the same `block_for`.

        Raises:
            ConfigError: They do not.
        """
        if rule.is_shared and rule.blocks:
            before = self._shared_blocks.setdefault((rule.scope, limit), rule.blocks)
            if before != rule.blocks:
                raise ConfigError(
                    f"{rule.scope}: all limits of this scope must have the same block_for"
                )

    def route_limits(self, rules: Sequence[Rule]) -> RouteLimits:
        """Compile rules, which are then decided together.

        A text becomes a limit of the limiter, named after the view of its rule; further ones get
        the suffixes `-2`, `-3`.

        Raises:
            ConfigError: As `check`.
            LimitError: As `check`.
        """
        self.check(rules)
        compiled: list[CompiledLimit | PerRequestLimit] = []
        for rule in rules:
            if rule.choose is not None:
                compiled += self._choices_of(rule)
            else:
                compiled += [self._compile(rule, bound) for bound in self._bound_to(rule)]
        return RouteLimits(self._enforcer, compiled)

    def end_start(self) -> None:
        """Name the limits of further views in full, and reuse the limit of an equal rate there.

        Adapters call it once all routes have been named. Processes find the views that follow in
        different orders, and a view can decorate a function again for each request.
        """
        self._is_started = True

    def denied(
        self, request: Request, decision: Decision, earlier: Outcome | None = None
    ) -> Outcome:
        """Return the outcome of a request that was denied by a limit which its view called itself.

        Args:
            request: The request.
            decision: The decision of the error that `raise_if_denied` raised.
            earlier: The earlier outcome of the same request.
        """
        outcome = Outcome(self._settings, request, decision, (), decision.parts)
        self._observers.refused(outcome.refuse("denied"))
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
            >>> from penstock.guard import EnvironRequest, Guard
            >>> guard = Guard(limits={"PerAddress": "1/minute"}, trusted_proxies="10.0.0.0/8")
            >>> environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "203.0.113.7"}
            >>> guard.client_id(EnvironRequest(environ), "PerAddress")
            '203.0.113.7'
        """
        return self._id_of(id, self.limiter.limit(name))(request)

    def custom_response(self, outcome: Outcome) -> Any:
        """Return what `on_denied` makes of a refusal; `None` for the usual response."""
        return None if self.on_denied is None else self.on_denied(outcome)

    def warn_if_multiprocess(self, environ: Mapping[str, Any]) -> None:
        """Warn, once, if the server has several processes and each counts for itself.

        Args:
            environ: A request of the server (PEP 3333).
        """
        if self._may_be_multiprocess and environ.get("wsgi.multiprocess"):
            self._may_be_multiprocess = False
            report(
                "P003",
                f"{self.limiter.store} counts per process, and this server runs several, so a "
                f"client can get a multiple of each limit",
                "use store='shm://NAME', which all processes of a machine share, or acknowledge it "
                "with expected_processes=N",
            )

    def _check_processes(self, request: Request) -> None:
        if self._may_be_multiprocess:
            known = getattr(request, "is_multiprocess", None)
            is_multiprocess = has_sibling_workers() if known is None else known
            self.warn_if_multiprocess({"wsgi.multiprocess": is_multiprocess})

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

    def _limits_of(self, rule: Rule) -> Iterator[str | Limit]:
        """Yield the limits of a rule, with those of its tiers."""
        if rule.tiers is not None:
            yield from (limit for limit in rule.tiers.values() if limit is not None)
        elif rule.choose is None:
            yield from rule.limits
        else:
            for base in rule.limits:
                tiers = tiers_of(self.limiter.limits, str(base))
                if not tiers:
                    raise ConfigError(
                        f"{base} has no tiers; in the limits file write "
                        f"{base}: {{tiers: {{free: 100/hour, pro: 900/hour}}}}"
                    )
                yield from (tier_name(str(base), tier) for tier in tiers)

    def _compile(self, rule: Rule, bound: BoundLimit, base: str | None = None) -> CompiledLimit:
        default = self._policies.get(base or "", self._policies[""])
        return CompiledLimit(
            rule,
            bound,
            self._id_of(rule.id, bound),
            rule.on_store_error or self._policies.get(bound.name, default),
            ids_of_peers=self.address.known_ipv4 if isinstance(rule.id, ByAddress) else None,
            is_ipv6_only=self._is_ipv6_only(rule, bound.name),
            factor=None if callable(rule.factor) else rule.factor,
            penalty=Penalty(self.limiter, bound.name, rule.blocks, count_denied=rule.count_denied)
            if rule.count_denied or rule.blocks
            else None,
        )

    def _choices_of(self, rule: Rule) -> tuple[PerRequestLimit, ...]:
        with self._lock:
            choices = self._choices.get(rule)
            if choices is None:
                make_room(self._choices)
                bases = tuple(map(str, rule.limits)) or (None,)
                choices = self._choices[rule] = tuple(
                    PerRequestLimit(
                        rule,
                        self._name_of(rule),
                        base,
                        self._compiler(rule, base),
                        self.limiter,
                    )
                    for base in bases
                )
            return choices

    def _compiler(
        self, rule: Rule, base: str | None
    ) -> Callable[[str | Limit, str | None], CompiledLimit]:
        def compile_given(given: str | Limit, name: str | None) -> CompiledLimit:
            limit = self._resolve(given)
            if isinstance(limit, str):
                bound = self.limiter.limit(limit)
            else:
                # Named by its numbers: processes see requests in different orders.
                name = name or f"{self._name_of(rule)} {describe_limit(limit)}"
                if self.limiter.limits.get(name) == limit:
                    bound = self.limiter.limit(name)
                else:
                    bound = self.limiter.define(name, limit)
                _check_numbers(rule, given, limit)
            return self._compile(rule, bound, base)

        return compile_given

    def _id_of(self, source: IdSource, bound: BoundLimit | None = None) -> Callable[[Request], Id]:
        find: Callable[[Request], Id]
        if isinstance(source, ByAddress) and bound is not None:
            find = self.address.limit_finder(bound, source.prefix)
        elif isinstance(source, OptionalId) and bound is not None:
            find = source.bind(self.address, is_text=self._has_text_ids(bound.name))
        else:
            find = compile_id(source, self.address)
        bucket = self._missing_id_bucket
        if bucket is None:
            return find

        def find_or_share(request: Request) -> Id:
            try:
                return find(request)
            except MissingId:
                return bucket

        return find_or_share

    def _has_text_ids(self, name: str) -> bool:
        with suppress(InvalidId):
            self.limiter.limits.resolve(name, "user:a text")
            return True
        return False

    def _bound_to(self, rule: Rule) -> tuple[BoundLimit, ...]:
        # Once for each rule, however many routes it is compiled for: a text is defined only once.
        with self._lock:
            bound = self._bound.get(rule)
            if bound is None:
                make_room(self._bound)
                bound = self._bound[rule] = tuple(self._bind(rule, limit) for limit in rule.limits)
            return bound

    def _bind(self, rule: Rule, given: str | Limit) -> BoundLimit:
        limit = self._resolve(given)
        return self.limiter.limit(limit) if isinstance(limit, str) else self._define(rule, limit)

    def _resolve(self, given: str | Limit) -> str | Limit:
        """Return the name of a loaded limit, or the limit of a text."""
        if isinstance(given, Limit):
            return given
        if self.store_access.has_limit(given):
            return given
        known = self.limiter.limits
        if given.strip()[:1].isdigit():
            return Limit.parse(given)
        raise ConfigError(
            f"no limit is named {given!r}; {did_you_mean(given, known)}; "
            f"a limit without a name is a text such as '30/minute'"
        )

    def _define(self, rule: Rule, limit: Limit) -> BoundLimit:
        """Define a limit under the name of its rule's scope, or with the first free number."""
        scope = self._name_of(rule)
        for number in count(1):
            name = scope if number == 1 else f"{scope}-{number}"
            known = self.limiter.limits
            if name not in known:
                if not known.keys().isdisjoint(buckets_of_blocks(name, rule.blocks)):
                    # The name of a block is taken, such as that of a view `login_blocked`.
                    continue
                self._defined_names.add(name)
                return self.limiter.define(name, limit)
            # Reused if the same application was created twice, each with a guard of one limiter.
            is_reused = rule.is_shared or self._is_started or name not in self._defined_names
            if is_reused and known.default(name) == limit:
                self._defined_names.add(name)
                return self.limiter.limit(name)
        raise AssertionError("count() is endless")

    def _name_of(self, rule: Rule) -> str:
        return scope_name(rule.scope, self.limiter, is_late=self._is_started)

    def _is_ipv6_only(self, rule: Rule, name: str) -> bool:
        """Check that the ids of a rule fit a limit, and return whether only IPv6 addresses do.

        Raises:
            ConfigError: They do not fit.
        """
        if isinstance(rule.id, ByAddress) and self._missing_id_bucket is None:
            with suppress(InvalidId):
                self.limiter.limits.resolve(name, rule.id.ipv4_sample)
                return False
            with suppress(InvalidId):
                self.limiter.limits.resolve(name, rule.id.ipv6_sample)
                return True
        typical = rule.id.sample() if isinstance(rule.id, ReadyId) else rule.id
        for sample in (typical, self._missing_id_bucket):
            try:
                if isinstance(sample, Id):
                    self.limiter.limits.resolve(name, sample)
            except InvalidId as error:
                raise ConfigError(
                    f"{name}: ids of {rule.id!r} such as {sample!r} do not fit: {error}"
                ) from error
        return False


def make_room(compiled: dict[Any, Any]) -> None:
    """Empty a cache of what was compiled for views before it grows beyond all applications.

    A view that decorates a function again for each request would fill it otherwise.
    """
    if len(compiled) >= _MAX_COMPILED:
        compiled.clear()


def _check_numbers(rule: Rule, given: str | Limit, limit: Limit) -> None:
    if rule.factor is not None:
        factor = 1 if callable(rule.factor) else rule.factor
        try:
            Limiter({"limit": limit}).check("limit", "id", 0, factor)
        except LimitError as error:
            raise ConfigError(f"{given}: {error}") from error
    if isinstance(rule.cost, int) and rule.cost > limit.max_cost:
        raise ConfigError(f"{given}: cost must be at most {limit.max_cost}, found {rule.cost}")


def _is_limiter(given: object) -> bool:
    return isinstance(given, Limiter)


def _make_limiter(
    limits: _LimitsOption | None,
    overrides: str | os.PathLike[str] | None,
    names: type[enum.IntEnum] | None,
    store: str | None,
    clock: SystemClock | ManualClock | None,
) -> Limiter:
    if store is not None and not is_name(store):
        raise ConfigError(f"store must be a URL such as 'memory://', found {store!r}")
    try:
        loaded = _load(limits, overrides, names)
        return Limiter(loaded, store=store or "memory://", clock=clock)
    except TypeError as error:
        # A value of the wrong type; the message of the core says which.
        raise ConfigError(str(error)) from error


def _load(
    limits: _LimitsOption | None,
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
    hint = f"; for a text, write {{'PerAddress': {text!r}}}" if text[:1].isdigit() else ""
    error = ConfigError(f"limits: there is no file {Path(limits).absolute()}{hint}")
    error.file, error.problems = str(limits), (str(error),)
    return error


def _policies(
    on_store_error: StorePolicy | Mapping[str, StorePolicy], known: Limits
) -> dict[str, StorePolicy]:
    """Return the policies by limit name; the one of all other limits has an empty name."""
    if isinstance(on_store_error, Mapping):
        policies: dict[str, StorePolicy] = {"": "allow", **on_store_error}
    else:
        policies = {"": on_store_error}
    for name in policies:
        if not (name in known or name in ("", "default")):
            raise ConfigError(
                f"on_store_error: no limit is named {name!r}; {did_you_mean(name, known)}; "
                f"for a text, pass on_store_error to the limit itself"
            )
    for policy in policies.values():
        check_policy(policy)
    return policies
