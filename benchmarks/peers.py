"""What our 8-bit files are worth beside those of other quantizers: quality, size and time.

    python -m benchmarks.peers              # every network and tool that is at hand
    python -m benchmarks.peers minilm       # one network

ONNX Runtime quantizes statically and dynamically; NNCF with OpenVINO and torchao, of the extra
`peers`, are skipped with the reason where they are missing. All have the same weights, and the
same samples to calibrate with and to be tested on. Times are medians of ratios to the float32 file
in ONNX Runtime, timed in turn on one thread.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

from benchmarks.subjects import trained
from evalsuite import Data, export_onnx, open_onnx
from evalsuite.latency import compare_latency
from opgraph import Inputs, run_onnx
from opgraph.deployment import feed
from opgraph.inputs import leaves, mapped

CALIBRATED, TESTED = 120, 256  # samples, at most
_CHUNK = 16
Run = Callable[[Inputs], torch.Tensor]


@dataclass(frozen=True)
class Subject:
    """A float network, what to calibrate it with, and how good outputs for the test inputs are.

    `classes` says whether its outputs are logits, `transformer` whether attention is in it.
    """

    name: str
    module: nn.Module
    calibration: Inputs
    test: Inputs
    quality: Callable[[torch.Tensor], float]
    measure: str
    classes: bool
    transformer: bool

    @property
    def example(self) -> Inputs:
        """Two of the inputs to calibrate with."""
        return mapped(self.calibration, lambda each: each[:2])

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one input, where there is one."""
        return tuple(leaves(self.calibration)[0].shape[1:])


@dataclass(frozen=True)
class Made:
    """A network that a tool quantized: how to run it, and the bytes of its file."""

    run: Run
    size: int


def minilm() -> Subject:
    """A sentence encoder; its quality is the mean cosine to the embeddings in float."""
    from pipelines.recipes.minilm import Encoder, sentences

    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder()

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            tensor: torch.Tensor = self.encoder(batch["input_ids"], batch["attention_mask"])
            return tensor

    module, data = Batched().eval(), sentences()
    calibration = {name: tokens[:CALIBRATED] for name, tokens in data["train"].items()}
    test = {name: tokens[:64] for name, tokens in data["test"].items()}
    with torch.no_grad():
        whole = module(test)

    def cosine(outputs: torch.Tensor) -> float:
        return float(nn.functional.cosine_similarity(outputs, whole).mean())

    return Subject("minilm", module, calibration, test, cosine, "cosine", False, True)


def workload(name: str, transformer: bool) -> Subject:
    """A network of the suite, trained with seed 0."""
    network, data = trained(name, "gelu")
    return _of_data(name, network.module, data, transformer)


def magika() -> Subject:
    """A classifier of file types."""
    from pipelines.recipes.file_types import examples, network

    return _of_data("magika", network().eval(), examples(), transformer=False)


def ocr() -> Subject:
    """A recogniser of printed words."""
    from pipelines.recipes.ocr import network, words

    return _of_data("ocr", network().eval(), words(), transformer=False)


def _of_data(name: str, module: nn.Module, data: Data, transformer: bool) -> Subject:
    calibration, test = data.calibration.first(CALIBRATED), data.test.first(TESTED)
    targets, task = data.test.targets[: len(leaves(test)[0])], data.test.task

    def headline(outputs: torch.Tensor) -> float:
        return float(task.metrics(task.tally(outputs, targets))[0].value or 0)

    with torch.no_grad():
        measure = task.metrics(task.tally(module(mapped(test, lambda x: x[:2])), targets[:2]))[0]
    return Subject(name, module, calibration, test, headline, measure.name, True, transformer)


SUBJECTS: Mapping[str, Callable[[], Subject]] = {
    "minilm": minilm,
    "digits-vit": partial(workload, "digits-vit", True),
    "cifar10-resnet8": partial(workload, "cifar10-resnet8", False),
    "magika": magika,
    "ocr": ocr,
}


