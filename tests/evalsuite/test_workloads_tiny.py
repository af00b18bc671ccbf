"""The workloads for exact verification: points, irises, and the digits with few neurons."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import MakeNetwork
from sklearn import datasets
from sklearn.datasets import load_iris
from torch import nn

from evalsuite.plugins import load
from evalsuite.workloads import moons
from evalsuite.workloads.iris import IrisMLP
from evalsuite.workloads.moons import MoonsMLP
from evalsuite.workloads.tiny import DigitsTinyMLP


@pytest.mark.parametrize(("name", "sizes"), [("moons-mlp", [500, 100, 100, 300]), ("iris-mlp", [60, 15, 15, 60])])
def test_parts_are_disjoint_stratified_and_repeatable(name: str, sizes: list[int]) -> None:
    data, again = load("workloads", name).target().data(), load("workloads", name).target().data()
    parts = [data.train, data.calibration, data.validation, data.test]
    assert [len(part) for part in parts] == sizes
    shares = torch.bincount(torch.cat([part.targets for part in parts])) / sum(sizes)
    for part, other in zip(parts, [again.train, again.calibration, again.validation, again.test], strict=True):
        assert torch.equal(part.inputs, other.inputs)
        assert torch.equal(part.targets, other.targets)
        assert part.inputs.dtype == torch.float32
        assert torch.allclose(torch.bincount(part.targets) / len(part), shares, atol=0.01)
        assert 0 <= part.inputs.min() <= part.inputs.max() <= 1
    assert (data.domain, data.classes, data.input_shape) == ((0.0, 1.0), len(shares), parts[0].inputs.shape[1:])
    assert data.fingerprint == load("workloads", name).target().fingerprint()


def test_irises_are_scaled_by_the_training_part_alone() -> None:
    data, raw = IrisMLP().data(), load_iris().data
    assert (data.train.inputs.amin(0) == 0).all()
    assert (data.train.inputs.amax(0) == 1).all()
    # Lengths have one decimal, so that a column's range in training is found by its number of steps.
    everything = torch.cat([part.inputs for part in (data.train, data.calibration, data.validation, data.test)])
    steps = torch.stack([column.unique().diff().min().reciprocal().round() for column in data.train.inputs.T])
    torch.testing.assert_close(everything * steps, (everything * steps).round(), atol=1e-4, rtol=0)
    whole = torch.from_numpy(np.ptp(raw, axis=0) * 10).round()
    assert bool((steps <= whole).all())
    assert bool((steps < whole).any())


def test_moons_are_short_numbers_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = MoonsMLP().data()
    units = data.train.inputs * 1024
    assert torch.equal(units, units.round())
    assert all(not bool((part.inputs == end).any()) for part in (data.train, data.test) for end in (0, 1))
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
    module = load("workloads", name).target(**options).build(lambda count: asked.append(count) or nn.ReLU())
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
    ("hidden", "message"),
    [
        ("", "joined by '-'"),
        ("16-", "joined"),
        ("16,16", "'16,16'"),
        ("0", "got 0"),
        ("2000", "from 1 to 1024, got 2000"),
    ],
)
def test_impossible_widths_are_refused(hidden: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"hidden must be .*{message}"):
        DigitsTinyMLP(hidden=hidden)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        DigitsTinyMLP(epochs=0)


@pytest.mark.parametrize("variant", ["gelu", "relu"])
@pytest.mark.parametrize(("name", "least"), [("moons-mlp", 0.97), ("iris-mlp", 0.93), ("digits-tiny-mlp", 0.9)])
@pytest.mark.slow
def test_they_learn_in_their_own_budget(network: MakeNetwork, name: str, variant: str, least: float) -> None:
    workload = load("workloads", name).target()
    test = workload.data().test
    module = network(name, variant, epochs=workload.epochs).module
    with torch.no_grad():
        assert (module(test.inputs).argmax(1) == test.targets).double().mean() >= least
