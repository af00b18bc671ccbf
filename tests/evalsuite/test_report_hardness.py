"""The learnt hardness in the report: order of layers, drift, what it goes with; figures; and
pages of many variants.
"""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report_workshop import csv_lines, frame_of, job, sample_record, written_page
from scipy.stats import spearmanr

from evalsuite.contract import Direction, Metric
from evalsuite.reluize.report.hardness import (
    ALL,
    BEYOND,
    LayerOrder,
    Relation,
    _adjusted,
    drift_grid,
    layer_orders,
    relations,
)
from evalsuite.reluize.report.ranks import agreement, association, spearman
from evalsuite.report.canvas import groups, looks
from evalsuite.report.measured import Measured
from evalsuite.report.tables import comparison, text_lines
from evalsuite.results import Row, row_of

LAYERS = ("blocks.0.act", "blocks.1.act", "blocks.2.act", "blocks.3.act")
LEARNT = {
    0: (1.5, 1.6, 1.7, 1.9),
    1: (1.5, 1.7, 1.6, 2.0),
    2: (1.6, 1.5, 1.8, 2.1),
    3: (1.4, 1.6, 1.7, 1.8),
}
INITIAL = 1.7


def profile(variant: str, seed: int, learnt: tuple[float, ...], workload: str = "w") -> list[Row]:
    rows = []
    for layer, value in zip(LAYERS, learnt, strict=False):
        where = {"layer": layer}
        end = 160.0 if variant == "annealed" else value
        metrics = [
            Metric("hardness", end, "lambda", Direction.NEUTRAL, where),
            Metric("learnt_hardness", value, "lambda", Direction.NEUTRAL, where),
            Metric("hardness_drift", value - INITIAL, "lambda", Direction.NEUTRAL, where),
        ]
        for progress, at in ((0.0, INITIAL), (0.5, value), (1.0, end)):
            metrics.append(
                Metric(
                    "hardness_profile",
                    at,
                    "lambda",
                    Direction.NEUTRAL,
                    {**where, "progress": progress},
                )
            )
        rows += [
            row_of(metric, job(variant, seed, "train", workload=workload)) for metric in metrics
        ]
    return rows


def run_rows(
    workloads: tuple[str, ...] = ("w",), seeds: tuple[int, ...] = (0, 1, 2, 3)
) -> list[Row]:
    """Accuracy rises with the mean drift, loss too: a relation to the good and one to the bad."""
    rows = []
    for workload in workloads:
        for variant in ("gelu", "annealed", "post-hoc"):
            for seed in seeds:
                learnt = LEARNT[seed] if variant == "annealed" else (INITIAL,) * 4
                if variant != "gelu":
                    rows += profile(variant, seed, learnt, workload)
                good = 0.9 + sum(learnt) / 100
                accuracy = Metric("accuracy", good, "fraction", Direction.HIGHER)
                rows.append(row_of(accuracy, job(variant, seed, "accuracy", workload=workload)))
                size = Metric("size", good, "bytes", Direction.LOWER)
                rows.append(row_of(size, job(variant, seed, "shrink", workload=workload)))
    return rows


def found_relations(rows: list[Row]) -> dict[tuple[str, str], Any]:
    frame = frame_of(rows)
    found = relations(Measured(frame), text_lines(comparison(frame, "gelu")))
    return {(each.workload, each.metric): each for each in found}


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((1, 2, 3, 4), (2, 1, 4, 3)),
        ((1, 1, 2, 3), (3, 1, 2, 2)),
        ((5, 4, 1, 2, 9), (1, 2, 3, 4, 5)),
    ],
)
def test_spearman_agrees_with_scipy(x: tuple[float, ...], y: tuple[float, ...]) -> None:
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert spearman((1,) * len(x), y) is None
    with pytest.raises(ValueError, match=f"rank correlation of {len(x)} values with 2"):
        spearman(x, y[:2])


def test_agreement_by_hand() -> None:
    found = agreement({0: (1, 2, 3), 1: (1, 2, 3), 2: (1, 3, 2)})
    assert found.mean == pytest.approx((1 + 0.5 + 0.5) / 3)
    # Pseudo-values 3 U - 2 U(without a seed): 1, 1, 0; their standard error is 1/3.
    assert found.low == pytest.approx(2 / 3 - 4.302653 / 3)
    assert found.high == 1.0
    assert found.n == 3


