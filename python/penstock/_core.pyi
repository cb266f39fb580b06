"""The Rust core, typed. Times are float seconds unless a name ends in `_ns`."""

import asyncio
import enum
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Never, Self, TypeAlias, final, overload

import numpy
import numpy.typing
from typing_extensions import Buffer

from penstock._decisions import Decisions
from penstock._explanation import Explanation
from penstock._wait_queue import Ready
from penstock.errors import RateLimited
from penstock.types import (
    Algorithm,
    Anchor,
    AnyLimits,
    AnyTransaction,
    CalendarPeriod,
    Counts,
    DeniedBucket,
    Factor,
    Id,
    LimitFacts,
    Period,
    StoreStats,
    Transaction,
)

__all__ = [
    "BoundLimit",
    "Decision",
    "Limit",
    "Limiter",
    "Limits",
    "ManualClock",
    "Reservation",
    "SystemClock",
    "__version__",
]

__version__: Final[str]

_Path: TypeAlias = str | os.PathLike[str]

@final
class Limit:
    """Rate limit: an algorithm and its parameters.

    Limits are immutable, hashable, picklable and always valid.

    Examples:
        >>> penstock.Limit.parse("100/minute, burst 20")
        Limit.token_bucket(burst=20, count=100, period='1m')
    """

    def __new__(cls, *given: Never, **fields: Never) -> Self: ...
    @staticmethod
    def token_bucket(*, burst: int, count: int, period: Period) -> Limit:
        """Create a token bucket: at most `burst` tokens, refilled with `count` per `period`.

        Args:
            burst: Tokens in a full bucket, at least 1.
            count: Tokens added per period, at least 1.
            period: A string with units, seconds, or a `timedelta`.

        Raises:
            LimitError: A number is below 1, the rate cannot be expressed in whole nanoseconds
                within 0.1 %, or the bucket would take longer than 2**62 ns to fill.

        Examples:
            >>> penstock.Limit.token_bucket(burst=20, count=10, period="1m")
            Limit.token_bucket(burst=20, count=10, period='1m')
        """
    @staticmethod
    def leaky_bucket(*, size: int, drip_rate: Period = 1.0, drip_size: int = 1) -> Limit:
        """Create a leaky bucket of `size` requests, which drains `drip_size` per `drip_rate`.

        Args:
            size: Requests that the bucket holds, 1 to 1,048,575.
            drip_rate: Time between drips, in whole milliseconds.
            drip_size: Requests that leave with each drip, at least 1.

        Raises:
            LimitError: A number is out of range, or the time is not a whole number of milliseconds.

        Examples:
            >>> penstock.Limit.leaky_bucket(size=30, drip_rate="2s")
            Limit.leaky_bucket(size=30, drip_rate='2s', drip_size=1)
        """
    @staticmethod
    def leaky_bucket_from(
        *,
        max: int | None = None,
        duration: Period | None = None,
        min_interval: Period | None = None,
    ) -> Limit:
        """Create a leaky bucket from `max` requests per `duration`, `min_interval` apart.

        At least one argument is required. The result is unlimited if the arguments do not determine
        a rate: only `max` or only `duration`, a `duration` of 0, or only a `min_interval` of 0.

        Raises:
            LimitError: No argument is given, `max` is below 1, or a time is negative.

        Examples:
            >>> penstock.Limit.leaky_bucket_from(max=300, duration="1h", min_interval="1s")
            Limit.leaky_bucket(size=300, drip_rate='12s', drip_size=1)
        """
    @staticmethod
    def fixed_window(
        *,
        count: int,
        period: Period,
        anchor: Anchor = "first",
        phase: Period | Literal["per-key"] | None = None,
    ) -> Limit:
        """Create a fixed window: `count` tokens in each `period`.

        Args:
            count: Tokens per window, 1 to 1,048,575.
            period: Length of a window, in whole milliseconds.
            anchor: `"first"` starts a window at a bucket's first request, `"aligned"` at multiples
                of the period since 1970.
            phase: Offset of an aligned window, less than the period; `"per-key"` derives it from
                the bucket key, so that windows do not all end at the same time.

        Raises:
            LimitError: A number is out of range, a time is not a whole number of milliseconds, or
                `phase` is given without `anchor="aligned"`.

        Examples:
            >>> penstock.Limit.fixed_window(count=100, period="1h")
            Limit.fixed_window(count=100, period='1h')
        """
    @staticmethod
    def fixed_rate_window(
        *,
        count: int,
        period: Period,
        burst: int = 0,
        anchor: Anchor = "first",
        phase: Period | Literal["per-key"] | None = None,
    ) -> Limit:
        """Create a fixed window that spaces requests evenly and allows `burst` of them early.

        Args:
            count: Requests per window, at least 1; `count + burst` at most 1,048,575.
            period: Length of a window, in whole milliseconds.
            burst: Requests allowed before their time, at least 0.
            anchor: As in `fixed_window`.
            phase: As in `fixed_window`.

        Raises:
            LimitError: As in `fixed_window`.

        Examples:
            >>> penstock.Limit.fixed_rate_window(count=5, period=1)
            Limit.fixed_rate_window(count=5, period='1s', burst=0)
        """
    @staticmethod
    def in_flight(
        count: int, *, lease: Period = 30, retry_after: Period = 1, max_hold: Period | None = None
    ) -> Limit:
        """Create a limit of `count` requests in flight, whose slots are given back.

        `Limiter.reserve` takes a slot. One that is held for longer is renewed, so the lease is only
        the time after which the slots of a killed process are free again: one to two leases.

        Args:
            count: Slots, 1 to 16,383.
            lease: A time from 2 seconds to 24 hours.
            retry_after: The `Retry-After` of a denied client; it is unknown when a slot is free.
            max_hold: The longest time for which a slot is renewed, at least the lease; `None` for
                no limit. A slot that is held for longer expires, although its request still runs.

        Raises:
            LimitError: A number or a time is out of range, or `max_hold` is shorter than the lease.

        Examples:
            >>> penstock.Limit.in_flight(5)
            Limit.in_flight(count=5, lease='30s', retry_after='1s')
        """
    @staticmethod
    def calendar_window(*, count: int, period: CalendarPeriod, zone: str = "UTC") -> Limit:
        """Create a calendar window: `count` tokens in each day, week, month or year of a time zone.

        A window begins with the first instant of a local day, so a day may have 23 or 25 hours.

        Args:
            count: Tokens per window, 1 to 999,999,999.
            period: `"day"`, `"week"` (from Monday on), `"month"` or `"year"`.
            zone: Name of the time zone, such as `"Europe/Berlin"`. The time zone data are those of
                this package, not of the machine.

        Raises:
            LimitError: The count is out of range, or the period or zone is unknown.

        Examples:
            >>> penstock.Limit.calendar_window(count=10_000, period="month")
            Limit.calendar_window(count=10000, period='month', zone='UTC')
        """
    @staticmethod
    def unlimited() -> Limit:
        """Create a limit that allows every request."""
    @staticmethod
    def parse(text: str) -> Limit:
        """Create a limit from a rate string such as `100/minute` or `10 per 5 minutes, burst 20`.

        The result is a token bucket, whose burst equals the count unless given. With
        `, fixed window` or `, fixed-rate window` it is a window, which `, aligned` aligns. Units
        are second, minute, hour, day and week, with their plurals and short forms. `5 in flight`
        limits requests in flight; `, lease 2m` sets the lease, and `, max hold 10m` the longest
        time for which a slot is renewed. `1000 per calendar month, Europe/Berlin` is a calendar
        window: per day, week, month or year of a time zone, by default UTC.

        Raises:
            LimitError: The string is not a valid rate. The message marks the error.

        Examples:
            >>> penstock.Limit.parse("10 per 5 minutes, burst 20")
            Limit.token_bucket(burst=20, count=10, period='5m')
        """
    @property
    def algorithm(self) -> Algorithm:
        """The name of the algorithm in limits files."""
    @property
    def burst(self) -> int:
        """Tokens in a full bucket; for a fixed-rate window, requests allowed early."""
    @property
    def count(self) -> int:
        """Tokens added per period; for a limit on requests in flight, slots."""
    @property
    def zone(self) -> str:
        """The time zone of a calendar window."""
    @property
    def period(self) -> float | str:
        """The period in which `count` tokens are added, in seconds; a calendar window's word."""
    @property
    def period_ns(self) -> int:
        """The period in which `count` tokens are added, in nanoseconds."""
    @property
    def emission_interval(self) -> float:
        """Seconds between two tokens of a token bucket."""
    @property
    def burst_offset(self) -> float:
        """Seconds until an empty token bucket is full."""
    @property
    def size(self) -> int:
        """Requests that a leaky bucket holds."""
    @property
    def drip_rate(self) -> float:
        """Seconds between a leaky bucket's drips."""
    @property
    def drip_size(self) -> int:
        """Requests that a leaky bucket drains with each drip."""
    @property
    def lease(self) -> float:
        """The time for which a slot is kept at least, in seconds."""
    @property
    def retry_after(self) -> float:
        """The `Retry-After` of a client that is denied a slot, in seconds."""
    @property
    def max_hold(self) -> float | None:
        """The longest time for which a slot is renewed, in seconds; `None` if there is none."""
    @property
    def anchor(self) -> Anchor:
        """Start of a window: `"first"` (first request) or `"aligned"` (multiples of period)."""
    @property
    def phase(self) -> float | Literal["per-key"] | None:
        """The offset of an aligned window, in seconds or `"per-key"`; `None` if there is none."""
    @property
    def max_cost(self) -> int:
        """The highest cost that can ever be allowed, in tokens; 2**63 - 1 if unlimited."""
    def fields(self) -> dict[str, int | str]:
        """Return the parameters by name, as in a limits file.

        Durations are strings with units. An anchor of `first`, and a `max_hold` of `None`, are
        omitted. `Limit.from_fields` creates an equal limit from the result.

        >>> penstock.Limit.parse("100/minute").fields()
        {'burst': 100, 'count': 100, 'period': '1m'}
        """
    @staticmethod
    def from_fields(algorithm: str, fields: Mapping[str, Any]) -> Limit:
        """Create a limit of any algorithm from its parameters.

        Args:
            algorithm: Name of the algorithm in limits files, such as `"token-bucket"`.
            fields: The arguments of the constructor for that algorithm.

        Raises:
            LimitError: The algorithm is unknown, or a value is invalid.
            TypeError: A parameter is missing, unknown or of the wrong type.

        >>> penstock.Limit.from_fields("fixed-window", {"count": 5, "period": "1s"})
        Limit.fixed_window(count=5, period='1s')
        """
    @property
    def summary_template(self) -> str:
        """Summary of the limit in English, with the names of its fields in braces.

        Fill in the values to get a sentence for users, or look up a translation first.

        >>> penstock.Limit.parse("100/minute, burst 20").summary_template
        '{count} per {period}, {burst} at once'
        """
    def describe(self) -> LimitFacts | None:
        """Return how much the limit admits, or `None` if it is unlimited or on requests in flight.

        Returns:
            A dict with stable keys: `at_once`, the tokens that a full bucket allows at one instant;
            `refill_count`, the tokens added per `refill_interval_ns`, one by one if
            `evenly_spaced`; `per_day`, the long-term average per day, rounded down;
            `interval_ns`, a typical interval for the limit (its period, or the time in which a full
            leaky bucket drains); and `worst_in_interval`, the result of `worst_in` for it.

        >>> facts = penstock.Limit.parse("100/minute, burst 20").describe()
        >>> facts["at_once"], facts["per_day"], facts["worst_in_interval"]
        (20, 144000, 120)
        """
    def worst_in(self, interval: Period) -> int:
        """Return the maximum number of tokens that one client can take within any `interval`.

        The result is exact: a greedy client reaches it, and no client exceeds it. Both ends of the
        interval are included. Refunds and overdrafts are not. 2**63 - 1 if unlimited.

        Args:
            interval: A string with units, seconds, or a `timedelta`.

        Raises:
            LimitError: `interval` is negative or not a duration.

        >>> penstock.Limit.fixed_window(count=100, period="1m").worst_in("2s")
        199
        """
    def share(self, processes: int) -> Limit:
        """Return the limit for each of several processes that together admit as much as this limit.

        The result always allows at least one request at a time. An unlimited limit stays unlimited.

        Args:
            processes: Number of processes, at least 1.

        Raises:
            LimitError: `processes` is below 1, or the share is too slow for a limit.

        >>> penstock.Limit.parse("100/minute").share(4)
        Limit.token_bucket(burst=25, count=100, period='4m')
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Limits(Mapping[str, Limit]):
    """Named limits: a default for each name, and overrides for some ids.

    A read-only mapping of names to default limits. `Limits` are immutable and picklable.
    `limits | other` merges two of them, and `other` replaces limits of the same name.

    Examples:
        >>> limits = penstock.Limits({"Orders": "10/minute"}) | {"Mails": "5/hour"}
        >>> list(limits), limits["Mails"].count
        (['Orders', 'Mails'], 5)
    """

    def __new__(cls, limits: Limits | Mapping[str, Limit | str] = ..., /) -> Self: ...
    @staticmethod
    def load(
        defaults: _Path | Limits,
        overrides: _Path | None = None,
        names: type[enum.IntEnum] | None = None,
    ) -> Limits:
        """Load limits from a YAML file, and overrides from a second one.

        Args:
            defaults: Path of the limits file, or a `Limits` whose defaults are used.
            overrides: Path of the overrides file.
            names: An `IntEnum` with the allowed limit names and their numbers.

        Raises:
            ConfigError: A file cannot be read or is invalid.
        """
    @staticmethod
    def parse(
        defaults: str,
        overrides: str | None = None,
        names: type[enum.IntEnum] | None = None,
    ) -> Limits:
        """Load limits from YAML, and overrides from a second string.

        Raises:
            ConfigError: One of the strings is invalid.

        Examples:
            >>> limits = penstock.Limits.parse("Orders: {burst: 20, count: 10, period: 1m}")
            >>> limits.resolve("Orders", "ada").burst
            20
        """
    def resolve(self, name: str, id: Id) -> Limit:
        """Return the limit that applies to `id` under `name`.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not have the limit's id format.
        """
    def explain(self, name: str, id: Id) -> Explanation:
        """Return which limit applies to `id` under `name`, and where it is defined.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not have the limit's id format.

        Examples:
            >>> penstock.Limits({"Orders": "10/minute"}).explain("Orders", "ada").bucket_key
            'Orders:ada'
        """
    def address_id(self, name: str, address: str, ipv6_prefix: int = ...) -> str | None:
        """Return the id under which a limit counts the client at an address.

        IPv6 addresses with the same first `ipv6_prefix` bits are one client, whose id is the lowest
        of these addresses. Addresses with an override, for the address or for a smaller network,
        have a separate id.

        Args:
            name: The name of a limit.
            address: The client's address.
            ipv6_prefix: Leading bits that identify one client, from 1 to 128.

        Returns:
            The id; `None` if `address` is not an address.

        Raises:
            UnknownLimit: No limit has this name.

        >>> penstock.Limits({"Orders": "10/minute"}).address_id("Orders", "2001:DB8::7")
        '2001:db8::'
        """
    def with_overrides(
        self, rows: Iterable[tuple[object, ...] | None]
    ) -> tuple[Limits, list[tuple[int, str]]]:
        """Return these limits with new overrides, and the rows that were skipped.

        Invalid rows are skipped. If an id has two rows, the first is used. The previous overrides
        are removed.

        Args:
            rows: Tuples `(name, id, limit)` or `(name, id, limit, comment)`. A limit is a `Limit`,
                a rate string such as `"100/minute"`, or a mapping with the fields of an overrides
                file. The comment is a string or `None`. A row that is `None` is counted but
                ignored.

        Returns:
            The limits, and for each skipped row its index, from 0, and its error. In the result of
            `explain`, the file of an override is `<rows>` and the line is the number of its row,
            from 1.

        Raises:
            TypeError: `rows` is not iterable.

        >>> limits, problems = penstock.Limits({"Orders": "10/minute"}).with_overrides(
        ...     [("Orders", "ada", "100/minute"), ("Orders", "eve", "5/moth")]
        ... )
        >>> limits.resolve("Orders", "ada").burst, [index for index, _ in problems]
        (100, [1])
        """
    def without(self, name: str) -> Limits:
        """Return these limits without the one of this name.

        Raises:
            UnknownLimit: No limit has this name.
        """
    def to_yaml(self) -> str:
        """Return the defaults as the content of a limits file."""
    def overrides_to_yaml(self) -> str | None:
        """Return the overrides as the content of an overrides file; `None` if there are none."""
    def override_counts(self) -> dict[str, int]:
        """Return the number of overrides of each limit, including limits without overrides.

        Examples:
            >>> limits = penstock.Limits.parse(
            ...     "{Orders: {burst: 3, count: 1, period: 1s}}",
            ...     "[Orders: {burst: 9, count: 9, period: 1s, ids: [ada, grace]}]",
            ... )
            >>> limits.override_counts()
            {'Orders': 2}
        """
    def default(self, name: str) -> Limit | None:
        """Return the default limit of `name`; `None` if it has only overrides.

        Raises:
            UnknownLimit: No limit has this name.
        """
    def __getitem__(self, name: str, /) -> Limit: ...
    def __or__(self, other: Mapping[str, Limit | str], /) -> Limits: ...
    def __ror__(self, other: Mapping[str, Limit | str], /) -> Limits: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def _repr_html_(self) -> str: ...

@final
class SystemClock:
    """The clocks of the machine: a steady one, and the wall clock.

    Calendar windows, aligned windows and Unix times follow the wall clock, also when it is set
    while the process runs. All other limits count the time since the machine started, suspended
    time included, so no setting of the wall clock affects them. Calls that follow each other within
    about a microsecond can have the same time.
    """

    def __new__(cls) -> Self: ...
    def now_ns(self) -> int:
        """Return the time of the wall clock in nanoseconds since the Unix epoch."""
    def now(self) -> float:
        """Return the time of the wall clock in seconds since the Unix epoch."""
    def steady_ns(self) -> int:
        """Return the time in nanoseconds since the machine started.

        On Windows: since the process first read it.
        """

@final
class ManualClock:
    """Clock for tests, which changes only when it is moved.

    Args:
        start: Time shown at first: seconds, a `timedelta`, or a string such as `"1h"`.

    Examples:
        >>> clock = penstock.ManualClock()
        >>> limiter = penstock.Limiter({"Orders": "1/minute"}, clock=clock)
        >>> limiter.spend("Orders", "ada").allowed, limiter.spend("Orders", "ada").allowed
        (True, False)
        >>> clock.advance(60)
        >>> limiter.spend("Orders", "ada").allowed
        True
    """

    def __new__(cls, start: Period = 0) -> Self: ...
    def advance(self, by: Period) -> None:
        """Move the clock forwards.

        Args:
            by: Seconds, a `timedelta`, or a string such as `"2.5s"`; at least 0.

        Raises:
            ValueError: `by` is negative, or leads past 2**63 - 1 ns.

        Examples:
            >>> clock = penstock.ManualClock()
            >>> clock.advance(1.5)
            >>> clock.now_ns()
            1500000000
        """
    def advance_ns(self, by: int) -> None:
        """Move the clock forwards by `by` nanoseconds.

        Raises:
            ValueError: `by` is negative, or leads past 2**63 - 1 ns.
        """
    def set_ns(self, to: int, *, allow_backwards: bool = False) -> None:
        """Move the clock so that it shows `to` nanoseconds.

        Raises:
            ValueError: `to` is negative, or earlier than now without `allow_backwards`.
        """
    def set_wall_ns(self, to: int) -> None:
        """Set only the wall clock, forwards or backwards, as a time server does.

        Calendar windows, aligned windows and Unix times follow it. No time passes for other limits,
        and no timer is called.

        Raises:
            ValueError: `to` is negative.

        Examples:
            >>> clock = penstock.ManualClock(start=1_700_000_000)
            >>> limiter = penstock.Limiter({"Mails": "1 per calendar day"}, clock=clock)
            >>> limiter.spend("Mails", "ada").allowed, limiter.spend("Mails", "ada").allowed
            (True, False)
            >>> clock.set_wall_ns(clock.now_ns() + 86_400_000_000_000)
            >>> limiter.spend("Mails", "ada").allowed
            True
        """
    def now_ns(self) -> int:
        """Return the time of the wall clock in nanoseconds."""
    def now(self) -> float:
        """Return the time of the wall clock in seconds."""
    def steady_ns(self) -> int:
        """Return the time in nanoseconds that `set_wall_ns` does not change."""
    def set_timer(self, at_ns: int, callback: Callable[[], object]) -> tuple[int, int]:
        """Call `callback` when `steady_ns()` reaches `at_ns`; return the argument for `drop_timer`.

        A callback for an instant in the past is called the next time the clock is moved.
        """
    def drop_timer(self, timer: tuple[int, int]) -> None:
        """Remove a callback added with `set_timer`."""

@final
class Reservation:
    """Tokens taken before the actual cost is known, and slots of limits on requests in flight.

    `bool(reservation)` is whether they were allowed. As a context manager, with `with` or `async
    with`, a denied reservation raises `RateLimited` on entry. At the end of the block, slots are
    given back, and tokens that were not settled stay spent at the estimate; an exception refunds
    them. It is for one block: entered again, or after its end, it raises `ReservationError`. A
    reservation that is dropped without an end issues a `ResourceWarning`: its tokens stay spent,
    and its slots are given back. In a process that was forked off, it has no effect.

    Examples:
        >>> clock = penstock.ManualClock()
        >>> limiter = penstock.Limiter({"Tokens": "1000/minute"}, clock=clock)
        >>> with limiter.reserve("Tokens", "ada", 600) as reservation:
        ...     decision = reservation.settle(450)
        >>> decision.remaining
        550
    """

    @property
    def decision(self) -> Decision:
        """The decision about the estimates."""
    @property
    def estimate(self) -> int:
        """The tokens or slots that were reserved; of several limits, those of the strictest."""
    @overload
    def settle(self, name_or_actual: int, actual: None = None, /) -> Decision:
        """Replace the estimate by the actual tokens: return the difference, or charge it.

        `settle(actual)` settles a reservation of one limit immediately. `settle(name, actual)`
        settles one of several limits, with the call that ends the reservation.

        `actual` may exceed the burst. The charge overdraws the bucket by at most one full bucket;
        the rest is not taken. While the bucket is overdrawn, every spend is denied (a window
        forgets the overdraft when it ends). A denied reservation has taken no tokens, and `settle`
        returns its denied decision.

        Args:
            name_or_actual: The actual tokens, at least 0; the limit's name if several limits are
                reserved.
            actual: The actual tokens, after a name.

        Returns:
            With one argument: the decision, which is allowed if all of `actual` has been taken.
            After a charge, `retry_after` is the time until the bucket is no longer overdrawn.
            `cost` is `actual`.

        Raises:
            ReservationError: The reservation is already settled or cancelled, the store's reply was
                lost, the name is not among its limits, or the limit has slots.
            CostNegative: `actual` is below 0.
            StoreError: The store failed. The reservation can be settled later, unless the reply was
                lost (`StoreTimeout`): then it is unknown what is charged.

        Examples:
            >>> limiter = penstock.Limiter({"Tokens": "60/minute"}, clock=penstock.ManualClock())
            >>> limiter.reserve("Tokens", "ada", 50).settle(75).retry_after
            15.0
        """
    @overload
    def settle(self, name_or_actual: str, actual: int, /) -> None: ...
    def release(self) -> bool:
        """End the reservation: return its slots, and charge what was settled.

        Tokens that were not settled stay spent. The end of a `with` block calls it.

        Returns:
            Whether the reservation was open: it ends only once.

        Raises:
            StoreError: The store failed, and there are no slots. A slot is given back later if the
                store has not executed the call; otherwise it expires.
        """
    def release_nowait(self, *, is_cancelled: bool = False) -> bool:
        """End the reservation as `release` or `cancel` does, without waiting for the store.

        For a coroutine, and for callbacks at the end of a response: it never blocks, needs no
        event loop, and what it has begun is completed if the caller is cancelled.
        """
    def cancel(self) -> bool:
        """Return slots, and the tokens that were not settled; return whether it was open.

        Has no effect after the reservation was settled, cancelled or denied.

        Raises:
            StoreError: As `release`. The reservation can be cancelled later.
        """
    def abandon(self) -> None:
        """Forget the reservation, as a process that is killed does: for tests.

        Its slots expire after one to two leases; its tokens stay spent.
        """
    def __bool__(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __aenter__(self) -> Ready[Self]: ...
    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Ready[None]: ...
    def __reduce__(self) -> Never: ...

def check_transaction(transaction: Transaction) -> None:
    """Raise an error if an argument of a transaction is invalid under every limit."""

@final
class Decision:
    """Outcome of a rate-limit check, with the values for its response headers.

    `bool(decision)` is `decision.allowed`. Decisions are immutable, compare by value and can be
    pickled. Times are in seconds, or in nanoseconds if the name ends in `_ns`.

    Examples:
        >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
        >>> limiter.spend("Orders", "ada")
        <Decision Orders ada: allowed, remaining=1, reset_after=30s>
    """

    @property
    def allowed(self) -> bool:
        """Whether the request may proceed.

        A limit in shadow mode never makes this false; see `would_deny`. The decision of a refund is
        allowed if tokens were returned.
        """
    @property
    def would_deny(self) -> bool:
        """Whether a limit in shadow mode would have denied the request.

        For a decision about several limits: whether any of them would have.
        """
    @property
    def shadow_mode(self) -> bool:
        """Whether the limit is in shadow mode, so that it never denies.

        False for a refund, and for a decision about several limits.
        """
    @property
    def remaining(self) -> int:
        """Tokens left in the bucket after this decision.

        2**63 - 1 if nothing bounds it: no limit applies, or the store failed and the call was
        allowed without it. In `as_dict()`, this is `None`.
        """
    @property
    def retry_after(self) -> float:
        """Seconds until the same request could be allowed, even if this one was allowed.

        0 if it could be allowed immediately. If this request was allowed, the client need not wait:
        the value is the wait for a *second* request of the same cost, if nothing else is spent.
        """
    @property
    def retry_after_ns(self) -> int:
        """Nanoseconds until the same request could be allowed; see `retry_after`."""
    @property
    def retry_at(self) -> float:
        """Time when the same request could be allowed, in Unix seconds.

        Computed when it is read, so that it is right even if the wall clock was set meanwhile.
        """
    @property
    def reset_after(self) -> float:
        """Seconds until the bucket is full again, if nothing else is spent.

        For a window: until it ends.
        """
    @property
    def reset_after_ns(self) -> int:
        """Nanoseconds until the bucket is full again; see `reset_after`."""
    @property
    def reset_at(self) -> float:
        """Time when the bucket is full again, in Unix seconds; see `retry_at`."""
    @property
    def next_token_after_ns(self) -> int:
        """Nanoseconds until `remaining` grows by one token; 0 if it cannot grow."""
    @property
    def now_ns(self) -> int:
        """Time of the decision, in nanoseconds on the limiter's wall clock."""
    @property
    def limit(self) -> Limit:
        """The limit that was applied."""
    @property
    def name(self) -> str | None:
        """The limit's name; `None` if no limit applied."""
    @property
    def id(self) -> str | None:
        """The id in canonical form; `None` if no limit applied."""
    @property
    def cost(self) -> int:
        """Cost of the request in tokens."""
    @property
    def unlimited(self) -> bool:
        """Whether no limit applies to this id."""
    @property
    def degraded(self) -> str | None:
        """Why a fallback policy decided instead of the store; `None` if the store decided."""
    @property
    def description(self) -> str | None:
        """The limit's description from the limits file; `None` if it has none."""
    @property
    def docs(self) -> str | None:
        """The URL of the limit's documentation, from the limits file; `None` if it has none."""
    @property
    def binding(self) -> str | None:
        """The name of the limit that the numbers belong to; `None` if no limit applied.

        In a decision about several limits, this is the strictest one.
        """
    @property
    def parts(self) -> tuple[Decision, ...]:
        """The decisions of all transactions, in order; for a single call, only this decision."""
    def headers(self, style: str | Sequence[str] = "ietf") -> dict[str, str]:
        """Return the response headers in one or several styles.

        Args:
            style: Name of a style, or several names. docs/headers.md lists the styles.

        Raises:
            ConfigError: No style has this name, or two styles write the same field.

        Examples:
            >>> clock = penstock.ManualClock()
            >>> limiter = penstock.Limiter({"Orders": "6/minute"}, clock=clock)
            >>> limiter.spend("Orders", "ada").headers()["RateLimit"]
            '"Orders";r=5;t=10'
        """
    def as_dict(self) -> dict[str, Any]:
        """Return the decision as a dictionary that `json.dumps` accepts.

        The keys are the names of the attributes. `remaining` is `None` if nothing bounds it: for an
        unlimited call, and for one that was decided without the store. A decision about several
        limits also has `parts`, a list of such dictionaries.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> decision = limiter.spend("Orders", "ada").as_dict()
            >>> decision["allowed"], decision["remaining"], decision["reset_at"]
            (True, 1, 30.0)
        """
    def raise_if_denied(self) -> None:
        """Raise `RateLimited` if the request was denied.

        Raises:
            RateLimited: The request was denied. The exception has the decision.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "1/minute"}, clock=penstock.ManualClock())
            >>> limiter.spend("Orders", "ada").raise_if_denied()
            >>> try:
            ...     limiter.spend("Orders", "ada").raise_if_denied()
            ... except penstock.RateLimited as error:
            ...     error.decision.retry_after
            60.0
        """
    def settle(self, actual: int) -> None:
        """Replace the reserved cost of the request by its actual cost.

        For the view of a web application whose limit has `settle=True`. The header fields of the
        response show the result. A view that has started to stream its response can still settle.

        Args:
            actual: Tokens, at least 0; more than the limit's burst leaves a debt.

        Raises:
            ReservationError: The request has no reservation.
            CostNegative: `actual` is below 0.
        """
    def replace(
        self,
        *,
        allowed: bool = ...,
        cost: int = ...,
        remaining: int = ...,
        retry_after_ns: int = ...,
        degraded: str | None = ...,
        shadow_mode: bool = ...,
        parts: Sequence[Decision] = ...,
        settle: Callable[[int], object] = ...,
    ) -> Decision:
        """Return a copy with the given attributes changed.

        For code that decides instead of the store, or delays a request.

        Args:
            allowed: Whether the limit allows the request.
            cost: Tokens.
            remaining: Tokens left in the bucket, at least 0; the next one comes after the wait.
            retry_after_ns: The wait in nanoseconds, at least 0.
            degraded: Reason why the store did not decide; `None` if it did.
            shadow_mode: Whether the limit is in shadow mode, so that it never denies.
            parts: The decisions of the single limits.
            settle: Called with the cost that is passed to `settle`.
        """
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: object, /) -> Self: ...
    def _repr_html_(self) -> str: ...

