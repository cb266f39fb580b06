"""`penstock migrate-check`: find the uses of other rate limiters, and what to write instead."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cli.errors import WRONG_USE, CommandError
from penstock.cli.migrations import DECIDING, NO_COUNTERPART, PACKAGES, Package
from penstock.cli.rewriting import is_address, rewritten
from penstock.display import pluralize
from penstock.web.guard import GUARD_HINTS
from penstock.web.rule import LIMIT_HINTS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Mapping, Sequence


EXAMPLES: Final = """\
examples:
  penstock migrate-check .
  penstock migrate-check shop/settings.py shop/views --json
"""

_SKIPPED_FOLDERS: Final = {"node_modules", "site-packages", "venv"}
_KEYWORD_HINTS: Final = {**GUARD_HINTS, **LIMIT_HINTS}
_SETTINGS: Final = {
    setting: (package, write) for package in PACKAGES for setting, write in package.settings.items()
}


class Use(NamedTuple):
    """A use of another package.

    Attributes:
        file: The file.
        line: The line, from 1.
        package: The package.
        found: The name, keyword or setting.
        write: What to write instead.
    """

    file: str
    line: int
    package: str
    found: str
    write: str


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a Python file, or a folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    """Print each use; the status is 1 if there are any."""
    left_out: list[str] = []
    modules = dict(_modules(options.paths, left_out))
    instances: dict[str, Package] = {}
    for tree in modules.values():
        instances |= _Finder(tree, {}).instances
    uses = [
        Use(str(file), line, package, found, write)
        for file, tree in modules.items()
        for line, package, found, write in sorted(_Finder(tree, instances).found)
    ]
    if options.json:
        found = {"uses": [use._asdict() for use in uses], "left_out": left_out}
        print(json.dumps(found, ensure_ascii=False))
        return 1 if uses else 0
    for use in uses:
        print(f"{use.file}:{use.line}: {use.package}: {use.found}\n    write: {use.write}")
    packages = sorted({use.package for use in uses})
    counted = f"{pluralize(len(modules), 'file')} read"
    if left_out:
        counted += f", {len(left_out)} left out"
    if uses:
        print(f"\n{counted}, {len(uses)} to change, of {', '.join(packages)}")
    else:
        print(f"{counted}, no other rate limiter found")
    return 1 if uses else 0


def _modules(paths: Sequence[str], left_out: list[str]) -> Iterator[tuple[Path, ast.Module]]:
    for path in map(Path, paths):
        if not path.exists():
            raise CommandError(f"{path}: no such file or folder", WRONG_USE)
        for file in sorted(_python_files(path)) if path.is_dir() else [path]:
            try:
                yield file, ast.parse(file.read_bytes(), str(file))
            except SyntaxError as error:
                left_out.append(str(file))
                version = ".".join(map(str, sys.version_info[:2]))
                print(
                    f"{file}: left out, because Python {version} cannot read it: {error}; "
                    f"if it is for a newer Python, run penstock with that one",
                    file=sys.stderr,
                )
            except (OSError, ValueError, RecursionError) as error:
                left_out.append(str(file))
                print(f"{file}: left out: {error}", file=sys.stderr)


def _python_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in _SKIPPED_FOLDERS:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _python_files(path)
        elif path.suffix == ".py":
            yield path


class _Finder(ast.NodeVisitor):
    """The uses in one module.

    Attributes:
        found: The line, package, name and replacement of each use.
        instances: The names of the objects that the module creates from a package's classes.
    """

    def __init__(self, tree: ast.Module, shared: Mapping[str, Package]) -> None:
        """Visit a module; `shared` has the objects that other modules create."""
        self.found: set[tuple[int, str, str, str]] = set()
        self.instances: dict[str, Package] = {}
        self._shared = shared
        # The meaning of a name in this module: a package, and the name in the package.
        self._imported: dict[str, tuple[Package, str]] = {}
        self.visit(tree)
        if self.instances:
            # Methods may use an object in lines above the one that creates it.
            self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if package := _package(alias.name):
                self._imported[alias.asname or alias.name.partition(".")[0]] = (package, "")
                self._add(node, package, f"import {alias.name}", "import penstock")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        package = _package(node.module or "") if not node.level else None
        for alias in node.names:
            bound = alias.asname or alias.name
            if package is not None:
                self._imported[bound] = (package, alias.name)
                if alias.name in package.names:
                    self._add_name(node, package, alias.name)
                elif _is_distinct(node.module or "", alias.name):
                    self._add(node, package, alias.name, NO_COUNTERPART)
            elif alias.name in self._shared:
                self._imported[bound] = (self._shared[alias.name], "")

    def visit_Assign(self, node: ast.Assign) -> None:
        created = self._resolve(node.value.func) if isinstance(node.value, ast.Call) else None
        for target in node.targets:
            if isinstance(target, ast.Name | ast.Attribute):
                name = target.id if isinstance(target, ast.Name) else target.attr
                self._add_setting(target, name)
                if created is not None and created[1][:1].isupper():
                    self.instances[name] = created[0]
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # A key, as in `app.config["RATELIMIT_DEFAULT"]` and in Django's REST_FRAMEWORK.
        self._add_setting(node, node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if (resolved := self._resolve(node.func)) is None:
            self.generic_visit(node)
            return
        package, name = resolved
        write, known = rewritten(package.name, name, node) or ("", frozenset())
        if write:
            self._add(node, package, name, write)
        else:
            if name.islower():
                self._add_name(node, package, name)
            self.visit(node.func)
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg in known or name in DECIDING:
                continue
            if keyword.arg == "key_func" and is_address(keyword.value):
                continue
            if hint := package.keywords.get(keyword.arg) or _KEYWORD_HINTS.get(keyword.arg):
                self._add(keyword.value, package, f"{keyword.arg}=", hint)
        for argument in (*node.args, *node.keywords):
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (resolved := self._resolve(node)) and resolved[1]:
            self._add_name(node, *resolved)
        self.generic_visit(node)

    def _resolve(self, node: ast.expr) -> tuple[Package, str] | None:
        """Return the package of a name or of a method of one of its objects, and that name."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        owner = node.value
        root = owner
        while isinstance(root, ast.Attribute):
            root = root.value
        # `limits.parse`, and `limits.storage.storage_from_string`.
        imported = self._imported.get(root.id) if isinstance(root, ast.Name) else None
        if imported and (root is owner or (not imported[1] and node.attr in imported[0].names)):
            return imported[0], node.attr
        # `limiter.limit`, and `self.limiter.limit`.
        name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        if name in self.instances and node.attr in self.instances[name].names:
            return self.instances[name], node.attr
        return None

    def _add_name(self, node: ast.stmt | ast.expr, package: Package, name: str) -> None:
        if write := package.names.get(name):
            self._add(node, package, name, write)

    def _add_setting(self, node: ast.expr, name: object) -> None:
        if isinstance(name, str) and name in _SETTINGS:
            package, write = _SETTINGS[name]
            self._add(node, package, name, write)

    def _add(self, node: ast.stmt | ast.expr, package: Package, found: str, write: str) -> None:
        self.found.add((node.lineno, package.name, found, write))


def _is_distinct(module: str, name: str) -> bool:
    """Return whether a name belongs to a package; a program may have its own module `limits`."""
    top, _, rest = module.partition(".")
    if top != "limits":
        return True
    return rest.startswith(("aio", "storage", "strategies")) if rest else "RateLimitItem" in name


def _package(module: str) -> Package | None:
    for package in PACKAGES:
        if any(module == name or module.startswith(f"{name}.") for name in package.modules):
            return package
    return None
