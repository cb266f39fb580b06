"""Rules of the Python package: frozen classes, one docstring for stub and class, light imports."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from programs import run

import penstock
from penstock import _core
from penstock.simulate.log.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CLASSES = [thing for _, thing in inspect.getmembers(_core, inspect.isclass)]
MODULES = [module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")]

LIMITS = penstock.Limits({"Orders": penstock.Limit.token_bucket(burst=4, count=2, period=1)})
LIMITER = penstock.Limiter(LIMITS, clock=penstock.ManualClock())


def existing_store() -> object:
    """Return a store in a file that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        penstock.Limiter(LIMITS, store=f"shm://{folder}/table").close()
        return _core.open_existing(f"shm://{folder}/table", LIMITS)


EXAMPLES: dict[type, Callable[[], object]] = {
    _core.BoundLimit: lambda: LIMITER.limit("Orders"),
    _core.Decision: lambda: LIMITER.check("Orders", "a"),
    _core.Limit: lambda: LIMITS.resolve("Orders", "a"),
    _core.Limiter: lambda: LIMITER,
    _core.LimitEntry: lambda: _core.LimitEntry(LIMITS, "Orders"),
    _core.Limits: lambda: LIMITS,
    _core.ManualClock: penstock.ManualClock,
    _core.Replies: _core.Replies,
    _core.Reservation: lambda: LIMITER.reserve("Orders", "a", 0),
    _core.Simulator: lambda: _core.Simulator(LIMITS),
    _core.SystemClock: penstock.SystemClock,
    _core.Waiter: lambda: _core.waiter(LIMITER.limit("Orders"), "a", 1, None, int),
    _core.LogParser: lambda: _core.LogParser.of_objects(Options()),
}

IMPORT = """
import sys
before = set(sys.modules)
import penstock
print(*sorted(set(sys.modules) - before))
"""


def first_sentence(docstring: str | None) -> str:
    """Return the text before the first full stop, on one line."""
    text = " ".join((docstring or "").split())
    return re.split(r"(?<=\.)(?:\s|$)", text, maxsplit=1)[0]


def test_every_class_of_the_core_has_an_example() -> None:
    assert len(CLASSES) >= 10
    assert set(EXAMPLES) == set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_class_cannot_be_derived_from(cls: type) -> None:
    with pytest.raises(TypeError):
        type(f"Sub{cls.__name__}", (cls,), {})


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_instance_is_frozen(cls: type) -> None:
    example = EXAMPLES[cls]()
    assert type(example) is cls
    names = [name for name in vars(cls) if not name.startswith("_")]
    assert names
    for name in [*names, "added"]:
        with pytest.raises(AttributeError):
            setattr(example, name, 1)
        with pytest.raises(AttributeError):
            delattr(example, name)


def public_members(thing: object) -> Iterator[tuple[str, object]]:
    """Yield the methods and properties that a class defines itself."""
    for name, value in vars(thing).items() if inspect.isclass(thing) else ():
        # A dataclass documents its fields in its own docstring.
        field = inspect.ismemberdescriptor(value) or name in getattr(
            thing, "__dataclass_fields__", ()
        )
        if name.startswith("_") or field:
            continue
        if callable(value) or inspect.isdatadescriptor(value):
            yield name, value


def test_every_public_name_is_documented() -> None:
    seen = 0
    for module_name in ["penstock", *MODULES]:
        module = importlib.import_module(module_name)
        assert first_sentence(module.__doc__), module_name
        own = [name for name in vars(module) if not name.startswith("_")]
        for name in getattr(module, "__all__", own):
            thing = getattr(module, name)
            ours = getattr(thing, "__module__", "").startswith("penstock")
            if not ours or not (inspect.isclass(thing) or inspect.isroutine(thing)):
                continue
            assert first_sentence(thing.__doc__).endswith("."), f"{module_name}.{name}"
            seen += 1
            for member, value in public_members(thing):
                assert value.__doc__, f"{module_name}.{name}.{member}"
                seen += 1
    assert seen >= 100


