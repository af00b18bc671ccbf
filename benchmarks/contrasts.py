"""What the protocol asks of the studies, answered from their rows: contrasts with Holm's p in the families it names.

`python -m benchmarks.contrasts STUDY` prints the table that docs/studies.md has; it trains nothing. Every difference is
paired by seed. "Equivalent" is told where the 95 % interval lies within the margin on both sides, "no worse" where it
excludes a loss of the margin.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.detectable import REPORTS, Asked, values
from evalsuite.report.matrix import LEVEL
from evalsuite.report.record import baseline_of, in_order, read_record
from evalsuite.report.statistics import Estimate, holm, seed_difference
from evalsuite.results import read_results

if TYPE_CHECKING:
    import pandas as pd

ACCURACY = Asked("accuracy in float", "", ("accuracy",), "accuracy", 0.005, "points", 100.0)
RADIUS = Asked("certified radius", "", ("bounds",), "certified_radius", 1 / 255, "10⁻³", 1e3, ("method=crown",))
FLOAT = ("accuracy", "accuracy")
FOUR_BITS = replace(
    ACCURACY, name="4-bit integers", steps=("w4", "w4-both-sides"), metric="integer_accuracy", less=FLOAT
)
HALF = replace(ACCURACY, name="half of the channels", steps=("prune-50",), less=FLOAT)


@dataclass(frozen=True)
class Study:
    """What is asked of a study.

    Args:
        questions: the endpoints.
        alone: arms that are a family of Holm's each, with the workloads of a question.
        treated: whether the baseline is the treatment, so that those are told as it less the arm.
        together: whether all other arms are one family; else they are shown and not tested.
        shown: arms that are not tested in any case.
    """

    questions: tuple[Asked, ...] = (ACCURACY,)
    alone: tuple[str, ...] = ()
    treated: bool = False
    together: bool = False
    shown: tuple[str, ...] = ()


_ABLATIONS = Study(alone=("gelu", "lambda-gelu", "hard-switch"), treated=True, together=True, shown=("relu",))
STUDIES = {
    "ablations": _ABLATIONS,
    "ablations-sgd": _ABLATIONS,
    "learnt-activations": Study(together=True),
    "downstream": Study(questions=(FOUR_BITS, HALF, RADIUS), alone=("annealed",)),
    "same-rates": Study(),
}


@dataclass(frozen=True)
class Contrast:
    """A difference of two arms on one workload; `adjusted` is Holm's p, None where it is not tested."""

    question: Asked
    text: str
    workload: str
    found: Estimate | None
    adjusted: float | None

    @property
    def cells(self) -> tuple[str, str, str]:
        """The difference with its interval, Holm's p, and what it is called."""
        if self.found is None or self.found.low is None or self.found.high is None:
            return "not measured", "", ""
        shown = [f"{self.question.shown * each:+.2f}" for each in (self.found.mean, self.found.low, self.found.high)]
        mean, low, high = (each.replace("-", "−") for each in shown)
        text = "0 in every seed" if self.found.constant and not self.found.mean else f"{mean} [{low}, {high}]"
        return text, f"{self.adjusted:.2g}" if self.adjusted is not None else "", self._called(self.found)

    def _called(self, found: Estimate) -> str:
        assert found.low is not None
        assert found.high is not None
        margin = self.question.margin
        if self.adjusted is None:
            return ""
        equivalent = max(-found.low, found.high) < margin
        if self.adjusted <= LEVEL:
            return ("better" if found.mean > 0 else "worse") + (", within the margin" if equivalent else "")
        return "equivalent" if equivalent else "no worse" if found.low > -margin else "not resolved"