def test_agreement_says_where_there_is_no_interval() -> None:
    two = agreement({0: (1, 2, 3), 1: (1, 3, 2)})
    assert two.mean == pytest.approx(0.5)
    assert (two.low, two.high) == (None, None)
    alike = agreement({0: (1, 2, 3), 1: (1, 2, 3), 2: (2, 3, 4)})
    assert alike.constant
    assert agreement({0: (1, 1, 1), 1: (1, 2, 3)}) is None
    with pytest.raises(ValueError, match="agreement of 1 seeds"):
        agreement({0: (1, 2, 3)})


def test_association_is_exact_for_few_values() -> None:
    x, y = (1, 2, 3, 4, 5), (1, 2, 3, 5, 4)
    found = association([(x, y)])
    every = [abs(spearmanr(x, each).statistic) for each in permutations(y)]
    assert found.rho == pytest.approx(0.9)
    assert found.p == pytest.approx(sum(each >= 0.9 - 1e-9 for each in every) / 120)
    assert found.least == pytest.approx(2 / 120)
    three = association([((1, 2, 3), (4, 5, 6))])
    assert three.p == three.least == pytest.approx(1 / 3)


def test_association_over_strata_permutes_within_them() -> None:
    one = ((1, 2, 3, 4), (10, 20, 30, 40))
    # The second stratum lies elsewhere on both axes: ranks within it are what counts.
    far = ((101, 102, 103, 104), (-40, -30, -20, -10))
    found = association([one, far])
    assert found.rho == pytest.approx(1.0)
    assert found.p == pytest.approx(2 / 24**2, abs=0.002)
    assert association([one, far]) == found
    assert association([((1, 1, 1), (1, 2, 3))]) is None
    many = [float(each) for each in range(200)]
    found = association([(many, many)])
    assert (found.rho, found.p, found.least) == (pytest.approx(1), 1 / 20_001, 1 / 20_001)


def orders_of(rows: list[Row]) -> list[LayerOrder]:
    return layer_orders(Measured(frame_of(rows)))


def drifts_of(rows: list[Row]) -> pd.Series[float]:
    """Layer -> mean drift, of the table."""
    return drift_grid(Measured(frame_of(rows))).frame.set_index("layer")["drift"]


def test_layer_order_and_drift() -> None:
    (order,) = orders_of(run_rows())  # The post-hoc network learnt no lambda.
    assert (order.variant, order.seeds, order.layers) == ("annealed", 4, 4)
    pairs = [spearmanr(LEARNT[a], LEARNT[b]).statistic for a in range(4) for b in range(a)]
    assert order.agreement.mean == pytest.approx(sum(pairs) / 6)
    drifts = drifts_of(run_rows())
    assert list(drifts.index) == list(LAYERS)
    assert drifts[LAYERS[3]] == pytest.approx((1.9 + 2.0 + 2.1 + 1.8) / 4 - INITIAL)


def test_layers_without_what_was_learnt_have_no_drift_and_no_order() -> None:
    rows = [
        row
        for row in run_rows()
        if not (row.metric == "learnt_hardness" and LAYERS[0] in row.setting)
    ]
    assert list(drifts_of(rows).index) == list(LAYERS[1:])
    rows = [row for row in run_rows() if row.metric != "learnt_hardness"]
    assert {each.reason for each in orders_of(rows)} == {"not defined: 0 layers"}
    (order,) = orders_of([row for row in run_rows() if not re.search(r"blocks\.[23]", row.setting)])
    assert (order.agreement, order.reason) == (None, "not defined: 2 layers")


def test_relations_are_turned_so_that_positive_is_good() -> None:
    found = found_relations(run_rows())
    accuracy, size = found["w", "accuracy"], found["w", "size"]
    assert accuracy.association.rho == pytest.approx(1.0)
    assert size.association.rho == pytest.approx(-1.0)
    assert accuracy.association.p == pytest.approx(2 / 24)
    assert accuracy.p_adjusted == pytest.approx(4 / 24)
    assert accuracy.verdict == BEYOND


def test_relations_over_workloads_resolve_what_single_ones_cannot() -> None:
    found = found_relations(run_rows(("v", "w", "x")))
    pooled = found[ALL, "accuracy"]
    assert (pooled.association.strata, pooled.association.n) == (3, 12)
    assert pooled.verdict == "resolved"
    few = found_relations(run_rows(seeds=(0, 1)))
    assert few["w", "accuracy"].verdict == "n = 2: too few"