@final
class LimitEntry:
    """Name, rules and header fields of a limit.

    Has no reference to the limiter, so that a decision does not keep the limiter alive.
    """
    def __new__(cls, limits: Limits, name: str) -> Self: ...
    def decision(
        self, id: Id, now_ns: int, row: tuple[int, int, int, int, int, bool, bool]
    ) -> Decision:
        """Return a decision of this limit from its row of the columns."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

def arrow(
    flags: Sequence[tuple[str, bytes]], numbers: Sequence[tuple[str, Buffer]]
) -> tuple[object, object]:
    """Return columns as capsules of the Arrow protocol: their schema, and a stream of one batch."""

@final
class BoundLimit:
    """One limit of a limiter, with the same methods without the name: the fast path.

    Returned by `Limiter.limit`. A `reload` of the limiter applies to it.

    Examples:
        >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
        >>> orders = limiter.limit("Orders")
        >>> orders.spend("ada").remaining
        1
    """

    @property
    def name(self) -> str:
        """The limit's name."""
    def spend(
        self, id: Id, cost: int = 1, *, factor: Factor | None = None, keep: int = 0
    ) -> Decision:
        """Take `cost` tokens from the bucket of `id`, if available.

        The same as `Limiter.spend` without the name.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> orders = limiter.limit("Orders")
            >>> bool(orders.spend("ada", 2)), bool(orders.spend("ada"))
            (True, False)
        """
    def check(
        self, id: Id, cost: int = 1, *, factor: Factor | None = None, keep: int = 0
    ) -> Decision:
        """Return the decision that `spend` would return, without taking tokens.

        The same as `Limiter.check` without the name.
        """
    @property
    def is_remote(self) -> bool:
        """Whether the store is a remote server, so that a call waits for a reply."""
    @property
    def may_wait(self) -> bool:
        """Whether a call may wait for a server or for another process."""
    def refund(self, id: Id, cost: int = 1, *, factor: Factor | None = None) -> Decision:
        """Return `cost` tokens to the bucket of `id`.

        The same as `Limiter.refund` without the name.
        """
    def charge(
        self, id: Id, cost: int = 1, *, factor: Factor | None = None, keep: int = 0
    ) -> Decision:
        """Take `cost` tokens that were used already from the bucket of `id`.

        The same as `Limiter.charge` without the name.
        """
    def address_id(self, address: str, ipv6_prefix: int = ...) -> str | None:
        """Return the id under which the limit counts the client at an address.

        The same as `Limits.address_id` without the name.
        """
    def reset(self, id: Id) -> bool:
        """Clear the bucket of `id`, and return whether it existed."""
    def peek(self, id: Id) -> Decision:
        """Return the bucket of `id` as it is now, without taking tokens.

        The same as `Limiter.peek` without the name.
        """
    def reserve(
        self,
        id: Id,
        estimate: int = 1,
        *,
        factor: Factor | None = None,
        keep: int = 0,
        timeout: Period | None = None,
    ) -> Reservation:
        """Take `estimate` tokens before the cost is known, to be settled later.

        The same as `Limiter.reserve` without the name.
        """
    def acquire(
        self, id: Id, cost: int = 1, *, timeout: Period | None = None, keep: int = 0
    ) -> Decision:
        """Wait until the bucket of `id` has `cost` tokens, and take them.

        The same as `Limiter.acquire` without the name.
        """
    def spend_each(
        self, ids: Iterable[Id], costs: int | Iterable[int] | None = None, *, keep: int = 0
    ) -> Decisions:
        """Take tokens for many ids in one call, as independent decisions.

        The same as `Limiter.spend_each` without the name.
        """

