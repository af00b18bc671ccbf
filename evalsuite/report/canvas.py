"""How figures look and how they become SVG: one palette, one type size, the same bytes each
time.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evalsuite.report.drawings import Drawing
from evalsuite.report.numerals import power_text
from evalsuite.report.section import sections
from evalsuite.report.statistics import Estimate

FIGURE_WIDTH = 7.2  # inches: two such figures side by side stay readable
INK_COLOUR = "#1f2328"
"""The colour of text in figures."""
MUTED_COLOUR = "#59636e"
"""The colour of axes, ticks, and lines that stand behind the data.
"""
RULE_COLOUR = "#d8dee4"
# Okabe and Ito's colours, which people with the common colour blindnesses tell apart. No figure
# shows more than six variants in one panel without naming them beside their marks: see `groups`.
_MORE = ("#0072B2", "#D55E00", "#8C6D1F", "#6A51A3", "#7F7F7F")
_MARKERS = ("P", "X", "<", ">", "h")
MOST = 6
_NAMED = 16  # More layers than that are named in part.
_LONGEST = 18  # Characters of a layer's name.
FIGURE_STYLE: Any = {
    "svg.hashsalt": "evalsuite",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.edgecolor": MUTED_COLOUR,
    "axes.labelcolor": INK_COLOUR,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK_COLOUR,
    "xtick.color": MUTED_COLOUR,
    "ytick.color": MUTED_COLOUR,
    "xtick.labelcolor": INK_COLOUR,
    "ytick.labelcolor": INK_COLOUR,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "axes.grid": False,
    "grid.color": RULE_COLOUR,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "axes.unicode_minus": True,
    "lines.linewidth": 1.4,
    "mathtext.default": "regular",
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Look:
    """The colour and the marker of a variant, the same in every figure."""

    colour: str
    marker: str


# of an axis, relative to the greatest of its values and 1: less is what sums round
_NARROWEST = 1e-6


def looks(variants: Sequence[str]) -> dict[str, Look]:
    """A colour and a marker for each variant: fixed where a section has fixed them, by name for
    others.
    """
    fixed = {name: look for section in sections().values() for name, look in section.looks.items()}
    others = sorted(set(variants) - set(fixed))
    count = len(_MORE)
    # Colour and marker are counted apart after each round, so that the pair repeats only after 25
    # names.
    more = {
        name: (_MORE[rank % count], _MARKERS[(rank + rank // count) % count])
        for rank, name in enumerate(others)
    }
    known = fixed | more
    return {name: Look(*known[name]) for name in variants}


def groups(variants: Sequence[str]) -> list[list[str]]:
    """The variants in groups that one panel can show: at most six, the first of all, the
    baseline, in each.
    """
    if len(variants) <= MOST:
        return [list(variants)]
    first, *rest = variants
    count = -(-len(rest) // (MOST - 1))
    size = -(-len(rest) // count)
    return [[first, *rest[start : start + size]] for start in range(0, len(rest), size)]


Layers = Mapping[str, Mapping[str, Estimate]]  # Variant -> layer -> over seeds.
"""What a figure shows of single layers: variant -> path of the layer -> estimate over seeds.
"""


@dataclass
class Panels:
    """A figure under way: its panels by row and column; `svg` is there once it is drawn."""

    figure: Any
    grid: Any
    svg: str = ""


@contextmanager
def panels(
    count: int,
    columns: int,
    height: float,
    variants: Sequence[str] = (),
    *,
    more: float = 0.0,
    **shared: Any,
) -> Iterator[Panels]:
    """A context that gives `count` panels in rows of `columns`, and draws the legend of the
    variants and the SVG at its end.

    Args:
        count: of panels; places that are left are empty.
        columns: at most.
        height: of a row, in inches.
        variants: what the legend names; none for no such legend.
        more: inches for legends and titles.
        shared: which axes panels share, as matplotlib has it.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows = -(-count // columns)
    with mpl.rc_context(FIGURE_STYLE):
        # Outside of pyplot's global list of figures.
        figure: Any = Figure(
            (FIGURE_WIDTH, height * rows + more), layout="constrained", facecolor="white"
        )
        FigureCanvasSVG(figure)
        drawn = Panels(figure, figure.subplots(rows, columns, squeeze=False, **shared))
        for axes in drawn.grid.flat[count:]:
            axes.set_axis_off()
        yield drawn
        for axes in drawn.grid.flat[:count]:
            _widen(axes)
        if variants:
            handles = [
                Line2D([], [], color=look.colour, marker=look.marker, markersize=4.5, label=name)
                for name, look in looks(variants).items()
            ]
            figure.legend(
                handles=handles,
                loc="outside upper left",
                ncols=min(len(variants), 6),
                columnspacing=1.4,
            )
        # Done here, it is done once: saving would draw everything once more to lay it out.
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")
        stream = io.StringIO()
        # Without date and version: the same bytes for the same data.
        figure.savefig(
            stream, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white"
        )
        drawn.svg = "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _widen(axes: Any) -> None:
    """Give a linear axis whose values differ by rounding alone a width at which they are shown
    as equal.
    """
    for scale, limits, change in (
        (axes.get_xscale(), axes.get_xlim(), axes.set_xlim),
        (axes.get_yscale(), axes.get_ylim(), axes.set_ylim),
    ):
        middle = (limits[0] + limits[1]) / 2
        least = _NARROWEST * max(1.0, abs(middle))
        if scale == "linear" and abs(limits[1] - limits[0]) < least:
            change(middle - least / 2, middle + least / 2)


def mean_marks(
    axes: Any,
    points: Iterable[tuple[float, Estimate]],
    look: Look,
    factor: float = 100.0,
    **style: Any,
) -> None:
    """Draw means and intervals at their places across.

    Args:
        axes: a panel.
        points: places and estimates.
        look: of the variant.
        factor: of what is drawn; 100 shows fractions in percent.
        style: is passed on to matplotlib's errorbar.
    """
    shown = [
        (x, factor * estimate.mean, factor * (estimate.half_width or 0.0)) for x, estimate in points
    ]
    across, heights, halves = zip(*shown, strict=True) if shown else ((), (), ())
    axes.errorbar(across, heights, yerr=halves, color=look.colour, marker=look.marker, **style)


def layer_marks(
    axes: Any,
    names: Sequence[str],
    layers: Layers,
    known: Mapping[str, Look],
    seen: Layers | None = None,
) -> None:
    """Draw a mark with its interval for each layer and variant, side by side.

    Args:
        axes: a panel, whose heights may be on a log scale: what is not above 0 has no mark.
        names: of the layers, in order.
        layers: what has marks.
        known: how each variant is drawn.
        seen: what has dashes, of the layers that have names.
    """
    for (variant, look), shift in zip(known.items(), shifts(len(known), 0.7), strict=True):
        estimates = layers.get(variant, {})
        places = [
            (names.index(name) + shift, estimate)
            for name, estimate in estimates.items()
            if estimate.mean > 0
        ]
        # An interval may reach below 0, which a log scale has no place for.
        down = [min(estimate.half_width or 0.0, 0.9 * estimate.mean) for _, estimate in places]
        axes.errorbar(
            [x for x, _ in places],
            [estimate.mean for _, estimate in places],
            yerr=[down, [estimate.half_width or 0.0 for _, estimate in places]],
            color=look.colour,
            marker=look.marker,
            markersize=4,
            elinewidth=1.1,
            linestyle="none",
        )
        below = (seen or {}).get(variant, {})
        dashes = [
            (names.index(name) + shift, estimate.mean)
            for name, estimate in below.items()
            if name in names
        ]
        if dashes:
            axes.plot(
                [x for x, _ in dashes],
                [y for _, y in dashes],
                color=look.colour,
                marker="_",
                linestyle="none",
            )


def shifts(count: int, width: float) -> list[float]:
    """How far the marks of `count` variants stand from their common place, so that they share a
    width.
    """
    return [(rank - (count - 1) / 2) * width / count for rank in range(count)]


def name_layers(axes: Any, names: Sequence[str], fitting: int) -> None:
    """Name the layers across a panel: long names are cut, of many only some are written, and more
    than `fitting` characters stand upright.
    """
    step = -(-len(names) // _NAMED)
    shown = [
        name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}" for name in names[::step]
    ]
    crowded = sum(map(len, shown)) > fitting
    axes.set_xticks(
        range(0, len(names), step),
        shown,
        fontsize=6.5 if crowded else 7,
        rotation=90 if crowded else 0,
    )
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=0)


def log_heights(axes: Any, text: Callable[[float], str] = power_text, **located: Any) -> None:
    """Make the heights of a panel logarithmic, with ticks as plain text; `located` is passed on to
    matplotlib's LogLocator.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(**(located or {"numticks": 6})))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def drawings_by_group(
    draw: Callable[[Sequence[str], str, str], Drawing],
    variants: Sequence[str],
    name: str,
    title: str,
) -> list[Drawing]:
    """A figure for each group of variants that one figure can show; where no data can be drawn, one
    drawing with the reason.
    """
    parts = groups(variants)
    if len(parts) > 1:
        drawn = [
            draw(part, f"{name}-{number}", f"{title}, {number} of {len(parts)}")
            for number, part in enumerate(parts, 1)
        ]
        if any(drawing.svg for drawing in drawn):
            return drawn
    return [draw(variants, name, title)]


def number_of(text: str | None) -> float:
    """The number that a setting's text stands for; NaN where it stands for none."""
    try:
        return float(text) if text is not None else math.nan
    except ValueError:
        return math.nan
