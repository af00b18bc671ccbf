"""The report's section on exact verification: counts by hand, intervals against scipy, what is said and what is not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from exact_rows import (
    BASE,
    HIGHER,
    HOLDS,
    LOWER,
    STEPS,
    TIMEOUT,
    UNKNOWN,
    VIOLATED,
    finding_of,
    integer_rows,
    integers,
    job,
    near,
    rows_of,
    said,
    table_of,
    verified,
)
from matplotlib.figure import Figure
from report_workshop import marked, page_of, part_of, read_run, write_run
from scipy.stats import ttest_1samp

from evalsuite.contract import Metric
from evalsuite.report import write_report
from evalsuite.report.canvas import looks
from evalsuite.report.grids import Grid
from evalsuite.report.section import Finding
from evalsuite.results import Row, Status, failure_row, row_of
from pipelines.smt.report.section import LEAST, _cactus, curve_points, exact_figures
from pipelines.smt.report.tables import GAP, VERIFIED, Counted, ExactTable
from pipelines.smt.report.text import distances, verified_grid


def swapped(variant: str, seeds: int = 3) -> list[Row]:
    """What tells that ReLU took GELU's place."""
    return [
        row_of(Metric("swap_drop", 0.1, "fraction", LOWER), job(variant, seed) | {"step": "accuracy",
                                                                              "stage": "accuracy"})
        for seed in range(seeds)
    ]  # fmt: skip


FIVE = [(HOLDS, "bounds", 0.02), (HOLDS, "search", 0.7), (VIOLATED, "falsifier", 0.01), (UNKNOWN, "rounding", 0.1),
        (TIMEOUT, "time limit", 5.0)]  # fmt: skip


def test_verdicts_are_counted_over_seeds_and_radii(tmp_path: Path) -> None:
    rows = [*verified({"gelu": (0.4, 0.4), "relu": (1.0, None)}), *verified({"gelu": (0.2, 0.2)}, eps=0.25)]
    rows += [*said("gelu", 0, FIVE), *said("gelu", 1, FIVE[:3]), *said("gelu", 0, FIVE[2:], eps=0.25)]
    rows += said("relu", 0, [(HOLDS, "bounds", 0.1)] * 2)
    table = table_of(tmp_path, rows)
    assert table.verdicts["gelu", 0.125] == Counted(4, 2, 2, Counter({"bounds": 2, "falsifier": 2, "search": 2}))
    assert table.counted("gelu") == Counted(4, 3, 4, Counter({"bounds": 2, "falsifier": 3, "search": 2}))
    _, counts = part_of(read_run(tmp_path / "told", rows), "verdicts").details
    assert [row[2:] for row in marked(counts)] == [
        ["gelu", "0.125", "search", "4", "2", "1", "1", "0", "8", "2", ""],
        ["gelu", "0.25", "search", "0", "1", "1", "1", "0", "3", "1", ""],
        ["relu", "0.125", "search", "2", "0", "0", "0", "0", "2", "1", ""],
    ]


def test_differences_in_verified_accuracy_against_scipy(tmp_path: Path) -> None:
    other = near(BASE, 0.11, 0.05, 0.09)
    cell = table_of(tmp_path, verified({"gelu": BASE, "relu": other})).compared("relu", VERIFIED, 0.125)
    interval = ttest_1samp(np.subtract(other, BASE), 0.0).confidence_interval(0.95)
    assert (cell.difference.low, cell.difference.high) == pytest.approx((interval.low, interval.high))
    assert cell.tone == "better"


def test_the_upper_limit_is_shown_only_where_something_is_undecided(tmp_path: Path) -> None:
    rows = [*verified({"gelu": BASE}), *verified({"gelu": BASE}, eps=0.25)]
    for eps, share in ((0.125, 0.0), (0.25, 0.1)):
        rows += rows_of("undecided_fraction", {"gelu": (share,) * 3}, eps=eps)
        rows += rows_of("violated_fraction", {"gelu": (0.3 - share,) * 3}, eps=eps)
    shown = [(row[0], row[1], row[2]) for row in marked(verified_grid(table_of(tmp_path, rows)))]
    assert [row[:2] for row in shown] == [
        ("1/8", "verified"), ("1/4", "verified"), ("1/4", "not violated"), ("1/4", "undecided"),
    ]  # fmt: skip
    assert shown[2][2] == "80.0 ± 0"


