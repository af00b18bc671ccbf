"""A network that is an ONNX file, whoever wrote it: run by ONNX Runtime, checked, with messages
that name the cure.
"""

from __future__ import annotations

import functools
import platform
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from opgraph.errors import OwnError
from opgraph.inputs import Inputs
from opgraph.limits import reading
from opgraph.onnx_model import load_model, parsed, refuse_outside, weight_files

_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(int8)": torch.int8,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}
# Of ONNX Runtime itself, besides ONNX's own.
_DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "com.ms.internal.nhwc",
    "com.microsoft.nchwc",
)
_DESCRIPTION = Path("/proc/cpuinfo")
_VNNI = {"avx512_vnni", "avx_vnni"}


class OnnxNetwork(nn.Module):
    """An ONNX file as a module that gives one of the file's outputs for a batch. It has no
    gradients and no parameters.

    A batch is a tensor where the file has one input; else a tuple, in the file's order, or a
    mapping by the file's names. A file whose batch is of a fixed size is run piece by piece. Copies
    and pickles hold the path, not the file.

    Args:
        path: the file, with its external data beside it.
        output: the name of the output to take, where there are several.

    Raises:
        OwnError: there is no such file, it is no ONNX file or not whole, ONNX Runtime refuses it,
            or it has several outputs and none is chosen.
    """

    def __init__(self, path: Path, output: str | None = None) -> None:
        super().__init__()
        self.path = Path(path)
        self._session: onnxruntime.InferenceSession | None = _opened(self.path)
        names = [get_output.name for get_output in self._session.get_outputs()]
        if output is None and len(names) > 1:
            raise OwnError(
                f"{self.path}: has several outputs, {_listed(names)}: choose one by `output:"
                f" {names[0]}`"
            )
        if output is not None and output not in names:
            raise OwnError(f"{self.path}: has no output {output!r}; it has {_listed(names)}")
        self.output = names[0] if output is None else output
        # Sequences, maps and texts are no batch of numbers.
        for value_info in self._session.get_inputs():
            if value_info.type not in _TYPES:
                raise OwnError(
                    f"{path}: the input {value_info.name!r} is of {value_info.type}; inputs must be"
                    " tensors of numbers"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Without the session, which no process can hand to another."""
        return {**self.__dict__, "_session": None}

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """ONNX Runtime's session of the file, with one thread; in a copy it is opened when it is
        first asked for.
        """
        if self._session is None:
            self._session = _opened(self.path)
        return self._session

    @property
    def batch(self) -> int | None:
        """The size of a batch where the file fixes it."""
        fixed = {
            value_info.shape[0]
            for value_info in self.session.get_inputs()
            if value_info.shape and isinstance(value_info.shape[0], int)
        }
        return min(fixed, default=None)

    def model(self) -> onnx.ModelProto:
        """Return what the file says, with all its weights, of its chosen output alone."""
        model = load_model(self.path)
        chosen = [output for output in model.graph.output if output.name == self.output]
        del model.graph.output[:]
        model.graph.output.extend(chosen)
        return model

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """The chosen output, (batch, ...), for a batch of inputs.

        Raises:
            OwnError: the inputs' names, number or shapes are not the file's.
        """
        tensors = self.named(inputs)
        samples = len(next(iter(tensors.values())))
        size = self.batch or samples
        if size == samples:
            return torch.from_numpy(self._run(tensors))
        pieces = []
        for start in range(0, samples, size):
            # The last piece is filled up with its last sample.
            places = np.minimum(np.arange(start, start + size), samples - 1)
            pieces.append(
                self._run({name: tensor[places] for name, tensor in tensors.items()})[
                    : samples - start
                ]
            )
        return torch.from_numpy(np.concatenate(pieces))

    def named(self, inputs: Inputs) -> dict[str, np.ndarray[Any, Any]]:
        """The batch by the file's names, in its types. Errors as for `forward`."""
        # 1. Inputs that have no names of their own take the file's, in its order.
        wanted = self.session.get_inputs()
        names = [value_info.name for value_info in wanted]
        if not isinstance(inputs, dict):
            several = inputs if isinstance(inputs, tuple) else (inputs,)
            if len(several) != len(names):
                raise OwnError(
                    f"{self.path}: takes {_listed(names)}, but the data give {len(several)} inputs"
                    " a sample"
                )
            inputs = dict(zip(names, several, strict=True))
        if missing := [name for name in names if name not in inputs]:
            raise OwnError(
                f"{self.path}: takes {_listed(names)}, but the data give {_listed(list(inputs))}: "
                f"name them so; {_listed(missing)} is missing"
            )
        # 2. Each in the shape and type that the file declares.
        for argument in wanted:
            self._check_shape(argument, inputs[argument.name])
        return {
            value_info.name: self._in_type(value_info, inputs[value_info.name]).numpy()
            for value_info in wanted
        }

    def _in_type(self, wanted: Any, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the type of an input; one that has no such numbers is refused."""
        tensor = tensor.detach().cpu()
        converted = tensor.to(_TYPES[wanted.type])
        if converted.dtype.is_floating_point:
            lost = tensor.isfinite() & ~converted.isfinite()
        else:
            lost = converted.to(tensor.dtype) != tensor
        if bool(lost.any()):
            raise OwnError(
                f"{self.path}: the input {wanted.name!r} is of {wanted.type}, which does not hold"
                f" {tensor[lost][0].item():.6g} of the data: give data in that type, or a file that"
                " takes float32"
            )
        return converted

    def _check_shape(self, wanted: Any, tensor: torch.Tensor) -> None:
        """The dimensions behind the batch, where the file fixes them."""
        sizes, fixed = tuple(tensor.shape[1:]), tuple(wanted.shape[1:])
        fits = len(sizes) == len(fixed) and all(
            not isinstance(one, int) or one == other
            for one, other in zip(fixed, sizes, strict=True)
        )
        if not fits:
            raise OwnError(
                f"{self.path}: the input {wanted.name!r} takes samples of shape {list(fixed)}, but"
                f" the data give {list(sizes)}: reshape the data"
            )

    def _run(self, feed: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        output: np.ndarray[Any, Any] = self.session.run([self.output], feed)[0]
        return output


def open_onnx(
    path: Path | bytes,
    *,
    threads: int = 1,
    also: Callable[[onnxruntime.SessionOptions], None] = lambda _: None,
) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session on the CPU, quiet, with `threads` threads and the options that `also`
    sets.

    Sums of 8-bit products are exact on every processor, unless ONNX Runtime's option for that fails
    on the file: then a RuntimeWarning says so.

    Raises:
        OwnError: bytes whose weights lie in other files, which could be any.
        Exception: what ONNX Runtime raises of a file that it refuses.
    """
    if isinstance(path, bytes):
        refuse_outside(path, "an ONNX file")
    source = path if isinstance(path, bytes) else str(path)
    # 1. On a processor that saturates, with the option for exact sums: the file as it is, and else
    # with a copy of each constant for each node that takes it.
    if saturates():
        ways: tuple[Callable[[], str | bytes], ...] = (
            lambda: source,
            functools.partial(_unshared, path),
        )
        for session_of in ways:
            try:
                return _session(session_of(), threads, also, exact=True)
            except Exception:  # of the option or of the file: the session without the option tells
                continue
    # 2. Without the option, and with a warning where that matters.
    session = _session(source, threads, also, exact=False)
    if saturates():
        name = "an ONNX file" if isinstance(path, bytes) else str(path)
        message = (
            f"ONNX Runtime can't open {name} for exact sums: this processor may cut off sums of"
            " 8-bit products"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return session


_STARVED = ("Failed to allocate memory", "bad allocation", "bad_alloc")


def _session(
    source: str | bytes,
    threads: int,
    also: Callable[[onnxruntime.SessionOptions], None],
    *,
    exact: bool,
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # What it refuses with the option may be the option's fault, and is told without it.
    options.log_severity_level = 4 if exact else 3
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    also(options)
    return _Session(source, options, providers=["CPUExecutionProvider"])


class _Session(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session that runs out of memory as all else does, by a MemoryError: ONNX Runtime has no
    exception for it.
    """

    def run(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().run(*arguments, **options)
        except Exception as error:
            text = " ".join(str(error).split())
            place = max(text.find(words) for words in _STARVED)
            if place >= 0:
                raise MemoryError(f"ONNX Runtime: {text[place : place + 200]}") from error
            raise


def _unshared(path: Path | bytes) -> bytes:
    """The file with a copy of each int8 constant for each node that takes it.

    ONNX Runtime's option for exact sums turns them into uint8 node by node, and fails where two
    nodes share one.
    """
    model = onnx.load_from_string(path) if isinstance(path, bytes) else load_model(path)
    constants = {
        tensor.name: tensor
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8
    }
    for index, node in enumerate(model.graph.node):
        for place, name in enumerate(node.input):
            if name in constants:
                copied = model.graph.initializer.add()
                copied.CopyFrom(constants[name])
                copied.name = node.input[place] = f"{name} of {index}.{place}"
    return bytes(model.SerializeToString())


@functools.cache
def saturates(description: str | None = None) -> bool:
    """Whether this processor's kernels cut off sums of 8-bit products unless told otherwise; False
    where not known.

    x86 without VNNI adds two products of uint8 and int8 in 16 bits, where 2 x 255 x 127 does not
    fit.

    Args:
        description: the text of Linux's /proc/cpuinfo; read if None.
    """
    if description is None:
        known = platform.machine() in ("x86_64", "AMD64") and _DESCRIPTION.exists()
        description = _DESCRIPTION.read_text() if known else ""
    flags = next(
        (
            line.split(":", 1)[1].split()
            for line in description.splitlines()
            if line.startswith("flags")
        ),
        None,
    )
    return flags is not None and not _VNNI & set(flags)


def copy_onnx(path: Path, target: Path) -> None:
    """Copy an ONNX file; weights that lie in other files beside it go into the copy.

    Raises:
        OwnError: see `OnnxNetwork`.
    """
    if weight_files(parsed(path), path):
        _opened(path)
        onnx.save(load_model(path), str(target))
    else:
        shutil.copyfile(path, target)


def _opened(path: Path) -> onnxruntime.InferenceSession:
    with reading(path):
        return _checked(path)


def _checked(path: Path) -> onnxruntime.InferenceSession:
    # 1. What can be told without ONNX Runtime: weights that are missing, and foreign operators.
    model = parsed(path)
    weight_files(model, path)
    domains = {opset.domain for opset in model.opset_import}
    foreign = sorted(
        {
            f"{node.domain}.{node.op_type}"
            for node in model.graph.node
            if node.domain not in _DOMAINS
        }
        - {f"{function.domain}.{function.name}" for function in model.functions}
    )
    if foreign:
        raise OwnError(
            f"{path}: has operators that ONNX Runtime does not know, {_listed(foreign)}: export it"
            " without custom operators (its domains are"
            f" {_listed(sorted(domain or 'ai.onnx' for domain in domains))})"
        )
    opset = next(
        (
            opset_import.version
            for opset_import in model.opset_import
            if opset_import.domain in ("", "ai.onnx")
        ),
        0,
    )
    # 2. ONNX Runtime has the last word.
    try:
        return open_onnx(path)
    except Exception as error:  # ONNX Runtime's errors share no base class
        said = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise OwnError(
            f"{path}: ONNX Runtime {onnxruntime.__version__} refuses it, of opset {opset} and IR"
            f" {model.ir_version}: {said[:300]}; export it anew with opset 20 or below, float32"
        ) from error


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
