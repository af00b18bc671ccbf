"""Networks as graphs of layers, and where quantizers are placed in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from brevitas.nn import QuantIdentity
from torch import fx, nn
from torch.nn import functional
from written import Written

from evalsuite import Unsupported
from pipelines.quantize.calibration import calibrate
from pipelines.quantize.placement import Bits, Scheme, place
from pipelines.quantize.tracing import Add, Reshape, trace


def _functions(net: Written, x: torch.Tensor) -> torch.Tensor:
    x = functional.gelu(net.first(x))
    x = torch.relu(x + net.second(x))
    x = functional.dropout(x, training=net.training)
    return net.head(torch.flatten(functional.relu(x).mean((2, 3), keepdim=True), 1))


def functions() -> nn.Module:
    """Everything that becomes a layer where `forward` calls it as a function."""
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    return Written(_functions, first=first, second=second, head=nn.Linear(4, 10))


def _residual(net: Written, x: torch.Tensor) -> torch.Tensor:
    x = net.activation(x + net.norm(net.inner(x)))
    x = net.project(x) + net.other(x)
    return net.head(x.mean((2, 3)))


def residual(forward: Callable[[Any, torch.Tensor], torch.Tensor] = _residual) -> nn.Module:
    """Two residual blocks, the second with a projection; the sum is read twice."""
    return Written(
        forward,
        inner=nn.Conv2d(1, 1, 3, padding=1),
        norm=nn.BatchNorm2d(1),
        project=nn.Conv2d(1, 2, 1),
        other=nn.Conv2d(1, 2, 3, padding=1),
        activation=nn.ReLU(),
        head=nn.Linear(2, 10),
    )


def layers(graph: fx.GraphModule) -> list[type[nn.Module]]:
    return [
        type(graph.get_submodule(node.target))
        for node in graph.graph.nodes
        if node.op == "call_module"
    ]


def quantizers(quantized: fx.GraphModule) -> dict[str, int]:
    """The bits of each quantizer, in the graph's order."""
    found = {}
    for node in quantized.graph.nodes:
        layer = quantized.get_submodule(node.target) if node.op == "call_module" else None
        if isinstance(layer, QuantIdentity):
            found[node.target] = int(layer.act_quant.bit_width())
    return found


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (
            functions,
            [
                nn.Conv2d,
                nn.GELU,
                nn.Conv2d,
                Add,
                nn.ReLU,
                nn.ReLU,
                nn.AdaptiveAvgPool2d,
                Reshape,
                nn.Linear,
            ],
        ),
        (
            residual,  # whose norm is folded
            [
                nn.Conv2d,
                Add,
                nn.ReLU,
                nn.Conv2d,
                nn.Conv2d,
                Add,
                nn.AdaptiveAvgPool2d,
                Reshape,
                nn.Linear,
            ],
        ),
    ],
)
def test_the_graph_computes_what_the_network_does_in_layers(
    make: Callable[[], nn.Module], wanted: list[type[nn.Module]]
) -> None:
    torch.manual_seed(0)
    module = make()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.1, 2)
    graph = traced_alike(module, (1, 8, 8))
    assert layers(graph) == wanted
    assert all(node.op in ("placeholder", "call_module", "output") for node in graph.graph.nodes)


def test_norms_are_folded_only_where_nothing_else_reads_what_they_norm() -> None:
    def sharing(net: Written, x: torch.Tensor) -> torch.Tensor:
        convolved = net.inner(x)
        return net.head(net.other(convolved + net.norm(convolved)).mean((2, 3)))

    assert nn.BatchNorm2d in layers(traced_alike(residual(sharing), (1, 8, 8)))


def test_a_layer_that_is_called_twice_becomes_two() -> None:
    activation = nn.GELU()
    module = nn.Sequential(nn.Linear(4, 4), activation, nn.Linear(4, 4), activation)
    names = [node.target for node in trace(module, (4,)).graph.nodes if node.op == "call_module"]
    assert len(set(names)) == 4


def test_the_given_network_stays_as_it_is() -> None:
    module = residual().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    trace(module, (1, 8, 8))
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def small(
    join: Callable[[Any, torch.Tensor], torch.Tensor], features: int = 6, **more: nn.Module
) -> nn.Module:
    """Convolutions and a linear layer, joined by a function."""
    first, second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
    return Written(
        lambda net, x: net.head(join(net, functional.relu(net.first(x)))),
        first=first,
        second=second,
        head=nn.Linear(features, 4),
        **more,
    )


def traced_alike(module: nn.Module, shape: tuple[int, ...]) -> fx.GraphModule:
    """The graph, which computes what the network does on a batch."""
    graph, inputs = trace(module.eval(), shape), torch.randn(3, *shape)
    torch.testing.assert_close(graph(inputs.clone()), module(inputs.clone()), rtol=1e-4, atol=1e-5)
    return graph


