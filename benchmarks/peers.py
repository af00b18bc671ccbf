"""Measure what our files of 8 and 4 bits are worth beside those of other quantizers: quality, size,
time.

    python -m benchmarks.peers              # every network and tool that is at hand
    python -m benchmarks.peers minilm       # one network

ONNX Runtime quantizes statically and dynamically; NNCF with OpenVINO and torchao, of the extra
`peers`, are skipped with the reason where they are missing. All have the same weights, and the
same samples to calibrate with and to be tested on. Times are medians of ratios, to the float32 file
in ONNX Runtime and of our file to each, timed in turn on one thread. Networks of language have a
second table, of weights of 4 bits. A line behind each table says which goals are met.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from pipelines.quantize.treatment import Treated

CALIBRATED, TESTED = 120, 2048  # samples, at most
NEAR = 0.002  # of the best peer's quality: what counts as its equal
_CHUNK = 16
_LENGTH = 32  # tokens of sentences without padding
_GROUP = 32  # weights that share a scale, where a peer rounds them to 4 bits
Run = Callable[[Inputs], torch.Tensor]


@dataclass(frozen=True)
class Goals:
    """The least quality of our file of 8 bits and of integers alone, its greatest size in MB, and
    the peers that it takes no more time than.
    """

    quality: float
    integers: float
    size: float
    faster_than: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """A float network, what to calibrate it with, and how good outputs for the test inputs are.

    `classes` says whether its outputs are logits, `transformer` whether attention is in it, `goals`
    what is asked of our file beside being near the best peer, and `language` whether it is of
    texts. `vocabulary` counts the tokens where they are its one input; `alone` is what takes its
    place where the network itself has no form in integers.
    """

    name: str
    module: nn.Module
    calibration: Inputs
    test: Inputs
    quality: Callable[[torch.Tensor], float]
    measure: str
    classes: bool
    transformer: bool
    goals: Goals | None = None
    language: bool = False
    vocabulary: int | None = None
    alone: Callable[[], Subject] | None = None

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
    goals = Goals(0.995, 0.98, 25.0, ("NNCF in OpenVINO", "ONNX Runtime, dynamic"))
    return Subject(
        "minilm",
        module,
        calibration,
        test,
        _cosine_to(module, test),
        "cosine",
        False,
        True,
        goals,
        language=True,
        alone=_without_padding,
    )


class Unpadded(nn.Module):
    """The mean over the tokens of texts of one length: but for its length, the encoder's vector."""

    mask: torch.Tensor

    def __init__(self, body: nn.Module, length: int) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mask", torch.ones(1, length, dtype=torch.long))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens, (samples, length)."""
        mask = self.mask.expand(len(tokens), -1)
        states: torch.Tensor = self.body(input_ids=tokens, attention_mask=mask).last_hidden_state
        return states.mean(1)


def cut_to(texts: Mapping[str, torch.Tensor], length: int) -> torch.Tensor:
    """The tokens of texts that are at least so long, cut there: (texts, length), no padding."""
    long = texts["attention_mask"].sum(1) >= length
    return texts["input_ids"][long][:, :length]


def _without_padding() -> Subject:
    """The encoder of other held-out sentences of at least `_LENGTH` tokens, cut there: integers
    have no form for a mask that is an input.
    """
    from pipelines.recipes.minilm import Encoder, sentences

    body, data = Encoder().body, sentences()
    module, test = Unpadded(body, _LENGTH).eval(), cut_to(data["test"], _LENGTH)[:64]
    return Subject(
        "minilm",
        module,
        cut_to(data["train"], _LENGTH)[:CALIBRATED],
        test,
        _cosine_to(module, test),
        "cosine",
        False,
        True,
        vocabulary=body.config.vocab_size,
    )


def _cosine_to(module: nn.Module, test: Inputs) -> Callable[[torch.Tensor], float]:
    with torch.no_grad():
        whole = module(test)

    def cosine(outputs: torch.Tensor) -> float:
        return float(nn.functional.cosine_similarity(outputs, whole).mean())

    return cosine


def workload(name: str, transformer: bool, *, language: bool = False, **options: object) -> Subject:
    """A network of the suite, trained with seed 0."""
    network, data = trained(name, "gelu", **options)
    return _of_data(name, network.module, data, transformer, language=language)


def magika() -> Subject:
    """A classifier of file types."""
    from pipelines.recipes.file_types import examples, network

    return _of_data("magika", network().eval(), examples(), transformer=False)


def ocr() -> Subject:
    """A recogniser of printed words."""
    from pipelines.recipes.ocr import network, words

    return _of_data("ocr", network().eval(), words(), transformer=False)


