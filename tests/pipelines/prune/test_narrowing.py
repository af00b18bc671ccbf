"""`remove` compares what it returns with the zeroed network, and says by path what it leaves
whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from written import Written, mlp

from evalsuite import Bench, Network, Split, Unsupported
from evalsuite.tasks import score
from evalsuite.workloads.vit import DigitsViT
from pipelines.prune import Prune
from pipelines.prune.equality import equality_error
from pipelines.prune.exact import measuring as exact
from pipelines.prune.narrowing import probe_of, remove
from pipelines.prune.selection import Probe, Selection

MakeBench = Callable[..., Bench]
HALF = Selection(0.5)
VECTORS = torch.rand(5, 8)


def on(inputs: torch.Tensor) -> Probe:
    return Probe(lambda module: module(inputs), lambda module: [module(inputs).square().mean(1)])


def between(
    operation: Callable[[torch.Tensor], torch.Tensor], *, images: bool, taken: int = 16
) -> tuple[nn.Module, Probe]:
    """first, activation, an operation on its channels, second, activation, head; inputs it
    takes.
    """

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        x = net.act(net.second(operation(net.act(net.first(x)))))
        return net.head(x.flatten(2).mean(2) if x.ndim == 4 else x)

    torch.manual_seed(0)
    first = nn.Conv2d(1, 16, 3) if images else nn.Linear(8, 16)
    second = nn.Conv2d(taken, 12, 3) if images else nn.Linear(taken, 12)
    module = Written(run, first=first, second=second, act=nn.ReLU(), head=nn.Linear(12, 4)).eval()
    return module, on(torch.rand(5, 1, 10, 10) if images else VECTORS)


MIXING = {
    "Flip": lambda x: x.flip(1),
    "Roll": lambda x: x.roll(1, 1),
    "Softmax": lambda x: x.softmax(1),
    "Mean": lambda x: x - x.mean(1, keepdim=True),
    "Sort": lambda x: x.sort(1).values,
}


@pytest.mark.parametrize("images", [False, True], ids=["vectors", "images"])
@pytest.mark.parametrize("name", MIXING)
def test_what_cannot_go_exactly_stays_whole_and_is_named(name: str, images: bool) -> None:
    module, probe = between(MIXING[name], images=images)
    pruned = remove(module, probe, HALF)
    assert pruned.removed.keys() == {"second"}
    assert len(pruned.removed["second"]) == 6
    (note,) = pruned.notes
    assert note.startswith(
        "first keeps its channels: removing channels changed what the network computes by "
    )
    assert name in note.partition("operations on them: ")[2]
    assert pruned.equality_error == equality_error(module, pruned, probe.outputs) < 1e-12


def few(net: Any, x: torch.Tensor) -> torch.Tensor:
    """What is read of the widths of both."""
    left, right = (net.act(layer(x)) for layer in (net.hidden, net.other))
    return net.head(left) + net.tail(right) + float(left.shape[1] + right.shape[1] < 20)


@pytest.mark.parametrize(
    ("call", "more", "reason"),
    [
        (
            lambda net, x: net.head(net.act(net.hidden(x)).roll(1, 1)),
            {},
            r"no prunable layer: hidden keeps its channels.*Relu, Roll.*replace the one",
        ),
        (few, {"other": (8, 16), "tail": (16, 4)}, "^hidden, other: removing channels changed"),
        # A network that differs from itself is no layer's fault.
        (
            lambda net, x: net.head(net.act(net.hidden(x + torch.rand_like(x)))),
            {},
            "even with nothing removed: removing channels changed",
        ),
    ],
)
def test_where_nothing_else_is_left_to_prune_it_is_an_error(
    call: Callable[[Any, torch.Tensor], torch.Tensor], more: dict[str, tuple[int, int]], reason: str
) -> None:
    torch.manual_seed(0)
    layers = {
        name: nn.Linear(*widths)
        for name, widths in {"hidden": (8, 16), "head": (16, 4), **more}.items()
    }
    with pytest.raises(Unsupported, match=reason):
        remove(Written(call, **layers, act=nn.ReLU()).eval(), on(VECTORS), HALF)


def test_channels_and_heads_are_compared_together() -> None:
    torch.manual_seed(0)
    module, probe = DigitsViT().build(lambda _: nn.GELU()).eval(), on(torch.rand(5, 1, 8, 8))
    pruned = remove(module, probe, Selection(0.5, head_sparsity=0.5))
    assert {path.rpartition(".")[2] for path in pruned.removed} == {"up", "project_in"}
    assert pruned.equality_error == equality_error(module, pruned, probe.outputs) < 1e-12


@pytest.mark.parametrize(
    ("operation", "taken"),
    [(nn.PixelShuffle(2), 4), (nn.PixelUnshuffle(2), 64), (nn.ChannelShuffle(4), 16)],
)
def test_shuffled_channels_stay_whole(operation: nn.Module, taken: int) -> None:
    pruned = remove(*between(operation, images=True, taken=taken), HALF)
    assert pruned.notes == [f"first keeps its channels: {type(operation).__name__} regroups them"]
    assert pruned.removed.keys() == {"second"}
    assert pruned.equality_error < 1e-12


class Dense(nn.Module):
    """A dense block of three layers, the second and third behind a BatchNorm of all that is
    before (DenseNet).
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = (8, 14, 20)
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(each) for each in widths)
        self.convolutions = nn.ModuleList(nn.Conv2d(each, 6, 3, padding=1) for each in widths[:2])
        self.head, self.activation = nn.Linear(20, 10), nn.ReLU()
        with torch.no_grad():
            for norm in self.norms:
                for each in (norm.weight, norm.bias, norm.running_mean):
                    each.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for norm, convolution in zip(self.norms, self.convolutions, strict=False):
            x = torch.cat([x, convolution(self.activation(norm(x)))], 1)
        return self.head(self.activation(self.norms[2](x)).mean((2, 3)))


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("importance", ["l2", "bn_scale", "taylor"])
def test_a_batch_norm_behind_a_concatenation_loses_the_channels_of_all(
    importance: str, scope: str
) -> None:
    module, probe = Dense().eval(), on(torch.rand(5, 1, 8, 8))
    pruned = remove(module, probe, Selection(0.5, importance, scope))
    assert pruned.notes == []
    assert pruned.equality_error < 1e-12
    stem, first, second = (
        pruned.removed.get(each, []) for each in ("stem", "convolutions.0", "convolutions.1")
    )
    assert len(stem) + len(first) + len(second) == 10
    # In the numbers of the unpruned network, whatever went before.
    assert pruned.removed["norms.2"] == [
        *stem,
        *(8 + each for each in first),
        *(14 + each for each in second),
    ]
    assert pruned.module.get_submodule("norms.2").num_features == 10