@pytest.mark.parametrize("given", [True, False])
def test_the_gap_is_what_bounds_leave_open(tmp_path: Path, given: bool) -> None:
    rows = verified({"gelu": BASE, "relu": BASE})
    rows += rows_of("bounds_accuracy", {"gelu": near(BASE, -0.3, -0.2, -0.25), "relu": BASE}, eps=0.125)
    if given:
        rows += rows_of("exactness_gap", {"gelu": (0.3, 0.2, 0.25), "relu": (0.0, 0.0, 0.0)}, eps=0.125)
    table = table_of(tmp_path, rows)
    assert table.values("gelu", GAP, 0.125) == pytest.approx({0: 0.3, 1: 0.2, 2: 0.25})
    cell = table.compared("relu", GAP, 0.125)
    assert cell.resolved
    assert cell.tone == ""
    assert [row[1] for row in marked(verified_grid(table))] == ["verified", "by bounds alone", "gap"]
    told = " ".join(part_of(read_run(tmp_path / "told", rows), "exact").findings[-1].sentences)
    assert (
        "at most: gelu 25.0 pp at ε = 1/8, relu 0; of 1 testable difference to gelu's gap, what was left open counted "
        "both ways, 1 (0 larger and 1 smaller) resolved"
    ) in told
    assert [row[1] for row in marked(verified_grid(table_of(tmp_path / "none", verified({"gelu": BASE}))))] == [
        "verified"
    ]


def test_more_that_is_decided_is_not_more_robust(tmp_path: Path) -> None:
    up = near(BASE, 0.10, 0.11, 0.09)
    verified_rows = verified({"gelu": BASE, "relu": up})
    violated: dict[str, Sequence[float]] = {"gelu": [0.8 - each for each in BASE], "relu": [0.9 - each for each in up]}
    undecided = rows_of("undecided_fraction", {"gelu": (0.2, 0.2, 0.2), "relu": (0.1, 0.1, 0.1)}, eps=0.125)
    same = finding_of(
        tmp_path / "same", [*verified_rows, *undecided, *rows_of("violated_fraction", violated, eps=0.125)]
    )
    assert same.headline == (
        "No variant is shown to be verified more than gelu: of 1 testable difference in verified accuracy, open "
        "questions counted both ways, none resolved."
    )
    # All of gelu's are decided, and so relu's open ones can only add to its lead.
    violated = {"gelu": [1 - each for each in BASE], "relu": [0.9 - each for each in up]}
    rows = [*verified_rows, *rows_of("violated_fraction", violated, eps=0.125)]
    rows += rows_of("undecided_fraction", {"gelu": (0.0,) * 3, "relu": (0.1,) * 3}, eps=0.125)
    both = finding_of(tmp_path / "both", rows)
    assert both.headline.startswith("Verified more than gelu: relu (at 1 radius): of 1 testable difference")
    told = next(each for each in both.sentences if each.startswith("relu, verified accuracy: at"))
    assert told.startswith("relu, verified accuracy: at ε = 1/8 higher +10.0 to +20.0 pp [7.5, 22.5] (Holm's p ")
    marks = {row[1].text: row[3].tone for row in grid_of(table_of(tmp_path / "marks", rows)).rows}
    assert (marks["verified"], marks["not violated"]) == ("better", "better")


def grid_of(table: ExactTable) -> Grid:
    grid = verified_grid(table)
    assert grid is not None
    return grid


def test_a_lower_end_alone_marks_nothing(tmp_path: Path) -> None:
    up = near(BASE, 0.10, 0.11, 0.09)
    rows = verified({"gelu": BASE, "relu": up})
    rows += rows_of("violated_fraction", {"gelu": [0.8 - x for x in BASE], "relu": [1 - x for x in up]}, eps=0.125)
    rows += rows_of("undecided_fraction", {"gelu": (0.2,) * 3, "relu": (0.0,) * 3}, eps=0.125)
    content = read_run(tmp_path, rows)
    (table,) = part_of(content, "exact").tables
    assert table.compared("relu", VERIFIED, 0.125).tone == "better"
    assert {cell.tone for row in grid_of(table).rows for cell in row} <= {"", "better"}
    assert [row[3].tone for row in grid_of(table).rows if row[1].text in ("verified", "not violated")] == ["", ""]
    # Nor is it among the differences that the rest of the report counts and lists.
    assert not set(content.whole["metric"]) & {"verified_accuracy", "violated_fraction"}
    cell = content.matrices[0].rows[0].cells["w"]
    least = ttest_1samp(np.subtract(up, BASE) - 0.2, 0.0).confidence_interval(0.95)
    most = ttest_1samp(np.subtract(up, BASE), 0.0).confidence_interval(0.95)
    assert (cell.estimate.low, cell.estimate.high) == pytest.approx((least.low, most.high))
    assert (cell.p, cell.reading.value, cell.needed) == (1.0, "not resolved", None)
    assert cell.words == "not resolved: questions were left open"


