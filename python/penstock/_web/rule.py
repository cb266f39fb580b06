"""Rules: limits of a route with their options, as a user writes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import IntEnum
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    Never,
    TypeAlias,
    TypedDict,
    TypeVar,
)

from penstock._core import Limit
from penstock._validation import (
    check_flag,
    check_names,
    is_coroutine_function,
    is_name,
    is_whole,
    report_finding,
    takes,
)
from penstock._web.identity import (
    IdSource,
    ReadyId,
    RequestValue,
    by_address,
    check_id,
    compile_reader,
)
from penstock._web.penalty import block_limits
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._web.request import Request
    from penstock.types import Factor, Period, StorePolicy

Mode: TypeAlias = Literal["enforce", "shadow"]
Reader: TypeAlias = Callable[[], Any] | Callable[[Any], Any]
"""A callable that takes the framework's request, or nothing."""
AsyncReader: TypeAlias = Callable[[], Awaitable[Any]] | Callable[[Any], Awaitable[Any]]
"""The same, `async def`."""
Cost: TypeAlias = int | Callable[[], int] | Callable[[Any], int]

CHOICES: Final = frozenset({"limit", "tiers"})
"""Options that choose the limit of a request, in place of the name of a limit."""

# The limits that have been reported as unused: a view may write one for each request.
_reported: Final[set[str]] = set()
_MAX_REPORTED: Final = 100

STORE_POLICIES: Final = ("allow", "deny", "local", "raise")
MAX_COST: Final = 2**63 - 1

# An `AsyncReader` in adapters that await one; nothing more in the others.
_More = TypeVar("_More")

METHODS: Final = frozenset(
    """
    GET HEAD POST PUT PATCH DELETE OPTIONS TRACE CONNECT QUERY ACL BASELINE-CONTROL BIND
    CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF
    MKWORKSPACE MOVE ORDERPATCH PRI PROPFIND PROPPATCH PURGE REBIND REPORT SEARCH UNBIND
    UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL
    """.split()  # noqa: SIM905  a list would be a page long
)
"""The registry of HTTP methods (RFC 9110, section 18.2) in November 2026, and PURGE of caches."""

_RATE: Final = "write the limit as the first argument, such as '5/minute, burst 3'"
# Keywords of similar packages, and what to write here.
LIMIT_HINTS: Final = {
    "burst": _RATE,
    "callback": "use on_denied of the application",
    "hours": "write the limit as the first argument, such as '100/hour'",
    "block": "use mode='shadow' instead of block=False",
    "count": _RATE,
    "error_message": "use description in the limits file, or on_denied",
    "group": "use a named limit, which views share",
    "identifier": "use id, such as id=by_user; the client's address is the default",
    "key": "use id, such as id=by_user; the client's address is the default",
    "key_func": "use id, such as id=by_user; the client's address is the default",
    "method": "use methods, such as methods=['POST']",
    "minutes": "write the limit as the first argument, such as '5/minute'",
    "on_breach": "use on_denied of the application",
    "per_method": "use one limit for each method, with methods=['GET']",
    "period": _RATE,
    "rate": "write the limit as the first argument, such as '5/minute'",
    "scope": "use the shared limits of the adapter, such as limit.shared(..., scope='search')",
    "seconds": "write the limit as the first argument, such as '5/second'",
    "strategy": "write the algorithm behind the rate, as in '5/minute, fixed window'",
    "times": "write the limit as the first argument, such as '5/minute'",
}


