"""The limits of a rule, bound to a limiter: fixed, or chosen by each request."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock._core import Limit
from penstock._locks import fork_safe
from penstock._validation import OBSERVED, did_you_mean, is_whole, report_finding
from penstock._web.rule import MAX_COST, Phase
from penstock._web.settle import AskedLimit
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock._core import BoundLimit, Limiter
    from penstock._web.address import PeerIds
    from penstock._web.penalty import Penalty
    from penstock._web.request import Request
    from penstock._web.rule import Rule
    from penstock.types import Factor, Id, StorePolicy, TransactionKind

Entry: TypeAlias = "tuple[CompiledLimit, Id, int]"
"""A limit, an id and a cost: one transaction of a request."""
_Compiler: TypeAlias = "Callable[[str | Limit, str | None], CompiledLimit]"

# Every different text that a callable returns stays a limit of the limiter.
_MAX_LIMITS: Final = 1000
# A factor or a keep is a role's, and there are few roles.
_MAX_ADJUSTED: Final = 1024


class CompiledLimit(AskedLimit):
    """One limit of a rule, bound to a limiter.

    Attributes:
        id_of: Returns the id of a request.
        ids_of_peers: The ids of requests by the address of the peer; an id is `None` if `id_of` has
            to look at the address. `None` if more of the request is needed.
        is_ipv6_only: Whether its ids are addresses, and it does not apply to IPv4.
        penalty: What happens to clients that exceed it; `None` for nothing.
        holds: Whether it takes slots, which are given back when the response has been sent.
        is_settled: Whether the response or the view tells what is spent.
        refunds_on_error: Whether it is refunded if the view raises.
        is_chosen: Whether `choose` returns the limit with the factor and keep of a request.
        is_plain: Whether the id is all that is read of a request, and nothing follows a denial.
    """

    def __init__(
        self,
        rule: Rule,
        bound: BoundLimit,
        id_of: Callable[[Request], Id],
        on_store_error: StorePolicy,
        *,
        ids_of_peers: PeerIds | None = None,
        is_ipv6_only: bool = False,
        factor: Factor | None = None,
        keep: int = 0,
        penalty: Penalty | None = None,
        holds: bool = False,
        is_chosen: bool = False,
    ) -> None:
        cost = rule.cost
        super().__init__(
            bound,
            factor,
            keep,
            on_store_error,
            is_shadow=rule.mode == "shadow",
            is_deferred=rule.is_settled and not (rule.reserve or holds),
        )
        self.holds = False
        self.is_settled = rule.is_settled
        self.refunds_on_error = rule.refund_on_error
        if holds:
            self.hold()
        self.rule: Final = rule
        self.id_of: Final = id_of
        self.ids_of_peers: Final = ids_of_peers
        self.is_ipv6_only: Final = is_ipv6_only
        self.penalty: Final = penalty
        self.cost: Final = cost if isinstance(cost, int) else 1
        self.cost_of: Final = None if isinstance(cost, int) else cost
        self.kind: Final[TransactionKind] = (
            "spend_only" if self.is_shadow else "check" if self.is_deferred else "spend"
        )
        # Not part of the batch: it is checked before the view, and charged after it.
        self.is_shadow_deferred: Final = self.is_shadow and self.is_deferred
        self._adjusted: Final[dict[object, CompiledLimit]] = {}
        # How many responses were looked at until one of them counted.
        self._responses = 0
        self.is_chosen: Final = not is_chosen and (callable(rule.factor) or callable(rule.keep))
        # Slots are reserved in any case.
        acts = {acts for name, acts in rule.acting.items() if not (holds and name == "reserve")}
        is_ordinary = acts.isdisjoint((Phase.READ, Phase.DECIDED))
        self.is_plain: Final = is_ordinary and not is_ipv6_only

    def hold(self) -> None:
        """Take slots from now on, which are given back whatever the response is."""
        self.holds = True
        self.is_settled = self.refunds_on_error = False

    def choose(self, request: Request) -> CompiledLimit:
        """Return this limit with the factor of a request, and the tokens that it keeps.

        Raises:
            LimitError: The factor is not one, or the limit is not a leaky bucket.
            TypeError: The callable of the user returned something else than tokens to keep.
        """
        factor, keep = self.factor, self.keep
        if callable(self.rule.factor):
            of_request = self.rule.factor(request)
            factor = 1 if of_request is None else of_request
        if callable(self.rule.keep):
            keep = self.rule.keep(request)
            if not is_whole(keep, 0, MAX_COST):
                raise TypeError(f"keep must return an integer from 0, found {keep!r}")
        # Equal numbers of different types are one key, and one factor.
        adjusted = self._adjusted.get((factor, keep))
        if adjusted is None:
            if len(self._adjusted) >= _MAX_ADJUSTED:
                self._adjusted.clear()
            adjusted = self._adjusted[factor, keep] = CompiledLimit(
                self.rule,
                self.unadjusted,
                self.id_of,
                self.on_store_error,
                is_ipv6_only=self.is_ipv6_only,
                factor=factor,
                keep=keep,
                penalty=self.penalty,
                holds=self.holds,
                is_chosen=True,
            )
        return adjusted

    def cost_of_response(self, response: Any, cost: int) -> int:
        """Return what a request costs by its response; see `Rule.cost_of_response`."""
        actual = self.rule.cost_of_response(response, cost)
        if actual:
            self._responses = OBSERVED
        elif self._responses < OBSERVED:
            self._responses += 1
            if self._responses == OBSERVED:
                option = "deduct_when" if self.rule.deduct_when else "cost_from_response"
                report_finding(
                    "P008",
                    f"{self.name} has counted none of the first {OBSERVED} responses, because of "
                    f"{option}",
                    "see that it compares numbers with numbers; if no response was to count so "
                    "far, nothing is wrong",
                )
        return actual


class PerRequestLimit:
    """Stands for the limit of a rule that each request chooses.

    Args:
        rule: The rule.
        scope: The name of the rule's scope.
        base: The name of the limit whose tiers are in the limits file; `None` for other choices.
        compiler: Compiles a limit of the rule, under a name if it has none of its own.
        limiter: The limiter whose file has the tiers.

    Attributes:
        name: The name of the scope, or the name of the limit in the file.
        is_plain: `False`: the request has to be read.
        holds: `False`: whether the limit takes slots is known when it is chosen.
    """

    is_plain: Final = False
    holds: Final = False

    def __init__(
        self, rule: Rule, scope: str, base: str | None, compiler: _Compiler, limiter: Limiter
    ) -> None:
        self.rule: Final = rule
        self.name: Final = scope if base is None else base
        self.is_shadow: Final = rule.mode == "shadow"
        self._base: Final = base
        self._compile: Final = compiler
        self._limiter: Final = limiter
        self._compiled: Final[dict[object, CompiledLimit | None]] = {}
        self._lock: Final = fork_safe(Lock())
        # Compiled at startup, so that every process gives them the same names.
        for tier, limit in (rule.tiers or {}).items():
            self._compiled[tier] = (
                None if limit is None else compiler(limit, tier_name(scope, tier))
            )

    def choose(self, request: Request) -> CompiledLimit | None:
        """Return the limit of a request; `None` if it is not limited.

        Raises:
            ConfigError: The callable of the user returned something else.
        """
        choose = self.rule.choose
        choice = None if choose is None else choose(request)
        try:
            return self._compiled[choice]
        except KeyError:
            return self._find(choice)
        except TypeError as error:
            raise ConfigError(f"{self.name}: {_EXPECTED}, found {choice!r}") from error

    def _find(self, choice: Any) -> CompiledLimit | None:
        if self.rule.tiers is not None:
            raise ConfigError(f"tier of {self.name}: {_unknown(choice, self.rule.tiers)}")
        if self._base is not None:
            return self._remember(choice, self._tier_of_file(choice))
        if choice is None:
            return None
        if not isinstance(choice, str | Limit):
            raise ConfigError(f"{self.name}: {_EXPECTED}, found {choice!r}")
        return self._remember(choice, choice)

    def _tier_of_file(self, choice: object) -> str:
        known = self._limiter.limits
        name = tier_name(self.name, str(choice))
        if not isinstance(choice, str) or name not in known:
            raise ConfigError(
                f"tier of {self.name}: {_unknown(choice, tiers_of(known, self.name))}"
            )
        return name

    def _remember(self, choice: object, limit: str | Limit) -> CompiledLimit:
        with self._lock:
            if len(self._compiled) >= _MAX_LIMITS:
                raise ConfigError(
                    f"{self.name}: the callable has returned {_MAX_LIMITS} different limits; "
                    f"use tiers, or overrides for single clients"
                )
            compiled = self._compiled[choice] = self._compile(limit, None)
        return compiled

    def names(self) -> list[str]:
        """Return the names of the tiers' limits, or those that were chosen so far."""
        if self._base is not None:
            base = self._base
            return [tier_name(base, tier) for tier in tiers_of(self._limiter.limits, base)]
        return [limit.name for limit in [*self._compiled.values()] if limit is not None]


_EXPECTED: Final = "limit must return a name, a rate string such as '30/minute', a Limit or None"


def tier_name(base: str, tier: str) -> str:
    """Return the name of a tier's limit, as the limits file names it."""
    return f"{base}_{tier}"


def tiers_of(known: Iterable[str], base: str) -> list[str]:
    """Return the tiers of a limit in the limits file."""
    prefix = tier_name(base, "")
    return [name.removeprefix(prefix) for name in known if name.startswith(prefix)]


def _unknown(choice: object, known: Iterable[str]) -> str:
    return f"there is no {choice!r}; {did_you_mean(str(choice), known)}"
