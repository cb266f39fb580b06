"""Hints for callers who use a method name of another rate limiter."""

# Neither `__future__` nor `typing` is imported: they would take most of the time of
# `import penstock`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Never

# Method names of other rate limiters, and the corresponding ones here.
_METHODS = {
    "allow": "spend",
    "clear": "reset",
    "consume": "spend",
    "hit": "spend",
    "release": "refund",
    "take": "spend",
    "test": "check",
    "try_acquire": "spend",
    "wait": "acquire",
}


class _AbsentMethod:
    """Descriptor that raises an `AttributeError` with the name of the method to use.

    Not `__getattr__`: a class with `__getattr__` loses the interpreter's fast path for method
    calls.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> "Never":
        name = self._name
        raise AttributeError(f'{owner.__name__} has no method "{name}"; use {_METHODS[name]}()')


def _visible_names(instance: object) -> list[str]:
    """Return the names of an object's attributes, without those that only raise a hint."""
    return [name for name in object.__dir__(instance) if name not in _METHODS]


def attach_hints(*classes: type) -> None:
    """Add hints to classes for the method names that other rate limiters use."""
    for class_ in classes:
        for name in _METHODS:
            setattr(class_, name, _AbsentMethod(name))
        class_.__dir__ = _visible_names  # type: ignore[assignment]
