"""The report's section on exact verification: counts by hand, intervals against scipy, what is
said and what is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from report_workshop import Values, marked, metric_rows, part_of, read_run
from report_workshop import job as job_of
from scipy.stats import ttest_1samp

from evalsuite.contract import Direction, Metric, Verdict
from evalsuite.report.canvas import looks
from evalsuite.report.grids import Grid
from evalsuite.report.run import Run
from evalsuite.results import Row, Status, failure_row, row_of
from pipelines.smt.report.section import LEAST, _cactus, curve_points, exact_figures
from pipelines.smt.report.tables import GAP, VERIFIED, Bracket, Counted, ExactTable, exact_tables
from pipelines.smt.report.text import verified_grid

HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
HOLDS, VIOLATED, UNKNOWN, TIMEOUT = (
    Verdict.HOLDS,
    Verdict.VIOLATED,
    Verdict.UNKNOWN,
    Verdict.TIMEOUT,
)
BASE = (0.60, 0.66, 0.63)
STEPS = [
    {"name": "int8", "stage": "quantize"},
    {"name": "smt-int", "stage": "smt", "after": "int8"},
]


def job(variant: str, seed: int, step: str = "smt", workload: str = "w") -> dict[str, object]:
    return job_of(variant, seed, step, "smt", workload)


def rows_of(
    name: str,
    variants: Values,
    *,
    step: str = "smt",
    workload: str = "w",
    method: str = "search",
    **setting: Any,
) -> list[Row]:
    return metric_rows(name, variants, step, "smt", workload, **setting, method=method)


def verified(
    variants: Mapping[str, Sequence[float | None]], eps: float = 0.125, **more: Any
) -> list[Row]:
    return rows_of("verified_accuracy", variants, eps=eps, **more)


def said(
    variant: str,
    seed: int,
    verdicts: Sequence[tuple[Verdict, str, float | None]],
    *,
    step: str = "smt",
    method: str = "search",
    **setting: float,
) -> list[Row]:
    """Verdicts of the samples 0, 1, ... with what decided them and their seconds."""
    told = {**(setting or {"eps": 0.125}), "method": method}
    rows = []
    for sample, (verdict, reason, seconds) in enumerate(verdicts):
        metric = Metric(
            "robustness",
            None,
            "verdict",
            NEUTRAL,
            told,
            sample=sample,
            verdict=verdict,
            reason=reason,
        )
        rows.append(row_of(metric, job(variant, seed, step)))
        if seconds is not None:
            timed = Metric("query_seconds", seconds, "s", LOWER, told, sample=sample, timing=True)
            rows.append(row_of(timed, job(variant, seed, step)))
    return rows


def table_of(rows: list[Row], **entries: Any) -> ExactTable:
    (table,) = exact_tables(read_run(rows, **entries))
    return table


def near(values: Sequence[float], *by: float) -> tuple[float, ...]:
    return tuple(value + each for value, each in zip(values, by, strict=True))


def integers(variant: str, seed: int, scale: float, share: float) -> list[Row]:
    setting = {"eps": 2 * scale, "steps": 2}
    rows = said(
        variant, seed, [(HOLDS, "bounds", None)], step="smt-int", method="integer", **setting
    )
    place = job(variant, seed, "smt-int")
    told = {**setting, "method": "integer"}
    rows.append(row_of(Metric("verified_accuracy", share, "fraction", HIGHER, told), place))
    rows.append(row_of(Metric("nodes", 7.0, "count", LOWER, told), place))
    return [
        *rows,
        row_of(Metric("clean_accuracy", 0.9, "fraction", HIGHER, {"method": "integer"}), place),
    ]


def integer_rows() -> list[Row]:
    """Each network with a grid of its own: the same steps are other radii."""
    return [
        row
        for i, variant in enumerate(("gelu", "relu"))
        for seed in range(3)
        for row in integers(
            variant, seed, 0.01 + 0.001 * i + 0.0001 * seed, BASE[seed] + i * (0.1 + 0.01 * seed)
        )
    ]


FIVE = [
    (HOLDS, "bounds", 0.02),
    (HOLDS, "search", 0.7),
    (VIOLATED, "falsifier", 0.01),
    (UNKNOWN, "rounding", 0.1),
    (TIMEOUT, "time limit", 5.0),
]


def test_verdicts_are_counted_over_seeds_and_radii() -> None:
    rows = [
        *verified({"gelu": (0.4, 0.4), "relu": (1.0, None)}),
        *verified({"gelu": (0.2, 0.2)}, eps=0.25),
    ]
    rows += [
        *said("gelu", 0, FIVE),
        *said("gelu", 1, FIVE[:3]),
        *said("gelu", 0, FIVE[2:], eps=0.25),
    ]
    rows += said("relu", 0, [(HOLDS, "bounds", 0.1)] * 2)
    table = table_of(rows)
    assert table.verdicts["gelu", 0.125] == Counted(
        4, 2, 2, Counter({"bounds": 2, "falsifier": 2, "search": 2})
    )
    assert table.counted("gelu") == Counted(
        4, 3, 4, Counter({"bounds": 2, "falsifier": 3, "search": 2})
    )
    _, counts = part_of(read_run(rows), "verdicts").details
    assert [row[2:] for row in marked(counts)] == [
        ["gelu", "0.125", "search", "4", "2", "1", "1", "0", "8", "2", ""],
        ["gelu", "0.25", "search", "0", "1", "1", "1", "0", "3", "1", ""],
        ["relu", "0.125", "search", "2", "0", "0", "0", "0", "2", "1", ""],
    ]


def test_the_upper_limit_is_shown_only_where_something_is_undecided() -> None:
    rows = [*verified({"gelu": BASE}), *verified({"gelu": BASE}, eps=0.25)]
    for eps, share in ((0.125, 0.0), (0.25, 0.1)):
        rows += rows_of("undecided_fraction", {"gelu": (share,) * 3}, eps=eps)
        rows += rows_of("violated_fraction", {"gelu": (0.3 - share,) * 3}, eps=eps)
    shown = [(row[0], row[1], row[2]) for row in marked(verified_grid(table_of(rows)))]
    assert [row[:2] for row in shown] == [
        ("1/8", "verified"),
        ("1/4", "verified"),
        ("1/4", "not violated"),
        ("1/4", "undecided"),
    ]
    assert shown[2][2] == "80.0 ± 0"


@pytest.mark.parametrize("given", [True, False])
def test_the_gap_is_what_bounds_leave_open(given: bool) -> None:
    rows = verified({"gelu": BASE, "relu": BASE})
    rows += rows_of(
        "bounds_accuracy", {"gelu": near(BASE, -0.3, -0.2, -0.25), "relu": BASE}, eps=0.125
    )
    if given:
        rows += rows_of(
            "exactness_gap", {"gelu": (0.3, 0.2, 0.25), "relu": (0.0, 0.0, 0.0)}, eps=0.125
        )
    table = table_of(rows)
    assert table.values("gelu", GAP, 0.125) == pytest.approx({0: 0.3, 1: 0.2, 2: 0.25})
    cell = table.compared("relu", GAP, 0.125)
    assert (cell.resolved, cell.tone) == (True, "")
    assert [row[1] for row in marked(verified_grid(table))] == [
        "verified",
        "by bounds alone",
        "gap",
    ]


def test_more_that_is_decided_is_not_more_robust() -> None:
    up = near(BASE, 0.10, 0.11, 0.09)
    verified_rows = verified({"gelu": BASE, "relu": up})
    violated: dict[str, Sequence[float]] = {
        "gelu": [0.8 - each for each in BASE],
        "relu": [0.9 - each for each in up],
    }
    # All of gelu's are decided, and so relu's open ones can only add to its lead.
    violated = {"gelu": [1 - each for each in BASE], "relu": [0.9 - each for each in up]}
    rows = [*verified_rows, *rows_of("violated_fraction", violated, eps=0.125)]
    rows += rows_of("undecided_fraction", {"gelu": (0.0,) * 3, "relu": (0.1,) * 3}, eps=0.125)
    marks = {row[1].text: row[3].tone for row in verified_grid(table_of(rows)).rows}
    assert (marks["verified"], marks["not violated"]) == ("better", "better")


def test_a_lower_end_alone_marks_nothing() -> None:
    up = near(BASE, 0.10, 0.11, 0.09)
    rows = verified({"gelu": BASE, "relu": up})
    rows += rows_of(
        "violated_fraction",
        {"gelu": [0.8 - x for x in BASE], "relu": [1 - x for x in up]},
        eps=0.125,
    )
    rows += rows_of("undecided_fraction", {"gelu": (0.2,) * 3, "relu": (0.0,) * 3}, eps=0.125)
    content = read_run(rows)
    (table,) = part_of(content, "exact").tables
    assert table.compared("relu", VERIFIED, 0.125).tone == "better"
    shown = verified_grid(table).rows
    assert {cell.tone for row in shown for cell in row} <= {"", "better"}
    assert [row[3].tone for row in shown if row[1].text in ("verified", "not violated")] == ["", ""]
    # Nor is it among the differences that the rest of the report counts and lists.
    assert not set(content.whole["metric"]) & {"verified_accuracy", "violated_fraction"}
    cell = content.matrices[0].rows[0].cells["w"]
    least = ttest_1samp(np.subtract(up, BASE) - 0.2, 0.0).confidence_interval(0.95)
    most = ttest_1samp(np.subtract(up, BASE), 0.0).confidence_interval(0.95)
    assert (cell.estimate.low, cell.estimate.high) == pytest.approx((least.low, most.high))
    assert (cell.p, cell.reading.value, cell.needed) == (1.0, "not resolved", None)
    assert cell.words == "not resolved: questions were left open"


def measured_distances(values: Mapping[str, Sequence[float]], width: float = 0.0) -> list[Row]:
    """Brackets of one width for all."""
    upper = {name: near(every, *[width] * len(every)) for name, every in values.items()}
    return [*rows_of("adversarial_distance", values), *rows_of("adversarial_distance_upper", upper)]


def distance_tones(rows: Sequence[Row]) -> dict[str, str]:
    """Variant -> how its proven distance is marked in the report."""
    grids = read_run(rows).parts["exact"].grids
    (grid,) = [each for each in grids if each.name == "adversarial-distance"]
    assert [row[1].text for row in grid.rows][:1] == ["proven"]
    return dict(zip(grid.columns[2:], (cell.tone for cell in grid.rows[0][2:]), strict=True))


def distance_bracket(rows: Sequence[Row], variant: str = "relu") -> Bracket:
    """Where the difference of a variant's mean distance lies."""
    bracket: Bracket = table_of(rows).bracket(variant, "adversarial_distance")
    return bracket


