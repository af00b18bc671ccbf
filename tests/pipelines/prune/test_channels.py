"""`prune`: narrower networks that equal the zeroed one, and what torch-pruning gets wrong
without a word.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_pruning as tp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from written import Written, affine, mlp

from evalsuite import LambdaGELU, Unsupported
from evalsuite.plugins import load
from pipelines.prune.channels import Layout, _remove, check_layout, prune
from pipelines.prune.equality import equality_error
from pipelines.prune.graph import Graph, Group
from pipelines.prune.options import IMPORTANCES
from pipelines.prune.selection import Probe, Pruned, Selection, counts_of_all, share_of
from pipelines.prune.size import parameters_of

HALF = Selection(0.5)
SHAPES = {
    "digits-mlp": (64,),
    "digits-cnn": (1, 8, 8),
    "digits-resnet": (1, 8, 8),
    "mnist-cnn": (1, 28, 28),
    "fashion-mlp": (784,),
    "adult-mlp": None,
    "digits-vit": (1, 8, 8),
    "text-gpt": (16,),
    "text-gpt-geglu": (16,),
}


def on(inputs: torch.Tensor) -> Probe:
    """Runs a module on the inputs; its loss is for class 0 everywhere."""

    def losses(module: nn.Module) -> Iterator[torch.Tensor]:
        for each in inputs.split(4):
            logits = module(each)
            zeros = torch.zeros(logits.shape[:-1], dtype=torch.long).flatten()
            loss = functional.cross_entropy(logits.flatten(0, -2), zeros, reduction="none")
            yield loss.view(len(each), -1).mean(1)

    return Probe(lambda module: module(inputs), losses)


def checked(module: nn.Module, probe: Probe, selection: Selection) -> Pruned:
    """Pruned, and equal to the zeroed network."""
    pruned = prune(module, probe, selection)
    assert pruned.removed
    assert equality_error(module, pruned, probe.outputs) < 1e-12
    assert parameters_of(pruned.module) < parameters_of(module)
    return pruned


def built(name: str, activation: Callable[[int], nn.Module]) -> tuple[nn.Module, Probe]:
    """The workload's module, untrained, but with a BatchNorm that is not the identity; inputs it
    takes.
    """
    torch.manual_seed(0)
    module = load("workloads", name).target().build(activation).eval()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            with torch.no_grad():
                norm.weight.uniform_(-2, 2)
                norm.bias.uniform_(-1, 1)
                norm.running_mean.uniform_(-1, 1)
                norm.running_var.uniform_(0.5, 2)
    if name.startswith("text"):
        return module, on(torch.randint(module.embedding.num_embeddings, (5, *SHAPES[name])))
    return module, on(torch.rand(5, *(SHAPES[name] or (module[0].in_features,))))


def per_channel(channels: int) -> LambdaGELU:
    activation = LambdaGELU(channels)
    with torch.no_grad():
        activation.s.copy_(torch.linspace(-0.1, 0.3, channels))
    return activation


@pytest.mark.parametrize(
    ("make", "scope"),
    [(lambda _: nn.GELU(), "local"), (lambda _: LambdaGELU(), "local"), (per_channel, "global")],
    ids=["gelu", "lambda-gelu", "lambda-per-channel"],
)
@pytest.mark.parametrize("name", SHAPES)
def test_every_workload(name: str, make: Callable[[int], nn.Module], scope: str) -> None:
    module, probe = built(name, make)
    pruned = checked(module, probe, Selection(0.5, "group_norm", scope, round_to=4))
    assert pruned.notes == []
    for path in pruned.removed:
        layer = pruned.module.get_submodule(path)
        width = layer.num_features if isinstance(layer, nn.BatchNorm2d) else len(layer.weight)
        assert width % 4 == 0


@pytest.mark.parametrize("importance", IMPORTANCES)
@pytest.mark.parametrize("name", ["digits-cnn", "digits-resnet", "digits-vit", "text-gpt"])
def test_every_importance(name: str, importance: str) -> None:
    module, probe = built(name, lambda _: nn.ReLU())
    if importance == "bn_scale" and name != "digits-resnet":
        with pytest.raises(Unsupported, match="needs a BatchNorm"):
            prune(module, probe, Selection(0.3, importance))
    else:
        checked(module, probe, Selection(0.3, importance, "global"))


@pytest.mark.parametrize(
    ("first", "last", "removed"),
    [
        (
            [[3.0, 3], [0.1, 0.1], [2, 2], [0.2, 0.2]],
            [3.0, 0.1, 2, 0.2],
            {each: [1, 3] for each in ("l2", "l1", "group_norm")},
        ),
        # Unit 0: one weight of 3 (l1 3, squares 9); unit 1: four of 1 (l1 4, squares 4).
        ([[3.0, 0, 0, 0], [1.0, 1, 1, 1]], [0.0, 0.0], {"l2": [1], "l1": [0]}),
        # The norm of the filters ignores the next layer, and the group's does not.
        ([[2.0], [1.0]], [1.0, 9.0], {"l2": [1], "group_norm": [0]}),
    ],
)
def test_the_least_important_channels_go(
    first: list[list[float]], last: list[float], removed: dict[str, list[int]]
) -> None:
    module = nn.Sequential(affine(first, [0.0] * len(first)), nn.ReLU(), affine([last], [0.0]))
    for importance, units in removed.items():
        pruned = prune(module, on(torch.rand(3, len(first[0]))), Selection(0.5, importance))
        kept = [unit for unit in range(len(first)) if unit not in units]
        assert pruned.removed == {"0": units}
        assert torch.equal(pruned.module[0].weight, module[0].weight[kept])
        assert torch.equal(pruned.module[2].weight, module[2].weight[:, kept])


def test_random_pruning_follows_its_seed() -> None:
    module, probe = mlp(8, 64, 4), on(torch.rand(3, 8))
    removed = [
        prune(module, probe, Selection(0.5, "random", seed=seed)).removed["0"] for seed in (0, 0, 1)
    ]
    assert removed[0] == removed[1]
    assert removed[0] != removed[2]


@pytest.mark.parametrize(
    ("sparsity", "round_to", "channels", "kept"),
    [
        (0.5, 1, 32, 16),
        (0.5, 8, 30, 16),
        (0.9, 8, 32, 8),
        (0.29, 1, 100, 71),
        (0.5, 64, 32, 32),
        (0.99, 1, 4, 1),
        (0.0, 1, 5, 5),
        (0.5, 1, 5, 3),
    ],
)
def test_how_many_channels_stay(sparsity: float, round_to: int, channels: int, kept: int) -> None:
    selection = Selection(sparsity, round_to=round_to)
    assert selection.kept(channels) == kept
    if kept < channels or not sparsity:
        module = mlp(3, channels, 2)
        pruned = prune(module, on(torch.rand(3, 3)), selection)
        assert pruned.module[0].out_features == kept
        assert (pruned.removed == {}) == (kept == channels)


def ranked_together(module: nn.Sequential, sparsity: float) -> dict[str, list[int]]:
    """Global pruning of an MLP by l2 and by hand: the least of |row| / mean |row|, one row of
    each layer stays.
    """
    layers = {
        path: layer for path, layer in module.named_children() if isinstance(layer, nn.Linear)
    }
    del layers[str(len(module) - 1)]
    rows = {path: layer.weight.detach().double().norm(dim=1) for path, layer in layers.items()}
    ranked = sorted(
        (value / row.mean(), path, unit)
        for path, row in rows.items()
        for unit, value in enumerate(row)
    )
    removed: dict[str, list[int]] = {path: [] for path in rows}
    for _, path, unit in ranked:
        if (
            sum(map(len, removed.values())) < int(sparsity * len(ranked))
            and len(removed[path]) < len(rows[path]) - 1
        ):
            removed[path].append(unit)
    return {path: sorted(units) for path, units in removed.items() if units}


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9])
def test_global_ranking(sparsity: float) -> None:
    module = mlp(6, 20, 12, 8, 3)
    with torch.no_grad():
        module[0].weight[:15] *= 0.01  # most of the first layer matters little
        module[4].weight *= 100.0  # scale alone does not make a layer important
    pruned = checked(module, on(torch.rand(3, 6)), Selection(sparsity, "l2", "global"))
    assert pruned.removed == ranked_together(module, sparsity)
    assert sum(map(len, pruned.removed.values())) == int(sparsity * 40)


@given(
    st.lists(st.lists(st.floats(0, 10), min_size=1, max_size=20), min_size=1, max_size=5),
    st.floats(0, 0.99),
    st.integers(1, 8),
)
@settings(max_examples=150, deadline=None)
def test_global_counts(groups: list[list[float]], sparsity: float, round_to: int) -> None:
    budget = share_of(sum(map(len, groups)), sparsity)
    counts = counts_of_all(
        [torch.tensor(each, dtype=torch.float64) for each in groups], budget, round_to
    )
    left = int(sparsity * sum(map(len, groups)) + 1e-9) - sum(counts)
    assert left >= 0
    for group, count in zip(groups, counts, strict=True):
        kept = len(group) - count
        assert kept == len(group) or kept % round_to == 0
        assert kept >= min(round_to, len(group))
        # Nothing more fits: another block of this group would remove more than was asked for.
        smaller = (kept - 1) // round_to * round_to
        assert smaller < 1 or kept - smaller > left


def test_equal_scores_leave_multiples_too() -> None:
    # The mean of five times 0.1 is not that of two: rounding must not put a later block before the
    # first.
    for size, value, sparsity in itertools.product(
        (7, 12, 19, 22), (0.1, 0.7), (0.3, 0.4, 0.5, 0.6, 0.7)
    ):
        scores = torch.full((size,), value, dtype=torch.float64)
        (count,) = counts_of_all([scores], share_of(size, sparsity), 5)
        assert count == 0 or (size - count) % 5 == 0
    # A layer without importance goes first.
    assert counts_of_all([torch.tensor([3.0, 1.0, 2.0]), torch.zeros(3)], 3) == [1, 2]


def test_rounds_end_where_one_round_does() -> None:
    module, probe = mlp(6, 20, 13, 3), on(torch.rand(3, 6))
    for scope in ("local", "global"):
        gone: dict[str, int] = {}
        narrow: nn.Module = module
        for done, sparsity in enumerate((0.2, 0.4, 0.6)):
            pruned = checked(
                narrow, probe, Selection(sparsity, "l2", scope, gone=gone, last=done == 2)
            )
            gone = {
                path: gone.get(path, 0) + len(pruned.removed.get(path, [])) for path in ("0", "2")
            }
            narrow = pruned.module
        once = prune(module, probe, Selection(0.6, "l2", scope)).removed
        assert sum(gone.values()) == sum(map(len, once.values()))
        if scope == "local":
            assert gone == {path: len(lost) for path, lost in once.items()}


def test_a_round_that_removes_nothing_is_no_error_before_the_last() -> None:
    module, probe = mlp(6, 8, 3), on(torch.rand(3, 6))
    assert prune(module, probe, Selection(0.1, last=False)).removed == {}
    with pytest.raises(Unsupported, match="removes no channel"):
        prune(module, probe, Selection(0.1))
    assert prune(mlp(6, 4, 3), probe, Selection(0.5, gone={"0": 4})).removed == {}


@pytest.mark.parametrize("scope", ["local", "global"])
def test_layers_that_are_too_narrow_are_named(scope: str) -> None:
    pruned = prune(mlp(6, 32, 8, 3), on(torch.rand(3, 6)), Selection(0.5, "l2", scope, round_to=8))
    assert pruned.removed.keys() == {"0"}
    (note,) = pruned.notes
    assert note.startswith("2 keeps all its 8 channels")
    assert "round_to = 8" in note
    for selection, text in (
        (
            Selection(0.1, scope=scope),
            r"sparsity 0\.1 removes no channel: layers are at most 8 wide",
        ),
        (Selection(0.5, scope=scope, round_to=8), r"removes no channel.*lower round_to \(8\)"),
    ):
        with pytest.raises(Unsupported, match=text):
            prune(mlp(64, 8, 10), on(torch.rand(3, 64)), selection)


@pytest.mark.parametrize("importance", ["l2", "taylor", "activation"])
def test_a_residual_network_keeps_its_function(importance: str) -> None:
    """x + f(x) couples the stem with the block's last convolution."""

    def forward(net: Written, x: torch.Tensor) -> torch.Tensor:
        x = net.act(net.stem(x))
        return net.head(net.act(x + net.second(net.act(net.norm(net.first(x))))).flatten(1))

    torch.manual_seed(0)
    module = Written(
        forward,
        stem=nn.Conv2d(1, 8, 3),
        first=nn.Conv2d(8, 12, 3, padding=1),
        second=nn.Conv2d(12, 8, 1),
        norm=nn.BatchNorm2d(12),
        act=nn.GELU(),
        head=nn.Linear(8 * 36, 10),
    ).eval()
    with torch.no_grad():
        module.norm.bias.add_(0.7)
        module.norm.running_mean.add_(0.3)
    pruned = checked(module, on(torch.rand(9, 1, 8, 8)), Selection(0.5, importance))
    assert pruned.module.stem.out_channels == pruned.module.second.out_channels == 4
    assert pruned.removed["stem"] == pruned.removed["second"]
    assert pruned.module.first.out_channels == 6


