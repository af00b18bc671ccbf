"""False words and coverage of whole decision matrices, whose truth is known since they are
simulated.

`python -m benchmarks.words [TABLES]` prints a line for each kind of differences and number of
seeds: the share of tables with a false "helps", "costs" or "mixed" where nothing differs in the
mean, that with a false "no worse" where every cell loses exactly the margin, the coverage of the
intervals, and how often true effects are seen beside how often the t test and Holm's adjustment
alone see them. 400 tables of each kind take a quarter of an hour.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalsuite.contract import Direction
from evalsuite.report.cells import LEVEL, Reading
from evalsuite.report.conclusions import read_rows
from evalsuite.report.matrix import matrix_row
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.section import Contrast, Endpoint, Evidence
from evalsuite.report.statistics import holm

MARGIN = 0.02
QUESTION = Endpoint("q", lambda _run, _workload, _variant: None, "bits", Direction.HIGHER, MARGIN)
Draw = Callable[[np.random.Generator, tuple[int, int, int]], NDArray[np.float64]]
SAID = (Reading.HELPS, Reading.COSTS, Reading.MIXED)


def normal(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    return draw.normal(0.0, 1.0, shape)


def lognormal(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Skewness 6.2, mean 0."""
    return np.exp(draw.normal(0.0, 1.0, shape)) - math.exp(0.5)


