"""Whether a quantized network gives the classes of the float network on boxes, against sampling."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from written import mlp

from evalsuite import Network, Property, Unsupported, Verdict
from intnet.grids import INPUT, Dyadic, Grid
from intnet.layers import Linear
from intnet.network import IntegerNetwork, write_integer_onnx
from intnet.pointwise import Requantize
from pipelines.smt.integer.measuring import SameClass, _float_class_proven
from pipelines.smt.integer.network import IntegerNetwork as Read
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.settling import Limits, Settled

INPUTS, HIDDEN, CLASSES = 5, 7, 3


def named(module: nn.Module) -> Network:
    return Network("n", module.eval(), (INPUTS,), CLASSES)


def box(eps: float, seed: int = 0) -> Property:
    center = torch.rand(INPUTS, generator=torch.Generator().manual_seed(seed))
    return Property.robustness(center, sample=seed, label=0, eps=eps, domain=(0.0, 1.0))


def same_class(network: Network, read: Read, asked: Property) -> Settled:
    return SameClass(network, read, Limits(20.0, math.inf)).query(asked, None, 20.0)


def points_of(asked: Property, count: int = 2000) -> torch.Tensor:
    share = torch.rand(
        count, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    share[::2] = share[::2].round()
    return asked.lower + share * (asked.upper - asked.lower)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Read]:
    """A linear network and its quantization by hand: 8-bit weights, logits on a grid."""
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(INPUTS, CLASSES))
    weight = module[0].weight.detach().double().numpy()
    scale = np.abs(weight).max(1) / 127
    integers = np.rint(weight / scale[:, None]).astype(np.int8)
    sums = scale / 255
    bias = np.rint(module[0].bias.detach().double().numpy() / sums).astype(np.int32)
    given, made = Grid(1 / 255, 0, 0, 255), Grid(0.02, 128, 0, 255)
    operations = (
        Linear("linear", (INPUT,), given, integers, bias, sums),
        Requantize("grid", ("linear",), 0, Dyadic.nearest(sums / made.scale), -1, made),
    )
    path: Path = tmp_path_factory.mktemp("quantized") / "n.onnx"
    write_integer_onnx(IntegerNetwork(given, (INPUTS,), operations, made), path)
    return named(module), read_integer_onnx(path)


def test_float_and_quantized_classes(quantized: tuple[Network, Read]) -> None:
    network, read = quantized
    verdicts: list[Settled] = []
    for seed in range(6):
        for eps in (0.01, 0.2):
            asked = box(eps, seed)
            found = same_class(network, read, asked)
            verdicts.append(found)
            points = points_of(asked).float()
            with torch.no_grad():
                classes = network.module(points).argmax(1).numpy()
            differ = classes != read.logits(read.input.integers(points.numpy())).argmax(1)
            if found.verdict is Verdict.HOLDS:
                assert not differ.any()
                assert len(set(classes.tolist())) == 1
            if found.verdict is Verdict.VIOLATED:
                assert found.counterexample is not None
                assert asked.contains(found.counterexample)
                at = found.counterexample[None]
                one = network.module(at).argmax(1).item()
                assert one != int(read.logits(read.input.integers(at.numpy())).argmax(1)[0])
    assert {Verdict.HOLDS, Verdict.VIOLATED} <= {each.verdict for each in verdicts}


def test_classes_of_a_gelu_network_are_proven_too() -> None:
    """Its float class by sound lines, the integer network's exactly."""
    smooth = named(mlp(INPUTS, HIDDEN, HIDDEN, CLASSES, activation=nn.GELU, seed=1))
    center = torch.full((INPUTS,), 0.5)
    label = int(smooth.module(center[None]).argmax())
    for other, expected in ((label, True), ((label + 1) % CLASSES, False)):
        asked = Property.robustness(center, sample=0, label=other, eps=1e-4, domain=(0.0, 1.0))
        assert _float_class_proven(smooth, asked, math.inf) == expected


def test_networks_of_other_sizes_are_refused(quantized: tuple[Network, Read]) -> None:
    read = quantized[1]
    other = Network("n", nn.Linear(4, CLASSES), (4,), CLASSES)
    center = Property.robustness(torch.zeros(4), sample=0, label=0, eps=0.1, domain=(0.0, 1.0))
    with pytest.raises(Unsupported, match="5 integer inputs and 3 logits against another network"):
        same_class(other, read, center)
