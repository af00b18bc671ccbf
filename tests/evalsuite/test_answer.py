"""The answer: which part each conclusion stands in, what limits it, and the answer of several
runs together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from report_workshop import metric_rows, read_run
from scipy.stats import ttest_1samp

from evalsuite.contract import Direction
from evalsuite.own.assessing import _table
from evalsuite.report.answer import Answer, Kind, joined
from evalsuite.report.cells import MatrixCell, Reading
from evalsuite.report.conclusions import read_rows
from evalsuite.report.grids import Grid, GridCell, with_tones
from evalsuite.report.matrix import Matrix, matrix_row
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.opening import opening_of
from evalsuite.report.section import Contrast, Endpoint, Evidence
from evalsuite.report.sentences import Item, _with_one_doubt, lines_of, verdict_of
from evalsuite.report.statistics import Estimate, margin_p, mean_interval

SEEDS = (0.001, -0.001, 0.0005, -0.0005, 0.0002)
WIDE = (0.05, -0.05, 0.03, -0.04, 0.01)


def evidence(gap: float, spread: Sequence[float] = SEEDS, label: str = "w") -> Evidence:
    own = {seed: 0.9 + gap + more for seed, more in enumerate(spread)}
    return Evidence(Contrast(label, own, dict.fromkeys(own, 0.9)))


def row_of(
    found: Mapping[str, Evidence], question: str = "q", unit: str = "fraction", **more: object
) -> MatrixRow:
    endpoint = Endpoint(question, lambda run, workload, variant: None, unit, Direction.HIGHER, 0.01)
    return matrix_row("s", endpoint, found, dict.fromkeys(found, 5), **more)  # type: ignore[arg-type]


def answer_of(*rows: MatrixRow) -> Answer:
    names = tuple(dict.fromkeys(name for row in rows for name in row.cells))
    return Answer.of(Matrix("relu", "gelu", names, read_rows(rows)))


def placed(answer: Answer) -> dict[tuple[str, str], str]:
    return {
        (each.row.endpoint.question, each.workload): each.kind.value for each in answer.statements
    }


def test_each_conclusion_stands_in_its_part() -> None:
    answer = answer_of(
        row_of({"w": evidence(0.05)}, "gain"),
        row_of({"w": evidence(-0.05)}, "loss"),
        row_of({"w": evidence(0.0)}, "same"),
        row_of({"w": evidence(0.0, WIDE)}, "open"),
        row_of({"w": evidence(0.2, (0.0,) * 5)}, "fact", "share"),
        row_of({"w": evidence(-0.2, (0.0,) * 5)}, "bad fact", "share"),
        row_of({"w": evidence(0.0, (0.0,) * 5)}, "equal fact", "share"),
        row_of({"w": Evidence(Contrast("w", reason="crashed"))}, "lost"),
    )
    parts = {question: kind for (question, _), kind in placed(answer).items()}
    assert parts == {
        "gain": "Buys",
        "loss": "Costs",
        "same": "No difference that matters",
        "open": "Cannot be told",
        "fact": "Buys",
        "bad fact": "Costs",
        "equal fact": "No difference that matters",
        "lost": "Cannot be told",
    }
    fact = answer.part(Kind.BUYS)["fact"][0]
    assert fact.notes == ["a fact of the network, not tested"]
    assert (fact.cell.p, fact.cell.p_adjusted) == (None, None)
    assert json.loads(json.dumps(answer.record))["statements"][0]["kind"] == "Buys"


def test_a_fact_is_counted_among_no_tests() -> None:
    (tested, _) = read_rows(
        [row_of({"w": evidence(0.0, WIDE)}), row_of({"w": evidence(0.2, (0.0,) * 5)}, "f", "share")]
    )
    assert tested.cells["w"].p_adjusted == tested.cells["w"].p


def test_no_worse_is_adjusted_over_the_table() -> None:
    """One test of a loss of the margin passes at 2 %; among ten alike it does not."""
    spread = (0.006, -0.006, 0.003, -0.003, 0.0)
    row = row_of({"w": evidence(0.0, spread)})
    p = 2 * ttest_1samp(np.asarray(spread) + 0.01, 0.0, alternative="greater").pvalue
    alone, among = (read_rows([row] * count)[0].cells["w"] for count in (1, 10))
    assert (alone.reading, alone.margin_p) == (Reading.NO_WORSE, pytest.approx(p))
    assert 0.05 / 10 < p < 0.05
    assert (among.reading, among.margin_p) == (Reading.UNRESOLVED, pytest.approx(10 * p))


@pytest.mark.parametrize("way", [1, -1])
def test_the_p_value_of_a_loss_agrees_with_the_interval(way: int) -> None:
    """Where the interval ends at the margin, p is 5 %."""
    found = mean_interval([way * each for each in WIDE])
    end = -found.low if way > 0 else found.high
    assert margin_p(found, end, way) == pytest.approx(0.05)
    assert margin_p(found, end * 1.01, way) < 0.05
    assert margin_p(mean_interval([-way * 1.0, -way * 1.1]), 0.5, way) == 1.0
    assert margin_p(Estimate(0.1, 0.1, 0.1, 3, constant=True), 0.5, way) is None


def test_a_conclusion_that_one_seed_turns_over_is_fragile() -> None:
    steady = (0.020, 0.021, 0.019, 0.0205, 0.0195)
    leaning = (0.010, 0.022, 0.021, 0.003, 0.0205)
    cells = [
        read_rows([row_of({"w": evidence(0.0, spread)})])[0].cells["w"]
        for spread in (steady, leaning)
    ]
    assert [cell.reading for cell in cells] == [Reading.HELPS] * 2
    without = [ttest_1samp(np.delete(leaning, seed), 0.0).pvalue for seed in range(5)]
    assert max(without) > 0.05
    assert [cell.fragile for cell in cells] == [False, True]
    assert cells[1].words == "helps, fragile"


def test_a_large_open_loss_is_named_beside_small_gains() -> None:
    """Nine workloads gain a little, and the tenth may have lost a lot."""
    found = {f"w{i}": evidence(0.004) for i in range(9)} | {
        "x": evidence(-0.03, tuple(3 * each for each in WIDE))
    }
    (row,) = read_rows([row_of(found)])
    assert row.cells["x"].reading is Reading.UNRESOLVED
    said = "a loss of the margin or more is not excluded on x"
    matrix = Matrix("relu", "gelu", tuple(found), (row,))
    for reading in (Reading.HELPS, Reading.NO_WORSE, Reading.UNRESOLVED):
        pooled = replace(row.pooled, reading=reading)
        assert (said in pooled.words) is (reading is not Reading.UNRESOLVED)
        assert said in replace(matrix, rows=(replace(row, pooled=pooled),)).sentence


def test_failed_seeds_and_cuts_of_the_same_data_are_said() -> None:
    (row,) = read_rows([row_of({"w": evidence(0.05, SEEDS[:4]), "v": evidence(0.05)}, cuts=("v",))])
    assert row.cells["v"].words == "helps, on these data"
    assert row.pooled.words.endswith("on these data")
    sentence = Matrix("relu", "gelu", ("w", "v"), (row,)).sentence
    assert "w: n = 4 of 5 seeds" in sentence
    assert "on these data" in sentence


def test_a_mean_that_is_no_worse_does_not_hide_what_it_costs_somewhere() -> None:
    family = [evidence(0.03, label="8 bits").primary, evidence(-0.03, label="4 bits").primary]
    (row,) = read_rows([row_of({"w": replace(evidence(0.002), family=family)})])
    answer = answer_of(row_of({"w": replace(evidence(0.0), family=family)}))
    assert placed(answer) == {("q", "w"): "Costs"}
    assert answer.statements[0].notes == ["mixed: no worse on the mean, and costs at 4 bits"]
    assert row.cells["w"].reading is not Reading.HELPS


def test_the_verdict_is_no_better_than_the_quality_of_every_workload() -> None:
    """A gain beside quality that is kept on one workload, and on the other kept, lost, or open."""
    gain = row_of({"v": evidence(0.05), "w": evidence(0.05)}, "gain")
    verdicts = {}
    for name, other in {
        "kept": evidence(0.0),
        "lost": evidence(-0.05),
        "open": evidence(0.0, WIDE),
        "open and far below": evidence(-0.03, WIDE),
    }.items():
        quality = row_of({"v": evidence(0.0), "w": other}, "quality")
        verdicts[name] = verdict_of(answer_of(quality, gain))
    assert verdicts == {
        "kept": "Yes",
        "lost": "No",
        "open": "Not settled",
        "open and far below": "Not settled",
    }


def test_a_doubt_that_items_share_keeps_its_words() -> None:
    """The reason has a "which" of its own."""
    reason = "the seeds lie closer together than elsewhere in this table, which may be chance"
    (row,) = answer_of(row_of({"w": evidence(0.0, WIDE)})).statements
    item = Item("q", "Quality differs by", "0.0", "", "on w", row)
    items = [replace(item, doubt=f"from which nothing is concluded: {reason}")] * 2
    shown, note = _with_one_doubt(items)
    assert [item.doubt for item in shown] == ["", ""]
    assert note == f"From these numbers nothing is concluded: {reason}."


def test_a_later_run_takes_an_earlier_ones_place() -> None:
    first = Matrix(
        "relu", "gelu", ("a", "b"), read_rows([row_of({"a": evidence(0.05), "b": evidence(0.05)})])
    )
    second = Matrix("relu", "gelu", ("b",), read_rows([row_of({"b": evidence(-0.05)})]))
    answer = joined([("old", first), ("new", second)])
    assert placed(answer) == {("q", "a"): "Buys", ("q", "b"): "Costs"}
    assert answer.studies == {("q", "a"): "old", ("q", "b"): "new"}
    (row,) = answer.matrix.rows
    assert row.pooled.estimate.mean == pytest.approx(0.0, abs=1e-3)
    with pytest.raises(ValueError, match="one variant and one baseline"):
        joined([("old", first), ("new", replace(second, variant="silu"))])


def test_what_deployment_takes_stands_beside_the_deployed_quality() -> None:
    """The variant has lost before: the integers take less from it, and it is no better."""
    levels = {"gelu": (0.95, 0.96, 0.955), "relu": (0.91, 0.92, 0.915)}
    deployed = {"gelu": (0.91, 0.92, 0.915), "relu": (0.90, 0.91, 0.905)}
    rows = [
        *metric_rows("accuracy", levels, "accuracy"),
        *metric_rows("integer_accuracy", deployed, "q", "quantize"),
    ]
    options = {"q": {"weight_bits": 4, "act_bits": 4, "placement": "post", "qat_epochs": 0}}
    (matrix,) = read_run(rows, options).matrices
    answer = Answer.of(matrix)
    own, other = answer.taken["accuracy with 4-bit integers", "w"]
    assert (own, other) == (pytest.approx(0.01), pytest.approx(0.04))
    row = next(
        row for row in matrix.rows if row.endpoint.question == "accuracy with 4-bit integers"
    )
    assert row.cells["w"].estimate.mean == pytest.approx(-0.01)


def test_a_language_models_next_token_is_no_accuracy_in_float() -> None:
    values = {"gelu": (0.5, 0.51, 0.52), "relu": (0.5, 0.52, 0.51)}
    rows = [
        *metric_rows("accuracy", values, "accuracy"),
        *metric_rows("bits_per_byte", values, "accuracy"),
    ]
    (matrix,) = read_run(rows).matrices
    assert [row.endpoint.question for row in matrix.rows] == ["bits per byte in float"]


def test_quality_under_attack_is_asked_where_an_attack_was_run() -> None:
    rows = []
    for eps, loss in ((0.01, 0.10), (0.02, 0.30)):
        values = {"gelu": (0.8, 0.81, 0.82), "relu": [each - loss for each in (0.8, 0.811, 0.819)]}
        rows += metric_rows("pgd_accuracy", values, "bounds", eps=eps)
    (matrix,) = read_run(rows).matrices
    (row,) = [row for row in matrix.rows if row.endpoint.question == "accuracy under attack"]
    cell = row.cells["w"]
    assert cell.estimate.mean == pytest.approx(-0.2)
    assert cell.reading is Reading.COSTS
    assert cell.losses == ("ε = 1/100", "ε = 1/50")


def test_quality_under_attack_is_by_the_strongest_attack_that_both_arms_have() -> None:
    def answered(arms: tuple[str, ...]) -> MatrixCell:
        """Of rows in which these arms have the worst of AutoAttack's attacks beside PGD."""
        rows = []
        for eps in (0.01, 0.02):
            weak = {"gelu": (0.8, 0.81, 0.82), "relu": (0.7, 0.71, 0.73)}
            rows += metric_rows("pgd_accuracy", weak, "bounds", eps=eps)
            strong = {name: [each - 0.2 for each in weak[name]] for name in arms}
            strong |= {"relu": (0.5, 0.51, 0.54)} if "relu" in arms else {}
            rows += metric_rows("attacked_accuracy", strong, "bounds", eps=eps)
            by_one = {name: [each + 0.1 for each in strong[name]] for name in arms}
            rows += metric_rows("attacked_accuracy", by_one, "bounds", eps=eps, method="square")
        (matrix,) = read_run(rows).matrices
        (row,) = [row for row in matrix.rows if row.endpoint.question == "accuracy under attack"]
        return row.cells["w"]

    cell = answered(("gelu", "relu"))
    assert cell.label.startswith("mean over ε, APGD and Square")
    assert cell.estimate.mean == pytest.approx(-0.28 / 3)
    # An arm without the newer rows: both are read by PGD, which the label says.
    older = answered(("gelu",))
    assert older.label.startswith("mean over ε, PGD")
    assert older.estimate.mean == pytest.approx(-0.29 / 3)