def test_distances_are_adjusted_by_holm() -> None:
    base = (0.050, 0.052, 0.049, 0.051)
    gaps = {
        "relu": (0.010, 0.012, 0.009, 0.011),
        "annealed": (0.003, 0.001, 0.004, 0.002),
        "flat": (0.1,) * 4,
    }
    given = {"gelu": base, **{name: near(base, *each) for name, each in gaps.items()}}
    rows = [*verified({"gelu": (0.5,) * 4}), *measured_distances(given)]
    for name in ("relu", "annealed"):
        wanted = ttest_1samp(gaps[name], 0.0).pvalue
        assert distance_bracket(rows, name).p == pytest.approx(wanted)
    assert distance_bracket(rows, "flat").p is None  # The same in every seed is no test.
    tones = distance_tones(rows)
    # That of annealed, 0.03, is left by Holm's adjustment, and not as low as four seeds ask for.
    assert tones == {"gelu": "", "relu": "better", "annealed": "", "flat": ""}


def test_distances_of_open_brackets_are_told_from_end_to_end() -> None:
    """Both ends of relu lie 0.011 above gelu's, but its bracket and gelu's overlap: no
    difference is resolved.
    """
    base, up = (0.050, 0.052, 0.049, 0.051), (0.060, 0.064, 0.058, 0.062)
    rows = [*verified({"gelu": BASE}), *measured_distances({"gelu": base, "relu": up}, 0.02)]
    assert (distance_bracket(rows).p, distance_tones(rows)["relu"]) == (1.0, "")
    narrow = measured_distances({"gelu": base, "relu": up}, 0.002)
    wanted = ttest_1samp(np.subtract(up, base) - 0.002, 0.0).pvalue
    assert distance_bracket(narrow).p == pytest.approx(wanted)
    assert distance_tones(narrow)["relu"] == "better"
    # No counterexample: the ends are unknown.
    alone = [*rows_of("adversarial_distance", {"gelu": base, "relu": up})]
    assert (distance_bracket(alone).p, distance_tones(alone)["relu"]) == (None, "")


