"""The notebook of the documents runs, from a module in memory to the answer and its picture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.evalsuite.test_house import ROOT

NOTEBOOK = ROOT / "docs" / "first-look.ipynb"
# Cells in one namespace; of each the last expression is shown, as a notebook does.
CELLS = """
import ast
import json
import sys
from pathlib import Path

cells, scope, shown = json.loads(Path("cells.json").read_text()), {"__name__": "__main__"}, []
for name, text in cells:
    body = ast.parse(text).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec"), scope)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
        html = getattr(value, "_repr_html_", lambda: "")()
        shown.append([name, {"text/plain": repr(value), "text/html": html}])
Path("shown.json").write_text(json.dumps(shown))
"""
KERNEL = """
import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read("notebook.ipynb", as_version=4)
NotebookClient(notebook, timeout=280, kernel_name="python3").execute()
shown = [[cell.id, output.data] for cell in notebook.cells for output in cell.get("outputs", [])
         if "data" in output]
Path("shown.json").write_text(json.dumps(shown))
"""


def cells() -> list[tuple[str, str]]:
    """The cells of code, by their names."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [
        (cell["id"], "".join(cell["source"]))
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_ten_lines_lead_from_a_module_to_the_answer() -> None:
    (first, _), *others = cells()
    assert first == "network"
    lines = [line for _, text in others for line in text.splitlines() if line.strip()]
    assert len(lines) <= 10
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in notebook["cells"])  # none that could be old


@pytest.mark.slow
def test_the_notebook_ends_in_answer_picture_and_relu_network(tmp_path: Path) -> None:
    # Without a kernel its cells run all the same, one after the other.
    kernel = all(map(find_spec, ("nbclient", "nbformat", "ipykernel")))
    (tmp_path / "cells.json").write_text(json.dumps(cells()))
    (tmp_path / "notebook.ipynb").write_bytes(NOTEBOOK.read_bytes())
    script = KERNEL if kernel else CELLS
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"EVALSUITE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown: dict[str, dict[str, Any]] = dict(json.loads((tmp_path / "shown.json").read_text()))
    answer = shown["answer"]
    for kind in ("Buys", "Costs", "No difference that matters", "Cannot be told"):
        assert f"&lt;dt&gt;{kind}&lt;/dt&gt;" in answer["text/html"]
    assert "&lt;svg" in answer["text/html"]
    assert "Best treatment:" in answer["text/html"]
    assert "The report: runs/Sequential/report.html" in answer["text/plain"]
    assert "gelu-swap" in shown["rows"]["text/html"]
    assert "accuracy in float on the test samples" in shown["relu"]["text/plain"]