@pytest.mark.parametrize(
    ("layers", "shape", "removed"),
    [
        (lambda: [nn.Conv1d(1, 8, 2), nn.ReLU(), nn.Flatten(), nn.Linear(56, 3)], (1, 8), {"0": 4}),
        (
            lambda: [
                nn.ConvTranspose2d(1, 6, 2),
                nn.ReLU(),
                nn.ConvTranspose2d(6, 4, 2),
                nn.GELU(),
                nn.Flatten(),
                nn.Linear(96, 3),
            ],
            (1, 2, 4),
            {"0": 3, "2": 2},
        ),
        (
            lambda: [nn.Conv3d(1, 6, 2), nn.PReLU(), nn.Flatten(), nn.Linear(6, 3)],
            (1, 2, 2, 2),
            {"0": 3},
        ),
        (
            lambda: [nn.Conv2d(1, 6, 2), nn.PReLU(6), nn.Flatten(), nn.Linear(18, 3)],
            (1, 2, 4),
            {"0": 3},
        ),
        (
            lambda: [nn.Linear(8, 6), nn.BatchNorm1d(6, affine=False), nn.ReLU(), nn.Linear(6, 3)],
            (8,),
            {"0": 3, "1": 3},
        ),
        # torch's layer of transformers loses hidden units alone.
        (
            lambda: [
                nn.Linear(5, 16),
                nn.TransformerEncoderLayer(16, 4, 32, activation=nn.GELU(), batch_first=True),
                nn.Linear(16, 3),
            ],
            (6, 5),
            {"1.linear1": 16},
        ),
        # Features side by side are pruned each by itself.
        (
            lambda: [
                Written(
                    lambda net, x: torch.cat([net.act(net.left(x)), net.act(net.right(x))], 1),
                    left=nn.Linear(8, 32),
                    right=nn.Linear(8, 10),
                    act=nn.GELU(),
                ),
                nn.Linear(42, 3),
            ],
            (8,),
            {"0.left": 16, "0.right": 5},
        ),
    ],
    ids=[
        "conv1d",
        "transposed",
        "conv3d-prelu",
        "prelu-per-channel",
        "unscaled-norm",
        "encoder",
        "concatenated",
    ],
)
def test_other_layers(
    layers: Callable[[], list[nn.Module]], shape: tuple[int, ...], removed: dict[str, int]
) -> None:
    torch.manual_seed(0)
    pruned = checked(nn.Sequential(*layers()).eval(), on(torch.rand(4, *shape)), HALF)
    assert {path: len(lost) for path, lost in pruned.removed.items()} == removed