def test_what_is_not_resolved_is_said_so(tmp_path: Path) -> None:
    found = finding_of(tmp_path, verified({"gelu": BASE, "relu": near(BASE, 0.05, -0.05, 0.01)}))
    assert found.headline.startswith("No variant is shown to be verified more than gelu: of 1 testable difference")
    assert found.headline.endswith("none resolved.")
    assert not any("resolved" in each for each in found.sentences)
    single = finding_of(tmp_path / "one", verified({"gelu": (0.5,), "relu": (0.6,)}))
    assert single.headline.startswith("No verified accuracy can be compared with gelu's over several seeds")
    constant = finding_of(tmp_path / "constant", verified({"gelu": (0.5, 0.5), "relu": (0.75, 0.75)}))
    assert "the differences are the same in every seed" in constant.headline


def measured_distances(values: Mapping[str, Sequence[float]], width: float = 0.0) -> list[Row]:
    """Brackets of one width for all."""
    upper = {name: near(every, *[width] * len(every)) for name, every in values.items()}
    return [*rows_of("adversarial_distance", values), *rows_of("adversarial_distance_upper", upper)]


def test_distances_are_adjusted_by_holm(tmp_path: Path) -> None:
    base = (0.050, 0.052, 0.049, 0.051)
    gaps = {"relu": (0.010, 0.012, 0.009, 0.011), "annealed": (0.003, 0.001, 0.004, 0.002), "flat": (0.1,) * 4}
    given = {"gelu": base, **{name: near(base, *each) for name, each in gaps.items()}}
    rows = [*verified({"gelu": (0.5,) * 4}), *measured_distances(given)]
    section = part_of(read_run(tmp_path, rows), "exact")
    found = {each.variant: each for _, each in distances(section.tables)}
    first, second = (ttest_1samp(gaps[name], 0.0).pvalue for name in ("relu", "annealed"))
    assert found["relu"].p_holm == pytest.approx(2 * first)
    assert found["annealed"].p_holm == pytest.approx(max(2 * first, second))
    assert found["flat"].p_holm is None  # The same in every seed is no test.
    assert (found["relu"].tone, found["annealed"].tone) == ("better", "better")
    (grid,) = [each for each in section.grids if each.name == "adversarial-distance"]
    assert [row[1].text for row in grid.rows] == ["proven", "counterexample"]
    tones = dict(zip(grid.columns[2:], (cell.tone for cell in grid.rows[0][2:]), strict=True))
    assert tones == {"gelu": "", "relu": "better", "annealed": "better", "flat": ""}
    (told,) = [each for each in section.findings[-1].sentences if "adversarial distance" in each]
    assert "relu +0.011" in told
    assert told.count("larger") == 2


def test_distances_of_open_brackets_are_told_from_end_to_end(tmp_path: Path) -> None:
    """Both ends of relu lie 0.011 above gelu's, but its bracket and gelu's overlap: no difference is resolved."""
    base, up = (0.050, 0.052, 0.049, 0.051), (0.060, 0.064, 0.058, 0.062)
    rows = [*verified({"gelu": BASE}), *measured_distances({"gelu": base, "relu": up}, 0.02)]
    wide = part_of(read_run(tmp_path / "wide", rows), "exact")
    (found,) = (each for _, each in distances(wide.tables))
    assert (found.p_holm, found.tone) == (1.0, "")
    assert "relu −0.0095 to +0.0305 [" in next(each for each in wide.findings[-1].sentences if "distance" in each)
    narrow = part_of(read_run(tmp_path / "narrow", measured_distances({"gelu": base, "relu": up}, 0.002)), "exact")
    (found,) = (each for _, each in distances(narrow.tables))
    assert found.p == pytest.approx(ttest_1samp(np.subtract(up, base) - 0.002, 0.0).pvalue)
    assert found.tone == "better"
    alone = [*rows_of("adversarial_distance", {"gelu": base, "relu": up})]  # No counterexample: the ends are unknown.
    (found,) = (each for _, each in distances(part_of(read_run(tmp_path / "none", alone), "exact").tables))
    assert (found.p_holm, found.tone) == (None, "")


def test_two_p_values_that_holm_leaves_unresolved(tmp_path: Path) -> None:
    base, gaps = (0.05, 0.06, 0.05, 0.07), (0.004, 0.0005, 0.003, 0.0035)
    p = ttest_1samp(gaps, 0.0).pvalue
    assert 0.025 < p < 0.05
    same = {name: near(base, *gaps) for name in ("relu", "annealed")}
    section = part_of(read_run(tmp_path, measured_distances({"gelu": base, **same})), "exact")
    assert [(each.tone, each.p_holm) for _, each in distances(section.tables)] == [("", pytest.approx(2 * p))] * 2


