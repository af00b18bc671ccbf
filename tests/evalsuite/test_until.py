"""`run --until`: seeds are added by the width of an interval alone, and no more than are needed
or allowed.
"""

from __future__ import annotations

import random

import pytest
from workshop import HEAD, Workshop

from evalsuite.report.statistics import mean_interval
from evalsuite.run.record import read_record
from evalsuite.studies.until import LEAST, Goal, grown


@pytest.mark.parametrize(
    ("text", "width", "percent"),
    [("0.5%", 0.005, True), (" 2 %", 0.02, True), ("0.01", 0.01, False)],
)
def test_a_width_is_a_number_or_per_cent(text: str, width: float, percent: bool) -> None:
    assert Goal.read(text) == Goal(width, percent)


@pytest.mark.parametrize("text", ["", "0", "0%", "-1%", "nan", "inf", "1e999", "half", "1 pp"])
def test_what_is_no_width_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"--until takes the width of an interval, as 0\.5% or 0\.01; got "
    ):
        Goal.read(text)


def test_an_endpoint_that_there_is_not_is_refused_before_anything_runs() -> None:
    assert Goal.read("1%", "INTEGERS").endpoint == "INTEGERS"
    with pytest.raises(
        ValueError, match=r"--endpoint: no question has 'sharpness'; there are: .*accuracy in float"
    ):
        Goal.read("1%", "sharpness")


def ended(values: list[float], goal: Goal, most: int) -> int:
    """How many of the values, in their order, are taken."""
    count = 1
    while more := min(goal.more(mean_interval(values[:count])), most - count):
        count += more
    return count


def test_the_rule_asks_for_what_the_formula_says() -> None:
    ten = mean_interval([-1.0, 1.0] * 5)  # deviation sqrt(10 / 9) = 1.0541, t(9) = 2.2622
    assert ten.half_width == pytest.approx(2.2622 / 3, rel=1e-4)
    assert (Goal(1.51).more(ten), Goal(1.50).more(ten)) == (0, 1)
    # t(18) = 2.1009 and t(17) = 2.1098: 2 t deviation / sqrt(n) is 1.0162 for 19 seeds, and 1.0484
    # for 18.
    assert (Goal(1.02).more(ten), Goal(1.04).more(ten), Goal(0.1).more(ten)) == (9, 9, 10)
    assert Goal(1e9).more(mean_interval([1.0])) == LEAST - 1
    assert Goal(1e9).more(mean_interval([1.0, 2.0, 4.0])) == LEAST - 3


def test_where_the_values_lie_has_no_part_in_it_and_the_interval_covers() -> None:
    draw, goal, held, runs = random.Random(0), Goal(1.0), 0, 2000
    for _ in range(runs):
        values = [draw.gauss(0.0, 1.0) for _ in range(100)]
        count = ended(values, goal, 100)
        assert (
            count
            == ended([-each for each in values], goal, 100)
            == ended([each + 50 for each in values], goal, 100)
        )
        estimate = mean_interval(values[:count])
        assert estimate.high - estimate.low < 1.0
        held += estimate.low < 0 < estimate.high
    assert 0.925 < held / runs < 0.965  # a little less than 95 %: see the module


def test_the_smallest_other_seeds_are_added() -> None:
    assert grown([7, 1], 6) == [7, 1, 0, 2, 3, 4]


@pytest.mark.slow
def test_seeds_are_added_until_intervals_are_narrow(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - accuracy\n", HEAD.replace("gelu-swap", "relu"))
    words = ("--executor", "serial")
    done = workshop.run(recipe, *words, "--until", "60%", "--most-seeds", LEAST + 1)
    assert done.returncode == 0, done.stderr
    assert "by 1 seeds:\n  digits-mlp, relu: one seed, so no interval\n" in done.stdout
    assert "All narrower than 60%." in done.stdout
    assert workshop.rows()["seed"].nunique() == LEAST
    refused = workshop.run(recipe, *words)
    assert (refused.returncode, "with more seeds: give --seeds" in refused.stderr) == (2, True)
    done = workshop.run(recipe, *words, "--until", "0.0001%", "--most-seeds", LEAST + 1)
    assert f"more than {LEAST + 1} seeds are not taken" in done.stdout
    record = read_record(workshop.out)
    assert (sorted(record.seeds), record.jobs["cached"]) == (list(range(LEAST + 1)), 4 * LEAST)
    done = workshop.run(recipe, *words, "--until", "1%", "--endpoint", "latency")
    assert (
        done.returncode,
        "measures no primary endpoint 'latency'; it has: accuracy" in done.stderr,
    ) == (2, True)
