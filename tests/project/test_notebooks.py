"""Notebooks in git: short, without outputs, and each of them is there.

`make notebooks` runs them.
"""

import json
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "notebooks"
NAMES = [
    "01_quickstart",
    "02_privacy_accounting",
    "03_checkpoint_aggregation",
    "04_periodic_shift",
    "05_uncertainty",
    "06_your_own_task",
    "07_results",
]


def test_all_are_there():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_cleared_and_cells_are_short(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert 4 <= len(cells) <= 10
    for cell in cells:
        assert cell["outputs"] == [] and cell["execution_count"] is None
        code = "".join(cell["source"])
        assert len(code.splitlines()) <= 40, code
        # Logic belongs to the library, where it is tested.
        assert "def " not in code or name == "06_your_own_task", code
    assert "widgets" not in notebook["metadata"]
