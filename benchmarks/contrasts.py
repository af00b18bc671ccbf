"""Answer what the protocol asks of the studies from their rows: contrasts with Holm's p in the
families it names.

`python -m benchmarks.contrasts STUDY` prints the table that docs/studies.md has; it trains nothing.
Every difference is paired by seed. "Equivalent" is told where the 95 % interval lies within the
margin on both sides, "no worse" where it excludes a loss of the margin.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from benchmarks.detectable import REPORTS, Asked, values
from evalsuite.report.cells import LEVEL
from evalsuite.report.conclusions import FEWEST
from evalsuite.report.record import read_record
from evalsuite.report.run import Run
from evalsuite.report.statistics import Estimate, holm, seed_difference

if TYPE_CHECKING:
    import pandas as pd

ACCURACY = Asked("accuracy in float", "", ("accuracy",), "accuracy", 0.005, "points", 100.0)
RADIUS = Asked(
    "certified radius", "", ("bounds",), "certified_radius", 1 / 255, "10⁻³", 1e3, ("method=crown",)
)
FLOAT = ("accuracy", "accuracy")
DEPLOYED = replace(
    ACCURACY, name="4-bit integers", steps=("w4", "w4-both-sides"), metric="integer_accuracy"
)
FOUR_BITS = replace(DEPLOYED, less=FLOAT)
PRUNED = replace(ACCURACY, name="half of the channels", steps=("prune-50",))
HALF = replace(PRUNED, less=FLOAT)
BITS = Asked(
    "bits per byte in float", "", ("accuracy",), "bits_per_byte", 0.01, "bits", falls=True, digits=4
)
DEPLOYED_TEXT = replace(
    BITS, name="4-bit integers", steps=FOUR_BITS.steps, metric="integer_bits_per_byte"
)
FOUR_BITS_OF_TEXT = replace(DEPLOYED_TEXT, less=("accuracy", BITS.metric))
PRUNED_TEXT = replace(BITS, name="half of the features", steps=HALF.steps)
HALF_OF_TEXT = replace(PRUNED_TEXT, less=("accuracy", BITS.metric))
PARTIAL = replace(ACCURACY, name="partial swaps", metric="accuracy_over_partial_swaps")
HEADLINES = (replace(ACCURACY, metric="letter_accuracy"), ACCURACY)
CHOSEN = "the best on the validation data"
_SWAPS = ("gelu-swap", "swap-refit", "annealed")  # of which the first is the contrast of part D
_GATES = ("gelu", "relu")  # that are tested
_SWISH = "silu"  # which is shown
ORDERS = ("hardness", "sensitivity", "random")


@dataclass(frozen=True)
class Study:
    """The questions that a study is asked, and how they are tested.

    Args:
        questions: the endpoints.
        beside: further questions, which are shown and not tested: what deployment takes from each
            arm.
        alone: arms that are a family of Holm's each, with the workloads of a question.
        baseline: what differences are told to, where it is not the run's baseline.
        treated: whether the baseline is the treatment, so that those are told as it less the arm.
        together: whether all other arms are one family; else they are shown and not tested.
        shown: arms that are not tested in any case.
        pairs: the differences that are told, of a study without a family; else all arms less the
            baseline.
    """

    questions: tuple[Asked, ...] = (ACCURACY,)
    beside: tuple[Asked, ...] = ()
    alone: tuple[str, ...] = ()
    baseline: str = ""
    treated: bool = False
    together: bool = False
    shown: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()

    def told(self, baseline: str, arms: Sequence[str]) -> list[tuple[str, str]]:
        """The pairs of arms, the first less the second."""
        turned = self.alone if self.treated else ()
        return [*self.pairs] or [
            (baseline, arm) if arm in turned else (arm, baseline) for arm in arms
        ]

    def families(self, baseline: str, arms: Sequence[str]) -> list[list[tuple[str, str]]]:
        """The pairs of each family of Holm's."""
        rest = (
            [arm for arm in arms if arm not in (*self.alone, *self.shown)] if self.together else []
        )
        return [
            self.told(baseline, family)
            for family in (*((arm,) for arm in self.alone), rest)
            if family
        ]


