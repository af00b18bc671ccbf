"""Networks as fx modules of torch's layers: the same function, in one vocabulary."""

from __future__ import annotations

import copy
import math
import operator
from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch
from graph_networks import KINDS, HandWritten, made
from networks_by_hand import Written
from torch import fx, nn
from torch.nn import functional

from opgraph import Unsupported
from opgraph.inputs import Inputs, mapped
from opgraph.modules import in_modules

_QUICK = ("hand-written", "mixer", "resnet", "vit")
_EVERY = [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in KINDS]
_FUNCTIONS = {
    operator.add,
    operator.getitem,
    operator.mul,
    torch.arange,
    torch.reshape,
    functional.scaled_dot_product_attention,
}
# What is said of each in `KINDS`, as layers of torch.
_LAYERS = {
    "gelu": nn.GELU,
    "gelu-tanh": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "hard-swish": nn.Hardswish,
    "hard-sigmoid": nn.Hardsigmoid,
    "LayerNorm": nn.LayerNorm,
    "BatchNorm": nn.BatchNorm2d,
    "MaxPool": nn.MaxPool2d,
    "AveragePool": nn.AvgPool2d,
    "Linear": nn.Linear,
}


def in_double(inputs: Inputs) -> Inputs:
    """Real inputs in float64."""
    return mapped(inputs, lambda each: each.double() if each.is_floating_point() else each)


def layers(module: fx.GraphModule) -> Counter[type[nn.Module]]:
    """How often each type of layer is called."""
    called = [
        module.get_submodule(str(node.target))
        for node in module.graph.nodes
        if node.op == "call_module"
    ]
    return Counter(type(each) for each in called)


@torch.no_grad()
@pytest.mark.parametrize("name", _EVERY)
def test_each_kind_of_network_is_the_same_in_torchs_layers(name: str) -> None:
    module, inputs = made(name)
    graph = in_modules(module, inputs)
    for batch in (1, 3):
        some = mapped(inputs, lambda each, size=batch: each[torch.arange(size) % 2])  # type: ignore[misc]
        torch.testing.assert_close(graph(some), module(some), rtol=1e-4, atol=1e-5)
    exact = copy.deepcopy(module).double()(in_double(inputs))
    torch.testing.assert_close(
        copy.deepcopy(graph).double()(in_double(inputs)), exact, rtol=1e-6, atol=1e-7
    )
    found = layers(graph)
    expected = Counter[type[nn.Module]]()
    for key, count in KINDS[name].found.items():
        if key in _LAYERS:
            expected[_LAYERS[key]] += count
    assert {kind: found[kind] for kind in expected} == expected
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert set(called) <= _FUNCTIONS
    written = called.count(functional.scaled_dot_product_attention)
    assert written <= KINDS[name].attentions
    if name in ("vit", "bert", "distilbert"):
        assert written == KINDS[name].attentions


def test_layers_keep_their_paths_and_the_network_its_weights() -> None:
    module, inputs = made("mixer")
    before = {name: each.clone() for name, each in module.state_dict().items()}
    graph = in_modules(module, inputs)
    assert torch.equal(graph.get_submodule("block.tokens.0").weight, module.block.tokens[0].weight)
    with torch.no_grad():
        for each in graph.parameters():
            each.zero_()
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


class Masked(nn.Module):
    """Attention with a mask of one kind, of positions made from one input."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(4, 12), nn.Linear(12, 3), kind
        self.register_buffer("seen", torch.tensor([[True, False, True]] * 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).reshape(-1, 3, 4)
        scores = h @ h.transpose(1, 2) / 2
        if self.kind == "before the scale":
            scores = (h @ h.transpose(1, 2) + self.seen.float()) / 2
        if self.kind == "inverted":
            scores = scores.masked_fill(self.seen, -math.inf)
        if self.kind in ("causal", "mask"):
            mask = self.seen if self.kind == "mask" else None
            mixed = functional.scaled_dot_product_attention(
                h, h, h, attn_mask=mask, is_causal=self.kind == "causal"
            )
            return self.last(mixed.flatten(1))  # type: ignore[no-any-return]
        return self.last((scores.softmax(-1) @ h).flatten(1))  # type: ignore[no-any-return]


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "calls"),
    [("none", 1), ("causal", 1), ("mask", 1), ("inverted", 0), ("before the scale", 0)],
)
def test_attention_is_torchs_where_it_is_the_same(kind: str, calls: int) -> None:
    torch.manual_seed(0)
    module, inputs = Masked(kind).eval(), torch.randn(5, 4)
    graph = in_modules(module, inputs)
    torch.testing.assert_close(graph(inputs), module(inputs))
    found = [
        node for node in graph.graph.nodes if node.target is functional.scaled_dot_product_attention
    ]
    assert len(found) == calls
    if calls:
        assert found[0].kwargs["is_causal"] == (kind == "causal")


def test_what_is_rounded_is_refused_where_it_must_be_exact() -> None:
    rounded = HandWritten(lambda x: 0.5 * x * (1 + torch.erf(x * 0.70710677)))
    assert layers(in_modules(rounded, torch.randn(2, 6)))[nn.GELU] == 1
    with pytest.raises(Unsupported, match="gelu is computed from numbers that are rounded"):
        in_modules(rounded, torch.randn(2, 6), exact=True)
    in_modules(HandWritten(functional.gelu), torch.randn(2, 6), exact=True)


@torch.no_grad()
def test_what_is_computed_of_constants_is_held_in_float32() -> None:
    """As Llama's rotary angles are, which float64 would round otherwise."""

    def rotated(net: Any, x: torch.Tensor) -> torch.Tensor:
        angles = net.frequencies * torch.arange(1, 3)[:, None]
        return (net.normed(x)[:, None] * angles.cos()).flatten(1)  # type: ignore[no-any-return]

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    module = Written(rotated, normed=normed, frequencies=1 / 10000 ** (torch.arange(4) / 4))
    inputs = torch.randn(3, 6)
    found = in_modules(module, inputs)
    torch.testing.assert_close(found(inputs), module(inputs))
    held = [each for each in [*found.parameters(), *found.buffers()] if each.is_floating_point()]
    assert {each.dtype for each in held} == {torch.float32}
    with pytest.raises(
        Unsupported, match=r"computed from numbers that are rounded|computed from others"
    ):
        in_modules(module, inputs, exact=True)


def test_modules_may_have_names_of_python_s_and_of_torch_fx_s_own() -> None:
    names = ("in", "class", "graph", "meta", "self")
    layers = {
        name: module
        for each in names
        for name, module in ((each, nn.Linear(4, 4)), (f"{each}_", nn.ReLU()))
    }
    module, inputs = nn.Sequential(OrderedDict(layers)), torch.randn(3, 4)
    for each in (module, nn.Sequential(module)):
        torch.testing.assert_close(in_modules(each, inputs)(inputs), each(inputs))


def test_a_function_of_a_module_with_layers_has_a_name_of_its_own() -> None:
    parts = {"inner": nn.Linear(4, 4), "matrix": nn.Parameter(torch.randn(4, 4))}
    block = Written(
        lambda net, x: functional.relu(functional.linear(net.inner(x), net.matrix)), **parts
    )
    graph = in_modules(nn.Sequential(block), torch.randn(2, 4))
    called = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert called == ["0.inner", "0.linear", "0.relu"]
