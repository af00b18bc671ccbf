"""The report on integer networks' classes, answers first, and sizes of proofs, by hand or by scipy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from exact_rows import (
    BASE,
    HOLDS,
    STEPS,
    TIMEOUT,
    UNKNOWN,
    VIOLATED,
    finding_of,
    integer_rows,
    job,
    near,
    rows_of,
    said,
    verified,
)
from report_workshop import marked, part_of, read_run
from scipy.stats import ttest_1samp

from evalsuite.contract import Direction, Metric, Verdict
from evalsuite.report.grids import Grid
from evalsuite.report.run import Run
from evalsuite.results import Row, row_of
from pipelines.smt.report.section import exact_figures

FRACTIONS = {"same_class_fraction": Direction.HIGHER, "other_class_fraction": Direction.LOWER,
             "class_undecided_fraction": Direction.LOWER}  # fmt: skip
OPEN = (UNKNOWN, TIMEOUT, Verdict.UNSUPPORTED)


def classes(variant: str, seed: int, verdicts: Sequence[Verdict], steps: int = 2, eps: float = 0.02) -> list[Row]:
    """What the stage says of the classes of one network at one radius."""
    setting = {"eps": eps, "steps": steps, "method": "float and integer"}
    place = job(variant, seed, "smt-int")
    rows = [
        row_of(Metric("same_class", None, "verdict", Direction.NEUTRAL, setting, sample=i, verdict=each, reason="b"),
               place)
        for i, each in enumerate(verdicts)
    ]  # fmt: skip
    shares = zip(FRACTIONS.items(), ((HOLDS,), (VIOLATED,), OPEN), strict=True)
    return rows + [
        row_of(Metric(name, sum(each in own for each in verdicts) / len(verdicts), "fraction", way, setting), place)
        for (name, way), own in shares
    ]


def of(holds: int, violated: int = 0, unknown: int = 0, timeout: int = 0, unsupported: int = 0) -> list[Verdict]:
    return [HOLDS] * holds + [VIOLATED] * violated + [UNKNOWN] * unknown + [TIMEOUT] * timeout + [
        Verdict.UNSUPPORTED
    ] * unsupported  # fmt: skip


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
    (grid,) = [each for each in part_of(content, "exact").grids if each.name == "w-smt-int-same-class"]
    return grid


def test_shares_of_one_class_are_paired_by_seed(tmp_path: Path) -> None:
    content = read_run(tmp_path, [*integer_rows(), *differing()], steps=STEPS)
    grid = class_grid(content)
    assert grid.columns == ("grid steps (ε)", "samples", "gelu", "relu")
    assert [(row[0].text, row[1].text) for row in grid.rows] == [
        ("2 (0.02 to 0.022)", "same class"), ("2 (0.02 to 0.022)", "another class"), ("2 (0.02 to 0.022)", "undecided"),
        ("4 (0.04 to 0.044)", "same class"), ("4 (0.04 to 0.044)", "another class"),
    ]  # fmt: skip
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


def test_boxes_of_one_class_are_counted_in_words(tmp_path: Path) -> None:
    content = read_run(tmp_path, [*integer_rows(), *differing()], steps=STEPS)
    (finding,) = part_of(content, "exact").findings
    # 18 + 27 and 26 + 27 of 60; 6 + 3 and 3 + 3 broken; single questions that cannot be asked are undecided.
    assert finding.sentences[-1] == (
        "Same class as the float network for every real input of the box: gelu 45 of 60 (9 with another class, "
        "6 undecided), relu 53 of 60 (6 with another class, 1 undecided); of 1 testable difference to gelu's share, "
        "what was left open counted both ways, none resolved."
    )
    # What is open there does not make robustness less complete.
    assert "Complete: every robustness question of gelu and relu was decided (6 in all)." in finding.sentences


def test_classes_are_no_table_of_robustness(tmp_path: Path) -> None:
    plain = part_of(read_run(tmp_path / "plain", integer_rows(), steps=STEPS), "exact")
    section = part_of(read_run(tmp_path / "both", [*integer_rows(), *differing()], steps=STEPS), "exact")
    assert [each.name for each in section.grids if each.name != "w-smt-int-same-class"] == [
        each.name for each in plain.grids
    ]
    assert [marked(each) for each in section.grids[:-1]] == [marked(each) for each in plain.grids]
    assert [each.label for each in section.tables] == ["w, in integers, after int8"]
    assert [marked(each) for each in section.details] == [marked(each) for each in plain.details]
    assert [each.name for table in section.tables for each in exact_figures(table)] == [
        each.name for table in plain.tables for each in exact_figures(table)
    ]


def test_the_headline_begins_with_the_answer(tmp_path: Path) -> None:
    same = finding_of(tmp_path / "same", verified({"gelu": BASE, "relu": BASE}))
    assert same.headline == "All variants verify the same share at every radius, in every seed: nothing to compare."
    less = finding_of(tmp_path / "less", verified({"gelu": BASE, "relu": near(BASE, -0.1, -0.11, -0.09)}))
    assert less.headline.startswith("No variant is shown to be verified more than gelu; less: relu (at 1 radius): of 1")
    quiet = near(BASE, 0.1, -0.1, 0.0)
    up, down = near(BASE, 0.1, 0.11, 0.09), near(BASE, -0.1, -0.11, -0.09)
    rows = verified({"gelu": BASE, "relu": up, "annealed": down}) + verified({"gelu": BASE, "relu": up}, eps=0.25)
    both = finding_of(tmp_path / "both", rows)
    assert both.headline == (
        "Verified more than gelu: relu (at 2 radii); less: annealed (at 1 radius): of 3 testable differences in "
        "verified accuracy, open questions counted both ways, 3 (2 higher and 1 lower) resolved, 3 after Holm's "
        "adjustment for all 3."
    )
    rows = verified({"gelu": BASE, "relu": near(BASE, 0.1, 0.138, 0.062)})
    rows += [row for i in range(11) for row in verified({"gelu": BASE, "relu": quiet}, eps=(i + 3) / 16)]
    chance = finding_of(tmp_path / "chance", rows)
    assert chance.headline == (
        "No variant is shown to be verified more than gelu: of 12 testable differences in verified accuracy, open "
        "questions counted both ways, 1 (1 higher and 0 lower) resolved, none after Holm's adjustment for all 12."
    )
    rows = verified({"gelu": BASE, "relu": near(BASE, -0.1, -0.138, -0.062)})
    rows += [row for i in range(11) for row in verified({"gelu": BASE, "relu": quiet}, eps=(i + 3) / 16)]
    lower = finding_of(tmp_path / "lower", rows).headline
    assert lower.startswith("No variant is shown to be verified more than gelu: of 12")
    assert lower.endswith("1 (0 higher and 1 lower) resolved, none after Holm's adjustment for all 12.")


def test_all_workloads_begin_with_the_answer(tmp_path: Path) -> None:
    quiet = {"gelu": BASE, "relu": near(BASE, 0.05, -0.05, 0.01)}
    findings = part_of(read_run(tmp_path, [*verified(quiet), *verified(quiet, workload="v")]), "exact").findings
    assert [each.subject for each in findings] == ["all workloads", "w", "v"]
    assert findings[0].headline == (
        "No variant is shown to be verified more than gelu: of 2 testable differences in verified accuracy, open "
        "questions counted both ways, none resolved."
    )


def test_sizes_of_proofs_are_weighted_by_their_number(tmp_path: Path) -> None:
    rows = [*verified({"relu": (1.0, 1.0)}), *verified({"relu": (0.5, 0.0)}, eps=0.25)]
    for eps, counts, sizes in ((0.125, (6, 3), (3000.0, 4000.0)), (0.25, (1, 0), (10000.0, None))):
        rows += rows_of("proofs_checked", {"relu": counts}, eps=eps)
        rows += rows_of("proof_bytes", {"relu": sizes}, eps=eps)
    for seed, holds in ((0, 7), (1, 3)):
        rows += said("relu", seed, [(HOLDS, "bounds", None)] * holds)
    rows += verified({"gelu": (1.0, 1.0)})
    (grid,) = [each for each in part_of(read_run(tmp_path, rows), "exact").grids if each.name == "exact-proofs"]
    assert (6 * 3000 + 3 * 4000 + 10000) / 10 == 4000
    assert marked(grid) == [["w", "absent: no row of it in this run", "10 of 10 mean 4.00 kB"]]
    assert list(grid.frame["bytes"]) == [40000]


def test_why_there_are_no_proofs_is_said_once(tmp_path: Path) -> None:
    rows = []
    for workload in ("v", "w"):
        rows += verified({"gelu": (1.0,), "silu": (1.0,), "relu": (1.0,)}, workload=workload)
        rows += rows_of("proofs_checked", {"relu": (0,)}, eps=0.125, workload=workload)
        for name in ("gelu", "silu"):
            setting = {"eps": 0.125, "method": "search"}
            lack = Metric("proofs_checked", None, "count", Direction.HIGHER, setting, reason="they are curved")
            rows.append(row_of(lack, job(name, 0, workload=workload)))
            told = Metric("robustness", None, "verdict", Direction.NEUTRAL, setting, sample=0, verdict=HOLDS)
            rows.append(row_of(told, job(name, 0, workload=workload)))
    rows += said("relu", 0, [(VIOLATED, "falsifier", None)])
    (grid,) = [each for each in part_of(read_run(tmp_path, rows), "exact").grids if each.name == "exact-proofs"]
    assert [row[:3] for row in marked(grid)] == [[name, "none of 1", "none of 1"] for name in ("v", "w")]
    assert marked(grid)[1][3] == "–"  # Nothing of it holds.
    assert grid.note.count("they are curved") == 1
    assert grid.note.endswith("None of gelu and silu: they are curved.")


def test_single_questions_that_cannot_be_asked_are_open(tmp_path: Path) -> None:
    rows = [*verified({"gelu": (0.5,)}), *said("gelu", 0, [(HOLDS, "", None), (Verdict.UNSUPPORTED, "no", None)])]
    found = finding_of(tmp_path, rows)
    assert "Decided of the robustness questions asked: gelu 50 % (1 open)." in found.sentences
    _, counts = part_of(read_run(tmp_path / "x", rows), "verdicts").details
    assert marked(counts)[0][5:11] == ["1", "0", "0", "0", "1", "2"]
