"""alpha-CROWN of all lines: never looser than of the margins' lines, sound, as tight as
auto_LiRPA's own, limited.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from bounds_sampled import Sampled, boxes, points_in
from cases import slow
from torch import nn

from benchmarks.bounds import upstream
from evalsuite import LambdaGELU, Network, Property
from pipelines.bounds import Bounds, certification
from pipelines.bounds import propagation as propagation_module
from pipelines.bounds.adapter import Engine
from pipelines.bounds.margins import proven
from pipelines.bounds.propagation import Propagation

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

Act = Callable[[], nn.Module]
SHAPES = {"mlp": (4,), "cnn": (1, 3, 3)}


def made(kind: str, act: Act) -> Network:
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Linear(4, 10), act(), nn.Linear(10, 10), act(), nn.Linear(10, 3)]
    if kind == "cnn":
        layers = [
            nn.Conv2d(1, 3, 3, padding=1),
            act(),
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            act(),
            nn.Flatten(),
            nn.Linear(16, 8),
            act(),
            nn.Linear(8, 3),
        ]
    return Network(kind, nn.Sequential(*layers).eval(), SHAPES[kind], 3)


def asked(kind: str) -> list[Property]:
    return boxes(SHAPES[kind], 1.0, 6, centers=torch.randn, domain=(-9.0, 9.0))


def corners(box: Property) -> torch.Tensor:
    """All of a small box."""
    shares = torch.tensor(
        list(itertools.product((0.0, 1.0), repeat=box.lower.numel())), dtype=torch.float64
    )
    return box.lower + shares.reshape(-1, *box.lower.shape) * (box.upper - box.lower)


@pytest.mark.parametrize("act", [nn.ReLU, slow(nn.GELU), slow(lambda: LambdaGELU(hardness=5.0))])
@pytest.mark.parametrize("kind", SHAPES)
def test_all_lines_are_sound_and_never_looser_than_the_margins_lines(kind: str, act: Act) -> None:
    network, properties = made(kind, act), asked(kind)
    every, last = (Propagation(network, iterations=10, all_lines=each) for each in (True, False))
    crown = last.bounds(properties, "crown")
    before, found = (each.bounds(properties, "alpha-crown", crown) for each in (last, every))
    assert every.second.limited == ""
    assert (before.margins >= crown.margins).all()
    assert (found.margins >= before.margins).all()
    closed, more = (found.margins - crown.margins).sum(), (found.margins - before.margins).sum()
    assert more > 0.05 * closed > 0
    points = [torch.cat([corners(each), points_in(each, 1000)]) for each in properties]
    Sampled(network, properties, points).check(found)


@pytest.mark.parametrize("kind", SHAPES)
def test_bounds_of_relu_are_as_tight_as_those_of_the_library(kind: str) -> None:
    network, properties = made(kind, nn.ReLU), asked(kind)
    found = Propagation(network).bounds(properties, "alpha-crown")
    theirs = upstream(network, properties)
    open_ = ~proven(found)
    assert open_.sum() >= 3
    lost = ((theirs - found.margins) / theirs.abs())[open_]
    assert lost.mean() <= 0
    # margins share the bounds of activations: of one property's, one may gain at the other's cost
    if kind == "mlp":
        assert lost.max() <= 1e-4


def test_more_inputs_than_fit_are_treated_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    network, properties = made("mlp", nn.ReLU), asked("mlp")
    whole, parts = Propagation(network, iterations=12), Propagation(network, iterations=12)
    found = whole.bounds(properties, "alpha-crown").margins
    monkeypatch.setattr(Engine, "batch_of_all_lines", lambda *_: 2)
    again = parts.bounds(properties, "alpha-crown").margins
    assert torch.allclose(found, again, atol=1e-3)


def test_lines_that_do_not_fit_into_memory_are_left_out_and_told() -> None:
    network, properties = made("mlp", nn.ReLU), asked("mlp")
    small, last = (
        Propagation(network, iterations=5, memory=2**10),
        Propagation(network, iterations=5, all_lines=False),
    )
    found, known = (each.bounds(properties, "alpha-crown").margins for each in (small, last))
    assert "do not fit into memory" in small.second.limited
    assert torch.allclose(found, known, atol=1e-9)
    one = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    # there are no lines but the margins'
    propagation = Propagation(Network("one", one, (4,), 3), iterations=2)
    propagation.bounds(properties, "alpha-crown")
    assert propagation.second.limited == ""


def test_the_time_for_all_lines_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    network, properties = made("mlp", nn.ReLU), asked("mlp")
    every, last = (
        Propagation(network, iterations=8),
        Propagation(network, iterations=8, all_lines=False),
    )
    crown = every.bounds(properties, "crown")
    whole, none = (
        each.bounds(properties, "alpha-crown", crown).margins.sum() for each in (every, last)
    )
    ticks = itertools.count()
    # A clock by which each look takes a second: all iterations on the margins' lines, and three on
    # all.
    monkeypatch.setattr(propagation_module.time, "monotonic", lambda: float(next(ticks)))
    short = every.bounds(properties, "alpha-crown", crown, seconds=15.0).margins.sum()
    assert next(ticks) < 20
    assert none + 1e-3 < short < whole - 1e-3


def test_a_recipe_can_ask_for_the_margins_lines_alone(
    network: MakeNetwork, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watched(*given: Any, **options: Any) -> Propagation:
        seen.append(options["all_lines"])
        return Propagation(*given, **options)

    monkeypatch.setattr(certification, "Propagation", watched)
    for options in ({}, {"all_lines": False}):
        stage = Bounds(
            eps=(0.0625,), samples=1, methods=("crown", "alpha-crown"), iterations=1, **options
        )
        stage.run(network("digits-mlp", "gelu"), bench("digits-mlp"))
    assert seen == [True, False]


def test_chords_have_gradients_by_their_intervals_ends_and_lines_stay_what_they_are() -> None:
    node = Propagation(made("mlp", nn.GELU)).second._engine()._activations[0]
    ends = torch.tensor([[-1.0], [1.2]], dtype=torch.float64).expand(2, 10).clone()
    points = (torch.zeros(1, 10, dtype=torch.float64),) * 2
    low, high = (end[None].requires_grad_() for end in ends)
    lines = node._lines(low, high, points)
    found = node._following(lines, low, high)
    assert all(torch.equal(each, line) for each, line in zip(found, lines, strict=True))
    step = 1e-5
    for place, moved in ((low, (step, 0.0)), (high, (0.0, step))):
        up = node._lines(low + moved[0], high + moved[1], points)
        down = node._lines(low - moved[0], high - moved[1], points)
        for part in (2, 3):  # above is a chord, below a tangent at the point
            (gradient,) = torch.autograd.grad(found[part].sum(), place, retain_graph=True)
            assert torch.allclose(
                gradient, (up[part] - down[part]) / (2 * step), rtol=1e-3, atol=1e-6
            )
