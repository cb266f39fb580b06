"""Enforcement, the same for every framework: which limits, whose, at what cost, and what then.

An adapter shows a request, asks a `RouteLimits`, and writes what the `Outcome` says. When the store
fails, the limit's `on_store_error` answers, never silence: `allow` (served, without headers of
limits), `deny` (503), `local` (this process decides, at its share of the limit) or `raise`
(`StoreError` goes to the framework).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypedDict
from weakref import WeakKeyDictionary

from penstock._core import BoundLimit, Limit, Limiter, Limits, ManualClock, SystemClock
from penstock.errors import ConfigError, InvalidId
from penstock.validation import (
    check_flag,
    did_you_mean,
    is_callable,
    is_name,
    is_number,
    is_whole,
    takes_one,
)
from penstock.web.address import ClientAddress, ForwardedHeader
from penstock.web.enforce import Enforcer
from penstock.web.headers import Writer, compile_style
from penstock.web.identity import ReadyId, compile_id
from penstock.web.messages import Translations, words_of
from penstock.web.outcome import Outcome, ResponseSettings
from penstock.web.request import Id, MissingId
from penstock.web.route_limits import RouteLimits
from penstock.web.rule import STORE_POLICIES, CompiledLimit, Rule, StorePolicy

if TYPE_CHECKING:
    import enum

    from penstock._core import Decision
    from penstock.web.request import Request

_log: Final = logging.getLogger("penstock")
_LimitsOption = Limits | Mapping[str, Limit | str] | str | os.PathLike[str]
_MOST_PROCESSES: Final = 100_000


class GuardOptions(TypedDict, total=False):
    """The keywords of a guard, and so of every entry point; see `Guard`."""

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
    spread: float
    expose_headers: bool
    translations: Translations | None


class Guard:
    """Limits in force for an application, and how they are applied.

    Args:
        limiter: A ready limiter, in place of `limits`, `overrides`, `names`, `store` and `clock`.
        limits: A limits file, a mapping of names to limits, or `Limits`; without it only texts
            serve.
        overrides: An overrides file, beside a limits file.
        names: The class of the limits' numbers, beside a limits file.
        store: The store's address; `memory://` unless said.
        clock: The clock that decides.
        headers: The header style or styles; `None` for no headers of limits at all.
        enabled: Whether limits are applied; they are checked at start even if not.
        trusted_proxies: As `ClientAddress`; so are `hops`, `ipv6_prefix` and `forwarded_header`.
        on_missing_id: `"refuse"` (400), or the name of a bucket for requests that do not say who
            asks.
        on_store_error: What to do when the store fails, for all limits or by limit name.
        expected_processes: How many processes share the limits, for `on_store_error="local"`.
        on_denied: Makes the refusal's response from the outcome, or gives `None` for the usual
            one.
        spread: How much random extra wait a refused client is told, as a share: 0.03 is up to 3 %.
        expose_headers: Whether scripts of other origins may read the headers (CORS).
        translations: What refusals are told in, in place of English: anything with `gettext` and
            `ngettext`, such as the module `django.utils.translation`; see `penstock.web.messages`.

    Raises:
        ConfigError: An option that cannot be, or a file that does not load; the message says what
            would do.

    Example:
        >>> from penstock.guard import Guard
        >>> from penstock.guard import EnvironRequest
        >>> from penstock.guard import make_rule
        >>> guard = Guard(limits={"PerAddress": "1/minute"}, clock=penstock.ManualClock())
        >>> plan = guard.route_limits([make_rule(["PerAddress"], "orders", {})])
        >>> request = EnvironRequest({"REMOTE_ADDR": "203.0.113.7"})
        >>> plan.admit(request).refusal is None
        True
        >>> refused = plan.admit(request)
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
        ipv6_prefix: int = 64,
        forwarded_header: ForwardedHeader = "auto",
        on_missing_id: str = "refuse",
        on_store_error: StorePolicy | Mapping[str, StorePolicy] = "allow",
        expected_processes: int = 1,
        on_denied: Callable[[Outcome], Any] | None = None,
        spread: float = 0.0,
        expose_headers: bool = False,
        translations: Translations | None = None,
    ) -> None:
        if limiter is None:
            limiter = _made(limits, overrides, names, store, clock)
        elif any(made is not None for made in (limits, overrides, names, store, clock)):
            raise ConfigError(
                "limiter, or what makes one (limits, overrides, names, store, clock); found both"
            )
        elif not _is_limiter(limiter):
            raise ConfigError(f"limiter must be a penstock.Limiter, found {limiter!r}")
        _check_on_denied(on_denied)
        check_flag("enabled", enabled)
        check_flag("expose_headers", expose_headers)
        if not is_number(spread, 0, 1):
            raise ConfigError(f"spread must be from 0 to 1, found {spread!r}; 0.03 is 3 %")
        if not is_whole(expected_processes, 1, _MOST_PROCESSES):
            raise ConfigError(f"expected_processes must be 1 or more, found {expected_processes!r}")
        if not is_name(on_missing_id):
            raise ConfigError(
                f"on_missing_id must be 'refuse' or the name of a bucket, found {on_missing_id!r}"
            )
        writer = Writer(()) if headers is None else compile_style(headers)
        exposed = ", ".join((*writer.names, "Retry-After")) if expose_headers else None
        self.limiter: Final = limiter
        self.enabled = enabled
        _switch.admit(self)
        self.on_denied: Final = on_denied
        self.address: Final = ClientAddress(
            trusted_proxies=trusted_proxies,
            hops=hops,
            ipv6_prefix=ipv6_prefix,
            forwarded_header=forwarded_header,
        )
        enforcer = Enforcer(limiter, expected_processes)
        self._settings: Final = ResponseSettings(
            writer, exposed, spread, enforcer, words_of(translations)
        )
        self._bucket_of_missing: Final = None if on_missing_id == "refuse" else on_missing_id
        self._policies: Final = _policies(on_store_error, limiter.limits)
        self._lock: Final = Lock()
        self._bound: Final[dict[Rule, tuple[BoundLimit, ...]]] = {}
        self._kept: Final[set[str]] = set()
        # Who has said how many processes there are knows that each counts for itself.
        self._counts_alone = expected_processes == 1 and limiter.store.startswith("memory:")

    def check(self, rules: Iterable[Rule]) -> None:
        """Find at start what would fail at the first request; nothing is kept by it.

        Raises:
            ConfigError: A name that no limit has, an id that cannot fit, a cost that no limit could
                allow.
            LimitError: A text that says no limit.
        """
        for rule in rules:
            self._id_of(rule)
            for given in rule.limits:
                limit = self._resolve(given)
                if isinstance(limit, Limit):
                    _check_cost(rule, given, limit)
                    continue
                self._check_ids(rule, limit)
                default = self.limiter.limits.default(limit)
                if default is not None:
                    _check_cost(rule, limit, default)

    def route_limits(self, rules: Sequence[Rule]) -> RouteLimits:
        """Make rules ready to be asked; together they are one decision.

        A text limit is kept beside the loaded limits under its rule's scope, `-2`, `-3` for further
        ones.

        Raises:
            ConfigError: As `check`.
            LimitError: As `check`.
        """
        self.check(rules)
        terms: list[CompiledLimit] = []
        for rule in rules:
            id_of = self._id_of(rule)
            for bound in self._bound_to(rule):
                policy = rule.on_store_error or self._policies.get(bound.name, self._policies[""])
                terms.append(CompiledLimit(rule, bound, id_of, policy))
        return RouteLimits(self._settings, terms)

    def denied(
        self, request: Request, decision: Decision, earlier: Outcome | None = None
    ) -> Outcome:
        """Give the answer about a request whose own code has asked a limit, and was denied.

        Args:
            request: The request.
            decision: What `raise_if_denied` has raised.
            earlier: What has been answered about the same request before.
        """
        outcome = Outcome(self._settings, request, decision, (), decision.parts)
        return outcome.refuse("denied").merge_earlier(earlier)

    def custom_response(self, outcome: Outcome) -> Any:
        """Return what `on_denied` makes of a refusal; `None` for the usual response."""
        return None if self.on_denied is None else self.on_denied(outcome)

    def warn_if_multiprocess(self, environ: Mapping[str, Any]) -> None:
        """Warn, once, of a server whose processes each count for themselves.

        Args:
            environ: A request of the server's, which says whether it has several (PEP 3333).
        """
        if self._counts_alone and environ.get("wsgi.multiprocess"):
            self._counts_alone = False
            _log.warning(
                "the server has several processes and %s is in this one alone: a client may get "
                "each limit as many times as there are processes. One process with threads counts "
                "exactly (gunicorn --workers 1 --threads 8); expected_processes, set to how many "
                "there are, says that this is known",
                self.limiter.store,
            )

    def incidents(self) -> dict[str, dict[str, int]]:
        """Return what the limiter does not count, by kind and limit name.

        `"degraded"`: decisions made by a policy because the store failed. `"bad_requests"`:
        requests refused with status 400.
        """
        enforcer = self._settings.enforcer
        return {"degraded": enforcer.degraded.read(), "bad_requests": enforcer.bad_requests.read()}

    def _id_of(self, rule: Rule) -> Callable[[Request], Id]:
        find = compile_id(rule.id, self.address.finder())
        bucket = self._bucket_of_missing
        if bucket is None:
            return find

        def find_or_share(request: Request) -> Id:
            try:
                return find(request)
            except MissingId:
                return bucket

        return find_or_share

    def _bound_to(self, rule: Rule) -> tuple[BoundLimit, ...]:
        # Once for each rule, however many plans it is part of: a text must not be kept twice.
        with self._lock:
            bound = self._bound.get(rule)
            if bound is None:
                bound = self._bound[rule] = tuple(self._bind(rule, limit) for limit in rule.limits)
            return bound

    def _bind(self, rule: Rule, given: str | Limit) -> BoundLimit:
        limit = self._resolve(given)
        return self.limiter.limit(limit) if isinstance(limit, str) else self._keep(rule, limit)

    def _resolve(self, given: str | Limit) -> str | Limit:
        """Give the name of a loaded limit, or the limit that a text says."""
        if isinstance(given, Limit):
            return given
        known = self.limiter.limits
        if given in known:
            return given
        if given.strip()[:1].isdigit():
            return Limit.parse(given)
        raise ConfigError(
            f"no limit is named {given!r}; {did_you_mean(given, known)}; "
            f"a limit without a name is a text such as '30/minute'"
        )

    def _keep(self, rule: Rule, limit: Limit) -> BoundLimit:
        """Define a limit under the first name of its scope that is free."""
        for number in count(1):
            name = rule.scope if number == 1 else f"{rule.scope}-{number}"
            known = self.limiter.limits
            if name not in known:
                self._kept.add(name)
                return self.limiter.define(name, limit)
            # It may be the same view under another guard of this limiter: one application made
            # twice.
            if known.default(name) == limit and (rule.is_shared or name not in self._kept):
                self._kept.add(name)
                return self.limiter.limit(name)
        raise AssertionError("counting does not end")

    def _check_ids(self, rule: Rule, name: str) -> None:
        samples = [
            rule.id.sample() if isinstance(rule.id, ReadyId) else None,
            self._bucket_of_missing,
        ]
        if isinstance(rule.id, Id):
            samples.append(rule.id)
        for sample in samples:
            try:
                if sample is not None:
                    self.limiter.limits.resolve(name, sample)
            except InvalidId as error:
                raise ConfigError(
                    f"{name}: {rule.id!r} gives ids such as {sample!r}, which do not fit: {error}"
                ) from error


