"""Compiles the rules of routes: checks them, and binds their limits to the limiter of a guard.

A limit that is written on a view without a name is named after it. Clients see the name in header
fields, so it is as short as it can be: that of the view, with its module only if another view has
the same. Every process registers its views in the same order, so all of them choose the same names.
A view that is found later has its full name, because processes serve requests in different orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from penstock._core import Limit, Limiter
from penstock._locks import fork_safe
from penstock._validation import did_you_mean, has_slots, report_finding, slots_error
from penstock._web.compiled_limit import CompiledLimit, PerRequestLimit, tier_name, tiers_of
from penstock._web.identity import (
    ByAddress,
    IdSource,
    OnMissing,
    OptionalId,
    ReadyId,
    SharedId,
    check_missing,
    compile_id,
)
from penstock._web.penalty import Penalty, buckets_of_blocks, define_blocks
from penstock._web.request import MissingId
from penstock._web.rule import Phase, check_policy
from penstock.errors import ConfigError, InvalidId, LimitError
from penstock.messages import describe_limit
from penstock.types import Id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock._core import BoundLimit, Limits
    from penstock._web.address import ClientAddress, PeerIds
    from penstock._web.fallback import StoreAccess
    from penstock._web.request import Request
    from penstock._web.rule import Rule
    from penstock.types import StorePolicy

# More than the routes of an application, each with its methods.
_MAX_COMPILED: Final = 2048

_lock: Final = fork_safe(Lock())
# For each limiter, the names of scopes.
_names: Final[WeakKeyDictionary[Limiter, dict[str, str]]] = WeakKeyDictionary()


class ClientIds:
    """The ids of the clients of a guard.

    Args:
        limiter: The limiter of the guard.
        address: Finds the client's address.
        on_missing_id: `"refuse"`, or the bucket that requests without an id share.

    Raises:
        ConfigError: `on_missing_id` is something else.

    Attributes:
        shared_id: The id of that bucket; `None` without one.
    """

    def __init__(self, limiter: Limiter, address: ClientAddress, on_missing_id: OnMissing) -> None:
        missing = check_missing("on_missing_id", on_missing_id, ("refuse",))
        self._limiter: Final = limiter
        self._address: Final = address
        self.shared_id: Final = missing.id if isinstance(missing, SharedId) else None

    def finder(self, source: IdSource, bound: BoundLimit | None = None) -> Callable[[Request], Id]:
        """Return the function that finds an id, under a limit if one is given.

        Raises:
            ConfigError: `source` is not an id.
        """
        find: Callable[[Request], Id]
        if isinstance(source, ByAddress) and bound is not None:
            find = self._address.limit_finder(bound, source.prefix)
        elif isinstance(source, OptionalId) and bound is not None:
            find = source.bind(self._address, is_text=self._has_text_ids(bound.name))
        else:
            find = compile_id(source, self._address)
        bucket = self.shared_id
        if bucket is None:
            return find

        def find_or_share(request: Request) -> Id:
            try:
                return find(request)
            except MissingId:
                return bucket

        return find_or_share

    def of_peers(self, source: IdSource) -> PeerIds | None:
        """Return the ids by the address of a peer; `None` if more of the request is needed."""
        return self._address.known_ipv4 if isinstance(source, ByAddress) else None

    def _has_text_ids(self, name: str) -> bool:
        with suppress(InvalidId):
            self._limiter.limits.resolve(name, "user:any name")
            return True
        return False

    def is_ipv6_only(self, rule: Rule, name: str) -> bool:
        """Check that the ids of a rule fit a limit, and return whether only IPv6 addresses do.

        Raises:
            ConfigError: They do not fit.
        """
        if isinstance(rule.id, ByAddress) and self.shared_id is None:
            with suppress(InvalidId):
                self._limiter.limits.resolve(name, rule.id.ipv4_sample)
                return False
            with suppress(InvalidId):
                self._limiter.limits.resolve(name, rule.id.ipv6_sample)
                return True
        typical = rule.id.sample() if isinstance(rule.id, ReadyId) else None
        for sample in (typical, self.shared_id):
            try:
                if isinstance(sample, Id):
                    self._limiter.limits.resolve(name, sample)
            except InvalidId as error:
                raise ConfigError(
                    f"{name}: ids of {rule.id!r} such as {sample!r} do not fit: {error}"
                ) from error
        return False


class Compiler:
    """Compiles the rules of a guard.

    Args:
        store: The limiter, and the limits that its routes name.
        ids: Finds the ids of clients.
        on_store_error: What to do if the store fails, for all limits or by limit name.

    Raises:
        ConfigError: `on_store_error` is invalid.

    Attributes:
        names: Names the limits that have none.
    """

    def __init__(
        self,
        store: StoreAccess,
        ids: ClientIds,
        on_store_error: StorePolicy | Mapping[str, StorePolicy],
    ) -> None:
        self._store: Final = store
        self._limiter: Final = store.limiter
        self._ids: Final = ids
        self._policies: Final = _policies_of(on_store_error, store.limiter.limits)
        self.names: Final = LimitNames(store.limiter)
        self._lock: Final = fork_safe(Lock())
        self._bound: Final[dict[Rule, tuple[BoundLimit, ...]]] = {}
        self._choices: Final[dict[Rule, tuple[PerRequestLimit, ...]]] = {}
        self._shared_blocks: Final[dict[tuple[str, Limit], tuple[Limit, ...]]] = {}
        self._without_default: Final[set[str]] = set()

    def check(self, rules: Iterable[Rule], *, may_hold: bool = True) -> None:
        """Do the same as `Guard.check`.

        Raises:
            ConfigError: A rule is wrong.
            LimitError: A rate string is malformed.
        """
        for rule in rules:
            self._ids.finder(rule.id)
            are_slots: list[bool] = []
            for written in self._limits_of(rule):
                limit = self._resolve(written)
                loaded = self._limiter.limits
                default = limit if isinstance(limit, Limit) else loaded.default(limit)
                are_slots.append(has_slots(default))
                if not may_hold and are_slots[-1]:
                    raise slots_error(written)
                if default is None:
                    self._report_without_default(str(limit))
                if isinstance(limit, Limit):
                    _check_numbers(rule, written, limit)
                    self._check_shared_blocks(rule, limit)
                    continue
                self._ids.is_ipv6_only(rule, limit)
                if default is not None:
                    _check_numbers(rule, limit, default)
                if rule.blocks:
                    define_blocks(self._limiter, limit, rule.blocks)
            if rule.is_settled and are_slots and all(are_slots):
                names = ", ".join(n for n, x in rule.acting.items() if x is Phase.ANSWERED)
                raise ConfigError(
                    f"{' and '.join(map(str, rule.limits))}: {names} has no effect on requests in "
                    f"flight, whose slots are returned with each response; use it with a rate"
                )

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

    def compile(self, rules: Sequence[Rule]) -> list[CompiledLimit | PerRequestLimit]:
        """Return the compiled limits of rules, in order.

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
        return compiled

    def _report_without_default(self, name: str) -> None:
        if name in self._without_default:
            return
        self._without_default.add(name)
        report_finding(
            "P008",
            f"{name} has no default, so it limits no client without an override",
            f"add one to the limits file, or {name}: {{algorithm: unlimited}}",
        )

    def _limits_of(self, rule: Rule) -> Iterator[str | Limit]:
        """Yield the limits of a rule, with those of its tiers."""
        if rule.tiers is not None:
            yield from (limit for limit in rule.tiers.values() if limit is not None)
        elif rule.choose is None:
            yield from rule.limits
        else:
            for base in rule.limits:
                tiers = tiers_of(self._limiter.limits, str(base))
                if not tiers:
                    raise ConfigError(
                        f"{base} has no tiers; in the limits file write "
                        f"{base}: {{tiers: {{free: 100/hour, pro: 900/hour}}}}"
                    )
                yield from (tier_name(str(base), tier) for tier in tiers)

    def _compile(self, rule: Rule, bound: BoundLimit, base: str | None = None) -> CompiledLimit:
        default = self._policies.get(base or "", self._policies[""])
        holds = has_slots(self._limiter.limits.default(bound.name))
        if holds and (rule.count_denied or rule.blocks):
            raise ConfigError(
                f"{bound.name} limits requests in flight; use count_denied and block_for with a "
                f"rate, such as '30/minute'"
            )
        return CompiledLimit(
            rule,
            bound,
            self._ids.finder(rule.id, bound),
            rule.on_store_error or self._policies.get(bound.name, default),
            ids_of_peers=self._ids.of_peers(rule.id),
            is_ipv6_only=self._ids.is_ipv6_only(rule, bound.name),
            factor=None if callable(rule.factor) else rule.factor,
            keep=rule.keep if isinstance(rule.keep, int) else 0,
            penalty=Penalty(self._limiter, bound.name, rule.blocks, count_denied=rule.count_denied)
            if rule.count_denied or rule.blocks
            else None,
            holds=holds,
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
                        self.names.name_of(rule),
                        base,
                        self._compiler(rule, base),
                        self._limiter,
                    )
                    for base in bases
                )
            return choices

    def _compiler(
        self, rule: Rule, base: str | None
    ) -> Callable[[str | Limit, str | None], CompiledLimit]:
        def compile_written(written: str | Limit, name: str | None) -> CompiledLimit:
            limit = self._resolve(written)
            if isinstance(limit, str):
                bound = self._limiter.limit(limit)
            else:
                # Named by its numbers: processes see requests in different orders.
                name = name or f"{self.names.name_of(rule)} {describe_limit(limit)}"
                if self._limiter.limits.get(name) == limit:
                    bound = self._limiter.limit(name)
                else:
                    bound = self._limiter.define(name, limit)
                _check_numbers(rule, written, limit)
            return self._compile(rule, bound, base)

        return compile_written

    def _bound_to(self, rule: Rule) -> tuple[BoundLimit, ...]:
        # Once for each rule, however many routes it is compiled for: a limit is defined only once.
        with self._lock:
            bound = self._bound.get(rule)
            if bound is None:
                make_room(self._bound)
                bound = self._bound[rule] = tuple(self._bind(rule, limit) for limit in rule.limits)
            return bound

    def _bind(self, rule: Rule, written: str | Limit) -> BoundLimit:
        limit = self._resolve(written)
        return (
            self._limiter.limit(limit) if isinstance(limit, str) else self.names.define(rule, limit)
        )

    def _resolve(self, written: str | Limit) -> str | Limit:
        """Return the name of a loaded limit, or the limit of a rate string."""
        if isinstance(written, Limit):
            return written
        if self._store.has_limit(written):
            return written
        known = self._limiter.limits
        if written.strip()[:1].isdigit():
            return Limit.parse(written)
        raise ConfigError(
            f"no limit is named {written!r}; {did_you_mean(written, known)}; "
            f"a limit without a name is a rate string such as '30/minute'"
        )