def test_what_holm_puts_out_of_reach_is_beyond_these_seeds() -> None:
    """Five seeds reach p = 2/120; over four tests Holm's is at least 0.067, over three 0.05."""
    perfect = association([((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))])
    assert perfect.p == pytest.approx(2 / 120)
    relation = Relation("w", "annealed", "accuracy", "accuracy", "", "accuracy", perfect)
    assert {each.verdict for each in _adjusted([relation] * 4)} == {BEYOND}
    assert {each.verdict for each in _adjusted([relation] * 2)} == {"resolved"}


def certificate(variant: str, seed: int) -> list[Row]:
    return [
        row_of(
            Metric(
                name, value / hardness, "logit", Direction.LOWER, {"eps": eps, "hardness": hardness}
            ),
            job(variant, seed, "swap-certificate"),
        )
        for eps in (0.0, 0.01)
        for hardness in (10.0, 40.0, 160.0)
        for name, value in (("certified_disruption", 1 + 50 * eps), ("observed_disruption", 0.2))
    ]


def test_profiles_and_certificates_are_drawn_and_flood_no_table(tmp_path: Path) -> None:
    rows = run_rows() + [
        row for seed in range(4) for name in ("gelu", "annealed") for row in certificate(name, seed)
    ]
    page = written_page(tmp_path, rows, sample_record(variants=[]))
    for text in (
        "Hardness profile, w.",
        "Layer order of the learnt hardness, w.",
        "0 of 2 tests resolved, 2 beyond what so few seeds can resolve",
        "Certified against observed disruption, w.",
    ):
        assert text in page.whole
    (image,) = [
        each["aria-label"] for each in page.attributes("svg") if "disruption" in each["aria-label"]
    ]
    assert image.endswith("annealed, gelu; ε = 0.0, 0.01.")
    assert "hardness profile" not in (tmp_path / "report.md").read_text(encoding="utf-8")
    metrics = {line["metric"] for line in csv_lines(tmp_path / "tables" / "comparison.csv")}
    assert "hardness_profile" not in metrics
    assert metrics >= {"hardness", "learnt_hardness", "hardness_drift"}
    (order,) = csv_lines(tmp_path / "tables" / "layer-order.csv")
    assert (order["variant"], order["layers"], order["seeds"]) == ("annealed", "4", "4")


@pytest.mark.slow
def test_many_variants_turn_the_glance_and_split_the_curves(tmp_path: Path) -> None:
    names = [f"variant-{i}" for i in range(14)]
    rows = []
    for name in names:
        for seed in range(3):
            for step in ("accuracy", "q8", "q4"):
                stage = "accuracy" if step == "accuracy" else "quantize"
                metric = "accuracy" if step == "accuracy" else "runtime_accuracy"
                value = Metric(metric, 0.9 + 0.01 * seed, "fraction", Direction.HIGHER)
                rows.append(row_of(value, job(name, seed, step, stage)))
    page = written_page(tmp_path, rows, {"baseline": names[0], "variants": names})
    assert "Accuracy by bit width, w, 3 of 3." in page.whole
    # The ranking shows six of them; the whole is on demand.
    row_heads = [
        [head for head in part.attributes("th") if head.get("scope") == "row"]
        for part in page.parts.values()
    ]
    assert 14 in map(len, row_heads)
    tables = [each for part in page.parts.values() for each in part.attributes("table")]
    assert len([each for each in tables if "across" in each["class"]]) == 1


def test_groups_hold_all_variants_and_the_baseline_each_with_its_own_look() -> None:
    names = [
        "gelu",
        "gelu-swap",
        "swap-refit",
        "swap-recalibrated",
        "swap-finetuned",
        "post-hoc",
        "hard-switch",
        "lambda-gelu",
        "lambda-gelu-swap",
        "annealed",
        "swish-annealed",
        "prelu",
        "prelu-swap",
        "relu",
    ]
    found = groups(names)
    assert [name for group in found for name in group[1:]] == names[1:]
    for group in found:
        assert group[0] == "gelu"
        assert len(group) <= 6
        known = looks(group)
        assert (
            len({each.colour for each in known.values()})
            == len({each.marker for each in known.values()})
            == len(group)
        )
    assert len({(each.colour, each.marker) for each in looks(names).values()}) == len(names)
    assert groups(names[:5]) == [names[:5]]