_ABLATIONS = Study(
    alone=("gelu", "lambda-gelu", "hard-switch"), treated=True, together=True, shown=("relu",)
)
_LEARNT = ("relu2", "xielu", "xiprelu", "xsilu", "prelu", "gelu")
STUDIES = {
    "ablations": _ABLATIONS,
    "ablations-sgd": _ABLATIONS,
    "ablations-fashion": _ABLATIONS,
    "language": Study(
        questions=(BITS,),
        alone=("gelu", "lambda-gelu", "hard-switch"),
        baseline="annealed",
        treated=True,
    ),
    "gated": Study(questions=(BITS,), together=True, shown=("annealed", "gelu-swap", "swap-refit")),
    "learnt-activations": Study(together=True),
    "downstream": Study(
        questions=(DEPLOYED, PRUNED, RADIUS), beside=(FOUR_BITS, HALF), alone=("annealed",)
    ),
    "language-downstream": Study(
        questions=(DEPLOYED_TEXT, PRUNED_TEXT),
        beside=(FOUR_BITS_OF_TEXT, HALF_OF_TEXT),
        alone=("annealed",),
    ),
    "same-rates": Study(
        pairs=(
            *(("annealed", arm) for arm in ("gelu", "hard-switch", "lambda-gelu")),
            *((arm, "relu") for arm in _LEARNT),
        )
    ),
}


@dataclass(frozen=True)
class Contrast:
    """A difference of two arms on one workload; `adjusted` is Holm's p, None where it is not
    tested.

    `asked` is how many seeds the study has: of fewer than four fifths of them nothing is concluded.
    """

    question: Asked
    text: str
    workload: str
    found: Estimate | None
    adjusted: float | None
    asked: int

    @property
    def cells(self) -> tuple[str, str, str]:
        """The difference with its interval, Holm's p, and what it is called."""
        found = self.found
        if found is None:
            return "not measured", "", ""
        shown = [
            f"{self.question.shown * each:+.{self.question.digits}f}"
            for each in (found.mean, found.low, found.high)
            if each is not None
        ]
        mean, *ends = (each.replace("-", "−") for each in shown)
        text = f"{mean} [{', '.join(ends)}]" if ends else mean
        if found.constant:
            text = f"{mean if found.mean else '0'} in every seed"
        if found.n < self.asked:
            text += f", n = {found.n} of {self.asked}"
        if self.adjusted is None or (found.constant and found.mean):
            return text, "", ""  # of what is the same in every seed, and is not 0, there is no test
        if found.low is None or found.high is None or found.n < FEWEST * self.asked:
            return text, "", "not concluded from"
        return text, f"{self.adjusted:.2g}", self._called(found.mean, found.low, found.high)

    def _called(self, mean: float, low: float, high: float) -> str:
        assert self.adjusted is not None
        if low == high:
            return ""  # which the first cell says
        margin = self.question.margin
        equivalent = max(-low, high) < margin
        if self.adjusted <= LEVEL:
            better = (mean < 0) == self.question.falls
            return ("better" if better else "worse") + (", within the margin" if equivalent else "")
        loss = high if self.question.falls else -low
        return "equivalent" if equivalent else "no worse" if loss < margin else "not resolved"


