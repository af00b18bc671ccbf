"""What a cached result depends on: one line changed in each package, helper modules,
checkpoints.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

from evalsuite import reading, sources
from evalsuite.recipe import parse_recipe
from evalsuite.run.cache import Cache
from evalsuite.run.executor import Serial
from evalsuite.run.progress import Progress
from evalsuite.run.runner import run_recipe

ROOT = Path(__file__).parents[2]
RECIPE = """\
name: test
workloads: [digits-mlp]
variants: [gelu, relu, annealed, swap-refit]
seeds: [0]
steps: [accuracy, export, quantize, prune, exact-prune, bounds, smt, swap-certificate]
"""
TRAINED = {"train gelu", "train relu", "train annealed", "train swap-refit"}
STAGES = {
    "accuracy",
    "export",
    "quantize",
    "prune",
    "exact-prune",
    "bounds",
    "smt",
    "swap-certificate",
}
ALL = TRAINED | STAGES
# A file, and the jobs that a changed line in it invalidates.
CHANGES = {
    "evalsuite/__init__.py": ALL,
    "evalsuite/__init__.pyi": ALL,
    "evalsuite/contract.py": ALL,
    "evalsuite/networks.py": ALL,
    "evalsuite/resizing/fitting.py": ALL,
    "lambda_gelu/__init__.py": ALL,
    "lambda_gelu/__init__.pyi": ALL,
    "lambda_gelu/activations/gelu.py": ALL,
    "lambda_gelu/activations/elu.py": ALL,  # a census compares with every activation
    "evalsuite/workloads/digits.py": ALL,
    "evalsuite/workloads/mnist.py": set(),
    "evalsuite/variants/trained.py": ALL,  # what a base is, where none is named
    "evalsuite/variants/annealed.py": {"train annealed"},
    "evalsuite/variants/refitted.py": {"train swap-refit"},
    "evalsuite/variants/post_hoc.py": set(),
    "lambda_gelu/hardening.py": {"train annealed"},
    "lambda_gelu/parameters.py": ALL,
    "lambda_gelu/callbacks/lightning.py": set(),
    "evalsuite/reluize/training.py": ALL,  # stages fine-tune
    "evalsuite/run/child.py": ALL,
    "evalsuite/run/runner.py": set(),
    "opgraph/deployment.py": ALL,  # the file of a network is written with it
    "netverify/certificate/swap.py": {"exact-prune", "smt", "swap-certificate"},
    "netverify/relaxations/lines.py": {"bounds", "exact-prune", "smt", "swap-certificate"},
    "netverify/zonotopes/zonotope.py": {"bounds", "exact-prune", "smt", "swap-certificate"},
    "netverify/falsifier.py": {"bounds", "smt"},
    "evalsuite/report/page.py": set(),
    "evalsuite/integrations/lightning.py": set(),
    "evalsuite/cli.py": set(),
    "evalsuite/plan.py": set(),
    "evalsuite/recipe.py": set(),
    "evalsuite/tasks/score.py": ALL,
    "opgraph/graph.py": {
        "quantize",
        "exact-prune",
        "bounds",
        "smt",
        "swap-certificate",
    },
    "evalsuite/own/own.py": set(),
    "evalsuite/data/tables.py": set(),
    "evalsuite/studies/merging.py": set(),
    "evalsuite/testing/stages.py": set(),
    "pipelines/accuracy/__init__.py": {"accuracy"},
    "pipelines/accuracy/report/section.py": set(),
    "pipelines/bounds/report/section.py": set(),
    "evalsuite/reluize/report/section.py": set(),
    "evalsuite/verification/subjects.py": {"bounds", "smt", "swap-certificate"},
    "evalsuite/verification/report/section.py": set(),
    "pipelines/quantize/placement.py": {"quantize"},
    "pipelines/prune/selection.py": {"prune", "exact-prune"},
    "pipelines/bounds/propagation.py": {"bounds"},
    "pipelines/smt/search/decision.py": {"smt"},
    "pipelines/__init__.py": STAGES,
    "pipelines/recipes/minilm.py": set(),
    "pipelines/recipes/ocr.py": set(),
    "pipelines/prune/exact/removing.py": {"exact-prune"},
    "pipelines/prune/report/text.py": set(),
    "intnet/layers.py": {"quantize"},
    "pipelines/quantize/report/text.py": set(),
    "pipelines/smt/solvers.py": {"smt"},
    "pipelines/smt/integer/bounds.py": {"smt"},
    "pipelines/smt/report/section.py": set(),
    "pipelines/swap_certificate/measuring.py": {"swap-certificate"},
    "pipelines/swap_certificate/report/section.py": set(),
}
PROBE = """\
import json, sys
from pathlib import Path
from evalsuite import reading, sources
from evalsuite.plan import code_of, jobs_of
from evalsuite.recipe import parse_recipe

