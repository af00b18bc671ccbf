"""Certified robustness of each variant: its bounds steps by radius, method and layer, each paired with the baseline."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalsuite import (
    Compared,
    GridCell,
    Measured,
    Run,
    Scale,
    Sheet,
    StepTable,
    Values,
    compared_cell,
    compared_columns,
    estimate_columns,
    is_geometric,
    labels,
    number_of,
)

STAGE = "bounds"
CERTIFIED, ATTACKED, UNDECIDED = "certified_accuracy", "pgd_accuracy", "undecided_fraction"
RADIUS, MEDIAN = "certified_radius", "certified_radius_median"
WIDTH, UNSTABLE = "bound_width", "unstable_neurons"
LAYER_WIDTH, LAYER_UNSTABLE, LAYER_OFF = "layer_width", "unstable_share", "stable_off_share"
SECONDS, MEMORY = "seconds", "peak_memory"
METRICS = (CERTIFIED, ATTACKED, UNDECIDED, RADIUS, MEDIAN, WIDTH, UNSTABLE, LAYER_WIDTH, LAYER_UNSTABLE, LAYER_OFF,
           SECONDS, MEMORY, "clean_accuracy")  # fmt: skip
TIGHTNESS = (
    "graph-ibp",
    "ibp",
    "forward",
    "crown-ibp",
    "graph-zonotope",
    "graph-crown",
    "crown",
    "alpha-crown",
)  # From loose to tight.
_TOLD = (CERTIFIED, ATTACKED, RADIUS)  # What the stage may have a remark on.
_WAYS = {UNDECIDED: 0, WIDTH: -1, UNSTABLE: 0, LAYER_WIDTH: -1, LAYER_UNSTABLE: 0, LAYER_OFF: 0, SECONDS: 0, MEMORY: 0}


@dataclass(frozen=True)
class Place:
    """Which number of a bounds step: `eps` is None where it is of all radii, `layer` empty where of none."""

    metric: str
    eps: float | None = None
    method: str = ""
    layer: str = ""


@dataclass(frozen=True, kw_only=True)
class BoundsTable(StepTable):
    """One bounds step of one workload.

    `methods` go from loose to tight, `radii` from small to large; both are empty where no job gave a value. `norm` is
    that of the balls. `after` names the step whose networks are measured, empty for networks as trained. `label` tells
    the table from the others of the report. `remarks` are what the stage says of the values it gave: properties not
    tried in time, radii that end at the grid's end.
    """

    step: str
    label: str
    methods: tuple[str, ...]
    radii: tuple[float, ...]
    norm: str
    after: str
    found: Mapping[tuple[str, Place], Values]
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the table's files, without an ending."""
        return f"{self.workload}-{self.step}"

    @property
    def tightest(self) -> str:
        """The last of the methods; empty without any."""
        return self.methods[-1] if self.methods else ""

    @property
    def ball(self) -> str:
        """The norm of the balls as readers know it, "L2" or "L∞"."""
        return "L2" if self.norm == "l2" else "L∞"

    @property
    def logarithmic(self) -> bool:
        """Whether the radii are spaced more evenly by their logarithm than by themselves."""
        return is_geometric(self.radii)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, in the network's order."""
        return tuple(dict.fromkeys(place.layer for _, place in self.found if place.layer))

    def has(self, metric: str) -> bool:
        """Whether anything gave a value of a metric."""
        return any(place.metric == metric for _, place in self.found)

    def methods_of(self, metric: str) -> list[str]:
        """The methods that have values of a metric, from loose to tight."""
        own = {place.method for _, place in self.found if place.metric == metric}
        return [each for each in by_tightness(own) if each]

    def radii_of(self, metric: str, method: str) -> list[float]:
        """The radii at which a method has values of a metric."""
        own = {place.eps for _, place in self.found if (place.metric, place.method) == (metric, method)}
        return sorted(each for each in own if each is not None)

    def reason(self, variant: str, metric: str = CERTIFIED) -> str:
        """Why there is no value of a metric."""
        return self.measured.reason(self.workload, variant, self.step, metric)

    def values(self, variant: str, place: Place) -> dict[int, float]:
        """Seed -> value. What is undecided is what PGD left and the method did not prove."""
        own = self.found.get((variant, place))
        if own is None and place.metric == UNDECIDED:
            left = self.found.get((variant, Place(ATTACKED, place.eps)), {})
            proven = self.found.get((variant, Place(CERTIFIED, place.eps, place.method)), {})
            own = {seed: left[seed] - proven[seed] for seed in sorted(left.keys() & proven.keys())}
        return dict(own or {})

    def compared(self, variant: str, place: Place) -> Compared:
        """A number with its difference and its ratio to the baseline's."""
        other = self.values(self.baseline, place) if variant != self.baseline else {}
        magnitude = 1.0 if place.metric == UNDECIDED else None  # It is itself a difference of fractions.
        own = self.values(variant, place)
        reason = "" if own else self.reason(variant, place.metric)
        return Compared(variant, own, other, _WAYS.get(place.metric, 1), magnitude, reason)

    def number(self, sheet: Sheet, heads: Sequence[GridCell | str], place: Place, scale: Scale | str = "fraction",
               show: Callable[..., GridCell] = compared_cell) -> None:  # fmt: skip
        """A row of one number of each variant, with its exact numbers; none where no variant has it."""
        cells = [self.compared(name, place) for name in self.variants]
        if self.row(sheet, heads, cells, scale, show):
            sheet.lines += [self.line(place, cell) for cell in cells]

    @property
    def radius_place(self) -> Place | None:
        """The mean radius of the tightest method that has radii."""
        methods = self.methods_of(RADIUS)
        return Place(RADIUS, None, methods[-1]) if methods else None

    def line(self, place: Place, cell: Compared) -> dict[str, Any]:
        """The numbers of a cell, not rounded, with where they are from, as a row of the table's data file."""
        return {
            "workload": self.workload, "step": self.step, "norm": self.norm, "after": self.after,
            "metric": place.metric, "eps": place.eps, "method": place.method, "layer": place.layer,
            "variant": cell.variant, "baseline": self.baseline, **compared_columns(cell),
            **estimate_columns("ratio", cell.ratio),
        }  # fmt: skip


