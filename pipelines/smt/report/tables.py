"""Exact verification of each variant: its smt steps by radius, each number paired with the
baseline's of its seeds.

A difference holds whatever the answer to what was left open: it has two ends, each paired by seed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evalsuite import Verdict
from evalsuite.report.canvas import number_of
from evalsuite.report.grids import estimate_columns
from evalsuite.report.measured import Measured
from evalsuite.report.numerals import grouped, labels
from evalsuite.report.paired import Compared, StepTable, Values, compared_columns
from evalsuite.report.section import RunView
from evalsuite.report.statistics import Estimate, between, mean_by_seed
from evalsuite.results import parse_setting
from evalsuite.verification.report.radii import radius_text

if TYPE_CHECKING:
    import pandas as pd

STAGE = "smt"
VERIFIED, VIOLATED, UNDECIDED = "verified_accuracy", "violated_fraction", "undecided_fraction"
UPPER = "not_violated"  # Of no row: 1 less what is violated.
BOUNDS, GAP = "bounds_accuracy", "exactness_gap"
GAP_UPPER, SAME_UPPER = "exactness_gap_upper", "not_another_class"  # Of no row either.
UNSTABLE, NODES, CALLS = "unstable_neurons", "nodes", "solver_calls"
SECONDS, PAR2 = "solve_time", "par2"
DISTANCE, DISTANCE_UPPER = "adversarial_distance", "adversarial_distance_upper"
PROOFS, PROOF_BYTES = "proofs_checked", "proof_bytes"
CLEAN = "clean_accuracy"
SAME, OTHER, CLASS_OPEN = "same_class_fraction", "other_class_fraction", "class_undecided_fraction"
QUERY = "query_seconds"
STEPPED = INTEGER, AGREEMENT = "integer", "float and integer"  # Methods of integer networks.
METRICS = (
    VERIFIED,
    VIOLATED,
    UNDECIDED,
    BOUNDS,
    GAP,
    UNSTABLE,
    NODES,
    CALLS,
    SECONDS,
    PAR2,
    DISTANCE,
    DISTANCE_UPPER,
    PROOFS,
    PROOF_BYTES,
    CLEAN,
    SAME,
    OTHER,
    CLASS_OPEN,
)
_FRACTIONS = (
    VERIFIED,
    VIOLATED,
    UNDECIDED,
    UPPER,
    BOUNDS,
    GAP,
    GAP_UPPER,
    CLEAN,
    SAME,
    SAME_UPPER,
    OTHER,
    CLASS_OPEN,
)
# What a number would be at most, were all that was left open answered in its favour.
_AT_MOST = {VERIFIED: UPPER, GAP: GAP_UPPER, SAME: SAME_UPPER, DISTANCE: DISTANCE_UPPER}
_REST_OF, _BEYOND_BOUNDS = {UPPER: VIOLATED, SAME_UPPER: OTHER}, {GAP: VERIFIED, GAP_UPPER: UPPER}
_SAME_NUMBER = 1e-9  # 1 less a sum of shares is off by some ulps.
_WAYS = {VIOLATED: -1, UNDECIDED: -1, GAP: 0, GAP_UPPER: 0, OTHER: -1, CLASS_OPEN: -1}
_DECIDED = (Verdict.HOLDS.value, Verdict.VIOLATED.value)


@dataclass(frozen=True)
class Bracket:
    """Where a variant's difference to the baseline lies.

    `least` is the lower end of what the variant may have less the upper end of what the baseline
    may have, `most` the reverse; they are one where nothing was left open.
    """

    least: Compared
    most: Compared

    @property
    def variant(self) -> str:
        return self.least.variant

    @property
    def open(self) -> bool:
        """Whether the two ends differ, because a question was left open."""
        return self.least is not self.most

    @property
    def difference(self) -> Estimate | None:
        """From the one end's interval to the other's."""
        least, most = self.least.difference, self.most.difference
        return None if least is None or most is None else between(least, most)

    @property
    def p(self) -> float | None:
        """P value of the test that there is no difference, by the end nearer to 0; 1 where 0 lies
        between the ends, None without a test.
        """
        return None if self.difference is None else self.difference.p

    @property
    def resolved(self) -> bool:
        """Whether the end nearer to 0 is resolved, with no adjustment for the number of tests."""
        estimate = self.difference
        return estimate is not None and estimate.p is not None and estimate.resolved

    @property
    def higher(self) -> bool:
        return self.difference is not None and self.difference.mean > 0

    @property
    def tone(self) -> str:
        """ "better" or "worse" where there is a better way and the nearer end is resolved, else
        "".
        """
        if not self.least.way or not self.resolved:
            return ""
        return "better" if self.higher == (self.least.way > 0) else "worse"


@dataclass(frozen=True)
class Counted:
    """Verdicts of one variant, all seeds and samples together; `by` is what decided -> how many.

    Open are those out of time, unknown, or of questions that a method cannot be asked.
    """

    holds: int = 0
    violated: int = 0
    open: int = 0
    by: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Counted) -> Counted:
        by = self.by + other.by
        return Counted(
            self.holds + other.holds, self.violated + other.violated, self.open + other.open, by
        )

    @property
    def decided(self) -> int:
        return self.holds + self.violated

    @property
    def total(self) -> int:
        return self.decided + self.open


@dataclass(frozen=True, kw_only=True)
class ExactTable(StepTable):
    """Tabulates what one method of one smt step says of one workload.

    `radii` go from small to large: ε, or steps of the input's grid where `stepped`; `sizes` is then
    radius -> least and greatest ε of it, as networks may have grids of their own. `method` is empty
    and so are the radii where no job gave a value. `after` names the step whose networks are
    measured, empty for networks as trained. `label` tells the table from the others of the report.
    `found` is (variant, metric, radius) -> seed -> value, the radius being None for what is of all
    radii. `times` is variant -> seconds of each question and whether that was decided; empty where
    single questions were not timed. `limit` is the seconds a question may take, where recorded. A
    table of the method `AGREEMENT` is of the question whether an integer network gives the class of
    the float network, and has its verdicts and shares only.
    """

    step: str
    method: str
    label: str
    radii: tuple[float, ...]
    after: str
    found: Mapping[tuple[str, str, float | None], Values]
    verdicts: Mapping[tuple[str, float], Counted]
    times: Mapping[str, tuple[tuple[float, bool], ...]]
    sizes: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    limit: float | None = None

    @property
    def stepped(self) -> bool:
        return self.method in STEPPED

    @property
    def name(self) -> str:
        return f"{self.workload}-{self.step}" + (f"-{self.method}" if self.method else "")

    def radius(self, value: float) -> str:
        """ "1/64", or "2 steps (ε = 2/255)"."""
        if not self.stepped:
            return radius_text(value)
        told = f"{value:g} step{'s' * (value != 1)}"
        size = self.size(value)
        return f"{told} (ε = {size})" if size else told

    def at(self, value: float) -> str:
        """ "ε = 1/64", or "2 steps (ε = 2/255)"."""
        return self.radius(value) if self.stepped else f"ε = {self.radius(value)}"

    def size(self, value: float) -> str:
        """The ε of a radius in grid steps, "2/255" or "0.0083 to 0.012"; empty for a radius of
        0, which has none.
        """
        low, high = self.sizes.get(value, (0.0, 0.0))
        if not high > 0:
            return ""
        if not math.isclose(low, high, rel_tol=1e-6):
            return f"{low:.2g} to {high:.2g}"
        # What a grid step in float32 stands for, if it is a multiple of 1/255.
        near = round(255 * low) / 255
        return radius_text(near if math.isclose(near, low, rel_tol=1e-6) else low)

    def has(self, metric: str) -> bool:
        return any(
            self.values(name, metric, at) for name in self.variants for at in (*self.radii, None)
        )

    def reason(self, variant: str, metric: str = VERIFIED) -> str:
        return self.measured.reason(self.workload, variant, self.step, metric)

    def values(self, variant: str, metric: str, radius: float | None = None) -> dict[int, float]:
        """Seed -> value; what follows from other numbers is computed from them where it has no
        row.
        """
        own = self.found.get((variant, metric, radius))
        if own is None and metric in _REST_OF:
            own = {
                seed: 1 - each
                for seed, each in self.values(variant, _REST_OF[metric], radius).items()
            }
        if own is None and metric in _BEYOND_BOUNDS:
            whole, bounds = (
                self.values(variant, each, radius) for each in (_BEYOND_BOUNDS[metric], BOUNDS)
            )
            own = {
                seed: whole[seed] - bounds[seed] for seed in sorted(whole.keys() & bounds.keys())
            }
        return dict(own or {})

    def ends(
        self, variant: str, metric: str, radius: float | None = None
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Seed -> the number, all that was left open answered against it, and in its favour.

        A share without a row that says what was left open was decided; a distance without a
        counterexample has no end.
        """
        low, high = (
            self.values(variant, metric, radius),
            self.values(variant, _AT_MOST.get(metric, metric), radius),
        )
        if metric in _FRACTIONS:
            high = {seed: high.get(seed, each) for seed, each in low.items()}
        return low, {
            seed: low[seed] if seed in low and abs(each - low[seed]) <= _SAME_NUMBER else each
            for seed, each in high.items()
        }

    def mean_ends(self, variant: str, metric: str) -> tuple[dict[int, float], dict[int, float]]:
        """Return both ends, as `ends` does, of the mean over all radii; seeds that lack a radius
        are left out.
        """
        every = [self.ends(variant, metric, radius) for radius in self.radii]
        low, high = ([each[i] for each in every] for i in range(2))
        return mean_by_seed(low), mean_by_seed(high)

    def bracket(self, variant: str, metric: str, radius: float | None = None) -> Bracket:
        """Where its difference to the baseline lies, not yet adjusted."""
        low, high = self.ends(variant, metric, radius)
        base_low, base_high = self.ends(self.baseline, metric, radius)
        if not low or not high:
            lack = Compared(
                variant,
                reason=self.reason(variant, _AT_MOST.get(metric, metric) if low else metric),
            )
            return Bracket(lack, lack)
        magnitude = 1.0 if metric in _FRACTIONS else None
        least, most = (
            Compared(variant, own, other, _WAYS.get(metric, 1), magnitude)
            for own, other in ((low, base_high), (high, base_low))
        )
        return Bracket(least, least if low == high and base_low == base_high else most)

    def over_radii(self, variant: str, metric: str) -> dict[int, float]:
        """Seed -> mean over all radii; seeds that lack a radius are left out."""
        each = [self.values(variant, metric, radius) for radius in self.radii]
        return self.values(variant, metric) or mean_by_seed(each)

    def compared(self, variant: str, metric: str, radius: float | None = None) -> Compared:
        magnitude = 1.0 if metric in _FRACTIONS else None
        return self.pair(
            variant,
            lambda name: self.values(name, metric, radius),
            lambda name: self.reason(name, metric),
            _WAYS.get(metric, 1),
            magnitude,
        )

    def counted(self, variant: str) -> Counted:
        return sum(
            (self.verdicts.get((variant, radius), Counted()) for radius in self.radii), Counted()
        )

    def line(self, metric: str, radius: float | None, cell: Compared) -> dict[str, Any]:
        """Exact numbers of a cell; of a lower end with those of the greatest difference that
        there may be.
        """
        ends: dict[str, Any] = {}
        if metric in (VERIFIED, SAME, DISTANCE) and cell.variant != self.baseline:
            found = self.bracket(cell.variant, metric, radius)
            least, most = found.least.difference, found.most.difference
            ends = {
                **estimate_columns("least", least),
                **estimate_columns("most", most),
                "resolved": found.resolved,
                "p": found.p,
            }
        return {
            "workload": self.workload,
            "step": self.step,
            "after": self.after,
            "method": self.method,
            "metric": metric,
            "radius": radius,
            "radius_unit": "steps" if self.stepped else "eps",
            "variant": cell.variant,
            "baseline": self.baseline,
            **compared_columns(cell),
            **ends,
        }


