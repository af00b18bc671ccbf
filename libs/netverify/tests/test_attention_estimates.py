"""A long attention is refused by estimate, before its pairs are listed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import opgraph
from netverify.of_graph import nodes_of, refuse_attention
from opgraph import estimates
from opgraph.attention import attention_of
from opgraph.limits import held


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = (self.first(x) @ self.second(x).transpose(-1, -2)).softmax(-1)
        return shares @ x


@pytest.fixture
def limit() -> Iterator[None]:
    """What is said of the process's limit holds for the test alone."""
    yield
    estimates.allow(0)


def test_pairs_that_do_not_fit_are_refused_and_others_are_not(limit: None) -> None:
    long, short = (opgraph.read(_Attention(), torch.randn(2, n, 4)) for n in (60, 6))
    estimates.allow(held() + 2**22)
    with pytest.raises(opgraph.Unsupported, match=r"212400 scores or pairs.*GiB.*take fewer"):
        nodes_of(long, lambda: None)
    assert nodes_of(short, lambda: None)[0]
    estimates.allow(0)
    assert nodes_of(long, lambda: None)[0]


def test_two_networks_with_attention_take_twice_what_one_takes(limit: None) -> None:
    graph = opgraph.read(_Attention(), torch.randn(2, 60, 4))
    memory = attention_of(graph).memory
    estimates.allow(held() + 3 * memory // 2)
    refuse_attention(graph)
    with pytest.raises(opgraph.Unsupported, match="424800 scores or pairs of them"):
        refuse_attention(graph, networks=2)