def by_tightness(methods: Sequence[str] | set[str]) -> list[str]:
    """From loose to tight; methods of other stages come first, by name."""
    return sorted(methods, key=lambda each: (TIGHTNESS.index(each) if each in TIGHTNESS else -1, each))


def bounds_tables(run: Run) -> list[BoundsTable]:
    """A table for each bounds step of each workload; also of a step of which every job failed."""
    measured, after = run.measured, run.record.after
    made = []
    for workload in measured.workloads:
        for step in measured.steps(workload, STAGE):
            found, norms = _found(measured, workload, step)
            places = [place for _, place in found]
            norm = next(iter(norms), str(measured.options[step].get("norm") or "linf"))  # Of a step without a value.
            made.append(BoundsTable(
                measured=measured, workload=workload, baseline=run.baseline, step=step, label=workload,
                methods=tuple(by_tightness({place.method for place in places if place.metric == CERTIFIED})),
                radii=tuple(sorted({place.eps for place in places if place.eps is not None})), norm=norm,
                after=after.get(step, ""), found=found, remarks=_remarks(measured, workload, step),
            ))  # fmt: skip
    # Labels tell tables apart: workload, norm, what the step follows, and its name where these are not enough.
    counts = Counter(each.workload for each in made)
    told = [
        [each.workload, *([each.ball] if each.norm == "l2" or counts[each.workload] > 1 else []),
         *([f"after {each.after}"] if each.after else [])]
        for each in made
    ]  # fmt: skip
    every = labels(told, [each.step for each in made])
    return [replace(each, label=label) for each, label in zip(made, every, strict=True)]


def _found(measured: Measured, workload: str, step: str
           ) -> tuple[dict[tuple[str, Place], Values], dict[str, None]]:  # fmt: skip
    """All values of a step, and the norms that their settings name."""
    found: dict[tuple[str, Place], Values] = {}
    norms: dict[str, None] = {}
    for variant in measured.variants:
        for metric in METRICS:
            for text, keys in measured.settings(workload, variant, step, metric).items():
                eps = number_of(keys.get("eps"))
                place = Place(metric, None if math.isnan(eps) else eps, keys.get("method", ""), keys.get("layer", ""))
                found[variant, place] = measured.values(workload, variant, step, metric, text)
                norms |= {keys["norm"]: None} if "norm" in keys else {}
    return found, norms


def _remarks(measured: Measured, workload: str, step: str) -> tuple[str, ...]:
    """What the stage says of accuracies and radii that it gave; remarks that differ in numbers alone are one."""
    rows = measured.frame
    rows = rows[(rows["workload"] == workload) & (rows["step"] == step) & rows["metric"].isin(_TOLD)]
    rows = rows[rows["value"].notna()]
    found: dict[tuple[str, str], list[str]] = {}
    for variant, metric, reason in rows[["variant", "metric", "reason"]].itertuples(index=False):
        if reason:
            alike = re.sub(r"[0-9]+", "0", str(reason))
            found.setdefault((str(metric), alike), []).append(f"{variant}: {reason}")
    totals = rows["metric"].value_counts()
    return tuple(
        f"{len(told)} of {int(totals[metric])} values of {metric.replace('_', ' ')} have a remark like this: {told[0]}."
        for (metric, _), told in found.items()
    )
