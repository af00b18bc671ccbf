"""Tables and statistics by hand: intervals, pairing, failed jobs, formats, verdicts and
contradictions.
"""

from __future__ import annotations

import io
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_workshop import CRASH, NO_ERF, frame_of, job, sample_rows
from scipy.stats import t as student

from evalsuite.contract import Direction, Metric, Verdict
from evalsuite.report.grids import csv_text
from evalsuite.report.numerals import scale_of
from evalsuite.report.statistics import (
    after_holm,
    holm,
    mean_interval,
    seed_difference,
    t_quantile,
    two_sided_p,
)
from evalsuite.report.tables import comparison, failures, text_lines
from evalsuite.results import Row, Status, _shared, failure_row, row_of
from evalsuite.verification.report.section import contradictions, verdict_table

Cell = pd.Series


def main_table(compared: pd.DataFrame) -> pd.DataFrame:
    """A line of text for each metric: its unit and a cell for each variant."""
    lines = text_lines(compared)
    cells = [{variant: cell.plain for variant, cell in line.cells.items()} for line in lines]
    return pd.DataFrame(
        {"unit": line.unit_label, **own} for line, own in zip(lines, cells, strict=True)
    )


def value(
    variant: str,
    seed: int,
    number: float,
    direction: Direction = Direction.HIGHER,
    unit: str = "fraction",
) -> Row:
    return row_of(Metric("accuracy", number, unit, direction), job(variant, seed))


def values(
    direction: Direction = Direction.HIGHER, unit: str = "fraction", **arms: tuple[float, ...]
) -> list[Row]:
    return [
        value(arm, seed, number, direction, unit)
        for arm, every in arms.items()
        for seed, number in enumerate(every)
    ]


def cell(compared: pd.DataFrame, variant: str, **where: object) -> Cell:
    chosen = compared[compared["variant"] == variant]
    for column, wanted in where.items():
        chosen = chosen[chosen[column] == wanted]
    assert len(chosen) == 1
    return chosen.iloc[0]


def test_comparison_by_hand() -> None:
    compared = comparison(
        frame_of(values(gelu=(0.90, 0.94, 0.92), relu=(0.89, 0.92, 0.90))), "gelu"
    )
    found = cell(compared, "relu")
    # differences -0.01, -0.02, -0.02: variance 1/30000
    half = 4.302653 * math.sqrt(0.0001 / 3) / math.sqrt(3)
    assert found["mean"] == pytest.approx(0.903333, abs=1e-6)
    assert found["diff"] == pytest.approx(-1 / 60)
    assert found["diff_low"] == pytest.approx(-1 / 60 - half, abs=1e-7)
    assert (found["n"], found["n_pairs"], found["better"], found["status"]) == (3, 3, "worse", "ok")
    table = main_table(compared)
    assert table["gelu"].iloc[0] == "92.0 ± 5.0"
    assert table["relu"].iloc[0] == "90.3 ± 3.8 Δ −1.7 [−3.1, −0.2]"
    assert table["unit"].iloc[0] == "%, Δ in pp"


@pytest.mark.parametrize(
    ("direction", "better"),
    [(Direction.HIGHER, "worse"), (Direction.LOWER, "better"), (Direction.NEUTRAL, "")],
)
def test_better_follows_the_direction(direction: Direction, better: str) -> None:
    rows = values(direction, "count", gelu=(3.0,) * 3, relu=(0.0,) * 3)
    found = cell(comparison(frame_of(rows), "gelu"), "relu")
    assert (found["better"], found["resolved"], found["constant"], found["diff"]) == (
        better,
        True,
        True,
        -3.0,
    )


def test_a_seed_missing_in_one_arm_leaves_the_pairs_and_says_so() -> None:
    rows = [value("gelu", seed, 0.9) for seed in (0, 1, 2)]
    rows += [value("relu", seed, 0.8 + 0.01 * seed) for seed in (1, 2)]
    rows.append(failure_row(job("relu", 0), Status.TIMEOUT, "killed after 60 s"))
    compared = comparison(frame_of(rows), "gelu")
    found = cell(compared, "relu")
    assert (found["n"], found["n_pairs"], found["status"]) == (2, 2, "partial")
    assert (found["lack"], found["reason"]) == ("timeout (1/3)", "killed after 60 s")
    assert "n = 2 of 3, timeout (1/3)" in main_table(compared)["relu"].iloc[0]


