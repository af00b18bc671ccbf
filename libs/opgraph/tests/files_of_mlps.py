"""Files for the tests of `evalsuite verify`: ONNX files by hand, of MLPs too, and a property of
inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Layers = Sequence[tuple[Any, Any]]
Shapes = Mapping[str, Sequence[int | str] | None]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any],
    given: Shapes,
    made: Shapes,
    *,
    opset: int = 20,
) -> onnx.ModelProto:
    """Of float32 inputs and outputs of these names and shapes."""
    ends = (
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in each.items()
        ]
        for each in (given, made)
    )
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "by hand", *ends, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def network(
    path: Path, layers: Layers, activation: str = "Relu", scale: float | None = None
) -> Path:
    """An MLP: weight (outputs, inputs) and bias of each layer. With a scale, all is quantized to
    8 bits.
    """
    nodes, constants, value = list[onnx.NodeProto](), dict[str, Any](), "x"

    def held(name: str, array: Any, kind: type = np.float32) -> str:
        constants[name] = np.array(array, dtype=kind)
        return name

    def dequantized(name: str, array: Any, step: float, kind: type) -> str:
        made = np.round(np.array(array) / np.float32(step))
        names = held(f"{name}q", made, kind), held(f"{name}s", step), held(f"{name}z", 0, kind)
        nodes.append(helper.make_node("DequantizeLinear", names, [name]))
        return name

    for number, (weight, bias) in enumerate(layers):
        if number:
            nodes.append(helper.make_node(activation, [value], [f"a{number}"]))
            value = f"a{number}"
        if scale is None:
            operands = [held(f"w{number}", weight), held(f"b{number}", bias)]
        else:
            ends = held(f"s{number}", scale), held(f"z{number}", 128, np.uint8)
            nodes.append(helper.make_node("QuantizeLinear", [value, *ends], [f"q{number}"]))
            nodes.append(
                helper.make_node("DequantizeLinear", [f"q{number}", *ends], [f"d{number}"])
            )
            value, step = f"d{number}", float(np.abs(weight).max() / 127)
            operands = [dequantized(f"w{number}", weight, step, np.int8)]
            operands.append(dequantized(f"b{number}", bias, step * scale, np.int32))
        output = "y" if number == len(layers) - 1 else f"h{number}"
        nodes.append(helper.make_node("Gemm", [value, *operands], [output], transB=1))
        value = output
    sizes = np.array(layers[0][0]).shape[1], len(layers[-1][1])
    given, made = ({name: ["batch", size]} for name, size in zip("xy", sizes, strict=True))
    onnx.save(model_of(nodes, constants, given, made), path)
    return path


def property_of(
    path: Path, box: Sequence[tuple[str | float, str | float]], outputs: int, *asserted: str
) -> Path:
    """Inputs in the box, whose ends are decimals or floats; and what is asserted of the outputs."""
    lines = [f"(declare-const X_{i} Real)" for i in range(len(box))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i, ends in enumerate(box):
        low, high = (each if isinstance(each, str) else f"{each:.9f}" for each in ends)
        lines += [f"(assert (>= X_{i} {low}))", f"(assert (<= X_{i} {high}))"]
    path.write_text("\n".join([*lines, *(f"(assert {each})" for each in asserted if each), ""]))
    return path
