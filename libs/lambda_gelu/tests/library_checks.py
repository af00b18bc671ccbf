"""What the face of every library is held to: its README's code runs, the examples of its docstring
are true, and its public names are declared alike for Python and for types.
"""

from __future__ import annotations

import ast
import doctest
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def scope_of_readme(test_file: str) -> dict[str, Any]:
    """Return the names that the Python code of the library's README leaves behind.

    The README stands beside the folder of tests. It is not looked for beside the package, which may
    be installed where no README is.
    """
    readme = Path(test_file).resolve().parents[1] / "README.md"
    text = readme.read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    scope: dict[str, Any] = {}
    exec(code, scope)
    return scope


def check_public_names(package: ModuleType) -> None:
    """Every public name loads, is listed, and is declared in the stub; the docstring's examples
    say what Python says.
    """
    stub = ast.parse((_folder(package) / "__init__.pyi").read_text(encoding="utf-8"))
    declared = [
        alias.asname or alias.name
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(declared) == sorted(package.__all__)
    assert set(declared) <= set(dir(package))
    # The stub's own modules give the same objects as the package.
    for node in stub.body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            home = import_module(f"{package.__name__}.{node.module}")
            assert getattr(package, alias.name) is getattr(home, alias.name)
    examples = doctest.testmod(package)
    assert examples.attempted > 0
    assert examples.failed == 0


def _folder(package: ModuleType) -> Path:
    assert package.__file__ is not None
    return Path(package.__file__).parent