@final
class Limiter:
    """Rate limiter with its limits, store and clock.

    It can be shared between threads. A `with` block closes it at the end.

    Args:
        limits: `Limits`, the path of a limits file, or a dict of names to limits or rate strings.
        store: URL of the store, such as `shm://myapp` or `redis://localhost`.
        clock: Time source; the system clock by default.

    Raises:
        ConfigError: The limits or the URL are invalid.
        LimitError: A rate string is invalid.

    Examples:
        >>> limiter = penstock.Limiter({"Orders": "100/minute"})
        >>> limiter.spend("Orders", "ada").allowed
        True
    """

    def __new__(
        cls,
        limits: AnyLimits,
        store: str = "memory://",
        clock: SystemClock | ManualClock | None = None,
    ) -> Self: ...
    @property
    def limits(self) -> Limits:
        """The active limits, including those added with `define`."""
    @property
    def clock(self) -> SystemClock | ManualClock:
        """The clock of the limiter."""
    @property
    def store(self) -> str:
        """The URL of the store, without its password."""
    @property
    def is_shared(self) -> bool:
        """Whether the store's buckets can be shared with other processes."""
    @property
    def is_remote(self) -> bool:
        """Whether the store is a remote server, so that a call waits for a reply."""
    @property
    def may_wait(self) -> bool:
        """Whether a call may wait for a server or for another process."""
    def spend(
        self, name: str, id: Id, cost: int = 1, *, factor: Factor | None = None, keep: int = 0
    ) -> Decision:
        """Take `cost` tokens from the bucket of `id` under the limit `name`, if available.

        A denied spend takes no tokens.

        Args:
            name: Name of a loaded limit.
            id: The client. Any spelling: it is normalized here (`2001:DB8::1` is `2001:db8::1`).
            cost: Tokens, from 0 to the limit's `max_cost`; 0 takes none.
            factor: The divisor of a leaky bucket's size; 0 lifts the limit for this call.
            keep: Tokens that must be left after this call, for more important requests. `remaining`
                does not include them.

        Returns:
            The decision.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not fit the limit's format.
            CostTooHigh: `cost`, or `cost` and `keep` together, exceed what the limit can hold.
            CostNegative: `cost` or `keep` is below 0.
            LimitError: `factor` is negative, or the limit is not a leaky bucket.
            StoreError: The store failed, or the limiter is closed.

        Examples:
            >>> clock = penstock.ManualClock()
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=clock)
            >>> [limiter.spend("Orders", "ada").allowed for _ in range(3)]
            [True, True, False]
            >>> clock.advance(30)
            >>> limiter.spend("Orders", "ada").allowed
            True
        """
    def check(
        self, name: str, id: Id, cost: int = 1, *, factor: Factor | None = None, keep: int = 0
    ) -> Decision:
        """Return the decision that `spend` would return, without taking tokens.

        Its numbers are those **after** the spend: use `peek` for the bucket as it is now. Raises as
        `spend` does.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> limiter.check("Orders", "ada").remaining, limiter.peek("Orders", "ada").remaining
            (1, 2)
        """
    def refund(self, name: str, id: Id, cost: int = 1, *, factor: Factor | None = None) -> Decision:
        """Return `cost` tokens to the bucket of `id` under the limit `name`.

        A refund never fills a bucket beyond full. Raises as `spend` does.

        Returns:
            The decision; it is allowed if tokens were returned.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> limiter.spend("Orders", "ada").remaining, limiter.refund("Orders", "ada").remaining
            (1, 2)
        """
    def charge(
        self, name: str, id: Id, cost: int = 1, *, factor: Factor | None = None, keep: int = 0
    ) -> Decision:
        """Take `cost` tokens that were used already from the bucket of `id` under `name`.

        A charge refuses nothing: it overdraws the bucket where tokens are missing, by at most one
        full bucket, and takes nothing from a bucket that is overdrawn already, so a client's wait
        is bounded. Spends are denied until the overdraft is repaid. A charge is not counted in
        `counts`.

        Args:
            name: Name of a loaded limit.
            id: The client, as in `spend`.
            cost: Tokens, at least 0; any number of them, even above what the limit ever allows.
            factor: As in `spend`.
            keep: Tokens for others: a bucket with fewer of them counts as overdrawn.

        Returns:
            The decision; it is allowed if all of `cost` was taken. `retry_after` is the time until
            the bucket is no longer overdrawn.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not have the limit's id format.
            CostNegative: `cost` is negative.
            LimitError: The limit is on requests in flight.
            StoreError: The store failed, or the limiter is closed.

        Examples:
            >>> limiter = penstock.Limiter({"Tokens": "100/minute"}, clock=penstock.ManualClock())
            >>> limiter.charge("Tokens", "ada", 130).retry_after
            18.0
            >>> limiter.spend("Tokens", "ada").allowed
            False
        """
    def reset(self, name: str, id: Id) -> bool:
        """Clear the bucket of `id` under the limit `name`, and return whether it existed.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not have the limit's id format.
            StoreError: The store failed, or the limiter is closed.
        """
    def peek(self, name: str, id: Id) -> Decision:
        """Return the bucket of `id` as it is now, without taking tokens.

        The same as `check` with a cost of 0. Raises as `spend` does.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> limiter.peek("Orders", "ada").remaining
            2
        """
    def reset_all(self, buckets: Iterable[tuple[str, Id]] | None = None) -> int:
        """Clear several buckets, and return how many of them existed.

        All names and ids are checked before the first bucket is cleared.

        Args:
            buckets: Tuples of a limit name and an id. `None` means all buckets of the store,
                including those of other processes that share it.

        Raises:
            UnknownLimit: No limit has one of the names.
            InvalidId: An id does not have its limit's id format.
            StoreError: The store failed, or the limiter is closed.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> decision = limiter.spend("Orders", "ada")
            >>> limiter.reset_all([("Orders", "ada"), ("Orders", "grace")])
            1
            >>> limiter.reset_all()
            0
        """
    def reserve(
        self,
        name: str,
        id: Id,
        estimate: int = 1,
        *,
        factor: Factor | None = None,
        keep: int = 0,
        timeout: Period | None = None,
    ) -> Reservation:
        """Take `estimate` tokens before the cost is known, or slots for requests in flight.

        Tokens are settled later; slots are given back at the end of the reservation. A denied
        reservation takes nothing. A reservation is settled under the limit that was active when it
        was made, even after a `reload`. Raises as `spend` does.

        With a `timeout`, the call waits in order of arrival: for tokens as `acquire` does, and for
        slots until one is returned. When that happens is unknown, so an error is raised at the end
        of the timeout.

        Args:
            name: Name of a loaded limit.
            id: The client.
            estimate: Tokens, from 0 to the limit's `max_cost`.
            factor: As in `spend`.
            keep: As in `spend`. Settling may take these tokens.
            timeout: Longest acceptable wait: a string such as `"5s"`, seconds, or a `timedelta`; 0
                never waits. `None` never waits either, and returns a denied reservation in place of
                an error.

        Raises:
            RateLimited: Nothing could be reserved within the timeout.
            TypeError: `factor` is given together with `timeout`.

        Examples:
            >>> clock = penstock.ManualClock()
            >>> limiter = penstock.Limiter({"Tokens": "1000/minute"}, clock=clock)
            >>> reservation = limiter.reserve("Tokens", "ada", 600)
            >>> bool(reservation), reservation.settle(450).remaining
            (True, 550)
        """
    def reserve_all(
        self, transactions: Iterable[AnyTransaction], *, timeout: Period | None = None
    ) -> Reservation:
        """Take tokens and slots of several limits in one decision: all of them or none.

        The end of the reservation is one call, too: slots are given back, and what was settled is
        charged. Tokens that were not settled stay spent, or are refunded if the body raises.

        With a `timeout`, the call waits as `acquire_all` does, also for slots. It is unknown when
        a slot is returned, so a call that gets none raises at the end of the timeout.

        Args:
            transactions: As for `spend_all`.
            timeout: As in `reserve`.

        Raises:
            RateLimited: Not everything could be reserved within the timeout.
            TransactionError: Two transactions have the same bucket.
            TypeError: A transaction has a factor, and there is a timeout.
            Error: As `reserve` raises. Nothing is taken then.

        Examples:
            >>> limiter = penstock.Limiter(
            ...     {"Tokens": "1000/minute", "Calls": "5 in flight"}, clock=penstock.ManualClock()
            ... )
            >>> with limiter.reserve_all([("Tokens", "ada", 600), ("Calls", "ada")]) as reservation:
            ...     reservation.settle("Tokens", 450)
            >>> limiter.peek("Tokens", "ada").remaining, limiter.peek("Calls", "ada").remaining
            (550, 5)
        """
    def acquire_all(
        self, transactions: Iterable[AnyTransaction], *, timeout: Period | None = None
    ) -> Decision:
        """Wait until several limits allow a call, and take all of its tokens at once.

        Nothing is taken in advance, so every limit allows the call at the instant at which it is
        made, and a wait that ends early has nothing to return. The call waits in the queue of the
        limit that denies it, in order of arrival with the callers of `acquire`. It also waits for
        transactions of the kind `"check"`.

        Args:
            transactions: As for `spend_all`, without limits on requests in flight.
            timeout: As in `acquire`.

        Returns:
            The allowed decision, as `spend_all` returns it.

        Raises:
            RateLimited: The wait would exceed the timeout.
            TransactionError: Two transactions have the same bucket.
            TypeError: A transaction has a factor.
            Error: As `spend_all` raises. No tokens are taken then.

        Examples:
            >>> clock = penstock.ManualClock()
            >>> limiter = penstock.Limiter({"User": "9/minute", "Site": "1/minute"}, clock=clock)
            >>> limiter.acquire_all([("User", "ada"), ("Site", "shop")]).allowed
            True
            >>> try:
            ...     limiter.acquire_all([("User", "ada"), ("Site", "shop")], timeout=10)
            ... except penstock.RateLimited as error:
            ...     error.decision.name, error.decision.retry_after
            ('Site', 60.0)
        """
    def acquire(
        self,
        name: str,
        id: Id,
        cost: int = 1,
        *,
        timeout: Period | None = None,
        keep: int = 0,
    ) -> Decision:
        """Wait until the bucket of `id` under `name` has `cost` tokens, and take them.

        Waiters are served in order of arrival. Other threads can run while this one waits; in a
        coroutine, use `AsyncLimiter.acquire`. With a `ManualClock`, the call waits until another
        thread moves the clock.

        Waiters that keep tokens come after those that keep fewer, and take none in advance: other
        calls may take the tokens that they wait for.

        Args:
            name: Name of a loaded limit.
            id: The client.
            cost: Tokens, from 0 to the limit's `max_cost`.
            timeout: Longest acceptable wait: a string such as `"5s"`, seconds, or a `timedelta`; 0
                never waits, `None` waits as long as necessary.
            keep: As in `spend`.

        Returns:
            The allowed decision, with the numbers of the bucket at that time.

        Raises:
            RateLimited: The wait would exceed the timeout. Raised as soon as this is known, usually
                immediately. The `retry_after` of its decision is the wait.
            ValueError: `timeout` is negative or not a number.
            Error: As `spend` raises. No tokens are taken then.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> [limiter.acquire("Orders", "ada").remaining for _ in range(2)]
            [1, 0]
            >>> try:
            ...     limiter.acquire("Orders", "ada", timeout=10)
            ... except penstock.RateLimited as error:
            ...     error.decision.retry_after
            30.0
        """
    def spend_all(self, transactions: Iterable[AnyTransaction]) -> Decision:
        """Take tokens from several buckets in one decision: from all of them or from none.

        The result has the numbers of the strictest limit: denied before allowed, then the longer
        wait, then fewer remaining tokens. Its `parts` are the decisions of all transactions.

        Args:
            transactions: `Transaction` objects, or tuples of their first fields.

        Raises:
            TransactionError: Two transactions have the same bucket.
            Error: As `spend` raises for one transaction. No tokens are taken then.

        Examples:
            >>> limiter = penstock.Limiter({"User": "9/minute", "Address": "1/minute"})
            >>> limiter.spend_all([("User", "ada"), ("Address", "192.0.2.1")]).allowed
            True
            >>> limiter.spend_all([("User", "ada"), ("Address", "192.0.2.1")]).binding
            'Address'
        """
    def check_all(self, transactions: Iterable[AnyTransaction]) -> Decision:
        """Return the decision that `spend_all` would return, without taking tokens."""
    def refund_all(self, transactions: Iterable[AnyTransaction]) -> Decision:
        """Return tokens to several buckets, as independent refunds. Raises as `spend_all` does."""
    def spend_each(
        self,
        name: str,
        ids: Iterable[Id],
        costs: int | Iterable[int] | None = None,
        *,
        keep: int = 0,
    ) -> Decisions:
        """Take tokens for many ids under one limit in one call, as independent decisions.

        All are decided at the same instant, in order.

        Args:
            name: Name of a loaded limit.
            ids: The clients.
            costs: One cost for all, one per id, or `None` for 1 each.
            keep: As in `spend`, for each id.

        Raises:
            ValueError: `ids` and `costs` differ in length.
            Error: As `spend` raises for one id, with a note that gives its position. If an id or a
                cost is invalid, no tokens are taken.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> limiter.spend_each("Orders", ["ada", "ada", "ada", "grace"]).remaining.tolist()
            [1, 0, 0, 1]
        """
    def limit(self, name: str) -> BoundLimit:
        """Return one limit, with the same methods without the name: the fast path.

        A `reload` applies to it. If the limit no longer exists, its methods raise `UnknownLimit`.

        Raises:
            UnknownLimit: No limit has this name.
        """
    def define(self, name: str, limit: Limit | str) -> BoundLimit:
        """Add a limit, which is kept by `reload`.

        Raises:
            ConfigError: The name is taken or invalid.
            LimitError: The rate string is invalid.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"})
            >>> limiter.define("Searches", "30/minute").name
            'Searches'
        """
    def reload(self, limits: AnyLimits) -> None:
        """Replace the limits atomically. Buckets keep their state, and defined limits are kept.

        Takes limits as the constructor does.

        Raises:
            ConfigError: The limits are invalid, a limit has the name of a different one that was
                added with `define`, or a limit keeps overrides and loses its default. The active
                limits are then unchanged.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute", "Mails": "9/hour"})
            >>> limiter.reload(limiter.limits | {"Orders": "3/minute"})
            >>> limiter.limits["Orders"].count, limiter.limits["Mails"].count
            (3, 9)
        """
    def stats(self) -> StoreStats:
        """Return the statistics of the store.

        `store` is its URL. The other values are numbers, or `None` if the store does not count
        them. `buckets` is the number of buckets that are not full, `capacity` is `None` if the
        store can grow, and `forgotten` is the number of full buckets that were removed. For a
        bounded store without free space, `evicted` counts evicted buckets, `shared` calls that used
        the bucket shared by new ids, and `refused` refused calls. `recovered_locks` counts locks
        that the kernel released because a process was killed while it added a bucket to a shared
        table.

        For a server, `failing` is whether calls fail immediately because previous calls failed, and
        `failures` counts how often this state began. `denied_locally` counts calls denied without
        asking the server, and `healed` counts foreign values that were replaced by buckets.
        `calls` has the latencies of all calls to the server, by operation (`spend`, `check`,
        `refund`, `charge`, `several`, `reset` or `other`) and then by result (`answered`, `error`,
        `timeout`, `lost` or `unavailable`). These values are per process.
        """
    def counts(self) -> dict[str, Counts]:
        """Return the numbers of decisions by limit name since the limiter was created.

        Limits removed by `reload` are included, so no number ever decreases. Calls that raise are
        not counted. In a call about several limits, each limit counts its own decision. A caller
        that waits is counted once, when it is served or refused. Also works on a closed limiter.

        Of a limit on requests in flight, `held` is how many slots this process holds, `expired` how
        often slots had expired when they were given back, and `renewed_late` when they were
        renewed.

        `timed` has the latencies, in real time, of about 1 in 256 calls of `spend`, `check` and
        `refund`, including calls about several limits; `spend_each` is not timed.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> for _ in range(3):
            ...     decision = limiter.spend("Orders", "ada")
            >>> limiter.counts()["Orders"]["spends"]
            {'allowed': 2, 'denied': 1, 'shadow_denied': 0}
        """
    def top_denied(self, name: str | None = None, n: int = 10) -> list[DeniedBucket]:
        """Return the buckets with the most denials, in descending order.

        Denials of `spend` and `check` count, including those of limits in shadow mode. Each limit
        tracks 64 ids. A count may be too high by at most `error`, which is at most 1/64 of the
        limit's denials, and an id with more than 1/64 of them is always listed. After the first
        1,024 denials of a thread, about 1 in 16 is recorded, with a weight of 16. Ids are truncated
        to 128 bytes.

        Args:
            name: One limit; `None` for all.
            n: Maximum number of buckets.

        Raises:
            UnknownLimit: No limit has this name.
            ValueError: `n` is below 0.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> for _ in range(5):
            ...     decision = limiter.spend("Orders", "ada")
            >>> limiter.top_denied()
            [{'bucket_key': 'Orders:ada', 'name': 'Orders', 'id': 'ada', 'denied': 3, 'error': 0}]
        """
    def close(self) -> None:
        """Return all slots that are held, and close the store; later calls raise `StoreError`.

        Slots that the store does not take back are logged, and expire.
        """
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Replies:
    """Outstanding calls of one event loop to a server, and their replies.

    The event loop calls `deliver` when `fileno()` is readable. A loop that cannot watch files
    passes `wake`, which is called on another thread and must make the loop call `deliver`.
    """
    def __new__(cls, wake: Callable[[], object] | None = None) -> Self: ...
    def fileno(self) -> int:
        """Return the file descriptor that is readable when replies have arrived.

        Raises:
            OSError: There is none, because `wake` is used.
        """
    def deliver(self) -> None:
        """Set the result of each future whose reply has arrived."""
    def read(self) -> None:
        """Read from the connection that the event loop drives itself, and do as `deliver` does.

        The event loop calls it when that connection is readable, as long as it makes one call at a
        time.
        """
    @overload
    def call(
        self,
        event_loop: asyncio.AbstractEventLoop,
        verb: Literal["reserve"],
        bound: BoundLimit,
        id: Id,
        cost: int = 1,
        factor: Factor | None = None,
        keep: int = 0,
    ) -> Reservation | asyncio.Future[Reservation] | None:
        """Return a decision or reservation that needs no reply, or a future of `event_loop`.

        `None` if the call must be made in a thread because the limiter has waiters or it would wait
        for another process. An acquire is a spend that is refunded if the future is cancelled. The
        future of a reservation must not be cancelled: what is taken would be held until its lease
        ends. Raises as the method of `BoundLimit` does, except for errors that depend on the reply.
        """
    @overload
    def call(
        self,
        event_loop: asyncio.AbstractEventLoop,
        verb: Literal["spend", "check", "refund", "acquire"],
        bound: BoundLimit,
        id: Id,
        cost: int = 1,
        factor: Factor | None = None,
        keep: int = 0,
    ) -> Decision | asyncio.Future[Decision] | None: ...
    def end(
        self, event_loop: asyncio.AbstractEventLoop, reserved: Reservation, is_cancelled: bool
    ) -> asyncio.Future[Decision] | None:
        """End a reservation; return a future of `event_loop` that is done when the server replies.

        None if there is no server. What was sent is executed even if the future is cancelled.
        """
    @overload
    def call_all(
        self,
        event_loop: asyncio.AbstractEventLoop,
        verb: Literal["reserve"],
        limiter: Limiter,
        transactions: Iterable[AnyTransaction],
    ) -> Reservation | asyncio.Future[Reservation] | None:
        """Return the decision on several transactions, or their reservation, or a future of it.

        `None` if the call must be made in a thread because it needs several servers or would wait
        for another process, or the limiter has waiters. Raises as `Limiter.spend_all` does, except
        for errors that depend on the replies.
        """
    @overload
    def call_all(
        self,
        event_loop: asyncio.AbstractEventLoop,
        verb: Literal["spend", "check", "refund"],
        limiter: Limiter,
        transactions: Iterable[AnyTransaction],
    ) -> Decision | asyncio.Future[Decision] | None: ...

