"""The activations as text, the table and all traits of one; and as a figure, one panel each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evalsuite.plugins import Plugin, PluginError, did_you_mean, entries, load, load_all
from lambda_gelu.activations.gated import GATED, Gated
from lambda_gelu.activations.traits import Activation

_BENDS = {"+": "convex", "-": "concave", "0": "linear"}


class UnknownActivation(ValueError):
    """No activation of that name, or it can't be loaded; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The user named all activations, one, or a gated unit."""

    plugins: tuple[Plugin, ...]
    unit: Gated | None = None

    @staticmethod
    def by_name(name: str | None) -> Selected:
        """All for None. Raises UnknownActivation for a name that is unknown or broken."""
        if name is None:
            return Selected(tuple(load_all("activations")))
        # A plugin of that name goes before a gated unit, which is no activation.
        known = [entry.name for entry in entries("activations")]
        if name in GATED and name not in known:
            return Selected((), GATED[name])
        if name not in known:
            raise UnknownActivation(
                f"unknown activation {name!r}{did_you_mean(name, [*known, *GATED])}"
            )
        try:
            plugin = load("activations", name)
        except PluginError as error:
            raise UnknownActivation(str(error)) from None
        if not isinstance(plugin.target, Activation):
            raise UnknownActivation(
                f"activation {name!r} of {plugin.origin} {plugin.version} is a"
                f" {type(plugin.target).__name__}: its entry point must name an"
                " evalsuite.Activation"
            )
        return Selected((plugin,))

    def lines(self) -> list[str]:
        """Print the table, or all traits of the one."""
        if self.unit:
            return described_unit(self.unit)
        if len(self.plugins) == 1:
            (plugin,) = self.plugins
            return described(plugin.target, f"{plugin.origin} {plugin.version}")
        return table(self.plugins)

    def rows(self) -> list[Activation]:
        """Return the rows to draw. Raises ValueError for a gated unit, which is a function of two
        inputs.
        """
        if self.unit:
            gate = type(self.unit.gate(1)).__name__
            raise ValueError(
                f"{self.unit.name} is no function of one input; draw its gate's activation, {gate}"
            )
        return [plugin.target for plugin in self.plugins if isinstance(plugin.target, Activation)]


def table(plugins: Sequence[Plugin]) -> list[str]:
    """Aligned lines: name, formula, what it hardens to, source; then the gated units; then what
    could not be loaded.
    """
    rows = [plugin.target for plugin in plugins if isinstance(plugin.target, Activation)]
    cells = [("activation", "formula", "hardens to", "source")]
    cells += [(row.name, row.formula, row.hardens_to or "-", row.source) for row in rows]
    cells += [("gated unit", "G, U: linear layers; a third follows", "", "")]
    cells += [(unit.name, unit.formula, "", unit.source) for unit in GATED.values()]
    # All columns but the last are padded, since sources may be long.
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]
        )
        for line in cells
    ]
    lines.insert(len(rows) + 1, "")
    lines += [
        f"{plugin.name}: {plugin.error or 'broken: no row of traits'}"
        for plugin in plugins
        if plugin.target not in rows
    ]
    return [line.rstrip() for line in lines]


def described(row: Activation, origin: str) -> list[str]:
    """All traits of one activation, a line each."""
    scaling = " / lambda" if 0 < row.relu_distance < math.inf else ""
    traits = {
        "formula": row.formula,
        "source": row.source,
        "hardens to": row.hardens_to or "nothing in general",
        "sup |f - ReLU|": f"{_number(row.relu_distance)}{scaling}",
        "slope at -inf": _number(row.limits[0]),
        "slope at +inf": _number(row.limits[1]),
        "inflections": _numbers(row.inflections),
        "shape": ", ".join(_BENDS[sign] for sign in row.shape) or "piecewise linear",
        "kinks": _numbers(row.kinks),
        "learns": ", ".join(row.parameters) or "nothing",
        "ONNX": row.onnx or "several operators",
        "from": origin,
    }
    if row.row_of is not None:
        traits["note"] = (
            "the numbers are those of the default parameters; Activation.of(module) gives a"
            " module's"
        )
    return [f"{row.name}: {row.help}", *(f"  {name:<14}  {text}" for name, text in traits.items())]


def described_unit(unit: Gated) -> list[str]:
    """A gated unit, a line for each of its traits."""
    traits = {"formula": unit.formula, "source": unit.source, "gate": type(unit.gate(1)).__name__}
    return [
        f"{unit.name}: {unit.help}",
        *(f"  {name:<14}  {text}" for name, text in traits.items()),
    ]


def _number(value: float) -> str:
    return f"{value:.10g}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(map(_number, values)) or "none"


SUFFIXES = (".svg", ".png")
_VALUE, _SLOPE, _RELU, _RULE, _MUTED = "#0072B2", "#D55E00", "#B8C0C8", "#E4E8EC", "#59636e"
_REACH = 4.0
_BOTTOM, _TOP = -1.3, 3.0
_COLUMNS = 5
_HARDER = 4.0


def write_figure(rows: Sequence[Activation], path: Path) -> None:
    """Draw the rows, in small multiples if there are several, into an SVG or PNG file: the same
    bytes each time.

    Raises:
        ValueError: no row, or another suffix than those of SUFFIXES.
        OSError: the file can't be written.
    """
    if not rows:
        raise ValueError("no activation to draw")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"cannot draw into {path}: the name must end in {' or '.join(SUFFIXES)}")
    figure = _single(rows[0]) if len(rows) == 1 else _multiples(rows)
    metadata = (
        {"Date": None, "Creator": None} if path.suffix.lower() == ".svg" else {"Software": None}
    )
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
    axes.text(
        1, 1.03, row.formula, transform=axes.transAxes, ha="right", color=_MUTED, size="small"
    )
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
    # The legend stands in the place of a panel, where one is left over.
    spare = list(grid.flat)[len(rows) :]
    for axes in spare:
        axes.axis("off")
    where = spare[-1] if spare else figure
    where.legend(
        handles=lines,
        loc="center left" if spare else "outside upper right",
        ncols=1 if spare else len(lines),
    )
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
        axes.annotate(
            f"thin: hardness {_HARDER:g}",
            (0.04, 0.66),
            xycoords="axes fraction",
            color=_MUTED,
            size="small",
        )
    if detailed and row.inflections:
        at = torch.tensor(row.inflections, dtype=torch.float64)
        axes.plot(at, row.value(at), "o", color=_VALUE, markersize=4, markeredgecolor="white")
    axes.set(
        xlim=(-_REACH, _REACH),
        ylim=(_BOTTOM, _TOP),
        xticks=[-4, -2, 0, 2, 4],
        yticks=[-1, 0, 1, 2, 3],
    )
    return [value, gradient, relu]