def test_extension_has_the_docstrings_of_the_stub(root: Path) -> None:
    tree = ast.parse((root / "python/penstock/_core.pyi").read_text(encoding="utf-8"))
    seen = set()
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        item = getattr(_core, node.name)
        members = node.body if isinstance(node, ast.ClassDef) else []
        methods = [member for member in members if isinstance(member, ast.FunctionDef)]
        pairs = [(node.name, node, item)]
        pairs += [(f"{node.name}.{m.name}", m, getattr(item, m.name)) for m in methods]
        for name, described, thing in pairs:
            text = ast.get_docstring(described)
            if text is not None and name not in seen:
                assert inspect.getdoc(thing) == text, name
                seen.add(name)
    assert len(seen) >= 150


def test_stub_lists_what_the_module_lists(root: Path) -> None:
    tree = ast.parse((root / "python/penstock/_core.pyi").read_text(encoding="utf-8"))
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert [set(names) for names in listed] == [set(_core.__all__)]
    assert set(penstock.__all__) >= set(_core.__all__)


def test_importing_penstock_imports_no_framework_and_no_large_module() -> None:
    imported = run(IMPORT).split()
    assert "penstock._core" in imported
    ours = {name for name in imported if name.partition(".")[0] == "penstock"}
    assert ours == {
        "penstock",
        "penstock._core",
        "penstock._decisions",
        "penstock.errors",
        "penstock._explanation",
        "penstock._hints",
    }
    heavy = {"asyncio", "django", "flask", "http", "numpy", "pandas", "re", "socket", "typing"}
    assert heavy.isdisjoint(name.partition(".")[0] for name in imported)


# Modules that need a library, and its extra.
OPTIONAL = {
    "penstock.aiohttp": ("aiohttp", "aiohttp"),
    "penstock.django": ("django", "django"),
    "penstock.django.drf": ("rest_framework", "drf"),
    "penstock.fastapi": ("fastapi", "fastapi"),
    "penstock.flask": ("flask", "flask"),
    "penstock.httpx": ("httpx", "httpx"),
    "penstock.httpx2": ("httpx2", "httpx2"),
    "penstock.requests": ("requests", "requests"),
    "penstock.simulate": ("numpy", "numpy"),
}


def test_every_module_that_needs_a_library_is_tried(root: Path) -> None:
    folder = root / "python"
    found = {
        ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for file in folder.rglob("*.py")
        if "\nwith Extra(" in file.read_text(encoding="utf-8")
    }
    assert found == OPTIONAL.keys()


def test_every_adapter_is_in_the_suite_of_all_adapters(root: Path) -> None:
    package = root / "python/penstock"
    adapters = {
        file.relative_to(package).parts[0].removesuffix(".py")
        for file in package.rglob("*.py")
        if "\nfrom penstock._web.guard import" in file.read_text(encoding="utf-8")
    } - {"_web", "adapter"}
    assert len(adapters) >= 5
    drivers = (root / "tests/python/adapters/drivers.py").read_text(encoding="utf-8")
    assert {name for name in adapters if f"import penstock.{name}\n" not in drivers} == set()
    page = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`python/penstock/(\w+)(?:/|\.py)`", page))
    assert adapters <= named


@pytest.mark.parametrize("module", OPTIONAL)
def test_import_without_the_library_names_the_extra(module: str) -> None:
    library, extra = OPTIONAL[module]
    program = f"import sys; sys.modules[{library!r}] = None; import {module}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ModuleNotFoundError: ")
    assert error.endswith(f"; run `pip install 'penstock[{extra}]'`")


def test_every_lock_is_free_in_a_child_process(root: Path) -> None:
    made, safe = 0, 0
    for file in (root / "python" / "penstock").rglob("*.py"):
        calls = [
            node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)
        ]
        made += sum(ast.unparse(call.func).endswith("Lock") for call in calls)
        safe += sum(ast.unparse(call.func) == "fork_safe" for call in calls)
    assert made == safe > 0


def test_core_declares_that_it_needs_no_global_lock(root: Path) -> None:
    source = (root / "src/bindings/mod.rs").read_text(encoding="utf-8")
    assert "gil_used = false" in source