def _policies_of(
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
                f"for a rate string, pass on_store_error to the limit itself"
            )
    for policy in policies.values():
        check_policy(policy)
    return policies


def make_room(compiled: dict[Any, Any]) -> None:
    """Empty a cache of what was compiled for views before it grows beyond all applications.

    A view that decorates a function again for each request would fill it otherwise.
    """
    if len(compiled) >= _MAX_COMPILED:
        compiled.clear()


def _check_numbers(rule: Rule, written: str | Limit, limit: Limit) -> None:
    if rule.factor is not None:
        factor = 1 if callable(rule.factor) else rule.factor
        try:
            decision = Limiter({"limit": limit}).check("limit", "id", 0, factor=factor)
        except LimitError as error:
            raise ConfigError(f"{written}: {error}") from error
        if decision.unlimited:
            return
        limit = decision.limit
    if isinstance(rule.cost, int) and rule.cost > limit.max_cost:
        raise ConfigError(f"{written}: cost must be at most {limit.max_cost}, found {rule.cost}")
    if isinstance(rule.keep, int) and rule.keep > 0:
        cost = rule.cost if isinstance(rule.cost, int) else 1
        if cost + rule.keep > limit.max_cost:
            raise ConfigError(
                f"{written}: cost and keep together must be at most {limit.max_cost}, "
                f"found {cost} and {rule.keep}"
            )


