"""The report's section on quantization: hand-computed tables, what is said of placements, and
what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from report_workshop import BETTER, GELU, SAME, T2, job, marked, metric_rows, part_of, read_run
from scipy.stats import ttest_1samp

from evalsuite.contract import Direction, Metric
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import percent_text
from evalsuite.report.run import Run
from evalsuite.report.section import Finding
from evalsuite.results import Row, Status, failure_row, row_of
from pipelines.quantize.report.tables import QuantizationTable, quantization_tables
from pipelines.quantize.report.text import accuracy_grid

HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
Options = dict[str, Any]


def options(bits: int, placement: str = "post", epochs: int = 0, **more: Any) -> Options:
    return {
        "weight_bits": bits,
        "act_bits": bits,
        "placement": placement,
        "qat_epochs": epochs,
        **more,
    }


def accuracy(
    value: float | None, name: str = "integer_accuracy", reason: str = "", **setting: str
) -> Metric:
    return Metric(name, value, "fraction", HIGHER, setting, reason=reason)


def rows_of(
    step: str, name: str = "integer_accuracy", stage: str = "quantize", **values: Sequence[float]
) -> list[Row]:
    return metric_rows(name, values, step, stage)


def content_of(rows: list[Row], steps: Mapping[str, Options]) -> Run:
    told = [{"name": name, "stage": "quantize", "after": ""} for name in steps]
    return read_run(
        rows, steps, baseline="gelu", steps=[{"name": "accuracy", "stage": "accuracy"}, *told]
    )


def in_float(**values: Sequence[float]) -> list[Row]:
    return rows_of("accuracy", "accuracy", "accuracy", **values)


def table_of(rows: list[Row], steps: Mapping[str, Options]) -> QuantizationTable:
    (table,) = quantization_tables(content_of(rows, steps))
    return table


def finding_of(rows: list[Row], steps: Mapping[str, Options]) -> Finding:
    (found,) = part_of(content_of(rows, steps), "quantize").findings
    return found


def labels_of(steps: Mapping[str, Options]) -> dict[str, str]:
    """Step -> what it is called, in the order of the table."""
    table = table_of([row for step in steps for row in rows_of(step, gelu=GELU)], steps)
    return {each.step: each.label for each in table.treatments}


def test_table_by_hand() -> None:
    rows = [
        *in_float(gelu=(0.95, 0.96, 0.97), relu=(0.95, 0.961, 0.97)),
        *rows_of("q", gelu=GELU, relu=BETTER),
    ]
    table = table_of(rows, {"q": options(4)})
    cell = table.cells["q", "relu"]
    assert cell.mean.mean == pytest.approx(0.94)
    assert cell.mean.half_width == pytest.approx(
        T2 * math.sqrt((0.01**2 + 0.001**2 + 0.009**2) / 2) / math.sqrt(3)
    )
    assert cell.difference.mean == pytest.approx(0.03)
    assert cell.difference.half_width == pytest.approx(T2 * 0.001 / math.sqrt(3))
    assert cell.resolved
    assert table.cells["q", "gelu"].difference is None
    assert (table.treatments[0].label, table.metric, table.seeds) == (
        "W4A4, PTQ, post",
        "integer_accuracy",
        3,
    )
    grid = accuracy_grid(table)
    assert marked(grid) == [
        ["float", "96.00 ± 2.48", "96.03 ± 2.49 Δ +0.03 [−0.11, 0.18]"],
        ["W4A4, PTQ, post", "91.00 ± 2.48", "94.00 ± 2.37 Δ +3.00 [2.75, 3.25] ✓ better"],
    ]


def test_steps_from_wide_to_narrow_whatever_the_recipe_says() -> None:
    steps = {
        "mixed": options(8, size_budget=0.5),
        "b2": options(2),
        "qat": options(8, epochs=3),
        "both": options(8, "pre+post"),
        "b8": options(8, size_budget=1.0),
        "w4a8": {**options(8), "weight_bits": 4},
        "unknown": {},
    }
    assert list(labels_of(steps).values()) == [
        "W8A8, PTQ, post",
        "W8A8, PTQ, pre+post",
        "W8A8, QAT 3 epochs, post",
        "W4A8, PTQ, post",
        "W2A2, PTQ, post",
        "mixed A8 (≤ 50 %), PTQ, post",
        "unknown",
    ]


def test_treatments_of_the_same_bits_are_told_apart_by_their_options() -> None:
    steps = {
        "a": options(8, tuned=True, samples=10),
        "b": options(8, tuned=False, samples=10),
        "c": options(4, tuned=True, samples=20),
        "d": options(4, tuned=False, samples=20),
    }
    assert labels_of(steps) == {
        "a": "W8A8, PTQ, tuned, post",
        "b": "W8A8, PTQ, post",
        "c": "W4A4, PTQ, tuned, post",
        "d": "W4A4, PTQ, post",
    }
    same = {"one": options(8), "two": options(8)}
    assert labels_of(same) == {name: f"W8A8, PTQ, {name}, post" for name in same}


def test_both_arms_are_compared_in_the_same_arithmetic() -> None:
    lack = "LayerNorm stays in float"
    rows = [
        *rows_of("q", relu=BETTER),
        *(
            row_of(accuracy(None, reason=lack), job("gelu", seed, "q", "quantize"))
            for seed in range(3)
        ),
        *rows_of("q", "runtime_accuracy", gelu=(0.5, 0.6, 0.7), relu=(0.51, 0.61, 0.71)),
    ]
    table = table_of(rows, {"q": options(8)})
    cell = table.cells["q", "relu"]
    assert (cell.metric, table.metric) == ("runtime_accuracy", "runtime_accuracy")
    assert cell.mean.mean == pytest.approx(0.61)
    assert cell.reason == f"gelu: unavailable: {lack}"
    assert "ONNX Runtime" in accuracy_grid(table).caption
    (found,) = part_of(content_of(rows, {"q": options(8)}), "quantize").findings
    assert (
        f"No accuracy of the integer-only network everywhere for gelu (unavailable: {lack})."
        in found.sentences
    )


def test_an_accuracy_of_another_kind_is_marked_and_paired_with_its_own_kind() -> None:
    rows = [
        *rows_of("q", gelu=GELU, annealed=BETTER),
        *rows_of("q", "runtime_accuracy", gelu=(0.5, 0.6, 0.7), relu=(0.51, 0.62, 0.73)),
    ]
    table = table_of(rows, {"q": options(8)})
    relu = table.cells["q", "relu"]
    assert relu.difference.mean == pytest.approx(0.02)
    cells = accuracy_grid(table).rows[0]
    assert [" (ONNX Runtime)" in each.text for each in cells] == [False, False, False, True]


PLACEMENTS = {"post": options(3), "both": options(3, "pre+post")}


@pytest.mark.parametrize(
    ("gelu", "relu", "said", "apart"),
    [
        (
            GELU,
            (0.92, 0.931, 0.939),
            (
                "relu: better with every placement: PTQ W3A3 (post +3.0 pp [2.8, 3.2], pre+post"
                " +2.0 pp [1.8, 2.2])."
            ),
            "",
        ),
        # The gaps differ by 0.029, 0.032 and 0.029: 0.030 +- 4.3027 * 0.0017321 / sqrt(3).
        (
            GELU,
            SAME,
            "relu: better with post only, the placement's: PTQ W3A3 (post +3.0 pp",
            "the gaps differ by +3.0 pp [2.6, 3.4]",
        ),
        (GELU, (0.98, 0.90, 0.96), "relu: better with post only: PTQ W3A3 (post +3.0 pp", ""),
        (BETTER, GELU, "relu: turning with the placement: PTQ W3A3", ""),
    ],
    ids=["with both", "the placement's", "not excluded with the other", "turning"],
)
def test_a_gap_is_told_by_placement(
    gelu: Sequence[float], relu: Sequence[float], said: str, apart: str
) -> None:
    found = finding_of(
        [*rows_of("post", gelu=GELU, relu=BETTER), *rows_of("both", gelu=gelu, relu=relu)],
        PLACEMENTS,
    )
    assert found.sentences[0].startswith(said)
    assert apart in found.sentences[0]
    if "every" in said:
        assert (
            found.headline
            == "2 of 2 differences to gelu (integers only) are resolved, at W3A3; 2 after Holm's"
            " adjustment for all 2."
        )


def test_what_is_not_resolved_is_said_too() -> None:
    steps = {"w8": options(8), "w4": options(4)}
    rows = [*rows_of("w8", gelu=GELU, relu=SAME), *rows_of("w4", gelu=GELU, relu=BETTER)]
    found = finding_of(rows, steps)
    assert "at W4A4; none at W8A8" in found.headline
    assert "worse" not in found.sentences[0]
    assert "measured with post only: PTQ W4A4" in found.sentences[0]
    assert "; not resolved: PTQ W8A8." in found.sentences[0]
    quiet = finding_of(rows_of("w8", gelu=GELU, relu=SAME), steps)
    assert quiet.headline == "None of 1 differences to gelu (integers only) is resolved."
    assert quiet.sentences[0].startswith("relu: no difference is resolved at any width")


def test_differences_in_other_arithmetic_are_told_where_integers_resolve_none() -> None:
    rows = [
        *rows_of("w8", gelu=GELU, relu=SAME),
        *rows_of("w8", "runtime_accuracy", gelu=GELU, relu=BETTER),
    ]
    table = content_of(rows, {"w8": options(8)}).compared
    assert set(table.loc[table["better"] == "better", "metric"]) == {"runtime_accuracy"}
    found = finding_of(rows, {"w8": options(8)})
    assert (
        found.headline
        == "None of 1 differences to gelu (integers only) is resolved; other arithmetic resolves 1."
    )
    assert found.sentences[:2] == (
        (
            "relu: no difference is resolved at any width, with any method or placement (integers"
            " only)."
        ),
        (
            "Resolved in other arithmetic, though not there: ONNX Runtime: relu W8A8, PTQ, post"
            " +3.0 pp [2.8, 3.2]."
        ),
    )
    both = [
        *rows,
        *rows_of("w4", gelu=GELU, relu=BETTER),
        *rows_of("w4", "accuracy", gelu=GELU, relu=BETTER),
    ]
    assert (
        finding_of(both, STEPS).headline
        == "1 of 2 differences to gelu (integers only) are resolved, at W4A4; none at W8A8; 1 after"
        " Holm's adjustment for all 2; other arithmetic resolves 1 more."
    )


def test_a_gap_that_was_there_in_float_is_not_put_down_to_quantization() -> None:
    rows = [*in_float(gelu=GELU, relu=BETTER), *rows_of("q", gelu=GELU, relu=BETTER)]
    sentence, *_ = finding_of(rows, {"q": options(8)}).sentences
    assert (
        "In float its gap is +3.0 pp [2.8, 3.2] already; quantization changes that gap resolvedly"
        " nowhere." in (sentence)
    )
    rows = [*in_float(gelu=GELU, relu=BETTER), *rows_of("q", gelu=GELU, relu=(0.85, 0.862, 0.867))]
    sentence, *_ = finding_of(rows, {"q": options(8)}).sentences
    assert "changes that gap resolvedly by: PTQ, post W8A8 (−8.0 pp [−8.4, −7.7])." in sentence


def test_one_seed_claims_nothing() -> None:
    section = part_of(
        content_of(rows_of("q", gelu=(0.9,), relu=(0.95,)), {"q": options(8)}), "quantize"
    )
    assert section.findings[0].headline == "One seed: no interval, so nothing is claimed."
    assert marked(section.grids[0])[0] == [
        "W8A8, PTQ, post",
        "90.0; one seed",
        "95.0 Δ +5.0 (one seed, no interval)",
    ]


def test_a_step_that_failed_keeps_its_cell_and_its_reason() -> None:
    reason = "QAT needs a gradient"
    rows = rows_of("q", gelu=GELU, relu=BETTER[:2])
    rows += [
        failure_row(job("annealed", seed, "q", "quantize"), Status.UNSUPPORTED, reason)
        for seed in range(3)
    ]
    rows.append(failure_row(job("relu", 2, "q", "quantize"), Status.TIMEOUT, "ran past 120 s"))
    section = part_of(content_of(rows, {"q": options(4), "never": options(2)}), "quantize")
    assert [each.step for each in section.tables[0].treatments] == ["q"]
    row = dict(zip(section.grids[0].columns, section.grids[0].rows[0], strict=True))
    assert (row["annealed"].text, row["annealed"].tone) == (f"unsupported: {reason}", "lack")
    assert row["relu"].detail.endswith("n = 2 of 3")
    lost = [
        failure_row(job("gelu", seed, "q", "quantize"), Status.FAILED, "no memory")
        for seed in range(3)
    ]
    section = part_of(
        content_of([*lost, *rows_of("q", relu=BETTER)], {"q": options(8)}), "quantize"
    )
    assert section.findings[0].headline == "No quantized network can be compared with gelu."
    assert section.grids[0].rows[0][2].detail == "no gelu to compare with"


def checked(seed: int, variant: str) -> list[Metric]:
    """An integer-only network's checks, worse with every seed."""
    return [
        accuracy(0.90 + 0.01 * seed),
        accuracy(0.89 + 0.01 * seed - 0.001 * (seed % 2), activation="polynomial"),
        Metric("integer_agreement", 1 - 0.001 * seed, "fraction", HIGHER),
        Metric("differing_logits", 0.0001 * seed, "share", LOWER),
        Metric("tie_distance", 1e-5 * (1 + seed), "lsb", LOWER),
        Metric("unexplained_differences", float(seed == 2 and variant == "relu"), "count", LOWER),
        Metric("integer_onnx_agreement", 1.0, "fraction", HIGHER),
        Metric("rounding_differing_logits", 0.05, "share", LOWER, {"rounding": "half-up"}),
        Metric("integer_mac_fraction", 0.0687 if variant == "gelu" else 1.0, "share", HIGHER),
        Metric("latency_ratio", 0.5 + 0.1 * seed, "ratio", HIGHER, {"batch": 1}, timing=True),
        Metric("chosen_treatment", None, "name", NEUTRAL, reason="percentile 99.9"),
        Metric("accumulator_bits", 20.0, "count", LOWER),
        Metric("accumulator_bits_observed", 15.0, "count", LOWER, {"layer": "0"}),
        Metric("table_bytes", 512.0, "bytes", LOWER, {"activation": "table"}),
        *(
            Metric("accumulator_bits", bits, "count", LOWER, {"layer": layer})
            for layer, bits in (("0", 18.0), ("2", 20.0))
        ),
        *(
            Metric(name, 0.01 * bits, "nats", LOWER, {"layer": layer})
            for name in ("layer_alone_loss", "layer_spared_loss")
            for layer, bits in (("0", 1.0 + seed), ("2", 0.0))
        ),
        *(
            Metric("chosen_weight_bits", bits, "count", NEUTRAL, {"layer": layer})
            for layer, bits in (("0", 8.0), ("2", 4.0 if seed else 8.0))
        ),
    ]