def _of_data(
    name: str, module: nn.Module, data: Data, transformer: bool, *, language: bool = False
) -> Subject:
    calibration, test = data.calibration.first(CALIBRATED), data.test.first(TESTED)
    targets, task = data.test.targets[: len(leaves(test)[0])], data.test.task

    def headline(outputs: torch.Tensor) -> float:
        return float(task.metrics(task.tally(outputs, targets))[0].value or 0)

    with torch.no_grad():
        measure = task.metrics(task.tally(module(mapped(test, lambda x: x[:2])), targets[:2]))[0]
    return Subject(
        name,
        module,
        calibration,
        test,
        headline,
        measure.name,
        True,
        transformer,
        language=language,
        vocabulary=data.vocabulary,
    )


SUBJECTS: Mapping[str, Callable[[], Subject]] = {
    "minilm": minilm,
    "digits-vit": partial(workload, "digits-vit", True),
    # few epochs: the network is there to be quantized
    "cifar10-resnet8": partial(workload, "cifar10-resnet8", False, epochs=3),
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
    from pipelines.quantize.tracing import trace
    from pipelines.quantize.treatment import PLAIN

    traced = trace(subject.module, subject.shape, subject.example)
    scheme = Scheme(Bits(8, 8), by_reader=True)
    chosen = choose(traced, scheme, subject.calibration, [PLAIN], classes=subject.classes)
    return _deployed(chosen.treated, subject, folder / "ours8.onnx")


def ours_of_4_bits(subject: Subject, folder: Path) -> Made:
    """Quantize with weights of 4 bits: half of the uneven ranges goes to the weights, which are
    rounded to nearest or by GPTQ, as the calibration samples choose. The file holds each in a byte.
    """
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.sensitivity import Reference
    from pipelines.quantize.tracing import trace
    from pipelines.quantize.treatment import Treatment, attempt, halves, treat

    candidates = (
        Treatment("mse", "mse", migration=0.5),
        Treatment("mse", "mse", "gptq", migration=0.5),
    )
    traced = trace(subject.module, subject.shape, subject.example)
    scheme = Scheme(Bits(4, 8), by_reader=True)
    fitted, judged = halves(subject.calibration)
    with torch.no_grad():
        reference = Reference(traced, judged, classes=subject.classes)
        trials = [attempt(traced, scheme, fitted, reference, each) for each in candidates]
    best = min(trials, key=lambda trial: torch.inf if trial.loss is None else trial.loss)
    treated = treat(traced, scheme, subject.calibration, best.treatment)
    return _deployed(treated, subject, folder / "ours4.onnx")


def _deployed(treated: Treated, subject: Subject, path: Path) -> Made:
    from pipelines.quantize.qcdq import export_qcdq

    export_qcdq(treated.network, subject.shape, path, subject.example)
    return _in_onnx_runtime(path)


def integers(subject: Subject, folder: Path) -> Made:
    """This project's network of integers alone, which ONNX Runtime runs for checking, not for
    speed.
    """
    from intnet.execution import Executor
    from intnet.network import write_integer_onnx
    from pipelines.quantize.lowering import lower
    from pipelines.quantize.placement import Bits, Scheme
    from pipelines.quantize.tracing import trace
    from pipelines.quantize.treatment import PLAIN, treat

    traced = trace(subject.module, subject.shape, subject.example)
    scheme = Scheme(Bits(8, 8), wide=True)
    quantized = treat(traced, scheme, subject.calibration, PLAIN).network
    network = lower(quantized, subject.shape, tokens=subject.vocabulary)
    executor, path = Executor(network), folder / "integer.onnx"
    write_integer_onnx(network, path)
    session = open_onnx(path)

    def run(inputs: Inputs) -> torch.Tensor:
        (given,) = leaves(inputs)
        logits = session.run(None, {"input": executor.quantize(given.numpy())})[0]
        return torch.from_numpy(executor.dequantize(logits)).float()

    return Made(run, path.stat().st_size)


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

    model = onnx.load(str(folder / "float.onnx"))
    session = open_onnx(folder / "float.onnx")
    batches = nncf.Dataset([feed(session, batch) for batch in _pieces(subject.calibration)])
    kind = nncf.ModelType.TRANSFORMER if subject.transformer else None
    size = len(leaves(subject.calibration)[0]) // _CHUNK
    made = nncf.quantize(model, batches, subset_size=size, model_type=kind)
    onnx.save(made, str(folder / "nncf.onnx"))
    return _in_openvino(folder / "nncf.onnx", session)


def ours_in_openvino(_subject: Subject, folder: Path) -> Made:
    """The file of `ours`, which OpenVINO runs too."""
    return _in_openvino(folder / "ours8.onnx", open_onnx(folder / "float.onnx"))


def _in_openvino(path: Path, session: Any) -> Made:
    """A file in OpenVINO on one thread; `session` tells how its inputs are fed."""
    import openvino

    core = openvino.Core()
    core.set_property({"INFERENCE_NUM_THREADS": 1})
    # Its default is bfloat16 where the processor has it.
    compiled = core.compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(inputs: Inputs) -> torch.Tensor:
        return torch.from_numpy(next(iter(compiled(feed(session, inputs)).values())).copy())

    return Made(run, path.stat().st_size)


def torchao(subject: Subject, _folder: Path) -> Made:
    """torchao's dynamic quantization of linear layers, run by torch without compilation."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return _by_torchao(subject, Int8DynamicActivationInt8WeightConfig())


def torchao_of_4_bits(subject: Subject, _folder: Path, *, weights_only: bool = False) -> Made:
    """Quantize with weights of 4 bits, a scale for 32 of them, and inputs of 8 bits or in float."""
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        IntxWeightOnlyConfig,
        PerGroup,
    )

    kinds: Any = torch  # its stubs lack int4
    kind = IntxWeightOnlyConfig if weights_only else Int8DynamicActivationIntxWeightConfig
    return _by_torchao(subject, kind(kinds.int4, PerGroup(_GROUP)))


def onnx_runtime_of_4_bits(_subject: Subject, folder: Path) -> Made:
    """ONNX Runtime's rounding of weights to 4 bits, a scale for 32 of them; all else in float."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(str(folder / "float.onnx")), block_size=_GROUP, is_symmetric=True
    )
    quantizer.process()
    path = folder / "nbits.onnx"
    quantizer.model.save_model_to_file(str(path))
    return _in_onnx_runtime(path)


