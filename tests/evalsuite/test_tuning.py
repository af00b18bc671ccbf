"""The choice of learning rates: by validation loss alone, the same for every arm, and told in
full.
"""

from __future__ import annotations

import csv
import math

import pandas as pd
import pytest
from workshop import Workshop

from evalsuite.plan import jobs_of
from evalsuite.recipe import parse_recipe, read_recipe
from evalsuite.run.tuning import Tuned, rates_of, tuned, tuning_recipe

HEAD = """\
name: test
workloads: [{use: digits-mlp, epochs: 1}]
variants: [gelu, gelu-swap, {use: swapped, name: other, base: relu, to: gelu}]
seeds: [0]
"""


def chosen(*losses: list[float], seeds: int = 3) -> float | None:
    """The choice among 1, 2, ... for these losses of each."""
    by = {float(rate): dict(enumerate(each)) for rate, each in enumerate(losses, 1)}
    return Tuned("w", "v", "nll", by, tuple(range(seeds))).chosen


def test_the_least_mean_loss_is_chosen_and_of_equal_ones_the_smallest_rate() -> None:
    assert chosen([3, 3, 3], [1, 1, 1], [2, 2, 2]) == 2
    assert chosen([1, 1, 1], [1, 1, 1]) == 1
    assert chosen([1, 2, 3.1], [1, 2, 3]) == 2
    assert chosen([1, 2, 3], [0.9, 2.1, 3.4]) == 1


def test_a_rate_without_a_finite_loss_of_every_seed_is_not_chosen() -> None:
    assert chosen([0, math.nan, 0], [1, 1, 1], [0, math.inf, 0]) == 2
    assert chosen([0, 0], [1, 1, 1]) == 2
    assert chosen([math.nan] * 3, []) is None
    told = Tuned("w", "v", "nll", {0.1: {0: math.nan}}, (0,)).line
    assert told == "w v: no rate gave every seed a finite loss"


PLACE = {
    "workload": "digits-mlp-at-0.1",
    "variant": "gelu",
    "step": "train",
    "seed": 7,
    "status": "ok",
    "reason": "",
}
RECIPE = f"{HEAD}steps: [accuracy]\n"


def metric(name: str, value: float, unit: str, direction: str) -> dict[str, object]:
    return {**PLACE, "metric": name, "value": value, "unit": unit, "direction": direction}


def test_where_a_training_failed_nothing_is_chosen_and_it_is_named() -> None:
    killed = {
        **metric("", math.nan, "", ""),
        "seed": 8,
        "status": "timeout",
        "reason": "ran past 9 s",
    }
    frame = pd.DataFrame([metric("validation_nll", 0.5, "nats", "lower"), killed])
    (found, _) = tuned(frame, parse_recipe(RECIPE), [0.1], [7, 8])
    assert found.chosen is None
    assert found.line == (
        "digits-mlp gelu: nothing chosen, since digits-mlp-at-0.1/gelu/8 is timeout: ran past 9 s; "
        "tune again, or without that rate"
    )


def test_the_loss_is_no_share_of_samples() -> None:
    metrics = (
        ("cosine", 0.9, "cosine", "higher"),
        ("cosine_under_95", 0.2, "fraction", "lower"),
        ("squared_distance", 0.3, "squared distance", "lower"),
    )
    frame = pd.DataFrame([metric(f"validation_{name}", *rest) for name, *rest in metrics])
    found = next(tuned(frame, parse_recipe(RECIPE), [0.1], [7]))
    assert (found.metric, found.losses) == ("squared_distance", {0.1: {7: 0.3}})


def test_the_end_of_the_range_is_told() -> None:
    ends = [
        Tuned("w", "v", "nll", {rate: {0: abs(rate - best)} for rate in (0.1, 0.2, 0.3)}, (0,)).line
        for best in (0.1, 0.2, 0.3)
    ]
    assert ["end of the range" in each for each in ends] == [True, False, True]


def test_what_is_trained_for_the_choice() -> None:
    recipe = parse_recipe(HEAD + "split_by_seed: true\nsteps: [accuracy]\n")
    made = tuning_recipe(recipe, [0.01, 0.1], [7, 8], "r.yaml")
    trained = [job for job in jobs_of(made) if job.step is None]
    assert {job.variant.name for job in trained} == {"gelu", "relu"}
    met = {(job.workload.name, job.seed): job.workload.target for job in trained}
    assert {
        place: (each.learning_rate, each.split, each.epochs) for place, each in met.items()
    } == {
        (f"digits-mlp-at-{rate}", seed): (rate, seed, 1) for rate in (0.01, 0.1) for seed in (7, 8)
    }


@pytest.mark.parametrize("text", ["", "fast", "0.1,", "0", "1", "-0.1", "nan", "inf"])
def test_what_is_no_list_of_rates_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"--rates takes numbers in \(0, 1\), as 0.001,0.003,0.01; got "
    ):
        rates_of(text)


@pytest.mark.slow
def test_the_command_prints_what_the_recipe_takes_and_keeps_every_loss(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - accuracy\n", HEAD)
    words = ("--out", workshop.out, "--progress", "none", "--rates", "0.0001,0.02")
    done = workshop.call("tune", recipe, *words, "--seeds", "7")
    assert done.returncode == 0, done.stderr
    told, _, rates = done.stdout.partition("learning_rates:")
    assert "digits-mlp gelu: validation nll 2.3" in told
    assert "at 0.02; chosen 0.02, an end of the range" in told
    recipe.write_text(f"{recipe.read_text()}learning_rates:{rates}")
    assert read_recipe(recipe).learning_rates == {"digits-mlp": {"gelu": 0.02, "relu": 0.02}}
    table = list(csv.DictReader((workshop.out / "learning-rates.csv").read_text().splitlines()))
    rows = workshop.rows()
    kept = rows[(rows["metric"] == "validation_nll") & rows["value"].notna()]
    lines = {
        (
            f"{line['workload']}-at-{line['learning_rate']}",
            line["variant"],
            int(line["seed"]),
        ): float(line["loss"])
        for line in table
    }
    places = kept[["workload", "variant", "seed"]].itertuples(index=False, name=None)
    assert lines == dict(zip(places, kept["value"], strict=True))
    assert len(table) == len(lines) == 4
    assert not set(rows["metric"]) & {"accuracy", "nll"}  # of the test part
    for wrong, said in (("0", "seed 0 is one that"), ("7,7", "a seed is given twice: 7, 7")):
        refused = workshop.call("tune", recipe, *words, "--seeds", wrong)
        assert (refused.returncode, said in refused.stderr) == (2, True)
