"""The figures of exact verification: verified accuracy over the radius, and questions decided over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalsuite import (
    MUTED_COLOUR,
    Drawing,
    Estimate,
    Look,
    drawings_by_group,
    is_geometric,
    log_heights,
    looks,
    mean_interval,
    mean_marks,
    panels,
    power_text,
    radius_axis,
    radius_text,
    shifted_radius,
    shifts,
)
from pipelines.smt.report.tables import BOUNDS, UPPER, VERIFIED, ExactTable

Points = Sequence[tuple[float, Estimate]]
LEAST = 1e-4  # Seconds: what is faster is drawn there.
ACCURACY = (
    "Verified accuracy: the fraction of test samples proven robust, with 95 % intervals over seeds (points are set "
    "apart)"
)
BY_BOUNDS = "; dashed what bounds alone prove, the exactness gap being between"
NOT_VIOLATED = "; dotted what is not violated, an upper limit, where anything is undecided"
CACTUS = (
    "Time: the decided questions of all seeds, radii and samples in the order of their seconds; a line that goes "
    "further right decides more, one that lies lower is faster. These are clock readings of jobs that ran side by "
    "side: no verdicts"
)


def exact_figures(table: ExactTable) -> list[Drawing]:
    """Verified accuracy over the radius beside the questions decided over time; a panel without data is left out.

    There is none at all where there are not two radii and single questions were not timed.
    """
    shown = [_accuracies] * (len(table.radii) > 1 and table.has(VERIFIED))
    shown += [_cactus] * any(decided for times in table.times.values() for _, decided in times)
    if not shown:
        return []
    told = []
    if _accuracies in shown:
        bounds = any(table.values(each, BOUNDS, at) for each in table.variants for at in table.radii)
        left = any(table.counted(each).open for each in table.variants)
        told.append(ACCURACY + BY_BOUNDS * bounds + NOT_VIOLATED * left)
        told += ["The radius is on a log scale"] if is_geometric(table.radii) else []
    caption = ". ".join(told + [CACTUS] * (_cactus in shown)) + "."

    def draw(variants: Sequence[str], name: str, title: str) -> Drawing:
        with panels(len(shown), len(shown), 2.9, variants) as figure:
            for axes, panel in zip(figure.grid.flat, shown, strict=True):
                panel(axes, table, looks(variants))
        return Drawing(name, title, caption, f"{title}; the numbers are in the tables.", figure.svg)

    return drawings_by_group(draw, table.variants, f"exact-{table.name}", f"Exact verification, {table.label}")


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
        axes.plot(counts[-1:], seconds[-1:], color=look.colour, marker=look.marker, markersize=4.5, linestyle="none")
    asked = max(len(times) for times in table.times.values())
    axes.axvline(asked, color=MUTED_COLOUR, linewidth=0.7, linestyle=(0, (1, 2)))
    axes.annotate("all asked", (asked, 0), xycoords=("data", "axes fraction"), xytext=(-3, 3), fontsize=7,
                  textcoords="offset points", ha="right", va="bottom", color=MUTED_COLOUR, rotation=90)  # fmt: skip
    if table.limit is not None:
        axes.axhline(table.limit, color=MUTED_COLOUR, linewidth=0.7, linestyle=(0, (3, 2)))
        axes.annotate(f"limit {table.limit:g} s", (0, table.limit), xycoords=("axes fraction", "data"), xytext=(3, 2),
                      textcoords="offset points", fontsize=7, color=MUTED_COLOUR)  # fmt: skip
    axes.set_xlim(0, asked * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    log_heights(axes, lambda value: f"{value:g}" if value >= 0.01 else power_text(value), numticks=8)
    axes.grid(axis="y")
    axes.set_xlabel("questions decided")
    axes.set_ylabel("seconds")


def _accuracies(axes: Any, table: ExactTable, known: Mapping[str, Look]) -> None:
    for (variant, look), place in zip(known.items(), shifts(len(known), len(known)), strict=True):
        across = shifted_radius(table.radii, place / 18)

        def course(metric: str, variant: str = variant, across: Callable[[float], float] = across) -> Points:
            values = {each: list(table.values(variant, metric, each).values()) for each in table.radii}
            return [(across(each), mean_interval(own, magnitude=1.0)) for each, own in values.items() if own]

        for metric, dash, gap in ((BOUNDS, 3.0, 2.0), (UPPER, 1.0, 1.5)):
            points = course(metric) if metric == BOUNDS or table.counted(variant).open else []
            axes.plot([x for x, _ in points], [100 * mean.mean for _, mean in points], color=look.colour,
                      linestyle=(0, (dash, gap)), linewidth=0.9)  # fmt: skip
        mean_marks(axes, course(VERIFIED), look, markersize=3.8, elinewidth=0.8, linewidth=1.1)
    radius_axis(axes, table.radii, "{:g}".format if table.stepped else radius_text)
    axes.set_ylim(-3, 103)
    axes.grid(axis="y")
    axes.set_xlabel("radius in grid steps" if table.stepped else "ε")
    axes.set_ylabel("% of samples")
