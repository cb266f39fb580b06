"""The Rust core, typed. Times are float seconds unless a name ends in `_ns`."""

import asyncio
import datetime
import enum
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, final

import numpy
import numpy.typing
from typing_extensions import Buffer

from penstock.errors import RateLimited
from penstock.types import (
    Algorithm,
    Anchor,
    AnyTransaction,
    Counts,
    DeniedBucket,
    Factor,
    Id,
    LimitFacts,
    Period,
    StoreStats,
    TransactionKind,
)
from penstock.wait_queue import Ready

__all__ = [
    "BoundLimit",
    "Decision",
    "Decisions",
    "Explanation",
    "Limit",
    "Limiter",
    "Limits",
    "ManualClock",
    "Reservation",
    "SystemClock",
    "Transaction",
    "__version__",
]

__version__: Final[str]

_Path: TypeAlias = str | os.PathLike[str]

@final
class Limit:
    """One rate limit: how much, how fast, and by which algorithm.

    Limits are immutable, hashable, picklable and always valid: the constructors refuse anything
    else.

    Examples:
        >>> penstock.Limit.parse("100/minute, burst 20")
        Limit.token_bucket(burst=20, count=100, period='1m')
    """

    @staticmethod
    def token_bucket(*, burst: int, count: int, period: Period) -> Limit:
        """Create a token bucket: at most `burst` tokens, refilled with `count` per `period`.

        Args:
            burst: Tokens in a full bucket, at least 1.
            count: Tokens added per period, at least 1.
            period: A text with units, seconds, or a `timedelta`.

        Raises:
            LimitError: A number is below 1, the rate cannot be expressed in whole nanoseconds
                within 0.1 %, or the bucket would take longer than 2**62 ns to fill.

        Examples:
            >>> penstock.Limit.token_bucket(burst=20, count=10, period="1m")
            Limit.token_bucket(burst=20, count=10, period='1m')
        """
    @staticmethod
    def leaky_bucket(*, size: int, drip_rate: Period = 1.0, drip_size: int = 1) -> Limit:
        """Create a leaky bucket: it holds `size` requests and drains `drip_size` every `drip_rate`.

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

        At least one argument is needed. The result is unlimited if they state no rate: `max` or
        `duration` alone, a `duration` of 0, or a `min_interval` of 0 alone.

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
            phase: Shift of an aligned window, less than the period; `"per-key"` derives it from the
                bucket key, so that windows do not all end at once.

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
        """Create a fixed window that spaces its requests evenly, and allows `burst` of them early.

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
    def unlimited() -> Limit:
        """Create a limit that allows everything."""
    @staticmethod
    def parse(text: str) -> Limit:
        """Create a limit from a text such as `100/minute` or `10 per 5 minutes, burst 20`.

        It is a token bucket, whose burst equals the count unless given. `, fixed window` and
        `, fixed-rate window` make it a window, and `, aligned` aligns that. Units are second,
        minute, hour, day and week, with their plurals and short forms.

        Raises:
            LimitError: The text is not a rate; the message points at the fault.

        Examples:
            >>> penstock.Limit.parse("10 per 5 minutes, burst 20")
            Limit.token_bucket(burst=20, count=10, period='5m')
        """
    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, as a limits file spells it."""
    @property
    def burst(self) -> int:
        """Tokens in a full bucket; for a fixed-rate window, requests allowed early."""
    @property
    def count(self) -> int:
        """Tokens added per period."""
    @property
    def period(self) -> float:
        """The period in which `count` tokens are added, in seconds."""
    @property
    def period_ns(self) -> int:
        """The period in which `count` tokens are added, in nanoseconds."""
    @property
    def emission_interval(self) -> float:
        """Seconds between two tokens of a token bucket."""
    @property
    def emission_interval_ns(self) -> int:
        """Nanoseconds between two tokens of a token bucket."""
    @property
    def burst_offset(self) -> float:
        """Seconds in which an empty token bucket fills."""
    @property
    def burst_offset_ns(self) -> int:
        """Nanoseconds in which an empty token bucket fills."""
    @property
    def size(self) -> int:
        """Requests that a leaky bucket holds."""
    @property
    def drip_rate(self) -> float:
        """Seconds between a leaky bucket's drips."""
    @property
    def drip_rate_ns(self) -> int:
        """Nanoseconds between a leaky bucket's drips."""
    @property
    def drip_size(self) -> int:
        """Requests that leave a leaky bucket with each drip."""
    @property
    def anchor(self) -> Anchor:
        """Where a window starts: at the first request, or at multiples of the period."""
    @property
    def phase(self) -> float | Literal["per-key"] | None:
        """The shift of an aligned window, in seconds; `None` if there is none."""
    @property
    def max_cost(self) -> int:
        """The highest cost that can ever be allowed, in tokens; 2**63 - 1 if unlimited."""
    def fields(self) -> dict[str, int | str]:
        """Return the parameters by name, as a limits file spells them.

        Times are texts with units. An anchor of `first` is left out. `Limit.from_fields` makes an
        equal limit from them.

        >>> penstock.Limit.parse("100/minute").fields()
        {'burst': 100, 'count': 100, 'period': '1m'}
        """
    @staticmethod
    def from_fields(algorithm: str, fields: Mapping[str, Any]) -> Limit:
        """Make a limit of any algorithm from its parameters.

        Args:
            algorithm: Its name in a limits file, such as `"token-bucket"`.
            fields: The arguments of the constructor for that algorithm.

        Raises:
            LimitError: There is no such algorithm, or the constructor refuses a value.
            TypeError: A parameter is missing, unknown or of the wrong type.

        >>> penstock.Limit.from_fields("fixed-window", {"count": 5, "period": "1s"})
        Limit.fixed_window(count=5, period='1s')
        """
    @property
    def summary_template(self) -> str:
        """The limit in a few English words, with the names of its fields in braces.

        A text for people is made by filling in the values, or those of a translation.

        >>> penstock.Limit.parse("100/minute, burst 20").summary_template
        '{count} per {period}, {burst} at once'
        """
    def describe(self) -> LimitFacts | None:
        """Return how much the limit admits, or `None` if it is unlimited.

        Returns:
            Stable keys: `at_once`, the tokens at one instant from a full bucket; `refill_count`
            tokens that come back in each `refill_interval_ns`, one by one if `evenly_spaced`;
            `per_day`, the tokens in a day in the long run, rounded down; `interval_ns`, a length of
            time that suits the limit (its period, or the time in which a full leaky bucket
            drains); and `worst_in_interval`, what `worst_in` returns for it.

        >>> facts = penstock.Limit.parse("100/minute, burst 20").describe()
        >>> facts["at_once"], facts["per_day"], facts["worst_in_interval"]
        (20, 144000, 120)
        """
    def worst_in(self, interval: Period) -> int:
        """Return the most tokens that one client can get within `interval`, wherever it begins.

        Exact, both ends of the interval included: a client that wants to can get as many, none gets
        more. Refunds and overdrafts come on top. 2**63 - 1 if unlimited.

        Args:
            interval: A text with units, seconds, or a `timedelta`.

        Raises:
            LimitError: `interval` is negative or not a length of time.

        >>> penstock.Limit.fixed_window(count=100, period="1m").worst_in("2s")
        199
        """
    def share(self, processes: int) -> Limit:
        """Return the share of one of several processes that together admit what this limit does.

        At least one request at once remains, and an unlimited limit stays unlimited.

        Args:
            processes: How many there are, at least 1.

        Raises:
            LimitError: `processes` is below 1, or the share is slower than a limit can be.

        >>> penstock.Limit.parse("100/minute").share(4)
        Limit.token_bucket(burst=25, count=100, period='4m')
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Explanation:
    """Which limit applies to an id, and why.

    Returned by `Limits.explain`. Can be pickled.
    """

    @property
    def name(self) -> str:
        """The limit's name."""
    @property
    def id(self) -> str:
        """The id in canonical form."""
    @property
    def bucket_key(self) -> str:
        """The key of the bucket, `number:id` or `name:id`."""
    @property
    def limit(self) -> Limit:
        """The limit that applies."""
    @property
    def rule(self) -> str:
        """The rule that selected the limit, in English."""
    @property
    def file(self) -> str | None:
        """The file of the entry that applies; `None` if it came from no file."""
    @property
    def line(self) -> int | None:
        """The line of the entry that applies, from 1; `None` if unknown."""
    @property
    def shadow(self) -> bool:
        """Whether the limit is in shadow mode."""
    @property
    def description(self) -> str | None:
        """The limit's description from the limits file; `None` if it has none."""
    @property
    def docs(self) -> str | None:
        """The URL of the limit's documentation; `None` if it has none."""
    @property
    def comment(self) -> str | None:
        """The comment of the override that applies; `None` if it has none."""