def test_a_failed_job_fills_every_cell_of_its_step() -> None:
    compared = comparison(frame_of(sample_rows(samples=4)), "gelu")
    steps = compared.set_index(["workload", "step"])
    smt = steps.loc[("digits-mlp", "smt")]
    assert set(smt["metric"]) == {"verified_accuracy", "undecided_fraction"}
    for variant in ("gelu", "lambda-gelu"):
        cells = smt[smt["variant"] == variant]
        assert (
            cells[["lack", "reason", "status"]].to_numpy().tolist()
            == [["unsupported (3/3)", NO_ERF, "unsupported"]] * 2
        )
    everywhere = steps.loc[("digits-cnn", "smt")]
    assert list(everywhere["metric"].unique()) == [""]
    assert set(everywhere["lack"]) == {"unsupported (3/3)"}
    pruned = steps.loc[("digits-cnn", "prune")].query("variant == 'annealed'")
    assert list(pruned["n"]) == [2, 2, 2]
    assert set(pruned["reason"]) == {CRASH}
    # No cell is a gap, and NaN is never a number.
    lines = compared.groupby(["workload", "step", "metric", "setting"]).size()
    assert set(lines) == {5}
    assert (compared["n"].gt(0) | compared["lack"].ne("")).all()
    texts = (
        main_table(compared)[["gelu", "gelu-swap", "lambda-gelu", "annealed", "relu"]]
        .to_numpy()
        .ravel()
    )
    assert all(texts)
    assert not [text for text in texts if "nan" in text.lower() or "inf" in text.lower()]


def test_what_a_cell_has_no_number_for_is_named() -> None:
    rows = [value("gelu", 0, 0.9), value("relu", 0, 0.9), value("gelu", 1, 0.9)]
    rows.append(row_of(Metric("nll", 0.1, "nats", Direction.LOWER), job("relu", 0)))
    compared = comparison(frame_of(rows), "gelu")
    assert cell(compared, "relu", metric="accuracy")["lack"] == "absent (1/2)"
    assert cell(compared, "gelu", metric="nll")["lack"] == "missing (2/2)"
    rows = [value("gelu", 0, math.nan), value("gelu", 1, 0.5), value("gelu", 2, math.inf)]
    found = cell(comparison(frame_of(rows), "gelu"), "gelu")
    assert (found["n"], found["mean"], found["lack"]) == (1, 0.5, "failed (2/3)")
    metric = Metric("certificate", None, "verdict", Direction.NEUTRAL, verdict=Verdict.HOLDS)
    rows = [row_of(metric, job("gelu", seed)) for seed in (0, 1)]
    assert main_table(comparison(frame_of(rows), "gelu"))["gelu"].iloc[0] == "holds (2/2)"


def test_metrics_of_different_units_are_never_compared() -> None:
    rows = [value("gelu", 0, 1.0, unit="s"), value("relu", 0, 1000.0, unit="ms")]
    assert (comparison(frame_of(rows), "gelu")["n_pairs"] == 0).all()


def test_errors_of_comparison() -> None:
    frame = frame_of([value("relu", 0, 0.5)])
    with pytest.raises(ValueError, match="baseline 'gelu' has no rows; this run has relu"):
        comparison(frame, "gelu")
    with pytest.raises(ValueError, match="comparison of no rows"):
        comparison(frame.iloc[:0], "gelu")
    with pytest.raises(ValueError, match="two rows of 'accuracy'"):
        comparison(pd.concat([frame, frame]), "relu")


@pytest.mark.parametrize(
    ("unit", "values", "number", "text", "label"),
    [
        ("fraction", [0.962], 0.962, "96.2", "%"),
        ("fraction", [0.5], 0.00012, "0.01", "%"),
        ("fraction", [0.5], 2.3e-8, "2.3×10⁻⁶", "%"),
        ("count", [3466.0], 3466.0, "3,466", "count"),
        ("count", [2.5], 2.5, "2.5", "count"),
        ("s", [3.1e-5], 3.1e-5, "31.0", "µs"),
        ("bytes", [15_320.0], 15_320.0, "15.3", "kB"),
        ("ratio", [1.834], 1.834, "1.83", "ratio"),
        ("logit", [3e-7], -3e-7, "−3.0×10⁻⁷", "logit"),
        ("nats", [0.13], 0.0, "0", "nats"),
        ("nats", [0.0067], 0.0001, "0.0001", "nats"),
        ("nats", [0.0067], 0.00001, "1.0×10⁻⁵", "nats"),
    ],
)
def test_numbers(unit: str, values: list[float], number: float, text: str, label: str) -> None:
    scale = scale_of(unit, values)
    assert (scale.number(number), scale.unit) == (text, label)
    with pytest.raises(ValueError, match="nan is not a number"):
        scale.number(math.nan)


@pytest.mark.parametrize(
    ("spreads", "text"),
    [
        ([0.0083, 0.0007, 1.29], "1.8880"),
        ([0.013, 0.02], "1.89"),
        ([1e-6], "1.8880"),
        ([0.0, 0.0], "1.89"),
    ],
)
def test_decimals_follow_small_differences(spreads: list[float], text: str) -> None:
    assert scale_of("bits", [1.888], spreads).number(1.888) == text