@final
class Waiter:
    """Caller that waits until a limit allows its cost, or several limits do.

    `notify` is called, from any thread, when `step` must be called again; it must not wait. After
    the first `step`, `leave` must be called in the end.
    """

    def step(self) -> bool:
        """Return whether the waiter was served.

        If not, call again after `delay()` or when notified.

        Raises:
            RateLimited: The wait would be longer than the timeout.
            Error: As `BoundLimit.spend` raises.
        """
    def result(self) -> Any:
        """Return the decision or, with `reserves`, the reservation of a waiter that was served.

        Raises:
            ReservationError: The waiter was not served yet, or this was called before.
        """
    def delay(self) -> float | None:
        """Return the seconds until the next `step`; `None` to wait for `notify`."""
    def leave(self) -> None:
        """Leave the queues.

        Unless the caller has the result, what was taken is returned, and the waiters behind move
        up.
        """

def waiter(
    bound: BoundLimit,
    id: Id,
    cost: int,
    timeout_ns: int | None,
    notify: Callable[[], object],
    *,
    reserves: bool = False,
    keep: int = 0,
) -> Waiter:
    """Create a waiter for one limit.

    Raises:
        Error: As `BoundLimit.reserve` raises.
    """

def waiter_of_several(
    limiter: Limiter,
    transactions: Iterable[AnyTransaction],
    timeout_ns: int | None,
    notify: Callable[[], object],
    *,
    reserves: bool = False,
) -> Waiter:
    """Create a waiter for several limits, whose transactions are decided together.

    Raises:
        TypeError: A transaction has a factor.
        Error: As `Limiter.reserve_all` raises.
    """

