"""All examples in the documentation are run and their results compared.

| block | treatment |
| --- | --- |
| `python`, also inside an HTML comment | run; the blocks of a page share one namespace |
| `pycon` | run as a session, whose output is compared |
| `yaml` | written to the file named in its first line, and loaded |
| `text` after a `yaml` block | compared with the error of loading it |
| `http` | compared with the status line and fields of `response` |
| `console` | commands after `$` are run and their output compared |
| `>>>` in a docstring | run as a doctest |

The `python` blocks of each page run once more as a reader copies them, without the comments. Those
that look complete run alone: blocks in tabs, and blocks that define an application.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import flask
import prometheus_client
import pytest
import yaml
from sybil import Document, Example, Sybil
from sybil.document import PythonDocStringDocument
from sybil.evaluators.doctest import DocTestEvaluator
from sybil.parsers.abstract.doctest import DocTestStringParser
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil import Region

ROOT = Path(__file__).parents[2]
ROOT_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
PAGES = [*ROOT_PAGES, *sorted(ROOT.glob("docs/**/*.md"))]
SOURCES = sorted([*ROOT.glob("python/penstock/**/*.py"), *ROOT.glob("python/penstock/**/*.pyi")])
FLAGS = re.MULTILINE | re.DOTALL
# Not run: shell commands with side effects, and listings.
SHOWN = {"sh", "toml", "tree"}
RUN = {"python", "pycon", "yaml", "text", "http", "console"}

# What a page assumes of its reader: a line of the page that says so, and code that provides it.
SETTINGS = "INSTALLED_APPS, MIDDLEWARE = [], []"
DJANGO = """
import django
from django.apps import apps

if not apps.ready:
    django.setup()
"""
LOG = """
from sample_log import write_access_log

write_access_log("access.log", events=20_000, seed=7, hours=4.0)
with open("access.log", "a") as log:
    log.write("this is no line of a log\\n")
with open("requests.csv", "w") as file:
    file.write("time,client_ip,bytes\\n2026-11-20T10:00:00Z,192.0.2.1,512\\n")
"""
SERVER = """
from pathlib import Path
from redis_servers import Server

server = Server(Path.cwd() / "redis").start()
at_end.callback(server.stop)
shown = shown.replace("redis://cache.internal:6379/0", f"{server.url}?deadline=20s")
"""
POINTS = """
import re
import sys
from pathlib import Path

code = re.search(r"```python\\n(# points.py\\n.*?)```", shown, re.DOTALL)[1]
Path("points.py").write_text(code, encoding="utf-8")
sys.path.insert(0, str(Path.cwd()))
at_end.callback(sys.path.remove, str(Path.cwd()))
at_end.callback(sys.modules.pop, "points", None)
"""
# The page removes its table in a comment; the copy must not leave one behind either.
TABLE = """
import os
from pathlib import Path

