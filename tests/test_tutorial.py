"""docs/tutorial.ipynb holds its outputs, and runs from top to bottom.

After a change of the notebook: ``jupyter execute --inplace docs/tutorial.ipynb``.
"""

from __future__ import annotations

import asyncio

import nbformat
import pytest

from pages import ROOT

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
HOLDS = """
assert float_accuracy > 85 and binarized_accuracy < 30 and trained_accuracy > binarized_accuracy + 10
assert abs(packed_accuracy - trained_accuracy) <= 0.4 and packed.file_bytes < 60_000
assert flips[0] == 0 and 0 < max(flips) < 0.5 and history.shape == (4, 9216)
"""


def _code():
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]


def test_the_committed_outputs_are_of_one_run_from_top_to_bottom():
    nbformat.validate(nbformat.read(NOTEBOOK, as_version=4))
    cells = _code()
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert all(cell.outputs for cell in cells)
    assert {output.output_type for output in outputs} <= {"stream", "display_data"}
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)  # no warning
    assert NOTEBOOK.stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the notebook's machinery; the notebook runs in a process of its own
def test_it_runs_from_top_to_bottom(tmp_path):
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    before = [[output.output_type for output in cell.outputs] for cell in _code()]
    notebook.cells.append(nbformat.v4.new_code_cell(HOLDS))
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    asyncio.run(client.async_execute())
    after = [cell for cell in notebook.cells if cell.cell_type == "code"][:-1]
    assert [[output.output_type for output in cell.outputs] for cell in after] == before
    assert (tmp_path / "model.safetensors").is_file()
