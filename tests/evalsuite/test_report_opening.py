"""The first screen of a page: four lines from the answer, the strip plot, the plane and the
ranking.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_workshop import metric_rows, read_run

from evalsuite.reluize.report.naming import _SPELLED, _WITH_A_HARDNESS, called
from evalsuite.report.answer import Answer, Kind
from evalsuite.report.cells import Reading
from evalsuite.report.frontier import Plane, Point, plane_of
from evalsuite.report.opening import (
    answers_json,
    best_of,
    opening_of,
    paired_by,
    ranking_of,
    terminal_lines,
)
from evalsuite.report.plane import plane_svg
from evalsuite.report.run import Run
from evalsuite.report.sentences import lines_of, summary_of, verdict_of
from evalsuite.report.strip import BEYOND
from lambda_gelu.harden_network import hardenable_form

REPORTS = Path(__file__).parents[2] / "reports"
NAMES = ("gelu", "relu", "swap")
KINDS = ["Buys", "Costs", "No difference that matters", "Cannot be told"]


@pytest.fixture(scope="module", params=["sample", "cifar10", "language-downstream"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run.of(REPORTS / str(request.param))


def test_each_variant_has_four_lines_of_at_most_three_items(run: Run) -> None:
    opening = opening_of(run, lambda variant, question: f"#{variant}-{question}")
    assert [screen.variant for screen in opening.screens] == [
        matrix.variant for matrix in run.matrices
    ]
    for screen in opening.screens:
        assert [line.kind.value for line in screen.lines] == KINDS
        assert all(len(line.items) <= 3 for line in screen.lines)


def test_the_json_holds_the_numbers_of_the_answer(run: Run) -> None:
    record = json.loads(answers_json(run))
    assert record["question"] == run.question
    answers = [Answer.of(matrix) for matrix in run.matrices]
    expected = [answer.record | {"in_short": summary_of(answer)} for answer in answers]
    assert record["answers"] == json.loads(json.dumps(expected))


def test_drawings_are_sound_svg_with_a_text_for_those_who_cannot_see_them(run: Run) -> None:
    opening = opening_of(run, lambda _variant, question: f"#{question}")
    for svg in [opening.plane, *(screen.strip for screen in opening.screens if screen.strip)]:
        element = ElementTree.fromstring(svg)
        assert element.get("aria-label")
        assert not re.search(r"nan|inf(?!o)", svg.split(">", 1)[1].lower().replace("float", ""))


def test_the_plane_says_which_form_costs_one(run: Run) -> None:
    """In language-downstream no float file was exported: its size is that of the file that was
    quantized.
    """
    plane = plane_of(run)
    assert plane is not None
    own = [
        point.cost
        for point in plane.points
        if (point.variant, point.form) == (run.baseline, plane.base)
    ]
    assert pytest.approx(1.0) in own
    assert plane.base == "float"
    assert f"{plane.base} = 1)" in opening_of(run, lambda *_: "#").plane_title


def test_the_frontier_is_what_nothing_is_better_and_cheaper_than() -> None:
    points = tuple(
        Point("relu", form, quality, cost)
        for form, quality, cost in [
            ("a", 0.9, 1.0),
            ("b", 0.8, 0.5),
            ("c", 0.7, 0.6),
            ("d", 0.95, 2.0),
        ]
    )
    assert [point.form for point in Plane(points, ("w",), "fraction", 1, "time", "a").frontier] == [
        "b",
        "a",
        "d",
    ]
    assert [point.form for point in Plane(points, ("w",), "bits", -1, "time", "a").frontier] == [
        "b",
        "c",
    ]


def test_the_ranking_marks_the_best_of_each_column(run: Run) -> None:
    ranking = ranking_of(run)
    assert ranking is not None
    assert run.baseline in {ranked.variant for ranked in ranking.rows}
    for column in range(len(ranking.columns)):
        assert sum(ranked.cells[column][1] for ranked in ranking.rows) <= len(ranking.rows) - 1


def test_one_sentence_says_what_the_four_lines_say(run: Run) -> None:
    for matrix in run.matrices:
        answer = Answer.of(matrix)
        summary = summary_of(answer)
        gains, losses, same = (
            {
                rows[0].row.endpoint.words
                for rows in answer.part(kind).values()
                if any(one.cell.reading is not Reading.MIXED for one in rows)
            }
            for kind in (Kind.BUYS, Kind.COSTS, Kind.SAME)
        )
        mixed = {
            one.row.endpoint.words for one in answer.statements if one.cell.reading is Reading.MIXED
        }
        asked = {statement.row.endpoint.words for statement in answer.statements}
        still = asked - gains - losses - same - mixed
        word, rest = summary.split(": ", 1)
        assert word == verdict_of(answer)
        assert word.split(",")[0] in ("Yes", "No", "A trade", "It hardly matters", "Not settled")
        assert gains or word not in ("Yes", "A trade")
        assert losses or word not in ("No", "A trade")
        assert (f"{len(still)} of {len(asked)} questions" in rest) == bool(still)
        assert ("loses in" in rest, "gains in" in rest) == (bool(losses), bool(gains))


@pytest.mark.parametrize(
    ("study", "variant", "word"),
    [
        ("cifar10", "gelu-swap", "No"),
        ("cifar10", "annealed", "Not settled, looks worse"),
        ("cifar10", "swap-refit", "Not settled, looks worse"),
        ("quantize", "annealed", "Yes"),
        ("downstream", "annealed", "It hardly matters"),
        ("language", "relu", "Not settled"),
    ],
)
def test_the_verdict_hangs_on_quality_that_matters(study: str, variant: str, word: str) -> None:
    matrices = Run.of(REPORTS / study).matrices
    (matrix,) = [matrix for matrix in matrices if matrix.variant == variant]
    assert verdict_of(Answer.of(matrix)) == word


def test_a_part_without_an_item_names_the_largest_that_is_open() -> None:
    lines = lines_of(Answer.of(Run.of(REPORTS / "cifar10").matrices[0]))
    (costs,) = [line for line in lines if line.kind is Kind.COSTS]
    assert costs.nothing == (
        "No loss is concluded. But this looks like one: accuracy under attack "
        "(−7.8 points [−11.0, −4.7])."
    )


def test_times_of_the_plane_are_of_the_baseline_in_float() -> None:
    """Eight bits take longer than float on the smallest networks; a ratio of two networks of
    eight bits does not say so.
    """
    accuracy = {"gelu": (0.9,), "relu": (0.8,)}
    clocks = [
        *metric_rows("relative_latency", {"gelu": (1.0,), "relu": (0.9,)}, "export", batch=1),
        *metric_rows("latency_ratio", {"gelu": (0.5,), "relu": (0.8,)}, "q", "quantize", batch=1),
        *metric_rows(
            "relative_latency",
            {"gelu": (1.0,), "relu": (0.6,)},
            "q",
            "quantize",
            batch=1,
            precision="int8",
        ),
    ]
    rows = [
        *metric_rows("accuracy", accuracy),
        *metric_rows("runtime_accuracy", accuracy, "q", "quantize"),
        *(replace(row, load=0.1) for row in clocks),
    ]
    plane = plane_of(read_run(rows, {"q": {"weight_bits": 8}}))
    assert plane is not None
    assert plane.cost == "time of one sample"
    times = {(point.variant, point.form): point.cost for point in plane.points}
    assert times == pytest.approx(
        {
            ("gelu", "float"): 1.0,
            ("relu", "float"): 0.9,
            ("gelu", "8 bits"): 1.0 / 0.5,
            ("relu", "8 bits"): 0.9 / 0.8,
        }
    )


def test_a_loss_of_most_of_the_accuracy_is_a_cost() -> None:
    """Three seeds are enough to say so where ReLU put in directly leaves 10 %."""
    run = Run.of(REPORTS / "cifar10")
    (matrix,) = [matrix for matrix in run.matrices if matrix.variant == "gelu-swap"]
    (row,) = [row for row in matrix.rows if row.endpoint.question == "accuracy in float"]
    assert {cell.reading for cell in row.cells.values()} == {Reading.COSTS}
    assert "loses in accuracy in float" in summary_of(Answer.of(matrix))


def test_a_doubt_that_several_numbers_share_is_told_once() -> None:
    (line,) = [
        line
        for line in lines_of(Answer.of(Run.of(REPORTS / "sample").matrices[0]))
        if line.kind is Kind.UNKNOWN
    ]
    assert len(line.items) == 3
    assert not any("skewed" in item.text for item in line.items)
    assert line.note == (
        "From these numbers nothing is concluded: the differences of this table are strongly "
        "skewed."
    )


def test_the_best_treatment_is_told_with_its_gain_and_its_cost() -> None:
    run = Run.of(REPORTS / "cifar10")
    ranking = ranking_of(run)
    assert ranking is not None
    first = next(row for row in ranking.rows if row.variant != run.baseline)
    told = best_of(run)
    assert told.startswith(f"{first.words}: {ranking.by} ")
    # The number is that of its own matrix, and so are the questions that it buys and costs.
    matrix = next(each for each in run.matrices if each.variant == first.variant)
    row = next(each for each in matrix.rows if each.endpoint.words == ranking.by)
    (cell,) = row.cells.values()
    assert cell.difference(row.scale) in told
    for kind, verb in ((Kind.BUYS, "it gains in "), (Kind.COSTS, "it loses in ")):
        asked = [own[0].row.endpoint.words for own in Answer.of(matrix).part(kind).values()]
        assert all(words in told.split("; ", 1)[1] for words in asked)
        assert (verb in told) == bool(asked)
    assert terminal_lines(run)[-1] == f"{'Best treatment':<28}{told}"
    assert opening_of(run, lambda *_: "#").best == told


def test_a_network_without_the_activation_of_the_question_is_not_the_best() -> None:
    """λ-GELU leads the ranking of the sample, and is no ReLU network."""
    run = Run.of(REPORTS / "sample")
    assert "lambda-gelu" in run.compared_variants
    assert run.candidates == ["annealed", "gelu-swap", "relu"]
    assert best_of(run).split(":")[0] in {run.names[name] for name in run.candidates}


def test_of_one_treatment_none_is_the_best() -> None:
    run = Run.of(REPORTS / "cifar10")
    frame = run.frame[run.frame.variant.isin([run.baseline, run.others[0]])]
    assert best_of(Run(frame, run.record, run.baseline)) == ""


def test_the_terminal_has_at_most_ten_lines_below_the_question(run: Run) -> None:
    question, *lines = terminal_lines(run)
    assert question.startswith(run.question)
    assert 5 <= len(lines) <= 10


def test_every_form_of_the_baseline_is_drawn() -> None:
    """The middle of all points lies near the best here: the narrow form was left out as a whole."""
    forms = {"float": 1.886, "8 bits": 1.887, "pruned": 1.889, "4 bits": 2.07}
    points = [
        Point(variant, form, quality + worse, cost)
        for cost, (form, quality) in enumerate(forms.items(), start=1)
        for variant, worse in (("gelu", 0.001), ("relu", 0.0))
    ]
    plane = Plane((*points, Point("swap", "float", 5.0, 1.0)), ("w",), "bits", -1, "time", "float")
    svg, caption = plane_svg(plane, dict.fromkeys(NAMES, "n"), "gelu")
    assert all(svg.count(f"<title>n, {form}: ") == 2 for form in forms)
    assert "1 point of lower quality is not drawn" in caption


def test_the_ranking_tells_close_numbers_apart() -> None:
    ranking = ranking_of(Run.of(REPORTS / "language-downstream"))
    assert ranking is not None
    assert len({ranked.cells[1][0] for ranked in ranking.rows}) == len(ranking.rows)


def test_a_number_that_only_the_adjustment_leaves_open_says_so() -> None:
    (line,) = [
        line
        for line in lines_of(Answer.of(Run.of(REPORTS / "cifar10").matrices[0]))
        if line.kind is Kind.UNKNOWN
    ]
    first, second, third = line.items
    assert first.question == "accuracy under attack"
    assert "may be chance among so many tests" in second.text
    assert all("−" in item.number for item in (first, second, third))


@pytest.mark.parametrize(
    ("study", "question"),
    [
        ("cifar10", "accuracy with 4-bit integers"),
        ("language-downstream", "bits per byte with 8-bit integers"),
    ],
)
def test_the_plane_draws_the_number_that_the_answer_is_of(study: str, question: str) -> None:
    """One number is integer-only arithmetic's, another ONNX Runtime's; a page shows the same of
    them in both places.
    """
    run = Run.of(REPORTS / study)
    plane = plane_of(run)
    (row,) = [row for row in run.matrices[0].rows if row.endpoint.question == question]
    (cell,) = row.cells.values()
    assert plane is not None
    assert cell.levels is not None
    form = "4 bits" if "4" in question else "8 bits"
    drawn = [
        point.quality for point in plane.points if (point.variant, point.form) == ("annealed", form)
    ]
    assert drawn == [pytest.approx(cell.levels[0])]


def test_the_subject_is_found_by_its_treatment_whatever_it_is_named() -> None:
    run = Run.of(REPORTS / "sample")
    first = run.compared_variants[0]
    frame = run.frame.assign(variant=run.frame.variant.map(lambda name: f"silu-{name}"))
    frame = frame.sort_values("variant", key=lambda names: names == f"silu-{first}", kind="stable")
    renamed = Run(frame, run.record, f"silu-{run.baseline}")
    assert renamed.others[-1] == f"silu-{first}"
    assert renamed.compared_variants[0] == f"silu-{first}"


def test_the_first_screen_says_of_how_many_samples_and_what_is_zero_in_both() -> None:
    run = Run.of(REPORTS / "cifar10")
    opening = opening_of(run, lambda *_: "#")
    (unknown,) = [line for line in opening.screens[0].lines if line.kind is Kind.UNKNOWN]
    assert unknown.items[0].before == "Accuracy under attack (n = 100 of 10,000) differs by"
    # A latency beyond its margin is named, though it is not among the first items.
    assert "latency in 8 bits" in unknown.beyond
    strip = opening.screens[0].strip
    assert ">0 % in both</text>" in strip
    assert "certified accuracy (n = 100 of 10,000)" in strip
    assert "cifar10-resnet8</text>" not in strip  # the only workload needs no name


def test_each_mark_of_several_workloads_has_its_name() -> None:
    opening = opening_of(Run.of(REPORTS / "sample"), lambda *_: "#")
    for strip in (opening.screens[0].strip, opening.screens[0].narrow):
        marks = strip.count("<title>") + strip.count(" in both</text>")
        assert strip.count("digits-mlp</text>") + strip.count("digits-cnn</text>") == marks > 9


def test_the_ranking_has_the_key_of_the_plane_and_six_rows_with_the_baseline() -> None:
    opening = opening_of(Run.of(REPORTS / "cifar10"), lambda *_: "#")
    assert opening.ranking is not None
    assert {row.variant for row in opening.ranking.rows} == set(opening.key)
    many = ranking_of(Run.of(REPORTS / "reluize"))
    assert many is not None
    assert len(many.first) == 6 < len(many.rows)
    assert many.baseline in {row.variant for row in many.first}


def test_a_dash_beside_more_than_the_baseline_is_explained() -> None:
    sample, cifar = (ranking_of(Run.of(REPORTS / study)) for study in ("sample", "cifar10"))
    assert sample is not None
    assert cifar is not None
    assert sample.unasked == "the question does not ask for it"  # λ-GELU is no ReLU network
    assert cifar.unasked == ""


def test_one_seed_is_not_called_paired_by_seed() -> None:
    run = Run.of(REPORTS / "cifar10")
    assert paired_by(run) == "paired by seed"
    one = Run(run.frame[run.frame.seed == run.frame.seed.min()], run.record, run.baseline)
    assert paired_by(one) != "paired by seed"
    assert paired_by(one).startswith("one network of each")


def test_names_say_whether_the_hardness_is_learnt() -> None:
    assert called("annealed", {})[0] == "annealed to ReLU"
    assert called("annealed", {"learn": False})[0] == "annealed to ReLU from a fixed hardness"
    assert called("lambda-gelu", {}) == ("λ-GELU, hardness learnt", "λ-GELU")
    assert called("lambda-gelu", {"learn": "False"}) == ("λ-GELU, hardness fixed", "λ-GELU")
    assert called("lambda-gelu", {"activation": "swish"}) == ("Swish, hardness learnt", "Swish")
    assert called("lambda-gelu", {"activation": "mish"})[0] == "λ-Mish, hardness learnt"
    assert called("annealed", {"activation": "gelu-tanh"})[0] == "annealed to ReLU"
    assert called("annealed", {"activation": "swish"})[0] == "Swish annealed to ReLU"
    swapped = "λ-GELU fixed, then ReLU put in directly"
    assert called("lambda-gelu-swap", {"learn": False}) == (swapped, "ReLU")


def test_the_names_of_a_report_stand_for_the_forms_with_a_hardness() -> None:
    for name, form in _WITH_A_HARDNESS.items():
        assert hardenable_form(name) == form
        assert form in _SPELLED


@pytest.mark.parametrize("name", ["cifar10", "sample", "downstream"])
def test_an_arrow_is_explained_where_one_is_drawn(name: str) -> None:
    page = (REPORTS / name / "report.html").read_text()
    figures = re.findall(r"<figcaption><b>What changes.*?</figcaption>.*?</svg>", page, re.DOTALL)
    assert figures
    for figure in figures:
        assert ("▸ beyond the drawing" in figure) == (BEYOND in figure)
