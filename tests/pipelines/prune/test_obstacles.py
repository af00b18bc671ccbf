"""What torch-pruning gets wrong without a word: each is handled, or refused with its reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_pruning as tp
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from written import Written

from evalsuite import LambdaGELU, Unsupported
from pipelines.prune.channels import Layout, _remove, check_layout, prune
from pipelines.prune.equality import equality_error
from pipelines.prune.graph import Graph, Group
from pipelines.prune.selection import Probe, Pruned, Selection

HALF = Selection(0.5)


def on(inputs: torch.Tensor) -> Probe:
    return Probe(lambda module: module(inputs))


def chain(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers).eval()


class LambdaBlock(nn.Module):
    """LambdaGELU per channel that cannot be folded, as the layers are no nn.Sequential."""

    def __init__(self, channels: int | None, dimension: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(64, 16), nn.Linear(16, 10)
        self.activation = LambdaGELU(channels, dimension=dimension)
        with torch.no_grad():
            self.activation.s.copy_(torch.linspace(-0.1, 0.3, channels) if channels else torch.tensor(0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.activation(self.hidden(x)))


def buffered(module: LambdaBlock) -> LambdaBlock:
    value = module.activation.s.detach().clone()
    del module.activation.s
    module.activation.register_buffer("s", value, persistent=False)
    return module


@pytest.mark.parametrize(("channels", "dimension"), [(None, 1), (16, 1), (16, -1)])
@pytest.mark.parametrize("state", ["trained", "frozen", "buffer"])
def test_an_unfolded_lambda_is_pruned_with_its_channels(channels: int | None, dimension: int, state: str) -> None:
    module = LambdaBlock(channels, dimension).eval()
    module = buffered(module) if state == "buffer" else module
    module.activation.s.requires_grad_(state == "trained")
    probe = on(torch.rand(9, 64) if dimension == 1 else torch.rand(3, 5, 64))
    pruned = prune(module, probe, HALF)
    assert equality_error(module, pruned, probe.outputs) < 1e-12
    assert pruned.module.hidden.out_features == 8
    assert pruned.module.activation.s.shape == (() if channels is None else (8,))
    assert pruned.module.activation.s.requires_grad is (state == "trained")
    assert ("s" in dict(pruned.module.activation.named_buffers())) is (state == "buffer")
    assert pruned.module.state_dict().keys() == module.state_dict().keys()


def test_one_lambda_before_a_flattened_image() -> None:
    # torch-pruning asks the last input of an operation, here the lambda, for the image's number of channels.
    torch.manual_seed(0)
    module = chain(nn.Conv2d(1, 12, 3), LambdaGELU(), nn.Flatten(), nn.Linear(48, 3))
    probe = on(torch.rand(3, 1, 4, 4))
    pruned = prune(module, probe, HALF)
    assert equality_error(module, pruned, probe.outputs) < 1e-12
    assert pruned.module[3].in_features == 24


def test_a_frozen_layer_is_pruned_and_stays_frozen() -> None:
    torch.manual_seed(0)
    module, probe = (
        chain(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)),
        on(torch.rand(5, 8)),
    )
    module[0].requires_grad_(False)
    pruned = prune(module, probe, HALF)
    assert pruned.module[0].out_features == 8
    assert not pruned.module[0].weight.requires_grad
    assert pruned.module[2].weight.requires_grad
    assert not module[0].weight.requires_grad
    assert equality_error(module, pruned, probe.outputs) < 1e-12


def test_one_network_does_not_change_how_the_next_is_pruned() -> None:
    torch.manual_seed(0)
    first, second = chain(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), LambdaBlock(16, -1).eval()
    alone = prune(first, on(torch.rand(5, 8)), HALF)
    prune(second, on(torch.rand(3, 5, 64)), HALF)
    again = prune(first, on(torch.rand(5, 8)), HALF)
    assert alone.removed == again.removed
    assert torch.equal(alone.module[0].weight, again.module[0].weight)


class Heads(nn.Module):
    """Queries, keys and values feed an activation, and a reshape makes heads of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 20), nn.Linear(20, 4)
        self.activation = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            self.activation(layer(x)).unflatten(-1, (4, 4)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.down(self.activation(self.up(x + self.out(mixed.transpose(1, 2).flatten(-2)))))


def images() -> nn.Module:
    """A linear layer makes an image; a convolution takes it."""
    torch.manual_seed(0)
    return Written(
        lambda net, x: net.head(net.act(net.convolution(net.act(net.make(x)).unflatten(1, (8, 2, 2)))).flatten(1)),
        make=nn.Linear(16, 32), convolution=nn.Conv2d(8, 8, 2), head=nn.Linear(8, 3), act=nn.ReLU(),
    )  # fmt: skip


def chunked() -> nn.Module:
    """The halves of one layer meet in a product: channel i goes with channel i + 16."""

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        gate, value = net.hidden(x).chunk(2, -1)
        return net.head(net.act(gate) * value)  # type: ignore[no-any-return]

    return Written(run, hidden=nn.Linear(16, 32), act=nn.GELU(), head=nn.Linear(16, 3))


def features() -> nn.Module:
    """Hidden units are outputs too."""
    return Written(
        lambda net, x: torch.cat([net.head(hidden := net.act(net.hidden(x))), hidden], 1),
        hidden=nn.Linear(16, 32), act=nn.GELU(), head=nn.Linear(32, 3),
    )  # fmt: skip


def recurrent() -> nn.Module:
    return Written(
        lambda net, x: net.recurrent(net.act(net.hidden(x)))[0],
        hidden=nn.Linear(16, 12), act=nn.ReLU(), recurrent=nn.LSTM(12, 6, batch_first=True),
    )  # fmt: skip


def tied() -> nn.Sequential:
    module = chain(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    module[2].weight = module[0].weight
    return module


def twice() -> nn.Sequential:
    layer = nn.Linear(16, 16)
    return chain(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (chunked, (16,), "hidden keeps its channels: a split couples them"),
        (features, (16,), "hidden keeps its channels: they are outputs of the network"),
        (recurrent, (5, 16), r"hidden keeps its channels: recurrent \(LSTM\) mixes them"),
        (tied, (16,), "0 keeps its channels: 0 shares its weight with 2.weight; 2 keeps.*with 0.weight"),
        (twice, (16,), "0 keeps its channels: 0 is called more than once"),
        (lambda: chain(nn.Linear(16, 6), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3)), (5, 16), "a reshape regroups"),
        (
            lambda: chain(parametrizations.weight_norm(nn.Linear(16, 8)), nn.ReLU(), nn.Linear(8, 3)),
            (16,),
            "0 computes its weights from others; call torch.nn.utils.parametrize.remove_parametrizations first",
        ),
        (lambda: chain(nn.Linear(16, 8), nn.ReLU()), (16,), "they are outputs of the network"),
        (lambda: chain(nn.Linear(16, 8), nn.ReLU(), nn.BatchNorm1d(8)), (16,), "they are outputs of the network"),
        (
            lambda: chain(nn.Conv1d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(112, 3)),
            (1, 16),
            r"0 keeps its channels: 1 \(GroupNorm\) mixes them",
        ),
    ],
)
def test_what_cannot_be_pruned_is_refused_with_its_reason(
    make: Callable[[], nn.Module], shape: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(Unsupported, match=f"no prunable layer.*{reason}"):
        prune(make().eval(), on(torch.rand(4, *shape)), HALF)


@pytest.mark.parametrize(
    ("make", "shape", "pruned_layers", "note"),
    [
        (Heads, (5, 16), {"up"}, "query keeps its channels: a reshape regroups them"),
        (images, (16,), {"convolution"}, "make keeps its channels: a reshape regroups them"),
        (
            lambda: chain(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 12), nn.ReLU(),
                          nn.Linear(12, 4)),
            (16,), {"3"}, "0 keeps its channels: 1 (LayerNorm) mixes them",
        ),
        (
            lambda: chain(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 8, 1),
                          nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)),
            (1, 8, 8), {"4", "5"}, "0 keeps its channels: 2 is a convolution with groups=2",
        ),
        (
            lambda: chain(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 1, groups=4), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(),
                          nn.Flatten(), nn.Linear(96, 2)),
            (1, 8, 8), {"3"}, "1 keeps its channels: 1 is a convolution with groups=4",
        ),
    ],
)  # fmt: skip
def test_the_rest_of_the_network_is_pruned(
    make: Callable[[], nn.Module], shape: tuple[int, ...], pruned_layers: set[str], note: str
) -> None:
    module, probe = make().eval(), on(torch.rand(4, *shape))
    pruned = prune(module, probe, HALF)
    assert pruned.removed.keys() == pruned_layers
    assert note in pruned.notes
    assert equality_error(module, pruned, probe.outputs) < 1e-12


