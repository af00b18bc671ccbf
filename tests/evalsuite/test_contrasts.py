"""What the protocol asks of the studies: signs, families and words, on rows of known truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_workshop import job, metric_rows, write_run

from benchmarks import contrasts
from benchmarks.contrasts import Study, table
from evalsuite.contract import Direction, Metric
from evalsuite.recipe import read_recipe
from evalsuite.results import Row, row_of

NOISE = (0.001, -0.002, 0.0015, -0.001, 0.0005)  # its mean is 0, and its 95 % interval ±0.0018
STILL = (0.0,) * 5


def _rows(
    arm: str,
    shift: float,
    noise: tuple[float, ...] = NOISE,
    step: str = "accuracy",
    workload: str = "w",
) -> list[Row]:
    values = [0.9 + 0.01 * seed + shift + each for seed, each in enumerate(noise)]
    return metric_rows("accuracy", {arm: values}, step, workload=workload)


@pytest.fixture(autouse=True)
def _reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies are those of a folder of the test's own."""
    monkeypatch.setattr(contrasts, "REPORTS", tmp_path)
    monkeypatch.setattr(contrasts, "STUDIES", dict(contrasts.STUDIES))


def _told(study: Study, rows: list[Row]) -> list[tuple[str, ...]]:
    write_run(contrasts.REPORTS / "it", rows, {"baseline": "base"})
    contrasts.STUDIES["it"] = study
    return table("it")


def test_signs_families_and_words() -> None:
    rows = [
        *_rows("base", 0, STILL),
        *_rows("before", 0.02),
        *_rows("same", 0, STILL),
        *_rows("near", 0.001),
        *_rows("far", -0.02),
        *_rows("wide", 0, (0.02, -0.02, 0.01, -0.01, 0.0)),
        *_rows("seen", 0.02),
    ]
    study = Study(alone=("before",), treated=True, together=True, shown=("seen",))
    head, *lines = _told(study, rows)
    assert head == ("difference", "`w`, points", "p after Holm", "")
    found = {line[0]: line[1:] for line in lines}
    # The baseline is the treatment: less an arm that is asked for by itself it is lower where that
    # is higher.
    assert found["`base` − `before`"][0] == "−2.00 [−2.18, −1.82]"
    assert found["`base` − `before`"][2] == "worse"
    assert found["`same` − `base`"] == ("0 in every seed", "1", "")
    assert found["`near` − `base`"][2] == "equivalent"
    assert found["`far` − `base`"][2] == "worse"
    assert found["`wide` − `base`"][2] == "not resolved"
    assert found["`seen` − `base`"][1:] == ("", "")
    # Four in a family, the one that is the same in every seed among them; one in the other.
    alone, together = (float(found[name][1]) for name in ("`base` − `before`", "`far` − `base`"))
    assert together == pytest.approx(4 * alone, rel=0.05)


def test_less_is_better_of_bits() -> None:
    rows = [
        replace(each, metric="bits_per_byte", direction="lower")
        for arm, shift, noise in (
            ("base", 0.0, STILL),
            ("few", -0.02, NOISE[::-1]),
            ("many", 0.02, NOISE),
            ("near", 0.0001, NOISE),
            ("wide", 0.006, tuple(5 * part for part in NOISE)),
        )
        for each in _rows(arm, shift, noise)
    ]
    study = Study(questions=(contrasts.BITS,), baseline="few", together=True)
    head, *lines = _told(study, rows)
    assert head[1] == "`w`, bits"
    found = {line[0]: line[1:] for line in lines}
    assert found["`many` − `few`"][0].startswith("+0.0400 ")
    assert found["`many` − `few`"][2] == "worse"
    found = {line[0]: line[1:] for line in _told(replace(study, baseline=""), rows)[1:]}
    assert found["`few` − `base`"][2] == "better"
    assert found["`near` − `base`"][2] == "equivalent"
    assert found["`wide` − `base`"][2] == "not resolved"


def test_what_a_language_model_is_held_against(tmp_path: Path) -> None:
    """The order of n-grams is the one with the fewest bits on the validation text, whatever it
    has on the test text.
    """
    rows = [
        replace(each, metric="bits_per_byte", direction="lower")
        for each in _rows("base", 0.0, STILL)
    ]
    write_run(tmp_path / "it", rows, {"baseline": "base", "data": {"w": {"fingerprint": "f"}}})
    lines = (
        "baseline,validation,test,fingerprint",
        "2-grams,2.5,2.0,f",
        "3-grams,2.4,2.1,f",
        "xz -9e,2.2,1.9,f",
    )
    (tmp_path / "it" / "baselines.csv").write_text("\n".join(lines))
    head, *found = contrasts.levels("it")
    assert head == ("on `w`", "seeds", "bits per byte")
    assert found == [
        ("`base`", "5", "0.9200 ± 0.0158"),
        ("3-grams", "", "2.1000"),
        ("xz -9e", "", "1.9000"),
    ]
    (tmp_path / "it" / "baselines.csv").write_text("\n".join(lines).replace("1.9,f", "1.9,g"))
    with pytest.raises(ValueError, match=r"baselines\.csv is of another text than the rows"):
        contrasts.levels("it")


