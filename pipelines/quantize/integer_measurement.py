"""Measure what the integer-only network does: its accuracy, whether it is the fake-quantized one,
and what it costs.

How wide its accumulators must be is proven for all inputs, and seen on given ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import fx

from evalsuite import Direction, Metric, Split, Unsupported
from evalsuite.contract import Timed
from evalsuite.latency import steady_latency
from evalsuite.samples import Samples, pieces
from evalsuite.tasks import Classification, Score
from evalsuite.yardstick import timing_inputs
from intnet.execution import Executor
from intnet.grids import Integers, Rounding
from intnet.network import (
    IntegerNetwork,
    count_operations,
    prove_ranges,
    write_integer_onnx,
)
from intnet.operation import Sum
from intnet.pointwise import Table
from opgraph.deployment import run_onnx
from opgraph.onnx_network import open_onnx
from pipelines.quantize.integer_agreement import IntegerAgreement, compare
from pipelines.quantize.lowering import Smooth, lower
from pipelines.quantize.tracing import at_a_time

_OBSERVED = 100  # samples whose accumulators are looked at, at most: every tensor is kept
LATENCY_BATCH = 64
_LONGEST = 200  # letters of the names of inserted grids
_CHUNK = 256  # samples at a time, at most: where every tensor is kept, in int64
_PROVEN, _SEEN = "accumulator_bits", "accumulator_bits_observed"
_WIDEST = 64  # Accumulators between 32 bits and this are told, though no executor runs them.
_NO_SMOOTH = "no activation needs a table or a polynomial: the same network"
# What two roundings in a row come to may lie a step from the nearest integer, far from a tie.
_TWICE = {Rounding.GEMMLOWP: "; gemmlowp rounds twice, the simulation once"}
HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
Settings = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class IntegerStudy:
    """Measures the integer-only network of a fake-quantized one on test data.

    Args:
        quantized: as `treat` or `train` gives it.
        input_shape: of one input.
        test: what it is measured on.
        float_session: the float32 network in ONNX Runtime, for the ratio of latencies.
        path: where the integer ONNX file goes.
        headline: the task's first metric, as of the fake-quantized network: its name, unit and
            direction.
        some: the first test inputs, or all: what other networks are run on too; see
            `Quantize.compared_samples`.
        islands: whether all that is computed in float stays so; see `Quantize.keep_islands`.
        tokens: how many there are, where the input is tokens.
        simulation: what `quantized` is called in the rows.
        fewer: why `some` are fewer than were asked for, or "".
        untimed: why a batch of inputs is not timed, or "".
        forms: other forms that are measured too; see `Quantize.integer_forms`.
    """

    quantized: fx.GraphModule
    input_shape: tuple[int, ...]
    test: Split
    float_session: onnxruntime.InferenceSession
    path: Path
    headline: Metric
    some: torch.Tensor | Samples
    islands: bool
    tokens: int | None
    simulation: str = "the fake-quantized network"
    fewer: str = ""
    untimed: str = ""
    forms: tuple[str, ...] = ()

    def metrics(self, rounding: Rounding) -> list[Metric | Timed]:
        """All rows; one with a reason where the network has no integer form."""
        try:
            network = self._lowered(rounding)
            executor = Executor(network)
        except (Unsupported, OverflowError) as error:
            return [self._scored("integer", None, {}, reason=str(error))]
        # 1. The logits of all test samples: of the file in ONNX Runtime, several times as fast as
        # the definition; with float islands there is no file, and fewer samples may have to do.
        session = None if network.islands else self._session(network, self.path)
        scored = self.some if session is None else self.test.inputs
        logits = self._run(executor, scored, session)
        # 2. Everything else is compared with the definition.
        agreement = compare(self.quantized, network, self.some, diagnose=not network.inserted)
        seen = min(at_a_time(self.quantized, _OBSERVED), len(self.some))
        observed = executor.quantize(torch.as_tensor(self.test.first(seen)).numpy())
        return [
            self._scored("integer", executor.dequantize(logits), {}),
            *self._of_agreement(network, agreement),
            *self._of_onnx(network, executor, logits),
            *self._of_cost(network, executor, {"activation": "table"}),
            *(
                self._of_polynomial(network, executor, logits, agreement)
                if "polynomial" in self.forms
                else []
            ),
            *(self._of_rounding(network, executor, logits) if "roundings" in self.forms else []),
            *accumulator_metrics(network, observed),
            *part_errors(self.quantized, network, observed),
        ]

    def _lowered(self, rounding: Rounding, smooth: Smooth = "table") -> IntegerNetwork:
        return lower(
            self.quantized,
            self.input_shape,
            smooth=smooth,
            rounding=rounding,
            islands=self.islands,
            tokens=self.tokens,
        )

    def _session(self, network: IntegerNetwork, path: Path) -> onnxruntime.InferenceSession:
        """The network's file, written to `path` and opened."""
        write_integer_onnx(network, path)
        return open_onnx(path)

    def _run(
        self,
        executor: Executor,
        inputs: torch.Tensor | Samples,
        session: onnxruntime.InferenceSession | None = None,
    ) -> Integers:
        """The integers that are the logits for all inputs, int64 (samples, ...), run piece by
        piece: by the definition, or in ONNX Runtime where its session is given.
        """
        logits = []
        for piece in pieces(inputs, at_a_time(self.quantized, _CHUNK)):
            integers = executor.quantize(piece.numpy())
            if session is None:
                logits.append(executor.run_integers(integers))
            else:
                input_name = session.get_inputs()[0].name
                logits.append(session.run(None, {input_name: integers})[0].astype(np.int64))
        return np.concatenate(logits)

    def _scored(
        self,
        subject: str,
        outputs: npt.NDArray[np.float64] | None,
        setting: Settings,
        reason: str = "",
        **changes: Any,
    ) -> Metric:
        """The task's headline of real outputs, of all test inputs or of the first, or none for a
        reason.
        """
        name = f"{subject}_{self.headline.name}"
        value, scores = None, None
        if outputs is not None:
            headline = Score.of(torch.from_numpy(outputs), self.test).headline
            value, reason, scores = headline.value, headline.reason, headline.scores
            if len(outputs) < len(self.test.targets):
                partly = f"of the first {len(outputs)} test samples"
                partly += f": {self.fewer}" if self.fewer else ""
                reason = "; ".join(filter(None, [reason, partly]))
        whole = {**self.headline.setting, **setting}
        return replace(
            self.headline,
            name=name,
            value=value,
            setting=whole,
            reason=reason,
            scores=scores,
            **changes,
        )

    def _agreement(self, agreement: IntegerAgreement, setting: Settings) -> list[Metric]:
        first = agreement.disagreements[0].describe() if agreement.disagreements else ""
        rows = [
            Metric(
                "integer_agreement",
                agreement.same_class / agreement.predictions,
                "fraction",
                HIGHER,
                setting,
                reason=f"same class as {self.simulation}",
            ),
            Metric(
                "differing_logits",
                agreement.differing / agreement.logits,
                "share",
                LOWER,
                setting,
                reason=first,
            ),
        ]
        return rows if isinstance(self.test.task, Classification) else rows[1:]

    def _of_agreement(self, network: IntegerNetwork, agreement: IntegerAgreement) -> list[Metric]:
        """With the fake-quantized network, and whether rounding ties explain every difference."""
        rows = self._agreement(agreement, {})
        # Grids that were inserted change the network: ties would not explain its differences.
        if network.inserted:
            where = shorten(", ".join(network.inserted), _LONGEST, placeholder=" ...")
            why = f"{self.simulation} has no grid at {where}: it is another network"
            return [
                *rows,
                Metric(
                    "differing_logits", None, "share", LOWER, {"precision": "float64"}, reason=why
                ),
                Metric("tie_distance", None, "step", LOWER, reason=why),
                Metric("unexplained_differences", None, "count", LOWER, reason=why),
            ]
        # In float64 rounding errors decide no tie, so that differences that are left have another
        # cause.
        exact = compare(self.quantized, network, self.some, precision=torch.float64, diagnose=False)
        return [
            *rows,
            Metric(
                "differing_logits",
                exact.differing / exact.logits,
                "share",
                LOWER,
                {"precision": "float64"},
                reason="Brevitas computing in float64, in which rounding errors decide no tie",
            ),
            Metric(
                "tie_distance",
                agreement.distance,
                "step",
                LOWER,
                reason="of a differing integer's real value to a rounding tie, the greatest",
            ),
            Metric(
                "unexplained_differences",
                agreement.unexplained,
                "count",
                LOWER,
                reason=(
                    "differing integers, each given the same before it, that are no rounding ties"
                )
                + _TWICE.get(network.rounding, ""),
            ),
        ]

    def _of_onnx(
        self, network: IntegerNetwork, executor: Executor, logits: Integers
    ) -> list[Metric]:
        """Whether ONNX Runtime, given the graph of integer operators, computes the same bits."""
        name = "integer_onnx_agreement"
        if network.islands:
            operations = ", ".join(
                f"{island.name} ({island.reason})" if island.reason else island.name
                for island in network.islands
            )
            return [
                Metric("integer_islands", len(network.islands), "count", LOWER, reason=operations),
                Metric(
                    name,
                    None,
                    "fraction",
                    HIGHER,
                    reason=f"no graph of integer operators: islands {operations}",
                ),
            ]
        # What the file gave is compared with the definition, on the first samples or all.
        defined = self._run(executor, self.some)
        equal = (logits[: len(defined)] == defined).reshape(len(defined), -1).all(1)
        few = "" if len(defined) == len(logits) else f", of the first {len(defined)}"
        return [
            Metric("integer_islands", 0, "count", LOWER),
            Metric(
                name,
                float(equal.mean()),
                "fraction",
                HIGHER,
                reason="; ".join(filter(None, [f"samples with bit-equal logits{few}", self.fewer])),
            ),
        ]

    def _of_cost(
        self, network: IntegerNetwork, executor: Executor, setting: Settings
    ) -> list[Metric | Timed]:
        """The rows of what a network takes: bytes of tables, operations, and its time in ONNX
        Runtime.
        """
        if network.islands:
            where = ", ".join(island.name for island in network.islands)
            absent = _no_costs(setting, f"float islands {where}")
            return [
                Metric("table_bytes", _table_bytes(network), "bytes", LOWER, setting),
                *absent[1:],
            ]
        counts = count_operations(network)
        kinds = "per sample, a look-up counted as one, without MACs: " + ", ".join(
            f"{kind} {count}" for kind, count in counts.items()
        )
        scalar = sum(count for kind, count in counts.items() if kind != "multiply_accumulate")
        return [
            Metric("table_bytes", _table_bytes(network), "bytes", LOWER, setting),
            Metric("integer_operations", scalar, "count", NEUTRAL, setting, reason=kinds),
            self._latency(network, executor, {**setting, "batch": LATENCY_BATCH}),
        ]

    def _latency(self, network: IntegerNetwork, executor: Executor, setting: Settings) -> Timed:
        """The float32 network's time over the integer-only one's: both are files that ONNX
        Runtime executes.
        """
        if self.untimed:
            absent = partial(
                Metric, "integer_latency_ratio", None, "ratio", NEUTRAL, setting, timing=True
            )
            return lambda: [absent(reason=self.untimed)]
        with TemporaryDirectory() as folder:
            session = self._session(network, Path(folder) / "integer.onnx")
        inputs = torch.as_tensor(timing_inputs(self.test, LATENCY_BATCH))
        integers = {session.get_inputs()[0].name: executor.quantize(inputs.numpy())}
        reason = "ONNX Runtime: the float32 file / the integer-only file"

        def timed() -> list[Metric]:
            latency = steady_latency(
                partial(run_onnx, self.float_session, inputs), partial(session.run, None, integers)
            )
            return [
                latency.metric("ratio", "integer_latency_ratio", NEUTRAL, setting, reason=reason)
            ]

        return timed

    def _of_polynomial(
        self,
        by_table: IntegerNetwork,
        executor: Executor,
        logits: Integers,
        agreement: IntegerAgreement,
    ) -> list[Metric | Timed]:
        """GELU by I-BERT's polynomial instead of a table; `agreement` is of the network with
        tables.

        The polynomial's accuracy stands beside the tables' on the same samples, which may be fewer
        than all.
        """
        setting: Settings = {"activation": "polynomial"}
        beside = executor.dequantize(logits[: len(self.some)])
        rows: list[Metric | Timed] = [self._scored("integer", beside, {"activation": "table"})]
        if not any(isinstance(operation, Table) for operation in by_table.operations):
            return [*rows, *self._absent(agreement, setting, _NO_SMOOTH)]
        try:
            network = self._lowered(by_table.rounding, "polynomial")
            executor = Executor(network)
        except (Unsupported, OverflowError) as error:
            return [*rows, *self._absent(agreement, setting, str(error))]
        return [
            *rows,
            self._scored("integer", executor.dequantize(self._run(executor, self.some)), setting),
            *self._agreement(compare(self.quantized, network, self.some, diagnose=False), setting),
            *self._of_cost(network, executor, setting),
        ]

    def _absent(
        self, agreement: IntegerAgreement, setting: Settings, reason: str
    ) -> list[Metric | Timed]:
        """The rows of another network that is not there, each without a value."""
        measured = [
            self._scored("integer", None, setting, reason=reason),
            *self._agreement(agreement, setting),
        ]
        return [
            *(replace(row, value=None, reason=reason) for row in measured),
            *_no_costs(setting, reason),
        ]

    def _of_rounding(
        self, network: IntegerNetwork, executor: Executor, logits: Integers
    ) -> list[Metric]:
        """Report what another rounding mode would change."""
        metrics, logits = [], logits[: len(self.some)]
        for mode in Rounding:
            other = logits
            if mode != network.rounding:
                other = self._run(Executor(replace(network, rounding=mode)), self.some)
            setting: Settings = {"rounding": mode.value}
            metrics += [
                self._scored("rounding", executor.dequantize(other), setting, direction=NEUTRAL),
                Metric(
                    "rounding_differing_logits",
                    float((other != logits).mean()),
                    "share",
                    NEUTRAL,
                    setting,
                    reason=f"from {network.rounding.value}",
                ),
            ]
        return metrics