class _Switch:
    """Whether all guards apply limits, whatever their options say.

    A guard's flag is set from here, so that a request reads an attribute and nothing more.
    """

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._forced: bool | None = None
        # What each guard's own flag says.
        self._own: Final[WeakKeyDictionary[Guard, bool]] = WeakKeyDictionary()

    def admit(self, guard: Guard) -> None:
        with self._lock:
            self._own[guard] = guard.enabled
            if self._forced is not None:
                guard.enabled = self._forced

    def force(self, enabled: bool | None) -> bool | None:
        with self._lock:
            before, self._forced = self._forced, enabled
            for guard in list(self._own):
                if before is None:
                    # It may have been switched by hand since.
                    self._own[guard] = guard.enabled
                guard.enabled = self._own[guard] if enabled is None else enabled
        return before


_switch: Final = _Switch()


def force_enabled(enabled: bool | None) -> bool | None:
    """Have all guards of the process apply limits, or none of them, those still to be made too.

    For test suites. `None` lets each guard go by its own flag again; what was in force before is
    given back.

    Example:
        >>> from penstock.guard import Guard, force_enabled
        >>> guard = Guard(clock=penstock.ManualClock())
        >>> before = force_enabled(False)
        >>> guard.enabled
        False
        >>> force_enabled(before)
        False
        >>> guard.enabled
        True
    """
    return _switch.force(enabled)