def test_two_p_values_that_holm_leaves_unresolved() -> None:
    base = (0.05, 0.06, 0.05, 0.07, 0.06, 0.05, 0.07, 0.05)
    gaps = (0.004, -0.003, 0.003, 0.0045, 0.005, -0.001, 0.004, 0.003)
    p = ttest_1samp(gaps, 0.0).pvalue
    assert 0.025 < p < 0.05
    same = {name: near(base, *gaps) for name in ("relu", "annealed")}
    same["annealed"] = near(base, *(gap * 1.001 for gap in gaps))
    tones = distance_tones(measured_distances({"gelu": base, **same}))
    assert tones == {"gelu": "", "relu": "", "annealed": ""}
    alone = {"gelu": base, "relu": same["relu"]}
    assert distance_tones(measured_distances(alone))["relu"] == "better"


def test_radii_in_grid_steps_pair_networks_with_other_grids() -> None:
    content = read_run(integer_rows(), steps=STEPS)
    (table,) = part_of(content, "exact").tables
    assert (table.label, table.radii, table.method) == (
        "w, in integers, after int8",
        (2.0,),
        "integer",
    )
    assert table.radius(2.0) == "2 steps (ε = 0.02 to 0.022)"
    cell = table.compared("relu", VERIFIED, 2.0)
    assert (cell.difference.n, cell.difference.mean) == (3, pytest.approx(0.11))
    assert table.over_radii("gelu", "nodes") == {0: 7.0, 1: 7.0, 2: 7.0}
    assert marked(verified_grid(table))[1][0] == "2 (0.02 to 0.022)"
    assert [row[1] for row in marked(verified_grid(table))] == ["correct", "verified"]
    # A line of one network's own radius compares with nothing.
    assert (
        set(content.compared["setting"])
        > set(content.whole["setting"])
        == {"", "method=integer"} - {""}
    )
    _, counts = part_of(content, "verdicts").details
    assert list(counts.frame["eps"]) == ["2 grid steps"] * 2


