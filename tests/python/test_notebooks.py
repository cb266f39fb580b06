"""The notebooks run, and show what they say they show."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
DRAWS = (".plot(", ".chart(")


def read(file: str | Path) -> Any:
    # It has no types.
    reader: Any = nbformat
    return reader.read(file, as_version=4)


def code_of(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def told_by(cell: Any) -> list[tuple[str, str]]:
    """Give what a cell tells in words and tables: drawings differ by the machine's letters."""
    told = []
    for output in cell.outputs:
        if output.output_type == "stream":
            told.append((output.name, output.text))
        data = output.get("data", {})
        told += [(kind, data[kind]) for kind in sorted(data) if kind.startswith("text/")]
    return told


def kinds_of(cell: Any) -> set[str]:
    return {kind for output in cell.outputs for kind in output.get("data", {})}


def test_there_are_notebooks() -> None:
    names = [notebook.stem for notebook in NOTEBOOKS]
    assert names == ["attacker-and-person", "choosing-a-limit", "four-algorithms"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_committed_notebook_is_small_and_has_its_drawings(file: Path) -> None:
    assert file.stat().st_size < 300_000
    notebook = read(file)
    nbformat.validate(notebook)
    cells = code_of(notebook)
    drawn = [cell for cell in cells if any(call in cell.source for call in DRAWS)]
    assert len(drawn) >= 3
    for cell in drawn:
        assert "image/png" in kinds_of(cell), cell.source
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs_and_tells_what_is_committed(file: Path, tmp_path: Path) -> None:
    copied = shutil.copy(file, tmp_path)
    notebook = read(copied)
    committed = [(told_by(cell), kinds_of(cell)) for cell in code_of(notebook)]
    # An error in a cell ends it. What it writes, it writes beside the copy.
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    for cell, told in zip(code_of(notebook), committed, strict=True):
        assert (told_by(cell), kinds_of(cell)) == told, cell.source