def chain(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers).eval()


def lambda_block(channels: int | None, dimension: int = 1, *, buffer: bool = False) -> nn.Module:
    """LambdaGELU per channel that cannot be folded, as the layers are no nn.Sequential."""
    torch.manual_seed(0)
    activation = LambdaGELU(channels, dimension=dimension)
    value = torch.linspace(-0.1, 0.3, channels) if channels else torch.tensor(0.2)
    if buffer:
        del activation.s
        activation.register_buffer("s", value, persistent=False)
    else:
        activation.s = nn.Parameter(value)
    return Written(
        lambda net, x: net.head(net.activation(net.hidden(x))),
        hidden=nn.Linear(64, 16),
        head=nn.Linear(16, 10),
        activation=activation,
    ).eval()


@pytest.mark.parametrize(("channels", "dimension"), [(None, 1), (16, 1), (16, -1)])
@pytest.mark.parametrize("state", ["trained", "frozen", "buffer"])
def test_an_unfolded_lambda_is_pruned_with_its_channels(
    channels: int | None, dimension: int, state: str
) -> None:
    module = lambda_block(channels, dimension, buffer=state == "buffer")
    module.activation.s.requires_grad_(state == "trained")
    pruned = checked(
        module, on(torch.rand(9, 64) if dimension == 1 else torch.rand(3, 5, 64)), HALF
    )
    assert pruned.module.hidden.out_features == 8
    assert pruned.module.activation.s.shape == (() if channels is None else (8,))
    assert pruned.module.activation.s.requires_grad is (state == "trained")
    assert ("s" in dict(pruned.module.activation.named_buffers())) is (state == "buffer")
    assert pruned.module.state_dict().keys() == module.state_dict().keys()


