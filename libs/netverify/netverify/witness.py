"""Replay: a counterexample counts where ONNX Runtime itself, in float32, shows it; see
`Witnesses` and `Replay`.

A search computes in its own precision, and a point that it finds may be none. So `Witnesses` runs
the file at the point and judges the outputs exactly, and `Replay` asks torch and ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, Inexact, localcontext
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import torch
from torch import nn

from netverify.properties import Property
from netverify.real import RealNetwork
from netverify.specification import Specification
from netverify.violation import violated
from opgraph.deployment import export_onnx, run_onnx
from opgraph.onnx_network import open_onnx


@dataclass(frozen=True, slots=True)
class Witness:
    """Inputs of a box, and the outputs that ONNX Runtime gives for them, flat.

    Inputs are numbers of float32 or of an integer network; or rational ones, which the network
    receives as the nearest float32.
    """

    inputs: tuple[float | Fraction, ...]
    outputs: tuple[float, ...]

    def text(self) -> str:
        """As VNN-COMP writes it, ((X_0 v) ... (Y_0 v)), in decimals that are exactly these
        numbers.
        """
        named = [("X", self.inputs), ("Y", self.outputs)]
        pairs = [
            f"({kind}_{index} {_decimal(value)})"
            for kind, values in named
            for index, value in enumerate(values)
        ]
        return "(" + "\n ".join(pairs) + ")"


def _decimal(value: float | Fraction) -> str:
    """All digits of a number; a fraction that has no end in decimals is written as one."""
    if not isinstance(value, Fraction):
        return str(Decimal(value))
    with localcontext() as context:
        context.prec = 2000
        context.clear_flags()
        decimal = Decimal(value.numerator) / Decimal(value.denominator)
        return str(value) if context.flags[Inexact] else str(decimal)


class Witnesses:
    """Replays points in ONNX Runtime on the CPU, one at a time: of a network, or of several, whose
    outputs follow.

    Args:
        specification: what a witness must satisfy.
        files: the contents of each network's file.
        real: the same in real arithmetic, in which a witness must satisfy it too; None: ONNX
            Runtime suffices.
    """

    def __init__(
        self, specification: Specification, *files: bytes, real: RealNetwork | None = None
    ) -> None:
        self._sessions = [open_onnx(file) for file in files]
        self._specification, self._real = specification, real
        boxes = {id(case.box): case.box for case in specification.cases}.values()
        self._empty = [] if real is None else [box for box in boxes if not box.holds_float32()]
        self.in_float32: Witness | None = None
        """The first that ONNX Runtime confirms, and real arithmetic does not."""
        self.in_reals: Witness | None = None
        """The first that real arithmetic confirms, and ONNX Runtime does not."""

    def outputs(self, point: torch.Tensor) -> list[float]:
        """Return what the networks give at a point (inputs,) of float32, or of a network's own
        integers.
        """
        outputs: list[float] = []
        for session in self._sessions:
            (session_input,) = session.get_inputs()
            shape = [size if isinstance(size, int) else 1 for size in session_input.shape]
            (output,) = session.run(None, {session_input.name: point.reshape(shape).numpy()})
            outputs += np.asarray(output).flatten().tolist()
        return outputs

    def witness(self, point: torch.Tensor) -> Witness | None:
        """The witness at a point (inputs,); None where the file's exact numbers do not confirm it
        in both ways.

        Of a box without float32 points it is the nearest rational point, see `rational`.
        """
        inputs = point.tolist()
        for box in self._empty:
            rational = self.rational(box.nearest([Fraction(number) for number in inputs]))
            if rational is not None:
                return rational
        witness = Witness(tuple(inputs), tuple(self.outputs(point)))
        if not self._specification.satisfied(inputs, list(witness.outputs)):
            return None
        if self._real is None or self._real.satisfies(
            self._specification, [Fraction(number) for number in inputs]
        ):
            return witness
        self.in_float32 = self.in_float32 or witness
        return None

    def rational(self, point: Sequence[Fraction]) -> Witness | None:
        """The witness at a rational point (inputs,): real arithmetic confirms it, and ONNX Runtime
        at what it receives.

        That is the nearest float32 of each number, which may lie just outside of the box.
        """
        if self._real is None or not self._real.satisfies(self._specification, point):
            return None
        outputs = self.outputs(
            torch.tensor([float(fraction) for fraction in point], dtype=torch.float64).float()
        )
        witness = Witness(tuple(point), tuple(outputs))
        if self._specification.satisfied(list(point), outputs):
            return witness
        self.in_reals = self.in_reals or witness
        return None


class Runnable(Protocol):
    """A network that can be exported: its module, and the shape of one input."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def input_shape(self) -> tuple[int, ...]: ...


class Replay:
    """Runs a network's counterexamples in torch and in ONNX Runtime, both in float32, one input at
    a time.
    """

    def __init__(self, network: Runnable) -> None:
        self._module = network.module
        with TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            export_onnx(network.module, network.input_shape, path)
            self._session = open_onnx(path.read_bytes())

    @torch.no_grad()
    def confirms(self, property_: Property, point: torch.Tensor) -> bool:
        """Whether the float32 `point` belongs to the property, and both runtimes violate it
        there; NaN does.
        """
        outputs = (self._module(point[None]), run_onnx(self._session, point[None]))
        return property_.contains(point) and all(
            bool(violated(logits, [property_])) for logits in outputs
        )
