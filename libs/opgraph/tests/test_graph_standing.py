"""What stands in a network while it is read: modules that stay whole, attention with the samples
first, operators that torch writes with others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_networks import beside
from networks_by_hand import Written
from torch import nn
from torch.nn import functional

from lambda_gelu import LambdaGELU, Swish
from opgraph import Unsupported, read
from opgraph.modules import in_modules
from opgraph.operations import Constant, MaxPool, Whole

Call = Callable[[Any, torch.Tensor], torch.Tensor]


class Hand(nn.Module):
    """GELU by someone else, whom its values tell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.special.ndtr(x)


@torch.no_grad()
def test_a_module_that_stays_whole_is_one_layer_with_weights_of_its_own() -> None:
    torch.manual_seed(0)
    per_channel, swish = LambdaGELU(4), Swish()
    per_channel.s.copy_(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
    module = nn.Sequential(
        nn.Linear(4, 4), per_channel, nn.Linear(4, 4), swish, nn.Linear(4, 4), Hand()
    ).eval()
    inputs = torch.randn(5, 4)
    graph = in_modules(module, inputs, whole=[per_channel, swish, module[5]])
    torch.testing.assert_close(graph(inputs), module(inputs))
    called = {
        str(each.target): type(graph.get_submodule(str(each.target)))
        for each in graph.graph.nodes
        if each.op == "call_module"
    }
    assert called == {
        "0": nn.Linear,
        "1": LambdaGELU,
        "2": nn.Linear,
        "3": Swish,
        "4": nn.Linear,
        "5": nn.GELU,
    }
    before = [each.clone() for each in module.parameters()]
    for each in graph.parameters():
        each.fill_(9.0)
    assert all(map(torch.equal, module.parameters(), before))


@torch.no_grad()
def test_what_a_whole_module_writes_in_place_is_read_behind_it() -> None:
    def statement(net: Any, x: torch.Tensor) -> torch.Tensor:
        made = net.first(x)
        view = made[:, 1:]
        net.act(made)
        return net.act(torch.cat([made, view], 1) - 0.5)

    torch.manual_seed(0)
    module, inputs = (
        Written(statement, first=nn.Linear(4, 4), act=nn.LeakyReLU(0.3, inplace=True)),
        torch.randn(5, 4),
    )
    graph = in_modules(module, inputs, whole=[module.act])
    torch.testing.assert_close(graph(inputs), module(inputs))
    layers = {
        str(each.target): graph.get_submodule(str(each.target))
        for each in graph.graph.nodes
        if each.op == "call_module"
    }
    assert [name for name, each in layers.items() if isinstance(each, nn.LeakyReLU)] == [
        "act.whole",
        "act.whole_1",
    ]
    assert not any(each.inplace for each in layers.values() if isinstance(each, nn.LeakyReLU))
    assert module.act.inplace


@torch.no_grad()
def test_every_tensor_has_its_shape() -> None:
    pooled = Written(lambda net, x: net.conv(x).mean((2, 3)), conv=nn.Conv2d(2, 3, 3))
    nodes = in_modules(pooled, torch.randn(2, 2, 5, 4)).graph.nodes
    shapes = {node.name: node.meta["shape"] for node in nodes if node.op != "output"}
    assert shapes == {
        "input_1": (-1, 2, 5, 4),
        "conv": (-1, 3, 3, 2),
        "mean": (-1, 3, 1, 1),
        "flatten": (-1, 3),
    }


_SEEN = torch.ones(5, 5, dtype=torch.bool).triu(1)
_ATTENTION: list[tuple[dict[str, Any], Call]] = [
    ({}, lambda net, x: net.of(x, x, x, need_weights=False)[0]),
    ({}, lambda net, x: torch.cat(net.of(x, x, x), -1)),
    ({}, lambda net, x: net.of(x, x, x, average_attn_weights=False)[1]),
    ({}, lambda net, x: net.of(x, x, x, attn_mask=_SEEN)[0]),
    ({}, lambda net, x: net.of(x, x, x, attn_mask=_SEEN, need_weights=False, is_causal=True)[0]),
    ({}, lambda net, x: net.of(x, x, x, attn_mask=x.new_zeros(2 * len(x), 5, 5) - 9.0 * _SEEN)[0]),
    (
        {},
        lambda net, x: net.of(x, x, x, attn_mask=_SEEN, key_padding_mask=x[..., 0] > x[:, :1, 0])[
            0
        ],
    ),
    ({"kdim": 4, "vdim": 6}, lambda net, x: net.of(x[:, :2], x[..., :4], x[..., :6])[0]),
    ({"bias": False}, lambda net, x: net.of(x[:, :2], x, x)[0]),
]


@torch.no_grad()
def test_torchs_attention_keeps_the_samples_first() -> None:
    """All in one network: to read many takes long."""
    torch.manual_seed(0)
    attending = [nn.MultiheadAttention(8, 2, batch_first=True, **given) for given, _ in _ATTENTION]
    kinds = (Written(call, of=of) for (_, call), of in zip(_ATTENTION, attending, strict=True))
    module, inputs = beside(*kinds).eval(), torch.randn(3, 5, 8)
    graph = read(module, inputs)
    torch.testing.assert_close(graph(inputs, torch.float32), module(inputs))
    apart = [
        node
        for node in graph.nodes
        if not isinstance(node.operation, Constant) and node.shape[0] != -1
    ]
    # a mask for each head is given so
    assert [node.shape[0] for node in apart] == [-2] * len(apart)
    assert apart


@torch.no_grad()
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, activation=nn.GELU(), norm_first=True
        ),
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    ],
)
def test_torchs_transformers_are_read(layer: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, inputs = layer().eval(), torch.randn(3, 5, 8)
    graph = read(module, inputs)
    torch.testing.assert_close(graph(inputs, torch.float32), module(inputs), rtol=1e-5, atol=1e-5)
    assert {node.shape[0] for node in graph.nodes if not isinstance(node.operation, Constant)} == {
        -1
    }


@torch.no_grad()
def test_attention_behind_its_positions_and_with_further_keys() -> None:
    def positions_first(net: Any, x: torch.Tensor) -> torch.Tensor:
        given = x.transpose(0, 1)
        return net.further(x, x, x)[0] + net.of(given, given, given)[0].transpose(0, 1)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    further = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    module, inputs = (
        Written(positions_first, of=nn.MultiheadAttention(8, 2), further=further),
        torch.randn(3, 5, 8),
    )
    torch.testing.assert_close(read(module, inputs)(inputs, torch.float32), module.eval()(inputs))


_LAYERS = [
    nn.PixelShuffle(2),
    nn.ChannelShuffle(2),
    nn.GLU(1),
    nn.Unfold(2),
    nn.Threshold(0.1, 0.0),
    nn.SELU(),
    nn.CELU(2.0),
    nn.InstanceNorm2d(4, affine=True),
    nn.InstanceNorm2d(4, track_running_stats=True),
    nn.ReflectionPad2d((1, 2, 0, 1)),
    nn.ReplicationPad2d(1),
    nn.CircularPad2d(2),
    nn.AdaptiveMaxPool2d((2, 3)),
    nn.Conv2d(4, 2, (2, 4), padding="same", dilation=(1, 3)),
    nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect"),
    nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 2, 3)),
    nn.PReLU(4),
    nn.ELU(2.0),
    nn.LeakyReLU(0.3),
    nn.AvgPool2d(2, divisor_override=3),
    nn.AdaptiveAvgPool2d((4, 5)),
]