def test_one_lambda_before_a_flattened_image() -> None:
    # torch-pruning asks the last input of an operation, here the lambda, for the image's number of
    # channels.
    module = chain(nn.Conv2d(1, 12, 3), LambdaGELU(), nn.Flatten(), nn.Linear(48, 3))
    assert checked(module, on(torch.rand(3, 1, 4, 4)), HALF).module[3].in_features == 24


def test_a_frozen_layer_is_pruned_and_stays_frozen() -> None:
    module = mlp(8, 16, 12, 4)
    module[0].requires_grad_(False)
    pruned = checked(module, on(torch.rand(5, 8)), HALF)
    assert pruned.module[0].out_features == 8
    assert not pruned.module[0].weight.requires_grad
    assert pruned.module[2].weight.requires_grad
    assert not module[0].weight.requires_grad


def test_one_network_does_not_change_how_the_next_is_pruned() -> None:
    first, inputs = mlp(8, 16, 4), on(torch.rand(5, 8))
    alone = prune(first, inputs, HALF)
    prune(lambda_block(16, -1), on(torch.rand(3, 5, 64)), HALF)
    again = prune(first, inputs, HALF)
    assert alone.removed == again.removed
    assert torch.equal(alone.module[0].weight, again.module[0].weight)


def heads() -> nn.Module:
    """Queries, keys and values feed an activation, and a reshape makes heads of them."""

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            net.act(layer(x)).unflatten(-1, (4, 4)).transpose(1, 2)
            for layer in (net.query, net.key, net.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return net.down(net.act(net.up(x + net.out(mixed.transpose(1, 2).flatten(-2)))))

    layers = {name: nn.Linear(16, 16) for name in ("query", "key", "value", "out")}
    return Written(run, **layers, up=nn.Linear(16, 20), down=nn.Linear(20, 4), act=nn.ReLU())


def images() -> nn.Module:
    """A linear layer makes an image; a convolution takes it."""
    return Written(
        lambda net, x: net.head(
            net.act(net.convolution(net.act(net.make(x)).unflatten(1, (8, 2, 2)))).flatten(1)
        ),
        make=nn.Linear(16, 32),
        convolution=nn.Conv2d(8, 8, 2),
        head=nn.Linear(8, 3),
        act=nn.ReLU(),
    )


def chunked() -> nn.Module:
    """The halves of one layer meet in a product: channel i goes with channel i + 16."""

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        gate, value = net.hidden(x).chunk(2, -1)
        return net.head(net.act(gate) * value)

    return Written(run, hidden=nn.Linear(16, 32), act=nn.GELU(), head=nn.Linear(16, 3))


def features() -> nn.Module:
    """Hidden units are outputs too."""
    return Written(
        lambda net, x: torch.cat([net.head(hidden := net.act(net.hidden(x))), hidden], 1),
        hidden=nn.Linear(16, 32),
        act=nn.GELU(),
        head=nn.Linear(32, 3),
    )


def recurrent() -> nn.Module:
    return Written(
        lambda net, x: net.recurrent(net.act(net.hidden(x)))[0],
        hidden=nn.Linear(16, 12),
        act=nn.ReLU(),
        recurrent=nn.LSTM(12, 6, batch_first=True),
    )


def tied() -> nn.Sequential:
    module = mlp(16, 16, 16, 3)
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
        (
            tied,
            (16,),
            "0 keeps its channels: 0 shares its weight with 2.weight; 2 keeps.*with 0.weight",
        ),
        (twice, (16,), "0 keeps its channels: 0 is called more than once"),
        (
            lambda: chain(nn.Linear(16, 6), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3)),
            (5, 16),
            "a reshape regroups",
        ),
        (
            lambda: chain(
                parametrizations.weight_norm(nn.Linear(16, 8)), nn.ReLU(), nn.Linear(8, 3)
            ),
            (16,),
            (
                "0 computes its weights from others; call"
                " torch.nn.utils.parametrize.remove_parametrizations first"
            ),
        ),
        (lambda: chain(nn.Linear(16, 8), nn.ReLU()), (16,), "they are outputs of the network"),
        (
            lambda: chain(nn.Linear(16, 8), nn.ReLU(), nn.BatchNorm1d(8)),
            (16,),
            "they are outputs of the network",
        ),
        (
            lambda: chain(
                nn.Conv1d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(112, 3)
            ),
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
        (heads, (5, 16), {"up"}, "query keeps its channels: a reshape regroups them"),
        (images, (16,), {"convolution"}, "make keeps its channels: a reshape regroups them"),
        (
            lambda: chain(
                nn.Linear(16, 16),
                nn.LayerNorm(16),
                nn.GELU(),
                nn.Linear(16, 12),
                nn.ReLU(),
                nn.Linear(12, 4),
            ),
            (16,),
            {"3"},
            "0 keeps its channels: 1 (LayerNorm) mixes them",
        ),
        (
            lambda: chain(
                nn.Conv2d(1, 8, 3),
                nn.ReLU(),
                nn.Conv2d(8, 8, 3, groups=2),
                nn.ReLU(),
                nn.Conv2d(8, 8, 1),
                nn.Conv2d(8, 8, 3, groups=8),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(32, 4),
            ),
            (1, 8, 8),
            {"4", "5"},
            "0 keeps its channels: 2 is a convolution with groups=2",
        ),
        (
            lambda: chain(
                nn.Conv2d(1, 4, 3),
                nn.Conv2d(4, 8, 1, groups=4),
                nn.ReLU(),
                nn.Conv2d(8, 6, 3),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(96, 2),
            ),
            (1, 8, 8),
            {"3"},
            "1 keeps its channels: 1 is a convolution with groups=4",
        ),
    ],
)
def test_the_rest_of_the_network_is_pruned(
    make: Callable[[], nn.Module], shape: tuple[int, ...], pruned_layers: set[str], note: str
) -> None:
    pruned = checked(make().eval(), on(torch.rand(4, *shape)), HALF)
    assert pruned.removed.keys() == pruned_layers
    assert note in pruned.notes