def verdict(
    step: str, method: str, said: Verdict, *, eps: float = 0.03125, seed: int = 0, sample: int = 0
) -> Row:
    setting = {"eps": eps, "method": method}
    metric = Metric("robustness", None, "verdict", Direction.NEUTRAL, setting, sample, said)
    return row_of(metric, job("gelu", seed, step))


def test_planted_contradiction_is_found() -> None:
    rows = [
        verdict("bounds", "crown", Verdict.HOLDS),
        verdict("bounds", "ibp", Verdict.UNKNOWN),
        verdict("smt", "smt", Verdict.VIOLATED),
        verdict("bounds", "crown", Verdict.HOLDS, sample=1),
        verdict("smt", "smt", Verdict.HOLDS, sample=1),
        verdict("bounds", "crown", Verdict.HOLDS, sample=2),  # another eps is another property
        verdict("smt", "smt", Verdict.VIOLATED, sample=2, eps=0.0625),
        # another seed is another network
        verdict("smt", "smt", Verdict.VIOLATED, sample=2, seed=1),
    ]
    found = contradictions(frame_of(rows))
    assert found.comparisons == 2
    assert found.rows[["sample", "holds", "violated"]].to_numpy().tolist() == [
        [0, "bounds crown", "smt smt"]
    ]


def test_methods_that_cannot_disagree_are_no_comparison() -> None:
    rows = [verdict("bounds", method, Verdict.HOLDS) for method in ("ibp", "crown")]
    assert contradictions(frame_of(rows)).comparisons == 0
    rows += [
        verdict("bounds", "pgd", Verdict.UNKNOWN),
        verdict("bounds", "pgd", Verdict.VIOLATED, sample=1),
    ]
    assert contradictions(frame_of(rows)).comparisons == 2


def test_a_changed_network_may_differ_from_the_one_it_came_from() -> None:
    rows = [
        verdict("bounds", "crown", Verdict.HOLDS),
        verdict("pruned-bounds", "pgd", Verdict.VIOLATED),
    ]
    frame = frame_of(rows)
    assert contradictions(frame, {"bounds": "", "pruned-bounds": "prune"}).comparisons == 0
    assert len(contradictions(frame).rows) == 1


def test_verdict_counts_add_up_and_name_failed_jobs() -> None:
    frame = frame_of(sample_rows(samples=4))
    table = verdict_table(frame)
    counted = table[table["total"] > 0]
    assert counted["total"].sum() == frame["sample"].notna().sum()
    assert (counted[[each.value for each in Verdict]].sum(axis=1) == counted["total"]).all()
    pgd = counted[
        (counted["method"] == "pgd") & (counted["eps"] == "0.0625") & (counted["variant"] == "relu")
    ]
    assert set(pgd["holds"]) == {0}
    gelu = table[
        (table["workload"] == "digits-mlp")
        & (table["step"] == "smt")
        & (table["variant"] == "gelu")
    ]
    assert list(gelu["note"]) == [f"unsupported (3/3): {NO_ERF}"]


def test_failures_keep_every_reason() -> None:
    table = failures(frame_of(sample_rows(samples=1)))
    crashed = table[table["status"] == "crashed"]
    assert crashed[["workload", "step", "variant", "seeds", "reason"]].to_numpy().tolist() == [
        ["digits-cnn", "prune", "annealed", "1", CRASH]
    ]
    assert set(table[table["metric"] == "swap_drop"]["reason"]) == {"not swapped"}


def test_no_cell_of_a_spreadsheet_is_a_formula() -> None:
    frame = pd.DataFrame(
        {"=a": ["=1+1", "plain", "@x", None], "n": [-1.5, 2.0, float("nan"), 0.1], "b": True}
    )
    text = csv_text(frame)
    assert text == "'=a,n,b\n'=1+1,-1.5,True\nplain,2.0,True\n'@x,,True\n,0.1,True\n"
    pd.testing.assert_series_equal(pd.read_csv(io.StringIO(text))["n"], frame["n"])


def test_equal_texts_and_options_of_a_frame_are_one_object() -> None:
    """Of a million rows there are a few hundred, and a report copies its frame."""
    rows = sample_rows(seeds=(0, 1))
    options = {"prune": {"sparsity": 0.5, "norm": None}, "quantize-w8": {"bits": 8}}
    frame = frame_of(rows, options=options)
    assert frame["reason"].tolist() == [row.reason for row in rows]
    for name in ("workload", "setting", "key", "reason"):
        assert len({id(each) for each in frame[name]}) == frame[name].nunique()
    assert len({id(each) for each in frame["options"]}) == 3
    told = {"prune": {"sparsity": 0.5}, "quantize-w8": {"bits": 8}}
    assert frame["options"].tolist() == [told.get(row.step, {}) for row in rows]


