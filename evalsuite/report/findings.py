"""What the numbers say, in counts and plain sentences: better, worse and unresolved, with the same care."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.contract import Direction
from evalsuite.report.ranks import holm
from evalsuite.report.tables import TextLine

if TYPE_CHECKING:
    import pandas as pd


LEVEL = 0.05


@dataclass(frozen=True)
class Tally:
    """How one variant's differences to the baseline fall, at one step of one workload.

    Only metrics with a direction count. `constant` of the resolved ones are the same in every seed; `unresolved`
    intervals contain 0; `equal` differences are 0 in every seed; `single` come from one seed and have no interval;
    `without` have no pair. `timing` of all resolved ones are clock readings. `kept` are what is left of the better and
    the worse after Holm's adjustment for all of these differences.
    """

    better: int = 0
    worse: int = 0
    constant: int = 0
    unresolved: int = 0
    equal: int = 0
    single: int = 0
    without: int = 0
    timing: int = 0
    kept: int = 0

    @property
    def compared(self) -> int:
        """Differences with an interval."""
        return self.better + self.worse + self.unresolved + self.equal


@dataclass(frozen=True)
class VariantFinding:
    """One variant on one workload: its tally over all steps, and sentences."""

    workload: str
    variant: str
    tally: Tally
    sentences: tuple[str, ...]


def tally(compared: pd.DataFrame) -> Tally:
    """The tally of the lines of `comparison` of any one variant that is not the baseline."""
    clock = compared["timing"].astype(bool) & (compared["unit"] != "ratio")
    lines = compared[(compared["direction"] != Direction.NEUTRAL.value) & ~clock]
    paired = lines[lines["n_pairs"] > 0]
    resolved = paired[paired["resolved"]]
    equal = paired["constant"] & (paired["diff"] == 0)
    interval = paired["diff_low"].notna()
    return Tally(
        better=int((resolved["better"] == "better").sum()),
        worse=int((resolved["better"] == "worse").sum()),
        constant=int(resolved["constant"].sum()),
        unresolved=int((interval & ~paired["resolved"] & ~equal).sum()),
        equal=int(equal.sum()),
        single=int((~interval).sum()),
        without=len(lines) - len(paired),
        timing=int(resolved["timing"].sum()),
        kept=_kept(resolved, int((interval & ~equal).sum())),
    )


def _kept(resolved: pd.DataFrame, tests: int) -> int:
    """How many resolved differences Holm's adjustment leaves, of so many tests; no others can be among them."""
    from scipy.stats import t

    if resolved.empty:
        return 0
    varied = resolved[~resolved["constant"]]
    deviation = (varied["diff_high"] - varied["diff_low"]) / 2 / t.ppf(0.975, varied["n_pairs"] - 1)
    p_values = [0.0] * int(resolved["constant"].sum())
    p_values += [float(each) for each in 2 * t.sf(varied["diff"].abs() / deviation, varied["n_pairs"] - 1)]
    return sum(p <= LEVEL for p in holm([*p_values, *[1.0] * (tests - len(p_values))]))


def tallies(compared: pd.DataFrame) -> dict[tuple[str, str], dict[str, Tally]]:
    """(workload, step) -> variant -> tally, without the baseline and without steps that compare nothing."""
    found: dict[tuple[str, str], dict[str, Tally]] = {}
    others = compared[compared["variant"] != compared["baseline"]]
    for (workload, step, variant), lines in others.groupby(["workload", "step", "variant"], sort=False):
        if (lines["direction"] != Direction.NEUTRAL.value).any():
            found.setdefault((str(workload), str(step)), {})[str(variant)] = tally(lines)
    return found


def intervals(compared: pd.DataFrame) -> int:
    """How many differences have an interval of some width: each could exclude 0 by chance."""
    clock = compared["timing"].astype(bool) & (compared["unit"] != "ratio")
    return int((compared["diff_low"].notna() & ~compared["constant"] & ~clock).sum())


def chance_text(compared: pd.DataFrame, baseline: str, seeds: int) -> str:
    """How many differences could look resolved by chance, and how wide intervals over so few seeds are."""
    count = intervals(compared)
    if not count:
        return "No difference has an interval of some width: nothing here is a test."
    return (
        f"The intervals are per cell and not adjusted for their number: of {count} differences with an interval of "
        f"some width, about 5 % ({0.05 * count:.0f}) would exclude 0 by chance even if no variant differed from "
        f"{baseline}; where such differences are counted, so are those that Holm's adjustment leaves. Seeds "
        f"are the only replicates; the test samples are the same for all of them. {_width(seeds)}"
    )


def _width(seeds: int) -> str:
    """How wide a t interval over so few seeds is."""
    from scipy.stats import t

    if not 2 <= seeds < 5:
        return ""
    return f"With {seeds} seeds an interval is ± {t.ppf(0.975, seeds - 1):.1f} standard errors: use 5 or more."


def findings(
    compared: pd.DataFrame, headlines: Sequence[TextLine], optional: Collection[str] = ()
) -> list[VariantFinding]:
    """One finding per workload and variant, in order; a metric in `optional` may have no value."""
    others = compared[compared["variant"] != compared["baseline"]]
    made = []
    for (workload, variant), lines in others.groupby(["workload", "variant"], sort=False):
        counts = tally(lines)
        chosen = [line for line in headlines if line.workload == workload]
        sentences = (_count_sentence(counts), *_headline_sentences(chosen, str(variant), optional))
        made.append(VariantFinding(str(workload), str(variant), counts, tuple(each for each in sentences if each)))
    return made


def _count_sentence(counts: Tally) -> str:
    if not counts.compared:
        if counts.single:
            return f"{counts.single} differences come from one seed: no interval, so nothing is claimed."
        return "No comparison with the baseline was possible."
    text = (
        f"Of {counts.compared} comparisons, {counts.better} better, {counts.worse} worse, "
        f"{counts.unresolved} not resolved, {counts.equal} exactly equal"
    )
    text += f"; {counts.without} more had nothing to compare with." if counts.without else "."
    resolved = counts.better + counts.worse
    if resolved:
        left = f"{counts.kept or 'none'} of the {resolved} better or worse remain{'s' * (counts.kept < 2)}"
        text += f" After Holm's adjustment {left}."
    if resolved and (counts.constant or counts.timing):
        text += f" Of the {resolved} better or worse, {counts.constant} differ by the same in every seed"
        text += f", {counts.timing} are ratios of timings." if counts.timing else "."
    return text


def _headline_sentences(lines: Sequence[TextLine], variant: str, optional: Collection[str]) -> list[str]:
    """The headline differences by outcome, one sentence each."""
    groups: dict[str, list[str]] = {
        each: [] for each in ("Better", "Worse", "Not resolved", "Exactly equal", "No value")
    }
    for line in lines:
        cell = line.cells[variant]
        unit = line.difference_unit or ("" if line.shown_unit in ("count", "ratio") else line.shown_unit)
        if cell.better:
            interval = cell.interval.replace(", ", ",\N{NO-BREAK SPACE}")
            told = " ".join(part for part in (line.brief, cell.difference, unit, interval) if part)
            groups[cell.better.capitalize()].append(told)
        elif cell.equal:
            groups["Exactly equal"].append(line.brief)
        elif cell.interval and not cell.resolved:
            groups["Not resolved"].append(line.brief)
        elif not cell.mean and line.metric not in optional:
            groups["No value"].append(f"{line.brief}: {cell.lack}")
    return [f"{head}: {'; '.join(parts)}." for head, parts in groups.items() if parts]
