"""Small networks, boxes, benches and an exact judge for the tests of the stage `smt`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import z3
from files_of_mlps import network as network_of
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from written import bench_of as written_bench

from evalsuite import Bench, LambdaGELU, Network, Property, Split
from lambda_gelu.activations import Swish
from pipelines.smt.counterexample import Judge
from pipelines.smt.exact_network import Affine
from pipelines.smt.reading import read, read_curved
from pipelines.smt.reduction import Asked
from pipelines.smt.search.decision import Decided, decide_rows

KINDS = ("plain", "quarters", "integers", "tiny", "twins", "constant", "tie", "dead")


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def of(*layers: nn.Module) -> Network:
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return Network(
        "tiny", nn.Sequential(*layers).eval(), (linears[0].in_features,), linears[-1].out_features
    )


def bench_of(
    inputs: torch.Tensor, targets: torch.Tensor, folder: Path, time_limit: float = 60.0
) -> Bench:
    classes = int(targets.max()) + 1
    return written_bench(
        Split(inputs, targets), classes, folder, domain=(-10.0, 10.0), time_limit=time_limit
    )


def box(lower: Sequence[float], upper: Sequence[float], label: int = 0) -> Property:
    low, high = torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)
    return Property(0, label, float((high - low).max()) / 2, low, high)


def chain(widths: Sequence[int], seed: int, activation: type[nn.Module] = nn.ReLU) -> Network:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return of(*layers[:-1])


def curved(widths: Sequence[int], seed: int, activation: type[nn.Module] = nn.GELU) -> Network:
    """A chain with thrice the usual weights."""
    made = chain(widths, seed, activation)
    with torch.no_grad():
        for each in made.module.parameters():
            each.mul_(3)
    return made


# logits (relu(x0), relu(x1)): from (3/4, 1/2) the nearest tie is (5/8, 5/8), at distance 1/8.
def diagonal() -> Network:
    eye = [[1.0, 0.0], [0.0, 1.0]]
    return of(linear(eye, [0, 0]), nn.ReLU(), linear(eye, [0, 0]))


# logits (|slope x - shift| + rest, 0), by one neuron for each sign
def absolute(slope: float, shift: float, rest: float) -> Network:
    hidden = linear([[slope], [-slope]], [-shift, shift])
    return of(hidden, nn.ReLU(), linear([[1.0, 1.0], [0.0, 0.0]], [rest, 0.0]))


# y = |x| + rest, as a file
def absolute_file(path: Path, rest: float) -> Path:
    return network_of(path, (([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, 1.0]], [rest])))


def around(network: Network, eps: float, seed: int) -> Property:
    center = torch.rand(network.input_shape, generator=torch.Generator().manual_seed(seed))
    label = int(network.module(center[None]).argmax())
    return Property.robustness(center, sample=0, label=label, eps=eps, domain=(-10.0, 10.0))


@torch.no_grad()
def odd_network(seed: int, kind: str) -> tuple[Network, Property]:
    """Random networks with ties, duplicates, constants and tiny weights, and boxes with sides of
    no width.
    """
    chance = random.Random(seed)
    inputs = chance.randint(1, 4)
    network = chain(
        [
            inputs,
            *(chance.randint(2, 7) for _ in range(chance.randint(0, 2))),
            chance.randint(2, 4),
        ],
        seed,
    )
    layers = [layer for layer in network.module if isinstance(layer, nn.Linear)]
    for layer in layers:
        if kind in ("quarters", "integers"):
            step = 0.25 if kind == "quarters" else 1.0
            layer.weight.mul_(2.5 / step).round_().mul_(step)
            layer.bias.mul_(2.5 / step).round_().mul_(step)
        elif kind == "tiny":
            layer.weight.mul_(10 ** -chance.uniform(0, 8))
            layer.bias.mul_(10 ** -chance.uniform(0, 12))
        elif kind == "twins":
            layer.weight[:, -1] = -layer.weight[:, 0]
            if layer is not layers[-1]:
                layer.weight[1], layer.bias[1] = layer.weight[0].clone(), layer.bias[0].clone()
    if kind == "constant":
        layers[-1].weight.zero_()
    elif kind == "tie":
        layers[-1].weight[-1] = layers[-1].weight[0]
        layers[-1].bias[-1] = layers[-1].bias[0] - chance.choice([0.0, 0.0, 2.0**-20, 0.25])
    elif kind == "dead":
        layers[0].bias[0] = -1000.0
        layers[0].weight[-1] = 0.0
    center = torch.randint(-4, 5, (inputs,)).double() / 4
    reach = torch.tensor(
        [chance.choice([0.0, 0.25, 0.5, 1.0, chance.random()]) for _ in range(inputs)]
    ).double()
    label = int(network.module(center.float()[None]).argmax())
    return network, Property(0, label, float(reach.max()), center - reach, center + reach)


class ExactJudge:
    """Takes for a counterexample what is one in exact arithmetic, float32 or not."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def confirmed(self, point: NDArray[np.float64]) -> torch.Tensor | None:
        return self.near([Fraction(value) for value in point.tolist()])

    def near(self, point: Sequence[Fraction]) -> torch.Tensor | None:
        asked, ends = (
            self._asked,
            zip(self._asked.lower.fractions(), point, self._asked.upper.fractions(), strict=True),
        )
        assert all(low <= value <= high for low, value, high in ends)
        logits = asked.network.logits(point)
        margins = [asked.value(row, logits) for row in range(asked.rows.bias.shape[0])]
        return (
            None
            if min(margins) > 0
            else torch.tensor([float(value) for value in point], dtype=torch.float64)
        )