def accumulator_metrics(network: IntegerNetwork, inputs: Integers) -> list[Metric]:
    """The bits of each accumulating operation, proven and observed, with the setting "layer"; of
    all without one.

    Proven bits hold every partial sum. Observed ones hold the results, so they are never more.
    Where an overflow of 32 bits cannot be ruled out nothing is run, and the observed ones have a
    reason instead of a value; the proven ones too, where a rescaling of such accumulators would not
    fit into 64 bits.

    Args:
        network: pools count among its layers, as they sum.
        inputs: integers of the input's grid, (samples, *input_shape).

    Raises:
        ValueError: there is no input, one lies outside the grid, or nothing in the network
            accumulates.
    """
    try:
        sums = prove_ranges(network, width=_WIDEST).sums
    except OverflowError as error:
        return [Metric(name, None, "count", LOWER, reason=str(error)) for name in (_PROVEN, _SEEN)]
    if not sums:
        raise ValueError(
            "no operation of the integer network accumulates: there is no accumulator to measure"
        )
    metrics = _bits(_PROVEN, sums, "for any input, in any order of summation")
    try:
        executor = Executor(network)
    except OverflowError as error:
        return [*metrics, Metric(_SEEN, None, "count", LOWER, reason=str(error))]
    ends = {name: [0] for name in sums}
    for start in range(0, max(1, len(inputs)), _CHUNK):
        tensors = executor.trace(inputs[start : start + _CHUNK])
        for name, seen in ends.items():
            seen += [int(tensors[name].min()), int(tensors[name].max())]
    observed = {name: Sum(min(seen), max(seen)) for name, seen in ends.items()}
    return metrics + _bits(_SEEN, observed, "the finished sums on the given inputs")


