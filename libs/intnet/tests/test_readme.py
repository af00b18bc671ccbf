"""The code of the README runs, and the public names are declared alike for Python and for types."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import intnet

ROOT = Path(__file__).parents[1]


def test_the_readmes_network_computes_what_its_comment_says() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["logits"].tolist() == [[8]]


def test_every_public_name_loads_and_is_declared_for_type_checkers() -> None:
    stub = ast.parse((ROOT / "intnet" / "__init__.pyi").read_text(encoding="utf-8"))
    declared = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == intnet._HOMES
    for name in intnet.__all__:
        assert getattr(intnet, name) is not None