@torch.no_grad()
def test_torchs_layers_are_read() -> None:
    torch.manual_seed(0)
    module, inputs = beside(*_LAYERS).eval(), torch.randn(3, 4, 6, 6)
    graph, sizes = (
        in_modules(module, inputs),
        [each(inputs).flatten(1).shape[1] for each in _LAYERS],
    )
    pairs = zip(graph(inputs).split(sizes, 1), module(inputs).split(sizes, 1), strict=True)
    close = [torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6) for ours, theirs in pairs]
    assert [
        type(each).__name__ for each, good in zip(_LAYERS, close, strict=True) if not good
    ] == []


@torch.no_grad()
def test_a_recurrent_network_is_read_step_by_step() -> None:
    torch.manual_seed(0)
    rnn = nn.GRU(4, 3, batch_first=True)
    module, inputs = (
        Written(lambda net, x: net.rnn(x)[0].flatten(1), rnn=rnn).eval(),
        torch.randn(3, 4, 4),
    )
    torch.testing.assert_close(read(module, inputs)(inputs, torch.float32), module(inputs))


def test_a_greatest_of_windows_of_different_sizes_is_refused() -> None:
    assert any(
        isinstance(each.operation, MaxPool)
        for each in read(nn.AdaptiveMaxPool1d(2), torch.randn(2, 3, 6)).nodes
    )
    with pytest.raises(
        Unsupported, match=r"makes \[4\] of \(6,\) places by windows of different sizes"
    ):
        read(nn.AdaptiveMaxPool1d(4), torch.randn(2, 3, 6))


def test_a_function_that_has_no_layer_of_its_own_row_stays_whole() -> None:
    graph = read(Written(lambda _, x: functional.selu(x)), torch.randn(2, 3))
    assert [type(each.operation) for each in graph.nodes[1:]] == [Whole]
