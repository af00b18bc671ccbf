"""`prune`: narrower networks that equal the zeroed one, for every workload and for Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from written import Written, mlp

from evalsuite import LambdaGELU, Unsupported
from evalsuite.plugins import load
from pipelines.prune import IMPORTANCES
from pipelines.prune.channels import prune
from pipelines.prune.equality import equality_error
from pipelines.prune.selection import Probe, Pruned, Selection, counts_of_all, share_of
from pipelines.prune.size import parameters_of

HALF = Selection(0.5)
SHAPES = {
    "digits-mlp": (64,), "digits-cnn": (1, 8, 8), "digits-resnet": (1, 8, 8), "mnist-cnn": (1, 28, 28),
    "fashion-mlp": (784,), "adult-mlp": None, "digits-vit": (1, 8, 8), "text-gpt": (16,), "text-gpt-geglu": (16,),
}  # fmt: skip


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
    """The workload's module, untrained, but with a BatchNorm that is not the identity; inputs it takes."""
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


@pytest.mark.parametrize("importance", ["l2", "l1", "group_norm"])
def test_the_least_important_channels_go(importance: str) -> None:
    module = mlp(2, 4, 2)
    with torch.no_grad():
        for unit, size in enumerate((3.0, 0.1, 2.0, 0.2)):
            module[0].weight[unit] = size
            module[2].weight[:, unit] = size
    pruned = prune(module, on(torch.rand(3, 2)), Selection(0.5, importance))
    assert pruned.removed == {"0": [1, 3]}
    assert torch.equal(pruned.module[0].weight, module[0].weight[[0, 2]])
    assert torch.equal(pruned.module[2].weight, module[2].weight[:, [0, 2]])


@pytest.mark.parametrize(
    ("first", "last", "removed"),
    [
        # Unit 0: one weight of 3 (l1 3, squares 9); unit 1: four of 1 (l1 4, squares 4).
        ([[3.0, 0, 0, 0], [1.0, 1, 1, 1]], [0.0, 0.0], {"l2": 1, "l1": 0}),
        # The norm of the filters ignores the next layer, and the group's does not.
        ([[2.0], [1.0]], [1.0, 9.0], {"l2": 1, "group_norm": 0}),
    ],
)
def test_norms_rank_differently(first: list[list[float]], last: list[float], removed: dict[str, int]) -> None:
    module = mlp(len(first[0]), 2, 1)
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor(first))
        module[2].weight.copy_(torch.tensor([last]))
    probe = on(torch.rand(3, len(first[0])))
    for importance, unit in removed.items():
        assert prune(module, probe, Selection(0.5, importance)).removed == {"0": [unit]}


def test_random_pruning_follows_its_seed() -> None:
    module, probe = mlp(8, 64, 4), on(torch.rand(3, 8))
    removed = [prune(module, probe, Selection(0.5, "random", seed=seed)).removed["0"] for seed in (0, 0, 1)]
    assert removed[0] == removed[1]
    assert removed[0] != removed[2]


@pytest.mark.parametrize(
    ("sparsity", "round_to", "channels", "kept"),
    [
        (0.5, 1, 32, 16), (0.5, 8, 30, 16), (0.9, 8, 32, 8), (0.29, 1, 100, 71), (0.5, 64, 32, 32),
        (0.99, 1, 4, 1), (0.0, 1, 5, 5), (0.5, 1, 5, 3),
    ],
)  # fmt: skip
def test_how_many_channels_stay(sparsity: float, round_to: int, channels: int, kept: int) -> None:
    assert Selection(sparsity, round_to=round_to).kept(channels) == kept
    if 0 < kept < channels:
        pruned = prune(mlp(3, channels, 2), on(torch.rand(3, 3)), Selection(sparsity, round_to=round_to))
        assert pruned.module[0].out_features == kept


def test_sparsity_0_removes_nothing() -> None:
    module = mlp(8, 16, 4)
    pruned = prune(module, on(torch.rand(3, 8)), Selection(0.0))
    assert (pruned.removed, pruned.notes) == ({}, [])
    assert torch.equal(pruned.module[0].weight, module[0].weight)


def ranked_together(module: nn.Sequential, sparsity: float) -> dict[str, list[int]]:
    """Global pruning of an MLP by l2 and by hand: the least of |row| / mean |row|, one row of each layer stays."""
    layers = {path: layer for path, layer in module.named_children() if isinstance(layer, nn.Linear)}
    del layers[str(len(module) - 1)]
    rows = {path: layer.weight.detach().double().norm(dim=1) for path, layer in layers.items()}
    ranked = sorted((value / row.mean(), path, unit) for path, row in rows.items() for unit, value in enumerate(row))
    removed: dict[str, list[int]] = {path: [] for path in rows}
    for _, path, unit in ranked:
        if sum(map(len, removed.values())) < int(sparsity * len(ranked)) and len(removed[path]) < len(rows[path]) - 1:
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
    counts = counts_of_all([torch.tensor(each, dtype=torch.float64) for each in groups], budget, round_to)
    left = int(sparsity * sum(map(len, groups)) + 1e-9) - sum(counts)
    assert left >= 0
    for group, count in zip(groups, counts, strict=True):
        kept = len(group) - count
        assert kept == len(group) or kept % round_to == 0
        assert kept >= min(round_to, len(group))
        # Nothing more fits: another block of this group would remove more than was asked for.
        smaller = (kept - 1) // round_to * round_to
        assert smaller < 1 or kept - smaller > left


