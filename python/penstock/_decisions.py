"""Outcomes of many independent checks."""

# Neither `__future__` nor `typing` is imported: they would take most of the time of
# `import penstock`.
from penstock._core import arrow

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, overload

    import numpy
    import numpy.typing

    from penstock._core import Decision, LimitEntry
    from penstock.types import Id

__all__ = ["Decisions"]

_FLAGS = ("allowed", "would_deny")
_NUMBERS = ("remaining", "retry_after_ns", "reset_after_ns")
# The columns in order, as in a row of `LimitEntry.decision`: the bytes of a row that come before an
# item, and its own.
_LAYOUT = {
    "remaining": (0, 8),
    "retry_after_ns": (8, 8),
    "reset_after_ns": (16, 8),
    "next_token_after_ns": (24, 8),
    "cost": (32, 8),
    "allowed": (40, 1),
    "would_deny": (41, 1),
}


class Decisions:
    """Outcomes of many independent checks, as columns.

    Returned by `spend_each`. The columns are NumPy arrays that share the memory of this object;
    `column()` returns them without NumPy. Libraries that support the Arrow stream protocol accept
    the object directly: `polars.DataFrame(decisions)`, `pandas.DataFrame.from_arrow(decisions)`.
    Indexing returns one `Decision`, and a slice returns `Decisions`.

    Examples:
        >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
        >>> decisions = limiter.spend_each("Orders", ["ada", "ada", "ada"])
        >>> decisions.allowed.tolist(), decisions[2].retry_after
        ([True, True, False], 30.0)
    """

    __slots__ = ("_columns", "_entry", "_ids", "_now_ns")

    # Equal ones may have ids of different types.
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, entry: "LimitEntry", now_ns: int, ids: "tuple[Id, ...]", columns: bytes
    ) -> None:
        self._entry = entry
        self._now_ns = now_ns
        self._ids = ids
        self._columns = columns

    @property
    def allowed(self) -> "numpy.typing.NDArray[numpy.bool_]":
        """Whether each request may proceed."""
        return self._array("allowed")

    @property
    def would_deny(self) -> "numpy.typing.NDArray[numpy.bool_]":
        """Whether a limit in shadow mode would have denied each request."""
        return self._array("would_deny")

    @property
    def remaining(self) -> "numpy.typing.NDArray[numpy.int64]":
        """Tokens left in the bucket after each decision, in order."""
        return self._array("remaining")

    @property
    def retry_after_ns(self) -> "numpy.typing.NDArray[numpy.int64]":
        """Nanoseconds until each request could be allowed again; see `Decision.retry_after`."""
        return self._array("retry_after_ns")

    @property
    def reset_after_ns(self) -> "numpy.typing.NDArray[numpy.int64]":
        """Nanoseconds until each bucket is full again."""
        return self._array("reset_after_ns")

    def column(self, name: str) -> "memoryview[Any]":
        """Return one column as a read-only view, without NumPy and without copying.

        Args:
            name: `"allowed"`, `"would_deny"`, `"remaining"`, `"retry_after_ns"` or
                `"reset_after_ns"`.

        Raises:
            KeyError: No column has this name.
        """
        if name not in _FLAGS + _NUMBERS:
            names = ", ".join((_FLAGS + _NUMBERS)[:-1])
            raise KeyError(f"a column must be {names} or {_NUMBERS[-1]}, found {name!r}")
        return self._view(name)

    def _view(self, name: str) -> "memoryview[Any]":
        # Made when it is read: a view takes as long as a decision.
        before, size = _LAYOUT[name]
        length = len(self._ids)
        column = memoryview(self._columns)[before * length : (before + size) * length]
        return column.cast("?") if name in _FLAGS else column.cast("q")

    def _views(self) -> "list[memoryview[Any]]":
        return [self._view(name) for name in _LAYOUT]

    def _array(self, name: str) -> "numpy.typing.NDArray[Any]":
        try:
            import numpy  # noqa: PLC0415  optional
        except ImportError:
            raise ImportError(
                "a column is a NumPy array, and NumPy is not installed; run `pip install numpy`, "
                "or use `decisions.column(name)`, which needs no NumPy"
            ) from None
        return numpy.asarray(self._view(name))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # The protocol allows a producer to ignore the requested schema.
        return self._arrow()[1]

    def __arrow_c_schema__(self) -> object:
        return self._arrow()[0]

    def _arrow(self) -> tuple[object, object]:
        flags = [(name, bytes(self._view(name))) for name in _FLAGS]
        return arrow(flags, [(name, self._view(name)) for name in _NUMBERS])

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> "Iterator[Decision]":
        for id, row in zip(self._ids, zip(*self._views(), strict=True), strict=True):
            yield self._entry.decision(id, self._now_ns, row)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: int, /) -> Decision: ...
        @overload
        def __getitem__(self, index: slice, /) -> "Decisions": ...

    def __getitem__(self, index: "Any", /) -> "Any":
        ids = self._ids[index]
        parts = [view[index] for view in self._views()]
        if isinstance(index, slice):
            columns = b"".join(map(bytes, parts))
            return Decisions(self._entry, self._now_ns, ids, columns)
        return self._entry.decision(ids, self._now_ns, tuple(parts))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decisions):
            return NotImplemented
        mine = (self._now_ns, self._entry, self._ids, self._columns)
        return mine == (other._now_ns, other._entry, other._ids, other._columns)

    def __reduce__(self) -> "tuple[Any, ...]":
        return Decisions, (self._entry, self._now_ns, self._ids, self._columns)

    def __repr__(self) -> str:
        allowed = bytes(self._view("allowed")).count(1)
        return f"<Decisions: {allowed} of {len(self)} allowed>"
