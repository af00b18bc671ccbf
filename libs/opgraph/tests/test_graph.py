"""The graph against the networks that it is read from, and its patterns against what they must
not take.
"""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from files_of_mlps import model_of
from graph_networks import KINDS, HandWritten, beside, made
from graph_networks import LayerNorm as WrittenLayerNorm
from graph_networks import RMSNorm as WrittenRMSNorm
from networks_by_hand import Written
from torch import nn
from torch.nn import functional

from lambda_gelu.activations import LambdaGELU
from opgraph import Graph, Unsupported, read, read_onnx
from opgraph.deployment import export_onnx
from opgraph.inputs import Inputs, mapped
from opgraph.onnx_file import graph_of_model
from opgraph.operations import LayerNorm, Operation, Pointwise, RMSNorm
from opgraph.patterns import attentions

Function = Callable[[torch.Tensor], torch.Tensor]
_QUICK = ("hand-written", "mixer", "unet", "resnet")
_EVERY = [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in KINDS]


def counted(graph: Graph) -> Counter[str]:
    """How many of each operation, activations by their rows."""
    operations = [node.operation for node in graph.nodes]
    return Counter(
        each.traits.name if isinstance(each, Pointwise) else type(each).__name__
        for each in operations
    )


def resized(inputs: Inputs, batch: int) -> Inputs:
    """So many samples."""
    return mapped(inputs, lambda each: each[torch.arange(batch) % 2])


def only(graph: Graph, kind: type[Operation]) -> list[Operation]:
    """The operations of one kind."""
    return [node.operation for node in graph.nodes if isinstance(node.operation, kind)]


def written_out(act: Function) -> Pointwise:
    """The one activation of a network that has `act` between two layers."""
    torch.manual_seed(0)
    (found,) = only(read(HandWritten(act), torch.randn(2, 6)), Pointwise)
    assert isinstance(found, Pointwise)
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", _EVERY)
def test_reads_each_kind_of_network_with_its_patterns(name: str) -> None:
    module, inputs = made(name)
    graph = read(module, inputs)
    assert {key: counted(graph)[key] for key in KINDS[name].found} == KINDS[name].found
    assert len(attentions(graph)) == KINDS[name].attentions
    for batch in (1, 5):
        some = resized(inputs, batch)
        wanted = module(some)
        torch.testing.assert_close(graph(some, torch.float32), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(graph(some).float(), wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["vit", "bert", "gpt2", "llama", "convnext", "efficientnet", "unet"]
)
@pytest.mark.slow
def test_reads_the_file_of_each_kind_with_its_patterns(name: str, tmp_path: Path) -> None:
    module, inputs = made(name)
    path = tmp_path / "network.onnx"
    export_onnx(module, (), path, example=inputs)
    graph = read_onnx(path, inputs)
    # the exporter folds it
    expected = {key: count for key, count in KINDS[name].found.items() if key != "BatchNorm"}
    assert {key: counted(graph)[key] for key in expected} == expected
    assert len(attentions(graph)) == KINDS[name].attentions
    for batch in (1, 5):
        some = resized(inputs, batch)
        torch.testing.assert_close(graph(some).float(), module(some), rtol=1e-4, atol=1e-5)


_ROOT = math.sqrt(2 / math.pi)


_FORMULAS: list[tuple[Function, str]] = [
    (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu"),
    (lambda x: 0.5 * x + 0.5 * x * torch.erf(x * 0.70710677), "gelu"),
    (lambda x: 0.5 * x * (1 + torch.tanh(_ROOT * (x + 0.044715 * x**3))), "gelu-tanh"),
    (lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))), "gelu-tanh"),
    (lambda x: x * torch.sigmoid(x), "silu"),
    (lambda x: x / (1 + torch.exp(-x)), "silu"),
    (lambda x: x * torch.sigmoid(1.702 * x), "quick-gelu"),
    (lambda x: x * functional.relu6(x + 3) / 6, "hard-swish"),
    (lambda x: x * (x / 6 + 0.5).clamp(0, 1), "hard-swish"),
    (lambda x: (x + 3).clamp(0, 6) / 6, "hard-sigmoid"),
    (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), "mish"),
]
_NEAR_FORMULAS: list[Function] = [
    lambda x: 0.5 * x * (1 + torch.tanh(_ROOT * (x + 0.0447 * x**3))),
    lambda x: 0.501 * x * (1.0 + torch.erf(x / math.sqrt(2.0))),
    lambda x: x * functional.relu6(x + 3) / 6.001,
    lambda x: x * (torch.sigmoid(x) + 1e-5),
    lambda x: x * 0.5 * (1.0 + torch.erf(x.roll(1, -1) / math.sqrt(2.0))),
]


