"""The notebooks run, and their committed output is current."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(file: str | Path) -> Any:
    # nbformat has no types.
    reader: Any = nbformat
    return reader.read(file, as_version=4)


def code_of(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def output_of(cell: Any) -> list[tuple[str, str]]:
    """Return the texts and tables of a cell; images depend on the installed fonts."""
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            texts.append((output.name, output.text))
        data = output.get("data", {})
        texts += [(kind, data[kind]) for kind in sorted(data) if kind.startswith("text/")]
    return texts


def kinds_of(cell: Any) -> set[str]:
    return {kind for output in cell.outputs for kind in output.get("data", {})}


def test_there_are_notebooks() -> None:
    names = [notebook.stem for notebook in NOTEBOOKS]
    assert names == ["attacker-and-person", "choosing-a-limit", "four-algorithms"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_committed_notebook_is_small_and_has_its_plots(file: Path) -> None:
    assert file.stat().st_size < 300_000
    notebook = read(file)
    nbformat.validate(notebook)
    cells = code_of(notebook)
    drawn = [cell for cell in cells if ".plot(" in cell.source]
    assert len(drawn) >= 3
    for cell in drawn:
        assert "image/png" in kinds_of(cell), cell.source
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs_and_its_output_is_committed(file: Path, tmp_path: Path) -> None:
    copied = shutil.copy(file, tmp_path)
    shutil.copy(FOLDER / "sample_log.py", tmp_path)
    notebook = read(copied)
    committed = [(output_of(cell), kinds_of(cell)) for cell in code_of(notebook)]
    # An error in a cell fails the test. Files are written beside the copy.
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    for cell, expected in zip(code_of(notebook), committed, strict=True):
        assert (output_of(cell), kinds_of(cell)) == expected, cell.source