def mean_of(values: Values) -> float | None:
    return math.fsum(values.values()) / len(values) if values else None


def exact_tables(run: RunView) -> list[ExactTable]:
    """A table for each method of each smt step of each workload; also of a step of which every job
    failed.

    Those of the method `AGREEMENT` come last, under the labels of the steps that they are of.
    """
    measured = run.measured
    samples = _samples(run.frame)
    made = []
    for workload in measured.workloads:
        for step in measured.steps(workload, STAGE):
            found, sizes = _found(measured, workload, step)
            own = samples[(samples["workload"] == workload) & (samples["step"] == step)]
            limits = measured.options.get(step, {})
            for method in list(dict.fromkeys(method for method, _, _, _ in found)) or [""]:
                values = {key[1:]: each for key, each in found.items() if key[0] == method}
                named = (
                    "integer_time_limit"
                    if method in STEPPED
                    else ""
                    if limits.get("nodes")
                    else "query_time_limit"
                )
                # None where a count of nodes ends a question.
                limit = number_of(str(limits.get(named)))
                rows = own[own["method"] == method]
                made.append(
                    ExactTable(
                        measured=measured,
                        workload=workload,
                        baseline=run.baseline,
                        step=step,
                        method=method,
                        label=workload,
                        after=run.record.after.get(step, ""),
                        found=values,
                        verdicts=_verdicts(rows),
                        radii=tuple(
                            sorted({radius for *_, radius in values if radius is not None})
                        ),
                        times=_times(rows),
                        sizes=sizes if method in STEPPED else {},
                        limit=limit if math.isfinite(limit) else None,
                    )
                )
    agreements = [each for each in made if each.method == AGREEMENT]
    return [*_labelled([each for each in made if each.method != AGREEMENT]), *_labelled(agreements)]


