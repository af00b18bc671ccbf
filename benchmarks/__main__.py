"""`make bench`: prints one line per ratio. Absolute times are not stable on shared machines; ratios
of medians are.

Of runs it prints what they cost as such: see `benchmarks.runs`. Of other quantizers it prints a
table for each network: see `benchmarks.peers`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnxruntime
import torch
from torch.nn import functional

from benchmarks.bounds import bounds
from benchmarks.peers import peers
from benchmarks.runs import runs
from benchmarks.smt import exact_verification
from benchmarks.subjects import Figure, fresh, session
from evalsuite import LambdaGELU, open_onnx
from evalsuite.latency import compare_latency
from evalsuite.plugins import load
from evalsuite.reluize.training import fit
from lambda_gelu import GELU, RELU
from netverify import TANH, interval, relax
from opgraph import run_onnx

_Session = onnxruntime.InferenceSession


def _by_batches(
    what: str, first: _Session, second: _Session, inputs: torch.Tensor
) -> Iterator[Figure]:
    """Yield the latency of the first session over the second's, for single inputs and batches of
    64.
    """
    for batch in (1, 64):
        calls = [partial(run_onnx, each, inputs[:batch]) for each in (first, second)]
        yield f"{what}, batch {batch}", compare_latency(*calls, seconds=3).ratio


def _step(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, upstream: torch.Tensor
) -> Callable[[], object]:
    def once() -> None:
        x.grad = None
        function(x).backward(upstream)  # type: ignore[no-untyped-call]

    return once


def training_step() -> Iterator[Figure]:
    """Forward and backward of lambda-GELU over F.gelu, with a dense upstream gradient, as inside
    a network.
    """
    frozen = LambdaGELU()
    frozen.s.requires_grad_(False)
    for shape in ((10**6,), (3 * 10**6,), (10**7,), (4096, 256), (64, 64, 16, 16)):
        x, upstream = torch.randn(shape, requires_grad=True), torch.randn(shape)
        layers = {"": LambdaGELU(), ", lambda frozen": frozen}
        if len(shape) > 1:
            layers = {", lambda per channel": LambdaGELU(shape[1])}
        for how, layer in layers.items():
            steps = _step(layer, x, upstream), _step(functional.gelu, x, upstream)
            measured = compare_latency(*steps, pairs=21, seconds=6)
            yield f"lambda-GELU / F.gelu, forward + backward, {shape}{how}", measured.ratio


def saved_memory() -> Iterator[Figure]:
    """Bytes that a forward pass keeps for its backward pass, lambda-GELU over F.gelu, 10^6
    elements.
    """

    def saved(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
        kept: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor.nbytes)
            return tensor

        x = torch.randn(1000, 1000, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            function(x)
        return sum(kept)

    for how, layer in (("", LambdaGELU()), (", lambda per channel", LambdaGELU(1000))):
        yield f"lambda-GELU / F.gelu, saved bytes{how}", saved(layer) / saved(functional.gelu)


def relaxations() -> Iterator[Figure]:
    """`relax` of activations over that of ReLU, and over F.gelu of ten times as much, as in
    small and large layers.
    """
    generator = torch.Generator().manual_seed(0)
    rows = [
        GELU,
        load("activations", "silu").target,
        TANH,
        load("activations", "hard-swish").target,
    ]
    for count in (1_600, 100_000):
        lower = 2 * torch.randn(count, dtype=torch.float64, generator=generator)
        upper = lower + 3 * torch.rand(count, dtype=torch.float64, generator=generator)
        inputs = torch.randn(10 * count, dtype=torch.float64, generator=generator)
        exact, forward = partial(relax, RELU, lower, upper), partial(functional.gelu, inputs)
        for row in rows:
            lines = partial(relax, row, lower, upper)
            yield (
                f"lines of {row.name} / of relu, {count:,} intervals",
                compare_latency(lines, exact, seconds=3).ratio,
            )
        for name, call in (("lines", relax), ("ranges", interval)):
            bounds = partial(call, GELU, lower, upper)
            ratio = compare_latency(bounds, forward, seconds=3).ratio
            yield f"{name} of gelu on {count:,} intervals / F.gelu of {10 * count:,} numbers", ratio


def runtime() -> Iterator[Figure]:
    """A GELU network over the same network with ReLU in ONNX Runtime, opset 20, one Gelu node
    each.
    """
    workload = load("workloads", "mnist-cnn").target()
    gelu, relu = (session(fresh(workload, name), (1, 28, 28)) for name in ("gelu", "relu"))
    yield from _by_batches(
        "GELU / ReLU, mnist-cnn in ONNX Runtime", gelu, relu, torch.rand(64, 1, 28, 28)
    )


def integers() -> Iterator[Figure]:
    """The integer-only file of digits-cnn over the float32 file, in ONNX Runtime."""
    from intnet.execution import Executor
    from intnet.network import write_integer_onnx
    from pipelines.quantize.lowering import lower
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.treatment import quantize

    workload = load("workloads", "digits-cnn").target()
    data, module = workload.data(), fresh(workload, "relu")
    for layer in module.modules():  # statistics as after training, so that nothing saturates
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        module.train()(data.train.inputs)
    floating = session(module.eval(), data.input_shape)
    quantized = quantize(module, data.input_shape, Scheme(Bits(8, 8)), data.calibration.inputs)
    network = lower(quantized, data.input_shape)
    executor = Executor(network)
    file = write_integer_onnx(network, Path(os.devnull)).SerializeToString()
    integer = open_onnx(file)
    for batch in (1, 64):
        inputs = data.test.inputs[:batch]
        given = {integer.get_inputs()[0].name: executor.quantize(inputs.numpy())}
        measured = compare_latency(
            lambda given=given: integer.run(None, given),
            lambda inputs=inputs: run_onnx(floating, inputs),
            seconds=3,
        )
        yield f"integer-only file / float32 file, digits-cnn, batch {batch}", measured.ratio


def quantized() -> Iterator[Figure]:
    """mnist-cnn in 8 bits: GELU over ReLU in ONNX Runtime; quantizing, and the search for
    widths, over an epoch.
    """
    from pipelines.quantize.mixed_precision import search
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.qcdq import export_qcdq
    from pipelines.quantize.tracing import trace
    from pipelines.quantize.treatment import Treatment, quantize, treat

    workload = load("workloads", "mnist-cnn").target()
    data = workload.data()
    modules = {name: fresh(workload, name) for name in ("gelu", "relu")}

    def in_bits(name: str, both: bool) -> _Session:
        scheme = Scheme(Bits(8, 8), before_activations=both)
        made = quantize(modules[name], data.input_shape, scheme, data.calibration.inputs)
        with tempfile.TemporaryDirectory() as folder:
            export_qcdq(made, data.input_shape, Path(folder) / "quantized.onnx")
            return open_onnx(Path(folder) / "quantized.onnx")

    for placement, both in (("post", False), ("pre+post", True)):
        gelu, relu = (in_bits(name, both) for name in modules)
        yield from _by_batches(
            f"GELU / ReLU, mnist-cnn in 8 bits, {placement}", gelu, relu, data.test.inputs
        )

    def epoch() -> None:
        fit(modules["relu"], data.train, workload, seed=0, share=1 / workload.epochs)

    measured = compare_latency(lambda: in_bits("relu", False), epoch, pairs=5, seconds=20)
    yield (
        (
            f"quantize, export and open mnist-cnn ({measured.first:.1f} s here) / one epoch of"
            " training"
        ),
        measured.ratio,
    )

    def plan() -> None:
        traced = trace(modules["relu"], data.input_shape)

        def make(scheme: Scheme) -> torch.fx.GraphModule:
            return treat(traced, scheme, data.calibration.inputs, Treatment()).network

        search(make, traced, data.calibration.inputs, 8, 0.5)

    measured = compare_latency(plan, epoch, pairs=3, seconds=20)
    yield (
        f"mixed-precision search, mnist-cnn ({measured.first:.1f} s here) / one epoch of training",
        measured.ratio,
    )


def lowered() -> Iterator[Figure]:
    """`lower` on a network of 40 float islands over one of 10: 4 where it is linear; and of a
    MobileNetV3.
    """
    from torch import nn

    from pipelines.quantize.lowering import lower
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.treatment import quantize

    def network(blocks: int) -> torch.fx.GraphModule:
        layers = [layer for _ in range(blocks) for layer in (nn.Linear(16, 16), nn.LayerNorm(16))]
        return quantize(nn.Sequential(*layers), (16,), Scheme(Bits(8, 8)), torch.rand(20, 16))

    many, few = network(40), network(10)
    measured = compare_latency(
        lambda: lower(many, (16,)), lambda: lower(few, (16,)), pairs=5, seconds=20
    )
    yield f"lower, 40 float islands ({measured.first:.2f} s here) / 10 of them", measured.ratio

    from tests.pipelines.quantize.mobile import SHAPE, mobile

    torch.manual_seed(0)
    made, samples = mobile(), torch.rand(8, *SHAPE)
    mobilenet = quantize(made, SHAPE, Scheme(Bits(8, 8)), samples)
    measured = compare_latency(
        lambda: lower(mobilenet, SHAPE),
        lambda: quantize(made, SHAPE, Scheme(Bits(8, 8)), samples),
        pairs=5,
        seconds=20,
    )
    yield (
        f"lower, a small MobileNetV3 ({measured.first:.2f} s here) / its quantization",
        measured.ratio,
    )


def pruned() -> Iterator[Figure]:
    """mnist-cnn in ONNX Runtime: whole over half of its channels, in multiples of 8."""
    from pipelines.prune.channels import prune
    from pipelines.prune.selection import Probe, Selection

    workload = load("workloads", "mnist-cnn").target()
    probe = Probe(lambda module: module(torch.zeros(2, 1, 28, 28)))
    for name in ("gelu", "relu"):
        whole = fresh(workload, name)
        half = prune(whole, probe, Selection(0.5, round_to=8)).module
        sessions = [session(each, (1, 28, 28)) for each in (whole, half)]
        what = f"whole / half of the channels, {name}, mnist-cnn in ONNX Runtime"
        yield from _by_batches(what, *sessions, torch.rand(64, 1, 28, 28))


def start_up() -> Iterator[Figure]:
    """`evalsuite --help` over an empty interpreter."""

    def call(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *words], capture_output=True, check=True)

    helped = call("-c", "from evalsuite.cli import main; main()", "--help")
    measured = compare_latency(helped, call("-c", "pass"), pairs=7, seconds=10)
    yield f"evalsuite --help ({measured.first * 1000:.0f} ms here) / python -c pass", measured.ratio


def main() -> None:
    """Print every ratio, and what runs cost."""
    torch.set_num_threads(1)
    for benchmark in (
        training_step,
        saved_memory,
        relaxations,
        bounds,
        runtime,
        integers,
        quantized,
        lowered,
        pruned,
        exact_verification,
        start_up,
        runs,
    ):
        for name, figure in benchmark():
            print(f"{figure:8.2f}  {name}", flush=True)
    for line in peers():
        print(line, flush=True)


if __name__ == "__main__":
    main()
