"""Exact removal: planted units are found and counted, nothing else goes, and the function stays."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import written
from cases import seeds
from torch import nn

from evalsuite import LambdaGELU, Unsupported, certify_swap, fold_hardness
from pipelines.prune.exact.kinds import dependent_rows
from pipelines.prune.exact.removing import Removed, padded_back, reads_chain, remove_all

pytestmark = pytest.mark.usefixtures("by_hand")

DOMAIN = (0.0, 1.0)


def change(
    module: nn.Module,
    removed: Removed,
    shape: tuple[int, ...],
    domain: tuple[float, float] = DOMAIN,
) -> float:
    """The greatest change of an output over random points and corners, in float64."""
    points = torch.rand(
        600, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    points[:200] = points[:200].round()
    points = domain[0] + (domain[1] - domain[0]) * points
    before, after = (copy.deepcopy(each).double().eval() for each in (module, removed.module))
    return float((before(points) - after(points)).abs().max())


def checked(module: nn.Module, shape: tuple[int, ...], most: float = 1e-6) -> Removed:
    """Without the units that do nothing over the domain: its outputs change by less than `most`."""
    removed = remove_all(module, reads_chain(shape, DOMAIN))
    assert change(module, removed, shape) < most
    return removed


def kinds(removed: Removed) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for claim in removed.claims:
        found.setdefault(claim.hidden.producer, {})[claim.unit] = claim.removal.kind.value
    return found


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    module = written.mlp(*widths, activation=activation)
    for layer in module[:-1:2]:
        # No unit of a fresh network may be off or on: its middle is 0 in the middle of the domain.
        layer.bias.copy_(-layer.weight.sum(1) / 2 + 0.01)
    return module


def planted(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """3-10-6-2: unit 0 constant, 1 off, 2 unused, 3 and 4 duplicates, 5 to 9 on, of which 3
    span; 2 of 6 constant.
    """
    module = mlp(3, 10, 6, 2, activation=activation)
    first, second = module[0], module[2]
    first.weight[0], first.bias[0] = 0.0, 0.7
    first.weight[1], first.bias[1] = torch.tensor([-1.0, -0.5, -2.0]), -0.1
    second.weight[:, 2] = 0.0
    first.weight[4], first.bias[4] = first.weight[3], first.bias[3]
    first.weight[5:10] = torch.rand(5, 3)
    first.bias[5:10] = 0.3
    second.weight[2], second.bias[2] = 0.0, 1.5
    return module


def test_planted_units_are_found_and_the_function_stays() -> None:
    module = planted()
    removed = checked(module, (3,))
    found = kinds(removed)["0"]
    assert {unit: found[unit] for unit in (0, 1, 2, 4)} == {
        0: "constant",
        1: "off",
        2: "unused",
        4: "duplicate",
    }
    assert Counter(found.values())["merged"] == 2
    assert {unit for unit, kind in found.items() if kind == "merged"} < {5, 6, 7, 8, 9}
    assert 3 not in found
    assert kinds(removed)["2"][2] == "constant"
    assert removed.module[0].weight.shape == (4, 3)
    assert (removed.module[0].out_features, removed.module[2].in_features) == (4, 4)
    assert len(removed.kept["0"]) == 4


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU, lambda: LambdaGELU(hardness=2.5)])
def test_smooth_activations_lose_constants_unused_and_duplicates_only(
    activation: Callable[[], nn.Module],
) -> None:
    module = planted(activation)
    folded = fold_hardness(module)
    removed = remove_all(folded, reads_chain((3,), DOMAIN))
    assert kinds(removed) == {
        "0": {0: "constant", 2: "unused", 4: "duplicate"},
        "2": {2: "constant"},
    }
    assert change(folded, removed, (3,)) < 1e-6
    assert change(module, removed, (3,)) < 1e-5


def test_a_constant_counts_with_the_output_of_its_activation() -> None:
    module = mlp(2, 2, 1, activation=nn.GELU)
    module[0].weight[0], module[0].bias[0] = 0.0, 1.0
    module[2].weight[0, 0], module[2].bias[0] = 2.0, 0.5
    removed = remove_all(module, reads_chain((2,), DOMAIN))
    # gelu(1) = 0.8413447
    assert float(removed.module[2].bias.detach()) == pytest.approx(
        0.5 + 2 * 0.8413447460685429, abs=1e-6
    )


def test_what_a_removal_makes_constant_or_unused_goes_too() -> None:
    module = mlp(3, 4, 4, 2)
    module[0].weight[0], module[0].bias[0] = 0.0, 0.4
    module[2].weight[1] = torch.tensor([2.0, 0.0, 0.0, 0.0])  # reads the constant only
    module[4].weight[:, 2] = 0.0
    module[2].weight[[0, 1, 3], 3] = 0.0  # read by unit 2 only, which nothing reads
    module[2].weight[3] = torch.tensor([0.1, 1.0, -1.0, 0.0])
    removed = checked(module, (3,))
    assert kinds(removed) == {"0": {0: "constant", 3: "unused"}, "2": {1: "constant", 2: "unused"}}
    assert [claim.unit for claim in removed.claims].count(3) == 1


@pytest.mark.parametrize(("bias", "goes"), [(-1e-6, True), (1e-6, False)])
def test_at_the_edge_of_the_domain(bias: float, goes: bool) -> None:
    # x - 1 + bias is positive, by 1e-6, at x = 1 only.
    module = mlp(1, 3, 1)
    module[0].weight[0], module[0].bias[0] = 1.0, -1.0 + bias
    removed = checked(module, (1,), 1e-15)  # off units alone change nothing at all
    assert (kinds(removed).get("0", {}).get(0) == "off") is goes
    # What is off in [0, 1] is not in [0, 2].
    assert not remove_all(module, reads_chain((1,), (0.0, 2.0))).claims


def test_a_bound_of_exactly_0_is_removed_or_kept_but_never_wrong() -> None:
    module = mlp(2, 3, 1)
    module[0].weight[0], module[0].bias[0] = torch.tensor([0.5, 0.25]), -0.75
    assert change(module, remove_all(module, reads_chain((2,), DOMAIN)), (2,)) < 1e-12


@pytest.mark.parametrize("seed", seeds(6, 12))
def test_units_of_random_networks_go_only_with_the_function_kept(seed: int) -> None:
    torch.manual_seed(seed)
    activation = nn.ReLU if seed % 3 else nn.GELU
    module = nn.Sequential(
        nn.Linear(3, 9), activation(), nn.Linear(9, 7), activation(), nn.Linear(7, 2)
    ).eval()
    for layer in (module[0], module[2]):
        layer.bias.add_(torch.randn_like(layer.bias))
        layer.weight.mul_((torch.rand_like(layer.weight) > 0.6).float())
    domain = (-0.5, 0.5) if seed % 2 else DOMAIN
    removed = remove_all(module, reads_chain((3,), domain))
    assert change(module, removed, (3,), domain) < 1e-5
    # An oracle for off units: none of them is ever positive at a sample.
    points = domain[0] + (domain[1] - domain[0]) * torch.rand(2000, 3, dtype=torch.float64)
    for claim in removed.claims:
        place = int(claim.hidden.activation)
        values = claim.module[:place](points)[:, claim.removal.unit]
        if claim.removal.kind.value == "off":
            assert float(values.max()) <= 0
        if claim.removal.kind.value == "merged":
            assert float(values.min()) >= 0


def test_a_layer_keeps_one_unit() -> None:
    module = mlp(2, 3, 2)
    module[0].weight.zero_()
    removed = checked(module, (2,))
    assert removed.module[0].weight.shape == (1, 2)
    assert len(removed.claims) == 2


def convolutions(padding: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        activation(),
        nn.Conv2d(4, 3, 3, padding=padding, bias=False),
        nn.BatchNorm2d(3),
        activation(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * (9 if padding else 4), 2),
    )
    module(torch.randn(64, 1, 6, 6))
    for at in (1, 4):
        module[at].weight.copy_(1 + torch.rand_like(module[at].weight))
        module[at].bias.copy_(torch.rand_like(module[at].bias))
    return module.eval()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_a_constant_channel_is_another_value_where_zeros_are_padded(
    activation: Callable[[], nn.Module],
) -> None:
    for padding, folded in ((0, True), (1, False)):
        module = convolutions(padding, activation)
        module[1].weight[2] = 0.0  # BatchNorm makes channel 2 the constant 0.8
        module[1].bias[2] = 0.8
        removed = checked(module, (1, 6, 6), 1e-5)
        assert kinds(removed) == ({"0": {2: "constant"}} if folded else {})
        assert removed.unfolded == (0 if folded else 1)
        assert (removed.module[3].bias is not None) is folded


def of_value_0(module: nn.Sequential) -> None:
    module[0].weight[1] = 0.0
    module[1].bias[1] = -3.0
    module[1].running_mean[1] = 0.0


def off(module: nn.Sequential) -> None:
    # -2 (conv - 0) - 0.1 with weights >= 0 is below 0; with +2 it is not.
    module[0].weight[0:2] = module[0].weight[0:2].abs()
    module[1].weight[0:2] = torch.tensor([-2.0, 2.0])
    module[1].bias[0:2] = -0.1
    module[1].running_mean[0:2] = 0.0


def of_another_value(module: nn.Sequential) -> None:
    module[3].weight[1] = 0.0
    module[4].bias[1] = 5.0


@pytest.mark.parametrize(
    ("plant", "found", "widths"),
    [
        (of_value_0, {"0": {1: "constant"}}, (3, 27)),  # whatever the padding
        (off, {"0": {0: "off"}}, (3, 27)),
        (of_another_value, {"3": {1: "constant"}}, (4, 18)),  # before pooling and flattening
    ],
)
def test_channels_behind_a_batchnorm(
    plant: Callable[[nn.Sequential], None],
    found: dict[str, dict[int, str]],
    widths: tuple[int, int],
) -> None:
    module = convolutions(1)
    plant(module)
    removed = checked(module, (1, 6, 6), (1e-6 if plant is of_another_value else 1e-12))
    assert kinds(removed) == found
    assert (removed.module[1].num_features, removed.module[8].in_features) == widths
    assert removed.module[8].weight.shape == (2, widths[1])


@pytest.mark.parametrize("linear", [True, False])
def test_padded_pooling_makes_a_constant_channel_uneven(linear: bool) -> None:
    consumer = [nn.Flatten(), nn.Linear(3 * 16, 2)] if linear else [nn.Conv2d(3, 2, 2)]
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding="same"), nn.GELU()),
        nn.AvgPool2d(3, 1, padding=1),
        nn.Sequential(*consumer, nn.Identity()),
    ).eval()
    module[0][0].weight[1], module[0][0].bias[1] = 0.0, 1.0
    removed = checked(module, (1, 4, 4))
    assert kinds(removed) == ({"0.0": {1: "constant"}} if linear else {})
    assert removed.unfolded == (0 if linear else 1)


def test_pooling_that_takes_units_for_positions_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.AvgPool1d(2), nn.Linear(3, 2)).eval()
    module[0].weight[1] = 0.0
    removed = remove_all(module, reads_chain((3,), DOMAIN))
    assert not removed.claims
    assert removed.layers.kept_whole == {"1": "pooling behind it mixes its units"}


def test_sequences() -> None:
    module = nn.Sequential(
        nn.Conv1d(2, 4, 3),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Conv1d(4, 3, 2, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(3, 2),
    ).eval()
    module[0].weight[2], module[1].bias[2] = 0.0, 2.0
    module[3].bias[1:] = 1.0
    module[3].weight[0], module[3].bias[0] = -module[3].weight[0].abs(), -0.1
    removed = checked(module, (2, 8))
    assert kinds(removed) == {"0": {2: "constant"}, "3": {0: "off"}}


def test_duplicate_channels() -> None:
    module = convolutions(1, nn.GELU)
    module[0].weight[3] = module[0].weight[1]
    for tensor in (module[1].weight, module[1].bias, module[1].running_mean, module[1].running_var):
        tensor[3] = tensor[1]
    removed = checked(module, (1, 6, 6))
    assert kinds(removed) == {"0": {3: "duplicate"}}
    module[1].running_var[3] *= 2  # the convolution's rows are equal, the channels are not
    assert not remove_all(module, reads_chain((1, 6, 6), DOMAIN)).claims


def test_a_batchnorm_behind_the_activation_makes_values_of_zeros() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module(torch.randn(64, 2))
    module = module.eval()
    module[0].weight[0], module[0].bias[0] = -module[0].weight[0].abs(), -0.1
    module[0].weight[2], module[0].bias[2] = module[0].weight[1], module[0].bias[1]
    removed = checked(module, (2,))
    found = kinds(removed)["0"]
    assert found[0] == "off"
    assert "duplicate" not in found.values()  # BatchNorm gives the two other factors
    assert removed.module[2].num_features == 4 - len(found)


def test_merged_units_behind_a_batchnorm() -> None:
    module = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).eval()
    module[0].weight.abs_()
    module[0].bias.fill_(1.0)
    module[1].weight.copy_(torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0]))
    removed = checked(module, (2,))
    assert Counter(kinds(removed)["0"].values()) == {"merged": 3}


@pytest.mark.parametrize("seed", range(6))
def test_duplicates_of_units_that_could_be_merged(seed: int) -> None:
    """What takes over a duplicate's part must not leave with it."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    distinct = torch.cat([torch.eye(3), torch.ones(1, 3)])[torch.randperm(4)]
    module[0].weight.copy_(torch.cat([distinct, distinct[torch.randint(4, (4,))]]))
    module[0].bias.fill_(1.0)
    removed = checked(module, (3,), 1e-5)
    assert Counter(each.removal.kind.value for each in removed.claims) == {
        "duplicate": 4,
        "merged": 1,
    }
    assert removed.module[0].out_features == 3


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)])
def test_shared_layers_are_refused(layer: nn.Module) -> None:
    module = nn.Sequential(
        nn.Linear(4, 4), layer, nn.ReLU(), nn.Linear(4, 4), layer, nn.ReLU(), nn.Linear(4, 2)
    ).eval()
    module[0].weight[1] = 0.0
    with pytest.raises(Unsupported, match="share"):
        remove_all(module, reads_chain((4,), DOMAIN))