def checked_rows() -> list[Row]:
    return [
        row_of(each, job(variant, seed, step, "quantize"))
        for variant in ("gelu", "relu")
        for seed in range(3)
        for step in ("w8", "w4")
        for each in checked(seed, variant)
    ]


STEPS = {"w8": options(8), "w4": options(4)}
MIXED = options(8, size_budget=0.5)


def test_checks_show_the_worst_seed_and_what_it_says() -> None:
    content = content_of(checked_rows(), STEPS)
    grid = next(
        each for each in part_of(content, "quantize").details if each.name == "w-integer-checks"
    )
    line = dict(zip(grid.columns, (each.plain for each in grid.rows[0]), strict=True))
    assert line["same class as Brevitas"] == "99.8 %"
    assert line["differing logits"] == "0.02 %"
    assert line["farthest from a tie"] == "3e-05"
    assert line["equal bits in ONNX Runtime"] == "100 %"
    assert line["other logits, half-up"] == "5 %"
    assert line["accumulator bits"] == "20"
    assert line["table bytes"] == "512"
    assert line["polynomial, Δ to the table"].startswith("−1.0 pp [−1.2, −0.9]")
    assert line["treatment chosen"] == "percentile 99.9"
    assert "other logits, gemmlowp" not in line
    said = part_of(content, "quantize").findings[0].sentences
    assert (
        "The integer-only networks give Brevitas' class on at least 99.8 % of samples, differ from"
        " it in at most 0.02 % of a network's logits, leave 2 differences unexplained by rounding"
        " ties and are equal in every bit to their ONNX graphs on every sample." in said
    )
    assert (
        "MACs in integers in ONNX Runtime, W8A8, PTQ, post: 6.87 % for gelu, 100 % for relu."
        in said
    )


