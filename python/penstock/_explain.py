"""Which limit applies to a client, what is left of it, and how to make its bucket full again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock._core import IPV6_PREFIX
from penstock.errors import StoreError
from penstock.messages import describe_limit, explain_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock._core import Limiter, Limits
    from penstock._explanation import Explanation


def explanation(limits: Limits, name: str, id: str, ipv6_prefix: int = IPV6_PREFIX) -> Explanation:
    """Return which limit applies to a client, with the id under which its requests count.

    For an IPv6 address, that is its network.

    Raises:
        UnknownLimit: No limit has this name.
        InvalidId: The id does not fit the limit.
    """
    address_id = limits.address_id(name, id, ipv6_prefix) if ":" in id else None
    return limits.explain(name, address_id or id)


def explain(
    limits: Limits, name: str, id: str, ipv6_prefix: int = IPV6_PREFIX
) -> dict[str, object]:
    """Return the facts of `explanation`; the keys are stable."""
    why = explanation(limits, name, id, ipv6_prefix)
    return {
        "name": why.name,
        "id": why.id,
        "limit": describe_limit(why.limit),
        "algorithm": why.limit.algorithm,
        "rule": why.rule,
        "file": why.file,
        "line": why.line,
        "comment": why.comment,
        "bucket_key": why.bucket_key,
        "admits": explain_limit(why.limit),
        "numbers": why.limit.describe(),
    }


def explain_bucket(
    limiter: Limiter, name: str, id: str, ipv6_prefix: int = IPV6_PREFIX
) -> dict[str, object]:
    """Return the facts of `explain`, and the tokens that remain in the bucket.

    `"remaining"` is `None` if the bucket is in another process, or the id is unlimited. If the
    store fails, `"store_error"` says why.

    Raises:
        UnknownLimit: As `explanation`.
        InvalidId: As `explanation`.
    """
    facts = explain(limiter.limits, name, id, ipv6_prefix)
    facts["remaining"] = None
    if not is_per_process(limiter):
        try:
            decision = limiter.check(name, str(facts["id"]), 0)
        except StoreError as error:
            facts["store_error"] = str(error)
        else:
            facts["remaining"] = None if decision.unlimited else decision.remaining
    return facts


def reset_bucket(
    limiter: Limiter, name: str, id: str, ipv6_prefix: int = IPV6_PREFIX
) -> dict[str, object]:
    """Make a bucket full, and return its key and whether it was used; the keys are stable.

    Raises:
        UnknownLimit: As `explanation`.
        InvalidId: As `explanation`.
        StoreError: The bucket is in another process, or the store failed.
    """
    why = explanation(limiter.limits, name, id, ipv6_prefix)
    if is_per_process(limiter):
        raise StoreError(
            f"the store {limiter.store} is in the memory of each process, and this command runs "
            f"in a process of its own; use a shared store"
        )
    return {"bucket_key": why.bucket_key, "was_used": limiter.reset(name, why.id)}


def reset_lines(facts: Mapping[str, object]) -> Iterator[str]:
    """Yield what `reset_bucket` returned as a line for a terminal."""
    yield f"{facts['bucket_key']}: {'reset' if facts['was_used'] else 'was full already'}"


def is_per_process(limiter: Limiter) -> bool:
    """Return whether the buckets of a limiter exist only in the process that created it."""
    return not limiter.is_shared


def fact_lines(facts: Mapping[str, object]) -> Iterator[str]:
    """Yield facts as aligned lines for a terminal, without those that are `None` or a mapping."""
    shown = {
        name.replace("_", " "): fact
        for name, fact in facts.items()
        if fact is not None and not isinstance(fact, Mapping)
    }
    width = max(map(len, shown), default=0)
    for name, fact in shown.items():
        is_number = isinstance(fact, int) and not isinstance(fact, bool)
        yield f"{name:<{width}}  {fact:,}" if is_number else f"{name:<{width}}  {fact}"


BUCKET_COMMANDS: Final = {
    "explain": (explain_bucket, fact_lines),
    "reset": (reset_bucket, reset_lines),
}
"""The bucket commands of all frameworks: a function, and how to print its result."""
