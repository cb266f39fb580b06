"""Write the docstrings of the built extension into `_core.pyi`.

The `///` comments in `src/bindings/` are their one source. `make stub` runs this; `make lint` runs
it with `--check`, which changes nothing and fails if the stub is out of date.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

STUB: Final = Path(__file__).parents[1] / "python" / "penstock" / "_core.pyi"


def documented(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | ast.FunctionDef, object]]:
    """Yield each public class, method and function of the stub with the object it describes."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        owner = getattr(_core, node.name, None)
        if owner is None:
            continue  # A type for type checkers alone.
        yield node, owner
        for member in node.body if isinstance(node, ast.ClassDef) else []:
            # Special methods have the docstrings of Python itself.
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                yield member, getattr(owner, member.name)


def with_docstrings(source: str) -> str:
    """Return the stub's text with the extension's docstrings in place of its own."""
    lines = source.splitlines()
    # From the last to the first, so that the positions of those before stay right.
    for node, item in reversed(list(documented(ast.parse(source)))):
        text = inspect.getdoc(item)
        if text is None:
            raise SystemExit(f"{node.name} has no docstring in src/bindings")
        indent = " " * (node.col_offset + 4)
        quoted = f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'
        docstring = [f"{indent}{line}".rstrip() for line in quoted.split("\n")]
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            # An ellipsis may be on the last line of the signature.
            above = lines[first.lineno - 1][: first.col_offset].rstrip()
            lines[first.lineno - 1 : first.end_lineno] = [above, *docstring] if above else docstring
        else:
            lines[first.lineno - 1 : first.lineno - 1] = docstring
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite the stub, or check it."""
    before = STUB.read_text(encoding="utf-8")
    after = with_docstrings(before)
    count = sum(1 for _ in documented(ast.parse(before)))
    if "--check" not in sys.argv[1:]:
        STUB.write_text(after, encoding="utf-8")
    elif before != after:
        raise SystemExit("python/penstock/_core.pyi differs from the extension: run `make stub`")
    print(f"{STUB.name}: {count} docstrings")  # noqa: T201  a command


if __name__ == "__main__":
    main()
