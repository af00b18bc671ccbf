"""Estimates of what a network takes: counted by hand, alike of a module and of its file, and
refusals by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import opgraph
from opgraph import estimates
from opgraph.attention import attention_of
from opgraph.estimates import peak_bytes, work_of, work_of_file
from opgraph.limits import held


class _Attention(nn.Module):
    """Two heads of 4 features over 6 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.joint(x).reshape(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        return (shares @ v).transpose(1, 2).reshape(-1, 48)


@pytest.fixture
def limit() -> Iterator[None]:
    """What is said of the process's limit holds for the test alone."""
    yield
    estimates.allow(0)


def test_a_dense_network_by_hand(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 4))
    work = work_of(network, torch.zeros(3, 10))
    assert work.multiplications == 10 * 30 + 30 * 4
    assert work.parameters == 10 * 30 + 30 + 30 * 4 + 4
    assert work.outputs == 4
    assert work.widest == 30 + 30  # what ReLU reads and makes
    assert work.made == 30 + 30 + 4
    assert work.memory(7) == 4 * (work.parameters + 7 * (60 + 4))
    assert work.seconds(20) == pytest.approx(20 * work.seconds(1))
    file = work_of_file(opgraph.export_onnx(network, (10,), tmp_path / "net.onnx"))
    assert file == work


def test_a_convolution_by_hand(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.GELU(), nn.Flatten())
    work = work_of(network, torch.zeros(2, 4, 5, 5))
    assert work.multiplications == 6 * 25 * 2 * 9
    assert work.outputs == 150
    file = work_of_file(opgraph.export_onnx(network, (4, 5, 5), tmp_path / "net.onnx"))
    assert file.multiplications == work.multiplications
    assert file.outputs == work.outputs
    assert file.parameters == work.parameters + 2  # the shape that Flatten was written as


def test_attention_counts_its_scores(tmp_path: Path) -> None:
    work = work_of(_Attention(), torch.zeros(1, 6, 8))
    assert work.multiplications == 6 * 8 * 24 + 2 * (2 * 36 * 4)
    file = work_of_file(opgraph.export_onnx(_Attention(), (6, 8), tmp_path / "net.onnx"))
    assert file.multiplications == work.multiplications
    attention = attention_of(opgraph.read(_Attention(), torch.randn(2, 6, 8)))
    assert attention.pairs == 2 * 6 * 6 * 5
    assert attention.products == 2 * (2 * 36 * 4)
    assert attention.largest == 2 * 6 * 6 * 5


def test_the_module_that_is_measured_stays_as_it_was() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()).train()
    before = {name: each.clone() for name, each in network.state_dict().items()}
    work_of(network, torch.randn(4, 3))
    assert network.training
    assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())


def test_peak_bytes_of_a_batch_grow_with_it_alone(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(10, 3000), nn.ReLU(), nn.Linear(3000, 4))
    model = opgraph.export_onnx(network, (10,), tmp_path / "net.onnx")
    weights = 4 * sum(parameter.numel() for parameter in network.parameters())
    assert [peak_bytes(model, batch) - weights for batch in (1, 64)] == [24_000, 64 * 24_000]


def test_what_does_not_fit_is_refused_with_the_cure(limit: None) -> None:
    estimates.allow(held() + 2**20)
    assert estimates.allowed() <= 2**20
    assert estimates.too_large(2**18, "a batch") == ""
    with pytest.raises(opgraph.Unsupported, match=r"a batch would take about 2 GiB.*: take less"):
        estimates.refuse_beyond(2**31, "a batch", "take less")
    estimates.allow(0)
    estimates.refuse_beyond(2**21, "a batch", "take less")


def test_what_takes_too_long_says_how_long() -> None:
    assert estimates.too_slow(3, 4, "timing") == ""
    assert estimates.too_slow(300, 4, "timing").startswith("timing would take about 3e+02 s")