jobs = jobs_of(parse_recipe(sys.argv[1]))
named = {job.step_name if job.step else f"train {job.variant.name}": code_of(job) for job in jobs}
digests = lambda: {name: sources.digest.__wrapped__(*code) for name, code in named.items()}
assert Path(sources.__file__).parents[1] == Path.cwd()
before, found = digests(), {}
for file in json.loads(sys.argv[2]):
    text = Path(file).read_text()
    Path(file).write_text(text + "# changed")
    found[file] = [name for name, digest in digests().items() if digest != before[name]]
    Path(file).write_text(text)
print(json.dumps(found))
"""


def test_a_changed_line_invalidates_the_jobs_that_run_it_and_no_others(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for package in sources.OURS:
        library = ROOT / "libs" / package
        place = library / package if library.is_dir() else ROOT / package
        shutil.copytree(place, tmp_path / package, ignore=ignored)
    packages = {file.parent for file in tmp_path.rglob("*.py")}
    assert {(tmp_path / file).parent for file in CHANGES} == packages
    done = subprocess.run(
        [sys.executable, "-c", PROBE, RECIPE, json.dumps([*CHANGES])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {file: set(names) for file, names in json.loads(done.stdout).items()}
    assert {file: names for file, names in found.items() if names != CHANGES[file]} == {}


def test_what_plans_a_run_is_no_part_of_the_keys_of_own_models() -> None:
    assert (
        not {"evalsuite.plan", "evalsuite.recipe", "evalsuite.run.cache"}
        & sources.closure("evalsuite.own.own").keys()
    )


def test_the_closure_follows_what_runs_and_stops_at_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "brought/__init__.py": "import torch\nfrom . import near",
        "brought/near.py": (
            "def late():\n    try:\n        from helpers.deep import thing\n    finally:\n       "
            " pass"
        ),
        "brought/apart.py": "",
        "helpers/deep.py": "import evalsuite.results",  # a namespace package
        "typed.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import brought\nelse:\n   "
            " import other"
        ),
        "other.py": "from evalsuite import harden",
        "former.py": "from evalsuite import Hardening",
        "whole.py": "import evalsuite",
        "starred.py": "from evalsuite import *",
        "bound.py": "import evalsuite.contract",
        "runs.py": "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import other",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    sources.closure.cache_clear()
    brought = sources.closure("brought")
    assert {"brought", "brought.near", "helpers.deep", "evalsuite.results", "evalsuite"} <= set(
        brought
    )
    assert not {"brought.apart", "torch", "brought.near.late"} & set(brought)
    assert {"typed", "other", "lambda_gelu.harden_network"} <= set(sources.closure("typed"))
    assert "brought" not in sources.closure("typed")
    assert "lambda_gelu.harden_network" in sources.closure("whole")
    assert "evalsuite.cli" not in sources.closure("whole")
    assert "lambda_gelu.harden_network" in sources.closure("starred")
    assert "lambda_gelu.harden_network" in sources.closure("bound")
    assert "other" in sources.closure("runs")
    assert "lambda_gelu.hardening" in sources.closure("former")


def test_reading_hears_what_no_import_statement_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # by numba, whose bytes differ from one compilation to the next
    compiled = "__pycache__/kernel.py311.1.nbc"
    for name in (
        "computed.py",
        "weights.pt",
        "own/scratch.txt",
        "plugin.py",
        "beside.txt",
        "edited.txt",
        compiled,
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.syspath_prepend(str(tmp_path))
    with reading.Reading({"plugin"}, tmp_path / "own") as heard:
        __import__("comp" + "uted")
        for name in ("weights.pt", "own/scratch.txt", "beside.txt", "edited.txt", compiled):
            (tmp_path / name).read_bytes()
        (tmp_path / "written.txt").write_text("2")
        (tmp_path / "written.txt").read_bytes()
        with pytest.raises(FileNotFoundError):
            (tmp_path / "absent.txt").read_bytes()
    (tmp_path / "later.txt").write_text("3")
    (tmp_path / "later.txt").read_bytes()
    os.truncate(tmp_path / "edited.txt", 0)
    read = {
        name: each
        for name, each in heard.digests().items()
        if "plugin:" in name or "computed" in name
    }
    files = {f"file plugin:{name}" for name in ("weights.pt", "beside.txt", "edited.txt")}
    assert set(read) == {"module computed", *files}
    assert read.pop("file plugin:edited.txt") == reading.CHANGED
    assert reading.unchanged(read)
    assert not reading.unchanged({"file plugin:edited.txt": reading.CHANGED})
    (tmp_path / "weights.pt").write_text("22")
    assert not reading.unchanged(read)
    (tmp_path / "weights.pt").unlink()
    assert not reading.unchanged(read)
    (tmp_path / "computed.py").write_text("22")
    assert not reading.unchanged({"module computed": read["module computed"]})
    sys.modules.pop("computed")


def test_reading_hears_safetensors_however_they_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("loaded.safetensors", "opened.safetensors", "left.safetensors"):
        save_file({"weight": torch.ones(2)}, name)
    with reading.Reading(()) as heard:
        assert load_file("loaded.safetensors")["weight"].tolist() == [1, 1]
        with safetensors.safe_open(Path("opened.safetensors"), framework="pt") as file:
            assert list(file.keys()) == ["weight"]
    read = {name: each for name, each in heard.digests().items() if "safetensors" in name}
    assert set(read) == {"file :loaded.safetensors", "file :opened.safetensors"}
    assert reading.unchanged(read)
    save_file({"weight": torch.zeros(2)}, "loaded.safetensors")
    assert not reading.unchanged(read)


def test_a_file_beside_a_plugin_is_that_of_the_checkout_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, place in enumerate(("one", "two")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "twice.py").write_text("")
        (tmp_path / place / "weights.txt").write_text(str(number))
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    with reading.Reading({"twice"}) as heard:
        (tmp_path / "one" / "weights.txt").read_text()
    read = {name: each for name, each in heard.digests().items() if name.endswith("weights.txt")}
    assert list(read) == ["file twice:weights.txt"]
    assert reading.unchanged(read)
    sources.source_file.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path / "two"))
    assert not reading.unchanged(read)
    sources.source_file.cache_clear()


def test_what_is_loaded_counts_before_a_look_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_LOOKED", [])
    monkeypatch.setattr(reading, "_SEEN", [""])
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("early_one", "late_one"):
        (tmp_path / f"{name}.py").write_text("1")
    __import__("early_one")
    reading.look()
    with reading.Reading(()) as heard:
        __import__("late_one")
    assert {"module early_one", "module late_one"} <= set(heard.digests())
    for name in ("early_one", "late_one"):
        sys.modules.pop(name)


def test_one_hook_serves_every_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[object] = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    monkeypatch.setattr(reading, "_INSTALLED", [])
    for _ in range(3):
        with reading.Reading(()):
            pass
    assert added == [reading._hear]


def test_source_that_is_edited_during_a_run_is_told_from_what_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not this Python's syntax
    (tmp_path / "at_work.py").write_text("import evalsuite.contract\ntype X = int\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = sources.digest("at_work")
    assert not sources.edited("at_work")
    (tmp_path / "at_work.py").write_text("VALUE = 22")
    assert sources.edited("at_work")
    assert sources.digest("at_work") == before


WORKLOAD = """\
import importlib
from dataclasses import dataclass
from typing import ClassVar