def test_layers_that_stay_whole_say_why() -> None:
    module = nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
        nn.ReLU(),
    ).eval()
    module[1].weight[1] = 0.0
    module[4].weight[1] = 0.0
    removed = remove_all(module, reads_chain((2, 4, 4), DOMAIN))
    assert not removed.claims
    assert removed.layers.kept_whole.keys() == {"0", "2", "5"}
    assert "ungrouped" in removed.layers.kept_whole["2"]
    assert "behind" in removed.layers.kept_whole["5"]
    assert removed.layers.units == 2 + 4 + 3


def test_the_network_itself_is_left_alone_and_requires_grad_kept() -> None:
    module = planted()
    module[0].weight.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    removed = remove_all(module, reads_chain((3,), DOMAIN))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert not removed.module[0].weight.requires_grad
    assert removed.module[2].weight.requires_grad
    assert {each.dtype for each in removed.module.parameters()} == {torch.float32}


def narrowed_convolutions() -> nn.Sequential:
    module = convolutions(1)
    module[0].weight[1] = 0.0
    module[1].bias[1] = -3.0
    module[3].weight[0] = 0.0
    return module


def without_duplicates() -> nn.Sequential:
    module = planted()
    module[0].bias[4] -= 0.01
    return module


@pytest.mark.parametrize(
    ("make", "shape", "most"),
    # Of duplicates that are neither on nor off the bounds do not see that they cancel.
    [
        (planted, (3,), 1.0),
        (without_duplicates, (3,), 1e-6),
        (narrowed_convolutions, (1, 6, 6), 1e-6),
    ],
)
def test_padded_back_is_the_narrowed_network(
    make: Callable[[], nn.Sequential], shape: tuple[int, ...], most: float
) -> None:
    module = make()
    removed = remove_all(module, reads_chain(shape, DOMAIN))
    assert removed.claims
    padded = padded_back(module, removed.module, removed.kept, removed.layers.hidden)
    shapes = {name: each.shape for name, each in padded.named_parameters()}
    assert all(shapes[name] == each.shape for name, each in module.named_parameters())
    assert change(padded, removed, shape) < 1e-13
    bound = certify_swap(
        module, torch.zeros(1, *shape), torch.ones(1, *shape), swapped=padded
    ).disruption
    assert change(module, removed, shape) <= float(bound) < most


@pytest.mark.parametrize("seed", range(5))
def test_dependent_rows_against_a_known_rank(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    rows = torch.cat([basis, torch.randn(4, 3, generator=generator, dtype=torch.float64) @ basis])
    rows = rows[torch.randperm(7, generator=generator)]
    found = dependent_rows(rows)
    assert len(found) == 7 - 3
    for row, shares in found.items():
        assert not shares.keys() & found.keys()
        total = sum(share * rows[other] for other, share in shares.items())
        torch.testing.assert_close(total, rows[row], rtol=0, atol=1e-9)
    independent = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    assert dependent_rows(independent) == {}
    # Near is not equal.
    near = torch.cat([independent, independent[:1] + 1e-5 * independent[1:2].roll(1, 1)])
    assert dependent_rows(near) == {}
    assert dependent_rows(independent[:0]) == {}