class Phase(IntEnum):
    """When an option of a limit acts in the life of a request, in order."""

    COMPILED = 0
    """Never again: it is part of the compiled limit."""
    READ = 1
    """While the request is read: whether it counts, and the limit, id and cost."""
    DECIDED = 2
    """Together with the decision, in another way than an ordinary limit."""
    ANSWERED = 3
    """When the response starts."""
    FAILED = 4
    """If the view raises."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """What an option of a limit says about itself; everything else is derived from it.

    Attributes:
        acts: When it acts, if it is set.
        read: Checks what the user wrote, by the name of the option, and returns what it means.
        unset: What it means if it is not written.
        is_constant: Whether only a callable acts later; any other value is part of the limit.
        counts: Whether a request counts, from the value and the request; `None` if it says nothing
            about that.
        skips: Whether an answer of its callable ends the reading of a request.
        is_callable: Whether the user may write a callable that takes the request.
        is_flag: Whether commands show it by its name alone.
    """

    acts: Phase
    read: Callable[[str, Any], Any]
    unset: Any = None
    is_constant: bool = False
    counts: Callable[[Any, Request], bool] | None = None
    skips: Callable[[Any], bool] | None = None
    is_callable: bool = False
    is_flag: bool = False

    def is_set(self, value: Any) -> bool:
        """Return whether a value makes it act."""
        return callable(value) if self.is_constant else value != self.unset


def option(acts: Phase, read: Callable[[str, Any], Any], **more: Any) -> Any:
    """Declare a field of `Rule` that is an option of a limit; `more` is as in `Option`."""
    return field(metadata={"option": Option(acts=acts, read=read, **more)})


def _is_counted(methods: frozenset[str], request: Request) -> bool:
    return request.method in methods


def _is_not_exempt(exempt_when: Callable[[Request], Any], request: Request) -> bool:
    return not _predicate("exempt_when", exempt_when(request))


def _predicate(option: str, answer: object) -> bool:
    # Strings and awaitables are true, and what a function without `return` returns is false.
    if not isinstance(answer, bool):
        raise TypeError(f"{option} must return True or False, found {answer!r}")
    return answer


def _reader(name: str, source: Any) -> Callable[[Request], Any] | None:
    return None if source is None else compile_reader(source, name)


def _flag(name: str, flag: Any) -> Any:
    check_flag(name, flag)
    return flag


def _flag_or_none(name: str, flag: Any) -> Any:
    return None if flag is None else _flag(name, flag)


def _id(_name: str, id: Any) -> Any:
    check_id(id)
    return id


def check_policy(policy: object) -> None:
    """Check a value of `on_store_error`.

    Raises:
        ConfigError: It is not a policy.
    """
    if policy not in STORE_POLICIES:
        raise ConfigError(
            f"on_store_error must be one of {', '.join(STORE_POLICIES)}, found {policy!r}"
        )


def _methods(_name: str, methods: Any) -> frozenset[str] | None:
    if methods is None:
        return None
    if isinstance(methods, str):
        listed: list[object] = [*methods.replace(",", " ").split()]
    else:
        listed = [*methods] if isinstance(methods, Iterable) else []
    names = [method.upper() for method in listed if isinstance(method, str)]
    if not names or len(names) != len(listed):
        raise ConfigError(f"methods must name at least one, such as ['POST'], found {methods!r}")
    for name in names:
        if name in ("*", "ALL", "ANY"):
            raise ConfigError(f"methods: {name!r} is not an HTTP method; leave methods out for all")
        if name not in METHODS:
            near = get_close_matches(name, METHODS, 1) or ["POST"]
            raise ConfigError(f"methods: {name!r} is not an HTTP method; did you mean {near[0]!r}?")
    # The view does the same work for both.
    return frozenset(names) | ({"HEAD"} if "GET" in names else set())


def _factor(name: str, factor: Factor | Reader | None) -> Factor | Callable[[Request], Any] | None:
    if callable(factor) or isinstance(factor, RequestValue):
        return compile_reader(factor, name)
    if isinstance(factor, bool):
        raise ConfigError(f"{name} must be a number or a function, found {factor!r}")
    return factor


def _tokens(option: str, tokens: int | Reader) -> int | Callable[[Request], Any]:
    if callable(tokens) or isinstance(tokens, RequestValue):
        return compile_reader(tokens, option)
    if not is_whole(tokens, 0, MAX_COST):
        raise ConfigError(f"{option} must be an integer from 0 or a callable, found {tokens!r}")
    return tokens


def _mode(_name: str, mode: Any) -> Any:
    if mode not in ("enforce", "shadow"):
        raise ConfigError(f"mode must be 'enforce' or 'shadow', found {mode!r}")
    return mode


def _blocks(_name: str, block_for: Any) -> tuple[Limit, ...]:
    return () if block_for is None else block_limits(block_for)


def _of_response(option: str, source: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if source is None:
        return None
    if is_coroutine_function(source) or not takes(source, 1):
        raise ConfigError(f"{option} must be a function of the response, found {source!r}")
    return source


def _policy(_name: str, policy: Any) -> Any:
    if policy is not None:
        check_policy(policy)
    return policy


@dataclass(frozen=True, eq=False, kw_only=True)
class Rule:
    """One or several limits of a route with their options, validated as far as possible alone.

    The options that are read from a request come in the order in which it is read.
    """

    limits: tuple[str | Limit, ...]
    choose: Callable[[Request], Any] | None
    tiers: Mapping[str, str | Limit | None] | None
    scope: str
    is_shared: bool
    methods: frozenset[str] | None = option(Phase.READ, _methods, counts=_is_counted)
    exempt_when: Callable[[Request], Any] | None = option(
        Phase.READ, _reader, counts=_is_not_exempt, skips=bool, is_callable=True, is_flag=True
    )
    factor: Factor | Callable[[Request], Any] | None = option(
        Phase.READ, _factor, is_constant=True, is_callable=True, is_flag=True
    )
    keep: int | Callable[[Request], Any] = option(
        Phase.READ, _tokens, unset=0, is_constant=True, is_callable=True
    )
    id: IdSource = option(Phase.COMPILED, _id, unset=by_address, is_callable=True)
    cost: int | Callable[[Request], Any] = option(
        Phase.READ, _tokens, unset=1, is_constant=True, is_callable=True
    )
    mode: Mode = option(Phase.DECIDED, _mode, unset="enforce")
    count_denied: bool = option(Phase.DECIDED, _flag, unset=False, is_flag=True)
    blocks: tuple[Limit, ...] = option(Phase.DECIDED, _blocks, unset=())
    deduct_when: Callable[[Any], Any] | None = option(Phase.ANSWERED, _of_response, is_flag=True)
    cost_from_response: Callable[[Any], Any] | None = option(
        Phase.ANSWERED, _of_response, is_flag=True
    )
    reserve: bool = option(Phase.DECIDED, _flag, unset=True)
    settle: bool = option(Phase.ANSWERED, _flag, unset=False, is_flag=True)
    refund_on_error: bool = option(Phase.FAILED, _flag, unset=False, is_flag=True)
    override_defaults: bool | None = option(Phase.COMPILED, _flag_or_none)
    on_store_error: StorePolicy | None = option(Phase.COMPILED, _policy)
    acting: Mapping[str, Phase] = field(init=False)
    """The options that act after the rule has been compiled, and when."""

    def __post_init__(self) -> None:
        chosen = {} if self.choose is None else {"limit": Phase.READ}
        acting = {
            name: each.acts for name, each in OPTIONS.items() if each.is_set(getattr(self, name))
        }
        object.__setattr__(self, "acting", chosen | acting)

    @property
    def is_settled(self) -> bool:
        """Whether the response or the view tells what is spent."""
        return Phase.ANSWERED in self.acting.values()

    @property
    def needs_response(self) -> bool:
        """Whether something is settled or refunded after the view."""
        return self.is_settled or Phase.FAILED in self.acting.values()

    @property
    def may_need_user(self) -> bool:
        """Whether it may read the user of a request."""
        needs_user = self.id.needs_user if isinstance(self.id, ReadyId) else callable(self.id)
        return needs_user or any(
            when is Phase.READ and (name not in OPTIONS or OPTIONS[name].is_callable)
            for name, when in self.acting.items()
        )

    def cost_of_response(self, response: Any, cost: int) -> int:
        """Return what a request costs by its response; `cost` is what it would cost without.

        Raises:
            TypeError: `cost_from_response` returned something else than a cost, or `deduct_when`
                something else than a `bool`.
        """
        if self.deduct_when is not None and not _predicate(
            "deduct_when", self.deduct_when(response)
        ):
            return 0
        if self.cost_from_response is None:
            return cost
        actual = self.cost_from_response(response)
        if not isinstance(actual, int) or isinstance(actual, bool) or actual < 0:
            raise TypeError(f"cost_from_response must return an integer from 0, found {actual!r}")
        return min(actual, MAX_COST)

    def applies_to(self, request: Request) -> bool:
        """Whether a request counts."""
        for name, counts in _COUNTING:
            value = getattr(self, name)
            if value is not None and not counts(value, request):
                return False
        return True


OPTIONS: Final[dict[str, Option]] = {
    x.name: x.metadata["option"] for x in fields(Rule) if "option" in x.metadata
}
"""The options of a limit that a `Rule` keeps, by field."""
_WRITTEN: Final = {"blocks": "block_for"}
READ_OPTIONS: Final = (
    *(n for n, x in OPTIONS.items() if x.is_callable and x.counts is not None),
    "limit",
    "tier",
    *(n for n, x in OPTIONS.items() if x.is_callable and x.counts is None),
)
"""Options that may be a `Reader`, in the order in which a request is read."""
SKIPS: Final = {n: x.skips for n, x in OPTIONS.items() if x.skips is not None}
"""Which answers of a reader end the reading of a request, by option."""
FLAGS: Final = tuple(n for n, x in OPTIONS.items() if x.is_flag)
"""Options that commands show by their names alone."""
_COUNTING: Final = tuple((n, x.counts) for n, x in OPTIONS.items() if x.counts is not None)


class LimitOptions(TypedDict, Generic[_More], total=False):
    """Keywords of a limit on a route, without those that a guard has too.

    Attributes:
        id: The client: a ready-made id, or a callable that takes the request or nothing. The
            default is the address.
        cost: Tokens, or a callable that returns them. The default is 1.
        tiers: Limits by the name of a tier, such as `{"free": "100/hour", "pro": "900/hour"}`;
            `None` for a tier without a limit.
        tier: Returns the tier of a request: a key of `tiers`. Without `tiers`, the limit's name is
            that of a limit with tiers in the limits file.
        factor: What the size of a leaky bucket is divided by, or a callable that returns it.
        keep: How many tokens a request leaves for more important ones, or a callable that returns
            it. The default is 0.
        methods: The HTTP methods that count, in any case; `GET` includes `HEAD`. The default is
            all.
        exempt_when: Returns `True` if a request does not count, else `False`.
        deduct_when: Returns `True` if a response counts, else `False`. The tokens are taken before
            the view, and returned if it does not.
        cost_from_response: Returns the cost from the response. `cost` is taken before the view, and
            the difference is returned or charged.
        reserve: Whether the tokens of a limit with `deduct_when` or `cost_from_response` are taken
            before the view. If not, the limit is only checked then, so requests that run at the
            same time can together exceed it. The default is `True`.
        settle: Whether the view settles the cost: `cost` is taken before it, and it calls `settle`
            of the decision with what it used. The default is `False`.
        refund_on_error: Whether the tokens of a request are returned if its view raises.
        mode: `"shadow"` decides and counts, but never refuses. The default is `"enforce"`.
        count_denied: Whether refused requests count, too.
        block_for: How long a client is refused once it has exceeded the limit; with several times,
            each further block lasts longer.
    """

    id: IdSource | _More
    cost: Cost | _More
    tiers: Mapping[str, str | Limit | None]
    tier: Reader | _More
    factor: Factor | Reader | _More
    keep: int | Reader | _More
    methods: str | Sequence[str] | None
    exempt_when: Reader | _More | None
    deduct_when: Callable[[Any], Any] | None
    cost_from_response: Callable[[Any], Any] | None
    reserve: bool
    settle: bool
    refund_on_error: bool
    mode: Mode
    count_denied: bool
    block_for: Period | Sequence[Period] | None


class _RouteOptions(LimitOptions[_More], total=False):
    """Keywords of a limit on a route.

    Attributes:
        limit: Instead of limits: returns the limit of a request, which is a name, a rate string, a
            `Limit`
            or `None` for no limit.
        override_defaults: Whether the default limits do not apply to a route that has this limit.
            `None`, the default, is what the guard says.
        on_store_error: What to do when the store fails. The default is the guard's.
    """

    limit: Reader | _More
    override_defaults: bool | None
    on_store_error: StorePolicy | None


class RuleOptions(_RouteOptions[Never], total=False):
    """Keywords of a limit on a route, in every framework."""


class AsyncRuleOptions(_RouteOptions[AsyncReader], total=False):
    """Keywords of a limit on a route whose callables may be `async def`."""


def make_rule(
    limits: Sequence[str | Limit], scope: str, options: RuleOptions, *, is_shared: bool = False
) -> Rule:
    """Return a validated rule.

    Args:
        limits: Names of limits, rate strings such as `"30/minute"`, or limits; decided together.
        scope: What limits without a name are named after: a name, or what
            `penstock._web.compile.view_scope` returns.
        options: See `RuleOptions`.
        is_shared: Whether an equal limit that is kept under the scope already is used again.

    Raises:
        ConfigError: An option is invalid; the message says what to write instead.
    """
    check_names(options, RuleOptions.__optional_keys__, "a limit", LIMIT_HINTS)
    if is_shared and not is_name(scope):
        raise ConfigError(f"scope must be a name, such as 'search', found {scope!r}")
    choose, tiers = _choice(limits, options)
    written_limits: tuple[object, ...] = (*limits, *(tiers or {}).values())
    for limit in written_limits:
        if not (_is_limit(limit) or (limit is None and tiers)):
            hint = ""
            if hasattr(limit, "__name__"):
                hint = (
                    "; write the limit in parentheses, as in limit('PerAddress'), or limit=... for "
                    "a function that returns it"
                )
            elif isinstance(limit, list | tuple):
                hint = "; write several as arguments, as in limit('PerAddress', 'PerUser')"
            raise ConfigError(
                f"a limit is a name, a rate string such as '30/minute' or a Limit, found "
                f"{limit!r}{hint}"
            )
    as_written: dict[str, Any] = dict(options)
    values = {
        name: declared.read(written, as_written[written])
        if written in as_written
        else declared.unset
        for name, declared in OPTIONS.items()
        for written in (_WRITTEN.get(name, name),)
    }
    by_response = [n for n in ("deduct_when", "cost_from_response") if values[n] is not None]
    if not (values["reserve"] or by_response):
        raise ConfigError("reserve=False needs deduct_when or cost_from_response")
    if values["cost"] == 0 and not (values["settle"] or values["cost_from_response"]):
        raise ConfigError(
            "cost=0 takes nothing, so the limit would never deny; leave it out, or use exempt_when"
        )
    if values["settle"] and by_response:
        raise ConfigError(
            f"a cost is settled by the view or from the response, found settle and {by_response[0]}"
        )
    return Rule(
        limits=tuple(_split(limits)),
        choose=choose,
        tiers=tiers,
        scope=scope,
        is_shared=is_shared,
        **values,
    )


class WrittenLimits:
    """Limits with their options, as they are written: the source of the rules of one or more views.

    Args:
        limits: As in `make_rule`.
        options: As in `make_rule`.
        scope: The name under which views share unnamed limits; `None` if each has its own.

    Raises:
        ConfigError: An option is invalid, which is reported here, not where the limits are used.

    Attributes:
        is_used: Whether they are on a view, or were reported as without effect.
    """

    def __init__(
        self, limits: Sequence[str | Limit], options: RuleOptions, scope: str | None = None
    ) -> None:
        self._limits: Final = tuple(limits)
        self._options: Final = options
        self._written: Final = make_rule(limits, scope or "", options, is_shared=scope is not None)
        self.is_used = False

    # Of one that could not be made, there is nothing to report.
    is_used = True

    def __del__(self) -> None:
        """Report limits that are dropped unused, such as those of a decorator without its `@`."""
        if self.is_used or sys.is_finalizing():
            return
        text = f"{', '.join(map(repr, self._limits)) or 'a limit by request'}"
        if text not in _reported and len(_reported) < _MAX_REPORTED:
            _reported.add(text)
            report_finding(
                "P008",
                f"{text} was written as a limit, and limits nothing",
                "write it as a decorator, with @, or in FastAPI as Depends(RateLimit(...))",
            )

    def rule(self, scope: str) -> Rule:
        """Return the rule on a view, whose unnamed limits are kept under `scope` unless shared."""
        self.is_used = True
        written = self._written
        return written if written.is_shared else make_rule(self._limits, scope, self._options)


def unread_limits(view_class: type | None, *read: str) -> Iterator[str]:
    """Yield the attributes of a class of views that have limits, and that its framework ignores.

    Args:
        view_class: The class; `None` for the view that is a function.
        read: The attributes that the framework reads.
    """
    for name, value in vars(view_class or object).items():
        values = value if isinstance(value, list | tuple) else (value,)
        limits = [each for each in values if isinstance(each, WrittenLimits)]
        if limits and name not in read:
            for each in limits:
                # Reported once.
                each.is_used = True
            yield name


def _is_limit(value: object) -> bool:
    return isinstance(value, str | Limit)


def _split(limits: Sequence[str | Limit]) -> Iterator[str | Limit]:
    """Yield the limits, with the parts of rate strings such as `"10/second; 1000/hour"`."""
    for limit in limits:
        if isinstance(limit, str) and limit[:1].isdigit():
            # A part that begins with a word, such as `burst 20`, belongs to the one before.
            yield from re.split(r"\s*;\s*(?=\d)", limit)
        else:
            yield limit


def _choice(
    limits: Sequence[str | Limit], options: RuleOptions
) -> tuple[Callable[[Request], Any] | None, Mapping[str, str | Limit | None] | None]:
    """Return the reader of a request's limit or tier, and the limits of the tiers."""
    limit, tier, tiers = options.get("limit"), options.get("tier"), options.get("tiers")
    sources = [
        name
        for name, is_given in (
            ("a limit", bool(limits)),
            ("limit=", limit is not None),
            ("tiers=", tiers is not None),
        )
        if is_given
    ]
    if not sources:
        raise ConfigError(
            "a limit needs at least one name or rate string, such as '30/minute'; found none"
        )
    if len(sources) > 1:
        raise ConfigError(f"a limit is given once, found {' and '.join(sources)}")
    if limit is not None:
        if tier is not None:
            raise ConfigError("tier needs tiers, or a limit of the file with tiers; found limit=")
        return compile_reader(limit, "limit"), None
    if tiers is not None:
        if not (_is_mapping(tiers) and tiers and all(map(is_name, tiers))):
            raise ConfigError(
                f"tiers must be limits by tier, such as {{'free': '100/hour'}}, found {tiers!r}"
            )
        if tier is None:
            raise ConfigError("tiers need tier, a function that returns the tier of a request")
    return None if tier is None else compile_reader(tier, "tier"), tiers


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)
