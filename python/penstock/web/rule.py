"""What a user says about a limit on a route, and the same made ready to be decided by."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from penstock._core import Limit
from penstock.errors import ConfigError
from penstock.validation import (
    check_flag,
    check_names,
    is_callable,
    is_coroutine_function,
    is_whole,
    takes_one,
)
from penstock.web.identity import IdSource, by_address, compile_reader

if TYPE_CHECKING:
    from penstock._core import BoundLimit
    from penstock.web.request import Id, Request

Mode: TypeAlias = Literal["enforce", "shadow"]
StorePolicy: TypeAlias = Literal["allow", "deny", "local", "raise"]
Kind: TypeAlias = Literal["spend", "check", "spend_only"]
Reader: TypeAlias = Callable[[], Any] | Callable[[Any], Any]
"""A callable that takes the framework's request, or nothing."""
Cost: TypeAlias = int | Callable[[], int] | Callable[[Any], int]

STORE_POLICIES: Final = ("allow", "deny", "local", "raise")
_LARGEST_COST: Final = 2**63 - 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Rule:
    """One or several limits on a route, checked as far as that needs no limiter."""

    limits: tuple[str | Limit, ...]
    scope: str
    is_shared: bool
    id: IdSource
    cost: int | Callable[[Request], Any]
    methods: frozenset[str] | None
    exempt_when: Callable[[Request], Any] | None
    deduct_when: Callable[[Any], Any] | None
    refund_on_error: bool
    mode: Mode
    on_store_error: StorePolicy | None


class LimitOptions(TypedDict, total=False):
    """The keywords of a limit on a route, less what a guard has under the same name.

    Attributes:
        id: Who is asking: ready-made, or a callable that takes the request or nothing. The address
            unless said.
        cost: Tokens, or a callable that gives them. 1 unless said.
        methods: The methods that count; all of them unless said.
        exempt_when: Says of a request that it does not count.
        deduct_when: Says of a response that it counts: the limit is checked first, and spent only
            then. Headers of a response that does not count show what one that does would leave.
        refund_on_error: Whether what a request took is given back when its view raises.
        mode: `"shadow"` decides and counts, but never refuses; `"enforce"` unless said.
    """

    id: IdSource
    cost: Cost
    methods: str | Sequence[str] | None
    exempt_when: Reader | None
    deduct_when: Callable[[Any], Any] | None
    refund_on_error: bool
    mode: Mode


class RuleOptions(LimitOptions, total=False):
    """The keywords of a limit on a route, in every framework.

    Attributes:
        on_store_error: What to do when the store fails; as the guard says unless said.
    """

    on_store_error: StorePolicy | None


def make_rule(
    limits: Sequence[str | Limit], scope: str, options: RuleOptions, *, is_shared: bool = False
) -> Rule:
    """Make a rule.

    Args:
        limits: Names of limits, texts such as `"30/minute"`, or limits; several are one decision.
        scope: The name under which texts and limits without a name are kept.
        options: See `RuleOptions`.
        is_shared: Whether an equal limit that is kept under the scope already serves this rule too.

    Raises:
        ConfigError: Something that cannot be, and what would do.
    """
    if not limits:
        raise ConfigError(
            "a limit needs at least one name or text, such as '30/minute'; found none"
        )
    for limit in limits:
        if not _is_limit(limit):
            raise ConfigError(
                f"a limit is a name, a text such as '30/minute' or a Limit, found {limit!r}; "
                f"the decorator is called first: @penstock.limit('PerAddress')"
            )
    check_names(options, RuleOptions.__optional_keys__, "a limit")
    mode = options.get("mode", "enforce")
    if mode not in ("enforce", "shadow"):
        raise ConfigError(f"mode must be 'enforce' or 'shadow', found {mode!r}")
    policy = options.get("on_store_error")
    if policy is not None and policy not in STORE_POLICIES:
        raise ConfigError(
            f"on_store_error must be one of {', '.join(STORE_POLICIES)}, found {policy!r}"
        )
    refund_on_error = options.get("refund_on_error", False)
    check_flag("refund_on_error", refund_on_error)
    return Rule(
        limits=tuple(limits),
        scope=scope,
        is_shared=is_shared,
        id=options.get("id", by_address),
        cost=_cost(options.get("cost", 1)),
        methods=_methods(options.get("methods")),
        exempt_when=_reader(options.get("exempt_when"), "exempt_when"),
        deduct_when=_deduct_when(options.get("deduct_when")),
        refund_on_error=refund_on_error,
        mode=mode,
        on_store_error=policy,
    )


def _is_limit(given: object) -> bool:
    return isinstance(given, str | Limit)


def _cost(cost: Cost) -> int | Callable[[Request], Any]:
    if callable(cost):
        return compile_reader(cost, "cost")
    if not is_whole(cost, 0, _LARGEST_COST):
        raise ConfigError(f"cost must be a whole number from 0 or a callable, found {cost!r}")
    return cost


def _methods(methods: str | Iterable[object] | None) -> frozenset[str] | None:
    if methods is None:
        return None
    given = methods.replace(",", " ").split() if isinstance(methods, str) else list(methods)
    names = [method.upper() for method in given if isinstance(method, str) and method.isalpha()]
    if not names or len(names) != len(given):
        raise ConfigError(f"methods must name at least one, such as ['POST'], found {methods!r}")
    return frozenset(names)


def _reader(source: Reader | None, what: str) -> Callable[[Request], Any] | None:
    return None if source is None else compile_reader(source, what)


def _deduct_when(source: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if source is not None and (not is_callable(source) or is_coroutine_function(source)):
        raise ConfigError(f"deduct_when must be a function of the response, found {source!r}")
    if source is not None and not takes_one(source):
        raise ConfigError(f"deduct_when takes the response, found {source!r}")
    return source


class CompiledLimit:
    """One limit of a rule, bound to a limiter: what a request is measured by."""

    def __init__(
        self,
        rule: Rule,
        bound: BoundLimit,
        id_of: Callable[[Request], Id],
        on_store_error: StorePolicy,
    ) -> None:
        cost = rule.cost
        self.rule: Final = rule
        self.name: Final = bound.name
        self.bound: Final = bound
        self.id_of: Final = id_of
        self.cost: Final = cost if isinstance(cost, int) else 1
        self.cost_of: Final = None if isinstance(cost, int) else cost
        self.methods: Final = rule.methods
        self.exempt_when: Final = rule.exempt_when
        self.deduct_when: Final = rule.deduct_when
        self.refund_on_error: Final = rule.refund_on_error
        self.is_shadow: Final = rule.mode == "shadow"
        waits = rule.deduct_when is not None
        self.kind: Final[Kind] = "spend_only" if self.is_shadow else "check" if waits else "spend"
        # It neither decides nor is spent before the response, for which a batch has no kind.
        self.is_shadow_deferred: Final = self.is_shadow and waits
        self.on_store_error: Final = on_store_error
        # Nothing to ask about the request but whose it is.
        self.is_plain: Final = (
            self.cost_of is None
            and rule.methods is None
            and rule.exempt_when is None
            and rule.deduct_when is None
        )

    def applies_to(self, request: Request) -> bool:
        """Whether a request counts."""
        if self.methods is not None and request.method not in self.methods:
            return False
        if self.exempt_when is None:
            return True
        answer = self.exempt_when(request)
        if inspect.isawaitable(answer):
            # It would be true of everybody, and the limit gone.
            raise TypeError(f"exempt_when must give an answer, found {answer!r} to await")
        return not answer
