"""The report's section on exact verification, with its figure: verified accuracy by radius,
questions over time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalsuite import Direction, Section
from evalsuite.report.canvas import (
    MUTED_COLOUR,
    Look,
    drawings_by_group,
    log_heights,
    looks,
    mean_marks,
    panels,
    shifts,
)
from evalsuite.report.drawings import Drawing
from evalsuite.report.listing import Listing
from evalsuite.report.numerals import power_text
from evalsuite.report.section import Contrast, Endpoint, Evidence, Headline, Measure, Part, RunView
from evalsuite.report.statistics import Estimate, mean_interval
from evalsuite.results import parse_setting
from evalsuite.verification.report.counterexamples import counterexample_pictures
from evalsuite.verification.report.radii import (
    is_geometric,
    radius_axis,
    radius_text,
    shifted_radius,
)
from pipelines.smt.report.tables import (
    AGREEMENT,
    BOUNDS,
    DISTANCE,
    DISTANCE_UPPER,
    GAP,
    PROOF_BYTES,
    PROOFS,
    STAGE,
    UNDECIDED,
    UPPER,
    VERIFIED,
    VIOLATED,
    ExactTable,
    exact_tables,
)
from pipelines.smt.report.text import (
    NOTES,
    agreement_grid,
    agreement_of,
    cost_grids,
    distance_grid,
    verified_grid,
)

if TYPE_CHECKING:
    import pandas as pd

Points = Sequence[tuple[float, Estimate]]
LEAST = 1e-4  # Seconds: what is faster is drawn there.


def _part(run: RunView) -> Part:
    """Each method of each smt step of each workload; the tables are of robustness."""
    every = run.once(exact_tables)
    tables = [each for each in every if each.method != AGREEMENT]
    agreements = [each for each in every if each.method == AGREEMENT]
    grids = []
    for table in tables:
        grids.append(verified_grid(table))
        agreement = agreement_of(table, agreements)
        grids += [agreement_grid(agreement)] if agreement else []
    grids += [distance_grid(tables), *cost_grids(tables)]
    drawings = [drawing for table in tables for drawing in exact_figures(table)]
    return Part.of((), grids, (), drawings, rule=NOTES["rule"] if tables else "", tables=tables)


def _over_radii(metric: str) -> Measure:
    """The mean over all radii of the first step on networks as trained, and each radius."""

    def measure(run: RunView, workload: str, variant: str) -> Evidence | None:
        table = next(
            (
                each
                for each in run.once(exact_tables)
                if each.workload == workload and not each.after and each.method != AGREEMENT
            ),
            None,
        )
        if table is None:
            return None
        names = (variant, run.baseline)
        lacking = next((name for name in names if not table.over_radii(name, metric)), "")
        reason = f"{lacking}: {table.reason(lacking, metric)}" if lacking else ""
        family = [
            _contrast(
                table.radius(at),
                table.ends(variant, metric, at),
                table.ends(run.baseline, metric, at),
            )
            for at in table.radii
        ]
        own_means, other_means = (table.mean_ends(name, metric) for name in names)
        primary = _contrast("mean over the radii", own_means, other_means, reason)
        return Evidence(
            primary, [contrast for contrast in family if contrast.own and contrast.other]
        )

    return measure


_Ends = tuple[dict[int, float], dict[int, float]]


def _contrast(label: str, own: _Ends, other: _Ends, reason: str = "") -> Contrast:
    """Return the contrast of numbers that lie between two ends; of numbers alone, where nothing was
    left open.
    """
    if own[0] == own[1] and other[0] == other[1]:
        return Contrast(label, own[0], other[0], reason, 1.0)
    return Contrast(
        f"{label}, open questions counted both ways",
        own[0],
        other[0],
        reason,
        1.0,
        own[1],
        other[1],
    )


def _bracketed(compared: pd.DataFrame) -> pd.Series[bool]:
    """Lines of one end of a distance or share, and of radii in grid steps: their tables have both
    ends, and the steps.

    The ε of grid steps are each network's own, so equal ones pair nothing.
    """
    own = compared["stage"] == STAGE
    steps = compared["setting"].map(lambda text: "steps" in parse_setting(str(text))).astype(bool)
    # Lines of a share of which some arm's open questions would make another.
    place = compared["workload"] + "/" + compared["step"] + "/" + compared["setting"]
    undecided = place[own & (compared["metric"] == UNDECIDED) & (compared["mean"] > 0)]
    left_open = compared["metric"].isin((VERIFIED, VIOLATED, GAP)) & place.isin(set(undecided))
    return own & (steps | left_open) | compared["metric"].isin((DISTANCE, DISTANCE_UPPER))


def exact_figures(table: ExactTable) -> list[Drawing]:
    """Verified accuracy over the radius beside the questions decided over time; a panel without
    data is left out.

    There is none at all where there are not two radii and single questions were not timed.
    """
    shown = [_accuracies] * (len(table.radii) > 1 and table.has(VERIFIED))
    shown += [_cactus] * any(decided for times in table.times.values() for _, decided in times)
    if not shown:
        return []
    told = []
    if _accuracies in shown:
        bounds = any(
            table.values(variant, BOUNDS, at) for variant in table.variants for at in table.radii
        )
        left = any(table.counted(variant).open for variant in table.variants)
        told.append(
            NOTES["accuracy panel"] + NOTES["by bounds"] * bounds + NOTES["not violated"] * left
        )
        told += ["The radius is on a log scale"] if is_geometric(table.radii) else []
    caption = ". ".join(told + [NOTES["time panel"]] * (_cactus in shown)) + "."

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        with panels(len(shown), len(shown), 2.9, variants) as figure:
            for axes, panel in zip(figure.grid.flat, shown, strict=True):
                panel(axes, table, looks(variants))
        return Drawing(name, title, caption, f"{title}; the numbers are in the tables.", figure.svg)

    return drawings_by_group(
        draw, table.variants, f"exact-{table.name}", f"Exact verification, {table.label}"
    )


def curve_points(times: Sequence[tuple[float, bool]]) -> tuple[list[int], list[float]]:
    """How many are decided within each time, and these times in order."""
    seconds = sorted(max(each, LEAST) for each, decided in times if decided)
    return list(range(1, len(seconds) + 1)), seconds


def _cactus(axes: Any, table: ExactTable, known: Mapping[str, Look]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_yscale("log")
    for variant, look in known.items():
        counts, seconds = curve_points(table.times.get(variant, ()))
        if not counts:
            continue
        axes.plot(counts, seconds, color=look.colour, linewidth=1.2)
        axes.plot(
            counts[-1:],
            seconds[-1:],
            color=look.colour,
            marker=look.marker,
            markersize=4.5,
            linestyle="none",
        )
    asked = max(len(times) for times in table.times.values())
    axes.axvline(asked, color=MUTED_COLOUR, linewidth=0.7, linestyle=(0, (1, 2)))
    axes.annotate(
        "all asked",
        (asked, 0),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 3),
        fontsize=7,
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=MUTED_COLOUR,
        rotation=90,
    )
    if table.limit is not None:
        axes.axhline(table.limit, color=MUTED_COLOUR, linewidth=0.7, linestyle=(0, (3, 2)))
        axes.annotate(
            f"limit {table.limit:g} s",
            (0, table.limit),
            xycoords=("axes fraction", "data"),
            xytext=(3, 2),
            textcoords="offset points",
            fontsize=7,
            color=MUTED_COLOUR,
        )
    axes.set_xlim(0, asked * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    log_heights(
        axes, lambda value: f"{value:g}" if value >= 0.01 else power_text(value), numticks=8
    )
    axes.grid(axis="y")
    axes.set_xlabel("questions decided")
    axes.set_ylabel("seconds")


def _accuracies(axes: Any, table: ExactTable, known: Mapping[str, Look]) -> None:
    for (variant, look), place in zip(known.items(), shifts(len(known), len(known)), strict=True):
        across = shifted_radius(table.radii, place / 18)

        def course(
            metric: str, variant: str = variant, across: Callable[[float], float] = across
        ) -> Points:
            values = {
                radius: list(table.values(variant, metric, radius).values())
                for radius in table.radii
            }
            return [
                (across(each), mean_interval(own, magnitude=1.0))
                for each, own in values.items()
                if own
            ]

        for metric, dash, gap in ((BOUNDS, 3.0, 2.0), (UPPER, 1.0, 1.5)):
            points = course(metric) if metric == BOUNDS or table.counted(variant).open else []
            axes.plot(
                [x for x, _ in points],
                [100 * mean.mean for _, mean in points],
                color=look.colour,
                linestyle=(0, (dash, gap)),
                linewidth=0.9,
            )
        mean_marks(axes, course(VERIFIED), look, markersize=3.8, elinewidth=0.8, linewidth=1.1)
    radius_axis(axes, table.radii, "{:g}".format if table.stepped else radius_text)
    axes.set_ylim(-3, 103)
    axes.grid(axis="y")
    axes.set_xlabel("radius in grid steps" if table.stepped else "ε")
    axes.set_ylabel("% of samples")


SECTION = Section(
    title="Exact verification",
    question=(
        "For how many samples is it decided, without any gap, whether an input near them is another"
        " class?"
    ),
    stages=(STAGE,),
    sampled_by="samples",
    part=_part,
    endpoints=(
        Endpoint(
            "accuracy verified exactly", _over_radii(VERIFIED), "fraction", Direction.HIGHER, 0.01
        ),
        Endpoint(
            "questions left undecided", _over_radii(UNDECIDED), "fraction", Direction.LOWER, 0.01
        ),
    ),
    tables=(
        Listing(
            "exact-proofs",
            "proofs of what holds that were checked apart from the prover",
            {PROOFS: "checked proofs", PROOF_BYTES: "bytes of a proof"},
            NOTES["proofs"],
            {"method": "method", "eps": "ε", "steps": "grid steps"},
        ),
    ),
    headlines=(
        Headline(STAGE, VERIFIED),
        Headline(STAGE, UNDECIDED, figure=False),
    ),
    terms={
        "verified accuracy": (
            "The share of samples whose class is proven for every input of a ball around them."
        ),
        "exactness gap": "What a search proves beyond what bounds alone prove.",
        "PAR-2": (
            "Seconds of a question; one left open counts twice, at its limit where that is of"
            " seconds."
        ),
        "counterexample": "An input of a ball that the network gives another class.",
        "both ways": (
            "Open questions answered against a variant and for the baseline, and the reverse."
        ),
    },
    kept=_bracketed,
    pictures=lambda folder: counterexample_pictures(folder, (VERIFIED, VIOLATED, UNDECIDED)),
)