def contrasts(study: str) -> Iterator[Contrast]:
    """Yield the contrasts of a committed study, in the order of its questions, arms and workloads.

    A family has a test for each of its arms and each workload of the study, whether it could be
    made or not.
    """
    frame, baseline = _read(study)
    asked = STUDIES[study]
    baseline = asked.baseline or baseline
    arms = [each for each in frame["variant"].unique() if each != baseline]
    workloads, seeds = list(frame["workload"].unique()), frame["seed"].nunique()
    for question in (*asked.questions, *asked.beside):
        own = values(frame, question)
        pairs = asked.told(baseline, arms)
        found = {
            (pair, name): _difference(own.get(name, {}), *pair)
            for pair in pairs
            for name in workloads
        }
        adjusted: dict[tuple[tuple[str, str], str], float | None] = {}
        for family in asked.families(baseline, arms) if question in asked.questions else ():
            places = [(pair, name) for pair in family for name in workloads]
            adjusted |= zip(places, holm(_p(found[place], seeds) for place in places), strict=True)
        for (pair, name), each in found.items():
            text = f"`{pair[0]}` − `{pair[1]}`"
            yield Contrast(question, text, name, each, adjusted.get((pair, name)), seeds)


def _read(study: str) -> tuple[pd.DataFrame, str]:
    run = Run.of(REPORTS / study)
    return run.frame, run.baseline


def _difference(own: Mapping[tuple[str, int], float], arm: str, other: str) -> Estimate | None:
    of, less = (
        {seed: value for (name, seed), value in own.items() if name == each}
        for each in (arm, other)
    )
    return seed_difference(of, less)


def _p(found: Estimate | None, seeds: int) -> float:
    """1 for what is no test, since its family is as large as it was declared."""
    return (
        found.p if found is not None and found.p is not None and found.n >= FEWEST * seeds else 1.0
    )


def table(study: str) -> list[tuple[str, ...]]:
    """The head and the lines: of each question and pair of arms what each workload says."""
    every = list(contrasts(study))
    workloads = list(dict.fromkeys(contrast.workload for contrast in every))
    tested, several = (
        any(contrast.adjusted is not None for contrast in every),
        len(STUDIES[study].questions) > 1,
    )
    lines: dict[tuple[str, str], list[Contrast]] = {}
    for each in every:
        lines.setdefault((_named(each.question), each.text), []).append(each)
    unit = "" if several else f", {every[0].question.unit}"
    head = [
        part
        for name in workloads
        for part in (f"`{name}`{unit}", *(("p after Holm", "") if tested else ()))
    ]
    rows = [
        (
            *names[0 if several else 1 :],
            *(part for each in own for part in each.cells[: 3 if tested else 1]),
        )
        for names, own in lines.items()
    ]
    return [(*(("question",) if several else ()), "difference", *head), *rows]


def levels(study: str = "language") -> list[tuple[str, ...]]:
    """Bits per byte of each arm on the test text, and of xz and n-grams, whose order was the
    validation text's best.
    """
    frame, _ = _read(study)
    ((workload, own),) = values(frame, BITS).items()
    lines = []
    for arm in frame["variant"].unique():
        given = [value for (name, _), value in own.items() if name == arm]
        lines.append((f"`{arm}`", str(len(given)), _spread(given, BITS)))
    with (REPORTS / study / "baselines.csv").open(encoding="utf-8", newline="") as file:
        *counted, compressed = csv.DictReader(file)
    text = read_record(REPORTS / study).text("data", workload, "fingerprint")
    if {each["fingerprint"] for each in (*counted, compressed)} != {text}:
        raise ValueError(
            f"{study}: baselines.csv is of another text than the rows: run benchmarks.ngram"
            f" {workload}"
        )
    best = min(counted, key=lambda each: float(each["validation"]))
    lines += [(each["baseline"], "", f"{float(each['test']):.4f}") for each in (best, compressed)]
    return [(f"on `{workload}`", "seeds", "bits per byte"), *lines]