def test_grid_steps_in_float32_read_as_fractions_of_255() -> None:
    scale = float(np.float32(1 / 255))
    table = table_of([*integers("gelu", 0, scale, 0.5), *integers("gelu", 1, scale, 0.5)])
    assert table.radius(2.0) == "2 steps (ε = 2/255)"


def test_two_methods_of_one_workload_have_tables_of_their_own() -> None:
    rows = [*verified({"gelu": BASE}), *verified({"gelu": BASE}, step="smt-z3", method="z3")]
    tables = part_of(read_run(rows), "exact").tables
    assert [(each.label, each.method) for each in tables] == [
        ("w, smt", "search"),
        ("w, smt-z3", "z3"),
    ]


def grid_of(rows: list[Row], name: str) -> Grid:
    (grid,) = [each for each in part_of(read_run(rows), "exact").grids if each.name == name]
    return grid


def unproven(variant: str, reason: str, workload: str = "w") -> Row:
    lack = Metric(
        "proofs_checked", None, "count", HIGHER, {"eps": 0.125, "method": "search"}, reason=reason
    )
    return row_of(lack, job(variant, 0, workload=workload))


def test_proofs_are_counted_against_what_holds() -> None:
    rows = [
        *verified({"gelu": (0.5,), "relu": (0.5,)}),
        *said("gelu", 0, FIVE[:2]),
        *said("relu", 0, FIVE[:2]),
    ]
    rows += rows_of("proofs_checked", {"relu": (2,)}, eps=0.125)
    rows += rows_of("proof_bytes", {"relu": (3000,)}, eps=0.125)  # Their mean.
    rows.append(unproven("gelu", "GELU has none"))
    (grid,) = [each for each in read_run(rows).parts["exact"].details if "proofs" in each.name]
    checked, size = marked(grid)
    assert checked[0] == "checked proofs"
    assert checked[-2].endswith("GELU has none")
    assert (checked[-1].split("; ")[0], size[-1].split("; ")[0]) == ("2", "3.00")