@final
class ExistingStore:
    """A store that other processes have made, for `penstock store`. It is never created here.

    Args:
        url: URL of the store. Options for new stores have no effect.
        limits: The limits of `limiter`, a `Limits` or a dict.

    Raises:
        ConfigError: The URL or the limits are invalid.
        StoreUnavailable: There is no such store, or only its own process can reach it.

    Examples:
        >>> import tempfile
        >>> from penstock._core import ExistingStore
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     url = f"shm://{folder}/table"
        ...     with penstock.Limiter({"Orders": "2/minute"}, store=url) as limiter:
        ...         decision = limiter.spend("Orders", "ada")
        ...     store = ExistingStore(url, {})
        ...     store.inspect(10)["buckets"], store.clear()
        (1, 1)
    """

    def __new__(cls, url: str, limits: Limits | Mapping[str, Limit | str]) -> Self: ...
    @property
    def limiter(self) -> Limiter:
        """A limiter with this store."""
    def inspect(self, n: int) -> dict[str, Any]:
        """Return the store's statistics and its slowest buckets.

        Returns:
            Stable keys: those of `Limiter.stats`; `file`, its path; `age`, the seconds since it was
            created; `reset_within`, how many buckets are full again within a second, a minute, an
            hour, a day or later; and `slowest`, the `n` buckets that are full again last. Each has
            `reset_after`, in seconds (an upper bound if there is a tally), and `tally`, what a
            window or a leaky bucket has counted, and `bucket_key`.
            A value is `None` if the store cannot tell.

        Raises:
            StoreError: The store failed.
        """
    def clear(self) -> int:
        """Reset all buckets, and return how many there were.

        Raises:
            StoreError: The store failed.
        """