def test_a_depthwise_convolution_follows() -> None:
    module = chain(
        nn.Conv2d(1, 8, 1),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    pruned = checked(module, on(torch.rand(4, 1, 4, 4)), Selection(0.25))
    assert (
        pruned.module[1].groups
        == pruned.module[1].in_channels
        == pruned.module[0].out_channels
        == 6
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tied().requires_grad_(False), "every parameter is frozen; set requires_grad"),
        (lambda: chain(nn.Linear(16, 3)), "no activation module found"),
        # its own error
        (lambda: mlp(15, 8, 3), "cannot follow the network: RuntimeError: mat1 and mat2"),
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


def narrowed(module: nn.Sequential) -> None:
    graph = tp.DependencyGraph().build_dependency(module, torch.rand(5, 8))
    graph.get_pruning_group(module[0], tp.prune_linear_out_channels, [0, 1]).prune()


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
        (narrowed, BOTH, None),
    ],
)
def test_a_layout_other_than_is_told_is_seen(
    change: Callable[[nn.Sequential], None], told: dict[str, list[int]], reason: str | None
) -> None:
    module = chain(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    before = Layout.of(module)
    change(module)
    with pytest.raises(Unsupported, match=reason) if reason else contextlib.nullcontext():
        check_layout(Pruned(module, told), before)