def test_options_of_many_names_and_values_are_told_apart() -> None:
    """Twelve names of 64 values each have 2^72 combinations; half of the rows differ in the
    first name alone.
    """
    given = np.tile(np.random.default_rng(0).integers(64, size=(500, 12)), (2, 1))
    given[500:, 0] = (given[500:, 0] + 1) % 64
    rows = [{f"name_{place}": value for place, value in enumerate(each)} for each in given.tolist()]
    assert _shared([pa.array(rows), pa.array(rows[:7])]) == [*rows, *rows[:7]]


T3 = 3.182446  # The quantile of Student's t at 0.975, from a printed table.


@pytest.mark.parametrize("scale", [1.0, 1e-7])  # small but real values are not taken for rounding
def test_seed_difference_by_hand(scale: float) -> None:
    baseline = {0: 0.90, 1: 0.94, 2: 0.92, 3: 0.96}
    values = {0: 0.89, 1: 0.91, 2: 0.90, 3: 0.94}  # differences -0.01, -0.03, -0.02, -0.02
    scaled = [{seed: scale * value for seed, value in each.items()} for each in (values, baseline)]
    found = seed_difference(*scaled)
    half = T3 * math.sqrt(0.0002 / 3) / 2
    assert (found.n, found.constant, found.resolved) == (4, False, True)
    wanted = [scale * each for each in (-0.02, -0.02 - half, -0.02 + half, half)]
    assert [found.mean, found.low, found.high, found.half_width] == pytest.approx(wanted, rel=1e-6)


def test_pairing_drops_a_seed_that_one_arm_lacks() -> None:
    found = seed_difference({0: 1.0, 1: 3.0, 9: 100.0}, {0: 0.0, 1: 1.0, 2: 50.0})
    assert (found.n, found.mean) == (2, 1.5)
    assert seed_difference({0: 1.0}, {1: 1.0}) is None
    assert seed_difference({}, {0: 1.0}) is None


@pytest.mark.parametrize(
    ("values", "baseline", "difference", "constant", "resolved"),
    [
        ([1.0], [0.5], 0.5, False, False),  # one seed has no interval, and claims nothing
        # 0.1 in decimals, not in binary
        ([0.3, 0.2, 0.9], [0.2, 0.1, 0.8], pytest.approx(0.1), True, True),
        ([0.3, 0.1 + 0.2], [0.1 + 0.2, 0.3], 0.0, True, False),
    ],
)
def test_one_seed_and_equal_differences(
    values: list[float], baseline: list[float], difference: float, constant: bool, resolved: bool
) -> None:
    found = seed_difference(dict(enumerate(values)), dict(enumerate(baseline)))
    assert (found.mean, found.constant, found.resolved) == (difference, constant, resolved)
    assert (found.low, found.high) == ((found.mean,) * 2 if constant else (None, None))
    assert constant or found.half_width is None


def test_empty_and_unfit_input_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
    with pytest.raises(ValueError, match="not finite: nan"):
        mean_interval([1.0, math.nan])
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 1"):
        mean_interval([1.0], level=1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9), st.floats(-1e3, 1e3))
def test_interval_contains_its_mean_and_shifts_with_the_values(
    values: list[float], shift: float
) -> None:
    found, moved = mean_interval(values), mean_interval([value + shift for value in values])
    assert found.low <= found.mean <= found.high
    assert moved.mean == pytest.approx(found.mean + shift, abs=1e-6)


@pytest.mark.parametrize(
    ("p_values", "adjusted", "told"),
    [
        # 0.01 x 4, then 0.015 x 3 and 0.03 x 2: the second and all that come after it are not left
        # where one is not.
        (
            [0.01, 0.04, 0.015, 0.03],
            [0.04, 0.06, 0.045, 0.06],
            "2 after Holm's adjustment for all 4",
        ),
        ([0.01, 0.04, 0.02, 0.03], [0.04, 0.06, 0.06, 0.06], "1 after Holm's adjustment for all 4"),
        ([0.02] * 3, [0.06] * 3, "none after Holm's adjustment for all 3"),
    ],
)
def test_holm_by_hand(p_values: list[float], adjusted: list[float], told: str) -> None:
    assert holm(p_values) == pytest.approx(adjusted)
    assert after_holm(p_values) == told
    assert holm([]) == []


@pytest.mark.parametrize(
    ("degrees", "place"), [(1, 0.975), (2, 0.5), (4, 0.975), (29, 0.8), (4, 0.99999)]
)
def test_students_t_is_scipys_to_the_bit(degrees: int, place: float) -> None:
    """Reports compute it without scipy.stats, whose import takes longer than a small report's
    tables.
    """
    found = t_quantile(place, degrees)
    assert found == student.ppf(place, degrees)
    assert (
        two_sided_p(-found, degrees)
        == two_sided_p(found, degrees)
        == 2 * student.sf(found, degrees)
    )
