"""Intervals of a softmax by sums over its rows: those of its pairs, and sound."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import opgraph
from netverify import of_graph
from netverify.graph import Graph, Shares
from netverify.onnx_reader import graph_of_typed
from netverify.propagation import Propagation
from netverify.shares import shares_interval


class _Block(nn.Module):
    """Attention of two heads with a residual sum, causal or not, and a GELU behind."""

    def __init__(self, positions: int, *, causal: bool, gain: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(positions)
        self.joint, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8 * positions, 3)
        self.gain = gain
        mask = torch.zeros(positions, positions)
        if causal:
            mask = mask.masked_fill(~torch.ones_like(mask, dtype=torch.bool).tril(), -torch.inf)
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.joint(x).reshape(-1, x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
        shares = (self.gain * q @ k.transpose(-1, -2) + self.mask).softmax(-1)
        y = x + self.out((shares @ v).transpose(1, 2).flatten(2))
        return self.head(nn.functional.gelu(y).flatten(1))


def _graph(network: nn.Module, positions: int) -> Graph:
    return graph_of_typed(opgraph.read(network, torch.randn(2, positions, 8)), "x")


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pair is listed, however few there are."""
    monkeypatch.setattr(of_graph, "LISTED", 0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_shares_are_the_softmax_of_what_is_kept(axis: int) -> None:
    generator = torch.Generator().manual_seed(axis)
    x = torch.randn(5, 2, 3, 4, generator=generator, dtype=torch.float64)
    kept = torch.rand(2, 3, 4, generator=generator) < 0.7
    kept[0, 0, :] = False  # along the last axis nothing is left of this row
    found = Shares(kept, axis)(x.flatten(1)).reshape(x.shape)
    expected = x.masked_fill(~kept, -torch.inf).softmax(axis + 1).nan_to_num(0.0)
    assert torch.allclose(found, expected, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("scale", [1.0, 30.0, 2000.0])
def test_ends_are_those_of_the_worst_points(scale: float) -> None:
    """Each end against the softmax at the point where it is reached, up to scores of 2,000."""
    generator = torch.Generator().manual_seed(0)
    low = scale * torch.randn(4, 3 * 7, generator=generator, dtype=torch.float64)
    high = low + torch.rand(low.shape, generator=generator, dtype=torch.float64)
    kept = torch.rand(3, 7, generator=generator) < 0.8
    operation = Shares(kept, 1)
    least, most = shares_interval(operation, low, high)
    for place in range(21):
        ends = []
        for own, others in ((low, high), (high, low)):
            point = others.clone()
            point[:, place] = own[:, place]
            ends.append(operation(point)[:, place])
        assert bool((least[:, place] <= ends[0]).all())
        assert bool((ends[1] <= most[:, place]).all())
        slack = 1e-11 * (1 + scale)
        assert torch.allclose(least[:, place], ends[0], rtol=slack, atol=1e-12)
        assert torch.allclose(most[:, place], ends[1], rtol=slack, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("eps", [0.01, 0.1, 1.0])
def test_intervals_are_not_wider_than_those_of_pairs(
    causal: bool, eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = _Block(6, causal=causal).eval()
    center = torch.randn(3, 48, dtype=torch.float64)
    pairs = Propagation(_graph(network, 6), center - eps, center + eps, backward=False)
    monkeypatch.setattr(of_graph, "LISTED", 0)
    graph = _graph(network, 6)
    assert any(isinstance(node.operation, Shares) for node in graph.nodes)
    rows = Propagation(graph, center - eps, center + eps, backward=False)
    widths = [high - low for low, high in (pairs.outputs, rows.outputs)]
    assert bool((widths[1] <= widths[0] * (1 + 1e-9)).all())


@pytest.mark.usefixtures("by_rows")
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("causal", "gain"), [(False, 1.0), (True, 1.0), (False, 40.0)])
def test_no_point_lies_beyond_the_bounds(backward: bool, causal: bool, gain: float) -> None:
    network = _Block(5, causal=causal, gain=gain).eval()
    graph, eps = _graph(network, 5), 0.05
    center = torch.randn(2, 40, dtype=torch.float64)
    bounds = Propagation(graph, center - eps, center + eps, backward=backward)
    low, high = bounds.outputs
    below = bounds.lower_bounds(torch.cat([torch.eye(3), -torch.eye(3)]).double()).value
    for box in range(2):
        drawn = 2 * torch.rand(400, 40, dtype=torch.float64) - 1
        drawn[200:] = drawn[200:].sign()  # corners
        points = center[box] + eps * drawn
        made = network.double()(points.reshape(-1, 5, 8)).detach()
        assert bool(((low[box] <= made) & (made <= high[box])).all())
        assert bool((below[box] <= torch.cat([made, -made], 1)).all())


def test_a_long_attention_lists_no_pairs() -> None:
    """Of 104 positions and one box no value of the graph has more entries than products."""
    positions = 104
    network = _Block(positions, causal=False).eval()
    graph = _graph(network, positions)
    assert max(node.size for node in graph.nodes) == 2 * positions**2 * 4
    center = torch.randn(1, positions * 8, dtype=torch.float64)
    low, high = Propagation(graph, center - 1e-4, center + 1e-4, backward=False).outputs
    made = network.double()(center.reshape(1, positions, 8)).detach()
    assert bool(((low <= made) & (made <= high)).all())