def test_the_treatment_that_the_validation_data_choose(tmp_path: Path) -> None:
    """Chosen seed by seed, by the validation data alone, and never the direct swap, however good
    it is.
    """
    rows = []
    for arm, shift, validated in (
        ("base", 0.0, STILL),
        ("swap", 0.05, (0.09,) * 5),
        ("one", -0.02, (0.0, 0.02, 0.0, 0.02, 0.0)),
        ("two", 0.01, (0.01,) * 5),
    ):
        rows += _rows(arm, shift, STILL)
        rows += [
            replace(each, metric="validation_accuracy")
            for each in _rows(arm, 0.0, validated, step="train")
        ]
    write_run(tmp_path / "it", rows, {"baseline": "base"})
    head, original, *lines = contrasts.treatments("it")
    assert head[1:] == ("`w`, points", "p after Holm", "")
    assert original[1] == "92.00 ± 1.58"
    found = {line[0]: line[1:] for line in lines}
    assert found["`swap`"][0] == "+5.00 in every seed"
    assert found["`one`"] == ("-2.00 in every seed".replace("-", "−"), "", "")
    # Two of five seeds take "one", three "two": the mean of -2, -2, 1, 1 and 1.
    assert found[contrasts.CHOSEN][0].startswith("−0.20 [")
    assert found[contrasts.CHOSEN][0].endswith(" (3 × `two`, 2 × `one`)")


def test_what_is_asked_less_float_of_each_network() -> None:
    rows = [
        *_rows("base", 0.01),
        *_rows("arm", 0.03),
        *_rows("base", 0.0, step="prune-50"),
        *_rows("arm", 0.01, step="prune-50"),
    ]
    _, line = _told(Study(questions=(contrasts.HALF,), together=True), rows)
    assert line[1].startswith("−1.00 ")  # 1 point more with half of the channels, 2 in float


def test_what_is_lacking_is_told_and_makes_no_family_smaller() -> None:
    whole = [
        *_rows("base", 0, STILL),
        *_rows("base", 0, STILL, workload="other"),
        *_rows("arm", 0.003),
    ]
    study = Study(questions=(contrasts.ACCURACY, contrasts.HALF), alone=("arm",))
    rows = {line[0]: line for line in _told(study, whole)[1:]}
    assert rows["accuracy in float, points"][5:] == ("not measured", "", "")
    p = float(rows["accuracy in float, points"][3])
    assert rows["half of the channels less float, points"][2:] == ("not measured", "", "") * 2
    both = [*whole, *_rows("arm", 0, STILL, workload="other")]
    (line,) = _told(Study(alone=("arm",)), both)[1:]
    assert float(line[2]) == p


def test_of_fewer_than_four_fifths_of_the_seeds_nothing_is_concluded() -> None:
    rows = [
        *_rows("base", 0, STILL),
        *_rows("three", 0.02)[:3],
        *_rows("four", 0.02)[:4],
        *_rows("off", 0.02, STILL),
    ]
    _, three, four, off = _told(Study(together=True), rows)
    assert three[1].endswith("n = 3 of 5")
    assert three[2:] == ("", "not concluded from")
    assert four[1].endswith("n = 4 of 5")
    assert four[3] == "better"
    assert off[1:] == ("+2.00 in every seed", "", "")


def test_the_families_of_the_committed_recipes_are_the_protocols() -> None:
    recipes = Path(contrasts.__file__).parents[1] / "pipelines" / "recipes"
    committed = {
        "ablations": ("ablations/adamw", [1, 1, 1, 25]),
        "ablations-sgd": ("ablations/sgd", [1, 1, 1, 25]),
        "learnt-activations": ("learnt-activations", [6]),
        "downstream": ("downstream", [1]),
        "gated": ("gated", [4]),
        "ablations-fashion": ("ablations/fashion", [1, 1, 1, 23]),
        "language-downstream": ("language-downstream", [1]),
    }
    for name, (file, sizes) in committed.items():
        recipe = read_recipe(recipes / f"{file}.yaml")
        study = contrasts.STUDIES[name]
        arms = [part.name for part in recipe.variants if part.name != recipe.baseline]
        assert [len(family) for family in study.families(recipe.baseline, arms)] == sizes, name
    language = contrasts.STUDIES["language"]
    arms = [
        part.name
        for part in read_recipe(recipes / "language.yaml").variants
        if part.name != language.baseline
    ]
    assert [len(family) for family in language.families(language.baseline, arms)] == [1, 1, 1]
    (first, *_) = contrasts.STUDIES["ablations"].families("annealed", ["gelu", "start-0.1"])
    assert first == [("annealed", "gelu")]


