"""The decision matrix against rows of known truth, its rates in simulation, and what a
stranger's section adds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_workshop import Page, frame_of, job, metric_rows, read_run, written_page
from scipy.stats import t, ttest_1samp, ttest_ind

from evalsuite.contract import Direction
from evalsuite.plugins import PluginError
from evalsuite.report import section as section_module
from evalsuite.report.canvas import panels
from evalsuite.report.cells import MatrixCell, Reading
from evalsuite.report.conclusions import read_rows, read_screens
from evalsuite.report.documents import markdown
from evalsuite.report.grids import Grid, GridCell, with_tones
from evalsuite.report.matrix import Matrix, matrix_row, tones_of
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import scale_of
from evalsuite.report.page import render
from evalsuite.report.paired import mean_text
from evalsuite.report.paired_samples import paired_samples, sample_estimate
from evalsuite.report.record import Record
from evalsuite.report.run import Run
from evalsuite.report.section import Contrast, Endpoint, Evidence, mean_test, sections
from evalsuite.report.statistics import Estimate, mean_interval, mean_over_workloads, seeds_needed
from evalsuite.results import Row, Status, failure_row

HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
BASE = (0.90, 0.91, 0.92, 0.90, 0.91)
NOISE = (0.001, -0.001, 0.0005, -0.0005, 0.0)
WIDE = (0.05, -0.05, 0.03, -0.04, 0.01)


def endpoint(direction: Direction = HIGHER, unit: str = "fraction") -> Endpoint:
    return Endpoint("a question", lambda run, workload, variant: None, unit, direction, 0.01)


def contrast(gap: float, spread: Sequence[float] = NOISE, label: str = "w") -> Contrast:
    own = {
        seed: base + gap + more for seed, (base, more) in enumerate(zip(BASE, spread, strict=False))
    }
    return Contrast(label, own, dict(enumerate(BASE[: len(own)])))


def cell(evidence: Evidence | None, asked: Endpoint | None = None) -> MatrixCell:
    (row,) = read_rows([matrix_row("demo", asked or endpoint(), {"w": evidence})])
    return row.cells["w"]


@pytest.mark.parametrize(
    ("gap", "direction", "reading"),
    [
        (0.05, HIGHER, Reading.HELPS),
        (-0.05, HIGHER, Reading.COSTS),
        (0.05, LOWER, Reading.COSTS),
        (-0.05, LOWER, Reading.HELPS),
        (0.0, HIGHER, Reading.NO_WORSE),
        (0.0, LOWER, Reading.NO_WORSE),
    ],
)
def test_a_difference_is_read_in_the_endpoints_direction(
    gap: float, direction: Direction, reading: Reading
) -> None:
    found = cell(Evidence(contrast(gap)), endpoint(direction))
    assert found.reading is reading
    test = ttest_1samp([gap + each for each in NOISE], 0.0)
    interval = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((interval.low, interval.high))


def test_a_member_of_the_family_that_is_resolved_the_other_way_makes_it_mixed() -> None:
    family = [contrast(0.09, label="8 bits"), contrast(-0.03, label="4 bits")]
    found = cell(Evidence(contrast(0.05), family))
    assert (found.reading, found.against) == (Reading.MIXED, ("4 bits",))
    assert found.words == "mixed: the other way at 4 bits"
    unresolved = [contrast(0.09), contrast(-0.03, WIDE)]
    assert cell(Evidence(contrast(0.05), unresolved)).reading is Reading.HELPS


def test_no_worse_on_the_mean_does_not_hide_a_setting_that_costs_the_margin() -> None:
    lost = [contrast(0.03, label="8 bits"), contrast(-0.03, label="4 bits")]
    found = cell(Evidence(contrast(0.0), lost))
    assert (found.reading, found.words) == (
        Reading.MIXED,
        "mixed: no worse on the mean, and costs at 4 bits",
    )
    slight = [contrast(0.005, label="8 bits"), contrast(-0.005, label="4 bits")]
    assert cell(Evidence(contrast(0.0), slight)).reading is Reading.NO_WORSE


def test_the_label_of_a_mean_names_what_it_lacks() -> None:
    eight, four = contrast(0.01, label="8 bits"), contrast(0.03, label="4 bits")
    assert mean_test([eight, four]).label == "8 bits and 4 bits"
    lacking = mean_test([eight, Contrast("4 bits", reason="ran out of time")])
    assert lacking.label == "8 bits (without 4 bits: ran out of time)"
    assert lacking.own == eight.own


def test_too_few_seeds_say_how_many_it_would_take() -> None:
    found = cell(Evidence(contrast(0.004, WIDE)))
    assert found.reading is Reading.UNRESOLVED
    deviation = np.std(WIDE, ddof=1)
    needed = next(
        n
        for n in range(2, 2000)
        if (t.ppf(0.975, n - 1) + t.ppf(0.8, n - 1)) * deviation / n**0.5 <= 0.01
    )
    assert (
        found.words == f"not resolved (a difference of the margin would take about {needed} seeds)"
    )


def test_what_only_its_own_interval_resolves_says_that_the_adjustment_undoes_it() -> None:
    rows = [
        matrix_row("demo", endpoint(), {"w": Evidence(contrast(gap, WIDE))})
        for gap in (-0.06, *[0.0] * 20)
    ]
    found = read_rows(rows)[0].cells["w"]
    assert found.estimate.high < 0
    assert found.words.startswith(
        "not resolved after Holm's adjustment (a difference of the margin would take about "
    )


SAME = (0.0,) * 5


@pytest.mark.parametrize(
    ("evidence", "unit", "reading", "words"),
    [
        (
            Evidence(Contrast("w", {}, dict(enumerate(BASE)), "relu: crashed: signal 11")),
            "fraction",
            Reading.UNMEASURED,
            "not measured: relu: crashed: signal 11",
        ),
        (None, "fraction", Reading.UNMEASURED, "not measured: not asked"),
        (
            Evidence(Contrast("w", {7: 0.9}, dict(enumerate(BASE)))),
            "fraction",
            Reading.UNMEASURED,
            "not measured: no seed in common with the baseline",
        ),
        (
            Evidence(contrast(0.5, NOISE[:1])),
            "fraction",
            Reading.UNRESOLVED,
            "not resolved: one seed",
        ),
        # The same in every seed resolves a property of the network, and no share of samples.
        (
            Evidence(contrast(0.05, SAME)),
            "fraction",
            Reading.UNRESOLVED,
            "not resolved: the same in every seed",
        ),
        (Evidence(contrast(0.05, SAME)), "share", Reading.FACT, "a fact, not tested"),
        (Evidence(contrast(0.0, SAME)), "share", Reading.FACT, "a fact, not tested"),
        (Evidence(contrast(-0.004)), "fraction", Reading.COSTS, "costs, less than the margin"),
        (Evidence(contrast(-0.05)), "fraction", Reading.COSTS, "costs"),
    ],
)
def test_words(evidence: Evidence | None, unit: str, reading: Reading, words: str) -> None:
    found = cell(evidence, endpoint(unit=unit))
    assert (found.reading, found.words) == (reading, words)


def row_with(
    found: Mapping[str, Evidence | None], seeds: Mapping[str, int] | None = None
) -> MatrixRow:
    """The row of one question, read by itself."""
    (row,) = read_rows([matrix_row("demo", endpoint(), found, *([seeds] if seeds else []))])
    return row


def sentence(*rows: MatrixRow) -> str:
    return Matrix("relu", "gelu", tuple(rows[0].cells), rows).sentence


def test_sentences_name_the_workloads() -> None:
    told = sentence(row_with({"w": Evidence(contrast(-0.004))}))
    assert told.endswith("costs a question (on w by less than the margin).")
    row = row_with({"v": Evidence(contrast(0.05)), "w": Evidence(contrast(-0.05))})
    assert [each.reading for each in row.cells.values()] == [Reading.HELPS, Reading.COSTS]
    assert row.pooled.reading is Reading.MIXED  # workloads that turn make all of them mixed
    assert (
        sentence(row)
        == "relu in the place of gelu helps a question (on v); costs a question (on w)."
    )
    row = row_with(
        {name: Evidence(contrast(0.0)) for name in "abcd"} | {"w": Evidence(contrast(0.0, WIDE))}
    )
    assert row.cells["w"].reading is Reading.UNRESOLVED
    row = replace(row, pooled=replace(row.pooled, reading=Reading.NO_WORSE))
    assert sentence(row).endswith("in a question (on average over 5 workloads, not resolved on w).")


def test_missing_seeds_and_workloads_are_said() -> None:
    found = {"v": Evidence(contrast(0.05, NOISE[:3])), "w": Evidence(contrast(0.05)), "x": None}
    row = row_with(found, {"v": 5, "w": 5, "x": 5})
    assert row.cells["v"].difference(row.scale).endswith("n = 3 of 5 seeds")
    assert row.pooled.difference(row.scale).endswith("2 of 3 workloads")
    assert "of" not in row.cells["w"].difference(row.scale)
    row = replace(row, pooled=replace(row.pooled, reading=Reading.HELPS))
    together = "2 of 3 workloads together, by itself on w, v: n = 3 of 5 seeds, not measured on x"
    assert sentence(row).endswith(f"helps a question ({together}).")
    # Where no workload has two seeds the mean says why there is none.
    found = {
        "v": None,
        "w": Evidence(contrast(0.5, NOISE[:1])),
        "x": Evidence(Contrast("w", reason="one point")),
    }
    assert row_with(found).pooled.words == "not measured: one seed"
    assert row_with({"x": found["x"]}).pooled.words == "not measured: one point"


def test_values_that_are_no_numbers_are_no_seeds() -> None:
    pair = contrast(0.05)
    found = cell(Evidence(Contrast("w", {**pair.own, 0: math.nan}, {**pair.other, 1: math.inf})))
    assert found.estimate.n == 3


def test_of_fewer_than_four_fifths_of_the_seeds_nothing_is_concluded() -> None:
    pair = contrast(0.05)
    for lost, reading in ((1, Reading.HELPS), (2, Reading.UNRESOLVED)):
        found = Evidence(
            Contrast("w", {**pair.own, **dict.fromkeys(range(lost), math.nan)}, pair.other)
        )
        assert row_with({"w": found}, {"w": 5}).cells["w"].reading is reading


def test_holm_counts_every_test_of_the_screen() -> None:
    strong = Evidence(contrast(0.02, tuple(10 * each for each in NOISE)))
    one = matrix_row("demo", endpoint(), {"v": strong, "w": None})
    p = one.cells["v"].p
    assert p < 0.05 / 7
    assert read_rows([one])[0].cells["v"].p_adjusted == pytest.approx(p)
    quiet = matrix_row(
        "demo", endpoint(), {"v": Evidence(contrast(0.0, WIDE)), "w": Evidence(contrast(0.0, WIDE))}
    )
    first, *_ = read_rows([one, quiet, quiet])
    # two cells and a pooled one in each quiet row
    assert first.cells["v"].p_adjusted == pytest.approx(7 * p)


def run_of() -> Run:
    """relu and annealed are better alike, silu is not: three variants, of which one is declared."""
    better = [each + 0.04 + more for each, more in zip(BASE, NOISE, strict=True)]
    quiet = [each + more for each, more in zip(BASE, WIDE, strict=True)]
    rows = rows_of(
        "accuracy", "accuracy", {"gelu": BASE, "relu": better, "silu": quiet, "annealed": better}
    )
    return read_run(rows)


def test_the_declared_variant_is_a_family_and_all_others_are_one() -> None:
    matrices = run_of().matrices
    cells = {matrix.variant: matrix.rows[0].cells["w"] for matrix in matrices}
    assert list(cells) == ["annealed", "relu", "silu"]
    assert cells["relu"].p == cells["annealed"].p
    assert cells["annealed"].p_adjusted == pytest.approx(cells["annealed"].p)
    assert cells["relu"].p_adjusted == pytest.approx(2 * cells["relu"].p)


def test_a_number_of_the_matrix_has_its_verdict_in_the_comparison() -> None:
    """0.0053 alone, and 0.059 with the other ten variants: neither better at a glance nor in the
    matrix.
    """
    rise = [each + 0.02 + more / 4 for each, more in zip(BASE, WIDE, strict=True)]
    quiet = {
        f"quiet-{i}": [each + more for each, more in zip(BASE, WIDE, strict=True)]
        for i in range(10)
    }
    for name, helps in (("annealed", True), ("relu", False)):
        values = {"gelu": BASE, "annealed": BASE, **quiet, name: rise}
        rows = [*rows_of("accuracy", "accuracy", values), *rows_of("nll", "accuracy", values)]
        content = read_run(rows)
        found = next(each.rows[0].cells["w"] for each in content.matrices if each.variant == name)
        assert 0.005 < found.p < 0.05
        assert (found.reading is Reading.HELPS) is helps
        lines = content.compared[content.compared["variant"] == name].set_index("metric")
        assert (lines.loc["accuracy", "better"], bool(lines.loc["accuracy", "resolved"])) == (
            "better" * helps,
            helps,
        )
        # Among the eleven of its step another number is resolved no more.
        assert (lines.loc["nll", "better"], bool(lines.loc["nll", "resolved"])) == ("", False)
        assert lines.loc["accuracy", "diff"] == found.estimate.mean  # type: ignore[union-attr]


def test_the_first_screen_says_what_the_run_does_not_answer() -> None:
    content = run_of()
    assert content.unanswered.startswith("Not answered by this run: ")
    told = {
        "accuracy verified exactly": True,
        "accuracy in float": False,
        "certified accuracy": False,
    }
    assert {asked: asked in content.unanswered for asked in told} == told
    assert content.unanswered in Page(render(content)).text
    assert content.unanswered in markdown(content)


def test_the_margins_are_the_protocols() -> None:
    text = (Path(__file__).parents[2] / "reports" / "PROTOCOL.md").read_text(encoding="utf-8")
    margins = {
        line.split("|")[2].strip(): line.split("|")[5].strip()
        for line in text.splitlines()
        if "| A |" in line or "| B |" in line
    }
    declared = {
        each.question: each.margin for section in sections().values() for each in section.endpoints
    }
    quality = margins["Does annealing keep the quality in float?"]
    assert (
        quality
        == margins["Does ReLU quantize better where the swap hurts?"]
        == "0.5 points; 0.01 bits"
    )
    assert margins["Does it prune better?"] == "the same"
    assert declared["accuracy in float"] == declared["accuracy with 8-bit integers"] == 0.005
    assert declared["accuracy with 4-bit integers"] == 0.005
    pruned = {question: margin for question, margin in declared.items() if "pruned" in question}
    assert {question: margin for question, margin in pruned.items() if margin != 0.005} == {
        "bits per byte of pruned networks at equal MACs": 0.01
    }
    assert declared["bits per byte in float"] == 0.01
    assert margins["Is it certified more?"] == "1/255 of the inputs' range"
    assert declared["mean certified radius"] == 1 / 255
    assert margins["Is it more robust, decided exactly?"] == "1 point"
    assert declared["accuracy verified exactly"] == 0.01


def test_the_mean_over_workloads_by_hand() -> None:
    """The mean over these workloads: Welch's t test of two samples is the same sum of two
    variances.
    """
    one, other = [0.03 + each for each in WIDE], [0.01 - 3 * each for each in WIDE[:4]]
    found = mean_over_workloads([mean_interval(one), mean_interval(other)])
    welch = ttest_ind(one, np.negative(other), equal_var=False)
    interval = welch.confidence_interval(0.95)
    assert found.p == pytest.approx(welch.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low / 2, interval.high / 2))
    assert mean_over_workloads([mean_interval(one)]) is None


def test_workloads_that_differ_do_not_widen_the_mean_over_them() -> None:
    """Three effects far apart, each known well: their mean is known well, and nothing is said of
    a fourth workload.
    """
    found = mean_over_workloads(
        [mean_interval([center + each for each in NOISE]) for center in (0.01, 0.02, 0.06)]
    )
    spread = np.std(NOISE, ddof=1) / math.sqrt(5)
    assert found.half_width == pytest.approx(t.ppf(0.975, 12) * spread / math.sqrt(3))
    assert found.mean == pytest.approx(0.03)


def test_a_workload_without_spread_adds_none_to_the_mean() -> None:
    """0.02 in all seeds, and 0.02 ± much: the mean is half as uncertain as the second."""
    wide = mean_interval([0.02 + each for each in WIDE])
    found = mean_over_workloads([Estimate(0.02, 0.02, 0.02, 5, constant=True), wide])
    assert (found.half_width, found.p) == pytest.approx(
        (wide.half_width / 2, ttest_1samp(WIDE, -0.04).pvalue)
    )
    same = Estimate(0.02, 0.02, 0.02, 5, constant=True)
    alike = mean_over_workloads([same, replace(same, mean=0.04, low=0.04, high=0.04)])
    assert (alike.mean, alike.p, alike.constant) == (pytest.approx(0.03), None, True)


def test_rounding_of_what_a_difference_was_made_from_is_no_effect() -> None:
    """Areas between equal curves of accuracies near 1: a few ulp of those, that all seeds share."""
    noise = {seed: 2.0**-53 * (4 + seed % 2) for seed in range(5)}
    level = dict.fromkeys(noise, 0.0)
    for unit in ("fraction", "share"):
        found = cell(Evidence(Contrast("area", noise, level, magnitude=1.0)), endpoint(unit=unit))
        assert (found.estimate.mean, found.estimate.constant) == (0.0, True)
        assert found.reading not in (Reading.HELPS, Reading.COSTS)


def test_seeds_are_counted_at_the_level_of_the_screen_and_beyond_those_there_are() -> None:
    quiet = matrix_row("demo", endpoint(), {"w": Evidence(contrast(0.004, WIDE))})
    alone, among = (read_rows([quiet] * count)[0].cells["w"].needed for count in (1, 20))
    assert among > alone
    assert seeds_needed(mean_interval(NOISE), 0.01) is None  # five are there, and three would do
    assert seeds_needed(mean_interval([0.0, 1.0, -1.0]), 0.001) is None  # too much spread
    assert seeds_needed(mean_interval([0.5, 0.5]), 0.01) is None  # none at all


def test_an_endpoint_without_margin_or_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="margin of 'q' must be positive"):
        Endpoint("q", lambda run, workload, variant: None, "fraction", HIGHER, 0.0)
    with pytest.raises(ValueError, match="'q' has no direction"):
        Endpoint("q", lambda run, workload, variant: None, "fraction", Direction.NEUTRAL, 0.1)


def rows_of(
    metric: str, stage: str, values: Mapping[str, Sequence[float]], **setting: float
) -> list[Row]:
    return metric_rows(metric, values, stage, **setting)


def test_rows_of_a_failed_job_leave_their_reason_in_the_matrix() -> None:
    failed = failure_row(job("relu", 0), Status.CRASHED, "signal 11")
    (matrix,) = read_run([*rows_of("accuracy", "accuracy", {"gelu": BASE}), failed]).matrices
    assert matrix.rows[0].cells["w"].words == "not measured: relu: crashed: signal 11"


def test_a_task_that_no_question_knows_is_answered_by_its_own_share() -> None:
    better = [each + 0.04 + more for each, more in zip(BASE, NOISE, strict=True)]
    rows = rows_of("accuracy", "accuracy", {"gelu": BASE, "relu": BASE})
    for metric in ("letter_accuracy", "word_accuracy"):
        own = rows_of(metric, "accuracy", {"gelu": BASE, "relu": better})
        rows += [replace(each, workload="letters") for each in own]
    (matrix,) = read_run(rows).matrices
    told = {row.endpoint.question: row for row in matrix.rows}
    assert list(told) == ["accuracy in float", "the task's own share in float"]
    assert told["accuracy in float"].cells["letters"].words == "not measured: not asked"
    own = told["the task's own share in float"]
    assert own.cells["w"].words == "not measured: not asked"
    assert (own.cells["letters"].reading, own.measured) == (Reading.HELPS, "letter accuracy")


def test_a_strangers_section_is_on_the_page_with_its_figure_term_and_row(
    tmp_path: Path, demo_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "gelu": BASE,
        "relu": [each + 0.04 + more for each, more in zip(BASE, NOISE, strict=True)],
    }
    rows = [
        *rows_of("accuracy", "accuracy", {"gelu": BASE, "relu": BASE}),
        *rows_of("noisy_accuracy", "input-noise", values, sigma=0.1),
    ]
    assert "input-noise" not in sections()
    monkeypatch.syspath_prepend(demo_site)
    page = written_page(tmp_path, rows, {"baseline": "gelu"})
    said = (
        "relu in the place of gelu helps accuracy under noise (on w); is not resolved in accuracy"
        " in float."
    )
    assert said in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "✓ helps" in page.text
    assert "section-input-noise" in {each.get("id") for _, each in page.tags}
    assert "Bars of accuracies." in {each.get("aria-label") for each in page.attributes("svg")}
    assert "Gaussian noise that is added to the inputs of a network." in page.text
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "The highest accuracy is relu's." in text
    assert "✓" not in text.split("## Headline numbers")[0]
    assert (tmp_path / "tables" / "input-noise.tex").is_file()
    assert (
        "accuracy under noise,input-noise,relu,gelu,w,"
        in (tmp_path / "tables" / "matrix.csv").read_text()
    )


def test_sections_come_in_the_order_of_the_steps() -> None:
    names = list(Run(pd.DataFrame({"stage": ["smt", "quantize"]}), Record({}), "gelu").sections)
    assert (
        names.index("swap") < names.index("exact") < names.index("quantize") < names.index("bounds")
    )


def test_a_broken_section_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[evalsuite.sections]\nodd = math:pi\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=r"section 'odd' of odd 1\.0 is a float, not a Section"):
        section_module.sections()


@pytest.mark.slow
def test_no_false_word_stands_on_a_screen_of_true_ones() -> None:
    """Four variants share a baseline, and two questions have a true effect on one workload of
    three.

    False words on 5 % of first screens at the most, and on 5 % of all others together.
    """
    draw, screens = np.random.default_rng(2), 120
    workloads, wrong = tuple(map(str, range(3))), np.zeros(2)
    for _ in range(screens):
        level = draw.normal(0.0, 0.01, (2, 3, 5))
        made: dict[str, list[MatrixRow]] = {}
        for variant in "abcd":
            own = draw.normal(0.0, 0.01, level.shape)
            own[:, 0] += 0.5
            for theirs, base in zip(own, level, strict=True):
                arms = zip(theirs, base, strict=True)
                pairs = [
                    Contrast("", dict(enumerate(one)), dict(enumerate(other)))
                    for one, other in arms
                ]
                found = dict(zip(workloads, map(Evidence, pairs), strict=True))
                made.setdefault(variant, []).append(matrix_row("demo", endpoint(), found))
        read = read_screens(made)
        for place, names in enumerate(("a", "bcd")):
            null = [
                row.cells[name] for each in names for row in read[each] for name in workloads[1:]
            ]
            wrong[place] += any(each.reading in (Reading.HELPS, Reading.COSTS) for each in null)
    assert (wrong / screens <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / screens)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("between", "seeds"), [(0.0, 3), (0.02, 5)])
def test_intervals_over_workloads_cover_the_mean_of_these(between: float, seeds: int) -> None:
    """Of five workloads of unequal spread, however far apart they are: 95 %, give or take three
    standard errors.
    """
    draw, covered, trials = np.random.default_rng(1), 0, 800
    for _ in range(trials):
        centers = 0.03 + between * draw.normal(size=5)
        spreads = 0.01 * 2.0 ** np.arange(5)
        found = mean_over_workloads(
            [
                mean_interval(list(draw.normal(*each, seeds)))
                for each in zip(centers, spreads, strict=True)
            ]
        )
        covered += found.low <= centers.mean() <= found.high  # type: ignore[operator]
    assert abs(covered / trials - 0.95) <= 3 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "question", "wanted"),
    [
        (
            "bounds",
            "mean certified radius",
            # Its few seeds say "costs" and "helps" by their own t tests alone.
            {"mnist-cnn": Reading.UNRESOLVED, "digits-cnn": Reading.NO_WORSE},
        ),
        (
            "smt",
            "accuracy verified exactly",
            {"moons-mlp": Reading.UNRESOLVED, "digits-tiny-mlp": Reading.UNRESOLVED},
        ),
    ],
)
def test_committed_studies_conclude(
    study: str, question: str, wanted: Mapping[str, Reading]
) -> None:
    folder = Path(__file__).parents[2] / "reports" / study
    content = Run.of(folder)
    rows = ((matrix.variant, row) for matrix in content.matrices for row in matrix.rows)
    found = {variant: row for variant, row in rows if row.endpoint.question == question}
    assert {name: found["annealed"].cells[name].reading for name in wanted} == wanted
    if study == "smt":  # none of its distances and shares is resolved for the better
        assert not any(
            cell.reading is Reading.HELPS for row in found.values() for cell in row.cells.values()
        )


def test_no_interval_reaches_beyond_what_is_possible() -> None:
    """Two seeds have one degree of freedom: the t interval of 0 and 1 is [-5.9, 6.9]."""
    share = replace(endpoint(unit="share"), greatest=1.0)
    pair = {"v": Evidence(Contrast("v", {0: 0.0, 1: 1.0}, {0: 0.0, 1: 0.0}))}
    (row,) = read_rows([matrix_row("demo", share, pair)])
    assert (row.cells["v"].estimate.low, row.cells["v"].estimate.high) == (-1.0, 1.0)
    assert "[−100.0, 100.0]" in row.cells["v"].difference(row.scale)
    free = read_rows([matrix_row("demo", endpoint(unit="ratio"), pair)])[0].cells["v"].estimate
    assert free.low < -5
    assert endpoint().greatest == 1.0  # of fractions of samples without being said


@pytest.mark.parametrize(
    ("mean", "text"),
    [
        (Estimate(0.98, 0.83, 1.13, 3), "98.0 [83.0, 100.0]"),
        (Estimate(0.02, -0.1, 0.14, 3), "2.0 [0, 14.0]"),
        # a difference, as a drop of accuracy, may be negative
        (Estimate(-0.02, -0.1, 0.06, 3), "−2.0 ± 8.0"),
        (Estimate(0.5, 0.4, 0.6, 3), "50.0 ± 10.0"),
        (Estimate(0.5, None, None, 1), "50.0"),
    ],
)
def test_a_mean_in_percent_stays_between_0_and_100(mean: Estimate, text: str) -> None:
    assert mean_text(mean, scale_of("fraction", [0.5], [0.1])) == text


def test_a_gain_that_the_adjustment_undoes_is_not_called_no_worse() -> None:
    """[0.8, 16.3] points with a margin of 1 read "no worse than the margin"."""
    wide = (0.03, -0.03, 0.02, -0.03, 0.01)
    rows = [
        matrix_row("demo", endpoint(), {"w": Evidence(contrast(gap, wide))})
        for gap in (0.04, *[0.0] * 30)
    ]
    found = read_rows(rows)[0].cells["w"]
    assert 0 < found.estimate.low < found.estimate.high
    assert found.p_adjusted > 0.05
    assert found.words.startswith("not resolved after Holm's adjustment")


def test_a_sentence_names_the_seeds_that_are_missing() -> None:
    found = row_with({"w": Evidence(contrast(0.05, NOISE[:4]))}, {"w": 5})
    assert found.cells["w"].reading is Reading.HELPS
    assert sentence(found).endswith("helps a question (on w, n = 4 of 5 seeds).")
    quiet = row_with({"w": Evidence(contrast(0.0, NOISE[:4]))}, {"w": 5})
    assert sentence(quiet).endswith(
        "is no worse than the margin in a question (w: n = 4 of 5 seeds)."
    )


def test_a_table_marks_a_number_as_the_matrix_concludes_from_it() -> None:
    """No "worse" stands beside "not resolved" for the same number."""
    shown = Estimate(-0.02, -0.03, -0.01, 5, p=0.004)
    other = Estimate(-0.05, -0.06, -0.04, 5, p=0.001)
    cells = [
        GridCell("−2", tone="worse", difference=shown),
        GridCell("−5", tone="worse", difference=other),
    ]
    screen = {
        ("q", "w", "relu"): MatrixCell(Reading.UNRESOLVED, replace(shown, p=0.0041), p_adjusted=0.2)
    }
    (row,) = with_tones(Grid("g", "", ("a", "b"), (tuple(cells),)), tones_of(screen)).rows
    assert [each.tone for each in row] == ["", "worse"]
    costs = {("q", "w", "relu"): replace(screen["q", "w", "relu"], reading=Reading.COSTS)}
    assert tones_of(costs) == {replace(shown, p=None): "worse"}


@pytest.mark.parametrize(
    ("baseline", "named"), [("gelu", "GELU"), ("silu", "SiLU"), ("my-gate", "my-gate")]
)
def test_the_title_names_the_baseline(baseline: str, named: str) -> None:
    rows = frame_of(rows_of("accuracy", "accuracy", {baseline: BASE, "relu": BASE}))
    run = Run(rows, Record({}), baseline)
    assert run.question == f"Should ReLU replace {named}?"


def test_an_axis_is_no_narrower_than_what_rounding_does() -> None:
    with panels(1, 1, 2.0) as figure:
        axes = figure.grid[0, 0]
        axes.plot([0, 1], [1e-13, -1e-13])
    low, high = axes.get_ylim()
    assert high - low >= 1e-6
    assert axes.get_xlim()[1] > 1


def test_test_samples_are_no_seeds_that_lie_close_together() -> None:
    right, wrong = np.ones(1000), np.ones(1000)
    wrong[:8] = 0
    over_samples = sample_estimate(paired_samples(right, wrong))
    alone = Evidence(Contrast("w", {0: 1.0}, {0: 0.992}))
    rows = [
        matrix_row("demo", endpoint(), {"w": alone}, {"w": 1}, samples={"w": over_samples}),
        *(
            matrix_row(
                "demo",
                endpoint(),
                {"w": Evidence(contrast(gap, (-spread, 0.0, spread)))},
                {"w": 3},
            )
            for gap, spread in [(0.01, 0.001)] * 2 + [(0.0, 0.03)] * 4
        ),
    ]
    found = read_rows(rows)
    # What draws the seeds' variances towards each other leaves the test over samples as it is.
    assert found[0].cells["w"].p_adjusted == pytest.approx(5 * 2 / 2**8)
    assert found[0].cells["w"].reading is Reading.HELPS
    assert found[1].cells["w"].reason == "too few seeds to tell an effect from skewed differences"


@pytest.mark.parametrize(
    ("share", "reading", "words"),
    [
        (0.0, Reading.SATURATED, "0 % in both"),
        (1.0, Reading.SATURATED, "100 % in both"),
        (0.5, Reading.UNRESOLVED, "not resolved: the same in every seed"),
    ],
)
def test_a_share_at_the_end_of_the_scale_is_stated(
    share: float, reading: Reading, words: str
) -> None:
    arm = dict.fromkeys(range(3), share)
    found = cell(Evidence(Contrast("w", arm, arm)))
    assert (found.reading, found.words) == (reading, words)
    # The baseline's share is known, and the variant's differs: that is an effect.
    other = {0: 0.1, 1: 0.11, 2: 0.12}
    moved = cell(Evidence(Contrast("w", dict.fromkeys(range(3), 0.0), other)))
    assert moved.reading is Reading.COSTS
