"""Value and gradient of activations as a figure: one panel each. matplotlib is imported on use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evalsuite.activations.traits import Activation

SUFFIXES = (".svg", ".png")
_VALUE, _SLOPE, _RELU, _RULE, _MUTED = "#0072B2", "#D55E00", "#B8C0C8", "#E4E8EC", "#59636e"
_REACH = 4.0
_BOTTOM, _TOP = -1.3, 3.0
_COLUMNS = 5
_HARDER = 4.0


def write_figure(rows: Sequence[Activation], path: Path) -> None:
    """Draw the rows, in small multiples if there are several, into an SVG or PNG file: the same bytes each time.

    Raises:
        ValueError: no row, or another suffix than those of SUFFIXES.
        OSError: the file can't be written.
    """
    if not rows:
        raise ValueError("no activation to draw")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"cannot draw into {path}: the name must end in {' or '.join(SUFFIXES)}")
    figure = _single(rows[0]) if len(rows) == 1 else _multiples(rows)
    metadata = {"Date": None, "Creator": None} if path.suffix.lower() == ".svg" else {"Software": None}
    figure.savefig(path, metadata=metadata, facecolor="white", dpi=160)


def _new(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _single(row: Activation) -> Any:
    figure = _new(5.2, 3.9)
    axes = figure.subplots()
    lines = _panel(axes, row, detailed=True)
    axes.set_xlabel("x")
    axes.set_title(f"{row.name}   ", pad=10)
    axes.text(1, 1.03, row.formula, transform=axes.transAxes, ha="right", color=_MUTED, size="small")
    axes.legend(handles=lines, loc="upper left")
    return figure


def _multiples(rows: Sequence[Activation]) -> Any:
    columns = min(_COLUMNS, len(rows))
    height = -(-len(rows) // columns)
    figure = _new(1.95 * columns, 1.75 * height)
    grid = figure.subplots(height, columns, sharex=True, sharey=True, squeeze=False)
    for axes, row in zip(grid.flat, rows, strict=False):
        lines = _panel(axes, row, detailed=False)
        axes.set_title(row.name)
    spare = list(grid.flat)[len(rows) :]
    for axes in spare:
        axes.axis("off")
    where = spare[-1] if spare else figure
    where.legend(handles=lines, loc="center left" if spare else "outside upper right", ncols=1 if spare else len(lines))
    return figure


def _panel(axes: Any, row: Activation, *, detailed: bool) -> list[Any]:
    x = torch.linspace(-_REACH, _REACH, 1601, dtype=torch.float64)
    axes.axhline(0, color=_RULE, linewidth=0.8, zorder=0)
    axes.axvline(0, color=_RULE, linewidth=0.8, zorder=0)
    (relu,) = axes.plot(x, x.clamp(min=0), color=_RELU, linewidth=1.0, dashes=(3, 2), label="ReLU")
    slope = row.slope(x)
    for kink in row.kinks:  # a gap, so that a jump is not drawn as a steep line
        slope[(x - kink).abs().argmin()] = torch.nan
    (gradient,) = axes.plot(x, slope, color=_SLOPE, linewidth=1.3, label="gradient")
    (value,) = axes.plot(x, row.value(x), color=_VALUE, linewidth=1.9, label="value")
    if "s" in row.parameters:
        axes.plot(x, row.slope(_HARDER * x), color=_SLOPE, linewidth=0.8, alpha=0.6)
        axes.plot(x, row.value(_HARDER * x) / _HARDER, color=_VALUE, linewidth=0.8, alpha=0.6)
        axes.annotate(f"thin: hardness {_HARDER:g}", (0.04, 0.66), xycoords="axes fraction", color=_MUTED, size="small")
    if detailed and row.inflections:
        at = torch.tensor(row.inflections, dtype=torch.float64)
        axes.plot(at, row.value(at), "o", color=_VALUE, markersize=4, markeredgecolor="white")
    axes.set(xlim=(-_REACH, _REACH), ylim=(_BOTTOM, _TOP), xticks=[-4, -2, 0, 2, 4], yticks=[-1, 0, 1, 2, 3])
    return [value, gradient, relu]