def either_way(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """The same, half of the cells turned round."""
    return lognormal(draw, shape) * draw.choice([-1.0, 1.0], size=(*shape[:2], 1))


def exponential(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Skewness 2, mean 0."""
    return draw.exponential(1.0, shape) - 1.0


def mixed_exponential(
    draw: np.random.Generator, shape: tuple[int, int, int]
) -> NDArray[np.float64]:
    """The same, half of the cells turned round."""
    return exponential(draw, shape) * draw.choice([-1.0, 1.0], size=(*shape[:2], 1))


def one_question(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Normal values, and one question whose differences are lognormal."""
    values = normal(draw, shape)
    values[0] = lognormal(draw, shape)[0]
    return values


def outlier(draw: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Normal values, and one seed of one cell ten deviations away."""
    values = draw.normal(0.0, 1.0, shape)
    values[0, 0, 0] += draw.choice([-10.0, 10.0])
    return values


@dataclass(frozen=True)
class Rates:
    """The share of tables with a false "helps", "costs" or "mixed", and with a false "no worse";
    the coverage of the intervals of cells and of means.
    """

    differs: float
    no_worse: float
    cells: float
    means: float


def simulate(
    draws: Draw,
    shape: tuple[int, int, int],
    tables: int,
    *,
    failed: bool = False,
    unequal: bool = True,
    scattered: bool = False,
) -> Rates:
    """Tables of nothing but noise, and tables of which every cell loses the margin.

    Args:
        draws: noise of (questions, workloads, seeds).
        shape: of a table.
        tables: of each kind.
        failed: half of the cells lack a seed.
        unequal: each workload has a spread of its own.
        scattered: each cell has one, lognormal about the others'.
    """
    draw = np.random.default_rng(7)
    # Truth -> tables with a word that is false under it.
    wrong = {0.0: 0, -MARGIN: 0}
    covered: list[list[bool]] = [[], []]
    spread = 0.01 * (1.0 + unequal * np.arange(shape[1]))[None, :, None]
    for truth in wrong:
        false = SAID if not truth else (Reading.NO_WORSE, Reading.HELPS)
        for _ in range(tables):
            # 1. A table whose every cell, and every mean, has this truth.
            factor = np.exp(draw.normal(size=(*shape[:2], 1))) if scattered else 1.0
            rows = table_of(draws(draw, shape) * spread * factor + truth, draw, failed=failed)
            # 2. Whether any of its words is false, and which intervals hold the truth.
            cells = [cell for row in rows for cell in row.cells.values()]
            means = [row.pooled for row in rows]
            wrong[truth] += any(cell.reading in false for cell in (*cells, *means))
            for place, group in enumerate((cells, means)):
                covered[place] += [
                    cell.estimate.low <= truth <= cell.estimate.high for cell in group
                ]
    return Rates(
        wrong[0.0] / tables,
        wrong[-MARGIN] / tables,
        *(float(np.mean(holds)) for holds in covered),
    )


def table_of(
    values: NDArray[np.float64], draw: np.random.Generator, *, failed: bool
) -> tuple[MatrixRow, ...]:
    rows = []
    for question in values:
        evidence = {}
        for name, gaps in enumerate(question):
            values_by_seed = dict(enumerate(map(float, gaps)))
            if failed and draw.random() < 0.5:
                del values_by_seed[int(draw.integers(len(gaps)))]
            baseline = dict.fromkeys(range(len(gaps)), 0.0)
            evidence[str(name)] = Evidence(Contrast("", values_by_seed, baseline))
        rows.append(matrix_row("s", QUESTION, evidence, dict.fromkeys(evidence, values.shape[2])))
    return read_rows(rows)


@dataclass(frozen=True)
class Power:
    """The share of true effects that are seen, by the words and by Holm's t test alone."""

    words: float
    t_test: float


def power(
    shape: tuple[int, int, int], tables: int, effect: float, *, scattered: bool = False
) -> Power:
    """Tell how often true effects are seen: normal differences, of which a third of the questions
    has an effect of so many deviations.
    """
    draw = np.random.default_rng(11)
    seen: list[list[bool]] = [[], []]
    for _ in range(tables):
        spread = 0.01 * (np.exp(draw.normal(size=(*shape[:2], 1))) if scattered else 1.0)
        true = (np.arange(shape[0]) % 3 == 0)[:, None, None]
        rows = table_of(spread * (normal(draw, shape) + effect * true), draw, failed=False)
        cells = [[*row.cells.values(), row.pooled] for row in rows]
        # Holm's adjustment is over all tests of the table, in their order.
        p_values = iter(holm([cell.p for row_cells in cells for cell in row_cells]))
        for place, row_cells in enumerate(cells):
            for cell in row_cells:
                p = next(p_values)
                if place % 3 == 0:
                    seen[0].append(cell.reading is Reading.HELPS)
                    seen[1].append(p is not None and p <= LEVEL)
    return Power(*(float(np.mean(results)) for results in seen))


KINDS: dict[str, Draw] = {
    "normal": normal,
    "lognormal": lognormal,
    "lognormal, either way": either_way,
    "exponential": exponential,
    "exponential, either way": mixed_exponential,
    "one lognormal question of nine": one_question,
    "one outlier": outlier,
}
# By seeds, the effects in deviations of a difference, of which the t test sees about a third and
# three quarters.
EFFECTS = {3: (6.0, 14.0), 5: (2.0, 3.5), 10: (1.0, 1.5)}


def main(tables: int) -> None:
    """Print all of it."""
    for seeds in (3, 5, 10):
        shape = (9, 3, seeds)
        for scattered in (False, True):
            spreads = "spreads of cells scattered" if scattered else "spreads 1 : 2 : 3"
            for name, draws in KINDS.items():
                rates = simulate(draws, shape, tables, scattered=scattered)
                print(f"{seeds} seeds, {spreads}, {name}: {_told(rates)}", flush=True)
            rates = simulate(normal, shape, tables, failed=True, scattered=scattered)
            print(f"{seeds} seeds, {spreads}, seeds failed: {_told(rates)}", flush=True)
            for effect in EFFECTS[seeds]:
                seen = power(shape, tables, effect, scattered=scattered)
                shares = f"seen {seen.words:.3f}, by the t test {seen.t_test:.3f}"
                print(f"{seeds} seeds, {spreads}, effect {effect}: {shares}", flush=True)


def _told(rates: Rates) -> str:
    return (
        f"false {rates.differs:.3f}, no worse {rates.no_worse:.3f}, covered {rates.cells:.3f},"
        f" means {rates.means:.3f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