def view_scope(module: str, name: str) -> str:
    """Return the scope of a view: what tells it from all others.

    The template of a route can follow, after a space, if its routes count apart.

    Args:
        module: The view's module.
        name: The view's qualified name.

    Examples:
        >>> from penstock._web.compile import view_scope
        >>> view_scope("shop.views", "orders")
        'shop.views:orders'
    """
    return f"{module}:{name}"


def scope_name(scope: str, limiter: Limiter, *, is_late: bool = False) -> str:
    """Return the name of the limits of a scope; the same for each call.

    Args:
        scope: The scope.
        limiter: The limiter of the limits.
        is_late: Whether requests are served already, so that a new name must not depend on those
            before.

    Examples:
        >>> from penstock._web.compile import scope_name
        >>> limiter = penstock.Limiter({})
        >>> scope_name("shop.views:create.<locals>.orders", limiter)
        'orders'
        >>> scope_name("blog.views:orders", limiter)
        'views.orders'
        >>> scope_name("news.views:orders", limiter, is_late=True)
        'news.views.orders'
    """
    if ":" not in scope:
        # A name that the application chose.
        return scope
    with _lock:
        names = _names.setdefault(limiter, {})
        if scope not in names:
            *short, full = _candidates(scope)
            taken = {*limiter.limits, *names.values()}
            free = (name for name in short if not (is_late or name in taken))
            names[scope] = next(free, full)
        return names[scope]


