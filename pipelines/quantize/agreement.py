"""Brevitas against ONNX Runtime: do both compute the same integers, and where they do not, where
it began and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from brevitas.nn import QuantIdentity
from numpy.typing import NDArray
from torch import fx

from evalsuite import Direction, Metric
from evalsuite.samples import Samples, pieces
from opgraph.deployment import feed, run_onnx
from opgraph.inputs import Inputs, leaves, mapped
from opgraph.onnx_network import open_onnx
from pipelines.quantize.placement import Value
from pipelines.quantize.tracing import at_a_time, layer_of

_DEQUANTIZE = "/{}/act_quant/export_handler/DequantizeLinear"


@dataclass(frozen=True, slots=True)
class Rounded:
    """Holds what a quantizer of Brevitas made: the integers, and what it rounded, in steps, both
    (samples, ...).
    """

    integers: NDArray[np.int64]
    real: NDArray[np.float64]
    zero_point: int


def quantizers(quantized: fx.GraphModule) -> list[str]:
    """The names of its quantizers in the graph's order."""
    return [
        str(node.target)
        for node in quantized.graph.nodes
        if isinstance(layer_of(quantized, node), QuantIdentity)
    ]


def quantizer_of_logits(quantized: fx.GraphModule) -> str | None:
    """The name of the quantizer that makes the logits; None where they are real numbers."""
    (output,) = (node for node in quantized.graph.nodes if node.op == "output")
    (source,) = output.all_input_nodes
    if not isinstance(layer_of(quantized, source), Value):
        return None
    (gridded,) = source.all_input_nodes
    return str(gridded.target) if isinstance(layer_of(quantized, gridded), QuantIdentity) else None


def in_brevitas(quantized: fx.GraphModule, inputs: Inputs) -> dict[str, Rounded]:
    """Return what each quantizer makes of a batch, by its name."""
    return _run_brevitas(quantized, inputs)[1]


@torch.no_grad()
def _run_brevitas(
    quantized: fx.GraphModule, inputs: Inputs
) -> tuple[NDArray[np.float32], dict[str, Rounded]]:
    """The logits of a batch, and what each quantizer makes of it, by its name."""
    rounded: dict[str, Rounded] = {}

    def see(name: str, _: Any, args: tuple[Any, ...], output: Any) -> None:
        tensor = args[0] if isinstance(args[0], torch.Tensor) else args[0].value
        real = tensor.double() / output.scale.double() + output.zero_point.double()
        integers = output.int(float_datatype=False).numpy().astype(np.int64)
        rounded[name] = Rounded(integers, real.numpy(), round(output.zero_point.item()))

    names = quantizers(quantized)
    handles = [
        quantized.get_submodule(name).register_forward_hook(partial(see, name)) for name in names
    ]
    try:
        logits = quantized(inputs).numpy()
    finally:
        for handle in handles:
            handle.remove()
    return logits, rounded


class InRuntime:
    """A QCDQ file in ONNX Runtime, with the integers of the named quantizers as further outputs.

    Raises:
        RuntimeError: the file lacks one of them.
    """

    def __init__(self, path: Path, names: list[str], *, fused: bool) -> None:
        self._names = names
        model = onnx.load(str(path))
        integers = {
            node.name: node.input[0]
            for node in model.graph.node
            if node.op_type == "DequantizeLinear"
        }
        # Make the integers of each quantizer an output: the node that dequantizes them tells which.
        for name in names:
            node = _DEQUANTIZE.format(name)
            if node not in integers:
                raise RuntimeError(
                    f"{path.name} has no node {node!r}: it is not the export of this network"
                )
            model.graph.output.append(
                onnx.helper.make_tensor_value_info(integers[node], onnx.TensorProto.UINT8, None)
            )
        content = model.SerializeToString()
        self._session = open_onnx(content) if fused else _open_unfused(content)

    def run(self, inputs: Inputs) -> tuple[NDArray[np.float32], dict[str, NDArray[np.uint8]]]:
        """The logits, and the integers by the quantizer's name."""
        logits, *integers = self._session.run(None, feed(self._session, inputs))
        return logits, dict(zip(self._names, integers, strict=True))