def open_existing(url: str, limits: AnyLimits) -> Limiter:
    """Open a store that exists, and return a limiter with it.

    Args:
        url: URL of the store. Options for new stores have no effect.
        limits: The limits of the limiter, as its constructor takes them.

    Raises:
        ConfigError: The URL or the limits are invalid.
        StoreUnavailable: The store does not exist, or only its own process can reach it.
    """

def try_spend(bound: BoundLimit, id: Id, cost: int = 1) -> Decision | None:
    """Take tokens as `BoundLimit.spend` does, if that need not wait for another process.

    None if it would have to wait, or raise an error: nothing was taken, and `spend` is to be called
    on another thread.
    """

def restore_limit(limiter: Limiter, name: str, limits: Limits) -> bool:
    """Add the limit `name` of `limits`, with its overrides, if the limiter has none of this name.

    The next `reload` removes it. Returns whether it was added.
    """

def unlimited_decision(now_ns: int, degraded: str | None = None) -> Decision:
    """Return the decision on a request that no limit counts, which is that of `spend_all([])`.

    Args:
        now_ns: The instant of the decision, in nanoseconds since the Unix epoch.
        degraded: Why the store was not asked, or None.
    """

def header_fields(
    decision: Decision | Sequence[Decision], own: Iterable[tuple[str, str]] | None = None, /
) -> list[tuple[str, str]]:
    """Return the `ietf` fields of a decision, or of several about one request, as names and values.

    What a field cannot represent is left out: unlimited ids, and limits whose name is not ASCII.

    Args:
        decision: The decision or decisions.
        own: Fields of the response, which come first; `None` for none.
    """

