"""The report's section on pruning: hand-computed areas and tables, what is said of them, and
what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from report_workshop import (
    BETTER,
    GELU,
    SAME,
    T2,
    Values,
    job,
    marked,
    metric_rows,
    part_of,
    read_run,
)

from evalsuite.contract import Direction, Metric, Verdict
from evalsuite.report.areas import Point, area_between, common_range
from evalsuite.report.run import Run
from evalsuite.report.statistics import Estimate
from evalsuite.results import Row, Status, failure_row, row_of
from pipelines.prune.report.section import Spot, front, pareto_figures
from pipelines.prune.report.tables import (
    BEFORE,
    MACS,
    PruningTable,
    SweepArea,
    areas,
    pruning_tables,
)
from pipelines.prune.report.text import accuracy_grid

HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
Options = dict[str, Any]

WORSE = (0.87, 0.879, 0.891)  # 0.030, 0.031 and 0.029 below


def options(sparsity: float, **more: Any) -> Options:
    plain = {
        "importance": "l2",
        "scope": "local",
        "rounds": 1,
        "round_to": 1,
        "fine_tune_epochs": 3,
    }
    return {"sparsity": sparsity, **plain, "distill": False, "control": False, **more}


def rows_of(
    step: str, values: Values, name: str = "accuracy", stage: str = "prune", **setting: Any
) -> list[Row]:
    return metric_rows(name, values, step, stage, **setting)


def pruned(
    step: str, share: float, accuracy: Values, before: Values | None = None, batch64: float = 0.0
) -> list[Row]:
    """A prune step's rows: accuracies, the same share of MACs for all, and a latency that goes
    with it.
    """
    same = {name: (share,) * len(every) for name, every in accuracy.items()}
    rows = [*rows_of(step, accuracy), *rows_of(step, same, "mac_fraction")]
    rows += rows_of(step, before, BEFORE) if before else []
    fast = {name: (batch64,) * len(every) for name, every in accuracy.items()}
    return rows + (rows_of(step, fast, "relative_latency", batch=64) if batch64 else [])


def in_full(values: Values) -> list[Row]:
    return rows_of("accuracy", values, stage="accuracy")


def content_of(
    rows: list[Row], steps: Mapping[str, Options], after: Mapping[str, str] | None = None
) -> Run:
    told = [{"name": name, "after": (after or {}).get(name, "")} for name in steps]
    return read_run(rows, steps, baseline="gelu", steps=[{"name": "accuracy"}, *told])


def table_of(rows: list[Row], steps: Mapping[str, Options]) -> PruningTable:
    (table,) = pruning_tables(content_of(rows, steps))
    return table


def lines_of(
    rows: list[Row], steps: Mapping[str, Options], name: str, **more: Any
) -> list[list[str]]:
    """The texts of a table of the section, by its name."""
    return marked(
        next(
            each
            for each in part_of(content_of(rows, steps, **more), "prune").grids
            if each.name == name
        )
    )


def labelled(steps: Mapping[str, Options]) -> PruningTable:
    """A table of nothing but these steps."""
    return table_of([row for step in steps for row in rows_of(step, {"gelu": GELU})], steps)


def areas_of(rows: list[Row], steps: Mapping[str, Options]) -> dict[str, SweepArea]:
    found = areas(pruning_tables(content_of(rows, steps)))
    return {f"{each.variant} {each.axis.metric}": each for each in found}


LINE = [(0.2, 0.5), (0.6, 0.7), (1.0, 0.9)]
BENT = [(0.25, 0.6), (0.5, 0.8), (0.8, 0.8)]


@pytest.mark.parametrize(
    ("curve", "other", "area"),
    [
        # Differences at 0.25, 0.5, 0.6 and 0.8: -0.075, -0.15, -0.1 and 0. Trapezoids: -0.028125,
        # -0.0125 and -0.01.
        (LINE, BENT, -0.050625 / 0.55),
        (BENT, LINE, 0.050625 / 0.55),
        (LINE[::-1], BENT, -0.050625 / 0.55),
        (LINE, LINE, 0.0),
        ([(0, 0.0), (1, 1.0)], [(0, 1.0), (1, 0.0)], 0.0),  # curves that cross
        ([(0, 0.5), (1, 1.0)], [(0, 1.0), (1, 0.0)], 0.25),
        # With rounding two sparsities may leave the same width: points of one cost are one point at
        # their mean.
        ([(0.0, 0.0), (0.5, 0.2), (0.5, 0.4), (1.0, 0.0)], [(0.0, 0.0), (1.0, 0.0)], 0.15),
        *(
            (LINE, other, None)
            for other in ([], [(0.5, 0.9)], [(2.0, 0.9), (3.0, 0.9)], [(1.0, 0.9), (2.0, 0.9)])
        ),
        *(
            (other, LINE, None)
            for other in ([], [(0.5, 0.9)], [(2.0, 0.9), (3.0, 0.9)], [(1.0, 0.9), (2.0, 0.9)])
        ),
    ],
)
def test_area_by_hand(curve: list[Point], other: list[Point], area: float | None) -> None:
    """None without a common range: of nothing, of a point, apart, touching."""
    assert area_between(curve, other) == (None if area is None else pytest.approx(area))
    assert common_range(LINE, BENT) == (0.25, 0.8)


HALVES = {"a": options(0.25), "b": options(0.5), "c": options(0.75)}


def shifted(step: str, share: float, height: float, batch64: float = 0.0) -> list[Row]:
    """A variant 0.01, 0.02 and 0.03 above the baseline, whatever the height, and one as far
    below.
    """
    base = [height + wave for wave in (0.0, 0.02, -0.01)]
    above = [value + shift for value, shift in zip(base, (0.01, 0.02, 0.03), strict=True)]
    below = [value - shift for value, shift in zip(base, (0.030, 0.031, 0.029), strict=True)]
    return pruned(step, share, {"gelu": base, "relu": above, "annealed": below}, batch64=batch64)


def test_areas_over_seeds_by_hand() -> None:
    rows = [*shifted("a", 0.6, 0.9), *shifted("b", 0.3, 0.8), *shifted("c", 0.1, 0.5)]
    found = areas_of(rows, HALVES)
    relu, annealed = found["relu mac_fraction"], found["annealed mac_fraction"]
    assert relu.values == pytest.approx({0: 0.01, 1: 0.02, 2: 0.03})
    assert relu.difference.mean == pytest.approx(0.02)
    assert relu.difference.half_width == pytest.approx(T2 * 0.01 / math.sqrt(3))
    assert [relu.low, relu.high] == pytest.approx([0.1, 0.6])
    # With 2 degrees of freedom the two-sided p of t is 1 - t / sqrt(2 + t^2).
    t = 0.02 / (0.01 / math.sqrt(3))
    assert relu.p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    u = 0.03 / (0.001 / math.sqrt(3))
    assert annealed.p == pytest.approx(1 - u / math.sqrt(2 + u**2), rel=1e-6)
    assert (relu.tone, annealed.tone) == ("", "worse")
    assert (
        found["relu relative_latency"].reason
        == "no accuracy was measured beside the relative latency, batch 64"
    )


def test_area_over_latency_is_over_its_logarithm() -> None:
    rows = [
        *pruned("a", 0.9, {"gelu": (0.9, 0.8), "relu": (0.9, 0.8)}, batch64=1.0),
        *pruned("b", 0.5, {"gelu": (0.9, 0.8), "relu": (0.9, 0.8)}, batch64=0.5),
        *pruned("c", 0.1, {"gelu": (0.9, 0.8), "relu": (0.7, 0.6)}, batch64=0.25),
    ]
    area = areas_of(rows, HALVES)["relu relative_latency"]
    # 0 between 1 and 1/2, then down to -0.2 at 1/4: each half of the range, in powers of two.
    assert area.difference.mean == pytest.approx(-0.05)
    assert [area.low, area.high] == pytest.approx([0.25, 1.0])
    assert area.p is None
    assert area.axis.timing


def test_an_unpruned_network_is_the_curves_end_at_all_its_macs() -> None:
    steps = {"b": options(0.5)}
    rows = [
        *in_full({"gelu": GELU, "relu": GELU}),
        *pruned("b", 0.5, {"gelu": GELU, "relu": BETTER}),
    ]
    area = areas_of(rows, steps)["relu mac_fraction"]
    assert area.difference.mean == pytest.approx(0.015)
    # With a control, that was tuned as the others were, it is the end; and it has a latency too.
    steps = {"none": options(0.5, control=True), "b": options(0.5)}
    rows += pruned("none", 1.0, {"gelu": GELU, "relu": BETTER}, batch64=1.0)
    area = areas_of(rows, steps)["relu mac_fraction"]
    assert area.difference.mean == pytest.approx(0.03)


def test_areas_that_there_are_not_have_a_reason() -> None:
    steps = {"a": options(0.25), "b": options(0.5)}
    rows = [
        *pruned(
            "a", 0.5, {"gelu": GELU, "one": (0.9, None, None), "none": (None, None, None, 0.9)}
        ),
        *pruned("b", 0.25, {"gelu": GELU, "none": (None, None, None, 0.9)}),
    ]
    rows += [
        row_of(Metric("mac_fraction", share, "share", LOWER), job("far", seed, step, "prune"))
        for seed in range(3)
        for step, share in (("a", 0.9), ("b", 0.8))
    ]
    rows += [*rows_of("a", {"far": GELU}), *rows_of("b", {"far": GELU})]
    found = areas_of(rows, steps)
    assert found["one mac_fraction"].reason == "one point is no curve"
    assert found["none mac_fraction"].reason == "no seed in common with the baseline"
    assert found["far mac_fraction"].reason == "the curves have no range in common"


def test_a_point_that_one_arm_lacks_is_not_bridged() -> None:
    lack = {"gelu": GELU, "relu": (0.5, None, 0.5)}
    rows = [
        *pruned("a", 0.9, {"gelu": GELU, "relu": BETTER}),
        *pruned("b", 0.5, lack),
        *pruned("c", 0.1, {"gelu": GELU, "relu": BETTER}),
    ]
    area = areas_of(rows, HALVES)["relu mac_fraction"]
    assert area.values[1] == pytest.approx(0.031)  # of the two ends alone
    assert area.values[0] == pytest.approx((0.03 - 0.4) / 2)


def test_table_by_hand() -> None:
    steps = {
        "none": options(0.9, importance="random", control=True),
        "c": options(0.75),
        "a": options(0.25),
    }
    rows = [
        *in_full({"gelu": GELU, "relu": SAME}),
        *pruned("none", 1.0, {"gelu": GELU, "relu": SAME}),
        *pruned("c", 0.1, {"gelu": GELU, "relu": WORSE}, before={"gelu": GELU, "relu": BETTER}),
        *pruned("a", 0.6, {"gelu": GELU, "relu": BETTER}, before={"gelu": GELU, "relu": SAME}),
    ]
    table = table_of(rows, steps)
    assert [each.label for each in table.treatments] == [
        "0 %, only fine-tuned",
        "75 %, l2, local",
        "25 %, l2, local",
    ]
    (sweep,) = table.sweeps
    assert [each.step for each in sweep.treatments] == ["a", "c"]
    assert sweep.control is not None
    assert marked(accuracy_grid(table)) == [
        ["unpruned", "91.0 ± 2.5", "91.0 ± 2.4 Δ 0 [−0.2, 0.2]"],
        ["0 %, only fine-tuned", "91.0 ± 2.5", "91.0 ± 2.4 Δ 0 [−0.2, 0.2]"],
        ["25 %", "91.0 ± 2.5", "94.0 ± 2.4 Δ +3.0 [2.8, 3.2] ✓ better"],
        ["75 %", "91.0 ± 2.5", "88.0 ± 2.6 Δ −3.0 [−3.2, −2.8] ✗ worse"],
    ]
    before = accuracy_grid(table, BEFORE)
    assert [row[2].tone for row in before.rows[-2:]] == ["", "better"]
    assert "before fine-tuning" in before.caption


def test_methods_are_told_by_what_they_differ_in() -> None:
    steps = {
        "a": options(0.25, round_to=8),
        "b": options(0.5, round_to=8),
        "rest": options(0.5, round_to=8, distill=True),
        "often": options(0.5, round_to=8, rounds=5),
        "other": options(0.5, importance="taylor", round_to=8),
        "untuned": options(0.5, round_to=8, fine_tune_epochs=0),
        "again": options(0.5, round_to=8),
        "control": options(0.0, round_to=8),
    }
    table = labelled(steps)
    told = "l2, local, in one shot, 3 epochs of fine-tuning"
    assert {each.step: each.label for each in table.treatments} == {
        "a": f"25 %, {told}",
        "b": f"50 %, {told}, b",
        "rest": f"50 %, {told}, distilled",
        "often": "50 %, l2, local, in 5 rounds, 3 epochs of fine-tuning",
        "other": "50 %, taylor, local, in one shot, 3 epochs of fine-tuning",
        "untuned": "50 %, l2, local, in one shot, no fine-tuning",
        "again": f"50 %, {told}, again",
        "control": "0 %, only fine-tuned",
    }
    assert table.shared == "widths in multiples of 8"
    assert [len(each.treatments) for each in table.sweeps] == [3]
    # A control of another budget is not of the sweep.
    steps = {"control": options(0.0, fine_tune_epochs=9), "a": options(0.25), "b": options(0.5)}
    assert labelled(steps).sweeps[0].control is None


def test_heads_that_are_pruned_as_channels_are_make_a_sweep() -> None:
    steps = {
        "a": options(0.25, heads=0.25),
        "b": options(0.5, heads=0.5),
        "other": options(0.5, heads=0.25),
        "alone": options(0.0, heads=0.5),
        "control": options(0.5, heads=0.5, control=True),
    }
    table = labelled(steps)
    assert [each.label for each in table.treatments] == [
        "25 %, l2, local, heads alike",
        "50 %, l2, local, heads alike",
        "50 %, l2, local, 25 % of heads",
        "0 %, l2, local, 50 % of heads",
        "0 %, only fine-tuned",
    ]
    assert [[each.step for each in sweep.treatments] for sweep in table.sweeps] == [["a", "b"]]
    assert table.sweeps[0].control is not None


def test_two_sweeps_are_apart() -> None:
    steps = {
        **HALVES,
        **{f"r{name}": {**each, "importance": "random"} for name, each in HALVES.items()},
    }
    rows = [row for step in steps for row in pruned(step, 0.5, {"gelu": GELU, "relu": SAME})]
    section = part_of(content_of(rows, steps), "prune")
    assert [each.method for each in section.tables[0].sweeps] == ["l2, local", "random, local"]
    assert [row[0].text for row in section.grids[0].rows][:2] == [
        "25 %, l2, local",
        "50 %, l2, local",
    ]


def test_treatments_of_equal_sparsity_and_random_channels() -> None:
    steps = {
        "b": options(0.5),
        "random": options(0.5, importance="random"),
        "wide": options(0.5, scope="global"),
    }
    rows = [
        *pruned("b", 0.3, {"gelu": BETTER, "relu": SAME}, before={"gelu": BETTER, "relu": BETTER}),
        *pruned("random", 0.3, {"gelu": GELU, "relu": GELU}, before={"gelu": GELU, "relu": GELU}),
        *pruned("wide", 0.3, {"gelu": BETTER, "relu": BETTER}),
    ]
    section = part_of(content_of(rows, steps), "prune")
    grid = next(each for each in section.grids if each.name == "w-pruning-treatments")
    assert marked(grid) == [
        ["50 %, l2, local", "94.0 ± 2.4", "91.0 ± 2.4"],
        [
            "50 %, random, local",
            "91.0 ± 2.5 Δ −3.0 [−3.2, −2.8] ✗ worse",
            "91.0 ± 2.5 Δ 0 [−0.2, 0.2]",
        ],
        [
            "50 %, l2, global",
            "94.0 ± 2.4 Δ 0 in all 3 seeds",
            "94.0 ± 2.4 Δ +3.0 [2.6, 3.4] ✓ better",
        ],
    ]
    # The same in every seed is bracketed, and no test.
    assert "Of 4 such differences 2 are resolved, 2 after Holm's adjustment for all 3." in grid.note


def spot(variant: str, x: float, height: float) -> Spot:
    return Spot(variant, "", x, Estimate(height, None, None, 1))


def test_the_front_by_hand() -> None:
    best, cheap, dear, worse, equal = (
        spot("best", 0.5, 0.95),
        spot("cheap", 0.2, 0.90),
        spot("dear", 0.6, 0.95),
        spot("worse", 0.5, 0.94),
        spot("equal", 0.2, 0.90),
    )
    assert front([dear, best, cheap, worse, equal]) == [best, cheap, equal]
    assert front([worse]) == [worse]


FULL = {"none": options(0.5, control=True), **HALVES}


def full_rows() -> list[Row]:
    rows = in_full({"gelu": GELU, "relu": SAME, "annealed": BETTER})
    for step, share, fast in (
        ("none", 1.0, 1.0),
        ("a", 0.6, 0.7),
        ("b", 0.3, 0.4),
        ("c", 0.1, 0.2),
    ):
        rows += shifted(step, share, 0.8 + 0.1 * share, batch64=fast)
        rows += rows_of(step, dict.fromkeys(("gelu", "relu", "annealed"), (0.6, 0.7, 0.65)), BEFORE)
        for batch in (1, 64):
            ratios = dict.fromkeys(("gelu", "relu", "annealed"), (1 / fast, 1.1 / fast, 0.9 / fast))
            rows += rows_of(step, ratios, "latency_ratio", batch=batch)
        errors = dict.fromkeys(("gelu", "relu", "annealed"), (1e-15, 3e-15, 2e-15))
        rows += rows_of(step, errors, "equality_error")
        rows += rows_of(step, {"gelu": (4096.0,) * 3, "relu": (4000.0,) * 3}, "model_bytes")
    return rows


def declared(content: Run, name: str) -> list[list[str]]:
    """The texts of a table that the section declares."""
    (grid,) = [each for each in content.parts["prune"].details if each.name == name]
    return [[cell.text for cell in row] for row in grid.rows]


def test_costs_by_hand() -> None:
    lines = declared(content_of(full_rows(), FULL), "w-pruning-cost")
    left = [line for line in lines if line[1] == "MACs left" and line[3].startswith("30.0")]
    assert len(left) == 1
    times = [line for line in lines if line[1] == "latency unpruned over pruned"]
    assert {line[2] for line in times} == {"1", "64"}
    assert {2.5} in [{float(text.split()[0]) for text in line[3:]} for line in times]


def test_figures_have_a_panel_for_each_cost() -> None:
    content = content_of(full_rows(), FULL)
    (first,) = pareto_figures(part_of(content, "prune").tables[0])
    assert first.alt.startswith(
        "Accuracy against cost of pruned networks, w: fine-tuned, batch 64; fine-tuned; before"
        " fine-tuning;"
    )
    assert "dashes: as trained" in first.caption
    few = table_of(rows_of("a", {"gelu": GELU}), HALVES)
    assert [(each.svg, each.reason) for each in pareto_figures(few)] == [
        (None, "it takes two sparsities with an accuracy and a cost")
    ]


def test_one_seed_claims_nothing() -> None:
    rows = [
        *pruned("a", 0.6, {"gelu": (0.9,), "relu": (0.8,)}),
        *pruned("b", 0.3, {"gelu": (0.9,), "relu": (0.8,)}),
    ]
    section = part_of(content_of(rows, {"a": options(0.25), "b": options(0.5)}), "prune")
    assert marked(section.grids[0])[0] == [
        "25 %",
        "90.0; one seed",
        "80.0 Δ −10.0 (one seed, no interval)",
    ]
    area = next(each for each in areas(section.tables) if each.axis == MACS)
    assert (area.p, area.tone) == (None, "")
    assert area.difference.mean == pytest.approx(-0.1)


def test_a_step_that_failed_keeps_its_cell_and_its_reason() -> None:
    rows = pruned("a", 0.6, {"gelu": GELU})
    rows += [
        failure_row(job("relu", seed, "a", "prune"), Status.UNSUPPORTED, "nothing to prune")
        for seed in range(3)
    ]
    section = part_of(content_of(rows, {"a": options(0.25), "never": options(0.5)}), "prune")
    cell = section.grids[0].rows[0][2]
    assert (cell.text, cell.tone) == ("unsupported: nothing to prune", "lack")
    failed = [
        failure_row(job("gelu", seed, "a", "prune"), Status.FAILED, "no memory")
        for seed in range(3)
    ]
    section = part_of(
        content_of([*failed, *pruned("a", 0.6, {"relu": GELU})], {"a": options(0.25)}), "prune"
    )
    assert section.grids[0].rows[0][2].detail == "no gelu to compare with"
    assert (
        areas(section.tables)[0].reason
        == "the baseline has no accuracy beside the share of MACs left"
    )


CHAIN = {
    "accuracy": {},
    "prune": options(0.5),
    "w8": {"weight_bits": 8, "act_bits": 8},
    "w4": {"weight_bits": 4, "act_bits": 4},
    "w8-pruned": {"weight_bits": 8, "act_bits": 8},
    "w2-pruned": {"weight_bits": 2, "act_bits": 2},
    "export": {},
}
AFTER = {"w8-pruned": "prune", "w2-pruned": "prune", "export": "w8-pruned"}


def test_chains_beside_the_same_steps_on_the_unpruned_network() -> None:
    rows = [*in_full({"gelu": BETTER}), *pruned("prune", 0.3, {"gelu": GELU})]
    for step, values, size in (
        ("w8", BETTER, 100.0),
        ("w4", GELU, 50.0),
        ("w8-pruned", GELU, 30.0),
        ("w2-pruned", GELU, 10.0),
    ):
        rows += rows_of(step, {"gelu": values}, "integer_accuracy", "quantize")
        rows += rows_of(step, {"gelu": (size,) * 3}, "model_bytes", "quantize")
    rows += rows_of("export", {"gelu": (33.0,) * 3}, "model_bytes", "export")
    lost = "91.0 ± 2.5 % Δ −3.0 pp [−3.2, −2.8] ✗ worse"
    assert lines_of(rows, CHAIN, "w-pruning-chains", after=AFTER) == [
        ["prune", "accuracy", "accuracy", lost],
        ["prune → w8-pruned", "accuracy (integers only)", "w8", lost],
        ["prune → w8-pruned", "file size", "w8", "30 bytes Δ −70 bytes in all 3 seeds ✓ better"],
        ["prune → w2-pruned", "accuracy (integers only)", "–", "91.0 ± 2.5 %"],
        ["prune → w2-pruned", "file size", "–", "10 bytes"],
        ["prune → w8-pruned → export", "file size", "–", "33 bytes"],
    ]


def test_of_several_steps_that_do_the_same_none_is_the_twin() -> None:
    steps = {**CHAIN, "w4": CHAIN["w8"]}
    rows = [*pruned("prune", 0.3, {"gelu": GELU})]
    for step in ("w8", "w4", "w8-pruned"):
        rows += rows_of(step, {"gelu": GELU}, "integer_accuracy", "quantize")
    assert [row[2] for row in lines_of(rows, steps, "w-pruning-chains", after=AFTER)] == ["–", "–"]


def exact(variant: str, seed: int, constant: float, verdict: Verdict) -> list[Row]:
    metrics = [
        Metric("constant_units", constant, "count", NEUTRAL),
        Metric("off_units", 0.0, "count", NEUTRAL),
        Metric("removed_units", constant, "count", HIGHER),
        Metric("hidden_units", 64.0, "count", NEUTRAL),
        Metric("removed_share", constant / 64, "share", HIGHER),
        Metric("equality_error", 1e-9 * (1 + seed), "logit", LOWER),
        Metric("equality_bound", 1e-8 * (1 + seed), "logit", LOWER),
        Metric("equality", None, "verdict", NEUTRAL, {"method": "bounds"}, verdict=Verdict.HOLDS),
        Metric("equality", None, "verdict", NEUTRAL, {"method": "smt"}, verdict=verdict),
        Metric("accuracy", 0.9, "fraction", HIGHER),
        Metric("accuracy_drop", 0.0, "fraction", LOWER),
    ]
    return [row_of(each, job(variant, seed, "exact", "exact-prune")) for each in metrics]


def test_exact_removal_by_kind() -> None:
    rows = [row for seed in range(3) for row in exact("relu", seed, 4.0 * seed, Verdict.HOLDS)]
    rows += [row for seed in range(2) for row in exact("gelu", seed, 0.0, Verdict.HOLDS)]
    rows += exact("gelu", 2, 0.0, Verdict.UNKNOWN)
    rows += [failure_row(job("odd", 0, "exact", "exact-prune"), Status.UNSUPPORTED, "no bounds")]
    content = content_of(rows, {"exact": {}})
    lines = {line[0]: line[1:] for line in declared(content, "w-exact-removal")}
    gelu, relu, odd = (content.measured.variants.index(name) for name in ("gelu", "relu", "odd"))
    order = sorted([gelu, relu, odd], key=lambda place: place != gelu)
    assert lines["units removed in all"][order.index(relu)].startswith("4.0")
    assert lines["hidden units"][order.index(relu)].startswith("64")
    assert lines["share removed"][order.index(relu)].startswith("6.2")
    assert lines["units removed in all"][order.index(odd)] == "unsupported: no bounds"
    assert content.glance("w") == []
    assert (part_of(content, "prune").tables, part_of(content, "prune").rule) == ([], "")