def test_drift_is_correlated_with_what_is_less_float(tmp_path: Path) -> None:
    def row(seed: int, step: str, metric: str, value: float, **setting: str) -> Row:
        return row_of(
            Metric(metric, value, "fraction", Direction.HIGHER, setting),
            job("annealed", seed, step),
        )

    rows = []
    for seed, drifted in enumerate((0.1, 0.4, 0.2, 0.3, 0.5)):
        rows += [
            row(seed, "train", "hardness_drift", drifted + sign, layer=str(sign))
            for sign in (-0.05, 0.05)
        ]
        quality = 0.5 + 0.01 * seed
        rows += [
            row(seed, "accuracy", "accuracy", quality),
            row(seed, "w4", "integer_accuracy", quality - drifted),
            row(seed, "prune-50", "accuracy", quality + drifted),
            row(seed, "bounds", "certified_radius", 0.02 * seed, method="crown"),
        ]
    write_run(tmp_path / "it", rows, {"baseline": "annealed"})
    _, accuracy, four_bits, half, _ = contrasts.drift("it")
    assert four_bits[3] == "−1.00"
    assert half[3] == "+1.00"
    assert accuracy[3] == "+0.70"
    assert [line[1] for line in (accuracy, four_bits, half)] == ["5"] * 3


def test_orders_are_compared_with_the_random_one(tmp_path: Path) -> None:
    rows = []
    for order, by in (("hardness", -0.01), ("sensitivity", 0.02), ("random", 0.0)):
        values = [0.9 + 0.01 * seed + by + (noise if by else 0) for seed, noise in enumerate(NOISE)]
        rows += metric_rows("accuracy_over_partial_swaps", {"lambda-gelu": values}, order=order)
    for layer in "ab":
        rows += metric_rows("learnt_hardness", {"lambda-gelu": (2.0,) * 5}, layer=layer)
    write_run(tmp_path / "it", rows, {"baseline": "lambda-gelu"})
    _, line = contrasts.orders("it")
    assert line[:3] == ("`w`", "2", "−1.00 [−1.18, −0.82]")
    assert line[4] == "worse"
    assert line[5] == "+2.00 [+1.82, +2.18]"


def test_gated_networks_are_told_less_the_plain_ones_of_their_seed(tmp_path: Path) -> None:
    costs = {
        "gated": {
            "gelu": 0.02,
            "relu": 0.01,
            "gelu-swap": 0.05,
            "swap-refit": 0.03,
            "annealed": 0.02,
            "silu": 0.03,
        },
        "plain": {"gelu": 0.0, "relu": 0.01, "gelu-swap": 0.53, "swap-refit": 0.0, "annealed": 0.0},
        "swish": {"silu": 0.0},
    }
    for name, arms in costs.items():
        rows = []
        for arm, cost in arms.items():
            for seed, noise in enumerate(
                NOISE if arm == "gelu-swap" and name == "gated" else STILL
            ):
                place = job(arm, seed, workload=name)
                bits = Metric(
                    "bits_per_byte", 2 + 0.1 * seed + cost + noise, "bits", Direction.LOWER
                )
                rows.append(row_of(bits, place))
        write_run(tmp_path / name, rows, {"baseline": next(iter(arms))})
    found = {line[0]: line[1:] for line in contrasts.gates("gated", "plain", "swish")}
    # 0.05 less 0.02 in a gate, 0.53 plain: half a bit less, which is better.
    text, p, word = found["what `gelu-swap` costs `gelu`"]
    assert text == "−0.5000 [−0.5018, −0.4982]"
    assert float(p) < 1e-6
    assert word == "better"
    assert found["what `swap-refit` costs `gelu`"] == ("+0.0100 in every seed", "", "")
    assert found["`gelu`"][0] == "+0.0200 in every seed"
    assert found["`relu`"][0] == "0 in every seed"
    assert found["`silu`"] == ("+0.0300 in every seed", "", "")