shown = shown.replace("shm://deploying-docs", f"shm://docs-{os.getpid()}")
table = Path(f"/dev/shm/penstock-{os.getuid()}-docs-{os.getpid()}")
at_end.callback(table.unlink)
"""
ASSUMED = {
    "README.md": ("# settings.py", SETTINGS),
    "docs/index.md": ("# settings.py", SETTINGS),
    "docs/django.md": ("# settings.py", DJANGO),
    "docs/coming-from.md": ("# views.py", DJANGO),
    "docs/recipes.md": ("# points.py", POINTS),
    "docs/logs.md": ('Trace.from_log("access.log")', LOG),
    "docs/replay.md": ("$ penstock replay access.log", LOG),
    "docs/deploying.md": ('store = "shm://deploying-docs?capacity=1000"', TABLE),
    "docs/stores.md": ('url = f"shm://docs-{os.getpid()}?capacity=1000"', TABLE),
    "docs/redis.md": ('url = "redis://cache.internal:6379/0"', SERVER),
}

# An application of a framework, or a view of Django.
APPLICATION = re.compile(
    r"\b(?:Flask|FastAPI|Starlette|PenstockMiddleware)\(|^@\w+\.(?:get|post|websocket)\("
    r"|^ *def \w+\((?:self, )?request",
    re.MULTILINE,
)
# What the settings of a Django project, or a module with an application, have above the block.
PROVIDED = {
    "README.md": ("INSTALLED_APPS", "MIDDLEWARE", "app"),
    "docs/index.md": ("INSTALLED_APPS", "MIDDLEWARE"),
}

# What is checked after a block that publishes metrics, by a name in it.
PUBLISHES = {
    "make_wsgi_app": 'assert b"penstock_decisions_total" in app.test_client().get("/metrics").data',
    "make_asgi_app": "from fastapi.testclient import TestClient\n"
    'assert "penstock_decisions_total" in TestClient(api).get("/metrics").text',
    "def ready": "ShopConfig.ready(None)\nfrom prometheus_client import generate_latest\n"
    'assert b"penstock_decisions_total" in generate_latest()',
    "def metrics": 'assert urlpatterns[0].callback(None).content.startswith(b"# HELP")',
}


def file_of(example: Example) -> str:
    """Return the name of the file in the first line of a YAML block."""
    first = example.parsed.partition("\n")[0]
    named = re.fullmatch(r"# ([\w./-]+\.yaml)", first)
    assert named, f"the first line of a YAML block must name its file, found {first!r}"
    return named[1]


def save(example: Example) -> None:
    """Write a YAML block to its file."""
    Path(file_of(example)).write_text(example.parsed, encoding="utf-8")


def load(example: Example) -> None:
    """Write a YAML block to its file, and load it."""
    save(example)
    file = file_of(example)
    files = ("limits.yaml", file) if file.startswith("overrides") else (file, None)
    try:
        penstock.Limits.load(*files)
    except penstock.ConfigError as error:
        example.namespace["unshown_error"] = str(error)


def compare_error(example: Example) -> None:
    """Compare a text block with the error of the preceding YAML block."""
    assert example.parsed.strip() == example.namespace.pop("unshown_error")


def compare_response(example: Example) -> None:
    """Compare a status line and header fields with the latest response."""
    response = example.namespace["response"]
    status, *fields = example.parsed.strip().split("\n\n")[0].splitlines()
    assert status == f"HTTP/1.1 {response.status}"
    for line in fields:
        name, value = line.split(": ", 1)
        assert f"{name}: {response.headers.get(name)}" == f"{name}: {value}"
    _, _, body = example.parsed.strip().partition("\n\n")
    if body:
        assert body == response.get_data(as_text=True).strip()


def run_commands(example: Example) -> None:
    """Run each command after `$` and compare its output."""
    for step in re.split(r"^\$ ", example.parsed, flags=re.MULTILINE)[1:]:
        line, _, expected = step.partition("\n")
        program, *arguments = shlex.split(line)
        assert program == "penstock", f"only penstock commands can be run, found {program}"
        command = [sys.executable, "-m", "penstock", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout + done.stderr).strip() == expected.strip()


def parse_sessions(document: Document) -> Iterator[Region]:
    """Yield the prompts of each `pycon` block."""
    doctests = DocTestStringParser(DocTestEvaluator())
    for block in CodeBlockParser("pycon", DocTestEvaluator())(document):
        for region in doctests(block.parsed, document.path):
            region.adjust(block, block.parsed)
            yield region


class Docstrings(PythonDocStringDocument):
    """The docstrings of one module, which run in its namespace."""

    def __init__(self, text: str, path: str) -> None:
        # Not the parent's constructor, which would import the file outside its package.
        Document.__init__(self, text, path)


pages = Sybil(
    [
        PythonCodeBlockParser(),
        parse_sessions,
        CodeBlockParser("yaml", load),
        CodeBlockParser("text", compare_error),
        CodeBlockParser("http", compare_response),
        CodeBlockParser("console", run_commands),
    ],
)
as_copied = Sybil([PythonCodeBlockParser(), parse_sessions, CodeBlockParser("yaml", save)])
docstrings = Sybil([DocTestParser()], document_types={".py": Docstrings, ".pyi": Docstrings})


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """An empty working directory, and a manual clock for every Flask app."""
    monkeypatch.chdir(tmp_path)
    clock = penstock.ManualClock(start=1_700_000_000)
    defaults = {**flask.Flask.default_config, "PENSTOCK_CLOCK": clock}
    monkeypatch.setattr(flask.Flask, "default_config", defaults)
    # A page may register a collector in each of its tabs, and runs twice.
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    return {"__name__": "__main__", "penstock": penstock}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_shows_what_happens(path: Path, workspace: dict[str, object]) -> None:
    page = pages.parse(path)
    page.namespace.update(workspace)
    for example in page.examples():
        shows_error = getattr(example.region.evaluator, "__name__", "") == "compare_error"
        assert shows_error or "unshown_error" not in page.namespace
        example.evaluate()
    assert "unshown_error" not in page.namespace


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_code_runs_as_a_reader_copies_it(path: Path, workspace: dict[str, object]) -> None:
    text = path.read_text(encoding="utf-8")
    line, provided = ASSUMED.get(str(path.relative_to(ROOT)), ("", ""))
    assert line in text
    # The Flask apps of a reader have no manual clock, unless the page creates one.
    assert ".clock.advance(" not in text
    # As many lines as before, so that an error names the right one.
    shown = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    with ExitStack() as at_end:
        namespace = {"__name__": workspace["__name__"], "shown": shown, "at_end": at_end}
        exec(provided, namespace)  # noqa: S102  the code is above
        copy = Path.cwd() / path.name
        copy.write_text(str(namespace.pop("shown")), encoding="utf-8")
        page = as_copied.parse(copy)
        page.namespace.update(namespace)
        for example in page.examples():
            example.evaluate()


def blocks_that_look_complete() -> list[dict[str, object]]:
    """Return the visible blocks of tabs and those that define applications, with their files."""
    found: list[dict[str, object]] = []
    for path in PAGES:
        page = re.sub(
            r"<!--.*?-->",
            lambda hidden: "\n" * hidden[0].count("\n"),
            path.read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )
        name = str(path.relative_to(ROOT))
        blocks = [
            (page.count("\n", 0, block.start()) + 2, block[1], textwrap.dedent(block[2]))
            for block in re.finditer(r"^( *)```(?:python|yaml)\n(.*?)^ *```", page, FLAGS)
        ]
        # The first line of a file's block names it. A block finds the last version above it, or
        # else the first one below.
        named = [(re.match(r"# ([\w-]+\.(?:yaml|py))\n", code), code) for *_, code in blocks]
        versions = [(first[1], code) if first else ("", "") for first, code in named]
        for index, (line, indent, code) in enumerate(blocks):
            if APPLICATION.search(code) or (indent and not versions[index][0].endswith(".yaml")):
                files = dict([*reversed(versions[index:]), *versions[:index]])
                files.pop("", None)
                lists = PROVIDED.get(name, ())
                title = f"{name}, line {line}"
                checks = [check for part, check in PUBLISHES.items() if part in code]
                run = "\n".join([code, *checks])
                found.append({"title": title, "code": run, "files": files, "lists": lists})
    return found


def test_each_block_that_looks_complete_runs_alone(tmp_path: Path) -> None:
    blocks = blocks_that_look_complete()
    assert len(blocks) >= 80
    assert all(any(check in str(block["code"]) for block in blocks) for check in PUBLISHES.values())
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("alone.py"), tmp_path],
        input=json.dumps(blocks),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_show_what_happens(path: Path, workspace: dict[str, object]) -> None:
    document = docstrings.parse(path)
    examples = list(document.examples())
    if examples:
        module = ".".join(path.relative_to(ROOT / "python").with_suffix("").parts)
        document.namespace.update(vars(importlib.import_module(module)) | workspace)
    for example in examples:
        example.evaluate()


def test_examples_are_found() -> None:
    assert sum(len(list(pages.parse(path).examples())) for path in PAGES) >= 40
    assert sum(len(list(docstrings.parse(path).examples())) for path in SOURCES) >= 20


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_code_block_has_a_language(path: Path) -> None:
    fences = re.findall(r"^ *```(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(fences) % 2 == 0
    assert set(fences[::2]) <= RUN | SHOWN


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        assert page.exists(), target
        if anchor:
            headings = re.findall(
                r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE
            )
            assert anchor in {slug(heading) for heading in headings}, target


def test_pictures_show_what_the_engine_does(tmp_path: Path) -> None:
    script = ROOT / "docs/images/algorithms.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_text(encoding="utf-8") for path in script.parent.glob("*.svg")}
    assert drawn == kept, f"run {script}"


def test_picture_of_times_shows_the_measurements_of_the_tables(tmp_path: Path) -> None:
    plot = runpy.run_path(str(ROOT / "benches/python/plot.py"))
    plot["draw"](plot["figures"](), tmp_path / "drawn.svg")
    kept = (ROOT / "docs/decision-times.svg").read_text(encoding="utf-8")
    assert (tmp_path / "drawn.svg").read_text(encoding="utf-8") == kept, "run plot.py"


def test_classifiers_and_pages_name_the_versions_that_ci_tests() -> None:
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    matrix = ci["jobs"]["interpreters"]["strategy"]["matrix"]
    pythons = sorted(matrix["python"])
    djangos = sorted({*matrix["django"], *(each["django"] for each in matrix["include"])})
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for kind, versions in (
        ("Programming Language :: Python", pythons),
        ("Framework :: Django", djangos),
    ):
        named = re.findall(rf"^{kind} :: (\d+\.\d+)$", "\n".join(project["classifiers"]), FLAGS)
        assert sorted(named) == versions
    page = (ROOT / "docs/support.md").read_text(encoding="utf-8")
    assert f"CPython {pythons[0]} to {pythons[-1]}, " in page
    assert f"supports: {', '.join(djangos[:-1])} and {djangos[-1]} " in page
    free = ci["jobs"]["free-threaded"]["strategy"]["matrix"]["python"]
    assert (
        f"free-threaded CPython {' and '.join(version.rstrip('t') for version in free)} |" in page
    )


def test_every_page_is_in_the_navigation() -> None:
    named = set(
        re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    )
    assert named == {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}


def test_files_named_on_pages_exist() -> None:
    named = set()
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"`((?:src|python|tests|benches|examples|docs)/[\w./-]*)`", text))
    assert len(named) >= 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def slug(heading: str) -> str:
    """Return the anchor of a heading in the rendered page."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_python_page_names_every_public_name() -> None:
    # The second page has the exceptions.
    pages = (ROOT / "docs/reference/index.md", ROOT / "docs/codes.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    names = [name for name in penstock.__all__ if not name.startswith("__")]
    assert len(names) >= 20
    assert [name for name in names if f"`{name}" not in text] == []
    members = [
        f"{cls.__name__}.{name}"
        for cls in (penstock.Limiter, penstock.BoundLimit, penstock.Decision)
        for name, _ in inspect.getmembers(cls)
        if not name.startswith("_") and hasattr(cls, name) and name not in text
    ]
    assert members == []