@final
class Limits(Mapping[str, Limit]):
    """Named limits: defaults for everyone, and overrides for some ids.

    A read-only mapping of names to the limits for everyone. Limits are immutable and picklable;
    `limits | other` returns both, where `other` replaces limits of the same name.

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
            ConfigError: A file cannot be read or is invalid. Nothing is loaded then.
        """
    @staticmethod
    def parse(
        defaults: str,
        overrides: str | None = None,
        names: type[enum.IntEnum] | None = None,
    ) -> Limits:
        """Load limits from YAML text, and overrides from a second text.

        Raises:
            ConfigError: A text is invalid.

        Examples:
            >>> limits = penstock.Limits.parse("Orders: {burst: 20, count: 10, period: 1m}")
            >>> limits.resolve("Orders", "ada").burst
            20
        """
    def resolve(self, name: str, id: Id) -> Limit:
        """Return the limit that applies to `id` under `name`.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not fit the limit's format.
        """
    def explain(self, name: str, id: Id) -> Explanation:
        """Return which limit applies to `id` under `name`, and where it was written.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not fit the limit's format.

        Examples:
            >>> penstock.Limits({"Orders": "10/minute"}).explain("Orders", "ada").bucket_key
            'Orders:ada'
        """
    def address_id(self, name: str, address: str, ipv6_prefix: int = ...) -> str | None:
        """Return the id under which a limit counts the client at an address.

        IPv6 addresses with the same first `ipv6_prefix` bits are one client, whose id is the lowest
        of them. An override for one of these addresses, or for a smaller network, applies to its
        addresses alone, which then have an id of their own.

        Args:
            name: The name of a limit.
            address: The client's address.
            ipv6_prefix: From 1 to 128.

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
        """Return these limits with other overrides, and the rows that are left out.

        A row that is wrong costs that row only; of two rows for one id the first is kept. The
        overrides that there were are dropped.

        Args:
            rows: Tuples `(name, id, limit)` or `(name, id, limit, comment)`. A limit is a `Limit`,
                a text such as `"100/minute"`, or a mapping with the fields of an overrides file.
                The comment is a text or `None`. `None` in place of a tuple is a row that is
                counted, and no override.

        Returns:
            The limits, and for each row that is left out its index, from 0, and what is wrong with
            it. `explain` calls the origin of an override `<rows>`, with the number of the row, from
            1, as its line.

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
        """Return the defaults as the text of a limits file."""
    def overrides_to_yaml(self) -> str | None:
        """Return the overrides as the text of an overrides file; `None` if there are none."""
    def override_counts(self) -> dict[str, int]:
        """Return the number of overrides of each limit, also of limits without any.

        Examples:
            >>> limits = penstock.Limits.parse(
            ...     "{Orders: {burst: 3, count: 1, period: 1s}}",
            ...     "[Orders: {burst: 9, count: 9, period: 1s, ids: [ada, grace]}]",
            ... )
            >>> limits.override_counts()
            {'Orders': 2}
        """
    def default(self, name: str) -> Limit | None:
        """Return the limit for everyone under `name`; `None` if it has only overrides.

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
    """Monotonic system clock on the scale of the Unix epoch.

    It reads the wall clock once, when it is created. Later changes of the system time have no
    effect on limits.
    """

    def __new__(cls) -> Self: ...
    def now_ns(self) -> int:
        """Return the time in nanoseconds since the Unix epoch."""
    def now(self) -> float:
        """Return the time in seconds since the Unix epoch."""

@final
class ManualClock:
    """Clock for tests, which changes only when it is moved.

    Args:
        start: Time shown at first, in seconds or as a `timedelta`.

    Examples:
        >>> clock = penstock.ManualClock()
        >>> limiter = penstock.Limiter({"Orders": "1/minute"}, clock=clock)
        >>> limiter.spend("Orders", "ada").allowed, limiter.spend("Orders", "ada").allowed
        (True, False)
        >>> clock.advance(60)
        >>> limiter.spend("Orders", "ada").allowed
        True
    """

    def __new__(cls, start: float | datetime.timedelta = 0) -> Self: ...
    def advance(self, by: Period) -> None:
        """Move the clock forwards.

        Args:
            by: Seconds, a `timedelta`, or a text such as `"2.5s"`; at least 0.

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
        """Set the time to `to` nanoseconds.

        Raises:
            ValueError: `to` is negative, or earlier than now without `allow_backwards`.
        """
    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
    def now(self) -> float:
        """Return the time in seconds."""
    def set_timer(self, at_ns: int, callback: Callable[[], object]) -> tuple[int, int]:
        """Call `callback` when the clock passes `at_ns`; return what `drop_timer` takes.

        A callback for an instant that has passed is called when the clock is moved next.
        """
    def drop_timer(self, timer: tuple[int, int]) -> None:
        """Forget a callback of `set_timer`."""

@final
class Transaction:
    """One limit, id and cost within a decision over several limits.

    Args:
        name: Name of a loaded limit.
        id: The client.
        cost: Tokens, at least 0.
        kind: `"spend"`; `"check"`, which takes part in the decision but is never spent; or
            `"spend_only"`, which takes no part in the decision, and is spent if the others allow
            and it has room.
        factor: What a leaky bucket's size is divided by.

    Examples:
        >>> penstock.Transaction("Orders", "ada", 2)
        Transaction('Orders', 'ada', cost=2, kind='spend')
    """

    def __new__(
        cls,
        name: str,
        id: Id,
        cost: int = 1,
        kind: TransactionKind = "spend",
        factor: Factor | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str:
        """The limit's name."""
    @property
    def id(self) -> Id:
        """The id, as given."""
    @property
    def cost(self) -> int:
        """Tokens."""
    @property
    def kind(self) -> TransactionKind:
        """Whether it decides, is spent, or both."""
    @property
    def factor(self) -> Factor | None:
        """What a leaky bucket's size is divided by, as given."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

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

        A limit in shadow mode never makes this false: see `would_deny`. The decision of a refund is
        allowed if tokens were returned.
        """
    @property
    def would_deny(self) -> bool:
        """Whether a limit in shadow mode would have denied the request.

        In a decision about several limits: whether one of them would have.
        """
    @property
    def shadow_mode(self) -> bool:
        """Whether the limit is in shadow mode, so that it never denies.

        False for a refund, and for a decision about several limits.
        """
    @property
    def remaining(self) -> int:
        """Tokens left in the bucket after this decision; 2**63 - 1 if no limit applies."""
    @property
    def retry_after(self) -> float:
        """Seconds until the same request could be allowed, also on an allowed decision.

        0 if it could be allowed at once. On an allowed decision this is no reason to wait: it says
        when a *second* request of the same cost could pass, if nothing else is spent.
        """
    @property
    def retry_after_ns(self) -> int:
        """Nanoseconds until the same request could be allowed; see `retry_after`."""
    @property
    def retry_at(self) -> float:
        """When the same request could be allowed, in Unix seconds on the limiter's clock."""
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
        """When the bucket is full again, in Unix seconds on the limiter's clock."""
    @property
    def next_token_after_ns(self) -> int:
        """Nanoseconds until `remaining` grows by one token; 0 if it cannot grow."""
    @property
    def now_ns(self) -> int:
        """When the decision was made, in nanoseconds on the limiter's clock."""
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
        """Tokens that the request asked for."""
    @property
    def unlimited(self) -> bool:
        """Whether no limit applies to this id."""
    @property
    def degraded(self) -> str | None:
        """Why a policy decided because the store failed; `None` if the store decided."""
    @property
    def description(self) -> str | None:
        """The limit's description from the limits file; `None` if it has none."""
    @property
    def docs(self) -> str | None:
        """The URL of the limit's documentation, from the limits file; `None` if it has none."""
    @property
    def binding(self) -> str | None:
        """The name of the limit whose numbers these are; `None` if no limit applied.

        In a decision about several limits this is the strictest one.
        """
    @property
    def parts(self) -> tuple[Decision, ...]:
        """The decisions of all transactions, in order; for a single call, this decision alone."""
    def headers(self, style: str | Sequence[str] = "ietf") -> dict[str, str]:
        """Return the response headers in one or several styles.

        Args:
            style: A style's name, or several of them. The styles are listed in docs/headers.md.

        Raises:
            ConfigError: No style has this name, or two of them write the same field.

        Examples:
            >>> clock = penstock.ManualClock()
            >>> limiter = penstock.Limiter({"Orders": "6/minute"}, clock=clock)
            >>> limiter.spend("Orders", "ada").headers()["RateLimit"]
            '"Orders";r=5;t=10'
        """
    def as_dict(self) -> dict[str, Any]:
        """Return the decision as a dictionary that `json.dumps` accepts.

        The keys are the names of the attributes. A decision about several limits also has `parts`,
        a list of such dictionaries.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> decision = limiter.spend("Orders", "ada").as_dict()
            >>> decision["allowed"], decision["remaining"], decision["reset_at"]
            (True, 1, 30.0)
        """
    def raise_if_denied(self) -> None:
        """Raise `RateLimited` if the request was denied.

        Raises:
            RateLimited: The decision is not allowed; the exception carries it.

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
        """Replace what the request has reserved by what it really cost.

        For the view of a web application whose limit has `reserve=True` and no `deduct_when` or
        `cost_from_response`. The header fields of its response show the result. A view that has
        started to stream its response can settle later, too.

        Args:
            actual: Tokens, at least 0; more than the limit's burst leaves a debt.

        Raises:
            ReservationError: The request has reserved nothing.
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

        For code that decides in place of the store, or delays a request.

        Args:
            allowed: Whether the limit allows the request.
            cost: Tokens.
            remaining: Tokens left in the bucket, at least 0; the next one comes after the wait.
            retry_after_ns: The wait, in nanoseconds, at least 0.
            degraded: Why the store did not decide; `None` if it did.
            shadow_mode: Whether the limit is in shadow mode, so that it never denies.
            parts: The decisions of the single limits.
            settle: Called with the cost that is passed to `settle`.
        """
    @property
    def header_items(self) -> tuple[str | None, str | None]:
        """The items of the `RateLimit-Policy` and `RateLimit` header fields, for this limit alone.

        `None` for a field that cannot express it: an unlimited decision, or a name that is not
        ASCII. `headers()` combines the items of all parts.
        """
    @property
    def header_label(self) -> str | None:
        """The limit's name as a quoted header value.

        `None` if the name is not ASCII, or no limit applied.
        """
    @property
    def header_quota(self) -> int:
        """The tokens that header fields show as the limit's quota."""
    @property
    def header_window(self) -> int:
        """The seconds that header fields show as the quota's window, rounded up."""
    @property
    def header_wait_ns(self) -> int:
        """The wait that the `RateLimit` field shows, in nanoseconds; 0 if it shows none."""
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: object, /) -> Self: ...
    def _repr_html_(self) -> str: ...