def test_cost_splits_what_was_decided() -> None:
    rows = [
        *verified({"gelu": (0.4,)}),
        *said("gelu", 0, FIVE),
        *rows_of("par2", {"gelu": (2.166,)}, eps=0.125),
    ]
    rows += rows_of("nodes", {"gelu": (12.0,)}, eps=0.125)
    grid = grid_of(rows, "exact-cost")
    assert grid.columns == (
        "workload",
        "variant",
        "decided",
        "bounds · attack · search",
        "PAR-2",
        "median",
        "nodes",
    )
    assert marked(grid) == [["w", "gelu", "3 of 5 (60 %)", "1 · 1 · 1", "2.17 s", "20.0 ms", "12"]]


def test_clocks_have_no_verdict() -> None:
    rows = verified({"gelu": BASE, "relu": BASE})
    rows += rows_of("par2", {"gelu": (1.0, 1.1, 0.9), "relu": (0.1, 0.12, 0.09)}, eps=0.125)
    rows += [*said("gelu", 0, FIVE), *said("relu", 0, FIVE)]
    compared = read_run(rows).compared
    assert set(compared.loc[compared["metric"] == "par2", "better"]) == {""}


def test_the_cactus_is_of_decided_questions_in_the_order_of_their_seconds() -> None:
    assert curve_points([(0.5, True), (5.0, False), (0.0, True), (0.2, True)]) == (
        [1, 2, 3],
        [LEAST, 0.2, 0.5],
    )
    rows = [*verified({"gelu": (0.4, 0.4)}), *said("gelu", 0, FIVE), *said("gelu", 1, FIVE[:1])]
    table = table_of(rows, options={"smt": {"query_time_limit": 5.0}})
    assert sorted(table.times["gelu"]) == sorted(
        (seconds, v in (HOLDS, VIOLATED)) for v, _, seconds in [*FIVE, FIVE[0]]
    )
    axes = Figure().subplots()
    _cactus(axes, table, looks(["gelu"]))
    lines = axes.get_lines()
    assert [list(each) for each in lines[0].get_data()] == [[1, 2, 3, 4], [0.01, 0.02, 0.02, 0.7]]
    assert list(lines[2].get_xdata()) == [6, 6]  # All asked.
    assert list(lines[3].get_ydata()) == [5.0, 5.0]  # The limit.
    counted = {"smt": {"query_time_limit": 5.0, "nodes": 200}}
    assert table_of(rows, options=counted).limit is None
    (drawing,) = exact_figures(table)
    assert "no verdicts" in drawing.caption
    assert "dashed" not in drawing.caption


def test_figures_have_the_panels_that_there_are_data_for() -> None:
    rows = [*verified({"gelu": BASE}), *verified({"gelu": BASE}, eps=0.25)]
    (drawing,) = exact_figures(table_of(rows))
    assert "Verified accuracy" in drawing.caption
    assert "clock" not in drawing.caption
    assert exact_figures(table_of(verified({"gelu": BASE}))) == []


def test_what_failed_says_why() -> None:
    rows = [
        failure_row(job("gelu", seed), Status.UNSUPPORTED, "no exact encoding") for seed in range(2)
    ]
    section = part_of(read_run(rows), "exact")
    assert section.grids == []


FRACTIONS = {
    "same_class_fraction": Direction.HIGHER,
    "other_class_fraction": Direction.LOWER,
    "class_undecided_fraction": Direction.LOWER,
}
OPEN = (UNKNOWN, TIMEOUT, Verdict.UNSUPPORTED)


def classes(
    variant: str, seed: int, verdicts: Sequence[Verdict], steps: int = 2, eps: float = 0.02
) -> list[Row]:
    """What the stage says of the classes of one network at one radius."""
    setting = {"eps": eps, "steps": steps, "method": "float and integer"}
    place = job(variant, seed, "smt-int")
    rows = [
        row_of(
            Metric(
                "same_class",
                None,
                "verdict",
                Direction.NEUTRAL,
                setting,
                sample=i,
                verdict=each,
                reason="b",
            ),
            place,
        )
        for i, each in enumerate(verdicts)
    ]
    shares = zip(FRACTIONS.items(), ((HOLDS,), (VIOLATED,), OPEN), strict=True)
    return rows + [
        row_of(
            Metric(
                name,
                sum(each in own for each in verdicts) / len(verdicts),
                "fraction",
                way,
                setting,
            ),
            place,
        )
        for (name, way), own in shares
    ]