def gates(
    study: str = "gated", plain: str = "language", swish: str = "language-swish"
) -> list[tuple[str, ...]]:
    """Tabulate the differences of gated networks to plain ones of the same seed: the cost of swaps,
    of which the first is tested, and the bits per byte of each arm.
    """
    own, original, seeds = _by_arm(study)
    other = _by_arm(plain)[0] | _by_arm(swish)[0]

    def cost(side: dict[str, dict[int, float]], arm: str) -> dict[int, float]:
        return {
            seed: side[arm][seed] - side[original][seed]
            for seed in side[arm].keys() & side[original].keys()
        }

    costs = [
        (f"what `{arm}` costs `{original}`", seed_difference(cost(own, arm), cost(other, arm)))
        for arm in _SWAPS
    ]
    alone = [(f"`{arm}`", seed_difference(own[arm], other[arm])) for arm in (*_GATES, _SWISH)]
    tested = holm(_p(each, seeds) for _, each in alone[:-1])
    adjusted = [*holm([_p(costs[0][1], seeds)]), *[None] * len(costs[1:]), *tested, None]
    lines = [
        (text, *Contrast(BITS, text, study, found, held, seeds).cells)
        for (text, found), held in zip([*costs, *alone], adjusted, strict=True)
    ]
    return [("gated less plain", f"{BITS.name}, {BITS.unit}", "p after Holm", ""), *lines]


def _by_arm(study: str) -> tuple[dict[str, dict[int, float]], str, int]:
    """Bits per byte by arm and seed, of a study of one workload; its baseline; and how many
    seeds it has.
    """
    frame, original = _read(study)
    ((_, known),) = values(frame, BITS).items()
    found: dict[str, dict[int, float]] = {}
    for (arm, seed), value in known.items():
        found.setdefault(arm, {})[seed] = value
    return found, original, frame["seed"].nunique()


def orders(study: str = "partial") -> list[tuple[str, ...]]:
    """Which layers to give ReLU first: each order less the random one, on the same networks; the
    first is tested.
    """
    frame, arm = _read(study)
    workloads, seeds = list(frame["workload"].unique()), frame["seed"].nunique()
    by = {order: values(frame, replace(PARTIAL, settings=(f"order={order}",))) for order in ORDERS}
    of = {
        (order, name): {
            seed: value for (variant, seed), value in own.get(name, {}).items() if variant == arm
        }
        for order, own in by.items()
        for name in workloads
    }
    found = {
        place: seed_difference(own, of["random", place[1]])
        for place, own in of.items()
        if place[0] != "random"
    }
    adjusted = holm(_p(found["hardness", name], seeds) for name in workloads)
    lines = []
    for name, p in zip(workloads, adjusted, strict=True):
        tested, shown = (
            Contrast(PARTIAL, "", name, found[order, name], held, seeds).cells
            for order, held in (("hardness", p), ("sensitivity", None))
        )
        learnt = frame[(frame["workload"] == name) & (frame["metric"] == "learnt_hardness")]
        lines.append((f"`{name}`", str(learnt["setting"].nunique()), *tested, shown[0]))
    return [
        (
            "workload",
            "layers",
            "hardness − random, points",
            "p after Holm",
            "",
            "sensitivity − random, points",
        ),
        *lines,
    ]


def treatments(study: str = "pretrained") -> list[tuple[str, ...]]:
    """Tabulate the cost of each treatment of a pretrained network, and of the one that the
    validation data choose.

    The first treatment, which puts ReLU in directly, is none to choose from.
    """
    frame, original = _read(study)
    workloads, seeds = list(frame["workload"].unique()), frame["seed"].nunique()
    arms = [each for each in frame["variant"].unique() if each != original]
    told = [_treated(frame, name, original, arms) for name in workloads]
    adjusted = holm(_p(found[CHOSEN], seeds) for _, found, _ in told)
    levels = [part for level, *_ in told for part in (level, "", "")]
    lines: list[tuple[str, ...]] = [(f"the original, `{original}`, itself", *levels)]
    for arm in (*arms, CHOSEN):
        cells: list[str] = []
        for name, (_, found, taken), held in zip(workloads, told, adjusted, strict=True):
            text, *more = Contrast(
                ACCURACY, "", name, found[arm], held if arm == CHOSEN else None, seeds
            ).cells
            cells += [f"{text} ({taken})" if arm == CHOSEN else text, *more]
        lines.append((arm if arm == CHOSEN else f"`{arm}`", *cells))
    head = [part for name in workloads for part in (f"`{name}`, points", "p after Holm", "")]
    return [("treatment, less the original", *head), *lines]