def test_radii_in_grid_steps_pair_networks_with_other_grids(tmp_path: Path) -> None:
    content = read_run(tmp_path, integer_rows(), steps=STEPS)
    (table,) = part_of(content, "exact").tables
    assert (table.label, table.radii, table.method) == ("w, in integers, after int8", (2.0,), "integer")
    assert table.radius(2.0) == "2 steps (ε = 0.02 to 0.022)"
    cell = table.compared("relu", VERIFIED, 2.0)
    assert (cell.difference.n, cell.difference.mean) == (3, pytest.approx(0.11))
    assert table.over_radii("gelu", "nodes") == {0: 7.0, 1: 7.0, 2: 7.0}
    assert marked(verified_grid(table))[1][0] == "2 (0.02 to 0.022)"
    assert [row[1] for row in marked(verified_grid(table))] == ["correct", "verified"]
    # A line of one network's own radius compares with nothing.
    assert set(content.compared["setting"]) > set(content.whole["setting"]) == {"", "method=integer"} - {""}
    _, counts = part_of(content, "verdicts").details
    assert list(counts.frame["eps"]) == ["2 grid steps"] * 2


def test_grid_steps_in_float32_read_as_fractions_of_255(tmp_path: Path) -> None:
    scale = float(np.float32(1 / 255))
    table = table_of(tmp_path, [*integers("gelu", 0, scale, 0.5), *integers("gelu", 1, scale, 0.5)])
    assert table.radius(2.0) == "2 steps (ε = 2/255)"


def test_two_methods_of_one_workload_have_tables_of_their_own(tmp_path: Path) -> None:
    rows = [*verified({"gelu": BASE}), *verified({"gelu": BASE}, step="smt-z3", method="z3")]
    tables = part_of(read_run(tmp_path, rows), "exact").tables
    assert [(each.label, each.method) for each in tables] == [("w, smt", "search"), ("w, smt-z3", "z3")]
    assert [each.subject for each in part_of(read_run(tmp_path / "told", rows), "exact").findings] == [
        "w, smt",
        "w, smt-z3",
    ]


def test_proofs_are_counted_against_what_holds(tmp_path: Path) -> None:
    rows = [*verified({"gelu": (0.5,), "relu": (0.5,)}), *said("gelu", 0, FIVE[:2]), *said("relu", 0, FIVE[:2])]
    rows += [
        *rows_of("proofs_checked", {"relu": (2,)}, eps=0.125),
        *rows_of("proof_bytes", {"relu": (3000,)}, eps=0.125),  # Their mean.
    ]
    lack = Metric("proofs_checked", None, "count", HIGHER, {"eps": 0.125, "method": "search"}, reason="GELU has none")
    rows.append(row_of(lack, job("gelu", 0)))
    section = part_of(read_run(tmp_path, rows), "exact")
    (grid,) = [each for each in section.grids if each.name == "exact-proofs"]
    assert marked(grid) == [["w", "none of 2", "2 of 2 mean 3.00 kB"]]
    assert grid.note.endswith("rests on the prover alone. None of gelu: GELU has none.")
    told = "Of what holds, with a proof checked apart from the prover: relu all 2; gelu none of 2 (GELU has none)."
    assert told in section.findings[-1].sentences


def test_cost_splits_what_was_decided(tmp_path: Path) -> None:
    rows = [*verified({"gelu": (0.4,)}), *said("gelu", 0, FIVE), *rows_of("par2", {"gelu": (2.166,)}, eps=0.125)]
    rows += rows_of("nodes", {"gelu": (12.0,)}, eps=0.125)
    (grid,) = [each for each in part_of(read_run(tmp_path, rows), "exact").grids if each.name == "exact-cost"]
    assert grid.columns == ("workload", "variant", "decided", "bounds · attack · search", "PAR-2", "median", "nodes")
    assert marked(grid) == [["w", "gelu", "3 of 5 (60 %)", "1 · 1 · 1", "2.17 s", "20.0 ms", "12"]]
    sentences = part_of(read_run(tmp_path / "told", rows), "exact").findings[-1].sentences
    assert "Decided of the robustness questions asked: gelu 60 % (2 open)." in sentences
    assert "PAR-2 of a question, a clock reading without a verdict: gelu 2.17 s (12 nodes)." in sentences


