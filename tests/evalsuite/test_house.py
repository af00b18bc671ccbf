"""The directions of imports: what the architecture promises."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pandas as pd
import pytest

import evalsuite
from evalsuite.moved import IN_MODULES, MOVED, NEW_PLACES
from evalsuite.plugins import load_all, options_of

ROOT = Path(evalsuite.__file__).parent.parent
# What each may import at any depth, besides itself; everything not listed is a leaf that imports
# only the contract.
ALLOWED = {
    "contract": {"metrics", "samples", "tasks"},
    "metrics": set(),
    "samples": set(),
    "tasks": {"contract", "metrics", "plugins", "references", "reluize", "samples"},
    "references": {"plugins", "sources"},
    "decimals": set(),
    "deployed": {"contract"},
    "data": {
        "contract",
        "decimals",
        "plugins",
        "references",
        "samples",
        "sources",
        "tasks",
        "workloads",
    },
    "own": {
        "contract",
        "data",
        "exporting",
        "latency",
        "networks",
        "plan",
        "plugins",
        "recipe",
        "recipe_files",
        "references",
        "reluize",
        "report",
        "resizing",
        "results",
        "run",
        "samples",
        "sources",
        "tasks",
        "terminal",
        "workloads",
        "yardstick",
    },
    "__main__": {"cli"},
    "command_help": set(),
    "commands": {"command_help", "plugins", "sources", "terminal"},
    "plugins": set(),
    "moved": set(),
    "listing": {"plugins"},
    "reluize": {"contract", "plugins", "samples", "workloads"},
    # its section of the report, which nothing else imports
    "reluize/report": {"contract", "reluize", "report"},
    "variants": {"contract", "plugins", "reluize", "workloads"},
    "integrations": set(),
    "counterexamples": {"contract"},
    "exporting": {"contract", "reluize"},
    "latency": {"contract"},
    "yardstick": {"contract", "latency", "plugins", "reluize", "samples"},
    "verification": {"contract", "deployed", "plugins", "signals"},
    # another such section
    "verification/report": {"contract", "counterexamples", "report", "results", "verification"},
    "workloads": {"contract", "plugins", "samples", "tasks"},
    "resizing": set(),
    "networks": {"contract", "plugins", "resizing", "workloads"},
    "document": set(),
    "terminal": set(),
    "sums": set(),
    "recipe_files": {"references"},
    "recipe": {
        "contract",
        "document",
        "plugins",
        "recipe_files",
        "references",
        "terminal",
        "variants",
        "workloads",
    },
    "results": {"contract", "references", "sums"},
    "scores_file": {"contract", "results"},
    "signals": set(),
    "forked": {"run"},
    "sources": {"moved"},
    "reading": {"sources"},
    "plan": {"contract", "plugins", "recipe", "sources", "workloads"},
    "run": {
        "commands",
        "contract",
        "document",
        "exporting",
        "networks",
        "plan",
        "plugins",
        "recipe",
        "reluize",
        "reading",
        "results",
        "samples",
        "scores_file",
        "signals",
        "sources",
        "sums",
        "tasks",
        "terminal",
        "variants",
        "workloads",
    },
    "report": {
        "contract",
        "latency",
        "plugins",
        "references",
        "results",
        "scores_file",
        "sums",
    },
    "studies": {
        "contract",
        "document",
        "plugins",
        "report",
        "results",
        "run",
        "sums",
        "terminal",
    },
    "doctor": {"plugins"},
    "testing": {
        "contract",
        "networks",
        "plugins",
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
    return [(room_of(file.relative_to(package)), file) for file in sorted(package.rglob("*.py"))]


def room_of(file: Path) -> str:
    """The package's folder or module; a section of the report is a room of its own."""
    return (
        "/".join(file.parts[:2])
        if "report" in file.parts[1:-1]
        else file.parts[0].removesuffix(".py")
    )


def test_imports_point_one_way() -> None:
    wrong = []
    for room, file in module_files():
        names = list(imports(file))
        wrong += [f"{file}: {name}" for name in names if name.split(".")[0] == "pipelines"]
        if room not in ("__init__", "cli"):
            rooms = {name.split(".")[1] for name in names if name.startswith("evalsuite.")}
            wrong += [f"{file}: {name}" for name in rooms - ALLOWED[room] - {room}]
    assert wrong == []


