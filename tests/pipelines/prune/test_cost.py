"""Bytes of memory by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from written import Written

from evalsuite import export_onnx
from evalsuite.workloads.transformer import Attention
from pipelines.prune.cost import peak_bytes
from pipelines.prune.size import macs_of, parameters_of


def test_peak_of_a_chain_is_its_widest_pair(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)).eval()
    model = export_onnx(module, (6,), tmp_path / "chain.onnx")
    weights = 4 * parameters_of(module)
    # At the activation, its input and its output of 20 each.
    assert peak_bytes(model, 1) == weights + 4 * 40
    assert peak_bytes(model, 64) == weights + 64 * 4 * 40


def test_what_a_residual_block_adds_stays_alive(tmp_path: Path) -> None:
    module = Written(
        lambda net, x: x + net.down(net.act(net.up(x))), up=nn.Linear(8, 24), act=nn.ReLU(), down=nn.Linear(24, 8)
    ).eval()
    model = export_onnx(module, (8,), tmp_path / "block.onnx")
    assert peak_bytes(model, 2) == 4 * parameters_of(module) + 2 * 4 * (8 + 24 + 24)


@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_counted(fused: bool) -> None:
    heads, positions, size = 2, 5, 4
    attention = 2 * heads * positions**2 * size
    projections = positions * (3 * 8 * 8 + 8 * 8)
    if fused:
        layer = nn.TransformerEncoderLayer(8, heads, 16, dropout=0.0, batch_first=True).eval()
        assert macs_of(layer, torch.zeros(1, positions, 8)) == attention + projections + positions * 2 * 8 * 16
    else:
        module = Attention(8, heads, causal=False).eval()
        assert macs_of(module, torch.zeros(1, positions, 8)) == attention + projections
    assert torch.backends.mha.get_fastpath_enabled()


def test_shared_weights_count_once() -> None:
    layer = nn.Linear(5, 5)
    assert parameters_of(nn.Sequential(layer, nn.ReLU(), layer)) == 30


def test_multiply_accumulates_of_a_convolution_by_hand() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    assert macs_of(module, torch.zeros(1, 1, 8, 8)) == 8 * 8 * 4 * 9 + 2560
