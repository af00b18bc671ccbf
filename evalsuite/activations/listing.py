"""The activations as text: the table, and all traits of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.activations.gated import GATED, Gated
from evalsuite.activations.traits import Activation
from evalsuite.plugins import Plugin, PluginError, did_you_mean, entries, load, load_all

_BENDS = {"+": "convex", "-": "concave", "0": "linear"}


class UnknownActivation(ValueError):
    """No activation of that name, or it can't be loaded; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Selected:
    """What the user named: all activations, one, or a gated unit."""

    plugins: tuple[Plugin, ...]
    unit: Gated | None = None

    @staticmethod
    def by_name(name: str | None) -> Selected:
        """All for None. Raises UnknownActivation for a name that is unknown or broken."""
        if name is None:
            return Selected(tuple(load_all("activations")))
        known = [entry.name for entry in entries("activations")]
        if name in GATED and name not in known:
            return Selected((), GATED[name])
        if name not in known:
            raise UnknownActivation(f"unknown activation {name!r}{did_you_mean(name, [*known, *GATED])}")
        try:
            plugin = load("activations", name)
        except PluginError as error:
            raise UnknownActivation(str(error)) from None
        if not isinstance(plugin.target, Activation):
            raise UnknownActivation(
                f"activation {name!r} of {plugin.origin} {plugin.version} is a {type(plugin.target).__name__}:"
                " its entry point must name an evalsuite.Activation"
            )
        return Selected((plugin,))

    def lines(self) -> list[str]:
        """What is printed: the table, or all traits of the one."""
        if self.unit:
            return described_unit(self.unit)
        if len(self.plugins) == 1:
            (plugin,) = self.plugins
            return described(plugin.target, f"{plugin.origin} {plugin.version}")
        return table(self.plugins)

    def rows(self) -> list[Activation]:
        """What is drawn. Raises ValueError for a gated unit, which is a function of two inputs."""
        if self.unit:
            gate = type(self.unit.gate(1)).__name__
            raise ValueError(f"{self.unit.name} is no function of one input; draw its gate's activation, {gate}")
        return [plugin.target for plugin in self.plugins if isinstance(plugin.target, Activation)]


def table(plugins: Sequence[Plugin]) -> list[str]:
    """Aligned lines: name, formula, what it hardens to, source; then the gated units; then what could not be loaded."""
    rows = [each.target for each in plugins if isinstance(each.target, Activation)]
    cells = [("activation", "formula", "hardens to", "source")]
    cells += [(row.name, row.formula, row.hardens_to or "-", row.source) for row in rows]
    cells += [("gated unit", "G, U: linear layers; a third follows", "", "")]
    cells += [(unit.name, unit.formula, "", unit.source) for unit in GATED.values()]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]) for line in cells
    ]
    lines.insert(len(rows) + 1, "")
    lines += [f"{each.name}: {each.error or 'broken: no row of traits'}" for each in plugins if each.target not in rows]
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
        traits["note"] = "the numbers are those of the default parameters; Activation.of(module) gives a module's"
    return [f"{row.name}: {row.help}", *(f"  {name:<14}  {text}" for name, text in traits.items())]


def described_unit(unit: Gated) -> list[str]:
    """A gated unit, a line for each of its traits."""
    traits = {"formula": unit.formula, "source": unit.source, "gate": type(unit.gate(1)).__name__}
    return [f"{unit.name}: {unit.help}", *(f"  {name:<14}  {text}" for name, text in traits.items())]


def _number(value: float) -> str:
    return f"{value:.10g}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(map(_number, values)) or "none"