def encoded_header_fields(
    decision: Decision | Sequence[Decision], own: Iterable[tuple[bytes, bytes]] | None = None, /
) -> list[tuple[bytes, bytes]]:
    """Return `header_fields` as ASGI servers take them: bytes, with names in lower case."""

def header_values(decision: Decision) -> tuple[str | None, int, int | None, int, int]:
    """Return the values of `penstock.headers.HeaderValues`."""

def rate_limited_error(decision: Decision, wait_ns: int) -> RateLimited:
    """Return the `RateLimited` error for a caller whose turn would come too late, in `wait_ns`."""

def set_default_clock(
    clock: SystemClock | ManualClock | None, /
) -> SystemClock | ManualClock | None:
    """Set the clock of limiters that are created without one, and return the previous one.

    `None` is the system clock.
    """

def reserve_timeout_ns(timeout: Period | None, factor: Factor | None = None) -> int | None:
    """Return the timeout of a reservation in nanoseconds; `None` if it does not wait.

    Raises:
        ValueError: The timeout is negative or not a number.
        TypeError: There is also a factor. It changes the limit, so the call cannot wait in one
            queue with others.
    """

def timeout_ns(timeout: Period | None) -> int | None:
    """Return a timeout in nanoseconds; `None` to wait as long as necessary.

    Raises:
        ValueError: The timeout is negative or not a number.
    """