def test_scripts_and_properties_have_every_verb(root: Path) -> None:
    """A script takes a verb that it does not know for a spend."""
    codec = (root / "src/store/redis/codec.rs").read_text(encoding="utf-8")
    script = (root / "src/store/redis/decide_shared.lua").read_text(encoding="utf-8")
    properties = (root / "tests/rust/strategies.rs").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"Verb::(\w+)(?:\(_\))? => (\d+),", codec))
    line = re.search(r"^local (REFUND[\w, ]*) = ([\d, ]+)$", script, re.MULTILINE)
    assert line
    known = dict(zip(line[1].split(", "), line[2].split(", "), strict=True))
    # A check is a spend that may not write.
    others = {re.sub(r"(?<!^)(?=[A-Z])", "_", verb).upper(): n for verb, n in numbers.items()}
    assert {verb: n for verb, n in others.items() if int(n) > 2} == known
    # Slots have tests of their own.
    drawn = numbers.keys() - {"Reserve", "Check", "Release", "Renew"}
    assert {verb for verb in drawn if f"=> Just(Verb::{verb})" not in properties} == set()


def test_version_is_that_of_the_crate(root: Path) -> None:
    manifest = (root / "Cargo.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{penstock.__version__}"\n' in manifest
    assert importlib.metadata.version("penstock") == penstock.__version__


def test_every_linked_crate_is_named_in_the_third_party_licenses(root: Path) -> None:
    """After a change of the dependencies, `make licenses` writes the file again."""
    about = tomllib.loads((root / "about.toml").read_text(encoding="utf-8"))
    targets = [f"--target={target}" for target in about["targets"]]
    tree = ["cargo", "tree", "--locked", "--features=python", "--edges=normal", "--prefix=none"]
    done = subprocess.run([*tree, *targets], cwd=root, capture_output=True, text=True, check=True)
    linked = {line.split()[0] for line in done.stdout.splitlines() if line} - {"penstock"}
    assert len(linked) > 50
    text = (root / "THIRD-PARTY-LICENSES").read_text(encoding="utf-8")
    assert linked - set(re.findall(r"^- (\S+) \(", text, re.MULTILINE)) == set()
    assert "<year>" not in text  # a text without its copyright line


def lines_of_parts(root: Path, parts: list[str]) -> Counter[str]:
    """Return the lines of the files in each part; a file belongs to its innermost part."""
    lines: Counter[str] = Counter()
    for file in (*root.glob("src/**/*"), *root.glob("python/**/*")):
        if file.suffix in {".rs", ".lua", ".py", ".pyi"}:
            name = file.relative_to(root).as_posix()
            part = max((part for part in parts if name.startswith(part)), key=len, default=name)
            lines[part] += len(file.read_text(encoding="utf-8").splitlines())
    return lines


def test_architecture_names_all_parts_with_their_sizes(root: Path) -> None:
    page = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \| ([\d,]+) \|", page, re.MULTILINE)
    named = [(re.findall(r"`([^`]+)`", parts), int(size.replace(",", ""))) for parts, size in rows]
    lines = lines_of_parts(root, [part for parts, _ in named for part in parts])
    # Each file is in a part, and each part has a file.
    assert set(lines) == {part for parts, _ in named for part in parts}
    measured = [(parts[0], size, sum(lines[part] for part in parts)) for parts, size in named]
    # Only what changes the picture must be updated.
    assert [row for row in measured if abs(row[1] - row[2]) > 300 + row[2] / 10] == []


def test_architecture_names_functions_that_exist(root: Path) -> None:
    page = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    core = "".join(file.read_text(encoding="utf-8") for file in root.glob("src/**/*.rs"))
    package = "".join(
        file.read_text(encoding="utf-8") for file in root.glob("python/penstock/**/*.py")
    )
    functions = re.findall(r"`\w+::(\w+)`", page)
    methods = re.findall(r"`[A-Z]\w+\.(\w+)`", page)
    assert len(functions) >= 8
    assert [name for name in functions if not re.search(rf"\bfn {name}\b", core)] == []
    known = f"{core}{package}"
    assert [n for n in methods if not re.search(rf"\b(?:def|fn) (?:py_)?{n}\b", known)] == []