def _candidates(scope: str) -> Iterator[str]:
    module, _, view = scope.partition(":")
    qualified, _, route = view.partition(" ")
    short = qualified.rpartition("<locals>.")[2]
    yield short
    if route:
        yield f"{short} {route}"
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        yield f"{'.'.join(parts[-length:])}.{short}"
    yield f"{module}.{view}"


class LimitNames:
    """The limits of a limiter that a guard has named.

    Args:
        limiter: The limiter.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter: Final = limiter
        self._defined: Final[set[str]] = set()
        self._is_started = False

    def end_start(self) -> None:
        """Do the same as `Guard.end_start`."""
        self._is_started = True

    def name_of(self, rule: Rule) -> str:
        """Return the name of the limits of a rule's scope."""
        return scope_name(rule.scope, self._limiter, is_late=self._is_started)

    def define(self, rule: Rule, limit: Limit) -> BoundLimit:
        """Define a limit under the name of its rule's scope, or with the first free number."""
        scope = self.name_of(rule)
        for number in count(1):
            name = scope if number == 1 else f"{scope}-{number}"
            known = self._limiter.limits
            if name not in known:
                if not known.keys().isdisjoint(buckets_of_blocks(name, rule.blocks)):
                    # The name of a block is taken, such as that of a view `login_blocked`.
                    continue
                self._defined.add(name)
                return self._limiter.define(name, limit)
            # Reused if the same application was created twice, each with a guard of one limiter.
            is_reused = rule.is_shared or self._is_started or name not in self._defined
            if is_reused and known.default(name) == limit:
                self._defined.add(name)
                return self._limiter.limit(name)
        raise AssertionError("count() is endless")