def test_a_dense_block_in_rounds() -> None:
    module, probe = Dense().eval(), on(torch.rand(5, 1, 8, 8))
    half = remove(module, probe, Selection(0.25, last=False))
    gone = {path: len(lost) for path, lost in half.removed.items()}
    both = remove(half.module, probe, Selection(0.5, gone=gone))
    assert both.equality_error < 1e-12
    assert [each.num_features for each in both.module.norms] == [4, 7, 10]


def attended(*, greatest: bool = True, late: bool = True) -> nn.Module:
    """Spatial attention: what a convolution makes of mean and maximum over the channels
    multiplies them (CBAM).
    """

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        x = net.act(net.first(x))
        mean = x.mean(1, keepdim=True)
        pooled = torch.cat([mean, x.amax(1, keepdim=True)], 1) if greatest else mean
        return net.head(net.act(net.second(x * net.gate(net.attend(pooled)))).mean((2, 3)))

    torch.manual_seed(0)
    attend = {"attend": nn.Conv2d(2 if greatest else 1, 1, 3, padding=1)}
    layers = {
        "first": nn.Conv2d(1, 16, 3),
        "second": nn.Conv2d(16, 12, 3),
        "head": nn.Linear(12, 4),
    }
    return Written(
        run, **(layers | attend if late else attend | layers), gate=nn.GELU(), act=nn.ReLU()
    ).eval()


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            {},
            (
                "first keeps its channels: attend takes 2 for these 16; an operation between them"
                " regroups or reduces"
            ),
        ),
        ({"greatest": False}, "first keeps its channels: attend takes 1 for these 16"),
        ({"late": False}, "attend keeps its channels: first makes 16 for these 1"),
    ],
)
def test_what_spatial_attention_reads_stays_whole(options: dict[str, bool], note: str) -> None:
    pruned = remove(attended(**options), on(torch.rand(5, 1, 10, 10)), HALF)
    assert pruned.removed.keys() == {"second"}
    assert pruned.notes[0].startswith(note)
    assert pruned.equality_error < 1e-12