def test_networks_with_other_grids_are_no_check_of_the_simulation() -> None:
    """A table needs a grid at its input, which post has not: its differences are not said to be
    explained.
    """
    why = "the fake-quantized network has no grid at 1_input: it is another network"
    rows = [
        row_of(each, job(variant, seed, "w8", "quantize"))
        for variant, other in (("gelu", True), ("relu", False))
        for seed in range(3)
        for each in (
            accuracy(0.9 + 0.01 * seed),
            Metric("integer_agreement", 0.99 if other else 1.0, "fraction", HIGHER),
            Metric("differing_logits", 0.4769 if other else 0.0002, "share", LOWER),
            Metric(
                "unexplained_differences",
                None if other else 0.0,
                "count",
                LOWER,
                reason=why if other else "",
            ),
            Metric("integer_onnx_agreement", 1.0, "fraction", HIGHER),
        )
    ]
    said = finding_of(rows, STEPS).sentences
    assert (
        "The integer-only networks give Brevitas' class on every sample, differ from it in at most"
        " 0.02 % of a network's logits, leave no difference unexplained by rounding ties and are"
        " equal in every bit to their ONNX graphs on every sample. Those with a grid more, at the"
        " input of a smooth activation, are other networks than Brevitas' (gelu): they give its"
        " class on at least 99 % of samples and differ from it in at most 47.69 % of a network's"
        " logits." in said
    )