LIBRARIES = {
    # what each library imports besides the standard library and itself
    "lambda_gelu": {"torch", "numpy"},
    "opgraph": {"lambda_gelu", "torch", "numpy", "onnx", "onnxruntime", "google"},
    "intnet": {"lambda_gelu", "opgraph", "torch", "numpy", "onnx", "onnxruntime"},
    "netverify": {"lambda_gelu", "opgraph", "torch", "numpy", "scipy", "onnx", "onnxruntime"},
}
EXTRAS = {
    "lambda_gelu": {"numba", "llvmlite", "lightning", "transformers"},
    "opgraph": set(),
    "netverify": {"z3"},
    "intnet": set(),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_stands_without_the_suite(library: str) -> None:
    """It imports what its pyproject.toml declares, and never the suite."""
    known = {*sys.stdlib_module_names, library, *LIBRARIES[library], *EXTRAS[library]}
    files = sorted((ROOT / "libs" / library / library).rglob("*.py"))
    assert len(files) > 10
    wrong = [
        f"{file}: {name}"
        for file in files
        for name in imports(file)
        if name.split(".")[0] not in known
    ]
    assert wrong == []


Imports = Iterator[ast.Import | ast.ImportFrom]


def loaded_imports(body: list[ast.stmt]) -> Imports:
    """The imports that run when a module is loaded: those of no function, and none for types."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from loaded_imports(node.orelse)
        else:
            for name in ("body", "orelse", "finalbody"):
                yield from loaded_imports(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from loaded_imports(handler.body)


def every_import(tree: ast.Module) -> Imports:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def module_names() -> dict[str, Path]:
    """Module -> its file, of the suite, the stages, the benchmarks and the libraries."""
    roots = [ROOT / "evalsuite", ROOT / "pipelines", ROOT / "benchmarks"]
    roots += [ROOT / "libs" / library / library for library in LIBRARIES]
    files: dict[str, Path] = {}
    for root in roots:
        for file in root.rglob("*.py"):
            parts = file.relative_to(root.parent).with_suffix("").parts
            files[".".join(parts).removesuffix(".__init__")] = file
    return files


def imported_modules(of: Callable[[ast.Module], Imports]) -> dict[str, set[str]]:
    """Module -> those modules of this repository that the chosen import statements of it name."""
    files = module_names()
    assert len(files) > 500
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        names: set[str] = set()
        for node in of(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
                continue
            assert node.level == 0
            # `from a.b import c` loads the module a.b.c where there is one, else a.b.
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in files else str(node.module))
        graph[module] = (names & files.keys()) - {module}
    return graph


# The rooms of the largest library, each of which imports itself and those before it alone.
NETVERIFY = (
    "netverify.relaxations",
    "netverify",
    "netverify.zonotopes",
    "netverify.certificate",
)
LARGEST_ROOM = 12_000  # lines


def room_of_module(module: str) -> str:
    """The library, folder of the suite, or stage that a module belongs to; of netverify one of
    its rooms, and of what stands in no folder the package itself.
    """
    first, *inner = module.split(".")
    if first == "netverify":
        return max((room for room in NETVERIFY if f"{module}.".startswith(f"{room}.")), key=len)
    is_folder = bool(inner) and first not in LIBRARIES and (ROOT / first / inner[0]).is_dir()
    return f"{first}.{inner[0]}" if is_folder else first


def test_the_rooms_of_netverify_import_those_before_them_alone() -> None:
    named = imported_modules(every_import)
    wrong = [
        f"{module}: {name}"
        for module in named
        if module.startswith("netverify")
        for name in named[module]
        if name.startswith("netverify")
        and NETVERIFY.index(room_of_module(name)) > NETVERIFY.index(room_of_module(module))
        # The package gives public names of all its rooms on first use.
        and module != "netverify"
    ]
    assert wrong == []


def test_no_room_has_more_lines_than_one_can_know() -> None:
    lines: dict[str, int] = {}
    for module, file in module_names().items():
        room = room_of_module(module)
        lines[room] = lines.get(room, 0) + len(file.read_text(encoding="utf-8").splitlines())
    assert len(lines) >= 30
    assert {room: count for room, count in lines.items() if count > LARGEST_ROOM} == {}


def test_no_modules_load_each_other_in_a_circle() -> None:
    loads = imported_modules(lambda tree: loaded_imports(tree.body))
    # It raises CycleError, which names the circle.
    assert len([*TopologicalSorter(loads).static_order()]) == len(loads)


def test_no_modules_name_each_other_in_a_circle_in_functions_or_for_types_either() -> None:
    named = imported_modules(every_import)
    assert len([*TopologicalSorter(named).static_order()]) == len(named)


def test_stages_import_public_names_only_and_no_other_stage() -> None:
    """Public are the names that evalsuite gives, and of its modules those that docs/reference.md
    lists.
    """
    tables = (MOVED, IN_MODULES)
    public = {(module, name) for table in tables for module in table for name in table[module]}
    assert len(public) > 200
    wrong = []
    for file in sorted((ROOT / "pipelines").rglob("*.py")):
        stage = ".".join(file.relative_to(ROOT).parts[:2]).removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                wrong += [f"{file}: {alias.name}" for alias in node.names if is_ours(alias.name)]
            elif isinstance(node, ast.ImportFrom) and node.module and is_ours(node.module):
                wrong += [
                    f"{file}: {node.module} {alias.name}"
                    for alias in node.names
                    if (node.module, alias.name) not in public
                    and not (node.module == "evalsuite" and alias.name in evalsuite.__all__)
                    and not f"{node.module}.".startswith(f"{stage}.")
                ]
    assert wrong == [], "a stage uses the public names of evalsuite, and no other stage"


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("evalsuite", "pipelines")


def test_the_core_of_the_report_names_no_stage_metric_option_or_variant() -> None:
    """Sections do. A name of several words is looked for in any text, a plain word where it is
    the whole of one.
    """
    named = {plugin.name for group in ("stages", "variants") for plugin in load_all(group)}
    named |= {name for plugin in load_all("stages") for name, _, _ in options_of(plugin.target)}
    for study in sorted((ROOT / "reports").glob("*/results.parquet")):
        frame = pd.read_parquet(study, columns=["metric", "variant", "stage"])
        named |= {str(each) for column in frame for each in frame[column].unique() if each}
    assert {"certified_accuracy", "smt", "weight_bits", "gelu"} <= named
    # Parts of data, keys that the contract gives verdicts, entries of run.json and of the page's
    # data, which options and variants share the names of.
    named -= {"train", "calibration", "eps", "method", "steps", "seconds", "fixed"}
    found = []
    for file in sorted((ROOT / "evalsuite" / "report").glob("*.py")):
        tree = ast.parse(file.read_text())
        documented = {
            id(each.body[0].value)
            for each in ast.walk(tree)
            if isinstance(each, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and each.body
            and isinstance(each.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            text = (
                node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            )
            if id(node) not in documented and (
                text in named or set(re.findall(r"[a-z0-9]+(?:[_-][a-z0-9]+)+", text)) & named
            ):
                found.append(f"{file.name}: {text}")
    assert found == []


LIGHT = [
    "import evalsuite",
    "import evalsuite.contract",
    "from evalsuite.cli import app",
    (
        "from evalsuite.recipe import read_recipe; from pathlib import Path; "
        "read_recipe(Path('pipelines/recipes/quickstart.yaml'))"
    ),
    "import evalsuite.run.runner, evalsuite.run.executor, evalsuite.run.progress",
]


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    heavy = (
        "{'torch', 'pandas', 'onnx', 'onnxruntime', 'matplotlib', 'sklearn', 'brevitas', 'z3',"
        " 'scipy'}"
    )
    check = (
        f"import sys\nfor code in {LIGHT}:\n    exec(code)\n    assert not {heavy} &"
        " set(sys.modules), code"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_few_public_names_load_and_are_declared_alike() -> None:
    names = evalsuite.__all__
    assert 30 <= len(names) == len(set(names)) <= 40
    assert dir(evalsuite) == sorted([*names, "__version__"])
    for name in names:
        assert getattr(evalsuite, name) is not None
    with pytest.raises(AttributeError, match="No evalsuite attribute nonsense"):
        evalsuite.nonsense  # noqa: B018
    stub = ast.parse((ROOT / "evalsuite/__init__.pyi").read_text())
    declared = {
        alias.name: ("evalsuite." if node.level else "") + (node.module or alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == evalsuite._PLACES


def test_a_name_that_has_moved_still_loads_and_says_once_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(NEW_PLACES) == sum(map(len, MOVED.values())) > 200
    assert not NEW_PLACES.keys() & set(evalsuite.__all__)
    for name, module in NEW_PLACES.items():
        monkeypatch.delitem(vars(evalsuite), name, raising=False)
        with pytest.warns(DeprecationWarning, match="is deprecated") as caught:
            exec(f"from evalsuite import {name}")
        assert [str(warning.message) for warning in caught] == [
            f"`from evalsuite import {name}` is deprecated: `from {module} import {name}`"
        ]
        assert getattr(evalsuite, name) is getattr(importlib.import_module(module), name)


def test_nothing_here_imports_a_name_from_where_it_was() -> None:
    """Neither code nor documents; CHANGELOG has the table."""
    statement = re.compile(r"from evalsuite import (\([^)]*\)|[^\n\"';]*)")
    folders = ("evalsuite", "pipelines", "benchmarks", "docs", "libs", "tests")
    files = [ROOT / "README.md", *(ROOT / "reports").glob("*.md")]
    for folder in folders:
        files += [
            file for end in ("py", "md", "ipynb") for file in (ROOT / folder).rglob(f"*.{end}")
        ]
    assert len(files) > 600
    wrong = [
        f"{file}: {name}"
        for file in files
        for names in statement.findall(file.read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", names)
        if name in NEW_PLACES and not (file.name == "test_sources.py" and name == "Hardening")
    ]
    assert wrong == []


def test_former_modules_give_the_librarys_names_on() -> None:
    for module, library in (("lightning", "lightning.pytorch"), ("huggingface", "transformers")):
        pytest.importorskip(library)
        former = importlib.import_module(f"evalsuite.integrations.{module}")
        present = importlib.import_module(f"lambda_gelu.callbacks.{module}")
        assert former.HardeningCallback is present.HardeningCallback


DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "reports/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_documents_point_to_exists(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    assert document != ROOT / "README.md" or links
    for link in (each for each in links if not each.startswith("http")):
        assert (document.parent / link).exists(), link
