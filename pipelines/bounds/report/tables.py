"""Certified robustness of each variant: its bounds steps by radius, method and layer, each paired
with the baseline.

And what a variant gains over the baseline as one number: mean certified radius, and mean height of
its curve.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

from evalsuite.report.areas import Area, Point, measured_area
from evalsuite.report.canvas import number_of
from evalsuite.report.grids import GridCell, Sheet, estimate_columns
from evalsuite.report.numerals import Scale, grouped, labels
from evalsuite.report.paired import Compared, StepTable, Values, compared_cell, compared_columns
from evalsuite.report.section import RunView
from evalsuite.verification.report.radii import is_geometric

STAGE = "bounds"


class M:
    """The metrics of the stage."""

    CERTIFIED, ATTACKED, UNDECIDED = "certified_accuracy", "pgd_accuracy", "undecided_fraction"
    WORST = "attacked_accuracy"
    RADIUS, MEDIAN, CLEAN = "certified_radius", "certified_radius_median", "clean_accuracy"
    WIDTH, UNSTABLE, SECONDS, MEMORY = "bound_width", "unstable_neurons", "seconds", "peak_memory"
    LAYER_WIDTH, LAYER_UNSTABLE, LAYER_OFF = "layer_width", "unstable_share", "stable_off_share"


# Which way is better, where that is not more.
_NEITHER = (M.UNDECIDED, M.UNSTABLE, M.LAYER_UNSTABLE, M.LAYER_OFF, M.SECONDS, M.MEMORY)
_WAYS = {M.WIDTH: -1, M.LAYER_WIDTH: -1, **dict.fromkeys(_NEITHER, 0)}
METRICS = (M.CERTIFIED, M.WORST, M.ATTACKED, M.RADIUS, M.MEDIAN, M.CLEAN, *_WAYS)
# From loose to tight.
TIGHTNESS = (
    "graph-ibp",
    "ibp",
    "forward",
    "crown-ibp",
    "graph-zonotope",
    "graph-crown",
    "crown",
    "alpha-crown",
)
# Questions: by radii, else by their curve.
AVERAGE, OVER_RADII = "mean certified radius", "certified accuracy"
# The attack that a table's upper limit is by: the metric, and what readers see. The first is the
# worst of AutoAttack's attacks, which rows of earlier versions do not have.
ATTACKS = {M.WORST: "APGD and Square", M.ATTACKED: "PGD"}
ACCURACY = {M.WORST: "accuracy under attack", M.ATTACKED: "PGD accuracy"}
ATTACK = "pgd"  # Stands for the curve of what the attack did not break, whichever it was.


@dataclass(frozen=True)
class Place:
    """Which number of a bounds step: `eps` is None where it is of all radii, `layer` empty where
    of none.
    """

    metric: str
    eps: float | None = None
    method: str = ""
    layer: str = ""


@dataclass(frozen=True, kw_only=True)
class BoundsTable(StepTable):
    """One bounds step of one workload; also one of which every job failed.

    `methods` go from loose to tight, `radii` from small to large; both are empty where no job gave
    a value. `norm` is that of the balls. `after` names the step whose networks are measured, empty
    for networks as trained. `label` tells the table from the others of the report.
    """

    step: str
    label: str
    norm: str
    after: str
    found: Mapping[tuple[str, Place], Values]

    @property
    def name(self) -> str:
        return f"{self.workload}-{self.step}"

    @cached_property
    def methods(self) -> tuple[str, ...]:
        return tuple(
            by_tightness({place.method for _, place in self.found if place.metric == M.CERTIFIED})
        )

    @cached_property
    def radii(self) -> tuple[float, ...]:
        return tuple(sorted({place.eps for _, place in self.found if place.eps is not None}))

    @property
    def tightest(self) -> str:
        return self.methods[-1] if self.methods else ""

    @cached_property
    def attack(self) -> str:
        """The metric of the upper limit: the worst of AutoAttack's attacks where all variants that
        were attacked have it, else PGD's.
        """
        by = {
            metric: {
                (name, place.eps)
                for name, place in self.found
                if (place.metric, place.method) == (metric, "")
            }
            for metric in ATTACKS
        }
        return M.WORST if by[M.WORST] and by[M.WORST] >= by[M.ATTACKED] else M.ATTACKED

    @property
    def attackers(self) -> str:
        """Return what the upper limit is by, as readers see it: "PGD"."""
        return ATTACKS[self.attack]

    def method(self, method: str) -> str:
        """The name of a curve's method in data files, in which the worst of several attacks is not
        called PGD.
        """
        return "worst-attack" if method == ATTACK and self.attack == M.WORST else method

    @property
    def ball(self) -> str:
        """The norm of the balls as readers know it, "L2" or "L∞"."""
        return "L2" if self.norm == "l2" else "L∞"

    @property
    def logarithmic(self) -> bool:
        return is_geometric(self.radii)

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.layer for _, place in self.found if place.layer))

    def methods_of(self, metric: str) -> list[str]:
        return [
            each
            for each in by_tightness(
                {place.method for _, place in self.found if place.metric == metric}
            )
            if each
        ]

    def radii_of(self, metric: str, method: str) -> list[float]:
        own = {
            place.eps for _, place in self.found if (place.metric, place.method) == (metric, method)
        }
        return sorted(each for each in own if each is not None)

    @property
    def radius_place(self) -> Place | None:
        """The mean radius of the tightest method that has radii."""
        methods = self.methods_of(M.RADIUS)
        return Place(M.RADIUS, None, methods[-1]) if methods else None

    @property
    def remarks(self) -> list[str]:
        """Return what the stage says of accuracies and radii that it gave, such as properties not
        tried in time and radii that end at the grid's end; remarks that differ in numbers alone are
        one.
        """
        rows = self.measured.frame
        rows = rows[
            (rows["workload"] == self.workload)
            & (rows["step"] == self.step)
            & rows["value"].notna()
        ]
        rows = rows[rows["metric"].isin((M.CERTIFIED, M.WORST, M.ATTACKED, M.RADIUS))]
        told = rows.loc[rows["reason"] != "", ["variant", "metric", "reason"]].itertuples(
            index=False, name=None
        )
        found = grouped(
            ((metric, re.sub(r"[0-9]+", "0", text)), f"{name}: {text}")
            for name, metric, text in told
        )
        totals = rows["metric"].value_counts()
        return [
            f"{len(told)} of {totals[name]} values of {name.replace('_', ' ')} have a remark like"
            f" this: {told[0]}."
            for (name, _), told in found.items()
        ]

    def reason(self, variant: str, metric: str = M.CERTIFIED) -> str:
        return self.measured.reason(self.workload, variant, self.step, metric)

    def values(self, variant: str, place: Place) -> dict[int, float]:
        """Seed -> value. What is undecided is what the attack left and the method did not prove."""
        own = self.found.get((variant, place))
        if own is None and place.metric == M.UNDECIDED:
            left = self.found.get((variant, Place(self.attack, place.eps)), {})
            proven = self.found.get((variant, Place(M.CERTIFIED, place.eps, place.method)), {})
            own = {seed: left[seed] - proven[seed] for seed in sorted(left.keys() & proven.keys())}
        return dict(own or {})

    def compared(self, variant: str, place: Place) -> Compared:
        # It is itself a difference of fractions.
        magnitude = 1.0 if place.metric == M.UNDECIDED else None
        return self.pair(
            variant,
            lambda name: self.values(name, place),
            lambda name: self.reason(name, place.metric),
            _WAYS.get(place.metric, 1),
            magnitude,
        )

    def numbers(
        self,
        sheet: Sheet,
        rows: Iterable[tuple[Sequence[GridCell | str], Place]],
        scale: Scale | str = "fraction",
        show: Callable[..., GridCell] = compared_cell,
    ) -> None:
        """Rows of one number of each variant, with their exact numbers; none where no variant
        has it.
        """
        for heads, place in rows:
            cells = [self.compared(name, place) for name in self.variants]
            self.row(sheet, heads, cells, scale, show, partial(self.line, place))

    def line(self, place: Place, cell: Compared) -> dict[str, Any]:
        """The numbers of a cell, not rounded, with where they are from, as a row of the table's
        data file.
        """
        return {
            "workload": self.workload,
            "step": self.step,
            "norm": self.norm,
            "after": self.after,
            "metric": place.metric,
            "eps": place.eps,
            "method": place.method,
            "layer": place.layer,
            "variant": cell.variant,
            "baseline": self.baseline,
            **compared_columns(cell),
            **estimate_columns("ratio", cell.ratio),
        }


def by_tightness(methods: Iterable[str]) -> list[str]:
    """From loose to tight; methods of other stages come first, by name."""
    return sorted(
        methods, key=lambda each: (TIGHTNESS.index(each) if each in TIGHTNESS else -1, each)
    )


def bounds_tables(run: RunView) -> list[BoundsTable]:
    measured, made = run.measured, []
    for workload, step in [
        (each, step) for each in measured.workloads for step in measured.steps(each, STAGE)
    ]:
        found: dict[tuple[str, Place], Values] = {}
        norms = []
        for variant, metric in product(measured.variants, METRICS):
            for text, keys in measured.settings(workload, variant, step, metric).items():
                eps = number_of(keys.get("eps"))
                place = Place(
                    metric,
                    None if math.isnan(eps) else eps,
                    keys.get("method", ""),
                    keys.get("layer", ""),
                )
                found[variant, place] = measured.values(workload, variant, step, metric, text)
                norms += [keys["norm"]] if "norm" in keys else []
        # Of a step without a value.
        norms.append(str(measured.options[step].get("norm") or "linf"))
        made.append(
            BoundsTable(
                measured=measured,
                workload=workload,
                baseline=run.baseline,
                step=step,
                label=workload,
                norm=norms[0],
                after=run.record.after.get(step, ""),
                found=found,
            )
        )
    # Labels tell tables apart: workload, norm, what the step follows, and its name where these are
    # not enough.
    counts = Counter(each.workload for each in made)
    told = [
        [
            each.workload,
            *[each.ball] * (each.norm == "l2" or counts[each.workload] > 1),
            *[f"after {each.after}"] * bool(each.after),
        ]
        for each in made
    ]
    every = labels(told, [each.step for each in made])
    return [replace(each, label=label) for each, label in zip(made, every, strict=True)]


def first_table(tables: Sequence[BoundsTable], workload: str) -> BoundsTable | None:
    """Return the table of the workload's first step on networks as trained, or None."""
    return next((table for table in tables if table.workload == workload and not table.after), None)