def _labelled(tables: Sequence[ExactTable]) -> list[ExactTable]:
    """Labels that tell tables apart: workload, integers, what the step follows, and its name and
    method if needed.
    """
    told = [
        (
            table.workload,
            *(["in integers"] if table.stepped else []),
            *([f"after {table.after}"] if table.after else []),
        )
        for table in tables
    ]
    every = labels(told, [table.step for table in tables], [table.method for table in tables])
    return [replace(each, label=label) for each, label in zip(tables, every, strict=True)]


def _found(
    measured: Measured, workload: str, step: str
) -> tuple[dict[tuple[str, str, str, float | None], Values], dict[float, tuple[float, float]]]:
    """(method, variant, metric, radius) -> values, and the least and greatest ε of each radius
    in grid steps.
    """
    found: dict[tuple[str, str, str, float | None], dict[int, float]] = {}
    sizes: dict[float, list[float]] = {}
    for variant in measured.variants:
        for metric in METRICS:
            for text, keys in measured.settings(workload, variant, step, metric).items():
                # Steps where the setting has them.
                at = number_of(keys.get("steps", keys.get("eps")))
                radius = None if math.isnan(at) else at
                place = (keys.get("method", ""), variant, metric, radius)
                # Two networks may have different ε for one number of steps, and so different
                # settings.
                found.setdefault(place, {}).update(
                    measured.values(workload, variant, step, metric, text)
                )
                if "steps" in keys and radius is not None and "eps" in keys:
                    sizes.setdefault(radius, []).append(number_of(keys["eps"]))
    # What a step says once, such as the accuracy of the integer network, may name no method: it
    # goes to the only one.
    named = {method for method, _, _, _ in found if method not in ("", AGREEMENT)}
    if len(named) == 1:
        (only,) = named
        found = {
            (method or only, variant, metric, at): each
            for (method, variant, metric, at), each in found.items()
        }
    return {**found}, {radius: (min(each), max(each)) for radius, each in sizes.items()}


