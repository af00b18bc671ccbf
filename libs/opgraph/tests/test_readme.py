"""The code of the README runs, and the public names are declared alike for Python and for types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import opgraph

ROOT = Path(__file__).parents[1]


def test_the_readmes_code_reads_a_network_and_runs_its_graph() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["kinds"] == ["Input", "Linear", "Pointwise", "Linear"]
    assert scope["output"].shape == (3, 2)


def test_every_public_name_loads_and_is_declared_for_type_checkers() -> None:
    stub = ast.parse((ROOT / "opgraph" / "__init__.pyi").read_text(encoding="utf-8"))
    declared = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == opgraph._HOMES
    for name in opgraph.__all__:
        assert getattr(opgraph, name) is not None


def test_the_package_and_its_errors_load_without_torch() -> None:
    code = "import sys, opgraph.errors; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