def test_formulas_are_known_however_they_are_written() -> None:
    torch.manual_seed(0)
    graph = read(beside(*(HandWritten(act) for act, _ in _FORMULAS)), torch.randn(2, 6))
    found = [each for each in only(graph, Pointwise) if isinstance(each, Pointwise)]
    assert [each.traits.name for each in found] == [name for _, name in _FORMULAS]
    assert all(each.hardness is None and each.deviation < 1e-7 for each in found)


def test_near_formulas_are_not_taken_for_them() -> None:
    found = counted(read(beside(*map(HandWritten, _NEAR_FORMULAS)), torch.randn(2, 6)))
    assert not {"gelu", "gelu-tanh", "silu", "hard-swish"} & set(found)


def test_a_kink_far_away_is_not_lost() -> None:
    # By values on any usual grid this is GELU.
    far = HandWritten(lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))) + torch.relu(x - 2e4))
    graph = read(far, torch.randn(2, 6))
    assert counted(graph)["relu"] == counted(graph)["gelu"] == 1


def test_the_hardness_of_a_formula_and_of_lambda_gelu() -> None:
    silu = written_out(lambda x: x * torch.sigmoid(3 * x))
    assert silu.traits.name == "silu"
    assert silu.hardness is not None
    assert float(silu.hardness) == pytest.approx(3, rel=1e-12)
    hard = LambdaGELU(channels=9, dimension=-1)
    nn.init.normal_(hard.s, std=0.1)
    found = written_out(hard)
    assert found.traits.name == "gelu"
    torch.testing.assert_close(found.hardness.float(), hard.hardness.detach(), rtol=1e-6, atol=0)


def test_norms_written_out_keep_eps_and_axes() -> None:
    norms = (
        WrittenLayerNorm((5,), -1, 1e-3),
        WrittenLayerNorm((4, 1), 1, 1e-3),
        WrittenRMSNorm(5, 1e-4),
    )
    graph = read(beside(*norms), torch.randn(2, 4, 5))
    found = [each for each in only(graph, LayerNorm) if isinstance(each, LayerNorm)]
    assert [(each.axes, each.eps) for each in found] == [((2,), 1e-3), ((1,), 1e-3)]
    assert all(each.weight is not None and each.bias is not None for each in found)
    assert [(each.axes, each.eps) for each in only(graph, RMSNorm)] == [((2,), 1e-4)]  # type: ignore[attr-defined]


