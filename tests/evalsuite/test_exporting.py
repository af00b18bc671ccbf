"""The float32 ONNX file that is written with a network, once for all stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from written import Written

from evalsuite import LambdaGELU, Network, export_onnx, exporting, fold_hardness
from evalsuite.exporting import export_network
from evalsuite.plan import jobs_of
from evalsuite.recipe import parse_recipe


def chain(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), LambdaGELU(hardness=3.0), nn.Linear(6, 2)).eval()


def network(module: nn.Module) -> Network:
    return Network("chain", module, (4,), 2)


def written(network: Network, path: Path) -> bytes:
    export_network(network, path)
    return path.read_bytes()


def test_a_stage_is_given_the_bytes_that_it_would_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, loaded = network(chain(0)), network(chain(0))
    exporting.keep_exported(saved, tmp_path)
    folded = tmp_path / "folded.onnx"
    export_onnx(fold_hardness(loaded.module, (loaded.example(2),)), (4,), folded)
    assert written(loaded, tmp_path / "own.onnx") == folded.read_bytes()
    exporting.remember_exported(loaded, tmp_path)
    monkeypatch.setattr(exporting, "export_onnx", None)  # it is copied
    assert written(loaded, tmp_path / "given.onnx") == folded.read_bytes()


def test_another_module_in_the_network_is_exported_itself(tmp_path: Path) -> None:
    given, other = network(chain(0)), chain(1)
    exporting.keep_exported(given, tmp_path)
    exporting.remember_exported(given, tmp_path)
    found = written(replace(given, module=other), tmp_path / "other.onnx")
    assert found == written(network(other), tmp_path / "alone.onnx")
    assert found != written(given, tmp_path / "given.onnx")


def test_what_another_exporter_wrote_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = network(chain(0))
    with monkeypatch.context() as patched:
        patched.setattr(exporting, "version", lambda _: "0.1")
        exporting.keep_exported(network(chain(1)), tmp_path)
    exporting.remember_exported(given, tmp_path)
    assert written(given, tmp_path / "given.onnx") == written(
        network(chain(0)), tmp_path / "fresh.onnx"
    )


def test_of_what_cannot_be_exported_there_is_no_file(tmp_path: Path) -> None:
    branching = Written(lambda _, x: x if x.sum() > 0 else -x)
    exporting.keep_exported(network(branching.eval()), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("[accuracy, bounds]", False),
        ("[accuracy, export]", True),
        ("[quantize]", True),
        ("[prune]", True),
        # of the network that a step hands on
        ("[exact-prune, {use: export, after: exact-prune}]", False),
    ],
)
def test_a_network_is_exported_with_its_making_where_a_step_takes_the_file(
    steps: str, expected: bool
) -> None:
    text = (
        "name: some\nworkloads: [digits-mlp]\nvariants: [gelu, swap-refit]\nseeds: [0]\nsteps:"
        f" {steps}\n"
    )
    jobs = jobs_of(parse_recipe(text))
    made = [job.exported for job in jobs if job.step is None]
    assert made == [expected] * len(made)
    assert not any(job.exported for job in jobs if job.step)