@pytest.mark.parametrize("size", [7, 12, 19, 22])
@pytest.mark.parametrize("value", [0.1, 0.7])
def test_equal_scores_leave_multiples_too(value: float, size: int) -> None:
    # The mean of five times 0.1 is not that of two: rounding must not put a later block before the first.
    for sparsity in (0.3, 0.4, 0.5, 0.6, 0.7):
        scores = torch.full((size,), value, dtype=torch.float64)
        (count,) = counts_of_all([scores], share_of(size, sparsity), 5)
        assert count == 0 or (size - count) % 5 == 0


def test_a_layer_without_importance_goes_first() -> None:
    scores = [torch.tensor([3.0, 1.0, 2.0]), torch.zeros(3)]
    assert counts_of_all(scores, 3) == [1, 2]


def test_rounds_end_where_one_round_does() -> None:
    module, probe = mlp(6, 20, 13, 3), on(torch.rand(3, 6))
    for scope in ("local", "global"):
        gone: dict[str, int] = {}
        narrow: nn.Module = module
        for done, sparsity in enumerate((0.2, 0.4, 0.6)):
            pruned = checked(narrow, probe, Selection(sparsity, "l2", scope, gone=gone, last=done == 2))
            gone = {path: gone.get(path, 0) + len(pruned.removed.get(path, [])) for path in ("0", "2")}
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
def test_a_layer_that_is_too_narrow_for_round_to_is_named(scope: str) -> None:
    pruned = prune(mlp(6, 32, 8, 3), on(torch.rand(3, 6)), Selection(0.5, "l2", scope, round_to=8))
    assert pruned.removed.keys() == {"0"}
    assert len(pruned.notes) == 1
    assert pruned.notes[0].startswith("2 keeps all its 8 channels")
    assert "round_to = 8" in pruned.notes[0]


@pytest.mark.parametrize("scope", ["local", "global"])
def test_nothing_to_remove_says_why(scope: str) -> None:
    module, probe = mlp(64, 8, 10), on(torch.rand(3, 64))
    with pytest.raises(Unsupported, match=r"sparsity 0\.1 removes no channel: layers are at most 8 wide"):
        prune(module, probe, Selection(0.1, scope=scope))
    with pytest.raises(Unsupported, match=r"removes no channel.*lower round_to \(8\)"):
        prune(module, probe, Selection(0.5, scope=scope, round_to=8))


class Residual(nn.Module):
    """x + f(x) couples the stem with the block's last convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 12, 3, padding=1), nn.Conv2d(12, 8, 1)
        self.norm, self.activation = nn.BatchNorm2d(12), nn.GELU()
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.stem(x))
        x = x + self.second(self.activation(self.norm(self.first(x))))
        return self.head(self.activation(x).flatten(1))


@pytest.mark.parametrize("importance", ["l2", "taylor", "activation"])
def test_a_residual_network_keeps_its_function(importance: str) -> None:
    module = Residual().eval()
    with torch.no_grad():
        module.norm.bias.add_(0.7)
        module.norm.running_mean.add_(0.3)
    pruned = checked(module, on(torch.rand(9, 1, 8, 8)), Selection(0.5, importance))
    assert pruned.module.stem.out_channels == pruned.module.second.out_channels == 4
    assert pruned.removed["stem"] == pruned.removed["second"]
    assert pruned.module.first.out_channels == 6


def test_concatenated_features_are_pruned_each_by_itself() -> None:
    torch.manual_seed(0)
    module = Written(
        lambda net, x: net.head(torch.cat([net.act(net.left(x)), net.act(net.right(x))], 1)),
        left=nn.Linear(8, 32), right=nn.Linear(8, 10), act=nn.GELU(), head=nn.Linear(42, 3),
    )  # fmt: skip
    pruned = checked(module.eval(), on(torch.rand(4, 8)), Selection(0.5, "activation"))
    assert (pruned.module.left.out_features, pruned.module.right.out_features) == (16, 5)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.Conv1d(1, 8, 2), nn.ReLU(), nn.Flatten(), nn.Linear(56, 3)],
        lambda: [nn.Unflatten(2, (2, 4)), nn.ConvTranspose2d(1, 6, 2), nn.ReLU(), nn.ConvTranspose2d(6, 4, 2),
                 nn.GELU(), nn.Flatten(), nn.Linear(96, 3)],
        lambda: [nn.Unflatten(2, (2, 2, 2)), nn.Conv3d(1, 6, 2), nn.PReLU(), nn.Flatten(), nn.Linear(6, 3)],
        lambda: [nn.Unflatten(2, (2, 4)), nn.Conv2d(1, 6, 2), nn.PReLU(6), nn.Flatten(), nn.Linear(18, 3)],
        lambda: [nn.Flatten(), nn.Linear(8, 6), nn.BatchNorm1d(6, affine=False), nn.ReLU(), nn.Linear(6, 3)],
    ],
    ids=["conv1d", "transposed", "conv3d-prelu", "prelu-per-channel", "unscaled-norm"],
)  # fmt: skip
def test_other_layers(layers: Callable[[], list[nn.Module]]) -> None:
    torch.manual_seed(0)
    checked(nn.Sequential(*layers()).eval(), on(torch.rand(5, 1, 8)), HALF)


def test_torch_s_transformer_layer_loses_hidden_units_alone() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, activation=nn.GELU(), batch_first=True)
    module = nn.Sequential(nn.Linear(5, 16), layer, nn.Linear(16, 3)).eval()
    assert checked(module, on(torch.rand(2, 6, 5)), HALF).removed.keys() == {"1.linear1"}
