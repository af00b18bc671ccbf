"""Parts of the data that share samples are refused; the few equal rows of real data are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from evalsuite.contract import Data, Split
from evalsuite.plugins import load
from evalsuite.run.making import PARTS, check_disjoint, data_of


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
    [("train", "test", 300), ("train", "calibration", 200), ("calibration", "validation", 200),
     ("validation", "test", 200), ("train", "validation", 200), ("calibration", "test", 200)],
)  # fmt: skip
def test_parts_that_share_samples_are_refused_by_name(one: str, other: str, size: int) -> None:
    few = 2 + size // 100
    check_disjoint(with_shared(few, one, other))
    with pytest.raises(
        ValueError, match=f"the parts {one} and {other} share {few + 1} of {size} samples: .* give each"
    ):
        check_disjoint(with_shared(few + 1, one, other))


def test_a_part_that_is_wholly_another_and_one_in_its_memory_are_refused_however_small() -> None:
    tiny = made((8, 1, 1, 1))
    with pytest.raises(ValueError, match="the parts calibration and test share 1 of 1 samples"):
        check_disjoint(replace(tiny, test=tiny.calibration))
    data = made()
    both = torch.cat([data.train.inputs, data.test.inputs])
    off_by_one = replace(
        data, train=Split(both[:1001], torch.zeros(1001).long()), test=Split(both[1000:], torch.zeros(300).long())
    )
    with pytest.raises(ValueError, match="the parts train and test share 1 of 300 samples"):
        check_disjoint(off_by_one)


def test_equal_inputs_with_other_targets_are_other_samples() -> None:
    data = made()
    check_disjoint(replace(data, test=Split(data.train.inputs[:300].clone(), data.train.targets[:300] + 1)))


@pytest.mark.parametrize("name", ["digits-cnn", "iris-mlp", "moons-mlp", "text-gpt"])
def test_our_own_data_pass_with_their_few_equal_rows(name: str) -> None:
    data = data_of(load("workloads", name).target())
    rows = [
        {(x.tobytes(), y.tobytes()) for x, y in zip(each.inputs.numpy(), each.targets.numpy(), strict=True)}
        for each in (getattr(data, part) for part in PARTS)
    ]
    equal = sum(len(rows[one] & rows[other]) for one, other in zip(*np.triu_indices(4, 1), strict=True))
    assert equal == {"iris-mlp": 1, "moons-mlp": 3}.get(name, 0)