@final
class Reservation:
    """Tokens taken before the cost of the work was known.

    `bool(reservation)` tells whether they were allowed. As a context manager, with `with` or `async
    with`, a denied reservation raises `RateLimited` on entry. If the body does not settle it, it is
    settled at the estimate; an exception cancels it.

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
        """The decision about the estimate."""
    @property
    def estimate(self) -> int:
        """The tokens that were reserved."""
    def settle(self, actual: int) -> Decision:
        """Replace the estimate by `actual` tokens: return the difference, or charge it.

        `actual` may exceed the burst. A charge may overdraw the bucket by at most one full bucket;
        what goes beyond is not taken. While the bucket is overdrawn every spend is denied (a window
        forgets the overdraft when it ends). A denied reservation takes nothing, and returns its
        denial.

        Args:
            actual: Tokens, at least 0.

        Returns:
            The decision: `allowed` if all of `actual` is now taken. After a charge, `retry_after`
            is the time until the bucket is no longer overdrawn. `cost` is `actual`.

        Raises:
            ReservationError: The reservation was settled or cancelled before, or the store's reply
                was lost.
            CostNegative: `actual` is below 0.
            StoreError: The store failed. The reservation can be settled later, unless the reply was
                lost (`StoreTimeout`): then what is charged is unknown.

        Examples:
            >>> limiter = penstock.Limiter({"Tokens": "60/minute"}, clock=penstock.ManualClock())
            >>> limiter.reserve("Tokens", "ada", 50).settle(75).retry_after
            15.0
        """
    def cancel(self) -> bool:
        """Return all reserved tokens, and tell whether there were any.

        After the reservation was settled, cancelled or denied there are none, and nothing happens.

        Raises:
            StoreError: The store failed; it can be cancelled later.
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

@final
class Decisions:
    """Outcomes of many independent checks, as columns.

    Returned by `spend_each`. The columns are NumPy arrays that share the memory of this object;
    `column()` returns them without NumPy. Any library that reads the Arrow stream protocol takes
    the object as it is: `polars.DataFrame(decisions)`, `pandas.DataFrame.from_arrow(decisions)`.
    Indexing returns one `Decision`.

    Examples:
        >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
        >>> decisions = limiter.spend_each("Orders", ["ada", "ada", "ada"])
        >>> decisions.allowed.tolist(), decisions[2].retry_after
        ([True, True, False], 30.0)
    """

    @property
    def allowed(self) -> numpy.typing.NDArray[numpy.bool_]:
        """Whether each request may proceed."""
    @property
    def would_deny(self) -> numpy.typing.NDArray[numpy.bool_]:
        """Whether a limit in shadow mode would have denied each request."""
    @property
    def remaining(self) -> numpy.typing.NDArray[numpy.int64]:
        """Tokens left in the bucket after each decision, in order."""
    @property
    def retry_after_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """Nanoseconds until each request could be allowed again; see `Decision.retry_after`."""
    @property
    def reset_after_ns(self) -> numpy.typing.NDArray[numpy.int64]:
        """Nanoseconds until each bucket is full again."""
    def column(self, name: str) -> memoryview:
        """Return one column as a read-only view, without NumPy and without copying.

        Args:
            name: `"allowed"`, `"would_deny"`, `"remaining"`, `"retry_after_ns"` or
                `"reset_after_ns"`.

        Raises:
            KeyError: No column has this name.
        """
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Decision: ...
    def __iter__(self) -> Iterator[Decision]: ...