import torch

from evalsuite.workloads.tiny import DigitsTinyMLP


@dataclass(frozen=True)
class Brought(DigitsTinyMLP):
    \"\"\"Digits from a checkpoint, with a helper found by its computed name.\"\"\"

    version: ClassVar[str] = "1"
    helper: str = "helper"
    weights: str = ""

    def build(self, activation):
        module = super().build(activation)
        scale = importlib.import_module(self.helper).SCALE
        for file in ("START", self.weights or "START"):
            module[0].bias.data += torch.load(file, weights_only=True) * scale
        return module
"""


@pytest.mark.slow
def test_a_helper_a_checkpoint_and_a_file_named_by_an_option_each_make_a_job_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brought.py").write_text(WORKLOAD.replace("START", str(tmp_path / "start.pt")))
    (tmp_path / "helper.py").write_text("SCALE = 1.0")
    for name in ("start.pt", "option.pt"):
        torch.save(torch.ones(16), tmp_path / name)
    metadata = tmp_path / "brought-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[evalsuite.workloads]\nbrought = brought:Brought\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = parse_recipe(
        "name: t\nworkloads: [{use: brought, epochs: 1, weights:"
        f" {tmp_path / 'option.pt'}}}]\nvariants: [gelu]\nseeds: [0]\nsteps: [accuracy]\n"
    )

    def cached() -> int:
        record = run_recipe(
            recipe, tmp_path / "out", Cache(tmp_path / "cache"), Serial(), Progress(), workers=1
        )
        assert record.jobs["ok"] == 2
        return record.jobs["cached"]

    assert [cached(), cached()] == [0, 2]
    for change in ("helper.py", "start.pt", "option.pt"):
        if change == "helper.py":
            (tmp_path / change).write_text("SCALE = 2.0")
        else:
            torch.save(torch.zeros(16), tmp_path / change)
        assert [cached(), cached()] == [0, 2], change
    sys.modules.pop("helper")
