"""The report's section on quantization: hand-computed tables, what is said of placements, and
what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from report_workshop import BETTER, GELU, SAME, T2, job, marked, metric_rows, part_of, read_run

from evalsuite.contract import Direction, Metric
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import percent_text
from evalsuite.report.run import Run
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


def test_one_seed_claims_nothing() -> None:
    section = part_of(
        content_of(rows_of("q", gelu=(0.9,), relu=(0.95,)), {"q": options(8)}), "quantize"
    )
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


def declared(name: str) -> dict[str, list[str]]:
    """The lines of a table that the section declares: what stands before the numbers -> numbers."""
    content = content_of(checked_rows(), STEPS)
    (grid,) = [each for each in content.parts["quantize"].details if each.name == f"w-{name}"]
    first = grid.columns.index("gelu")
    return {
        ", ".join(cell.text for cell in row[:first]): [cell.text for cell in row[first:]]
        for row in grid.rows
    }


def test_checks_say_what_each_variant_has() -> None:
    lines = declared("integer-checks")
    assert lines["w8, same class as Brevitas, –, –"][0].startswith("99.9")
    assert lines["w8, equal bits in ONNX Runtime, –, –"] == ["100.0 ± 0", "100.0 ± 0"]
    (finding,) = [
        finding
        for finding in content_of(checked_rows(), STEPS).parts["quantize"].findings
        if "chosen" in finding.headline
    ]
    assert any("percentile 99.9" in sentence for sentence in finding.sentences)


def test_coverage_is_of_each_variant() -> None:
    shares = [line for name, line in declared("coverage").items() if "multiplications" in name]
    assert shares[0][1].startswith("100")
    assert shares[0][0].startswith("6.87") or shares[0][0].startswith("6.9")


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