def _check_cost(rule: Rule, given: str | Limit, limit: Limit) -> None:
    if isinstance(rule.cost, int) and rule.cost > limit.max_cost:
        raise ConfigError(
            f"{given}: cost must be at most {limit.max_cost}, found {rule.cost}, "
            f"which could never be allowed"
        )


def _is_limiter(given: object) -> bool:
    return isinstance(given, Limiter)


def _check_on_denied(on_denied: Callable[[Outcome], Any] | None) -> None:
    if on_denied is None:
        return
    if not is_callable(on_denied):
        raise ConfigError(f"on_denied must be a callable, found {on_denied!r}")
    if not takes_one(on_denied):
        raise ConfigError(f"on_denied takes the outcome, found {on_denied!r}")


def _made(
    limits: _LimitsOption | None,
    overrides: str | os.PathLike[str] | None,
    names: type[enum.IntEnum] | None,
    store: str | None,
    clock: SystemClock | ManualClock | None,
) -> Limiter:
    if store is not None and not is_name(store):
        raise ConfigError(f"store must be an address such as 'memory://', found {store!r}")
    try:
        loaded = _loaded(limits, overrides, names)
        return Limiter(loaded, store=store or "memory://", clock=clock)
    except TypeError as error:
        # A value of another kind; the core says which, and what would do.
        raise ConfigError(str(error)) from error