def test_a_depthwise_convolution_follows() -> None:
    torch.manual_seed(0)
    module = chain(
        nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)
    )
    probe = on(torch.rand(4, 1, 4, 4))
    pruned = prune(module, probe, Selection(0.25))
    assert pruned.module[1].groups == pruned.module[1].in_channels == pruned.module[0].out_channels == 6
    assert equality_error(module, pruned, probe.outputs) < 1e-12


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tied().requires_grad_(False), "every parameter is frozen; set requires_grad"),
        (lambda: chain(nn.Linear(16, 3)), "no activation module found"),
    ],
)
def test_networks_without_anything_to_prune(make: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        prune(make(), on(torch.rand(4, 16)), HALF)


def test_channels_that_take_others_with_them_are_seen() -> None:
    # It is refused when traced; here it is not.
    module = chunked().eval()
    dependencies = tp.DependencyGraph().build_dependency(module, torch.rand(4, 16))
    group = Group("hidden", module.hidden, 32, [], [0])
    with pytest.raises(Unsupported, match="hidden: other channels would go with those chosen"):
        _remove(module, Graph(dependencies, [group], [], [-1]), [(group, [0, 1])])


def test_an_error_of_the_network_itself_is_explained() -> None:
    with pytest.raises(Unsupported, match="cannot follow the network: RuntimeError: mat1 and mat2"):
        prune(chain(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), on(torch.rand(4, 15)), HALF)


def network() -> tuple[nn.Sequential, Layout]:
    torch.manual_seed(0)
    module = chain(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    return module, Layout.of(module)


def by_torch_pruning(module: nn.Sequential, layer: int, channels: list[int]) -> None:
    graph = tp.DependencyGraph().build_dependency(module, torch.rand(5, 8))
    graph.get_pruning_group(module[layer], tp.prune_linear_out_channels, channels).prune()


def narrowed(module: nn.Sequential) -> None:
    by_torch_pruning(module, 0, [0, 1])


def replaced(module: nn.Sequential) -> None:
    module[3] = copy.deepcopy(module[3])


def grown(module: nn.Sequential) -> None:
    narrowed(module)
    module[3].register_parameter("more", nn.Parameter(torch.zeros(100)))


BOTH = {"0": [0, 1], "1": [0, 1]}


@pytest.mark.parametrize(
    ("change", "told", "reason"),
    [
        (replaced, {}, "torch-pruning replaced 3"),
        (lambda _: None, {"0": [0, 1]}, "torch-pruning left 0 16 channels wide instead of 14"),
        (narrowed, {"0": [0, 1]}, "torch-pruning left 1 14 channels wide instead of 16"),
        (grown, BOTH, "removed no parameter: 244 before, 314 after"),
    ],
)  # fmt: skip
def test_a_layout_other_than_is_told_is_seen(
    change: Callable[[nn.Sequential], None], told: dict[str, list[int]], reason: str
) -> None:
    module, before = network()
    change(module)
    with pytest.raises(Unsupported, match=reason):
        check_layout(Pruned(module, told), before)


def test_a_layout_that_is_as_told_passes() -> None:
    module, before = network()
    narrowed(module)
    check_layout(Pruned(module, BOTH), before)