def test_a_first_look_tells_counts_of_few_samples() -> None:
    """One network, and a stage that looks at five samples: "4 of 5", in the terminal and the
    report.
    """
    levels = {"gelu": (0.8,), "relu": (1.0,)}
    rows = metric_rows("certified_accuracy", levels, "bounds", eps=0.01, method="crown")
    run = read_run(rows, {"bounds": {"samples": 5}})
    (cell,) = run.matrices[0].rows[0].cells.values()
    assert cell.counted == ("5 of 5", "4 of 5")
    line = next(each for each in _table(run.frame) if each.startswith("bounds"))
    assert line.split("  ", 1)[0] == "bounds: certified_accuracy (eps=0.01, method=crown)"
    assert line.split()[-6:] == ["4", "of", "5", "5", "of", "5"]
    ranked, other = opening_of(run, lambda _variant, _question: "").ranking.rows
    assert {ranked.cells[1][0], other.cells[1][0]} == {"4 of 5", "5 of 5"}
    texts = [item.text for line in lines_of(Answer.of(run.matrices[0])) for item in line.items]
    assert any(
        "is 5 of 5 test samples, 4 of 5 for the baseline" in text and "%" not in text
        for text in texts
    )
    # Of many samples, or several seeds, there are shares.
    many = read_run(rows, {"bounds": {"samples": 50}})
    assert next(iter(many.matrices[0].rows[0].cells.values())).counted is None