def hidden_by(hook: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    module = mlp(64, 16, 12, 10)
    module[0] = hook(module[0])
    return module


HOOKS = {
    "torch.nn.utils.remove_weight_norm": weight_norm,
    "torch.nn.utils.remove_spectral_norm": spectral_norm,
    "torch.nn.utils.prune.remove": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("cure", HOOKS)
def test_weights_that_a_hook_computes_are_refused_with_the_cure(
    bench: MakeBench, cure: str
) -> None:
    module, probe = hidden_by(HOOKS[cure]), on(torch.rand(5, 64))
    for selection in (HALF, Selection(0, head_sparsity=0.5)):
        with pytest.raises(
            Unsupported,
            match=f"^0: .* computes its weights before each call; call {cure} on it first",
        ):
            remove(module, probe, selection)
    with pytest.raises(Unsupported, match=f"call {cure} on it first"):
        Prune(fine_tune_epochs=0).run(Network("hooked", module, (64,), 10), bench("digits-mlp"))
    if cure == "torch.nn.utils.remove_weight_norm":
        nn.utils.remove_weight_norm(module[0])
        assert remove(module, probe, HALF).removed.keys() == {"0", "2"}


def test_a_parametrized_layer_stays_whole_with_the_cure() -> None:
    pruned = remove(hidden_by(parametrizations.weight_norm), on(torch.rand(5, 64)), HALF)
    assert pruned.removed.keys() == {"2"}
    assert pruned.notes[0].startswith(
        "0 keeps its channels: 0 computes its weights from others; call torch.nn.utils.p"
    )


def test_padding_counts_in_no_score(bench: MakeBench) -> None:
    """Each sample alone, its padding cut off, is what the scores must be."""
    torch.manual_seed(0)
    module, lengths = (
        nn.Sequential(nn.Embedding(9, 6), nn.ReLU(), nn.Linear(6, 9)).eval(),
        (5, 2, 0),
    )
    inputs, targets = torch.randint(9, (3, 5)), torch.randint(9, (3, 5))
    for row, length in zip(targets, lengths, strict=True):
        row[length:] = -100
    logits = [
        module(inputs[each : each + 1, :length]).flatten(0, 1)
        for each, length in enumerate(lengths[:2])
    ]
    wanted = [targets[each, :length] for each, length in enumerate(lengths[:2])]
    losses = [nn.functional.cross_entropy(*each) for each in zip(logits, wanted, strict=True)]
    padded, there = Split(inputs, targets), bench("digits-mlp")
    probe = probe_of(
        dataclasses.replace(there, data=dataclasses.replace(there.data, calibration=padded))
    )
    assert probe.losses is not None
    assert torch.cat(list(probe.losses(module))).tolist() == pytest.approx(
        [each.item() for each in losses]
    )
    accuracy, nll = score(module, padded).metrics
    assert nll.value == pytest.approx((losses[0].item() * 5 + losses[1].item() * 2) / 7)
    right = torch.cat([each.argmax(1) for each in logits]) == torch.cat(wanted)
    assert accuracy.value == right.double().mean().item()


def test_a_sample_without_a_class_counts_not_in_exact_pruning_either(bench: MakeBench) -> None:
    inputs = torch.rand(6, 8)
    module = nn.Linear(8, 4)
    targets = module(inputs).argmax(1)
    targets[:2] = -100
    there = bench("digits-mlp")
    part = Split(inputs, targets)
    small = dataclasses.replace(there, data=dataclasses.replace(there.data, test=part, train=part))
    found = {each.name: each.value for each in exact._scores(module, module, module, small)}
    assert found["accuracy"] == found["accuracy_before_removal"] == 1.0