def test_a_constant_difference_is_in_no_range_of_resolved_ones() -> None:
    rows = rows_of("w8", gelu=GELU, relu=BETTER) + rows_of("w4", gelu=GELU, relu=BETTER)
    constant = tuple(value + 0.031 for value in GELU)
    rows += rows_of("w8-both", gelu=GELU, relu=constant) + rows_of(
        "w4-both", gelu=GELU, relu=constant
    )
    steps = {
        "w8": options(8),
        "w4": options(4),
        "w8-both": options(8, "pre+post"),
        "w4-both": options(4, "pre+post"),
    }
    said = next(each for each in finding_of(rows, steps).sentences if each.startswith("relu"))
    assert said.startswith("relu: better with post only: PTQ W8A8, W4A4 (+3.0 pp)")


def test_coverage_tells_nodes_where_they_differ_from_macs() -> None:
    rows = checked_rows() + [
        row_of(
            Metric("integer_node_fraction", share, "share", HIGHER),
            job(variant, seed, step, "quantize"),
        )
        for variant, share in (("gelu", 0.75), ("relu", 1.0))
        for seed in range(3)
        for step in STEPS
    ]
    first = [each.plain for each in part_of(content_of(rows, STEPS), "quantize").grids[1].rows[0]]
    assert [each.split(" ×")[0] for each in first[1:]] == [
        "6.87 %, nodes 75 %",
        "100 %, nodes 100 %",
    ]