def in_float(subject: Subject, folder: Path) -> Made:
    """The float32 file in ONNX Runtime."""
    export_onnx(subject.module, subject.shape, folder / "float.onnx", example=subject.example)
    return _in_onnx_runtime(folder / "float.onnx")


def ours(subject: Subject, folder: Path) -> Made:
    """This project's default: placement by reader, with what the calibration samples choose."""
    from pipelines.quantize.choosing import choose
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.qcdq import export_qcdq
    from pipelines.quantize.tracing import trace
    from pipelines.quantize.treatment import PLAIN

    traced = trace(subject.module, subject.shape, subject.example)
    scheme = Scheme(Bits(8, 8), by_reader=True)
    chosen = choose(traced, scheme, subject.calibration, [PLAIN], classes=subject.classes)
    export_qcdq(chosen.treated.network, subject.shape, folder / "ours.onnx", subject.example)
    return _in_onnx_runtime(folder / "ours.onnx")


def dynamic(_subject: Subject, folder: Path) -> Made:
    """ONNX Runtime's dynamic quantization: ranges of activations are found at each run."""
    quantization.quantize_dynamic(
        str(_prepared(folder)), str(folder / "dynamic.onnx"), per_channel=True
    )
    return _in_onnx_runtime(folder / "dynamic.onnx")


def static(subject: Subject, folder: Path, only: list[str] | None = None) -> Made:
    """ONNX Runtime's static quantization, of all operators or of some."""
    prepared, path = _prepared(folder), folder / "static.onnx"
    quantization.quantize_static(
        str(prepared),
        str(path),
        _Reader(subject, prepared),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        op_types_to_quantize=only,
        extra_options={"MatMulConstBOnly": only is not None},
    )
    return _in_onnx_runtime(path)


def _prepared(folder: Path) -> Path:
    """The float32 file as ONNX Runtime wants it for quantization, with no shapes of its own."""
    path = folder / "prepared.onnx"
    if not path.exists():
        quant_pre_process(str(folder / "float.onnx"), str(path), skip_symbolic_shape=True)
        model = onnx.load(str(path))
        del model.graph.value_info[:]
        onnx.save(model, str(path))
    return path


