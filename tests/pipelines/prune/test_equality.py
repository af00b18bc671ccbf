"""The oracle: it sees what is wrong, and nothing else."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from evalsuite import Unsupported
from pipelines.prune.equality import equality_error
from pipelines.prune.selection import Pruned

pytestmark = pytest.mark.usefixtures("by_hand")


def mlp(scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)).eval()
    module[2].weight.mul_(scale)
    return module


def without(module: nn.Sequential, units: list[int]) -> Pruned:
    """Removed by hand."""
    kept = [each for each in range(6) if each not in units]
    narrow = copy.deepcopy(module)
    narrow[0].weight, narrow[0].bias = (
        nn.Parameter(each[kept]) for each in (module[0].weight, module[0].bias)
    )
    narrow[2].weight = nn.Parameter(module[2].weight[:, kept])
    return Pruned(narrow, {"0": units})


def test_outputs_and_inputs_of_any_kind() -> None:
    module, inputs = mlp(), torch.rand(2, 3, 4, 8)
    pruned = without(module, [1, 4])
    wrapped = Pruned(nn.ModuleDict({"inner": pruned.module}), {"inner.0": [1, 4]})
    for x in (inputs[0, 0], inputs[0], inputs):
        assert equality_error(module, pruned, lambda each, x=x: each(x)) < 1e-15
    # Inputs by name, and of a part of the network, are cast.
    assert equality_error(module, pruned, lambda each: each(input=inputs)) < 1e-15
    assert (
        equality_error(
            nn.ModuleDict({"inner": module}), wrapped, lambda each: each["inner"](inputs)
        )
        < 1e-15
    )
    # Tokens stay integers.
    table, tokens = nn.Embedding(9, 8), torch.randint(9, (3, 5))
    narrow = Pruned(nn.Sequential(copy.deepcopy(table), *pruned.module), {"1": [1, 4]})
    assert equality_error(nn.Sequential(table, *module), narrow, lambda each: each(tokens)) < 1e-15


@pytest.mark.parametrize("bias", [0.0, -100.0])  # where all units are 0, a wrong one is seen too
def test_a_wrong_channel_is_seen(bias: float) -> None:
    module, inputs = mlp(), torch.rand(5, 8)
    module[0].bias += bias
    pruned = without(module, [1])
    assert equality_error(module, pruned, lambda each: each(inputs)) < 1e-12
    pruned.module[2].weight.copy_(pruned.module[2].weight.flip(1))
    with pytest.raises(Unsupported, match="changed what the network computes by"):
        equality_error(module, pruned, lambda each: each(inputs))


def test_the_error_is_relative_to_each_output() -> None:
    module, inputs = mlp(1e6), torch.rand(5, 8)
    pruned = without(module, [1])
    # Outputs of 1e6 may be 0.1 off; an output near 0 may not, whatever the others are.
    pruned.module[2].bias[0] += 0.001
    assert 0 < equality_error(module, pruned, lambda each: each(inputs)) < 1e-6
    for each in (module, pruned.module):
        each[2].weight[0] = 0.0
    with pytest.raises(Unsupported, match=r"by 0.001 "):
        equality_error(module, pruned, lambda each: each(inputs))


def test_tiny_outputs_are_compared_with_each_other() -> None:
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    for parameter in module[2].parameters():
        parameter.mul_(1e-9)
    wrong = copy.deepcopy(module)
    wrong[2].weight.neg_()
    with pytest.raises(Unsupported, match="changed what the network computes"):
        equality_error(module, Pruned(wrong, {}), lambda each: each(torch.ones(4, 3)))


def test_equal_infinities_are_equal_and_nan_is_not() -> None:
    module, pruned = mlp(), without(mlp(), [1])
    for value, refused in ((-math.inf, False), (math.nan, True)):
        module[2].bias[0] = pruned.module[2].bias[0] = value
        if refused:
            with pytest.raises(Unsupported, match="by nan"):
                equality_error(module, pruned, lambda each: each(torch.ones(5, 8)))
        else:
            assert equality_error(module, pruned, lambda each: each(torch.ones(5, 8))) < 1e-15


def test_another_shape_or_a_crash_is_explained() -> None:
    module, inputs = mlp(), torch.rand(5, 8)
    pruned = without(module, [1])
    pruned.module[2].weight, pruned.module[2].bias = (
        nn.Parameter(each[:3]) for each in (pruned.module[2].weight, pruned.module[2].bias)
    )
    with pytest.raises(
        Unsupported, match=r"changed the outputs: shape \(5, 3\) instead of \(5, 4\)"
    ):
        equality_error(module, pruned, lambda each: each(inputs))
    pruned.module[2] = nn.Linear(6, 4)
    with pytest.raises(Unsupported, match="the pruned network does not run: RuntimeError: mat1"):
        equality_error(module, pruned, lambda each: each(inputs))
    with pytest.raises(
        Unsupported, match="the network does not run in float64: RuntimeError: mat1"
    ):
        equality_error(module, pruned, lambda each: each(torch.rand(5, 7)))


def test_an_activation_that_is_not_zero_at_zero_is_seen() -> None:
    module = nn.Sequential(nn.Linear(8, 6), nn.Sigmoid(), nn.Linear(6, 4)).eval()
    pruned = without(module, [3])
    with pytest.raises(Unsupported, match="maps 0 to something else"):
        equality_error(module, pruned, lambda each: each(torch.rand(5, 8)))


def test_neither_network_changes() -> None:
    module = mlp().train()
    pruned = without(module, [1])
    equality_error(
        module,
        pruned,
        lambda each: each(torch.rand(5, 8, generator=torch.Generator().manual_seed(0))),
    )
    for each in (module, pruned.module):
        assert each.training
        assert each[0].weight.dtype == torch.float32
        assert not each[0]._forward_hooks
        assert not each._forward_pre_hooks