def _treated(
    frame: pd.DataFrame, workload: str, original: str, arms: Sequence[str]
) -> tuple[str, dict[str, Estimate | None], str]:
    """The original's level; each arm less it, and what the validation data choose seed by seed;
    how often they did.
    """
    asked = next(headline for headline in HEADLINES if workload in values(frame, headline))
    validated = values(
        frame, replace(asked, steps=("train",), metric=f"validation_{asked.metric}")
    )[workload]
    of: dict[str, dict[int, float]] = {arm: {} for arm in (original, *arms, CHOSEN)}
    for (arm, seed), value in values(frame, asked)[workload].items():
        of[arm][seed] = value
    taken: Counter[str] = Counter()
    for seed in of[original]:
        best = max(arms[1:], key=lambda arm, at=seed: validated.get((arm, at), -math.inf))  # type: ignore[misc]
        taken[best] += 1
        if seed in of[best]:
            of[CHOSEN][seed] = of[best][seed]
    level = _spread(list(of[original].values()), asked)
    often = ", ".join(f"{count} × `{arm}`" for arm, count in taken.most_common())
    return level, {arm: seed_difference(of[arm], of[original]) for arm in (*arms, CHOSEN)}, often


def drift(study: str = "drift") -> list[tuple[str, ...]]:
    """Spearman's ρ of a network's mean drift of λ with what its deployment comes to, Holm over
    the four.
    """
    from scipy.stats import spearmanr

    frame, arm = _read(study)
    rows = frame[(frame["metric"] == "hardness_drift") & frame["value"].notna()]
    moved = {int(seed): float(own.mean()) for seed, own in rows.groupby("seed")["value"]}
    found: list[tuple[Asked, list[float], float, float]] = []
    for question in (ACCURACY, replace(FOUR_BITS, steps=("w4",)), HALF, RADIUS):
        own = {
            seed: value
            for each in values(frame, question).values()
            for (name, seed), value in each.items()
            if name == arm
        }
        seeds = sorted(own.keys() & moved.keys())
        if len(seeds) < FEWEST * frame["seed"].nunique():
            raise ValueError(
                f"{study}: {question.name} has a value of {len(seeds)} networks: too few to"
                " conclude from"
            )
        rho, p = spearmanr([moved[seed] for seed in seeds], [own[seed] for seed in seeds])
        found.append((question, [own[seed] for seed in seeds], float(rho), float(p)))
    head = (
        "metric",
        "networks",
        "mean and deviation",
        "Spearman's ρ with drift",
        "p",
        "p after Holm",
    )
    return [
        head,
        *(
            (
                _named(question),
                str(len(given)),
                _spread(given, question),
                f"{rho:+.2f}".replace("-", "−"),
                f"{p:.2g}",
                f"{held:.2g}",
            )
            for (question, given, rho, p), held in zip(
                found, holm([p for *_, p in found]), strict=True
            )
            if held is not None
        ),
    ]


def _named(question: Asked) -> str:
    return f"{question.name}{' less float' if question.less else ''}, {question.unit}"


def _spread(given: Sequence[float], question: Asked) -> str:
    if len(given) < 2:
        return "not measured in two networks"
    shown, digits = question.shown, question.digits
    return f"{shown * fmean(given):.{digits}f} ± {shown * stdev(given):.{digits}f}".replace(
        "-", "−"
    )


_OTHERS = {"drift": drift, "partial": orders, "pretrained": treatments}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The table of a committed study.")
    parser.add_argument(
        "study", choices=sorted(each for each in (*STUDIES, *_OTHERS) if (REPORTS / each).is_dir())
    )
    chosen = parser.parse_args().study
    print(*(" | ".join(line) for line in _OTHERS.get(chosen, table)(chosen)), sep="\n")
