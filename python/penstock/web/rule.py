"""Rules: limits of a route with their options, as a user writes them and compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from penstock._core import Limit
from penstock.errors import ConfigError
from penstock.types import StorePolicy, TransactionKind
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
    from penstock.types import Id
    from penstock.web.request import Request

Entry: TypeAlias = "tuple[CompiledLimit, Id, int]"
"""A limit, an id and a cost: one transaction of a request."""

Mode: TypeAlias = Literal["enforce", "shadow"]
Kind: TypeAlias = TransactionKind
Reader: TypeAlias = Callable[[], Any] | Callable[[Any], Any]
"""A callable that takes the framework's request, or nothing."""
Cost: TypeAlias = int | Callable[[], int] | Callable[[Any], int]

STORE_POLICIES: Final = ("allow", "deny", "local", "raise")
_MAX_COST: Final = 2**63 - 1

# Keywords of similar packages, and what to write here.
LIMIT_HINTS: Final = {
    "block": "use mode='shadow' instead of block=False",
    "error_message": "use description in the limits file, or on_denied",
    "group": "use a named limit, which views share",
    "key": "use id, such as id=by_user; the client's address is the default",
    "key_func": "use id, such as id=by_user; the client's address is the default",
    "method": "use methods, such as methods=['POST']",
    "override_defaults": "exempt the view from the default limits instead",
    "per_method": "use one limit for each method, with methods=['GET']",
    "rate": "write the limit as the first argument, such as '5/minute'",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Rule:
    """One or several limits of a route with their options, validated as far as possible alone."""

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

    def applies_to(self, request: Request) -> bool:
        """Whether a request counts."""
        if self.methods is not None and request.method not in self.methods:
            return False
        if self.exempt_when is None:
            return True
        answer = self.exempt_when(request)
        if inspect.isawaitable(answer):
            # An awaitable is true, so every request would be exempt.
            raise TypeError(f"exempt_when must return a value, found {answer!r} to await")
        return not answer


class LimitOptions(TypedDict, total=False):
    """Keywords of a limit on a route, without those that a guard has too.

    Attributes:
        id: The client: a ready-made id, or a callable that takes the request or nothing. The
            default is the address.
        cost: Tokens, or a callable that returns them. The default is 1.
        methods: The HTTP methods that count. The default is all.
        exempt_when: Returns whether a request does not count.
        deduct_when: Returns whether a response counts: the limit is checked before the view, and
            spent only then. Headers of a response that does not count show what one that does
            would leave.
        refund_on_error: Whether the tokens of a request are returned if its view raises.
        mode: `"shadow"` decides and counts, but never refuses. The default is `"enforce"`.
    """

    id: IdSource
    cost: Cost
    methods: str | Sequence[str] | None
    exempt_when: Reader | None
    deduct_when: Callable[[Any], Any] | None
    refund_on_error: bool
    mode: Mode


class RuleOptions(LimitOptions, total=False):
    """Keywords of a limit on a route, in every framework.

    Attributes:
        on_store_error: What to do when the store fails. The default is the guard's.
    """

    on_store_error: StorePolicy | None


def make_rule(
    limits: Sequence[str | Limit], scope: str, options: RuleOptions, *, is_shared: bool = False
) -> Rule:
    """Return a validated rule.

    Args:
        limits: Names of limits, texts such as `"30/minute"`, or limits; decided together.
        scope: The name under which texts and limits without a name are kept.
        options: See `RuleOptions`.
        is_shared: Whether an equal limit that is kept under the scope already is used again.

    Raises:
        ConfigError: An option is invalid; the message says what to write instead.
    """
    check_names(options, RuleOptions.__optional_keys__, "a limit", LIMIT_HINTS)
    if not limits:
        raise ConfigError(
            "a limit needs at least one name or text, such as '30/minute'; found none"
        )
    for limit in limits:
        if not _is_limit(limit):
            raise ConfigError(
                f"a limit is a name, a text such as '30/minute' or a Limit, found {limit!r}; "
                f"write the limit in parentheses: limit('PerAddress')"
            )
    mode = options.get("mode", "enforce")
    if mode not in ("enforce", "shadow"):
        raise ConfigError(f"mode must be 'enforce' or 'shadow', found {mode!r}")
    policy = options.get("on_store_error")
    if policy is not None:
        check_policy(policy)
    refund_on_error = options.get("refund_on_error", False)
    check_flag("refund_on_error", refund_on_error)
    exempt_when = options.get("exempt_when")
    return Rule(
        limits=tuple(limits),
        scope=scope,
        is_shared=is_shared,
        id=options.get("id", by_address),
        cost=_cost(options.get("cost", 1)),
        methods=_methods(options.get("methods")),
        exempt_when=None if exempt_when is None else compile_reader(exempt_when, "exempt_when"),
        deduct_when=_deduct_when(options.get("deduct_when")),
        refund_on_error=refund_on_error,
        mode=mode,
        on_store_error=policy,
    )


def check_policy(policy: object) -> None:
    """Check a value of `on_store_error`.

    Raises:
        ConfigError: It is not a policy.
    """
    if policy not in STORE_POLICIES:
        raise ConfigError(
            f"on_store_error must be one of {', '.join(STORE_POLICIES)}, found {policy!r}"
        )


def _is_limit(given: object) -> bool:
    return isinstance(given, str | Limit)


def _cost(cost: Cost) -> int | Callable[[Request], Any]:
    if callable(cost):
        return compile_reader(cost, "cost")
    if not is_whole(cost, 0, _MAX_COST):
        raise ConfigError(f"cost must be an integer from 0 or a callable, found {cost!r}")
    return cost


def _methods(methods: str | Iterable[object] | None) -> frozenset[str] | None:
    if methods is None:
        return None
    given = methods.replace(",", " ").split() if isinstance(methods, str) else list(methods)
    names = [method.upper() for method in given if isinstance(method, str) and method.isalpha()]
    if not names or len(names) != len(given):
        raise ConfigError(f"methods must name at least one, such as ['POST'], found {methods!r}")
    return frozenset(names)


def _deduct_when(source: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if source is None:
        return None
    if not is_callable(source) or is_coroutine_function(source) or not takes_one(source):
        raise ConfigError(f"deduct_when must be a function of the response, found {source!r}")
    return source


class CompiledLimit:
    """One limit of a rule, bound to a limiter."""

    def __init__(
        self,
        rule: Rule,
        bound: BoundLimit,
        id_of: Callable[[Request], Id],
        on_store_error: StorePolicy,
    ) -> None:
        cost = rule.cost
        is_deferred = rule.deduct_when is not None
        self.rule: Final = rule
        self.name: Final = bound.name
        self.bound: Final = bound
        self.id_of: Final = id_of
        self.cost: Final = cost if isinstance(cost, int) else 1
        self.cost_of: Final = None if isinstance(cost, int) else cost
        self.on_store_error: Final = on_store_error
        self.is_shadow: Final = rule.mode == "shadow"
        self.kind: Final[Kind] = (
            "spend_only" if self.is_shadow else "check" if is_deferred else "spend"
        )
        # It neither decides nor is spent before the response, and a batch has no kind for that.
        self.is_shadow_deferred: Final = self.is_shadow and is_deferred
        # Whether a request has to be read for its id only.
        self.is_plain: Final = (
            self.cost_of is None
            and rule.methods is None
            and rule.exempt_when is None
            and not is_deferred
        )
