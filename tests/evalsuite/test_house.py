"""The directions of imports: what the architecture promises."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import evalsuite

ROOT = Path(evalsuite.__file__).parent.parent
# What each may import at any depth, besides itself; everything not listed is a leaf that imports only the contract.
ALLOWED = {
    "contract": {"samples", "tasks"},
    "samples": set(),
    "tasks": {"contract", "reluize", "samples"},
    "references": {"plugins", "sources"},
    "onnx_network": {"contract", "references", "samples"},
    "own": {
        "activations",
        "contract",
        "networks",
        "onnx_network",
        "plugins",
        "recipe",
        "references",
        "reluize",
        "report",
        "resizing",
        "results",
        "run",
        "samples",
        "sources",
        "tasks",
        "workloads",
    },
    "__main__": {"cli"},
    "commands": {"plugins"},
    "plugins": set(),
    "activations": {"plugins"},
    "reluize": {"activations", "contract", "plugins", "relaxations", "samples", "workloads"},
    "variants": {"activations", "contract", "onnx_network", "plugins", "reluize", "workloads"},
    "integrations": {"reluize"},
    "relaxations": {"activations", "contract"},
    "graph": {"activations", "contract", "onnx_network", "samples"},
    "certificate": {"activations", "contract", "graph", "relaxations"},
    "deployment": {"samples"},
    "verification": {"activations", "contract", "deployment", "onnx_network", "relaxations"},
    "workloads": {"activations", "contract", "plugins", "samples", "tasks"},
    "resizing": {"activations"},
    "networks": {"activations", "contract", "onnx_network", "plugins", "resizing", "workloads"},
    "recipe": {"contract", "plugins", "references", "variants", "workloads"},
    "results": {"contract"},
    "sources": set(),
    "reading": {"sources"},
    "plan": {"contract", "plugins", "recipe", "sources", "workloads"},
    "run": {
        "activations",
        "contract",
        "deployment",
        "networks",
        "onnx_network",
        "plan",
        "recipe",
        "reluize",
        "reading",
        "results",
        "samples",
        "sources",
        "tasks",
        "variants",
        "workloads",
    },
    "report": {"contract", "results"},
    "doctor": {"plugins"},
    "conformance": {"contract"},
    "testing": {
        "activations",
        "conformance",
        "contract",
        "networks",
        "plugins",
        "relaxations",
        "reluize",
        "run",
        "samples",
        "variants",
        "workloads",
    },
}


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def module_files() -> list[tuple[str, Path]]:
    package = ROOT / "evalsuite"
    return [(file.relative_to(package).parts[0].removesuffix(".py"), file) for file in sorted(package.rglob("*.py"))]


@pytest.mark.parametrize(("room", "file"), module_files(), ids=lambda each: str(getattr(each, "name", each)))
def test_imports_point_one_way(room: str, file: Path) -> None:
    names = list(imports(file))
    assert not [name for name in names if name.split(".")[0] == "pipelines"]
    if room in ("__init__", "cli"):
        return
    rooms = {name.split(".")[1] for name in names if name.startswith("evalsuite.")}
    assert rooms <= ALLOWED[room] | {room}


@pytest.mark.parametrize("file", sorted((ROOT / "pipelines").rglob("*.py")), ids=lambda file: file.name)
def test_stages_import_public_names_only_and_no_other_stage(file: Path) -> None:
    own = ".".join(file.relative_to(ROOT).parts[:2]).removesuffix(".py")
    for name in imports(file):
        if name.split(".")[0] == "evalsuite":
            assert name == "evalsuite", f"{file.name} imports {name}: use the public names of evalsuite"
        if name.split(".")[0] == "pipelines":
            assert name == own or name.startswith(own + "."), f"{file.name} imports another stage: {name}"


@pytest.mark.parametrize(
    "code",
    [
        "import evalsuite",
        "import evalsuite.contract",
        "from evalsuite.cli import app",
        "from evalsuite.recipe import read_recipe; from pathlib import Path; "
        "read_recipe(Path('pipelines/recipes/quickstart.yaml'))",
        "import evalsuite.run.runner, evalsuite.run.executor, evalsuite.run.progress",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    heavy = "{'torch', 'pandas', 'onnx', 'onnxruntime', 'matplotlib', 'sklearn', 'brevitas', 'z3', 'scipy'}"
    check = f"import sys; {code}; found = {heavy} & set(sys.modules); assert not found, found"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_loads_and_is_declared_twice_alike() -> None:
    assert sorted(evalsuite.__all__) == sorted(evalsuite._MODULE_OF)
    for name in evalsuite.__all__:
        assert getattr(evalsuite, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        evalsuite.nonsense  # noqa: B018


@pytest.mark.parametrize("document", ["README.md", "reports/README.md"])
def test_what_the_documents_point_to_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    assert (document != "README.md") or links
    for link in links:
        assert ((ROOT / document).parent / link).exists(), link
