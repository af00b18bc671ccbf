"""The code of the README runs, and the public names are declared alike for Python and for types."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import lambda_gelu

ROOT = Path(__file__).parents[1]


def test_the_readmes_code_ends_with_a_network_of_relu() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    scope: dict[str, Any] = {}
    exec(code, scope)
    found = [use.traits.name for use in lambda_gelu.census(scope["relu_network"])]
    assert found == ["relu"]


def test_every_public_name_loads_and_is_declared_for_type_checkers() -> None:
    stub = ast.parse((ROOT / "lambda_gelu" / "__init__.pyi").read_text(encoding="utf-8"))
    declared = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == lambda_gelu._HOMES
    for name in lambda_gelu.__all__:
        assert getattr(lambda_gelu, name) is not None