def added(module: Written, x: torch.Tensor) -> torch.Tensor:
    x.add_(module.second(x))
    return x.mean((2, 3))


def rectified(module: Written, x: torch.Tensor) -> torch.Tensor:
    convolved = module.second(x)
    return (functional.relu(convolved, inplace=True) + convolved).mean((2, 3))


def scaled(module: Written, x: torch.Tensor) -> torch.Tensor:
    convolved = module.second(x)
    convolved.mul_(2)
    return convolved.mean((2, 3))


def aliased(_: Written, x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(1)  # a view
    x.mul_(0.5)
    return flat


def as_a_statement(net: Written, x: torch.Tensor) -> torch.Tensor:
    x = net.second(x)
    net.activation(x)
    return x.mean((2, 3))


def of_sizes(module: Written, x: torch.Tensor) -> torch.Tensor:
    both = torch.cat([x, module.second(x)], 1)
    return both.view(-1, x.size(1) + x.size(1), 36)[:, :6].mean(2)


FLAT, POOLED, NOT_POOLED = (
    {Reshape: 1, nn.ReLU: 1},
    {nn.AdaptiveAvgPool2d: 1},
    {nn.AdaptiveAvgPool2d: 0},
)


@pytest.mark.parametrize(
    ("join", "features", "counts"),
    [
        (lambda _, x: x.view(x.size(0), -1), 216, FLAT),
        (lambda _, x: x.reshape(x.shape[0], -1), 216, FLAT),
        (lambda _, x: torch.flatten(input=x, start_dim=1), 216, FLAT),
        (lambda _, x: torch.reshape(x, (-1, 216)), 216, FLAT),
        (lambda _, x: x.mean((2, 3)), 6, POOLED),
        (lambda _, x: x.mean(dim=[-1, -2]), 6, POOLED),
        (lambda _, x: torch.mean(x, dim=(2, 3), keepdim=False), 6, POOLED),
        # Six channels of six by six pixels: the shape alone does not tell.
        (lambda _, x: x.mean((1, 2)), 6, NOT_POOLED),
        (lambda _, x: x.mean((1, 3)), 6, NOT_POOLED),
        # What is changed in place, or under another name, is read as it is then.
        (added, 6, {Add: 1}),
        (rectified, 6, {}),
        (scaled, 6, {}),
        (aliased, 216, {}),
        (as_a_statement, 6, {nn.ReLU: 2}),
        (of_sizes, 6, {Add: 0}),
    ],
)
def test_every_way_to_write_a_layer(
    join: Callable[[Any, torch.Tensor], torch.Tensor],
    features: int,
    counts: dict[type[nn.Module], int],
) -> None:
    graph = traced_alike(small(join, features, activation=nn.ReLU(inplace=True)), (2, 6, 6))
    assert {kind: layers(graph).count(kind) for kind in counts} == counts
    assert not any(getattr(each, "inplace", False) for each in graph.modules())
    if counts is FLAT:
        assert all(
            node.op in ("placeholder", "call_module", "output") for node in graph.graph.nodes
        )


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (
            lambda: small(lambda _, x: functional.dropout(x).mean((2, 3))),
            (2, 6, 6),
            "dropout in evaluation mode, so that it is no function of its input",
        ),
        # Of one sample, on which the network is run, a norm of vectors has no statistics.
        *(
            (
                lambda layers=layers: nn.Sequential(*layers),
                shape,
                "^1 norms by the statistics of its batch",
            )
            for layers, shape in (
                ((nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), (2, 6, 6)),
                ((nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False)), (6,)),
            )
        ),
        (
            lambda: Written(lambda _, x: x if x.sum() > 0 else -x),
            (4,),
            r"torch\.export cannot capture Written",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    make: Callable[[], nn.Module], shape: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        trace(make().eval(), shape)


def test_constants_are_no_residuals() -> None:
    positions = Written(
        lambda net, x: net.head((net.embed(x) + net.positions.unsqueeze(0)).mean(1)),
        embed=nn.Linear(6, 5),
        head=nn.Linear(5, 4),
        positions=nn.Parameter(torch.randn(3, 5)),
    )
    assert Add not in layers(traced_alike(positions, (3, 6)))


def test_no_name_of_a_layer_is_taken_for_a_quantizer() -> None:
    def named(net: Written, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(net.input(x))
        return net.quantize_head(net.head(x) + net.value_head(x))

    wide = {"input": nn.Linear(4, 8), "head": nn.Linear(8, 8), "value_head": nn.Linear(8, 8)}
    module, inputs = (
        Written(named, **wide, quantize_head=nn.Linear(8, 3)).eval(),
        torch.randn(60, 4),
    )
    quantized = place(trace(module, (4,)), Scheme(Bits(8, 8), before_activations=True))
    assert list(quantizers(quantized)) == [
        "quantize_input",
        "quantize_layer_input",
        "quantize_relu",
        "quantize_head",
        "quantize_layer_value_head",
        "quantize_add",
        "quantize_layer_quantize_head",
    ]
    calibrate(quantized, inputs)
    with torch.no_grad():
        assert (quantized(inputs) - module(inputs)).abs().max() < 0.05


def test_logits_behind_flattening_have_eight_bits() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    quantized = place(trace(module.eval(), (2, 6, 6)), Scheme(Bits(4, 4)))
    assert quantizers(quantized) == {
        "quantize_input": 4,
        "quantize_layer_1": 4,
        "quantize_layer_2": 4,
        "quantize_layer_3": 8,
    }


def test_a_tensor_has_one_grid_however_often_it_is_read() -> None:
    quantized = place(trace(residual(), (1, 8, 8)), Scheme(Bits(8, 4)))
    assert quantizers(quantized) == {
        "quantize_input": 4,
        "quantize_inner": 4,  # both terms of a sum are on grids
        "quantize_activation": 4,
        "quantize_project": 4,
        "quantize_other": 4,
        "quantize_add_1": 4,
        "quantize_mean": 4,
        "quantize_head": 8,  # the logits
    }


def test_placement_adds_the_inputs_of_activations() -> None:
    traced = trace(nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)), (4,))
    post = quantizers(place(traced, Scheme(Bits(8, 8))))
    both = quantizers(place(traced, Scheme(Bits(8, 8), before_activations=True)))
    assert list(both) == [
        "quantize_input",
        "quantize_layer_0",
        "quantize_layer_1",
        "quantize_layer_2",
    ]
    assert set(both) - set(post) == {"quantize_layer_0"}