def _by_torchao(subject: Subject, config: Any) -> Made:
    from torchao.quantization import quantize_

    module = copy.deepcopy(subject.module)
    quantize_(module, config)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)

    def run(inputs: Inputs) -> torch.Tensor:
        with torch.no_grad():
            tensor: torch.Tensor = module(inputs)
        return tensor

    return Made(run, file.tell())


Tool = Callable[[Subject, Path], Made]
Tools = Mapping[str, tuple[Tool, tuple[str, ...]]]
OURS, INTEGERS = "this project", "this project, integers only"
OURS_ELSEWHERE = "this project in OpenVINO"
# What each needs beside the project's own libraries.
TOOLS: Tools = {
    OURS: (ours, ()),
    OURS_ELSEWHERE: (ours_in_openvino, ("openvino",)),
    INTEGERS: (integers, ()),
    "ONNX Runtime, dynamic": (dynamic, ()),
    "ONNX Runtime, static": (static, ()),
    "ONNX Runtime, static, products only": (
        partial(static, only=["Conv", "Gemm", "MatMul"]),
        (),
    ),
    "NNCF in OpenVINO": (nncf, ("nncf", "openvino")),
    "torchao in torch": (torchao, ("torchao",)),
}
OF_4_BITS: Tools = {
    OURS: (ours_of_4_bits, ()),
    "torchao in torch": (torchao_of_4_bits, ("torchao",)),
    "torchao in torch, weights only": (
        partial(torchao_of_4_bits, weights_only=True),
        ("torchao",),
    ),
    "ONNX Runtime, weights only": (onnx_runtime_of_4_bits, ()),
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


@dataclass(frozen=True)
class Row:
    """Holds what a tool's network reaches: its quality, the squared distance of its outputs over
    the squared outputs in float, MB, and two ratios of times each for single samples and batches of
    16: of its own to float32's, and of our file's to its own.
    """

    tool: str
    quality: float
    distance: float
    size: float
    time: tuple[float, ...]
    ours_over: tuple[float, ...] = ()

    def __str__(self) -> str:
        time, ours_over = (
            ", ".join(f"{r:.2f}" for r in each) for each in (self.time, self.ours_over)
        )
        return (
            f"| {self.tool} | {self.quality:.4f} | {self.distance:.5f} | {self.size:.2f} | {time} |"
            f" {ours_over} |"
        )


def rows(subject: Subject) -> Iterator[str]:
    """A row of the table for the float network and for each tool, or why there is none; behind
    them which goals are met. Networks of language have a table of 4-bit weights too.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = in_float(subject, folder)
        yield from _table(subject, folder, whole, "8 bits", TOOLS)
        if subject.language:
            yield ""
            yield from _table(subject, folder, whole, "4-bit weights", OF_4_BITS)


def _table(subject: Subject, folder: Path, whole: Made, what: str, tools: Tools) -> Iterator[str]:
    outputs = _outputs(whole.run, subject.test)
    yield (
        f"| {subject.name}: {what} by | {subject.measure} | distance | file, MB | time of float32's"
        " | ours of its time |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    yield f"| float32 | {subject.quality(outputs):.4f} | 0 | {whole.size / 1e6:.2f} | 1 | |"
    own, measured = None, list[Row]()
    for tool, (make, needed) in tools.items():
        if missing := [each for each in needed if importlib.util.find_spec(each) is None]:
            yield f"| {tool} | not measured: {', '.join(missing)} not installed | | | | |"
            continue
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                if tool == INTEGERS and subject.alone is not None:
                    row = _row_of_another(subject.alone(), folder)
                else:
                    made = make(subject, folder)
                    row = _row(tool, subject, made, whole, outputs, own)
        except Exception as error:  # of every library's own kinds: the row says which
            said = str(error).strip().splitlines()[0][:100] if str(error).strip() else ""
            yield f"| {tool} | failed: {type(error).__name__}: {said} | | | | |"
            continue
        own = made if tool == OURS else own
        measured.append(row)
        yield str(row)
    if tools is TOOLS:
        yield ""
        yield from goals(subject, subject.quality(outputs), measured)


def _row(
    tool: str, subject: Subject, made: Made, whole: Made, outputs: torch.Tensor, own: Made | None
) -> Row:
    found = _outputs(made.run, subject.test)
    return Row(
        tool,
        subject.quality(found),
        float((found - outputs).square().sum() / outputs.square().sum()),
        made.size / 1e6,
        _times(subject, made, whole),
        _times(subject, own, made) if own is not None else (),
    )


def _row_of_another(other: Subject, folder: Path) -> Row:
    """The row of integers alone where another subject stands for the network: it is not timed
    beside it.
    """
    made = integers(other, folder)
    found = _outputs(made.run, other.test)
    with torch.no_grad():
        whole = other.module(other.test)
    distance = float((found - whole).square().sum() / whole.square().sum())
    return Row(INTEGERS, other.quality(found), distance, made.size / 1e6, ())


def goals(subject: Subject, in_float: float, measured: Sequence[Row]) -> Iterator[str]:
    """A line for each goal: whether our file meets it, and by what numbers.

    What a peer has above the quality in float is luck, and not asked of ours.
    """
    by_tool = {row.tool: row for row in measured}
    if (mine := by_tool.get(OURS)) is None:
        yield "- goals: not met, there is no file of ours"
        return
    peers = [row for row in measured if row.tool not in (OURS, OURS_ELSEWHERE, INTEGERS)]
    if peers:
        best = max(peers, key=lambda row: row.quality)
        yield _told(
            mine.quality >= min(best.quality, in_float) - NEAR,
            f"at most {100 * NEAR:g} points below the best peer, or float: {mine.quality:.4f},"
            f" {best.tool} {best.quality:.4f}, float {in_float:.4f}",
        )
    if (asked := subject.goals) is None:
        return
    yield _told(mine.quality >= asked.quality, f"quality {mine.quality:.4f} >= {asked.quality}")
    yield _told(mine.size <= asked.size, f"{mine.size:.2f} MB <= {asked.size:g} MB")
    alone = by_tool.get(INTEGERS)
    reached = f"{alone.quality:.4f} >= {asked.integers}" if alone else f"no file, {asked.integers}"
    yield _told(alone is not None and alone.quality >= asked.integers, f"integers only: {reached}")
    for tool in asked.faster_than:
        row = by_tool.get(tool)
        ratios = ", ".join(f"{ratio:.2f}" for ratio in row.ours_over) if row else "not measured"
        met = row is not None and max(row.ours_over) <= 1
        yield _told(met, f"ours of the time of {tool}: {ratios}")


def _told(met: bool, what: str) -> str:
    return f"- goal {'met' if met else 'not met'}: {what}"


def _times(subject: Subject, made: Made, other: Made) -> tuple[float, ...]:
    """The latency of a tool's network over another's, for single samples and batches of 16."""
    ratios = []
    for batch in (1, _CHUNK):
        inputs = mapped(subject.test, lambda each, of=batch: each[:of])  # type: ignore[misc]
        measured = compare_latency(
            partial(made.run, inputs), partial(other.run, inputs), pairs=20, seconds=6
        )
        ratios.append(measured.ratio)
    return tuple(ratios)


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