def test_clocks_have_no_verdict(tmp_path: Path) -> None:
    rows = verified({"gelu": BASE, "relu": BASE})
    rows += rows_of("par2", {"gelu": (1.0, 1.1, 0.9), "relu": (0.1, 0.12, 0.09)}, eps=0.125)
    rows += [*said("gelu", 0, FIVE), *said("relu", 0, FIVE)]
    section = part_of(read_run(tmp_path, rows), "exact")
    compared = read_run(tmp_path / "compared", rows).compared
    assert set(compared.loc[compared["metric"] == "par2", "better"]) == {""}
    ratio = math.exp(np.mean(np.log([0.1 / 1.0, 0.12 / 1.1, 0.09 / 0.9])))
    assert any(f"relu 103 ms (×{ratio:.2g})" in each for each in section.findings[-1].sentences)


def test_the_cactus_is_of_decided_questions_in_the_order_of_their_seconds(tmp_path: Path) -> None:
    assert curve_points([(0.5, True), (5.0, False), (0.0, True), (0.2, True)]) == ([1, 2, 3], [LEAST, 0.2, 0.5])
    rows = [*verified({"gelu": (0.4, 0.4)}), *said("gelu", 0, FIVE), *said("gelu", 1, FIVE[:1])]
    table = table_of(tmp_path, rows, options={"smt": {"query_time_limit": 5.0}})
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
    assert table_of(tmp_path / "counted", rows, options=counted).limit is None
    (drawing,) = exact_figures(table)
    assert "no verdicts" in drawing.caption
    assert "dashed" not in drawing.caption


def test_figures_have_the_panels_that_there_are_data_for(tmp_path: Path) -> None:
    rows = [*verified({"gelu": BASE}), *verified({"gelu": BASE}, eps=0.25)]
    (drawing,) = exact_figures(table_of(tmp_path, rows))
    assert "Verified accuracy" in drawing.caption
    assert "clock" not in drawing.caption
    assert exact_figures(table_of(tmp_path / "one", verified({"gelu": BASE}))) == []


def test_what_failed_says_why(tmp_path: Path) -> None:
    rows = [failure_row(job("gelu", seed), Status.UNSUPPORTED, "no exact encoding") for seed in range(2)]
    section = part_of(read_run(tmp_path / "all", rows), "exact")
    assert section.findings == [Finding("w", "Nothing was verified exactly.", ("unsupported: no exact encoding",))]
    assert section.grids == []
    more = [*rows, *verified({"relu": (0.5, 0.6)}), *said("relu", 0, FIVE[:3])]
    found = finding_of(tmp_path / "one", more)
    assert "(gelu: unsupported: no exact encoding)" in found.headline
    assert "Without a verdict: gelu: unsupported: no exact encoding." in found.sentences
    assert "Complete: every robustness question of relu was decided (3 in all)." in found.sentences


@pytest.mark.slow
def test_the_section_is_in_every_document_and_the_same_each_time(tmp_path: Path) -> None:
    rows = [*swapped("relu"), *integer_rows(), *said("gelu", 0, FIVE), *said("relu", 0, FIVE)]
    for eps in (0.125, 0.25):
        rows += verified({"gelu": BASE, "relu": near(BASE, 0.1, 0.11, 0.09)}, eps=eps)
        rows += rows_of("bounds_accuracy", {"gelu": near(BASE, *(-0.2,) * 3)}, eps=eps)
    rows += rows_of("adversarial_distance", {"gelu": BASE, "relu": near(BASE, 0.1, 0.11, 0.09)})
    folder = write_run(tmp_path, rows, {"baseline": "gelu", "steps": STEPS})
    written = {path: path.read_bytes() for path in write_report(folder)}
    assert {path: path.read_bytes() for path in write_report(folder)} == written
    page = page_of(folder)
    assert "Exact verification" in page.whole
    assert "in the place of GELU" not in page.text  # No answer of yes or no from lower ends and a few resolved cells.
    assert "What was decided, by what, and what it cost, in integers, after int8" in page.whole
    assert "## Exact verification" in (folder / "report.md").read_text(encoding="utf-8")
    names = {path.name for path in (folder / "tables").iterdir()}
    wanted = {"exact-cost.csv", "verdicts.csv", "w-smt-search-verified.csv",
              "w-smt-int-integer-verified.csv", "adversarial-distance.tex"}  # fmt: skip
    assert wanted <= names
    for name in ("w-smt-search-verified.tex", "exact-cost.tex"):
        assert "?" not in (folder / "tables" / name).read_text(encoding="utf-8").split("%", 2)[-1]
