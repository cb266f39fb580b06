"""The thread that renews slots which are held for longer than half a lease."""

# Neither `__future__` nor `typing` is imported: they would take most of the time of
# `import penstock`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from penstock._core import Renewal


def start(renewal: "Renewal") -> "Callable[[], None]":
    """Start the thread, which ends when its limiter holds no slots any more.

    Returns:
        A function that lets it look again at once.
    """
    from threading import Event, Thread  # noqa: PLC0415  most limiters hold no slots

    woken = Event()
    Thread(target=_run, args=(renewal, woken), name="penstock-leases", daemon=True).start()
    return woken.set


def _run(renewal: "Renewal", woken: "Event") -> None:
    while (seconds := renewal.due_in()) is not None:
        woken.wait(seconds)
        woken.clear()
        renewal()