def _samples(frame: pd.DataFrame) -> pd.DataFrame:
    """The smt rows of single samples that are verdicts or seconds, with `method` and `radius` as
    columns.
    """
    wanted = (frame["verdict"] != "") | (frame["metric"] == QUERY)
    columns = [
        "workload",
        "variant",
        "seed",
        "step",
        "metric",
        "setting",
        "sample",
        "value",
        "verdict",
        "reason",
    ]
    rows = frame.loc[(frame["stage"] == STAGE) & frame["sample"].notna() & wanted, columns]
    settings = {text: parse_setting(str(text)) for text in rows["setting"].unique()}
    return rows.assign(
        method=[settings[text].get("method", "") for text in rows["setting"]],
        radius=[
            number_of(settings[text].get("steps", settings[text].get("eps")))
            for text in rows["setting"]
        ],
    )


def _verdicts(rows: pd.DataFrame) -> dict[tuple[str, float], Counted]:
    said = rows[(rows["verdict"] != "") & rows["radius"].notna()]
    found = {}
    place: Any
    for place, own in said.groupby(["variant", "radius"], sort=False):
        holds, violated = (int((own["verdict"] == each).sum()) for each in _DECIDED)
        by = Counter(own.loc[own["verdict"].isin(_DECIDED) & (own["reason"] != ""), "reason"])
        found[place] = Counted(holds, violated, len(own) - holds - violated, by)
    return found


def _times(rows: pd.DataFrame) -> dict[str, tuple[tuple[float, bool], ...]]:
    """Variant -> (seconds, decided) of each timed question, all seeds and radii together."""
    columns = ["variant", "seed", "radius", "sample"]
    timed = rows[(rows["metric"] == QUERY) & rows["value"].notna()]
    said = rows[rows["verdict"] != ""]
    decided = {
        tuple(key): verdict in _DECIDED
        for *key, verdict in said[[*columns, "verdict"]].itertuples(index=False)
    }
    every = [
        (tuple(key), seconds)
        for *key, seconds in timed[[*columns, "value"]].itertuples(index=False)
    ]
    found = grouped(
        (str(key[0]), (float(seconds), decided[key])) for key, seconds in every if key in decided
    )
    return {variant: tuple(each) for variant, each in found.items()}
