"""The example notebooks: stored without outputs, and run from the first cell to the last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
SHOWN = {
    "quick_start": ["<circle", "fedprox(mu=0.1)", "<polyline", "fedadam", "report.html"],
    "own_model_and_data": [
        "&lt;Population of 4 clients",
        "worst_decile",
        "personal_missed",
        "Linear(in_features=8",
    ],
    "finished_comparison": ["&lt;Comparison of fedavg, fedrep", "fedrep", "head.weight"],
}
"""Notebook -> pieces that its outputs show."""


def test_notebooks_are_those_that_are_expected():
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path):
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells and all(
        cell["outputs"] == [] and cell["execution_count"] is None for cell in cells
    )
    assert notebook["cells"][0]["source"][0].startswith("# ")
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_its_results(path, tmp_path):
    nbformat, nbclient = (pytest.importorskip(name) for name in ("nbformat", "nbclient"))
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    outputs = [
        output for output in outputs if not output.get("text", "").startswith("compiling loops")
    ]  # on a new machine
    assert all(output.output_type in ("execute_result", "display_data") for output in outputs), (
        outputs
    )
    shown = json.dumps([output.data for output in outputs])
    for piece in SHOWN[path.stem]:
        assert json.dumps(piece)[1:-1] in shown, piece
    figures = [output.data for output in outputs if "application/vnd.plotly.v1+json" in output.data]
    assert figures and all(
        figure["image/png"].startswith("iVBOR") for figure in figures
    )  # for exports without scripts,
    assert not any("text/html" in figure for figure in figures)  # which prefer HTML
    assert "<progress" not in shown  # a bar is removed when its run ends
