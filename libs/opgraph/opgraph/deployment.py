"""ONNX and ONNX Runtime: what a stage needs to run a network as it would be shipped."""

from __future__ import annotations

import copy
import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from opgraph.inputs import Inputs, leaves, mapped

# The first opset with a Gelu operator: below it GELU is exported as five unfused nodes, unfairly
# slow.
OPSET = 20


def export_onnx(
    module: nn.Module,
    input_shape: tuple[int, ...],
    path: Path,
    *,
    opset: int = OPSET,
    tokens: bool = False,
    example: Inputs | None = None,
) -> onnx.ModelProto:
    """Write `module` as one ONNX file with a dynamic batch, input "input" and output "logits"; the
    file is checked, and its model returned.

    Several inputs are named as the mapping that the module takes, or "input_0", "input_1", ... as
    the tuple.

    Args:
        module: evaluated in eval mode; a copy is exported.
        input_shape: of one input.
        path: the file.
        opset: the operator set asked for.
        tokens: whether inputs are int64 token indices instead of float32.
        example: a batch to trace with, where inputs are several or zeros would not do; of any size.

    Raises:
        ValueError: the file does not have the opset asked for.
    """
    if example is None:
        example = torch.zeros(2, *input_shape, dtype=torch.int64 if tokens else torch.float32)
    # A size of 1 would be taken for a constant.
    pair = mapped(example, lambda tensor: tensor[torch.arange(2) % len(tensor)])
    batch = torch.export.Dim("batch")
    dynamic = mapped(pair, lambda _: {0: batch})  # type: ignore[arg-type, return-value]
    # The exporter reports, at every call, which operators of other libraries it does not know.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), _one_registry():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            copy.deepcopy(module).eval(),
            (pair, {}),  # the exporter takes a mapping that comes last for keyword arguments
            str(path),
            input_names=input_names(pair),
            output_names=["logits"],
            dynamic_shapes=(dynamic,),
            opset_version=opset,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    model = onnx.load(str(path))
    # Stack traces with the paths of the installation are a third of a small file: its size must not
    # depend on them.
    for part in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.initializer,
    ):
        part.ClearField("metadata_props")
    onnx.save(model, str(path))
    onnx.checker.check_model(model)
    written = next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    if written != opset:
        raise ValueError(f"{path.name}: asked for opset {opset}, the exporter wrote {written}")
    return model


@contextmanager
def _one_registry() -> Iterator[None]:
    """Inside, the exporter builds its table of operators once a process: for each file, it takes
    longer than the rest.

    Torch's own operators it looks through once for a file, not once for each of fifty libraries: a
    fifth of the time. Nothing is added to either table here. Where a release of torch has none of
    these names, this does nothing.
    """
    try:
        from torch._export import utils
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        look = utils._materialize_cpp_cia_ops
    except (ImportError, AttributeError):
        yield
        return
    original = ONNXRegistry.__dict__["from_torchlib"]
    ONNXRegistry.from_torchlib = _built_once()  # type: ignore[method-assign]
    utils._materialize_cpp_cia_ops = cache(look)
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = original  # type: ignore[method-assign]
        utils._materialize_cpp_cia_ops = look


@cache
def _built_once() -> Any:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return staticmethod(cache(ONNXRegistry.from_torchlib))


def run_onnx(session: onnxruntime.InferenceSession, inputs: Inputs) -> torch.Tensor:
    """An ONNX Runtime session's first output for a batch, a tensor (batch, *input_shape) or
    several; see `feed`.
    """
    output: np.ndarray[Any, Any] = session.run(None, feed(session, inputs))[0]
    return torch.from_numpy(output)


def feed(session: onnxruntime.InferenceSession, inputs: Inputs) -> dict[str, np.ndarray[Any, Any]]:
    """A batch as an ONNX Runtime session takes it: arrays by the names of the inputs, real numbers
    as float32.

    Several inputs go by their names (see `export_onnx`); one that the graph does not read is left
    out.
    """
    tensors = [leaf.float() if leaf.is_floating_point() else leaf for leaf in leaves(inputs)]
    taken = [argument.name for argument in session.get_inputs()]
    names = taken[:1] if isinstance(inputs, torch.Tensor) else input_names(inputs)
    return {
        name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True) if name in taken
    }


def input_names(inputs: Inputs) -> list[str]:
    """The names that `export_onnx` gives the inputs of a file, in order."""
    if isinstance(inputs, dict):
        return list(inputs)
    return (
        [f"input_{index}" for index in range(len(inputs))]
        if isinstance(inputs, tuple)
        else ["input"]
    )


def graph_digest(model: onnx.ModelProto) -> str:
    """The first 16 hexadecimal digits of a SHA-256 of a file's graph without its weights.

    Two files with equal digests execute the same operators on tensors of the same shapes, so that
    they take equally long. Names and descriptions do not count, nor do the values of weights; of
    constants whose values decide what is executed, such as shapes and zero points, the values
    count.
    """
    # 1. The operator sets: by another version an operator computes otherwise.
    digest = hashlib.sha256(
        repr(sorted((opset.domain, opset.version) for opset in model.opset_import)).encode()
    )
    # 2. Name each tensor by the place where it is made, so that the exporter's names do not
    # count.
    places: dict[str, str] = {"": ""}
    for value in model.graph.input:
        places[value.name] = f"input {len(places)} {_type_text(value)}"
    for tensor in model.graph.initializer:
        places[tensor.name] = (
            f"constant {tensor.data_type} {list(tensor.dims)} {_deciding_values(tensor)}"
        )
    # 3. The nodes in their order, each with what it takes and its attributes.
    for node in model.graph.node:
        inputs = [places.get(name, name) for name in node.input]
        attributes = sorted(
            (attribute.name, _attribute_text(attribute)) for attribute in node.attribute
        )
        digest.update(
            repr((node.domain, node.op_type, inputs, attributes, len(node.output))).encode()
        )
        for name in node.output:
            places[name] = f"value {len(places)}"
    digest.update(
        repr([places.get(value.name, value.name) for value in model.graph.output]).encode()
    )
    return digest.hexdigest()[:16]


def _type_text(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    return f"{tensor.elem_type} {[size.dim_value or size.dim_param for size in tensor.shape.dim]}"


def _deciding_values(tensor: onnx.TensorProto) -> list[Any]:
    """The values of a constant that is no weight: 64-bit integers are shapes and axes, one
    integer is a zero point.
    """
    array = onnx.numpy_helper.to_array(tensor)
    deciding = array.dtype in (np.int64, np.bool_) or (
        array.size == 1 and np.issubdtype(array.dtype, np.integer)
    )
    values: list[Any] = (
        array.tolist() if deciding and array.ndim else [array.item()] if deciding else []
    )
    return values


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    """An attribute's value; of a tensor its type, its shape and what `_deciding_values` gives of
    it.
    """
    if attribute.type != onnx.AttributeProto.TENSOR:
        text: str = attribute.SerializeToString(deterministic=True).hex()
        return text
    return f"{attribute.t.data_type} {list(attribute.t.dims)} {_deciding_values(attribute.t)}"
