"""Masks, and constants that look like them: bounds assume nothing of a constant by its size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from networks_by_hand import Written
from torch import nn

from netverify.onnx_reader import graph_of_typed
from netverify.propagation import Propagation
from netverify.zonotopes.forward import zonotope_of
from opgraph import Graph, read
from opgraph.errors import Unsupported
from opgraph.scores import magnitudes, vanishing

LOWEST, BIG = torch.finfo(torch.float32).min, 2.0**100
ROWS = 3
CAUSAL = torch.ones(ROWS, ROWS).triu(1).bool()


def masks(fill: float, where: torch.Tensor = CAUSAL) -> torch.Tensor:
    return torch.zeros(ROWS, ROWS).masked_fill(where, fill)


class Tensors:
    """Choice and ReLU of tensors."""

    def choose(self, condition: Any, one: Any, other: Any) -> Any:
        return torch.where(condition, one, other)

    def relu(self, x: Any) -> Any:
        return x.relu()


class Numbers(Tensors):
    """The same of single numbers of many bits."""

    def choose(self, condition: Any, one: Any, other: Any) -> Any:
        return mpf(one if condition else other)

    def relu(self, x: Any) -> Any:
        return max(x, mpf(0))


# What a constant m is done to a score s with; `of` computes with tensors, or with exact numbers.
Formula = Callable[[Any, Any, Tensors], Any]
SIBLINGS: dict[str, tuple[torch.Tensor, Formula]] = {
    "float32's least": (masks(LOWEST), lambda s, m, of: s + m),
    "minus infinity": (masks(-math.inf), lambda s, m, of: s + m),
    "-2^100": (masks(-BIG), lambda s, m, of: s + m),
    "-1e9": (masks(-1e9), lambda s, m, of: s + m),
    "-1e4": (masks(-1e4), lambda s, m, of: s + m),
    "-30": (masks(-30.0), lambda s, m, of: s + m),
    "chosen": (masks(1.0), lambda s, m, of: of.choose(m > 0, -BIG, s)),
    "chosen, infinite": (masks(1.0), lambda s, m, of: of.choose(m > 0, -math.inf, s)),
    "chosen, float32's least": (masks(1.0), lambda s, m, of: of.choose(m > 0, LOWEST, s)),
    "times a factor": (masks(-BIG), lambda s, m, of: (s + m) * 0.125),
    "made small again": (masks(-BIG), lambda s, m, of: (s + m) * 2.0**-100),
    "taken back": (masks(-BIG), lambda s, m, of: (s + m) - m),
    "twice": (masks(-BIG), lambda s, m, of: (s + m) + m),
    "infinite, then finite": (masks(-math.inf), lambda s, m, of: (s + m) + 1.0),
    "+2^100": (masks(BIG), lambda s, m, of: s + m),
    "+2^100 elsewhere": (masks(BIG, ~CAUSAL), lambda s, m, of: s + m),
    "a whole row": (
        masks(LOWEST, torch.tensor([[True] * 3, [False] * 3, [False] * 3])),
        lambda s, m, of: s + m,
    ),
    "every row": (masks(-BIG, torch.ones(ROWS, ROWS).bool()), lambda s, m, of: s + m),
    "outweighed": (masks(-BIG), lambda s, m, of: BIG * of.relu(s) + m),
    "outweighed, chosen": (masks(1.0), lambda s, m, of: of.choose(m > 0, -BIG, -BIG * of.relu(s))),
    "outweighed later": (masks(-BIG), lambda s, m, of: (s + m) + BIG * of.relu(s)),
    "scores of huge scale": (masks(LOWEST), lambda s, m, of: 2.0**126 * s + m),
    "two levels": (masks(-BIG) + 2 * masks(-BIG, CAUSAL.roll(1, 0)), lambda s, m, of: s + m),
    "then through ReLU": (masks(-BIG), lambda s, m, of: of.relu(s + m)),
}


def network(mask: torch.Tensor, formula: Formula) -> nn.Module:
    torch.manual_seed(0)

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        scores = formula(net.first(x).reshape(-1, ROWS, ROWS), net.mask, Tensors())
        return (scores.softmax(-1) @ net.last.weight.T).flatten(1)  # type: ignore[no-any-return]

    first, last = nn.Linear(4, ROWS * ROWS), nn.Linear(ROWS, 2, bias=False)
    return Written(run, first=first, mask=mask, last=last).eval()


Bounded = Callable[[Graph, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@mpmath.workprec(600)  # type: ignore[untyped-decorator]
def exact(module: Any, formula: Formula, point: torch.Tensor) -> torch.Tensor:
    """The outputs at a point (4,), whose scores have 600 bits: no mask hides by rounding."""
    inputs, mask = [mpf(x) for x in point.tolist()], module.mask.flatten().tolist()
    scores, shares = [], []
    for row, bias, m in zip(
        module.first.weight.tolist(), module.first.bias.tolist(), mask, strict=True
    ):
        score = sum((mpf(a) * b for a, b in zip(row, inputs, strict=True)), mpf(bias))
        scores.append(formula(score, mpf(m), Numbers()))
    for row in (scores[start : start + ROWS] for start in range(0, ROWS * ROWS, ROWS)):
        greatest = max(row)
        powers = [mpmath.exp(score - greatest) for score in row]
        shares.append([float(power / sum(powers)) for power in powers])
    last: torch.Tensor = module.last.weight
    return (torch.tensor(shares, dtype=torch.float64) @ last.double().T).flatten()


def ends_of_zonotope(
    graph: Graph, lower: torch.Tensor, upper: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    eye = torch.eye(2 * ROWS, dtype=torch.float64)
    found = zonotope_of(graph, lower, upper)
    return found.lower_bounds(eye), -found.lower_bounds(-eye)


def ends_of_lines(
    graph: Graph, lower: torch.Tensor, upper: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    eye = torch.eye(2 * ROWS, dtype=torch.float64)
    found = (
        Propagation(graph_of_typed(graph, "x"), lower, upper)
        .lower_bounds(torch.cat([eye, -eye]))
        .value[0]
    )
    return found[: 2 * ROWS], -found[2 * ROWS :]


@torch.no_grad()
@pytest.mark.parametrize("name", SIBLINGS)
@pytest.mark.parametrize("bounded", [ends_of_zonotope, ends_of_lines])
def test_no_constant_hides_what_outweighs_it(bounded: Bounded, name: str) -> None:
    """Where bounds take a constant for a mask that is none, exact values lie outside."""
    mask, formula = SIBLINGS[name]
    module = network(mask, formula)
    graph = read(module, torch.randn(2, 4))
    generator, answered = torch.Generator().manual_seed(1), 0
    for eps in (0.0, 0.05, 1.0):
        center = torch.randn(1, 4, generator=generator).double()
        try:
            low, high = bounded(graph, center - eps, center + eps)
        except Unsupported:
            continue
        answered += 1
        moved = torch.rand(20, 4, generator=generator, dtype=torch.float64) * 2 - 1
        values = torch.stack([exact(module, formula, center[0] + eps * each) for each in moved])
        assert bool((values >= low - 1e-12).all())
        assert bool((values <= high + 1e-12).all())
    assert answered, name


@torch.no_grad()
@pytest.mark.parametrize("fill", [LOWEST, -math.inf, -BIG, -1e9, -1e4])
@pytest.mark.parametrize("bounded", [ends_of_zonotope, ends_of_lines])
def test_a_mask_that_nothing_outweighs_costs_no_precision(bounded: Bounded, fill: float) -> None:
    ends, eighth = [], torch.full((1, 4), 0.125, dtype=torch.float64)
    for each in (fill, -math.inf):
        module = network(masks(each), SIBLINGS["-2^100"][1])
        ends.append(bounded(read(module, torch.randn(2, 4)), -eighth, eighth))
    for one, other in zip(*ends, strict=True):
        assert torch.allclose(one, other, rtol=0.0, atol=1e-6)


def test_a_score_vanishes_where_bounds_prove_it() -> None:
    lower = torch.tensor(
        [[0.0, -2000.0, -math.inf], [-1e30, -1e30, -1e30], [-math.inf] * 3]
    ).double()
    upper = torch.tensor([[1.0, -999.0, -math.inf], [1e30, -1e30, -1e30], [-math.inf] * 3]).double()
    assert vanishing(lower, upper, -1).tolist() == [[False, False, True], [False] * 3, [True] * 3]
    upper[0, 1] = -1000.1
    assert vanishing(lower, upper, -1)[0].tolist() == [False, True, True]


@torch.no_grad()
def test_scores_behind_a_norm_have_bounds_for_every_input() -> None:
    torch.manual_seed(0)

    def run(net: Any, x: torch.Tensor) -> torch.Tensor:
        query, key = net.layer(net.norm(x.reshape(-1, 3, 4))).chunk(2, -1)
        return query @ key.transpose(1, 2)  # type: ignore[no-any-return]

    module = Written(run, layer=nn.Linear(4, 8), norm=nn.LayerNorm(4))
    graph = read(module.eval(), torch.randn(2, 12))
    most = magnitudes(graph)[graph.output]
    assert float(module(1e3 * torch.randn(1000, 12)).abs().max()) <= most < 1e3
    plain = read(nn.Linear(4, 8), torch.randn(2, 4))
    assert magnitudes(plain)[plain.output] == math.inf
