"""The main job on real data: two of its variants through every stage, and no two verifiers at
odds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evalsuite.contract import Property
from evalsuite.networks import load_network
from evalsuite.plugins import entries, load
from evalsuite.recipe import read_recipe
from evalsuite.results import read_results
from evalsuite.verification.report.section import contradictions
from netverify.witness import Replay

RECIPES = Path(__file__).parent.parent / "pipelines" / "recipes"
COMMAND = [sys.executable, "-c", "from evalsuite.cli import main; main()"]


def test_the_shipped_recipes_are_valid() -> None:
    quickstart = read_recipe(RECIPES / "quickstart.yaml")
    assert (len(quickstart.workloads), len(quickstart.variants), len(quickstart.seeds)) == (2, 5, 3)
    stages = {"accuracy", "export", "quantize", "prune", "bounds", "smt", "swap-certificate"}
    for file in (RECIPES / "quickstart.yaml", RECIPES / "full.yaml"):
        assert {step.part.use for step in read_recipe(file).steps} == stages
    transformers = read_recipe(RECIPES / "transformers.yaml")
    assert [each.use for each in transformers.workloads] == ["digits-vit", "text-gpt"]
    assert {step.part.use for step in transformers.steps} == stages | {"exact-prune"}
    study = read_recipe(RECIPES / "reluize.yaml")
    registered = {entry.name for entry in entries("variants")} - {"trained", "swapped", "given"}
    assert {part.use for part in study.variants} == registered | {"gelu", "relu", "prelu"}
    assert len(study.seeds) == 5
    quantize = read_recipe(RECIPES / "quantize.yaml")
    assert (len(quantize.workloads), len(quantize.variants), len(quantize.seeds)) == (3, 4, 5)
    assert len(quantize.steps) == 22
    language = read_recipe(RECIPES / "language.yaml")
    assert ([each.name for each in language.workloads], len(language.variants)) == (
        ["pydoc-gpt"],
        9,
    )
    for name in ("adamw", "sgd"):
        ablations = read_recipe(RECIPES / "ablations" / f"{name}.yaml")
        assert (len(ablations.variants), len(ablations.seeds), ablations.split_by_seed) == (
            30,
            10,
            True,
        )


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_quickstart_measures_everything_and_its_counterexamples_replay(tmp_path: Path) -> None:
    text = (RECIPES / "quickstart.yaml").read_text()
    for old, new in (
        ("seeds: [0, 1, 2]", "seeds: [0]"),
        ("[0.015625, 0.03125, 0.0625]", "[0.0625]"),
        ("[0.03125]", "[0.0625]"),
        ("fine_tune_epochs: 10", "fine_tune_epochs: 1"),
        ("samples: 10\n", "samples: 2\n"),
        ("- digits-mlp\n", "- {use: digits-mlp, epochs: 10}\n"),
        ("- digits-cnn\n", "- {use: digits-cnn, epochs: 5}\n"),
    ):
        text = text.replace(old, new)
    (tmp_path / "recipe.yaml").write_text(re.sub("  - (gelu-swap|lambda-gelu|relu) .*\n", "", text))
    recipe = read_recipe(tmp_path / "recipe.yaml")
    assert len(recipe.seeds) == 1
    environment = {**os.environ, "EVALSUITE_CACHE": str(tmp_path / "cache")}
    for words in (["run", "recipe.yaml", "--out", "out", "--progress", "plain"], ["report", "out"]):
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1500,
        )
        assert done.returncode == 0, done.stderr
    rows = read_results(tmp_path / "out")
    for part in recipe.workloads:
        for variant in recipe.variants:
            mine = rows[(rows["workload"] == part.name) & (rows["variant"] == variant.name)]
            assert set(mine["step"]) == {"train", *(step.name for step in recipe.steps)}
    assert rows["status"].isin(["ok", "unsupported", "unavailable"]).all(), rows[
        rows["status"] == "failed"
    ]["reason"]
    assert rows[rows["status"] != "ok"]["reason"].str.len().gt(0).all()
    found, compared = contradictions(rows)
    assert found.empty
    assert compared >= 100
    workload = load("workloads", "digits-mlp").target()
    data = workload.data()
    replayed = 0
    for variant in sorted(rows["variant"].unique()):
        home = tmp_path / "out/artefacts/digits-mlp" / variant / "0"
        network = load_network(home / "train/network", workload, data)
        replay = Replay(network)
        for each in json.loads((home / "smt/counterexamples.json").read_text()):
            index, eps = each["sample"], each["eps"]
            ball = Property.robustness(
                data.test.inputs[index],
                sample=index,
                label=int(data.test.targets[index]),
                eps=eps,
                domain=data.domain,
            )
            assert replay.confirms(
                ball, torch.tensor(each["input"], dtype=torch.float32).reshape(data.input_shape)
            )
            replayed += 1
    violated = rows[(rows["step"] == "smt") & (rows["verdict"] == "violated")]
    assert replayed == len(violated) > 0