def _open_unfused(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


TIE = 1e-4
"""Steps: so far float32's rounding may move a value that lies on a rounding tie."""
_SAME = 1e-4  # Of a sample's greatest logit: real logits that are nearer count as equal.
_CHUNK = 500  # samples at a time, at most


@dataclass(frozen=True, slots=True)
class Difference:
    """An integer that differs, in the first tensor of its sample that does: everything before it
    agrees.

    Args:
        layer: the quantizer of the tensor.
        element: the index in the tensor, the sample first.
        brevitas: the integer in Brevitas.
        runtime: in ONNX Runtime.
        unfused: in ONNX Runtime without graph optimisations, that is, in floats between Q/DQ nodes.
        real: what Brevitas rounded, in steps, with the zero point.
        zero_point: of the tensor's grid.
    """

    layer: str
    element: tuple[int, ...]
    brevitas: int
    runtime: int
    unfused: int
    real: float
    zero_point: int

    @property
    def tie_distance(self) -> float:
        """How far `real` lies from the tie between the two integers, in steps."""
        return abs(self.real - (self.brevitas + self.runtime) / 2)

    @property
    def cause(self) -> str:
        """Why it differs, as far as the numbers tell."""
        if self.tie_distance < TIE and self.zero_point % 2:
            # round(x + z) is round(x) + z for an even z only: Q nodes and convolutions add z last,
            # QLinearAdd first.
            return (
                f"a rounding tie; with the odd zero point {self.zero_point} it matters when that is"
                " added"
            )
        if self.tie_distance < TIE:
            return "a rounding tie"
        if self.unfused == self.brevitas:
            return (
                "the fused integer kernel: without graph optimisations ONNX Runtime agrees with"
                " Brevitas"
            )
        return (
            "arithmetic before the rounding: ONNX Runtime differs without graph optimisations too"
        )

    def describe(self) -> str:
        """For people: where, what, and why."""
        return (
            f"{self.layer}{list(self.element)}: Brevitas {self.brevitas}, ONNX Runtime"
            f" {self.runtime}, unfused {self.unfused}, rounded from {self.real:.6f},"
            f" {self.tie_distance:.2g} steps from a tie ({self.cause})"
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far Brevitas and ONNX Runtime agree.

    Args:
        equal_logits: share of logits that are the same integer of the logits' grid; of real logits
            those that differ by less than 0.01 % of their sample's greatest.
        equal_classes: share of samples, of a language model of positions, of the same class.
        origins: how many elements differ in the first tensor of their sample that does.
        ties: how many of these lie within `TIE` of a rounding tie.
        first: the first of them in the graph's order; None if all agrees.
        farthest: the one farthest from a tie; None if all agrees.
        faithful: whether ONNX Runtime gives the same logits with the tensors read out as without;
            if not, reading them changed which kernels ran, and the diagnosis is of another run.
    """

    equal_logits: float
    equal_classes: float
    origins: int
    ties: int
    first: Difference | None
    farthest: Difference | None
    faithful: bool

    def describe(self) -> str:
        """For people: what agrees, where a difference began, and why."""
        text = (
            f"{self.equal_logits:.4%} of the logits and {self.equal_classes:.2%} of the classes"
            " agree"
        )
        if self.first is None or self.farthest is None:
            return text
        text += (
            f"; {self.ties} of {self.origins} differences begin at a rounding tie; first"
            f" {self.first.describe()}"
        )
        if self.farthest != self.first:
            text += f"; farthest from a tie {self.farthest.describe()}"
        if not self.faithful:
            text += "; reading the tensors changed the kernels: this diagnosis is of another run"
        return text


def compare_layers(
    quantized: fx.GraphModule,
    path: Path,
    inputs: torch.Tensor | Samples,
    *,
    by_position: bool = False,
) -> Agreement:
    """Run both on `inputs` (samples, *input_shape) and compare the integers of every quantized
    tensor.

    Args:
        quantized: the calibrated network.
        path: what `export_qcdq` made of it.
        inputs: real inputs, at least one.
        by_position: whether each position of a sample has a class of its own, as in a language
            model.

    Raises:
        ValueError: there is no input, or nothing is quantized.
        RuntimeError: the file is not the export of this network.
    """
    names = quantizers(quantized)
    if not len(inputs) or not names:
        missing = "quantized tensor" if len(inputs) else "input"
        raise ValueError(f"Brevitas and ONNX Runtime cannot be compared: there is no {missing}")
    plain = open_onnx(path)
    # With ONNX Runtime's fusions, as the file runs, and without, where each node rounds as it says.
    fused, unfused = (InRuntime(path, names, fused=is_fused) for is_fused in (True, False))
    tally = _Tally(names, quantizer_of_logits(quantized), by_position)
    for piece in pieces(inputs, at_a_time(quantized, _CHUNK)):
        chunk = mapped(
            piece, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor
        )
        logits, integers = fused.run(chunk)
        # Reading tensors may keep ONNX Runtime from fusing: then the logits may be others.
        tally.faithful &= np.array_equal(logits, run_onnx(plain, chunk).numpy())
        expected, in_brevitas = _run_brevitas(quantized, chunk)
        tally.add(len(leaves(chunk)[0]), in_brevitas, integers, unfused.run(chunk)[1])
        tally.add_logits(expected, logits)
    return tally.result()


def agreement_metrics(agreement: Agreement, *, classes: bool = True) -> list[Metric]:
    """Share of equal logits, and of `classes` where there are any; how far from a rounding tie
    differences began.
    """
    farthest = agreement.farthest
    metrics = [
        Metric(
            "runtime_agreement",
            agreement.equal_classes,
            "fraction",
            Direction.HIGHER,
            reason="same class as Brevitas",
        ),
        Metric(
            "runtime_equal_logits",
            agreement.equal_logits,
            "share",
            Direction.HIGHER,
            reason=agreement.describe(),
        ),
        Metric(
            "runtime_tie_distance",
            0.0 if farthest is None else farthest.tie_distance,
            "step",
            Direction.LOWER,
            reason="no tensor differs from Brevitas" if farthest is None else farthest.describe(),
        ),
    ]
    return metrics if classes else metrics[1:]


class _Tally:
    """Collects the comparison, chunk by chunk."""

    def __init__(self, names: list[str], of_logits: str | None, by_position: bool) -> None:
        self.faithful, self._names, self._by_position = True, names, by_position
        self._of_logits = of_logits
        self._samples = self._origins = self._ties = 0
        self._logits, self._classes = [0, 0], [0, 0]  # that agree, of so many
        self._first: dict[str, Difference] = {}
        self._farthest: Difference | None = None

    def add(
        self,
        count: int,
        brevitas: dict[str, Rounded],
        fused: dict[str, Any],
        unfused: dict[str, Any],
    ) -> None:
        """Compare the next `count` samples; a tensor may have several rows for each, as of a
        text's positions.
        """
        agree = np.ones(count, dtype=bool)
        for name in self._names:
            unequal = brevitas[name].integers != fused[name]
            # A difference begins where all tensors before it agree; behind it others only follow.
            rows = np.repeat(agree, len(unequal) // count)
            origins = np.argwhere(unequal & rows.reshape(-1, *[1] * (unequal.ndim - 1)))
            if len(origins):
                self._add_origins(name, origins, brevitas[name], fused[name], unfused[name])
            agree &= ~unequal.reshape(count, -1).any(1)
        if self._of_logits is not None:
            integers = brevitas[self._of_logits].integers
            self._count_logits(integers, fused[self._of_logits], integers == fused[self._of_logits])
        self._samples += count

    def add_logits(self, brevitas: NDArray[np.float32], runtime: NDArray[np.float32]) -> None:
        """Compare real logits; those that lie on a grid were compared as integers."""
        if self._of_logits is None:
            greatest = np.abs(brevitas).reshape(len(brevitas), -1).max(1)
            near = _SAME * greatest.reshape(-1, *[1] * (brevitas.ndim - 1))
            self._count_logits(brevitas, runtime, np.abs(brevitas - runtime) <= near)

    def _count_logits(self, brevitas: NDArray[Any], runtime: NDArray[Any], same: Any) -> None:
        shape = (-1, runtime.shape[-1]) if self._by_position else (len(runtime), -1)
        first, second = (logits.reshape(shape).argmax(1) for logits in (brevitas, runtime))
        for counts, equal in ((self._logits, same), (self._classes, first == second)):
            counts[0] += int(equal.sum())
            counts[1] += equal.size

    def _add_origins(
        self,
        name: str,
        origins: NDArray[Any],
        brevitas: Rounded,
        fused: NDArray[Any],
        unfused: NDArray[Any],
    ) -> None:
        # A tie lies half-way between both integers: the real value's distance from there tells
        # whether rounding explains the difference.
        chosen = tuple(origins.T)
        # In floats: the sum of two uint8 wraps around.
        between = (brevitas.integers[chosen] + fused[chosen].astype(np.float64)) / 2
        distances = np.abs(brevitas.real[chosen] - between)
        self._origins += len(origins)
        self._ties += int((distances < TIE).sum())

        def difference(row: NDArray[Any]) -> Difference:
            place = tuple(int(index) for index in row)
            return Difference(
                name,
                (self._samples + place[0], *place[1:]),
                int(brevitas.integers[place]),
                int(fused[place]),
                int(unfused[place]),
                float(brevitas.real[place]),
                brevitas.zero_point,
            )

        self._first.setdefault(name, difference(origins[0]))
        farthest = difference(origins[int(distances.argmax())])
        if self._farthest is None or farthest.tie_distance > self._farthest.tie_distance:
            self._farthest = farthest

    def result(self) -> Agreement:
        """How far the networks agree on all samples compared so far."""
        first = next((self._first[name] for name in self._names if name in self._first), None)
        return Agreement(
            1 - (self._logits[1] - self._logits[0]) / self._logits[1],
            self._classes[0] / self._classes[1],
            self._origins,
            self._ties,
            first,
            self._farthest,
            self.faithful,
        )
