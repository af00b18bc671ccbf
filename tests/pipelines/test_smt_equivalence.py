"""Equivalence of pruned, swapped and quantized networks on boxes, against closed forms and sampling."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

from evalsuite import Network, Property, Unsupported, Verdict
from pipelines.quantize.integer.network import INPUT, Dyadic, Grid, IntegerNetwork, Linear, Requantize
from pipelines.quantize.integer.onnx_graph import write_integer_onnx
from pipelines.smt.equivalence import Equivalence, same_outputs
from pipelines.smt.equivalence_quantized import same_class
from pipelines.smt.equivalence_swap import _proven_apart, swapped_within
from pipelines.smt.integer.network import IntegerNetwork as Read
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.search import CurvedDecider

INPUTS, HIDDEN, CLASSES = 5, 7, 3


def named(module: nn.Module, unswapped: nn.Module | None = None) -> Network:
    return Network("n", module.eval(), (INPUTS,), CLASSES, unswapped)


def relu_network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    )


@torch.no_grad()
def with_superfluous(module: nn.Sequential) -> nn.Sequential:
    """The same function on [0, 1]: a dead neuron, and one that shares the work of another."""
    wide = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN + 2), nn.ReLU(), nn.Linear(HIDDEN + 2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    )
    wide[0].weight[:HIDDEN], wide[0].bias[:HIDDEN] = module[0].weight, module[0].bias
    wide[0].weight[HIDDEN], wide[0].bias[HIDDEN] = -torch.rand(INPUTS), -0.25
    wide[0].weight[HIDDEN + 1], wide[0].bias[HIDDEN + 1] = module[0].weight[2], module[0].bias[2]
    wide[2].weight[:, :HIDDEN], wide[2].bias[:] = module[2].weight, module[2].bias
    wide[2].weight[:, HIDDEN] = 1.0
    wide[2].weight[:, 2] = wide[2].weight[:, HIDDEN + 1] = module[2].weight[:, 2] / 2
    wide[4].load_state_dict(module[4].state_dict())
    return wide


def box(eps: float, seed: int = 0) -> Property:
    center = torch.rand(INPUTS, generator=torch.Generator().manual_seed(seed))
    return Property.robustness(center, sample=seed, label=0, eps=eps, domain=(0.0, 1.0))


def points_of(asked: Property, count: int = 4000) -> torch.Tensor:
    share = torch.rand(count, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    share[::2] = share[::2].round()
    return asked.lower + share * (asked.upper - asked.lower)


@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_exact_removal_is_proven_equal(seed: int, eps: float) -> None:
    module = relu_network(seed)
    found = same_outputs(named(with_superfluous(module)), named(module), box(eps, seed))
    assert found.verdict is Verdict.HOLDS
    assert found.bound == 0
    assert found.found == 0


def test_a_neuron_that_lives_outside_the_box_only_is_no_difference_inside() -> None:
    module = relu_network(0)
    other = with_superfluous(module)
    with torch.no_grad():
        other[0].weight[HIDDEN] = torch.tensor([1.0, 0, 0, 0, 0])
        other[0].bias[HIDDEN] = -0.5
    near = Property(0, 0, 0.0, torch.zeros(INPUTS).double(), torch.full((INPUTS,), 0.5).double())
    whole = Property(0, 0, 0.0, torch.zeros(INPUTS).double(), torch.ones(INPUTS).double())
    assert same_outputs(named(other), named(module), near).verdict is Verdict.HOLDS
    found = same_outputs(named(other), named(module), whole)
    assert found.verdict is Verdict.VIOLATED
    assert found.point is not None
    apart = (other.double()(found.point.double()) - module.double()(found.point.double())).abs().max()
    assert apart.item() == pytest.approx(found.found, rel=1e-9)


def test_small_changes_are_bounded_tightly_and_decided_on_both_sides() -> None:
    module = relu_network(3)
    changed = copy.deepcopy(module)
    with torch.no_grad():
        changed[2].bias[:] += 1e-3
    asked = box(0.2, 3)
    points = points_of(asked)
    sampled = (copy.deepcopy(module).double()(points) - copy.deepcopy(changed).double()(points)).abs().max().item()
    assert sampled > 0
    above = same_outputs(named(changed), named(module), asked, delta=2 * sampled)
    assert above.verdict is Verdict.HOLDS
    assert above.bound is not None
    assert sampled <= above.bound <= 2 * sampled
    below = same_outputs(named(changed), named(module), asked, delta=0.5 * sampled)
    assert below.verdict is Verdict.VIOLATED
    assert below.point is not None
    assert asked.contains(below.point)
    assert same_outputs(named(changed), named(module), asked).verdict is Verdict.VIOLATED


def test_what_cannot_be_compared_is_refused() -> None:
    module = named(relu_network(0))
    shallow = named(nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)))
    curved = named(nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES)))
    with pytest.raises(Unsupported, match="networks of 3 and of 2 affine layers"):
        same_outputs(module, shallow, box(0.1))
    with pytest.raises(Unsupported, match="GELU"):
        same_outputs(module, curved, box(0.1))
    with pytest.raises(ValueError, match="delta must be finite and >= 0, got -1"):
        same_outputs(module, module, box(0.1), delta=-1)
    with pytest.raises(Unsupported, match="no activation of this network was replaced"):
        swapped_within(module, box(0.1), delta=1)
    with pytest.raises(ValueError, match="delta must be finite and > 0, got 0"):
        swapped_within(module, box(0.1), delta=0)
    ball = Property.robustness(torch.full((INPUTS,), 0.5), sample=0, label=0, eps=0.1, domain=(0.0, 1.0), norm="l2")
    for refused in (lambda: same_outputs(module, module, ball), lambda: swapped_within(swapped(0), ball, delta=1)):
        with pytest.raises(Unsupported, match="L2 ball"):
            refused()


def swapped(seed: int) -> Network:
    relu = relu_network(seed)
    smooth = copy.deepcopy(relu)
    smooth[1], smooth[3] = nn.GELU(), nn.GELU()
    return named(relu, smooth.eval())


@pytest.mark.parametrize("eps", [0.05, 0.3])
def test_a_swap_is_decided_on_both_sides_of_its_greatest_difference(eps: float) -> None:
    network, asked = swapped(1), box(eps, 1)
    assert network.unswapped is not None
    points = points_of(asked)
    before, after = copy.deepcopy(network.unswapped).double(), copy.deepcopy(network.module).double()
    sampled = (before(points) - after(points)).abs().max().item()
    below = swapped_within(network, asked, delta=0.9 * sampled)
    assert below.verdict is Verdict.VIOLATED
    assert below.point is not None
    assert asked.contains(below.point)
    shown = (before(below.point.double()) - after(below.point.double())).abs().max().item()
    assert shown > 0.9 * sampled
    above = swapped_within(network, asked, delta=1.5 * sampled, seconds=30)
    assert above.verdict is Verdict.HOLDS
    assert above.bound is not None
    assert sampled <= above.bound <= 1.5 * sampled
    # The sum of GELU's distances to ReLU, times the weights behind them, bounds any difference.
    assert below.bound is not None
    assert below.bound >= sampled


@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_a_difference_at_a_point_is_enclosed_tightly(scale: float) -> None:
    network = swapped(3)
    for module in (network.module, network.unswapped):
        assert isinstance(module, nn.Sequential)
        module[4].weight.data *= scale
    point = torch.linspace(0, 1, INPUTS)

    def logits(module: nn.Module, act: Callable[[Any], Any]) -> list[Any]:
        state = [mpmath.mpf(value) for value in point.tolist()]
        for index, layer in enumerate(each for each in module.modules() if isinstance(each, nn.Linear)):
            state = [act(value) for value in state] if index else state
            rows = zip(layer.weight.double().tolist(), layer.bias.double().tolist(), strict=True)
            state = [mpmath.fdot(row, state) + bias for row, bias in rows]
        return state

    with mpmath.workdps(60):
        smooth = logits(network.module, lambda x: x * mpmath.ncdf(x))
        kinked = logits(network.module, lambda x: max(x, mpmath.mpf(0)))
        true = max(abs(a - b) for a, b in zip(smooth, kinked, strict=True))
        proven = _proven_apart(network, point, math.inf)
        assert 0 <= true - mpmath.mpf(proven.numerator) / proven.denominator < 1e-12 * scale
    assert _proven_apart(network, point, 0.0) == -1
    # Where the claim is a hair's breadth from the truth, neither side is guessed.
    spot = Property(0, 0, 0.0, point.double(), point.double())
    assert swapped_within(network, spot, delta=float(true) * (1 + 1e-6)).verdict is Verdict.HOLDS
    assert swapped_within(network, spot, delta=float(true) * (1 - 1e-9)).verdict is Verdict.VIOLATED


@pytest.mark.timeout(60)
def test_time_limits_hold_before_the_first_bound() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)]
    others = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)]
    one, other = (Network("wide", nn.Sequential(*each).eval(), (64,), 2) for each in (layers, others))
    asked = Property.robustness(torch.full((64,), 0.5), sample=0, label=0, eps=0.5, domain=(0.0, 1.0))
    found = same_outputs(one, other, asked, delta=100.0, seconds=0.01)
    assert (found.verdict, found.bound) == (Verdict.TIMEOUT, None)
    assert "before any bound" in found.reason
    assert same_outputs(one, other, asked, delta=0.01, seconds=0.01).verdict is Verdict.VIOLATED
    curved = nn.Sequential(*[nn.GELU() if isinstance(each, nn.ReLU) else each for each in layers])
    smooth = CurvedDecider(Network("curved", curved.eval(), (64,), 2)).decide(asked, seconds=0.01)
    assert (smooth.verdict, smooth.margin) == (Verdict.TIMEOUT, None)


def test_a_swap_without_time_says_what_is_proven() -> None:
    network, asked = swapped(2), box(0.5, 2)
    roomy = swapped_within(network, asked, delta=100.0)
    assert roomy.verdict is Verdict.HOLDS
    assert roomy.bound is not None
    assert roomy.found is not None
    tight = swapped_within(network, asked, delta=(roomy.bound + roomy.found) / 2, seconds=1e-9)
    assert tight.verdict is Verdict.TIMEOUT
    assert tight.bound == roomy.bound


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
    verdicts: list[Equivalence] = []
    for seed in range(12):
        for eps in (0.01, 0.2):
            asked = box(eps, seed)
            found = same_class(network, read, asked, seconds=20)
            verdicts.append(found)
            points = points_of(asked).float()
            with torch.no_grad():
                classes = network.module(points).argmax(1).numpy()
            differ = classes != read.logits(read.input.integers(points.numpy())).argmax(1)
            if found.verdict is Verdict.HOLDS:
                assert not differ.any()
                assert len(set(classes.tolist())) == 1
            if found.verdict is Verdict.VIOLATED:
                assert found.point is not None
                assert asked.contains(found.point)
                at = found.point[None]
                one = network.module(at).argmax(1).item()
                assert one != int(read.logits(read.input.integers(at.numpy())).argmax(1)[0])
    assert {Verdict.HOLDS, Verdict.VIOLATED} <= {each.verdict for each in verdicts}


def test_classes_of_a_gelu_network_are_proven_too() -> None:
    """Its float class by sound lines, the integer network's exactly."""
    from pipelines.smt.equivalence_quantized import _float_class_proven

    network = swapped(1)
    assert network.unswapped is not None
    smooth = named(network.unswapped)
    with torch.no_grad():
        label = int(smooth.module(torch.full((1, INPUTS), 0.5)).argmax())
    center = torch.full((INPUTS,), 0.5)

    def asked(label: int, eps: float) -> Property:
        return Property.robustness(center, sample=0, label=label, eps=eps, domain=(0.0, 1.0))

    assert _float_class_proven(smooth, asked(label, 1e-4), math.inf)
    assert not _float_class_proven(smooth, asked((label + 1) % CLASSES, 1e-4), math.inf)


def test_networks_of_other_sizes_are_refused(quantized: tuple[Network, Read]) -> None:
    network, read = quantized
    other = Network("n", nn.Linear(4, CLASSES), (4,), CLASSES)
    center = Property.robustness(torch.zeros(4), sample=0, label=0, eps=0.1, domain=(0.0, 1.0))
    with pytest.raises(Unsupported, match="5 integer inputs and 3 logits against another network"):
        same_class(other, read, center)
    with pytest.raises(ValueError, match="seconds must be > 0, got 0"):
        same_class(network, read, box(0.1), seconds=0)