def test_coverage_and_latency_by_hand() -> None:
    grid = part_of(content_of(checked_rows(), STEPS), "quantize").grids[1]
    half = T2 * 0.1 / math.sqrt(3)
    assert [each.plain for each in grid.rows[0]] == [
        "W8A8, PTQ, post",
        f"6.87 % ×0.60 ± {half:.2f}",
        f"100 % ×0.60 ± {half:.2f}",
    ]


def test_chosen_bits_are_one_number_where_the_seeds_agree() -> None:
    steps = {"w8": MIXED, "w4": options(4)}
    grid = next(
        each
        for each in part_of(content_of(checked_rows(), steps), "quantize").details
        if "mixed" in each.name
    )
    assert [[each.text for each in row][:2] for row in grid.rows] == [["0", "8"], ["2", "8, 4, 4"]]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100 %"),
        (0.99999, "> 99.99 %"),
        (0.99996, "> 99.99 %"),
        (0.9999, "99.99 %"),
        (0.5, "50 %"),
        (0.00001, "< 0.01 %"),
        (0.0, "0 %"),
        (0.00028, "0.03 %"),
    ],
)
def test_percent_never_rounds_to_all_or_nothing(share: float, text: str) -> None:
    assert percent_text(share) == text


def test_layers_are_drawn_and_in_the_csv_but_are_no_lines() -> None:
    content = content_of(checked_rows(), STEPS)
    assert not [line for line in content.lines if "layer=" in line.setting]
    assert [line for line in content.lines if line.metric == "accumulator_bits"]
    layered = content.compared[content.compared["setting"] == "layer=0"]
    assert set(layered["metric"]) == {
        "accumulator_bits",
        "accumulator_bits_observed",
        "layer_alone_loss",
        "layer_spared_loss",
        "chosen_weight_bits",
    }
    assert "chosen_treatment" not in {line.metric for line in content.lines} | set(
        content.failures["metric"]
    )
    drawn = {each.title for each in part_of(content, "quantize").drawings if each.svg}
    assert {"Accuracy by bit width, w", "Sensitivity of layers, w", "Accumulator width, w"} <= drawn


