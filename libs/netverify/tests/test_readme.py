"""The code of the README runs, and the public names are declared alike for Python and for types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import netverify

ROOT = Path(__file__).parents[1]


def test_the_readmes_lines_enclose_the_activation() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    scope: dict[str, Any] = {}
    exec(code, scope)
    lines, gelu = scope["lines"], scope["GELU"].value
    for end in (scope["lower"].double(), scope["upper"].double()):
        value = gelu(end)
        # The lines are float32 numbers that are sound as they stand: evaluated in float64.
        assert (lines.lower_slope * end + lines.lower_intercept <= value).all()
        assert (value <= lines.upper_slope * end + lines.upper_intercept).all()
        assert (scope["least"] <= value).all()
        assert (value <= scope["most"]).all()


def test_every_public_name_loads_and_is_declared_for_type_checkers() -> None:
    stub = ast.parse((ROOT / "netverify" / "__init__.pyi").read_text(encoding="utf-8"))
    declared = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == netverify._HOMES
    for name in netverify.__all__:
        assert getattr(netverify, name) is not None


def test_properties_load_without_torch() -> None:
    code = "import sys, netverify.properties; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