def contrasts(study: str) -> Iterator[Contrast]:
    """Those of a committed study, in the order of its questions, arms and workloads."""
    frame, baseline = _read(study)
    asked = STUDIES[study]
    arms = [each for each in frame["variant"].unique() if each != baseline]
    rest = tuple(each for each in arms if each not in (*asked.alone, *asked.shown))
    for question in asked.questions:
        found = {
            (arm, workload): _difference(own, baseline, arm, turned=asked.treated and arm in asked.alone)
            for arm in arms
            for workload, own in values(frame, question).items()
        }
        adjusted: dict[tuple[str, str], float | None] = {}
        for family in [*((arm,) for arm in asked.alone), *([rest] if asked.together else [])]:
            places = [place for place in found if place[0] in family]
            adjusted |= zip(places, holm(_p(found[place]) for place in places), strict=True)
        for (arm, workload), each in found.items():
            pair = (baseline, arm) if asked.treated and arm in asked.alone else (arm, baseline)
            text = f"`{pair[0]}` − `{pair[1]}`"
            yield Contrast(question, text, workload, each, adjusted.get((arm, workload)))


def _read(study: str) -> tuple[pd.DataFrame, str]:
    record = read_record(REPORTS / study)
    frame = in_order(read_results(REPORTS / study), record)
    return frame, baseline_of(frame, record)


def _difference(own: Mapping[tuple[str, int], float], baseline: str, arm: str, *, turned: bool) -> Estimate | None:
    of, less = ({seed: value for (name, seed), value in own.items() if name == each} for each in (arm, baseline))
    return seed_difference(less, of) if turned else seed_difference(of, less)


def _p(found: Estimate | None) -> float | None:
    """Of a difference that is 0 in every seed it is 1: such a test counts in its family too."""
    if found is not None and found.constant and not found.mean:
        return 1.0
    return found.p if found else None


def table(study: str) -> list[tuple[str, ...]]:
    """The head and the lines: of each question and pair of arms what each workload says."""
    every = list(contrasts(study))
    workloads = list(dict.fromkeys(each.workload for each in every))
    tested, several = any(each.adjusted is not None for each in every), len(STUDIES[study].questions) > 1
    lines: dict[tuple[str, str], dict[str, Contrast]] = {}
    for each in every:
        lines.setdefault((f"{each.question.name}, {each.question.unit}", each.text), {})[each.workload] = each
    unit = "" if several else f", {every[0].question.unit}"
    head = [part for name in workloads for part in (f"`{name}`{unit}", *(("p after Holm", "") if tested else ()))]
    rows = [
        (*names[0 if several else 1 :], *(part for name in workloads for part in own[name].cells[: 3 if tested else 1]))
        for names, own in lines.items()
    ]
    return [(*(("question",) if several else ()), "difference", *head), *rows]


def drift(study: str = "drift") -> list[tuple[str, ...]]:
    """Spearman's ρ of a network's mean drift of λ with what its deployment comes to, Holm over the four."""
    from scipy.stats import spearmanr

    frame, arm = _read(study)
    rows = frame[(frame["metric"] == "hardness_drift") & frame["value"].notna()]
    moved = {int(seed): float(own.mean()) for seed, own in rows.groupby("seed")["value"]}
    four = (ACCURACY, replace(FOUR_BITS, steps=("w4",)), HALF, RADIUS)
    found: list[tuple[Asked, Sequence[float], float, float]] = []
    for question in four:
        (own,) = values(frame, question).values()
        pairs = [(moved[seed], value) for (name, seed), value in own.items() if name == arm]
        rho, p = spearmanr(*zip(*pairs, strict=True))
        found.append((question, [value for _, value in pairs], float(rho), float(p)))
    head = ("metric", "networks", "mean and deviation", "Spearman's ρ with drift", "p", "p after Holm")
    return [head, *(
        (_named(question), str(len(given)), _spread(given, question), f"{rho:+.2f}".replace("-", "−"),
         f"{p:.2g}", f"{held:.2g}")
        for (question, given, rho, p), held in zip(found, holm([p for *_, p in found]), strict=True)
        if held is not None
    )]  # fmt: skip


def _named(question: Asked) -> str:
    return f"{question.name}{' less float' if question.less else ''}, {question.unit}"


def _spread(given: Sequence[float], question: Asked) -> str:
    mean = math.fsum(given) / len(given)
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in given) / (len(given) - 1))
    return f"{question.shown * mean:.2f} ± {question.shown * deviation:.2f}".replace("-", "−")


if __name__ == "__main__":
    print(*(" | ".join(line) for line in (drift() if sys.argv[1] == "drift" else table(sys.argv[1]))), sep="\n")
