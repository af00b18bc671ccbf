"""`make bench`: prints one line per ratio. Absolute times are not stable on shared machines; ratios of medians are.

Of runs it prints what they cost as such: see `benchmarks.runs`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import onnxruntime
import torch
from torch.nn import functional

from benchmarks.bounds import bounds
from benchmarks.relaxations import relaxations
from benchmarks.runs import runs
from benchmarks.smt import exact_verification
from evalsuite import LambdaGELU, compare_latency, export_onnx, open_onnx, run_onnx
from evalsuite.plugins import load
from evalsuite.reluize.training import fit

Ratio = tuple[str, float]


def _step(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, upstream: torch.Tensor
) -> Callable[[], object]:
    def once() -> None:
        x.grad = None
        function(x).backward(upstream)  # type: ignore[no-untyped-call]

    return once


def training_step() -> Iterator[Ratio]:
    """Forward and backward of lambda-GELU over F.gelu, with a dense upstream gradient, as inside a network."""
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


def saved_memory() -> Iterator[Ratio]:
    """Bytes that a forward pass keeps for its backward pass, lambda-GELU over F.gelu, 10^6 elements."""

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


def runtime() -> Iterator[Ratio]:
    """A GELU network over the same network with ReLU in ONNX Runtime, opset 20, one Gelu node each."""
    workload = load("workloads", "mnist-cnn").target()
    sessions = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("gelu", "relu"):
            torch.manual_seed(0)
            module = workload.build(load("activations", name).target.make).eval()
            path = Path(folder) / f"{name}.onnx"
            export_onnx(module, (1, 28, 28), path)
            sessions.append(open_onnx(path))
    for batch in (1, 64):
        inputs = torch.rand(batch, 1, 28, 28)
        gelu, relu = (lambda s=session: run_onnx(s, inputs) for session in sessions)  # noqa: B023
        yield f"GELU / ReLU, mnist-cnn in ONNX Runtime, batch {batch}", compare_latency(gelu, relu, seconds=3).ratio


def integers() -> Iterator[Ratio]:
    """The integer-only network of digits-cnn in numpy over the float32 one in ONNX Runtime, one thread each."""
    from threadpoolctl import threadpool_limits

    from pipelines.quantize.integer.execution import Executor
    from pipelines.quantize.integer.lowering import lower
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.treatment import quantize

    workload = load("workloads", "digits-cnn").target()
    data = workload.data()
    torch.manual_seed(0)
    module = workload.build(load("activations", "relu").target.make).eval()
    for layer in module.modules():  # statistics as after training, so that nothing saturates
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        module.train()(data.train.inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float32.onnx"
        export_onnx(module.eval(), data.input_shape, path)
        session = open_onnx(path)
    quantized = quantize(module, data.input_shape, Scheme(Bits(8, 8)), data.calibration.inputs)
    executor = Executor(lower(quantized, data.input_shape))
    for batch in (1, 64):
        inputs = data.test.inputs[:batch]
        given = executor.quantize(inputs.numpy())
        with threadpool_limits(1):
            measured = compare_latency(
                lambda given=given: executor.run(given), lambda inputs=inputs: run_onnx(session, inputs), seconds=3
            )
        yield f"integer executor / ONNX Runtime float32, digits-cnn, batch {batch}", measured.ratio


def quantized() -> Iterator[Ratio]:
    """mnist-cnn in 8 bits: GELU over ReLU in ONNX Runtime; quantizing, and the search for widths, over an epoch."""
    from pipelines.quantize.mixed_precision import search
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.qcdq import export_qcdq
    from pipelines.quantize.tracing import trace
    from pipelines.quantize.treatment import Treatment, quantize, treat

    workload = load("workloads", "mnist-cnn").target()
    data = workload.data()
    modules = {name: workload.build(load("activations", name).target.make) for name in ("gelu", "relu")}

    def session(name: str, both: bool) -> onnxruntime.InferenceSession:
        scheme = Scheme(Bits(8, 8), before_activations=both)
        made = quantize(modules[name].eval(), data.input_shape, scheme, data.calibration.inputs)
        with tempfile.TemporaryDirectory() as folder:
            export_qcdq(made, data.input_shape, Path(folder) / "quantized.onnx")
            return open_onnx(Path(folder) / "quantized.onnx")

    for placement, both in (("post", False), ("pre+post", True)):
        sessions = [session(name, both) for name in modules]
        for batch in (1, 64):
            inputs = data.test.inputs[:batch]
            gelu, relu = (lambda s=each, inputs=inputs: run_onnx(s, inputs) for each in sessions)
            measured = compare_latency(gelu, relu, seconds=3)
            yield f"GELU / ReLU, mnist-cnn in 8 bits, {placement}, batch {batch}", measured.ratio

    def epoch() -> None:
        fit(modules["relu"], data.train, workload, seed=0, share=1 / workload.epochs)

    measured = compare_latency(lambda: session("relu", False), epoch, pairs=5, seconds=20)
    yield f"quantize, export and open mnist-cnn ({measured.first:.1f} s here) / one epoch of training", measured.ratio

    def plan() -> None:
        traced = trace(modules["relu"], data.input_shape)

        def make(scheme: Scheme) -> torch.fx.GraphModule:
            return treat(traced, scheme, data.calibration.inputs, Treatment()).network

        search(make, traced, data.calibration.inputs, 8, 0.5)

    measured = compare_latency(plan, epoch, pairs=3, seconds=20)
    yield f"mixed-precision search, mnist-cnn ({measured.first:.1f} s here) / one epoch of training", measured.ratio


def lowered() -> Iterator[Ratio]:
    """`lower` on a network of 40 float islands over one of 10: 4 where it is linear; and of a MobileNetV3."""
    from torch import nn

    from pipelines.quantize.integer.lowering import lower
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.treatment import quantize

    def network(blocks: int) -> torch.fx.GraphModule:
        layers = [layer for _ in range(blocks) for layer in (nn.Linear(16, 16), nn.LayerNorm(16))]
        return quantize(nn.Sequential(*layers), (16,), Scheme(Bits(8, 8)), torch.rand(20, 16))

    many, few = network(40), network(10)
    measured = compare_latency(lambda: lower(many, (16,)), lambda: lower(few, (16,)), pairs=5, seconds=20)
    yield f"lower, 40 float islands ({measured.first:.2f} s here) / 10 of them", measured.ratio

    from tests.pipelines.quantize.mobile import SHAPE, mobile

    torch.manual_seed(0)
    made, samples = mobile(), torch.rand(8, *SHAPE)
    mobilenet = quantize(made, SHAPE, Scheme(Bits(8, 8)), samples)
    measured = compare_latency(
        lambda: lower(mobilenet, SHAPE), lambda: quantize(made, SHAPE, Scheme(Bits(8, 8)), samples), pairs=5, seconds=20
    )
    yield f"lower, a small MobileNetV3 ({measured.first:.2f} s here) / its quantization", measured.ratio


def pruned() -> Iterator[Ratio]:
    """mnist-cnn in ONNX Runtime: whole over half of its channels, in multiples of 8."""
    from pipelines.prune.channels import prune
    from pipelines.prune.selection import Probe, Selection

    workload = load("workloads", "mnist-cnn").target()
    probe = Probe(lambda module: module(torch.zeros(2, 1, 28, 28)))
    for name in ("gelu", "relu"):
        torch.manual_seed(0)
        whole = workload.build(load("activations", name).target.make).eval()
        half = prune(whole, probe, Selection(0.5, round_to=8)).module
        with tempfile.TemporaryDirectory() as folder:
            sessions = []
            for module in (whole, half):
                export_onnx(module, (1, 28, 28), Path(folder) / "model.onnx")
                sessions.append(open_onnx((Path(folder) / "model.onnx").read_bytes()))
        for batch in (1, 64):
            inputs = torch.rand(batch, 1, 28, 28)
            first, second = (lambda s=each, inputs=inputs: run_onnx(s, inputs) for each in sessions)
            measured = compare_latency(first, second, seconds=3)
            yield f"whole / half of the channels, {name}, mnist-cnn in ONNX Runtime, batch {batch}", measured.ratio


def start_up() -> Iterator[Ratio]:
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


if __name__ == "__main__":
    main()