def _bits(name: str, sums: dict[str, Sum], reason: str) -> list[Metric]:
    widest = max(sums, key=lambda layer: sums[layer].bits)
    return [
        Metric(
            name,
            sums[widest].bits,
            "count",
            LOWER,
            reason=f"the most of all layers, {widest}; {reason}",
        ),
        *(
            Metric(name, width.bits, "count", LOWER, {"layer": layer}, reason=reason)
            for layer, width in sums.items()
        ),
    ]


def _table_bytes(network: IntegerNetwork) -> int:
    return sum(
        operation.table.nbytes for operation in network.operations if isinstance(operation, Table)
    )


def _no_costs(setting: Settings, reason: str) -> list[Metric | Timed]:
    """The rows of `_of_cost` without their values."""
    return [
        Metric("table_bytes", None, "bytes", LOWER, setting, reason=reason),
        Metric("integer_operations", None, "count", NEUTRAL, setting, reason=reason),
        Metric(
            "integer_latency_ratio",
            None,
            "ratio",
            NEUTRAL,
            {**setting, "batch": LATENCY_BATCH},
            timing=True,
            reason=reason,
        ),
    ]


def part_errors(
    quantized: fx.GraphModule, network: IntegerNetwork, inputs: Integers
) -> list[Metric]:
    """Report what integers add where the fake-quantized network computes in float: norms, attention
    and the like.

    Of each such part, the greatest difference of its integers, in steps of its output. Both are
    given the integers that `network` has before the part, so that a difference is the part's own.
    The first row, without the setting "layer", is the greatest of all; there are none where the
    network has no such part.

    Args:
        quantized: what `network` was made of.
        network: the integer-only network; parts that are islands of it are left out.
        inputs: integers of its input's grid, (samples, *input_shape).
    """
    name, kept = "integer_part_error", {island.name for island in network.islands}
    tokens = network.input.high + 1 if network.tokens else None
    # Lower once more with each such part left in float, to have what its integers stand for.
    apart = lower(
        quantized, network.input_shape, rounding=network.rounding, islands=True, tokens=tokens
    )
    float_parts = [island for island in apart.islands if island.name not in kept]
    if not float_parts:
        return []
    tensors, rows = Executor(network).trace(inputs), []
    for part in float_parts:
        off = np.abs(part.apply([tensors[name] for name in part.inputs]) - tensors[part.name])
        said = (
            f"steps of its output, of {off.size} integers; {(off > 0).mean():.2%} differ,"
            f" {off.mean():.3f} on average"
        )
        rows.append(Metric(name, int(off.max()), "step", LOWER, {"layer": part.name}, reason=said))
    worst = max(rows, key=lambda metric: metric.value or 0)
    return [replace(worst, setting={}, reason=f"the most of all, {worst.setting['layer']}"), *rows]