@dataclass(frozen=True, kw_only=True)
class Height(Area):
    """The mean height of one method's curve above the baseline's; the least and greatest radius are
    its ends.
    """

    table: BoundsTable
    method: str


def heights(tables: Sequence[BoundsTable]) -> list[Height]:
    """One for each table and variant but the baseline, of the tightest method's curve and of the
    attack's.
    """
    return [
        height(table, method, variant)
        for table in tables
        if len(table.radii) > 1
        for method in (
            *table.methods[-1:],
            *[ATTACK] * any(place.metric == table.attack for _, place in table.found),
        )
        for variant in table.others
    ]


def height(table: BoundsTable, method: str, variant: str) -> Height:
    """How much higher a variant's curve lies, over the logarithm of the radius where the radii are
    geometric.

    The scale is the grid's own: the recipe spaces radii as it wants them weighed. Over a geometric
    grid an area over the radius itself would be the largest radius's for the most part,
    where little is certified of any network.
    """
    metric, of = (table.attack, "") if method == ATTACK else (M.CERTIFIED, method)
    told = {
        "own": table.reason(variant, metric),
        "other": f"the baseline has no curve of {table.attackers if method == ATTACK else method}",
        "seed": "no seed in common with the baseline",
        "range": "one radius is no curve",
        "point": "one radius is no curve",
    }

    def curve(name: str) -> dict[float, dict[int, Point]]:
        return {
            eps: {
                seed: (eps, value)
                for seed, value in table.values(name, Place(metric, eps, of)).items()
            }
            for eps in table.radii
        }

    found = Height(variant=variant, table=table, method=method)
    return measured_area(
        found,
        curve(variant),
        curve(table.baseline),
        told.__getitem__,
        logarithmic=table.logarithmic,
    )