@final
class BoundLimit:
    """One limit of a limiter, with the same methods less the name: the fast path.

    Returned by `Limiter.limit`. It follows `reload`.

    Examples:
        >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
        >>> orders = limiter.limit("Orders")
        >>> orders.spend("ada").remaining
        1
    """

    @property
    def name(self) -> str:
        """The limit's name."""
    def spend(self, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Take `cost` tokens from the bucket of `id`, if available.

        The same as `Limiter.spend` without the name.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> orders = limiter.limit("Orders")
            >>> bool(orders.spend("ada", 2)), bool(orders.spend("ada"))
            (True, False)
        """
    def check(self, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Return the decision that `spend` would return, without taking tokens.

        The same as `Limiter.check` without the name.
        """
    @property
    def is_remote(self) -> bool:
        """Whether a server decides, so that a call waits for its reply."""
    def refund(self, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Return `cost` tokens to the bucket of `id`.

        The same as `Limiter.refund` without the name.
        """
    def address_id(self, address: str, ipv6_prefix: int = ...) -> str | None:
        """Return the id under which the limit counts the client at an address.

        The same as `Limits.address_id` without the name.
        """
    def reset(self, id: Id) -> bool:
        """Clear the bucket of `id`, and tell whether it existed."""
    def peek(self, id: Id) -> Decision:
        """Return the bucket of `id` as it is now, without taking tokens.

        The same as `Limiter.peek` without the name.
        """
    def reserve(self, id: Id, estimate: int = 1, *, factor: Factor | None = None) -> Reservation:
        """Take `estimate` tokens before the cost is known, to be settled later.

        The same as `Limiter.reserve` without the name.
        """
    def acquire(
        self, id: Id, cost: int = 1, timeout: float | datetime.timedelta | None = None
    ) -> Decision:
        """Wait until the bucket of `id` has `cost` tokens, and take them.

        The same as `Limiter.acquire` without the name.
        """
    def spend_each(self, ids: Iterable[Id], costs: int | Iterable[int] | None = None) -> Decisions:
        """Take tokens for many ids, each decided on its own, in one call.

        The same as `Limiter.spend_each` without the name.
        """

@final
class Limiter:
    """Limits, a store and a clock: the object that makes decisions.

    It can be shared between threads. With `with`, it is closed at the end of the block.

    Args:
        limits: `Limits`, or a dict of names to limits or rate texts.
        store: URL of the store.
        clock: Source of time; the system clock by default.

    Raises:
        ConfigError: The limits or the URL are invalid.
        LimitError: A rate text is invalid.

    Examples:
        >>> limiter = penstock.Limiter({"Orders": "100/minute"})
        >>> limiter.spend("Orders", "ada").allowed
        True
    """

    def __new__(
        cls,
        limits: Limits | Mapping[str, Limit | str],
        store: str = "memory://",
        clock: SystemClock | ManualClock | None = None,
    ) -> Self: ...
    @property
    def limits(self) -> Limits:
        """The active limits, including those added with `define`."""
    @property
    def clock(self) -> SystemClock | ManualClock:
        """The clock that decides."""
    @property
    def store(self) -> str:
        """The URL of the store, without its password."""
    @property
    def is_shared(self) -> bool:
        """Whether other processes count in the same buckets."""
    @property
    def is_remote(self) -> bool:
        """Whether a server decides, so that a call waits for its reply."""
    def spend(self, name: str, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Take `cost` tokens from the bucket of `id` under the limit `name`, if available.

        A denied spend takes nothing.

        Args:
            name: Name of a loaded limit.
            id: The client. Any spelling: it is normalized here (`2001:DB8::1` is `2001:db8::1`).
            cost: Tokens, from 0 to the limit's `max_cost`; 0 takes nothing.
            factor: What a leaky bucket's size is divided by; 0 lifts the limit for this call.

        Returns:
            The decision.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not fit the limit's format.
            CostTooHigh: `cost` exceeds what the limit can ever allow.
            CostNegative: `cost` is below 0.
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
    def check(self, name: str, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Return the decision that `spend` would return, without taking tokens.

        Its numbers are those **after** the spend: use `peek` for the bucket as it is now. Raises as
        `spend` does.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> limiter.check("Orders", "ada").remaining, limiter.peek("Orders", "ada").remaining
            (1, 2)
        """
    def refund(self, name: str, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Return `cost` tokens to the bucket of `id` under the limit `name`.

        A refund never fills a bucket beyond full. Raises as `spend` does.

        Returns:
            The decision; `allowed` tells whether tokens were returned.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> limiter.spend("Orders", "ada").remaining, limiter.refund("Orders", "ada").remaining
            (1, 2)
        """
    def reset(self, name: str, id: Id) -> bool:
        """Clear the bucket of `id` under the limit `name`, and tell whether it existed.

        Raises:
            UnknownLimit: No limit has this name.
            InvalidId: The id does not fit the limit's format.
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
            buckets: Tuples of a limit name and an id. `None`: all buckets of the store, also those
                of other processes that share it.

        Raises:
            UnknownLimit: No limit has one of the names.
            InvalidId: An id does not fit its limit's format.
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
        self, name: str, id: Id, estimate: int = 1, *, factor: Factor | None = None
    ) -> Reservation:
        """Take `estimate` tokens before the cost is known, to be settled later.

        A denied reservation takes nothing. It is settled under the limit as it was when reserved,
        also after a `reload`. Raises as `spend` does.

        Args:
            name: Name of a loaded limit.
            id: The client.
            estimate: Tokens, from 0 to the limit's `max_cost`.
            factor: As in `spend`.

        Examples:
            >>> clock = penstock.ManualClock()
            >>> limiter = penstock.Limiter({"Tokens": "1000/minute"}, clock=clock)
            >>> reservation = limiter.reserve("Tokens", "ada", 600)
            >>> bool(reservation), reservation.settle(450).remaining
            (True, 550)
        """
    def acquire(
        self,
        name: str,
        id: Id,
        cost: int = 1,
        timeout: float | datetime.timedelta | None = None,
    ) -> Decision:
        """Wait until the bucket of `id` under `name` has `cost` tokens, and take them.

        Waiters are served in the order of their arrival. Other threads run meanwhile; in a
        coroutine use `AsyncLimiter.acquire`. With a `ManualClock` it waits until another thread
        moves the clock.

        Args:
            name: Name of a loaded limit.
            id: The client.
            cost: Tokens, from 0 to the limit's `max_cost`.
            timeout: Longest acceptable wait, in seconds or as a `timedelta`; 0 never waits, `None`
                waits as long as necessary.

        Returns:
            The decision, which is allowed, with the numbers of the bucket at that time.

        Raises:
            RateLimited: The wait would exceed the timeout. Raised at once, or as soon as that is
                known; its decision's `retry_after` is the wait.
            ValueError: `timeout` is negative or not a number.
            Error: As `spend` raises. Nothing is taken then.

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
        """Take tokens from several buckets as one decision, all or nothing.

        The result has the numbers of the strictest limit: denied before allowed, then the longer
        wait, then fewer remaining tokens. Its `parts` are the decisions of all transactions.

        Args:
            transactions: `Transaction` objects, or tuples of a name, an id, a cost and a kind.

        Raises:
            TransactionError: Two transactions name the same bucket.
            Error: As `spend` raises for one transaction. Nothing is taken then.

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
        """Return tokens to several buckets, each on its own; raises as `spend_all` does."""
    def spend_each(
        self, name: str, ids: Iterable[Id], costs: int | Iterable[int] | None = None
    ) -> Decisions:
        """Take tokens for many ids under one limit, each decided on its own, in one call.

        All are decided at the same instant, in order.

        Args:
            name: Name of a loaded limit.
            ids: The clients.
            costs: One cost for all, one per id, or `None` for 1 each.

        Raises:
            ValueError: `ids` and `costs` differ in length.
            Error: As `spend` raises for one id; a note tells which. If an id or a cost is invalid,
                nothing is taken.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> limiter.spend_each("Orders", ["ada", "ada", "ada", "grace"]).remaining.tolist()
            [1, 0, 0, 1]
        """
    def limit(self, name: str) -> BoundLimit:
        """Return one limit with the same methods less the name: the fast path.

        It follows a `reload`; if the name is gone then, its methods raise `UnknownLimit`.

        Raises:
            UnknownLimit: No limit has this name.
        """
    def define(self, name: str, limit: Limit | str) -> BoundLimit:
        """Add a limit to the loaded ones; it survives `reload`.

        Raises:
            ConfigError: The name is taken or invalid.
            LimitError: The rate text is invalid.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"})
            >>> limiter.define("Searches", "30/minute").name
            'Searches'
        """
    def reload(self, limits: Limits | Mapping[str, Limit | str]) -> None:
        """Replace the limits in one step; buckets keep their state, and defined limits stay.

        Raises:
            ConfigError: The limits are invalid, or one has the name of another that was defined;
                the active limits stay as they are.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute", "Mails": "9/hour"})
            >>> limiter.reload(limiter.limits | {"Orders": "3/minute"})
            >>> limiter.limits["Orders"].count, limiter.limits["Mails"].count
            (3, 9)
        """
    def stats(self) -> StoreStats:
        """Return the figures of the store.

        `store` is its URL. The others are numbers, or `None` if the store cannot count them.
        `buckets` are those that are not full; `capacity` is `None` if the store grows; `forgotten`
        are full buckets that it dropped. `evicted`, `shared` and `refused` count what a bounded
        store did for lack of room: buckets it evicted, calls it decided in a bucket that new ids
        share, and calls it refused. `recovered_locks` are those of processes that were killed while
        they added a bucket to a shared table: the kernel released them.

        Over a server, `failing` tells whether calls fail at once because the last ones failed,
        and `failures` how often that began. `denied_locally` are calls denied without asking the
        server, `healed` are values of other programs found in place of buckets. `calls` has the
        times of all calls to the server, first by what they asked (`spend`, `check`, `refund`,
        `charge`, `several`, `reset` or `other`), then by how they ended (`answered`, `error`,
        `timeout`, `lost` or `unavailable`). All are of this process.
        """
    def counts(self) -> dict[str, Counts]:
        """Return the numbers of decisions by limit name, since the limiter was created.

        A limit that `reload` dropped stays, so no number ever goes down. Only decisions are
        counted: a call that raises is not. In a call about several limits each counts its own
        decision. It works on a closed limiter, too.

        `timed` has the real times of about 1 call in 256 of `spend`, `check` and `refund`, and of
        calls about several limits; `spend_each` is not timed.

        Examples:
            >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
            >>> for _ in range(3):
            ...     decision = limiter.spend("Orders", "ada")
            >>> limiter.counts()["Orders"]["spends"]
            {'allowed': 2, 'denied': 1, 'shadow_denied': 0}
        """
    def top_denied(self, name: str | None = None, n: int = 10) -> list[DeniedBucket]:
        """Return the buckets with the most denials, in descending order.

        Denials of `spend`, `check` and limits in shadow mode count. Each limit tracks 64 ids: a
        count may be too high by at most `error`, which is at most 1/64 of the limit's denials, and
        an id with more than 1/64 of them is always listed. After the first 1,024 denials of a
        thread, about 1 in 16 is recorded, with a weight of 16. Ids are shown up to 128 bytes.

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
        """Close the store; later calls raise `StoreError`."""
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
    """The calls of one event loop to a server, and the replies that arrive for them.

    An event loop has one, and calls `deliver` when `fileno()` is readable. A loop that cannot watch
    a file gives `wake`, which is called on another thread and must have the loop call `deliver`.
    """
    def __new__(cls, wake: Callable[[], object] | None = None) -> Self: ...
    def fileno(self) -> int:
        """Return the file that is readable when replies have arrived.

        Raises:
            OSError: There is none.
        """
    def deliver(self) -> None:
        """Set the result of each future whose reply has arrived."""
    def call(
        self,
        event_loop: asyncio.AbstractEventLoop,
        verb: Literal["spend", "check", "refund", "acquire"],
        bound: BoundLimit,
        id: Id,
        cost: int = 1,
        factor: Factor | None = None,
    ) -> Decision | asyncio.Future[Decision] | None:
        """Return a decision that needs no reply, or a future of `event_loop`.

        `None` if the call must be made in a thread because callers wait at this limiter. `verb` is
        spend, check, refund or acquire: a spend whose tokens are returned if the future is
        cancelled. Raises as `BoundLimit.spend` does, unless that depends on the reply.
        """
    def call_all(
        self,
        event_loop: asyncio.AbstractEventLoop,
        verb: Literal["spend", "check", "refund", "acquire"],
        limiter: Limiter,
        transactions: Iterable[AnyTransaction],
    ) -> Decision | asyncio.Future[Decision] | None:
        """Return the decision on several transactions, or a future of `event_loop`.

        `None` if the call must be made in a thread because no single server can decide, or callers
        wait. Raises as `Limiter.spend_all` does, unless that depends on the replies.
        """

@final
class Waiter:
    """A caller that waits until a limit allows its cost.

    `notify` is called, from any thread, when `step` has news; it must not wait. A waiter that was
    stepped must `leave`.
    """
    def __new__(
        cls,
        bound: BoundLimit,
        id: Id,
        cost: int,
        timeout_ns: int | None,
        notify: Callable[[], object],
    ) -> Self: ...
    def step(self) -> Decision | None:
        """Return the decision if it is the waiter's turn, else `None`.

        Step again after `delay()`, or when notified.

        Raises:
            RateLimited: The wait would be longer than the timeout.
            Error: As `BoundLimit.spend` raises.
        """
    def delay(self) -> float | None:
        """Return the seconds until the next `step`; `None` if only `notify` says when."""
    def leave(self) -> None:
        """Leave the queue.

        Unless the waiter has its decision, its cost is returned and those behind it move up.
        """
    def __call__(self) -> None: ...

def attach_hints(class_: type) -> None:
    """Have a class name our method where the caller uses a name that other rate limiters have."""

def rate_limited_error(decision: Decision, wait_ns: int) -> RateLimited:
    """Return the `RateLimited` for a caller whose turn would come too late, after `wait_ns`."""

def set_default_clock(
    clock: SystemClock | ManualClock | None, /
) -> SystemClock | ManualClock | None:
    """Set the clock of limiters that are created without one, and return the one before.

    `None` is the machine's clock.
    """

def timeout_ns(timeout: float | datetime.timedelta | None) -> int | None:
    """Return a timeout in nanoseconds; `None` to wait as long as necessary.

    Raises:
        ValueError: The timeout is negative or not a number.
    """

@final
class Simulator:
    """One limit under a virtual clock, which evaluates events in parts.

    Use `penstock.simulate` instead, which is built on this class and accepts all kinds of columns.

    Args:
        limits: A limit, or limits with their overrides.
        name: The limit to evaluate; optional if there is only one.

    Raises:
        UnknownLimit: No limit has this name.
        ValueError: There are several limits and no name.
    """

    def __new__(
        cls, limits: Limit | Limits | Mapping[str, Limit | str], name: str | None = None
    ) -> Self: ...
    @property
    def name(self) -> str:
        """The limit's name."""
    @property
    def clients(self) -> int:
        """The number of clients that were added."""
    def add(self, ids: Iterable[Id]) -> None:
        """Add clients by their ids; they are numbered from `clients` on.

        Each id can be added only once.

        Raises:
            InvalidId: An id does not fit the limit's format.
        """
    def wait(
        self,
        times: numpy.typing.NDArray[numpy.int64],
        clients: numpy.typing.NDArray[numpy.uint32] | None,
        costs: numpy.typing.NDArray[numpy.int64] | None,
        timeout_ns: int,
        waits_ns: numpy.typing.NDArray[numpy.int64],
    ) -> None:
        """Wait for tokens in the order of arrival, and write each event's wait in nanoseconds.

        Args:
            times: Nanoseconds since the clock's origin, in ascending order.
            clients: The clients' numbers; `None` for the first client.
            costs: Tokens; `None` for 1 each.
            timeout_ns: The longest wait; an event that would wait longer has -1, and takes nothing.
            waits_ns: Receives the waits.

        Raises:
            CostError: A cost is impossible under this limit.
            ValueError: Times are not ascending, a client does not exist, or lengths differ.
        """
    def add_unnamed(self, count: int) -> None:
        """Add clients without ids, each with its own bucket under the default limit.

        Raises:
            InvalidId: The limit has an id format.
        """
    def number(self, ids: list[str], *, skip_invalid: bool = False) -> Buffer:
        """Return the number of each id, and add those that are new.

        Only for a simulator to which no clients were added in another way.

        Args:
            ids: The ids.
            skip_invalid: Whether an id that does not fit the limit's format has the number
                2**32 - 1, instead of being an error.

        Raises:
            InvalidId: An id does not fit the limit's format.
        """
    def buckets(self, first: int) -> Buffer | None:
        """Return the bucket of each client from number `first` on.

        `None` means that each client has its own bucket, with its number.
        """
    def bucket_id(self, bucket: int) -> str:
        """Return the id of a bucket in its canonical spelling.

        Raises:
            ValueError: There is no such bucket.
        """
    def limit_of(self, client: int) -> Limit:
        """Return the limit that applies to a client.

        Raises:
            ValueError: There is no such client.
        """
    def feed(
        self,
        times: numpy.typing.NDArray[numpy.int64],
        clients: numpy.typing.NDArray[numpy.uint32] | None,
        costs: numpy.typing.NDArray[numpy.int64] | None,
        allowed: numpy.typing.NDArray[numpy.uint8],
        remaining: numpy.typing.NDArray[numpy.int64] | None = None,
        retry_after_ns: numpy.typing.NDArray[numpy.int64] | None = None,
        reset_after_ns: numpy.typing.NDArray[numpy.int64] | None = None,
    ) -> None:
        """Evaluate events, and write the requested columns of the decisions into arrays.

        The buckets are kept for the events of the next call. The interpreter runs
        other threads meanwhile.

        Args:
            times: Nanoseconds since the clock's origin, in ascending order.
            clients: The clients' numbers; `None` for the first client.
            costs: Tokens; `None` for 1 each.
            allowed: Receives 1 for each allowed event, otherwise 0.
            remaining: Receives the remaining tokens; optional.
            retry_after_ns: Receives the wait for the same cost; optional.
            reset_after_ns: Receives the wait until the bucket is full; optional.

        Raises:
            CostError: A cost is impossible under this limit.
            ValueError: Times are not ascending, a client does not exist, or lengths differ.
            RuntimeError: The simulator is in use by another thread, or stopped at an error.
        """

IPV6_PREFIX: Final[int]
"""Leading bits of an IPv6 address that identify one client: one subscriber has at least a /64."""

def canonical_address(text: str, ipv6_prefix: int) -> str | None:
    """Return the canonical address of a client, as a header has it; `None` if it is not an address.

    Brackets, a port and a zone are dropped. An IPv4-mapped address becomes IPv4, and so does one of
    the NAT64 prefix `64:ff9b::/96`. IPv6 addresses with the same first `ipv6_prefix` bits become
    the lowest one, except link-local ones.

    Args:
        text: The address; at most 128 bytes.
        ipv6_prefix: Leading bits that identify one client, from 1 to 128.

    >>> penstock._core.canonical_address("[2001:DB8::1]:443", 64)
    '2001:db8::'
    >>> penstock._core.canonical_address("unknown", 64)
    """

@final
class RouteSimulator:
    """Several limits under a virtual clock, decided together; used by `penstock.simulate`.

    Args:
        limits: The limits with their overrides.
        names: The limits that plans refer to, by index.

    Raises:
        UnknownLimit: A limit does not exist.
    """
    def __new__(
        cls, limits: Limit | Limits | Mapping[str, Limit | str], names: Sequence[str]
    ) -> Self: ...
    def add_plan(self, parts: Sequence[tuple[int, str, int | None]]) -> int:
        """Add what a kind of request spends; return the number of the plan.

        Args:
            parts: For each limit its index, the id, and the cost; `None` is the cost of the event.

        Raises:
            InvalidId: An id does not fit the limit's format.
        """
    def feed(
        self,
        times: numpy.typing.NDArray[numpy.int64],
        plans: numpy.typing.NDArray[numpy.uint32],
        costs: numpy.typing.NDArray[numpy.int64] | None,
        denied_by: numpy.typing.NDArray[numpy.uint32],
        allowed: numpy.typing.NDArray[numpy.uint8],
        remaining: numpy.typing.NDArray[numpy.int64] | None = None,
        retry_after_ns: numpy.typing.NDArray[numpy.int64] | None = None,
        reset_after_ns: numpy.typing.NDArray[numpy.int64] | None = None,
    ) -> None:
        """Evaluate events, each by its plan; the buckets are kept for the next call.

        Args:
            times: Nanoseconds since the clock's origin, in ascending order.
            plans: The number of each event's plan.
            costs: Tokens of parts without a cost; `None` for 1 each.
            denied_by: Receives the index of the strictest limit that denies, otherwise 2**32 - 1.
            allowed: Receives 1 for each allowed event, otherwise 0.
            remaining: Receives the remaining tokens of the strictest limit; optional.
            retry_after_ns: Receives its wait for the same cost; optional.
            reset_after_ns: Receives the wait until its bucket is full; optional.

        Raises:
            CostError: A cost is impossible under a limit.
            ValueError: Times are not ascending, a plan does not exist, or lengths differ.
        """

def factorise(ids: list[Any]) -> tuple[Buffer, list[str]]:
    """Return the number of each id, in order of first occurrence, and the ids by number.

    Raises:
        TypeError: A value is not an id.
    """

def factorise_fixed(items: numpy.typing.NDArray[numpy.uint32], width: int) -> tuple[Buffer, Buffer]:
    """Return the number of each item of `width` 32-bit words, and where it occurs first.

    Raises:
        ValueError: The length is not a multiple of `width`.
    """

def largest_within(
    times: numpy.typing.NDArray[numpy.int64],
    kept: numpy.typing.NDArray[numpy.uint8],
    costs: numpy.typing.NDArray[numpy.int64] | None,
    width_ns: int,
) -> tuple[int, int]:
    """Return the maximum within any interval, and the index where the interval begins.

    Args:
        times: Nanoseconds, in ascending order.
        kept: 0 for events that do not count.
        costs: The weight of each event; `None` for 1 each.
        width_ns: The length of the interval, which excludes its end.
    """

_LogCounts: TypeAlias = tuple[int, int, int, int, int, list[tuple[int, str, str]]]

def load_routes(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Load a routes file: a list of routes, each as `penstock.simulate.simulate` takes them.

    Raises:
        ConfigError: The file cannot be read, or has faults.
    """

@final
class LogParser:
    """Parses blocks of a log's text to columns of events; used by `penstock.simulate`.

    The parts of an event have slots: 0 is the time, 1 the cost, 2 and above the fields of the id.
    The parts of requests are `method`, `target` and `path`. `take` counts lines read, skipped,
    without an id and late, the units of epochs as bits, and returns the first lines left out.
    """

    @staticmethod
    def of_lines(
        patterns: Sequence[str], wanted: list[tuple[int, int]], options: object
    ) -> LogParser:
        """Make a parser of lines whose fields are groups of the first pattern that matches."""
    @staticmethod
    def of_objects(wanted: list[tuple[str, int]], options: object) -> LogParser:
        """Make a parser of lines that are JSON objects."""
    @staticmethod
    def of_table(
        delimiter: int,
        count: int,
        has_header: bool,
        wanted: list[tuple[int, int]],
        options: object,
    ) -> LogParser:
        """Make a parser of a table with a delimiter."""
    def feed(self, block: bytes) -> int:
        """Parse one more block; return the number of events to take."""
    def finish(self) -> None:
        """Parse the last line, which may have no line end."""
    def take(self) -> tuple[bytes, bytes, bytes, _LogCounts]:
        """Return the columns and counts of the events since the last call."""
    def ids(self, first: int) -> list[str]:
        """Return the ids from number `first` on, in order of their codes."""
    def __len__(self) -> int: ...

def parse_duration(duration: Period, name: str = "duration") -> int:
    """Return a length of time in nanoseconds: a text such as `1h30m`, seconds, or a `timedelta`.

    Args:
        duration: The length of time, at least 0.
        name: What an error calls it.

    Raises:
        LimitError: A text that is no length of time, or a time out of range; a `ValueError`.
        TypeError: Another type.

    >>> penstock._core.parse_duration("250ms")
    250000000
    """