@final
class Simulator:
    """Simulation of one limit, which evaluates events in batches.

    Use `penstock.simulate` instead, which is built on this class and accepts more types of columns.

    Args:
        limits: A limit, or limits with their overrides.
        name: The limit to evaluate; optional if there is only one.
        denies_excess: Whether an event that costs more than its limit can ever admit is denied with
            a `retry_after` of 0; otherwise it is an error.

    Raises:
        UnknownLimit: No limit has this name.
        ValueError: There are several limits and no name.
    """

    def __new__(
        cls,
        limits: Limit | Limits | Mapping[str, Limit | str],
        name: str | None = None,
        *,
        denies_excess: bool = False,
    ) -> Self: ...
    def number(self, ids: list[str], *, skip_invalid: bool = False) -> Buffer:
        """Return the number of the client of each id, and add new ones.

        Ids that share a bucket are one client.

        Args:
            ids: The ids.
            skip_invalid: Whether to return 2**32 - 1 for an invalid id instead of raising.

        Raises:
            InvalidId: An id does not have the limit's id format.
        """
    def ids(self) -> list[str]:
        """Return the canonical ids of the clients, by number."""
    def limit_of(self, client: int) -> Limit:
        """Return the limit that applies to a client.

        Raises:
            ValueError: No client has this number.
        """
    def feed(
        self,
        times: numpy.typing.NDArray[numpy.int64],
        clients: numpy.typing.NDArray[numpy.uint32] | None,
        costs: numpy.typing.NDArray[numpy.int64] | None,
        durations: numpy.typing.NDArray[numpy.int64] | None,
        allowed: numpy.typing.NDArray[numpy.uint8],
        remaining: numpy.typing.NDArray[numpy.int64] | None = None,
        retry_after_ns: numpy.typing.NDArray[numpy.int64] | None = None,
        reset_after_ns: numpy.typing.NDArray[numpy.int64] | None = None,
    ) -> None:
        """Evaluate events, and write the requested columns of the decisions into arrays.

        The next call continues with the same buckets. Other Python threads can run during the call.

        Args:
            times: Nanoseconds since the clock's origin, in ascending order.
            clients: Client numbers; `None` for the first client.
            costs: Tokens; `None` for 1 each.
            durations: How long each request takes, in nanoseconds, which limits on requests in
                flight need.
            allowed: Receives 1 for each allowed event, otherwise 0.
            remaining: Receives the remaining tokens; optional.
            retry_after_ns: Receives the wait for the same cost; optional.
            reset_after_ns: Receives the wait until the bucket is full; optional.

        Raises:
            CostError: A cost is impossible under this limit.
            ValueError: Times are not ascending, a client does not exist, lengths differ, or there
                are no durations where they are needed.
            RuntimeError: The simulator is in use by another thread, or stopped at an error.
        """

    def count(
        self,
        times: numpy.typing.NDArray[numpy.int64],
        clients: numpy.typing.NDArray[numpy.uint32] | None,
        costs: numpy.typing.NDArray[numpy.int64] | None,
        durations: numpy.typing.NDArray[numpy.int64] | None,
        allowed: numpy.typing.NDArray[numpy.uint8],
    ) -> None:
        """Evaluate events as `feed` does, and add the decisions to `totals()` and `bins()`.

        Raises as `feed`.
        """

    def totals(self) -> dict[str, Any]:
        """Return the totals of the events that `count` evaluated.

        Columns of clients: `events`, `denied`, `longest_wait_ns` (of a denied event), and
        `in_flight`, the most requests in flight at once, which is empty without durations. Numbers:
        `most_in_flight`, of all clients together, or `None` without durations; `peaks`, the most
        tokens admitted at one instant, in any second and in any minute; `waits`, the denied events
        by ranges of their wait; `excess`, those that cost more than their limit ever admits;
        `first_ns` and `last_ns`, the times of the first event and of the last, or 0.
        """

    def bins(self, max_bins: int) -> tuple[int, int, Buffer, Buffer]:
        """Return the counted events over time, in at most `max_bins` bins of a round width.

        They are the start of the first bin and the width of each, in nanoseconds, and columns of
        bins: events, and denied events. A single bin is at least a second wide.
        """

    def tally(
        self,
        times: numpy.typing.NDArray[numpy.int64],
        clients: numpy.typing.NDArray[numpy.uint32] | None,
        costs: numpy.typing.NDArray[numpy.int64] | None,
        durations: numpy.typing.NDArray[numpy.int64] | None,
    ) -> tuple[Buffer, Buffer]:
        """Evaluate events as `feed` does, and return columns of clients.

        They are the fewest tokens that were left after an allowed event (2**63 - 1 if there is
        none), and the number of denied events.

        Raises as `feed`.
        """