def nncf(subject: Subject, folder: Path) -> Made:
    """NNCF's quantization of the float32 file, run by OpenVINO."""
    import nncf
    import openvino

    model = onnx.load(str(folder / "float.onnx"))
    session = open_onnx(folder / "float.onnx")
    batches = nncf.Dataset([feed(session, batch) for batch in _pieces(subject.calibration)])
    kind = nncf.ModelType.TRANSFORMER if subject.transformer else None
    size = len(leaves(subject.calibration)[0]) // _CHUNK
    made = nncf.quantize(model, batches, subset_size=size, model_type=kind)
    onnx.save(made, str(folder / "nncf.onnx"))
    core = openvino.Core()
    core.set_property({"INFERENCE_NUM_THREADS": 1})
    # Its default is bfloat16 where the processor has it.
    compiled = core.compile_model(
        str(folder / "nncf.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )

    def run(inputs: Inputs) -> torch.Tensor:
        return torch.from_numpy(next(iter(compiled(feed(session, inputs)).values())).copy())

    return Made(run, (folder / "nncf.onnx").stat().st_size)


def torchao(subject: Subject, _folder: Path) -> Made:
    """torchao's dynamic quantization of linear layers, run by torch without compilation."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    module = copy.deepcopy(subject.module)
    quantize_(module, Int8DynamicActivationInt8WeightConfig())
    file = io.BytesIO()
    torch.save(module.state_dict(), file)

    def run(inputs: Inputs) -> torch.Tensor:
        with torch.no_grad():
            tensor: torch.Tensor = module(inputs)
        return tensor

    return Made(run, file.tell())


Tool = Callable[[Subject, Path], Made]
# What each needs beside the project's own libraries.
TOOLS: Mapping[str, tuple[Tool, tuple[str, ...]]] = {
    "this project": (ours, ()),
    "ONNX Runtime, dynamic": (dynamic, ()),
    "ONNX Runtime, static": (static, ()),
    "ONNX Runtime, static, products only": (
        partial(static, only=["Conv", "Gemm", "MatMul"]),
        (),
    ),
    "NNCF in OpenVINO": (nncf, ("nncf", "openvino")),
    "torchao in torch": (torchao, ("torchao",)),
}


class _Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    """The calibration inputs, one batch after another, by the file's names."""

    def __init__(self, subject: Subject, path: Path) -> None:
        session = open_onnx(path)
        self._batches = (feed(session, batch) for batch in _pieces(subject.calibration))

    def get_next(self) -> dict[str, Any] | None:
        """The next batch, None where there is no more."""
        return next(self._batches, None)


def _pieces(inputs: Inputs) -> Iterator[Inputs]:
    for start in range(0, len(leaves(inputs)[0]) // _CHUNK * _CHUNK, _CHUNK):
        yield mapped(inputs, lambda each, at=start: each[at : at + _CHUNK])  # type: ignore[misc]


def _in_onnx_runtime(path: Path) -> Made:
    return Made(partial(run_onnx, open_onnx(path)), path.stat().st_size)


def _outputs(run: Run, inputs: Inputs) -> torch.Tensor:
    starts = range(0, len(leaves(inputs)[0]), _CHUNK)
    return torch.cat(
        [run(mapped(inputs, lambda each, at=start: each[at : at + _CHUNK])) for start in starts]  # type: ignore[misc]
    )


def rows(subject: Subject) -> Iterator[str]:
    """A row of the table for the float network and for each tool, or why there is none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = in_float(subject, folder)
        outputs = _outputs(whole.run, subject.test)
        quality = f"{subject.quality(outputs):.4f}"
        yield (
            f"| {subject.name}: 8 bits by | {subject.measure} | distance | file, MB | time of"
            " float32's |"
        )
        yield "| --- | --- | --- | --- | --- |"
        yield f"| float32 | {quality} | 0 | {whole.size / 1e6:.2f} | 1 |"
        for tool, (make, needed) in TOOLS.items():
            if missing := [each for each in needed if importlib.util.find_spec(each) is None]:
                yield f"| {tool} | not measured: {', '.join(missing)} not installed | | | |"
                continue
            try:
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    made = make(subject, folder)
                    found, times = _quality(subject, made, outputs), _times(subject, made, whole)
            except Exception as error:  # of every library's own kinds: the row says which
                said = str(error).strip().splitlines()[0][:100] if str(error).strip() else ""
                yield f"| {tool} | failed: {type(error).__name__}: {said} | | | |"
                continue
            yield f"| {tool} | {found} | {made.size / 1e6:.2f} | {times} |"


def _quality(subject: Subject, made: Made, whole: torch.Tensor) -> str:
    """The measure, and the squared distance of the outputs over the squared outputs in float."""
    outputs = _outputs(made.run, subject.test)
    distance = float((outputs - whole).square().sum() / whole.square().sum())
    return f"{subject.quality(outputs):.4f} | {distance:.5f}"


def _times(subject: Subject, made: Made, whole: Made) -> str:
    """The latency of a tool's network over the float32 network's, for single samples and batches of
    16.
    """
    ratios = []
    for batch in (1, 16):
        inputs = mapped(subject.test, lambda each, of=batch: each[:of])  # type: ignore[misc]
        measured = compare_latency(
            partial(made.run, inputs), partial(whole.run, inputs), pairs=20, seconds=6
        )
        ratios.append(f"{measured.ratio:.2f}")
    return ", ".join(ratios)


def peers(*names: str) -> Iterator[str]:
    """The table of each of the named networks, or of all, or why there is none."""
    for name in names or tuple(SUBJECTS):
        try:
            subject = SUBJECTS[name]()
        except (FileNotFoundError, ImportError) as error:
            yield f"{name}: not measured: {error}"
            continue
        yield from rows(subject)
        yield ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in peers(*sys.argv[1:]):
        print(line, flush=True)
