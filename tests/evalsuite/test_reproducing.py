"""Which committed runs today's code would measure again by the same source, and what run.json says of the code."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from workshop import Workshop

from evalsuite.run.record import checkout, source_of
from evalsuite.run.results import standing, standings

REPORTS = Path(__file__).parents[2] / "reports"


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_a_run_names_its_code_and_is_told_from_one_of_other_code(workshop: Workshop) -> None:
    head = "name: test\nworkloads: [{use: moons-mlp, epochs: 1}]\nvariants: [gelu]\nseeds: [0]\n"
    done = workshop.run(workshop.recipe("  - accuracy\n", head))
    assert done.returncode == 0, done.stderr
    record = json.loads((workshop.out / "run.json").read_text())
    rows = workshop.rows()
    now = checkout()
    assert (record["commit"], record["dirty"]) == (now.removesuffix("-dirty"), now.endswith("-dirty"))
    assert record["source"] == source_of(rows["source"].unique())
    found = standing(workshop.out)
    assert (found.same, found.other, found.unrecorded, found.commits) == (2, 0, 0, (now,))
    told = workshop.call("doctor", workshop.folder)
    assert told.returncode == 0
    assert "1 of 1 runs were measured by today's source as a whole" in told.stdout
    path = workshop.out / "results.parquet"
    table = pq.read_table(path)
    other = pa.array(["0" * 64] * len(table), pa.string())
    pq.write_table(table.set_column(table.column_names.index("source"), "source", other), path)
    found = standing(workshop.out)
    assert (found.same, found.other, found.reproduced) == (0, 2, False)
    told = workshop.call("doctor", workshop.out)
    assert told.returncode == 1
    assert "0 of 2 jobs by today's source, 2 by another" in told.stdout


def test_folders_without_a_run_are_told(tmp_path: Path) -> None:
    assert [each.lack for each in standings(tmp_path)] == ["no run.json here, nor in a folder of it"]
    (tmp_path / "run.json").write_text("{")
    assert [each.text for each in standings(tmp_path)] == ["run.json is damaged"]


@pytest.mark.slow
def test_of_the_older_committed_reports_none_is_told_to_be_of_todays_code() -> None:
    """Their rows are older than the columns that would say so; five have them."""
    found = {each.folder.name: each for each in standings(REPORTS)}
    assert len(found) == 28
    # The first seed of cifar10 ran at two, the others at a later one; the networks of smt came from the cache.
    commits = {
        "cifar10": 3, "minilm": 1, "quantize-vit": 1, "sample": 1, "smt": 2, "ablations": 1, "ablations-sgd": 2,
        "drift": 1, "learnt-activations": 1, "partial": 1, "downstream": 1, "same-rates": 2, "language": 1,
        "pretrained": 1, "gated": 1, "pretrained-deployment": 3, "minilm-deployment": 1,
        "ablations-fashion": 1, "language-swish": 1, "language-downstream": 1,
    }  # fmt: skip
    for name, each in found.items():
        if name in commits:
            assert (len(each.commits), each.unrecorded) == (commits[name], 0)
        else:
            assert (each.reproduced, each.same, each.commits) == (False, 0, ())