def test_a_table_marks_only_what_its_own_adjustment_leaves() -> None:
    strong, weak = Estimate(0.02, 0.01, 0.03, 5, p=0.001), Estimate(0.01, 0.001, 0.019, 5, p=0.03)
    quiet = [GridCell("0", difference=Estimate(i / 1e4, -0.1, 0.1, 5, p=0.5)) for i in range(5)]
    cells = (
        GridCell("2", tone="better", difference=strong),
        GridCell("1", tone="better", difference=weak),
        *quiet,
    )
    (row,) = with_tones(Grid("g", "", (), (cells,)), {}).rows
    assert [cell.tone for cell in row[:2]] == ["better", ""]
    (alone,) = with_tones(Grid("g", "", (), (cells[1:2],)), {}).rows
    assert alone[0].tone == ""  # of five seeds, for which 0.03 is too much
    many = GridCell("1", tone="better", difference=replace(weak, n=10))
    (alone,) = with_tones(Grid("g", "", (), ((many,),)), {}).rows
    assert alone[0].tone == "better"


def test_a_ratio_of_times_is_not_marked_where_nobody_says_what_ran_beside_it() -> None:
    values = {"gelu": (1.0, 1.01, 0.99), "relu": (0.5, 0.505, 0.495)}
    rows = metric_rows("latency_ratio", values, "export", batch=1)
    for load, mark in ((0.1, True), (3.0, False), (None, False)):
        compared = read_run([replace(row, load=load) for row in rows]).compared
        line = compared[compared["variant"] == "relu"].iloc[0]
        assert bool(line["timing"])
        assert (bool(line["better"]), bool(line["resolved"])) == (mark, mark)


def test_an_unread_cell_is_no_statement() -> None:
    cell = MatrixCell(Reading.UNMEASURED, reason="not asked")
    row = replace(row_of({"w": evidence(0.0)}), cells={"w": cell})
    assert Answer.of(Matrix("relu", "gelu", ("w",), (row,))).statements == ()