class _NormOfSums(nn.Module):
    """A LayerNorm as flax writes it: the variance from sums, and the weight times the inverse
    root.
    """

    def __init__(self, size: int, kind: str = "") -> None:
        super().__init__()
        self.kind, self.size = kind, size
        self.weight, self.bias = (
            nn.Parameter(torch.rand(size, 1) + 0.5),
            nn.Parameter(torch.randn(size, 1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def mean(values: torch.Tensor, axis: int = 1) -> torch.Tensor:
            total = values.sum(axis)
            return (
                total * (1 / self.size)
                if self.kind == "share"
                else total / (5 if self.kind == "count" else self.size)
            )

        square, middle = mean(x * x, 2 if self.kind == "axis" else 1), mean(x)
        spread = square - (square if self.kind == "square" else middle) ** 2
        if self.kind != "not held":
            spread = torch.maximum(spread, torch.tensor(1.0 if self.kind == "least" else 0.0))
        scale = self.weight * torch.rsqrt(spread.reshape(-1, 1, self.size) + 1e-3)
        return (
            x - middle.reshape((-1, self.size, 1) if self.kind == "place" else (-1, 1, self.size))
        ) * scale + self.bias


@pytest.mark.parametrize(("kind", "size"), [("", 6), ("not held", 6), ("share", 8)])
def test_a_layer_norm_of_sums_is_one(kind: str, size: int) -> None:
    module, x = _NormOfSums(size, kind), torch.randn(2, size, size)
    (norm,) = only(read(module, x), LayerNorm)
    assert (norm.axes, norm.eps) == ((1,), 1e-3)
    wanted = functional.layer_norm(x.mT, (size,), module.weight[:, 0], module.bias[:, 0], 1e-3).mT
    torch.testing.assert_close(norm(x.double()).float(), wanted, rtol=1e-5, atol=1e-5)


def _centered(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


# Each is a norm but for one thing.
_OTHER_NORMS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "eps outside": lambda _, x: (
        _centered(x) / (torch.sqrt((_centered(x) ** 2).mean(-1, keepdim=True)) + 1e-3)
    ),
    "other axis": lambda _, x: (
        _centered(x) / torch.sqrt((_centered(x) ** 2).mean(1, keepdim=True) + 1e-3)
    ),
    "of another value": lambda _, x: (
        _centered(x) / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-3)
    ),
}


def test_what_is_nearly_a_norm_is_none() -> None:
    kinds = ("share", "count", "axis", "square", "least", "place")
    others = (Written(_OTHER_NORMS[kind]) for kind in ("eps outside", "of another value"))
    graph = read(beside(*(_NormOfSums(6, kind) for kind in kinds), *others), torch.randn(2, 6, 6))
    assert [
        node.name for node in graph.nodes if isinstance(node.operation, LayerNorm | RMSNorm)
    ] == []


def test_what_is_divided_over_another_axis_is_an_rms_norm_of_it() -> None:
    graph = read(Written(_OTHER_NORMS["other axis"]), torch.randn(2, 4, 5))
    (norm,) = only(graph, RMSNorm)
    assert norm.axes == (1,)
    assert counted(graph)["Reduction"] == 1


def test_what_is_written_in_place_shows_in_all_views() -> None:
    def in_place(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 1:3] += 1
        y[:, 0].relu_()
        first = y.view(-1, 2, 3)
        y.mul_(3)
        return first.flatten(1) + functional.dropout(x, 0.5, net.training)

    module = Written(in_place).train()
    inputs = torch.randn(4, 6)
    torch.testing.assert_close(
        read(module, inputs)(inputs).float(), copy.deepcopy(module).eval()(inputs)
    )
    assert module.training


_DOES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "half": lambda own, x: own.layer(x).to(torch.float16).float(),
    "fft": lambda own, x: torch.fft.fft(own.layer(x)).real,
    "values": lambda own, x: own.layer(x) if bool(x.sum() > 0) else x,
    "statistics": lambda own, x: own.norm(x),
    "dropout": lambda own, x: functional.dropout(x, 0.5),
    "state": lambda own, x: x + own.calls.add_(1),
    "size": lambda own, x: own.layer(x)[: len(x) - 1],
    "exporting": lambda own, x: x if torch.compiler.is_exporting() else 2 * x,
    "order": lambda own, x: torch.linalg.vector_norm(x, torch.inf, -1),
    "noise": lambda own, x: x + torch.randn_like(x),
    "chance": lambda own, x: x * random.random(),
}


class _Refused(nn.Module):
    """Does one thing that no graph has."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer, self.norm = (
            kind,
            nn.Linear(6, 6),
            nn.BatchNorm1d(6, track_running_stats=False),
        )
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _DOES[self.kind](self, x)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("half", "float16"),
        ("fft", "no reader"),
        ("values", "must not choose by the values"),
        ("statistics", "normalises by its batch"),
        ("dropout", "training=self.training"),
        ("state", "changes 'calls'"),
        ("size", "multiple of the batch|any size"),
        ("exporting", "differs from the network"),
        ("order", "the norm of order inf; only 1 and 2 are read"),
        ("noise", r"\(randn_like\): is random in evaluation mode"),
        (
            "chance",
            (
                "two runs of the network on one batch differ by .* is random, or changes its own"
                " state; remove"
            ),
        ),
    ],
)
def test_refusals_name_the_cure(kind: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        read(_Refused(kind), torch.randn(3, 6))


def test_a_refusal_names_the_path() -> None:
    strange = Written(lambda _, x: torch.special.bessel_j0(x))
    with pytest.raises(Unsupported, match=r"^0\.act \(special_bessel_j0\)"):
        read(nn.Sequential(HandWritten(strange)), torch.randn(2, 6))


def test_two_named_inputs_keep_their_places() -> None:
    difference = Written(lambda _, batch: batch["first"] - 2 * batch["second"])
    example = {"second": torch.randn(2, 3), "first": torch.randn(2, 3)}
    graph = read(difference, example)
    assert graph.inputs == ("second", "first")
    torch.testing.assert_close(graph(example).float(), difference(example))


def test_gradients_reach_the_input() -> None:
    module, inputs = made("hand-written")
    given = inputs.double().requires_grad_()
    (ours,) = torch.autograd.grad(read(module, inputs)(given).sum(), given)
    (theirs,) = torch.autograd.grad(copy.deepcopy(module).double()(given).sum(), given)
    torch.testing.assert_close(ours, theirs)


def test_in_float64_less_rounding_is_explained() -> None:
    hidden = Written(lambda _, x: x if torch.compiler.is_exporting() else x * (1 + 1e-7))
    with pytest.raises(Unsupported, match="differs from the network"):
        read(hidden, torch.randn(2, 6, dtype=torch.float64))


def test_an_rms_norm_in_float64_needs_its_eps() -> None:
    with pytest.raises(Unsupported, match="its eps is that of the type"):
        read(nn.Sequential(nn.RMSNorm(6)).double(), torch.randn(2, 6, dtype=torch.float64))


def test_onnx_softmax_of_old_opsets_is_over_all_axes_behind_the_given_one() -> None:
    x = torch.randn(2, 2, 3)
    for axis, wanted in ((1, x.flatten(1).softmax(1).reshape(x.shape)), (2, x.softmax(2))):
        node = onnx.helper.make_node("Softmax", ["x"], ["y"], axis=axis)
        graph = graph_of_model(model_of([node], {}, {"x": ["n", 2, 3]}, {"y": None}, opset=12))
        torch.testing.assert_close(graph(x, torch.float32), wanted)
    over_batch = onnx.helper.make_node("Softmax", ["x"], ["y"], axis=0)
    with pytest.raises(
        Unsupported, match="in opset 12 it is over the batch too: convert the file to opset 13"
    ):
        graph_of_model(model_of([over_batch], {}, {"x": ["n", 2, 3]}, {"y": None}, opset=12))


@torch.no_grad()
def test_vectors_are_normalised_by_their_norm(tmp_path: Path) -> None:
    unit = beside(*(partial(functional.normalize, p=order, dim=-1) for order in (1, 2)))
    inputs = torch.randn(3, 4, 5)
    torch.testing.assert_close(read(unit, inputs)(inputs, torch.float32), unit(inputs))
    path = tmp_path / "network.onnx"
    export_onnx(unit, (), path, example=inputs)
    torch.testing.assert_close(read_onnx(path, inputs)(inputs).float(), unit(inputs))