def of(
    holds: int, violated: int = 0, unknown: int = 0, timeout: int = 0, unsupported: int = 0
) -> list[Verdict]:
    return (
        [HOLDS] * holds
        + [VIOLATED] * violated
        + [UNKNOWN] * unknown
        + [TIMEOUT] * timeout
        + [Verdict.UNSUPPORTED] * unsupported
    )


def differing() -> list[Row]:
    """Each seed with a grid of its own; gelu 5 to 7 of 10, relu 8 or 9, at two radii."""
    rows = []
    for seed in range(3):
        eps = 0.02 + 0.001 * seed
        rows += classes("gelu", seed, of(5 + seed, 2, 1, 1 - (seed == 2), 1 - (seed > 0)), eps=eps)
        rows += classes("relu", seed, of(8 + (seed > 0), 1, 1 - (seed > 0)), eps=eps)
        rows += classes("gelu", seed, of(9, 1), steps=4, eps=2 * eps)
        rows += classes("relu", seed, of(9, 1), steps=4, eps=2 * eps)
    return rows


def class_grid(content: Run) -> Grid:
    (grid,) = [
        each for each in part_of(content, "exact").grids if each.name == "w-smt-int-same-class"
    ]
    return grid


def test_shares_of_one_class_are_paired_by_seed() -> None:
    content = read_run([*integer_rows(), *differing()], steps=STEPS)
    grid = class_grid(content)
    assert grid.columns == ("grid steps (ε)", "samples", "gelu", "relu")
    assert [(row[0].text, row[1].text) for row in grid.rows] == [
        ("2 (0.02 to 0.022)", "same class"),
        ("2 (0.02 to 0.022)", "another class"),
        ("2 (0.02 to 0.022)", "undecided"),
        ("4 (0.04 to 0.044)", "same class"),
        ("4 (0.04 to 0.044)", "another class"),
    ]
    gelu, relu = (0.5, 0.6, 0.7), (0.8, 0.9, 0.9)
    interval = ttest_1samp(np.subtract(relu, gelu), 0.0).confidence_interval(0.95)
    low, high = (f"{100 * each:.1f}" for each in interval)
    assert interval.low > 0
    assert grid.rows[0][3].detail == f"Δ +26.7 [{low}, {high}]"
    # 30, 20 and 20 points, of which gelu's open ones could take 30, 20 and 10.
    assert [row[3].tone for row in grid.rows] == ["", "", "better", "", ""]
    own = grid.frame[(grid.frame["metric"] == "same_class_fraction") & (grid.frame["radius"] == 2)]
    assert list(own["mean"]) == pytest.approx([np.mean(gelu), np.mean(relu)])
    # What is 0 everywhere has no line in the page, and one in the file.
    assert set(grid.frame.loc[grid.frame["radius"] == 4, "metric"]) == set(FRACTIONS)


def test_classes_are_no_table_of_robustness() -> None:
    plain = part_of(read_run(integer_rows(), steps=STEPS), "exact")
    section = part_of(read_run([*integer_rows(), *differing()], steps=STEPS), "exact")
    rest = [each for each in section.grids if each.name != "w-smt-int-same-class"]
    assert [(each.name, marked(each)) for each in rest] == [
        (each.name, marked(each)) for each in plain.grids
    ]
    assert [each.label for each in section.tables] == ["w, in integers, after int8"]
    assert [marked(each) for each in section.details] == [marked(each) for each in plain.details]
    assert [each.name for table in section.tables for each in exact_figures(table)] == [
        each.name for table in plain.tables for each in exact_figures(table)
    ]


def test_single_questions_that_cannot_be_asked_are_open() -> None:
    rows = [
        *verified({"gelu": (0.5,)}),
        *said("gelu", 0, [(HOLDS, "", None), (Verdict.UNSUPPORTED, "no", None)]),
    ]
    _, counts = part_of(read_run(rows), "verdicts").details
    assert marked(counts)[0][5:11] == ["1", "0", "0", "0", "1", "2"]