def plain_encoding(network: Network, property_: Property) -> str:
    """sat or unsat, neuron by neuron, with If and without bounds."""
    solver = z3.Solver()
    solver.set("timeout", 240_000)
    state = [z3.Real(f"x{i}") for i in range(property_.lower.numel())]
    for variable, low, high in zip(
        state, property_.lower.tolist(), property_.upper.tolist(), strict=True
    ):
        solver.add(
            variable >= z3.Q(*low.as_integer_ratio()), variable <= z3.Q(*high.as_integer_ratio())
        )
    for layer in network.module:
        if isinstance(layer, nn.ReLU):
            state = [z3.If(each > 0, each, 0) for each in state]
            continue
        rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        state = [
            sum(
                (z3.Q(*w.as_integer_ratio()) * x for w, x in zip(row, state, strict=True)),
                z3.Q(*b.as_integer_ratio()),
            )
            for row, b in rows
        ]
    solver.add(
        z3.Or(
            [state[property_.label] <= each for i, each in enumerate(state) if i != property_.label]
        )
    )
    return str(solver.check())


def decide_exactly(
    network: Network,
    property_: Property,
    *,
    rows: Affine | None = None,
    seconds: float = 60.0,
    nodes: int = 100_000,
) -> Decided:
    """The verdict in exact arithmetic on rows over the outputs; None for the label's margins."""
    exact = read(network)
    asked = Asked.robustness(exact, property_)
    asked = asked if rows is None else replace(asked, rows=rows)
    return decide_rows(asked, ExactJudge(asked), seconds=seconds, nodes=nodes)


def decider(network: Network) -> Callable[..., Decided]:
    """Decides properties of a network with curved activations."""
    exact = read_curved(network)
    judge = Judge(network, exact, 0)
    return lambda property_, **limits: decide_rows(
        Asked.robustness(exact, property_), judge.at(property_), **limits
    )


def onnx_of(network: Network) -> bytes:
    """The nodes that torch's exporter writes of its layers, with the network's own weights."""
    nodes, tensors, current = list[onnx.NodeProto](), list[onnx.TensorProto](), "input"

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"n{len(nodes)}"], **attributes))
        return f"n{len(nodes) - 1}"

    for index, layer in enumerate(network.module):
        if isinstance(layer, nn.Linear):
            parts = {f"w{index}": layer.weight, f"b{index}": layer.bias}
            tensors += [
                numpy_helper.from_array(part.detach().numpy(), name) for name, part in parts.items()
            ]
            current = add("Gemm", current, *parts, transB=1)
        elif isinstance(layer, nn.GELU):
            current = add("Gelu", current, approximate=layer.approximate)
        elif isinstance(layer, nn.SiLU):
            current = add("Mul", current, add("Sigmoid", current))
        elif isinstance(layer, (LambdaGELU, Swish)):
            tensors.append(
                numpy_helper.from_array(layer.hardness.detach().numpy().reshape(1, 1), f"h{index}")
            )
            scaled = add("Mul", f"h{index}", current)
            if isinstance(layer, Swish):
                current = add("Mul", current, add("Sigmoid", scaled))
            else:
                current = add("Div", add("Gelu", scaled), f"h{index}")
        else:
            current = add({"ReLU": "Relu"}.get(type(layer).__name__, type(layer).__name__), current)
    return model_of(nodes, tensors, network.input_shape[0], network.classes)


def model_of(
    nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto], inputs: int, outputs: int
) -> bytes:
    """A file of a graph from "input" to what the last node gives."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("input", inputs), (nodes[-1].output[0], outputs))
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    data: bytes = model.SerializeToString()
    return data


def value(text: str) -> Fraction:
    """A number as a proof file says it."""
    whole, _, places = text.partition("p-")
    return Fraction(int(whole), 1 << int(places or 0))


def leaves_of(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a proof's tree, whatever its splits are called."""
    halves = [tree[name] for name in ("on", "off", "low", "high") if name in tree]
    return [leaf for half in halves for leaf in leaves_of(half)] or [tree]


class Blind:
    """Finds no counterexample."""

    def confirmed(self, point: Any, /) -> torch.Tensor | None:
        return None

    near = confirmed


def samples(property_: Property, count: int, seed: int) -> torch.Tensor:
    """Points of the box, a third of them corners, (count, inputs), float64."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(count, property_.lower.numel(), dtype=torch.float64, generator=generator)
    share[: count // 3] = share[: count // 3].round()
    return property_.lower.flatten() + share * (property_.upper - property_.lower).flatten()