def test_of_many_quantize_steps_the_four_with_the_largest_differences_are_headlines() -> None:
    steps = {f"q{bits}": options(bits) for bits in (8, 7, 6, 5, 4, 3)}
    rows = [
        row for step in steps for row in rows_of(step, "runtime_accuracy", gelu=GELU, relu=BETTER)
    ]
    content = content_of(rows, steps)
    assert [line.step for line in content.glance("w")] == ["q8", "q7", "q6", "q5"]
    assert len(content.lines) == 6
    far = [each - 0.3 for each in BETTER]
    rows = [*rows[:-6], *rows_of("q3", "runtime_accuracy", gelu=GELU, relu=far)]
    content = content_of(rows, steps)
    assert [line.step for line in content.glance("w")] == ["q8", "q7", "q6", "q3"]


def in_workload(rows: list[Row], workload: str) -> list[Row]:
    return [replace(each, workload=workload, key=f"{workload}{each.key}") for each in rows]


def test_all_workloads_are_counted_after_holm_and_pooled() -> None:
    """Two workloads at 8 and 4 bits; the gap moves by 0, 0.005 and 0.001 on the first, and
    nowhere on the other.
    """
    floats = {"gelu": (0.95, 0.96, 0.97), "relu": (0.94, 0.95, 0.96)}
    moved = {"gelu": (0.90, 0.91, 0.92), "relu": (0.890, 0.905, 0.911)}
    rows = [
        *in_float(**floats),
        *rows_of("b8", **moved),
        *rows_of("b4", **moved),
        *rows_of("b2", gelu=GELU, relu=BETTER),
    ]
    still = [
        *in_float(**floats),
        *rows_of("b8", **floats),
        *rows_of("b4", **floats),
        *rows_of("b2", **floats),
    ]
    steps = {"b8": options(8), "b4": options(4), "b2": options(2)}
    content = content_of([*rows, *in_workload(still, "v")], steps)
    first, *rest = part_of(content, "quantize").findings
    assert [first.subject, *(each.subject for each in rest)] == ["all workloads", "w", "v"]
    gaps = [np.subtract(moved["relu"], moved["gelu"])] * 2 + [np.subtract(BETTER, GELU)]
    p = [ttest_1samp(each, 0.0).pvalue for each in gaps]
    assert p[0] < 0.05 < 2 * p[0]
    assert p[2] < 0.05 / 3
    # What is the same in every seed is no test.
    assert (
        first.headline
        == "3 (1 better, 2 worse) of 3 differences to gelu resolved, 1 after Holm's adjustment for"
        " all 3."
    )
    interval = ttest_1samp([0.0, 0.0025, 0.0005], 0.0).confidence_interval(0.95)
    low, high = (f"{100 * each:.2f}".replace("-", "−") for each in (interval.low, interval.high))
    assert first.sentences == (
        (
            "relu: from float to 3 bits and more (integers only, mean over 2 workloads and their"
            " widths) its gap to gelu is shown to move by less than 0.50 pp in 1 of 1 methods and"
            f" placements: PTQ, post +0.10 pp [{low}, {high}]."
        ),
    )
    wide = [*in_float(**floats), *rows_of("b8", gelu=GELU, relu=(0.88, 0.91, 0.91))]
    found, *_ = part_of(
        content_of([*wide, *in_workload(wide, "v")], {"b8": options(8)}), "quantize"
    ).findings
    assert "is shown to move by less than 0.50 pp in 0 of 1" in found.sentences[0]


