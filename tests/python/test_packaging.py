"""The wheel as users get it: built from the source archive, installed in an empty environment."""

from __future__ import annotations

import email
import os
import re
import runpy
import subprocess
import sys
import tarfile
import venv
import zipfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MEGABYTE = 1_000_000
NEEDED = {"__init__.py", "_core.abi3.so", "_core.pyi", "py.typed"}
ONE_DECISION = """
import penstock
limiter = penstock.Limiter({"Orders": "1/minute"}, clock=penstock.ManualClock())
print([bool(limiter.spend("Orders", "a")) for _ in range(2)])
"""


def run(*command: str | Path, **environ: str) -> str:
    env = os.environ | environ  # noqa: TID251  the build backend reads it
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: str | Path, **environ: str) -> str:
    return run(sys.executable, "-m", "pip", *arguments, **environ)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    manifest = pytestconfig.rootpath / "Cargo.toml"
    run(sys.executable, "-m", "maturin", "sdist", "--manifest-path", manifest, "--out", folder)
    (built,) = folder.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(
    sdist: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Path:
    """The wheel that pip builds from the source archive, compressed as for a release.

    Only the dependencies are those of the checkout, which are compiled already.
    """
    folder = tmp_path_factory.mktemp("wheel")
    pip(
        *("wheel", "--no-deps", "--wheel-dir", folder, sdist),
        CARGO_TARGET_DIR=str(pytestconfig.rootpath / "target"),
        MATURIN_PEP517_ARGS="--compression-level 9",
    )
    (built,) = folder.glob("*.whl")
    return built


def test_one_wheel_serves_every_python_from_3_11_on(wheel: Path) -> None:
    assert re.fullmatch(r"penstock-[\d.]+-cp311-abi3-\w+\.whl", wheel.name)


def test_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= 3.5 * MEGABYTE


def test_wheel_holds_the_package_and_nothing_else(wheel: Path, pytestconfig: pytest.Config) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package = [name for name in names if not re.match(r"penstock-[\d.]+\.dist-info/", name)]
    assert {f"penstock/{name}" for name in NEEDED} <= set(package)
    tracked = run("git", "-C", pytestconfig.rootpath / "python", "ls-files").split()
    assert {name for name in package if not name.endswith(".so")} == set(tracked)
    assert [name for name in package if not name.startswith("penstock/")] == []
    tests = [name for name in package if "test" in name]
    # The pytest plugin belongs to the package; penstock's own tests do not.
    assert tests == ["penstock/pytest_plugin.py"]
    licenses = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert licenses == {"LICENSE", "LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES"}


def test_wheel_has_no_dependencies(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["License-Expression"] == "MIT OR Apache-2.0"
    required = metadata.get_all("Requires-Dist", [])
    assert len(required) >= 2
    assert [line for line in required if "extra ==" not in line] == []


def test_wheel_decides_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty")
    (python,) = (tmp_path / "empty").glob("bin/python")
    pip("--python", python, "install", "--no-index", wheel)
    assert run(python, "-I", "-c", ONE_DECISION) == "[True, False]\n"
    assert run(tmp_path / "empty/bin/penstock", "--help").startswith("usage: penstock")


def test_readme_on_pypi_has_absolute_links_to_files_that_exist(
    pytestconfig: pytest.Config,
) -> None:
    root, site = pytestconfig.rootpath, "https://example.org/penstock"
    absolute = runpy.run_path(str(root / "docs/assets/pypi_readme.py"))["absolute"]
    text = absolute((root / "README.md").read_text(encoding="utf-8"), site, "v1.0")
    links = [link.partition("#")[0] for link in re.findall(r"\]\((\S+)\)", text)]
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [link for link in links if link.startswith(site)]
    files = [re.sub(f"{site}/(blob|raw)/v1.0/", "", link) for link in ours]
    assert [file for file in files if not (root / file).is_file()] == []


def test_page_on_pypi_installs_from_pypi(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath
    installed = runpy.run_path(str(root / "docs/assets/pypi_readme.py"))["installed"]
    text = installed((root / "README.md").read_text(encoding="utf-8"))
    commands = [line.split("#")[0].strip() for line in text.splitlines() if "pip install" in line]
    assert commands == ["pip install penstock", 'pip install "penstock[django]"']
    assert "Wheels are not on PyPI" not in text
    assert "[tutorial](" in text


def test_source_archive_holds_what_a_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE-MIT",
        "README.md",
        "THIRD-PARTY-LICENSES",
        "build.rs",
        "pyproject.toml",
        "python/penstock/_core.pyi",
        "src/lib.rs",
    }
    assert needed <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops.isdisjoint({".venv", "benches", "docs", "target", "tests"})
    assert [name for name in names if name.endswith((".pyc", ".so")) or "/." in name] == []
