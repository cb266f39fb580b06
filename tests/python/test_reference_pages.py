"""The handwritten reference pages list exactly the options and names of the code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from store_kinds import KINDS

import penstock
from penstock import errors
from penstock._web.guard import GuardOptions
from penstock._web.rule import LimitOptions, RuleOptions
from penstock.adapter import Guard
from penstock.asgi import PenstockMiddleware as AsgiMiddleware
from penstock.django.conf import KEYS
from penstock.fastapi import install
from penstock.headers import STYLES
from penstock.types import Algorithm
from penstock.wsgi import PenstockMiddleware as WsgiMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
LIMIT = "1/minute"


def read(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def options(place: str) -> dict[str, str]:
    """Return the options of a place on the options page, with their defaults."""
    rows = [
        [cell.strip().strip("`") for cell in line.split("|")[1:4]]
        for line in read("options.md").splitlines()
        if re.match(rf"\| `\w+` \| {place} \|", line)
    ]
    assert rows
    assert len({row[0] for row in rows}) == len(rows)
    return {name: default for name, _, default in rows}


def test_options_page_has_every_option_of_an_application() -> None:
    rows = options("application")
    own: dict[str, Callable[..., object]] = {"openapi": install}
    assert rows.keys() == {*GuardOptions.__optional_keys__, "limiter", "default", *own}
    for name, default in rows.items():
        if name != "default":
            found = inspect.signature(own.get(name, Guard)).parameters[name].default
            assert default == repr(found).replace("'", '"'), name
    assert {name.upper() for name in rows.keys() - own} == set(KEYS)


def test_options_page_has_every_option_of_a_limit() -> None:
    rows = options("limit")
    assert rows.keys() == {*RuleOptions.__optional_keys__, "scope"}
    # The docstrings name the defaults.
    text = f"{LimitOptions.__doc__} {RuleOptions.__doc__}"
    assert "The default is 1." in text
    assert (rows["cost"], rows["reserve"], rows["mode"]) == ("1", "True", '"enforce"')


def test_docstrings_have_every_option() -> None:
    owners = (*RuleOptions.__orig_bases__, LimitOptions)  # type: ignore[attr-defined]
    text = "\n".join(getattr(owner, "__origin__", owner).__doc__ for owner in owners)
    described = set(re.findall(r"^ +(\w+): ", text, re.MULTILINE))
    assert RuleOptions.__optional_keys__ - described == set()
    named = set(re.findall(r"\w+", inspect.getdoc(Guard) or ""))
    assert GuardOptions.__optional_keys__ - named == set()


def test_pages_have_every_algorithm() -> None:
    file, constructors = read("limits-file.md"), read("reference/index.md")
    fields = read("headers.md").partition("| algorithm | `q` |")[2].partition("\n\n")[0]
    table = read("algorithms.md").partition("| algorithm | behavior |")[2].partition("\n\n")[0]
    for name in set(get_args(Algorithm)) - {"unlimited"}:
        assert f"`{name}`" in file, name
        assert f"| `Limit.{name.replace('-', '_')}(" in constructors, name
        words = re.sub("-(?=bucket|window|flight)", " ", name)
        assert re.search(rf"^\| \[?{words}\b", fields, re.MULTILINE), name
        # Slots have a page of their own.
        assert f"(`{name}`" in table or name == "in-flight", name


def test_reference_page_has_every_method_of_a_limiter() -> None:
    shown = read("reference/index.md").partition("| method | effect |")[2].partition("\n\n")[0]
    # The names of other rate limiters are in `dir`, and raise.
    names = {n for n in dir(penstock.Limiter) if n[0] != "_" and hasattr(penstock.Limiter, n)}
    assert len(names) >= 20
    assert names - set(re.findall(r"\b(\w+)\b", shown)) == set()


def test_headers_page_has_every_style() -> None:
    table = read("headers.md").partition("| style | fields |")[2].partition("\n\n")[0]
    rows = "".join(line.split("|")[1] for line in table.splitlines()[2:])
    assert set(re.findall(r"`([\w-]+)`", rows)) == set(STYLES)


def test_middlewares_lack_the_options_listed_on_the_page() -> None:
    for middleware in (AsgiMiddleware, WsgiMiddleware):
        for option in ("override_defaults", "on_store_error", "default"):
            accepted = True
            try:
                middleware(lambda *_: [], limit=LIMIT, **{option: "raise"})  # type: ignore[arg-type]
            except penstock.ConfigError:
                accepted = False
            # `on_store_error` is the application's there.
            assert accepted == (option == "on_store_error")


def test_options_page_has_every_field_of_a_limits_file() -> None:
    source = (ROOT / "src/config/limits.rs").read_text(encoding="utf-8")
    general = source.partition("const GENERAL")[2].partition(";\n")[0]
    fields = set(re.findall(r'"(\w+)"', general))
    for file in (ROOT / "src/engine/algorithm").rglob("*.rs"):
        fields |= set(re.findall(r'Parameter::\w+\(\s*"(\w+)"', file.read_text(encoding="utf-8")))
    assert len(fields) >= 15
    assert options("file").keys() == fields | {"number", "tiers", "ids"}


def test_every_extra_is_on_its_lists() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = settings["project"]["optional-dependencies"]
    (every,) = extras.pop("all")
    assert sorted(every.removeprefix("penstock[").removesuffix("]").split(",")) == sorted(extras)
    table = read("start.md").partition("| extra | for |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*extras, "all"}
    # Nothing but its adapter imports a framework.
    package = ROOT / "python/penstock"
    modules = {path.stem for path in package.glob("*.py")}
    modules |= {path.parent.name for path in package.glob("*/__init__.py")}
    # What an adapter needs is an extra of the same name.
    files = [*package.glob("*.py"), *package.glob("*/*.py")]
    needed = {
        name
        for file in files
        for name in re.findall(r'with Extra\("(\w+)"\)', file.read_text("utf-8"))
    }
    assert needed <= extras.keys()
    adapters = extras.keys() & modules
    contracts = settings["tool"]["importlinter"]["contracts"]
    (forbidden,) = [each["forbidden_modules"] for each in contracts if "framework" in each["name"]]
    assert len(adapters) >= 7
    assert adapters <= {*forbidden}


def test_every_kind_of_store_is_on_its_lists() -> None:
    columns = re.search(r"^\| URL \|.*$", read("stores.md"), re.MULTILINE)
    assert columns
    assert set(re.findall(r"`(\w+)://", columns[0])) == KINDS.keys()
    report = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"(\w+)://", report)) >= KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_options_page_has_every_option_of_a_store(kind: str) -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        penstock.Limiter({"Orders": LIMIT}, store=f"{KINDS[kind].partition('?')[0]}?unknown=1")
    known = str(caught.value).partition("has the options ")[2].partition(";")[0]
    names = set(re.findall(r"\w+", known))
    assert names
    assert names <= options("store").keys()


def test_codes_page_has_every_exception() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|.*\| ([^|]*)\|$", read("codes.md"), re.MULTILINE)
    assert len(rows) == len(errors.__all__)
    assert {name for name, *_ in rows} == set(errors.__all__)
    for name, base, attributes in rows:
        exception = getattr(errors, name)
        assert base in {parent.__name__ for parent in exception.__mro__[1:]}, name
        shown = set(re.findall(r"`(\w+)`", attributes))
        declared = {key for parent in exception.__mro__ for key in inspect.get_annotations(parent)}
        assert shown == declared, name


def test_pages_have_every_check_of_a_set_up() -> None:
    sources = (ROOT / "python/penstock/_web").glob("*.py")
    codes = {
        code for path in sources for code in re.findall(r"\bP\d{3}\b", path.read_text("utf-8"))
    }
    assert len(codes) >= 5
    symptoms, _, checks = read("codes.md").partition("## Checks of a running set-up")
    assert set(re.findall(r"^### (P\d{3})$", checks, re.MULTILINE)) == codes
    assert codes <= set(re.findall(r"\[(P\d{3})\]", symptoms))


def test_messages_name_pages_of_the_site() -> None:
    site = errors.DOCUMENTATION
    assert f"site_url: {site}/\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f'Documentation = "{site}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = {
        page
        for path in ROOT.glob("python/penstock/**/*.py")
        for page in re.findall(r"\{DOCUMENTATION\}/(\w+)/", path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 2
    assert all((ROOT / f"docs/{page}.md").is_file() for page in named)


def test_codes_page_has_every_system_check() -> None:
    source = (ROOT / "python/penstock/django/checks.py").read_text(encoding="utf-8")
    numbers = set(re.findall(r'_error\(\s*"(E\d{3})"|_error\("(E\d{3})"', source))
    errors_found = {number for pair in numbers for number in pair if number}
    warnings = set(re.findall(r'id="penstock\.(W\d{3})"', source))
    assert len(errors_found) >= 7
    assert len(warnings) == 3
    shown = set(re.findall(r"`penstock\.([EW]\d{3})`", read("codes.md")))
    assert shown == errors_found | warnings


def test_every_public_name_is_on_a_reference_page() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs/reference").glob("*.md"))
    shown = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    on_pages = {id(pkgutil.resolve_name(name)) for name in shown}
    for name in shown:
        owner = pkgutil.resolve_name(name)
        on_pages.update(id(getattr(owner, each)) for each in getattr(owner, "__all__", ()))
    modules = [module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")]
    public = [
        (module, name)
        for module in ["penstock", *modules]
        if not module.endswith("__main__")
        for name in getattr(importlib.import_module(module), "__all__", ())
        if name != "__version__"
    ]
    assert len(public) > 100
    found = [(m, n) for m, n in public if id(getattr(sys.modules[m], n)) not in on_pages]
    assert found == []


def test_text_for_programs_has_every_page(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "docs/assets/llms.py", tmp_path], check=True)
    short = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    assert short.startswith("# penstock\n\n> Rate limiting for Python")
    links = re.findall(r"\]\(https://[^/]+/([\w/-]*)\)", short)
    pages = {
        str(path.relative_to(ROOT / "docs").with_suffix("")).removesuffix("index")
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert {link.removesuffix("/") for link in links} == {p.removesuffix("/") for p in pages} - {""}
    full = (tmp_path / "llms-full.txt").read_text(encoding="utf-8")
    assert "# Recipes\n" in full
    assert "invisible-code-block" not in full
