"""A limit of a rule, bound to a limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, cast

from penstock.validation import is_whole
from penstock.web.rule import MAX_COST, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock._core import BoundLimit, Decision, Reservation
    from penstock.types import Factor, Id, StorePolicy, TransactionKind
    from penstock.web.address import PeerIds
    from penstock.web.penalty import Penalty
    from penstock.web.request import Request
    from penstock.web.rule import Rule

Entry: TypeAlias = "tuple[CompiledLimit, Id, int]"
"""A limit, an id and a cost: one transaction of a request."""

# A factor or a keep is a role's, and there are few roles.
_MAX_ADJUSTED: Final = 1024


class CompiledLimit:
    """One limit of a rule, bound to a limiter.

    Attributes:
        name: The limit's name.
        bound: The limit of the limiter; its methods pass the factor and the tokens to keep.
        unadjusted: The same, whose methods pass neither.
        id_of: Returns the id of a request.
        ids_of_peers: The ids of requests by the address of the peer; an id is `None` if `id_of` has
            to look at the address. `None` if more of the request is needed.
        is_ipv6_only: Whether its ids are addresses, and it does not apply to IPv4.
        factor: What the size of a leaky bucket is divided by; `None` for no factor.
        keep: How many tokens a request leaves for more important ones.
        penalty: What happens to clients that exceed it; `None` for nothing.
        is_deferred: Whether it is only checked before the view, and spent after it.
        holds: Whether it takes slots, which are given back when the response has been sent.
        is_settled: Whether the response or the view tells what is spent.
        refunds_on_error: Whether it is refunded if the view raises.
        is_chosen: Whether `choose` returns the limit with the factor and keep of a request.
        is_plain: Whether a request has to be read for its id only, and is decided at once.
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
        is_deferred = rule.is_settled and not (rule.reserve or holds)
        self.holds = False
        self.is_settled = rule.is_settled
        self.refunds_on_error = rule.refund_on_error
        if holds:
            self.hold()
        self.rule: Final = rule
        self.name: Final = bound.name
        self.factor: Final = factor
        self.keep: Final = keep
        self.unadjusted: Final = bound
        is_adjusted = factor is not None or keep > 0
        self.bound: Final = _adjusted(bound, factor, keep) if is_adjusted else bound
        self.id_of: Final = id_of
        self.ids_of_peers: Final = ids_of_peers
        self.is_ipv6_only: Final = is_ipv6_only
        self.penalty: Final = penalty
        self.cost: Final = cost if isinstance(cost, int) else 1
        self.cost_of: Final = None if isinstance(cost, int) else cost
        self.on_store_error: Final = on_store_error
        self.is_shadow: Final = rule.mode == "shadow"
        self.kind: Final[TransactionKind] = (
            "spend_only" if self.is_shadow else "check" if is_deferred else "spend"
        )
        self.is_deferred: Final = is_deferred
        # It neither decides nor is spent before the response, and a batch has no kind for that.
        self.is_shadow_deferred: Final = self.is_shadow and is_deferred
        self._adjusted: Final[dict[object, CompiledLimit]] = {}
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
            given = self.rule.factor(request)
            factor = 1 if given is None else given
        if callable(self.rule.keep):
            keep = self.rule.keep(request)
            if not is_whole(keep, 0, MAX_COST):
                raise TypeError(f"keep must return an integer from 0, found {keep!r}")
        # Equal numbers of different types are one key, and one factor.
        found = self._adjusted.get((factor, keep))
        if found is None:
            if len(self._adjusted) >= _MAX_ADJUSTED:
                self._adjusted.clear()
            found = self._adjusted[factor, keep] = CompiledLimit(
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
        return found

    def applies_to_id(self, id: Id) -> bool:
        """Return whether the limit applies to an address."""
        return not self.is_ipv6_only or (isinstance(id, str) and ":" in id)


def _adjusted(bound: BoundLimit, factor: Factor | None, keep: int) -> BoundLimit:
    return cast("BoundLimit", _AdjustedLimit(bound, factor, keep))


class _AdjustedLimit:
    """A bound limit whose methods pass a factor, and tokens to keep."""

    def __init__(self, bound: BoundLimit, factor: Factor | None, keep: int) -> None:
        self.name: Final = bound.name
        self._bound: Final = bound
        self._factor: Final = factor
        self._keep: Final = keep

    def spend(self, id: Id, cost: int = 1) -> Decision:
        """Take tokens."""
        return self._bound.spend(id, cost, factor=self._factor, keep=self._keep)

    def check(self, id: Id, cost: int) -> Decision:
        """Decide without taking tokens."""
        return self._bound.check(id, cost, factor=self._factor, keep=self._keep)

    def reserve(self, id: Id, estimate: int) -> Reservation:
        """Take tokens before the cost is known."""
        return self._bound.reserve(id, estimate, factor=self._factor, keep=self._keep)