def test_a_layer_alone_and_a_layer_spared() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    traced = trace(module, (4,))
    alone = place(traced, Scheme(None, layers={"layer_2": Bits(4, 5)}))
    assert quantizers(alone) == {"quantize_layer_1": 5}
    spared = place(traced, Scheme(Bits(4, 4), layers={"layer_2": None}))
    assert list(quantizers(spared)) == ["quantize_input", "quantize_layer_3", "quantize_layer_4"]
    assert isinstance(spared.get_submodule("layer_2"), nn.Linear)
    wide = place(traced, Scheme(Bits(4, 4), layers={"layer_2": Bits(8, 8)}))
    assert quantizers(wide)["quantize_layer_1"] == 8


def test_what_has_no_integer_form_is_an_island_between_grids() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.CELU(), nn.Linear(6, 3)).eval()
    quantized = place(trace(module, (4,)), Scheme(Bits(8, 8)))
    # The island's two layers pass floats to one another.
    assert list(quantizers(quantized)) == [
        "quantize_input",
        "quantize_layer_0",
        "quantize_layer_2",
        "quantize_layer_3",
    ]
    inputs = torch.rand(50, 4)
    calibrate(quantized, inputs)
    with torch.no_grad():
        assert (quantized(inputs) - module(inputs)).abs().max() < 0.03


def test_nothing_to_quantize() -> None:
    with pytest.raises(Unsupported, match="no linear or convolutional layer"):
        place(trace(nn.Sequential(nn.Flatten()), (1, 8, 8)), Scheme(Bits(8, 8)))


def test_what_hangs_on_a_layer_is_refused_by_path() -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.ReLU(), nn.Linear(4, 3)
        ).eval()

    for index in range(3):
        hooked = network()
        hooked[index].register_forward_hook(lambda *given: given[2].clamp(-4, 4))
        with pytest.raises(Unsupported, match=rf"^{index} .* has forward hooks"):
            trace(hooked, (4,))
    patched = network()
    patched[2].forward = lambda x: x.clamp(-4, 4)  # type: ignore[method-assign]
    with pytest.raises(
        Unsupported, match=r"^2 .Dropout. has forward hooks, or a forward of its own"
    ):
        trace(patched, (4,))


def test_flattening_what_is_flat_is_nothing() -> None:
    torch.manual_seed(0)
    module = Written(
        lambda net, x: net.last(functional.gelu(net.first(x.flatten(1))).view(-1, 5)),
        first=nn.Linear(6, 5),
        last=nn.Linear(5, 3),
    ).eval()
    inputs = torch.randn(4, 6)
    graph = trace(module, (6,))
    assert layers(graph) == [nn.Linear, nn.GELU, nn.Linear]
    assert {node.op for node in graph.graph.nodes} == {"placeholder", "call_module", "output"}
    torch.testing.assert_close(graph(inputs), module(inputs))
