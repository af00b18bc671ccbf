"""The report's section on certified robustness, with its figures: accuracy over the radius, and
widths by layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evalsuite import Direction, Section
from evalsuite.report.canvas import (
    MUTED_COLOUR,
    drawings_by_group,
    layer_marks,
    log_heights,
    looks,
    mean_marks,
    name_layers,
    panels,
    shifts,
)
from evalsuite.report.drawings import Drawing
from evalsuite.report.findings import Finding
from evalsuite.report.listing import Listing
from evalsuite.report.section import (
    Contrast,
    Endpoint,
    Evidence,
    Headline,
    Part,
    RunView,
    mean_test,
)
from evalsuite.report.statistics import Estimate
from evalsuite.verification.report.counterexamples import counterexample_pictures
from evalsuite.verification.report.radii import (
    is_geometric,
    radius_axis,
    radius_text,
    shifted_radius,
)
from pipelines.bounds.report.tables import (
    AVERAGE,
    OVER_RADII,
    STAGE,
    TIGHTNESS,
    BoundsTable,
    M,
    Place,
    bounds_tables,
    by_tightness,
    first_table,
    height,
)
from pipelines.bounds.report.text import NOTES, grids, shown_radii

if TYPE_CHECKING:
    import pandas as pd

Points = Mapping[str, Sequence[tuple[float, Estimate]]]
_FEW_RADII = 5  # With more a panel takes half the width.
_FITTING = 26  # Characters of layers' names beside one another.


def _part(run: RunView) -> Part:
    tables = run.once(bounds_tables)
    if not tables:
        return Part()
    findings = [
        Finding(table.label, "The stage remarks on its numbers.", tuple(table.remarks))
        for table in tables
        if table.remarks
    ]
    drawings: list[Drawing] = []
    for workload in dict.fromkeys(table.workload for table in tables):
        own = [table for table in tables if table.workload == workload]
        drawings += [
            *certified_curves(own),
            *(width_figure for table in own for width_figure in _width_figures(table)),
        ]
    return Part.of(
        findings,
        grids(tables),
        (),
        drawings,
        rule=NOTES["rule"],
        tables=tables,
    )


def certified_curves(tables: Sequence[BoundsTable]) -> list[Drawing]:
    """Certified accuracy over eps, a panel per method, with the attack's upper limit: figures of
    each step.

    Steps of a workload have figures of their own: their radii, and the norms they are in, may
    differ. Of many variants there are several figures.
    """
    certified = [bounds_table for bounds_table in tables if bounds_table.methods]
    balls = [each.ball for each in certified]
    drawings = []
    for i, table in enumerate(certified or tables[:1]):
        told = [table.workload, *[table.ball] * ("L2" in balls[i : i + 1] or len(balls) > 1)]
        told += [table.step] * (balls.count(table.ball) > 1)
        name = f"certified-{table.workload}" + (f"-{table.step}" if i else "")
        title = f"Certified accuracy, {', '.join(told)}"
        drawings += drawings_by_group(partial(_certified, table), table.variants, name, title)
    return drawings


def _certified(table: BoundsTable, variants: Sequence[str], name: str, title: str) -> Drawing:
    places = [place for variant, place in table.found if variant in variants]
    eps = {
        metric: {place.eps for place in places if place.metric == metric}
        for metric in (M.CERTIFIED, table.attack)
    }
    radii = [radius for radius in table.radii if radius in eps[M.CERTIFIED] | eps[table.attack]]
    caption = NOTES["curves figure"] + " ε is on a log scale." * is_geometric(radii)
    if len(eps[M.CERTIFIED]) < 2:
        return Drawing(
            name, title, caption, reason="certified_accuracy needs values at two eps at least"
        )
    methods = dict.fromkeys(place.method for place in places if place.metric == M.CERTIFIED)
    shown = [(method, M.CERTIFIED, method) for method in methods]
    columns = min(3 if len(radii) <= _FEW_RADII else 2, len(shown))
    tightest = by_tightness(methods)[-1]
    if len(shown) % columns and any(
        (place.metric, place.method) == (M.UNDECIDED, tightest) for place in places
    ):
        shown.append((f"undecided by {tightest}", M.UNDECIDED, tightest))  # There is a place left.
        caption += (
            f" The last panel: what {table.attackers} did not break and {tightest} did not prove."
        )
    with panels(
        len(shown),
        columns,
        2.35 if columns > 2 else 2.6,
        variants,
        more=0.3,
        sharex=True,
        sharey=True,
    ) as figure:
        for axes, (told, metric, method) in zip(figure.grid.flat, shown, strict=False):
            radius_axis(axes, radii)
            if metric == M.CERTIFIED:
                _curves(axes, _points(table, variants, table.attack), radii, dashed=True)
            _curves(axes, _points(table, variants, metric, method), radii, dashed=False)
            axes.set_title(told)
            axes.set_ylim(-3, 103)
            axes.grid(axis="y")
            axes.set_xlabel("ε")
            axes.tick_params(labelbottom=True)
        for axes in figure.grid[:, 0]:
            axes.set_ylabel("% of samples")
    return Drawing(
        name,
        title,
        caption,
        f"{title}: {len(shown)} methods; the numbers are in the tables.",
        figure.svg,
    )


def _points(table: BoundsTable, variants: Sequence[str], metric: str, method: str = "") -> Points:
    places = [(eps, Place(metric, eps, method)) for eps in table.radii]
    return {
        variant: [
            (eps, mean)
            for eps, place in places
            if (variant, place) in table.found and (mean := table.compared(variant, place).mean)
        ]
        for variant in variants
    }


def _curves(axes: Any, points: Points, radii: Sequence[float], *, dashed: bool) -> None:
    known, part = looks(list(points)), 14 if len(points) < 5 else 8
    for (variant, curve), place in zip(
        points.items(), shifts(len(points), len(points)), strict=True
    ):
        if dashed:
            heights = [100 * mean.mean for _, mean in curve]
            axes.plot(
                [eps for eps, _ in curve],
                heights,
                color=known[variant].colour,
                linestyle=(0, (3, 2)),
                linewidth=0.9,
            )
        else:
            across = shifted_radius(radii, place / part)
            shown = [(across(eps), mean) for eps, mean in curve]
            mean_marks(axes, shown, known[variant], markersize=3.4, elinewidth=0.8, linewidth=1.0)


def _width_figures(table: BoundsTable) -> list[Drawing]:
    """Widths by layer at one or two radii, of the tightest method that has them; none where no
    layer was measured.
    """
    methods = table.methods_of(M.LAYER_WIDTH)
    if not methods:
        return []
    method = methods[-1]
    radii = shown_radii(table.radii_of(M.LAYER_WIDTH, method))

    def widths(variant: str, eps: float) -> dict[str, Estimate]:
        found = {
            each: table.compared(variant, Place(M.LAYER_WIDTH, eps, method, each)).mean
            for each in table.layers
        }
        return {layer: mean for layer, mean in found.items() if mean is not None}

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        with panels(len(radii), len(radii), 2.5, variants, sharey=True) as figure:
            for axes, eps in zip(figure.grid.flat, radii, strict=True):
                layer_marks(
                    axes,
                    table.layers,
                    {variant: widths(variant, eps) for variant in variants},
                    looks(variants),
                )
                name_layers(axes, table.layers, _FITTING)
                axes.set_xlabel("layer", fontsize=7.5, color=MUTED_COLOUR)
                axes.set_title(f"ε = {radius_text(eps)}")
            first = figure.grid.flat[0]
            first.set_yscale("log")
            low, high = first.get_ylim()
            if high < 100 * low:  # What lies between powers of ten is named too.
                log_heights(first, "{:.3g}".format, subs=(1.0, 2.0, 5.0))
            else:
                log_heights(first)
            first.set_ylabel("width")
        alt = f"{title}: {', '.join(table.layers)}; the numbers are in the tables."
        return Drawing(name, title, NOTES["width figure"].format(method=method), alt, figure.svg)

    name, title = f"widths-{table.workload}-{table.step}", f"Width of bounds, {table.label}"
    return drawings_by_group(draw, table.variants, name, title)


def _radius(run: RunView, workload: str, variant: str) -> Evidence | None:
    """The mean certified radius over the samples, of the tightest method that has radii."""
    tables = run.once(bounds_tables)
    table = first_table(tables, workload)
    if table is None or not any(each.radius_place for each in tables):
        return None
    place = table.radius_place
    if place is None:
        return Evidence(Contrast("mean certified radius", reason="no radius was bisected"))
    own, other = (table.values(name, place) for name in (variant, table.baseline))
    lacking = variant if not own else table.baseline
    reason = f"{lacking}: {table.reason(lacking, M.RADIUS)}" if not (own and other) else ""
    told = run.measured.settings(workload, variant, table.step, M.RADIUS)
    setting = next(
        (text for text, keys in told.items() if keys.get("method", "") == place.method), ""
    )
    label = f"mean over the samples, {place.method}, {table.ball}"
    return Evidence(Contrast(label, own, other, reason, place=(table.step, M.RADIUS, setting)))


def _certified_more(run: RunView, workload: str, variant: str) -> Evidence | None:
    """How much higher the certified curve of the tightest method lies, and each of its ε; of
    runs without radii.
    """
    tables = run.once(bounds_tables)
    table = first_table(tables, workload)
    if table is None or any(each.radius_place for each in tables):
        return None
    places = [Place(M.CERTIFIED, eps, table.tightest) for eps in table.radii]
    family = [
        Contrast(
            f"ε = {radius_text(place.eps or 0.0)}",
            table.values(variant, place),
            table.values(table.baseline, place),
        )
        for place in places
    ]
    if len(family) == 1:
        return Evidence(family[0])
    area = height(table, table.tightest, variant)
    label = ", ".join(filter(None, ("mean over ε", table.tightest)))
    return Evidence(Contrast(label, area.values, area.other, area.reason, 1.0), family)


def _attacked(run: RunView, workload: str, variant: str) -> Evidence | None:
    """Return what the attack did not break, the mean over the radii, and each of them."""
    tables = run.once(bounds_tables)
    table = first_table(tables, workload)
    if table is None or not any(
        place.metric == each.attack for each in tables for _, place in each.found
    ):
        return None
    tests = []
    for eps in table.radii:
        place = Place(table.attack, eps)
        own, other = (table.values(name, place) for name in (variant, table.baseline))
        lacking = variant if not own else table.baseline
        reason = "" if own and other else f"{lacking}: {table.reason(lacking, table.attack)}"
        tests.append(Contrast(f"ε = {radius_text(eps)}", own, other, reason))
    if not tests:
        return Evidence(
            Contrast(
                f"mean over ε, {table.attackers}",
                reason=f"{variant}: {table.reason(variant, table.attack)}",
            )
        )
    label = f"mean over ε, {table.attackers}, {table.ball}"
    return Evidence(replace(mean_test(tests), label=label), tests)


def _layers(compared: pd.DataFrame) -> pd.Series[bool]:
    """Lines of single layers, which have a figure and tables."""
    return compared["metric"].isin((M.LAYER_WIDTH, M.LAYER_UNSTABLE, M.LAYER_OFF)) & (
        compared["stage"] == STAGE
    )


def _eps_words(key: str, value: str) -> str:
    return radius_text(float(value)) if key == "eps" else value


_BY_LAYER = {"layer": "layer", "method": "method", "eps": "ε"}
SECTION = Section(
    title="Certified robustness",
    question=(
        "For how many samples does bound propagation prove that no input near them is another"
        " class?"
    ),
    stages=(STAGE,),
    sampled_by="samples",
    part=_part,
    endpoints=(
        # One grey level of 8 bits: less of a radius moves no image.
        Endpoint(AVERAGE, _radius, "input", Direction.HIGHER, 1 / 255),
        Endpoint(OVER_RADII, _certified_more, "fraction", Direction.HIGHER, 0.01, instead=True),
        Endpoint("accuracy under attack", _attacked, "fraction", Direction.HIGHER, 0.01),
    ),
    tables=(
        Listing(
            "certified-by-method",
            "certified accuracy of each method (%, Δ in pp)",
            {M.CERTIFIED: "certified"},
            NOTES["looser"],
            {"method": "method", "eps": "ε"},
            words=_eps_words,
        ),
        Listing(
            "widths",
            "width of the bounds by layer",
            {M.LAYER_WIDTH: "width", M.WIDTH: "width of the logits"},
            NOTES["widths"],
            _BY_LAYER,
            "eps",
            _eps_words,
        ),
        Listing(
            "stability",
            "unstable and stable inactive neurons by layer (%, Δ in pp)",
            {M.LAYER_UNSTABLE: "unstable", M.LAYER_OFF: "stable off"},
            NOTES["stability"],
            _BY_LAYER,
            "eps",
            _eps_words,
        ),
        Listing(
            "bounds-cost",
            "what bounds cost: seconds and peak memory of one network",
            {M.SECONDS: "time", M.MEMORY: "memory"},
            NOTES["cost"],
            {"method": "method", "eps": "ε"},
            words=_eps_words,
        ),
    ),
    headlines=tuple(
        Headline(STAGE, metric, wanted=("method", TIGHTNESS[::-1]))
        for metric in (M.RADIUS, M.CERTIFIED)
    ),
    terms={
        "certified accuracy": (
            "The share of test samples whose class is proven for every input of a ball around them."
        ),
        "PGD accuracy": (
            "The share of test samples whose class an attack by projected gradient descent did not"
            " change: an upper limit of what is robust."
        ),
        "accuracy under attack": (
            "The share of test samples whose class none of AutoAttack's attacks APGD (on cross"
            " entropy and on the difference of logits ratio) and Square changed; of earlier rows"
            " PGD accuracy."
        ),
        "certified radius": (
            "The radius of the largest ball around a sample in which its class was proven."
        ),
        "alpha-CROWN": NOTES["alpha-CROWN"],
        "ε": "The radius of a ball around a sample, in the unit of the inputs.",
        "unstable neuron": (
            "One whose input may be of either sign in a ball: where a ReLU is not linear."
        ),
    },
    spelled={"pgd": "PGD", "apgd-ce": "APGD-CE", "apgd-dlr": "APGD-DLR", "square": "Square"},
    kept=_layers,
    pictures=lambda folder: counterexample_pictures(folder, (M.WORST, M.ATTACKED, M.CERTIFIED)),
)
