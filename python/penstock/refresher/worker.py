"""The schedule of reloads, and the handling of failures."""

from __future__ import annotations

import inspect
import logging
import os
import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Event, Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from penstock._core import Limits
from penstock._locks import fork_safe
from penstock._validation import duration_ns, is_coroutine_function
from penstock.aio import plain_limiter
from penstock.errors import ConfigError
from penstock.refresher.rows import Skipped, limits_of_rows

if TYPE_CHECKING:
    from types import TracebackType

    from penstock._core import Limiter
    from penstock.aio import AsyncLimiter
    from penstock.types import Period


FirstError: TypeAlias = Literal["raise", "retry"]
_Path: TypeAlias = str | os.PathLike[str]
Load: TypeAlias = _Path | Iterable[object] | Callable[[], Limits | _Path | Iterable[object]]

_log: Final = logging.getLogger("penstock")

# Processes that start together must not always query the database at the same time.
_EARLY: Final = 0.1
_MAX_LOGGED: Final = 20
_A_PATH: Final = "a path, a callable or rows"


class Refresher:
    """Reloads overrides at intervals and replaces them atomically; the defaults stay.

    `start` makes the first load, a background thread the later ones. A load that fails leaves the
    active overrides unchanged and is retried sooner: after `retry`, then twice that, and so on up
    to `every`. After a fork, the child continues with a thread of its own.

    Args:
        limiter: The limiter whose overrides change. Its defaults are those that it has now.
        load: An overrides file, refused as a whole if anything in it is invalid; or rows, of which
            invalid ones are skipped; or a callable that returns either of the two, or `Limits`,
            which replace the defaults too. An empty list of rows clears the overrides.
        every: The time between loads, as the period of a limit; each is up to a tenth early.
        retry: The time to the first retry after a failure, up to half of it early.
        on_first_error: Whether `start` raises a failure of the first load, or retries it while the
            limiter's original limits are active.
        wait: Waits for a number of seconds and returns whether it was stopped meanwhile; an
            `Event`'s by default. A test passes one that moves its clock.

    Raises:
        ConfigError: An argument is invalid.

    Attributes:
        limiter: The limiter.
        loads: Number of successful loads.
        failures: Number of failed loads.
        skipped_rows: Number of rows that the newest successful load left out.
        last_error: Why the newest load failed; `None` if it did not.

    Examples:
        >>> from penstock.refresher import Refresher
        >>> limiter = penstock.Limiter({"Orders": "10/minute"}, clock=penstock.ManualClock())
        >>> def load():
        ...     return [{"name": "Orders", "id": "ada", "limit": "100/minute"}]
        >>> refresher = Refresher(limiter, load, every="30m")
        >>> refresher.refresh()
        >>> limiter.spend("Orders", "ada").remaining, limiter.spend("Orders", "grace").remaining
        (99, 9)
    """

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        load: Load,
        *,
        every: Period = "30m",
        retry: Period = "1s",
        on_first_error: FirstError = "raise",
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        if on_first_error not in ("raise", "retry"):
            raise ConfigError(
                f"on_first_error must be 'raise' or 'retry', found {on_first_error!r}"
            )
        _check_load(load)
        self.loads = 0
        self.failures = 0
        self.skipped_rows = 0
        self.last_error: BaseException | None = None
        self.limiter: Final = plain_limiter(limiter)
        self._load: Final = load
        self._every: Final = _seconds("every", every)
        self._retry: Final = min(_seconds("retry", retry), self._every)
        self._on_first_error: Final = on_first_error
        self._given_wait: Final = wait
        self._defaults = self.limiter.limits
        self._loaded_ns: int | None = None
        self._failed_in_a_row = 0
        self._skipped: frozenset[tuple[str, str]] = frozenset()
        self._loading = fork_safe(Lock())
        self._starting = fork_safe(Lock())
        self._stopped = Event()
        self._thread: Thread | None = None

    @property
    def ready(self) -> bool:
        """Whether any load has succeeded."""
        return self._loaded_ns is not None

    @property
    def loaded_at(self) -> float | None:
        """The time of the last successful load in Unix seconds, on the limiter's clock."""
        return None if self._loaded_ns is None else self._loaded_ns / 1e9

    @property
    def age(self) -> float | None:
        """Seconds since the last successful load, on the limiter's clock; `None` before it."""
        if self._loaded_ns is None:
            return None
        return max(self.limiter.clock.steady_ns() - self._loaded_ns, 0) / 1e9

    @property
    def is_running(self) -> bool:
        """Whether a thread loads in the background."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> Self:
        """Load once, then continue in the background; do nothing if it runs already.

        Raises:
            Exception: The first load failed and `on_first_error` is `"raise"`: the error of `load`.
        """
        with self._starting:
            if self.is_running and not self._stopped.is_set():
                return self
            try:
                self.refresh()
            except Exception:
                if self._on_first_error == "raise":
                    raise
            self._stopped = Event()
            self._start_thread()
            return self

    def stop(self, timeout: float | None = 5.0) -> None:
        """End the thread; the active overrides stay.

        Args:
            timeout: How many seconds to wait for a load in progress; `None` to wait until it is
                done.
        """
        self._stopped.set()
        _running.discard(self)
        thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join(timeout)

    def refresh(self) -> None:
        """Load now, in this thread.

        Raises:
            Exception: The load failed: the error of `load`. The active limits are unchanged.
        """
        with self._loading:
            try:
                skipped = self._apply()
            except BaseException as error:
                self._note_failure(error)
                raise
            self._note_success(skipped)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        self.stop()

    def _start_thread(self) -> None:
        self._thread = Thread(target=self._run, name="penstock-refresher", daemon=True)
        _running.add(self)
        self._thread.start()

    def _restart_in_child(self) -> None:
        """Start a new thread after a fork, which only the forking thread survives."""
        self._stopped = Event()
        self._start_thread()

    def _run(self) -> None:
        stopped = self._stopped
        wait = self._given_wait or stopped.wait
        while not (wait(self._delay()) or stopped.is_set()):
            try:
                self.refresh()
            except BaseException:  # noqa: BLE001, S112  `refresh` has logged it; the thread continues
                continue

    def _delay(self) -> float:
        failed = self._failed_in_a_row
        if failed == 0:
            return self._every * random.uniform(1 - _EARLY, 1)  # noqa: S311  jitter, not a secret
        # The exponent is bounded because it would overflow in a long outage.
        longest = min(self._retry * 2.0 ** min(failed - 1, 60), self._every)
        return longest * random.uniform(0.5, 1)  # noqa: S311  as above

    def _apply(self) -> tuple[Skipped, ...]:
        given: Any = self._load
        if callable(given):
            given = given()
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise ConfigError(_no_coroutine(self._load))
        while True:
            limits, skipped = self._limits(given)
            try:
                self.limiter.reload(limits)
            except ConfigError as error:
                # A limit of `define` was among the defaults; the limiter keeps it anyway.
                name = error.limit_name
                if isinstance(given, Limits) or name is None or name not in self._defaults:
                    raise
                self._defaults = self._defaults.without(name)
            else:
                return skipped

    def _limits(self, given: object) -> tuple[Limits, tuple[Skipped, ...]]:
        if isinstance(given, Limits):
            return given, ()
        if isinstance(given, str | os.PathLike):
            return Limits.load(self._defaults, given), ()
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            raise ConfigError(
                f"load must return rows, a path or penstock.Limits, found {given!r}; "
                f"return [] for no rows"
            )
        return limits_of_rows(given, self._defaults)

    def _note_success(self, skipped: tuple[Skipped, ...]) -> None:
        if self._failed_in_a_row:
            _log.warning("the overrides are loaded again")
        self._failed_in_a_row = 0
        self.last_error = None
        self.skipped_rows = len(skipped)
        self.loads += 1
        self._loaded_ns = self.limiter.clock.steady_ns()
        # By content, because a new row changes the numbers of all others.
        new = [row for row in skipped if row[1:] not in self._skipped]
        self._skipped = frozenset(row[1:] for row in skipped)
        for row in new[:_MAX_LOGGED]:
            _log.warning("row %d of the overrides is skipped, %s: %s", *row)
        if len(new) > _MAX_LOGGED:
            _log.warning("%d more rows of the overrides are skipped", len(new) - _MAX_LOGGED)

    def _note_failure(self, error: BaseException) -> None:
        before, self.last_error = self.last_error, error
        self._failed_in_a_row += 1
        self.failures += 1
        # Once per cause, because an outage is retried many times.
        if before is None or (type(before), str(before)) != (type(error), str(error)):
            _log.warning(
                "the overrides cannot be loaded, the active ones stay: %s: %s",
                type(error).__name__,
                error,
            )


def _check_load(load: object) -> None:
    if is_coroutine_function(load):
        raise ConfigError(_no_coroutine(load))
    if callable(load) or isinstance(load, str | os.PathLike):
        return
    if isinstance(load, Iterator):
        raise ConfigError(
            f"load must be {_A_PATH} that can be read again, found {load!r}, which is used up by "
            f"the first load; pass a function that returns it"
        )
    if hasattr(load, "_result_cache"):
        # Not shown, because its `repr` asks the database.
        raise ConfigError(
            f"load must be {_A_PATH} that can be read again, found a QuerySet, which keeps the "
            f"rows of the first load; pass a function that returns it"
        )
    if isinstance(load, Mapping | Limits) or not isinstance(load, Iterable):
        raise ConfigError(f"load must be {_A_PATH}, found {load!r}")


def _no_coroutine(load: object) -> str:
    return (
        f"load must be a plain function, found {load!r}, which has to be awaited; it is called in "
        f"a thread without an event loop; pass lambda: asyncio.run(load())"
    )


def _seconds(what: str, length: Period) -> float:
    """Return a length of time in seconds."""
    length_ns = duration_ns(length, what)
    if not length_ns:
        raise ConfigError(f"{what} must be longer than 0s, found {length!r}")
    return length_ns / 1e9


_running: Final[weakref.WeakSet[Refresher]] = weakref.WeakSet()


def _restart_in_child() -> None:
    for refresher in list(_running):
        refresher._restart_in_child()  # noqa: SLF001  the same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_in_child)
