"""Importances against references that know nothing of groups: loops over channels, and finite
differences.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
import torch_pruning as tp
from torch import nn
from torch.nn import functional
from written import Written

from evalsuite import Unsupported
from pipelines.prune.channels import prune
from pipelines.prune.graph import trace
from pipelines.prune.importance import channel_scores
from pipelines.prune.options import IMPORTANCES
from pipelines.prune.selection import Probe, Selection

CLASSES = 3


def probe_of(inputs: torch.Tensor, batch: int = 4) -> Probe:
    targets = torch.arange(len(inputs)) % CLASSES

    def losses(module: nn.Module) -> Iterator[torch.Tensor]:
        for x, y in zip(inputs.split(batch), targets.split(batch), strict=True):
            yield functional.cross_entropy(module(x), y, reduction="none")

    return Probe(lambda module: module(inputs[:2]), losses)


def scores(module: nn.Module, probe: Probe, importance: str) -> dict[str, torch.Tensor]:
    module = copy.deepcopy(module).eval().requires_grad_(True)
    graph = trace(module, probe)
    found = channel_scores(module, graph, probe, Selection(0.5, importance))
    return {group.root: each for group, each in zip(graph.groups, found, strict=True)}


def cnn() -> nn.Sequential:
    """Two convolutions with BatchNorm that is not the identity, then a flattened image: four
    inputs a channel.
    """
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 5, 3),
        nn.BatchNorm2d(5),
        nn.GELU(),
        nn.Conv2d(5, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    ).eval()
    with torch.no_grad():
        for norm in (module[1], module[4]):
            norm.weight.uniform_(-2, 2)
            norm.bias.uniform_(-1, 1)
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
    return module


def images(count: int = 10) -> torch.Tensor:
    return torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def tied(module: nn.Sequential, channel: int, *, second: bool) -> list[torch.Tensor]:
    """The tensors, biases too, that vanish with a channel of `cnn()`'s first or second
    convolution, by hand.
    """
    conv, norm = (module[3], module[4]) if second else (module[0], module[1])
    own = [conv.weight[channel], norm.weight[channel], norm.bias[channel]]
    own += [] if conv.bias is None else [conv.bias[channel]]
    return [
        *own,
        module[7].weight[:, 4 * channel : 4 * channel + 4]
        if second
        else module[3].weight[:, channel],
    ]


def test_norms_and_bn_scale_are_of_the_channel_s_own_weights() -> None:
    module = cnn()
    found = {each: scores(module, probe_of(images()), each) for each in ("l1", "l2", "bn_scale")}
    for path, layer, norm in (("0", module[0], module[1]), ("3", module[3], module[4])):
        for importance, order in (("l1", 1), ("l2", 2)):
            expected = [
                torch.linalg.vector_norm(each.detach().double(), order) for each in layer.weight
            ]
            torch.testing.assert_close(found[importance][path], torch.stack(expected))
        assert found["bn_scale"][path].tolist() == norm.weight.detach().abs().tolist()


def test_the_group_norm_is_torch_pruning_s() -> None:
    module = cnn()
    found = scores(module, probe_of(images()), "group_norm")
    graph = tp.DependencyGraph().build_dependency(module, images(2))
    reference = tp.importance.GroupMagnitudeImportance(p=2, group_reduction="sum", normalizer=None)
    for path, layer in (("0", module[0]), ("3", module[3])):
        theirs = reference(
            graph.get_pruning_group(
                layer, tp.prune_conv_out_channels, list(range(len(layer.weight)))
            )
        )
        torch.testing.assert_close(found[path].square(), theirs.double())


def loss_gradients(
    module: nn.Sequential, inputs: torch.Tensor, targets: torch.Tensor
) -> nn.Sequential:
    """A copy whose weights hold the gradients of the mean loss."""
    module = copy.deepcopy(module)
    functional.cross_entropy(module(inputs), targets).backward()
    gradients = copy.deepcopy(module)
    with torch.no_grad():
        for parameter, source in zip(gradients.parameters(), module.parameters(), strict=True):
            parameter.copy_(source.grad)
    return gradients


@pytest.mark.parametrize("second", [False, True])
def test_taylor_and_hessian_are_sums_of_weight_times_gradient(second: bool) -> None:
    # 10 samples in batches of 4: means are over samples, not over batches of different sizes.
    module, inputs, targets = cnn(), images(10), torch.arange(10) % CLASSES
    channels, path = range(6 if second else 5), "3" if second else "0"

    def products(batch: slice) -> list[torch.Tensor]:
        """For each channel, every weight that vanishes with it times its gradient."""
        gradients = loss_gradients(module, inputs[batch], targets[batch])
        pairs = (
            (tied(each, channel, second=second) for each in (module, gradients))
            for channel in channels
        )
        return [
            torch.cat([(w * g).flatten() for w, g in zip(*pair, strict=True)]) for pair in pairs
        ]

    taylor = torch.stack([each.abs().sum() for each in products(slice(None))])
    torch.testing.assert_close(
        scores(module, probe_of(inputs), "taylor")[path].float(), taylor, rtol=1e-4, atol=0
    )
    each_alone = [
        torch.stack([each.square().sum() for each in products(slice(i, i + 1))]) for i in range(10)
    ]
    found = scores(module, probe_of(inputs), "hessian")[path].float()
    torch.testing.assert_close(found, torch.stack(each_alone).mean(0), rtol=1e-4, atol=1e-9)


def test_bn_scale_without_batch_norm_names_the_layers() -> None:
    module = nn.Sequential(
        nn.Linear(4, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 6),
        nn.BatchNorm1d(6, affine=False),
        nn.ReLU(),
        nn.Linear(6, 5),
        nn.ReLU(),
        nn.Linear(5, CLASSES),
    )
    with pytest.raises(Unsupported, match=r"bn_scale.*none behind 3, 6$"):
        prune(module, probe_of(torch.rand(6, 4)), Selection(0.5, "bn_scale"))


def test_bn_scale_is_the_mean_where_there_are_several() -> None:
    torch.manual_seed(0)
    module = Written(
        lambda net, x: net.head(
            net.activation(net.norms[0](net.left(x)) + net.norms[1](net.right(x)))
        ),
        left=nn.Linear(4, 6),
        right=nn.Linear(4, 6),
        head=nn.Linear(6, CLASSES),
        norms=nn.ModuleList(nn.BatchNorm1d(6) for _ in range(2)),
        activation=nn.ReLU(),
    )
    with torch.no_grad():
        for norm in module.norms:
            norm.weight.uniform_(-2, 2)
    found = scores(module, probe_of(torch.rand(6, 4)), "bn_scale")
    expected = sum(norm.weight.detach().double().abs() for norm in module.norms) / 2
    torch.testing.assert_close(found["left"], expected)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_activation_is_the_mean_absolute_output(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    # The first activation behind a layer counts.
    module = nn.Sequential(
        nn.Conv2d(1, 5, 3),
        activation(),
        nn.Flatten(),
        nn.Linear(80, 7),
        activation(),
        nn.GELU(),
        nn.Linear(7, CLASSES),
    )
    inputs = images(10)
    found = scores(module, probe_of(inputs), "activation")
    with torch.no_grad():
        first = module[:2](inputs)
        second = module[2:5](first)
    torch.testing.assert_close(
        found["0"], first.double().abs().mean((0, 2, 3)), rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(found["3"], second.double().abs().mean(0), rtol=1e-5, atol=1e-7)


def test_activations_of_a_module_used_twice_are_told_apart_and_tokens_end_in_channels() -> None:
    torch.manual_seed(0)
    shared = nn.GELU()
    module = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared, nn.Linear(4, CLASSES))
    inputs = torch.rand(6, 4, 4)

    def losses(module: nn.Module) -> Iterator[torch.Tensor]:
        for each in inputs.split(4):
            yield module(each).square().sum((1, 2))

    found = scores(module, Probe(lambda module: module(inputs), losses), "activation")
    with torch.no_grad():
        first = module[:2](inputs)
        second = module[2:4](first)
    torch.testing.assert_close(found["0"], first.double().abs().mean((0, 1)), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found["2"], second.double().abs().mean((0, 1)), rtol=1e-5, atol=1e-7)


def test_activations_that_cannot_be_told_apart_are_refused() -> None:
    module = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES)
    )
    partial = Probe(
        lambda module: module(torch.rand(3, 4)),
        lambda module: [module[:2](torch.rand(3, 4)).sum(1)],
    )
    with pytest.raises(Unsupported, match="another number of times"):
        scores(module, partial, "activation")
    flattened = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Flatten(), nn.ReLU(), nn.Linear(80, CLASSES))
    with pytest.raises(Unsupported, match="an activation behind 0 does not keep its channels"):
        scores(flattened, probe_of(images()), "activation")


@pytest.mark.parametrize("importance", ["taylor", "hessian", "activation"])
def test_no_calibration_data(importance: str) -> None:
    for losses, what in ((None, "there are none"), (lambda _: [], "there is no sample")):
        with pytest.raises(
            Unsupported, match=f"importance '{importance}' needs calibration data, and {what}"
        ):
            prune(
                cnn(), Probe(lambda module: module(images(2)), losses), Selection(0.5, importance)
            )


@pytest.mark.parametrize("importance", IMPORTANCES)
def test_scoring_changes_nothing(importance: str) -> None:
    module = cnn().train()
    module[0].weight.requires_grad_(False)
    module[3].weight.grad = torch.ones_like(module[3].weight)
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    pruned = prune(module, probe_of(images()), Selection(0.5, importance))
    assert module.training
    assert all(each.training for each in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    gradients = {name for name, each in module.named_parameters() if each.grad is not None}
    assert gradients == {"3.weight"}
    assert torch.equal(module[3].weight.grad, torch.ones_like(module[3].weight))
    assert torch.equal(torch.get_rng_state(), state)
    for narrow, whole in zip(pruned.module.parameters(), module.parameters(), strict=True):
        assert narrow.requires_grad is whole.requires_grad
        assert narrow.grad is None
    assert not pruned.module.training


def test_scores_that_cannot_be_are_refused() -> None:
    module = cnn()
    with pytest.raises(ValueError, match="unknown importance 'obdc'"):
        prune(module, probe_of(images()), Selection(0.5, "obdc"))
    nn.init.constant_(module[3].weight[2], math.nan)
    with pytest.raises(Unsupported, match="importance 'l2' of 3 is not finite"):
        prune(module, probe_of(images()), Selection(0.5, "l2"))