def _loaded(
    limits: _LimitsOption | None,
    overrides: str | os.PathLike[str] | None,
    names: type[enum.IntEnum] | None,
) -> Limits:
    if isinstance(limits, str | os.PathLike):
        return Limits.load(limits, overrides, names)
    if overrides is not None or names is not None:
        raise ConfigError(
            f"overrides and names go with a limits file, found {limits!r}; "
            f"load them together: Limits.load(limits, overrides, names)"
        )
    if limits is None:
        return Limits()
    return limits if isinstance(limits, Limits) else Limits(limits)


def _policies(
    on_store_error: StorePolicy | Mapping[str, StorePolicy], known: Limits
) -> dict[str, StorePolicy]:
    """Give the policies by limit name, and under the empty name that of all others."""
    if isinstance(on_store_error, Mapping):
        policies: dict[str, StorePolicy] = {"": "allow", **on_store_error}
    else:
        policies = {"": on_store_error}
    for name in policies:
        # Texts are kept under the names of views, which nobody has told yet.
        if not (name in known or "." in name or name in ("", "default")):
            raise ConfigError(
                f"on_store_error: no limit is named {name!r}; {did_you_mean(name, known)}; "
                f"for a limit that is a text, say it beside the text"
            )
    for policy in policies.values():
        if policy not in STORE_POLICIES:
            raise ConfigError(
                f"on_store_error must be one of {', '.join(STORE_POLICIES)}, found {policy!r}"
            )
    return policies
