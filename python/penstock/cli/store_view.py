"""The reports of `penstock store`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import penstock
from penstock._core import inspect_store
from penstock.display import format_span, text_table
from penstock.explain import explanation, fact_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Report: TypeAlias = dict[str, Any]
"""The result of `inspect_store`, and `nearest`: the buckets of given clients."""

_MAX_BUCKETS: Final = 10
_MAX_WIDTH: Final = 60
# The counters and their descriptions.
_COUNTERS: Final = {
    "forgotten": "full buckets dropped",
    "evicted": "buckets evicted for lack of room",
    "shared": "calls decided in a shared bucket for lack of room",
    "refused": "calls refused for lack of room",
    "recovered_locks": "locks of killed processes recovered",
}
_WITHIN: Final = {
    "1s": "1 second",
    "1m": "1 minute",
    "1h": "1 hour",
    "1d": "1 day",
    "later": "later",
}


def report(limiter: penstock.Limiter, ids: Sequence[str]) -> Report:
    """Return a store's statistics and buckets; the keys are stable.

    Raises:
        InvalidId: An id fits none of the limits.
        StoreError: The store failed.
    """
    shown = inspect_store(limiter, _MAX_BUCKETS)
    shown["nearest"] = _nearest(limiter, ids) if ids else None
    return shown


def _nearest(limiter: penstock.Limiter, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the buckets of some clients that are not full, the nearest to its limit first."""
    # Its buckets are all full.
    fresh = penstock.Limiter(limiter.limits)
    buckets = [bucket for id in ids for bucket in _buckets(limiter, fresh, id)]
    used = [bucket for bucket in buckets if bucket["remaining"] < bucket["full"]]
    used.sort(key=lambda bucket: (bucket["remaining"] / bucket["full"], -bucket["reset_after"]))
    return used[:_MAX_BUCKETS]


def _buckets(limiter: penstock.Limiter, fresh: penstock.Limiter, id: str) -> list[dict[str, Any]]:
    """Return the buckets of one client under all limits whose ids have its format."""
    limits = limiter.limits
    buckets, misfit = [], None
    for name in limits:
        try:
            why = explanation(limits, name, id)
            decision = limiter.peek(name, why.id)
        except penstock.InvalidId as error:
            misfit = error
            continue
        buckets.append(
            {
                "bucket_key": why.bucket_key,
                "limit": name,
                "id": why.id,
                "remaining": decision.remaining,
                "full": fresh.peek(name, why.id).remaining,
                "reset_after": decision.reset_after,
            }
        )
    if misfit is not None and not buckets:
        raise misfit
    return buckets


def lines(shown: Report, before: Report | None = None, seconds: float = 1.0) -> Iterator[str]:
    """Yield a report as lines, with rates if there is an earlier one `seconds` before."""
    yield from fact_lines(_facts(shown) | _counters(shown, before, seconds))
    if shown["reset_within"] is not None:
        yield ""
        yield from _reset_times(shown["reset_within"])
    if shown["nearest"] is not None:
        yield "\nbuckets nearest to their limit"
        yield from _nearest_buckets(shown["nearest"])
    else:
        slots = [bucket for bucket in shown["slowest"] if bucket["slots"] is not None]
        others = [bucket for bucket in shown["slowest"] if bucket["slots"] is None]
        if others:
            yield "\nslowest buckets (--limits and --ids show those of given clients)"
            yield from _slowest_buckets(others, ("full again in", "counted"), "tally")
        if slots:
            yield "\nslots of requests in flight"
            yield from _slowest_buckets(slots, ("expire within", "held"), "slots")


def _reset_times(counts: Mapping[str, int]) -> list[str]:
    rows = [(_WITHIN[name], f"{count:,}") for name, count in counts.items()]
    return _table(("full again within", "buckets"), rows)


def _nearest_buckets(buckets: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            bucket["bucket_key"],
            f"{bucket['remaining']:,}",
            f"{bucket['full']:,}",
            _span(bucket["reset_after"]),
        )
        for bucket in buckets
    ]
    return _table(("bucket", "remaining", "of", "full again in"), rows)


def _slowest_buckets(
    buckets: Sequence[Mapping[str, Any]], heads: tuple[str, str], number: str
) -> list[str]:
    rows = []
    for bucket in buckets:
        count = bucket[number]
        rows.append((_span(bucket["reset_after"]), "" if count is None else f"{count:,}"))
    if any(bucket["bucket_key"] is None for bucket in buckets):
        return _table(heads, rows)
    keys = (bucket["bucket_key"] for bucket in buckets)
    named = [(key, *row) for key, row in zip(keys, rows, strict=True)]
    return _table(("bucket", *heads), named)


def _facts(shown: Report) -> dict[str, object]:
    buckets, capacity, age = shown["buckets"], shown["capacity"], shown["age"]
    if buckets is not None and capacity:
        buckets = f"{buckets:,} of {capacity:,} ({100 * buckets / capacity:.3g} %)"
    return {
        "store": shown["store"],
        "file": shown["file"],
        "created": None if age is None else f"{_span(age)} ago",
        "buckets": buckets,
        "bytes": shown["bytes"],
    }


def _counters(shown: Report, before: Report | None, seconds: float) -> dict[str, object]:
    counters: dict[str, object] = {}
    for name, meaning in _COUNTERS.items():
        count = shown[name]
        if count is not None and before is not None and before[name] is not None:
            # A store that was replaced meanwhile counts from 0.
            rate = max(0, count - before[name]) / max(seconds, 1e-9)
            counters[meaning] = f"{count:,} ({rate:,.0f}/s)"
        else:
            counters[meaning] = count
    return counters


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return text_table([heads, *rows], max_width=_MAX_WIDTH, is_numeric=True)


def _span(seconds: float) -> str:
    return format_span(round(seconds * 1e9))