def timed(
    step: str,
    precision: str = "int8",
    stage: str = "quantize",
    load: float | None = 0.1,
    **values: Mapping[int, Sequence[float]],
) -> list[Row]:
    """Relative latencies: variant -> batch -> a value for each seed."""
    return [
        replace(row, load=load)
        for variant, batches in values.items()
        for batch, every in batches.items()
        for row in metric_rows(
            "relative_latency", {variant: every}, step, stage, precision=precision, batch=batch
        )
    ]


FLAT, FAST = (1.0, 1.01, 0.99), (0.7, 0.705, 0.695)


def latency_asked(rows: list[Row], steps: Mapping[str, Options]) -> list[MatrixRow]:
    (matrix,) = content_of([*rows_of("q", gelu=GELU, relu=SAME), *rows], steps).matrices
    return [
        each
        for each in matrix.rows
        if each.endpoint.question == "latency in ONNX Runtime with 8-bit integers"
    ]


def test_the_matrix_says_whether_int8_is_faster_than_with_the_baselines_activation() -> None:
    rows = [
        *timed("q", gelu={1: FLAT, 64: FLAT}, relu={1: FAST, 64: FAST}),
        # In float, and of other widths: not what is asked.
        *timed("q", "float32", gelu={1: FLAT, 64: FLAT}, relu={1: (9.0, 9.1, 8.9), 64: FLAT}),
        *timed("narrow", gelu={1: FLAT, 64: FLAT}, relu={1: (9.0, 9.1, 8.9), 64: FLAT}),
    ]
    (row,) = latency_asked(rows, {"q": options(8), "narrow": options(4)})
    cell = row.cells["w"]
    assert cell.reading.value == "helps"
    assert cell.estimate.mean == pytest.approx(-0.3)
    assert row.measured == "W8A8, PTQ, post, batch 1 and W8A8, PTQ, post, batch 64"
    assert cell.difference(row.scale).startswith("−0.300 ratio [")
    # One that gains at one batch and loses at another is mixed.
    slow = tuple(each + 0.5 for each in FAST)
    (row,) = latency_asked(
        timed("q", gelu={1: FLAT, 64: FLAT}, relu={1: slow, 64: FAST}), {"q": options(8)}
    )
    assert row.cells["w"].reading.value == "mixed"
    assert row.cells["w"].losses == ("W8A8, PTQ, post, batch 1",)
    # Beside other work, or where nobody says what ran beside it, a clock concludes nothing.
    for load, reason in (
        (2.5, "beside other work on 2.5 processors"),
        (None, "the load beside them was not recorded"),
    ):
        readings = timed("q", load=load, gelu={1: FLAT, 64: FLAT}, relu={1: FAST, 64: FAST})
        (row,) = latency_asked(readings, {"q": options(8)})
        cell = row.cells["w"]
        assert (cell.reading.value, cell.p, cell.tone) == ("not resolved", None, "")
        assert cell.words.endswith(reason)
    # Of another stage's they are no answer, and the question is not asked.
    assert (
        latency_asked(timed("p", stage="prune", gelu={1: FLAT}, relu={1: FAST}), {"q": options(8)})
        == []
    )
