"""Why a limit applies to an id."""

# Neither `__future__` nor `typing` is imported: they would take most of the time of
# `import penstock`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Never

    from penstock._core import Limit

__all__ = ["Explanation"]


class Explanation:
    """Explanation of which limit applies to an id, and why.

    Returned by `Limits.explain`. Immutable, and can be pickled.

    Attributes:
        name: The limit's name.
        id: The id in canonical form.
        bucket_key: The key of the bucket, `number:id` or `name:id`.
        limit: The limit that applies.
        rule: The rule that selected the limit, in English.
        file: The file of the entry that applies; `None` if it did not come from a file.
        line: The line of the entry that applies, from 1; `None` if unknown.
        shadow: Whether the limit is in shadow mode.
        description: The limit's description from the limits file; `None` if it has none.
        docs: The URL of the limit's documentation; `None` if it has none.
        comment: The comment of the override that applies; `None` if it has none.
    """

    __module__ = "penstock"
    __slots__ = (
        "bucket_key",
        "comment",
        "description",
        "docs",
        "file",
        "id",
        "limit",
        "line",
        "name",
        "rule",
        "shadow",
    )

    name: str
    id: str
    bucket_key: str
    limit: "Limit"
    rule: str
    file: str | None
    line: int | None
    shadow: bool
    description: str | None
    docs: str | None
    comment: str | None

    def __init__(self, facts: "Mapping[str, object]") -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, facts[name])

    def __setattr__(self, name: str, value: object) -> "Never":
        raise AttributeError(f"an Explanation cannot be changed: {name}")

    def __delattr__(self, name: str) -> "Never":
        raise AttributeError(f"an Explanation cannot be changed: {name}")

    def __reduce__(self) -> "tuple[type[Explanation], tuple[dict[str, object]]]":
        return Explanation, ({name: getattr(self, name) for name in self.__slots__},)

    def __repr__(self) -> str:
        origin = "" if self.file is None or self.line is None else f" at {self.file}:{self.line}"
        return f"<Explanation {self.bucket_key}: {self.limit!r} by {self.rule}{origin}>"