def busiest(
    times: numpy.typing.NDArray[numpy.int64],
    codes: numpy.typing.NDArray[numpy.uint32] | None,
    costs: numpy.typing.NDArray[numpy.int64] | None,
    clients: int,
    period_ns: int,
) -> Buffer:
    """Return for each client the most tokens that it spends in one period.

    Periods begin at multiples of `period_ns` since the clock's origin.

    Raises:
        ValueError: The period is not positive, lengths differ, or a code is not below `clients`.
    """

IPV6_PREFIX: Final[int]
"""Leading bits of an IPv6 address that identify one client: one subscriber has at least a /64."""

def canonical_address(text: str, ipv6_prefix: int) -> str | None:
    """Return the canonical form of a client address from a header; `None` if it is not an address.

    Brackets, a port and a zone are removed. IPv4-mapped addresses and addresses in the NAT64 prefix
    `64:ff9b::/96` become IPv4. Other IPv6 addresses, except link-local ones, are truncated to their
    first `ipv6_prefix` bits.

    Args:
        text: The address, at most 128 bytes.
        ipv6_prefix: Leading bits that identify one client, from 1 to 128.

    >>> penstock._core.canonical_address("[2001:DB8::1]:443", 64)
    '2001:db8::'
    >>> penstock._core.canonical_address("unknown", 64)
    """

def factorise(ids: list[Any]) -> tuple[Buffer, list[str]]:
    """Return the number of each id, in order of first occurrence, and the ids by number.

    Raises:
        TypeError: A value is not an id.
    """

def factorise_fixed(items: numpy.typing.NDArray[numpy.uint32], width: int) -> tuple[Buffer, Buffer]:
    """Return the number of each item of `width` 32-bit words, and the indices of first occurrences.

    Raises:
        ValueError: The length is not a multiple of `width`.
    """

_LogCounts: TypeAlias = tuple[int, int, int, int, int, list[tuple[int, str, str]], str | None]

@final
class LogParser:
    """Parses blocks of a log's text to columns of events; used by `penstock.simulate`.

    The parts of an event have slots: 0 is the time, 1 the cost, 2 to 7 the fields of the id, 8 the
    duration. The parts of requests are `method`, `target` and `path`. `take` counts lines read,
    skipped, without an id, late and filtered, and returns the first lines that do not parse, and
    the first directive of a W3C log that names other fields.
    """

    @staticmethod
    def of_lines(
        fields: Sequence[tuple[str, Sequence[str], str]], tail: str, is_open: bool, options: object
    ) -> LogParser:
        """Make a parser of lines with text between their fields.

        A field is the text before it, its names and its kind: `number`, `text` or `cell`. The
        lines of an open format may continue after a blank.
        """
    @staticmethod
    def of_objects(options: object) -> LogParser:
        """Make a parser of lines with JSON objects, before which may be other text."""
    @staticmethod
    def address(text: str) -> str | None:
        """Return the address in a field, without marks around it, or the first one of a list.

        >>> penstock._core.LogParser.address('client="192.0.2.1:443", 10.0.0.1')
        '192.0.2.1'
        """
    @staticmethod
    def timestamp(text: str, zone: str) -> int:
        """Return a time in nanoseconds since 1970; one without a zone is in `zone`.

        Raises:
            ValueError: The text is no time, or there is no such zone.

        >>> penstock._core.LogParser.timestamp("2026-11-21T06:25:17+01:00", "UTC")
        1795238717000000000
        """
    def fields(self, line: str) -> dict[str, str] | None:
        """Return the values of all fields of a line; None if it does not have the format."""
    def feed(self, block: bytes) -> int:
        """Parse one more block; return the number of events to take."""
    def finish(self) -> None:
        """Parse the last line, which may have no line end."""
    def take(self) -> tuple[Buffer, Buffer, Buffer, Buffer, _LogCounts]:
        """Return the columns and counts of the events since the last call."""
    def ids(self, first: int) -> list[str]:
        """Return the ids from number `first` on, in order of their codes."""

def matches_pattern(text: str, pattern: str) -> bool:
    """Return whether a whole string matches a pattern.

    `*` stands for any characters, and `?` for any character.

    >>> penstock._core.matches_pattern("/order/7", "/order/*")
    True
    >>> penstock._core.matches_pattern("a", "[ab]")
    False
    """

def limit_shapes() -> dict[str, tuple[str | None, str, str | None]]:
    """Return the parameters of each algorithm of which `recommend` finds the values.

    They are those for tokens at once, for tokens per period, and for the period.

    >>> penstock._core.limit_shapes()["leaky-bucket"]
    ('size', 'drip_size', 'drip_rate')
    """

def parse_duration(duration: Period, name: str = "duration") -> int:
    """Convert a duration to nanoseconds.

    Args:
        duration: A string such as `1h30m`, seconds, or a `timedelta`; at least 0.
        name: Name of the argument in error messages.

    Raises:
        LimitError: The string is not a duration, or the duration is out of range.
        TypeError: The type is not supported.

    >>> penstock._core.parse_duration("250ms")
    250000000
    """
