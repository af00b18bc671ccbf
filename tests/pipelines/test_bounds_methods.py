"""What the methods share: intersections, a time budget, memory, names of layers, patches on
residual networks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from bounds_sampled import boxes
from torch import nn
from written import Written, affine
from written import mlp as widths

from evalsuite import Bench, LambdaGELU, Network, Property, Unsupported
from evalsuite.workloads.transformer import ResidualBlock
from pipelines.bounds import Bounds
from pipelines.bounds import propagation as propagation_module
from pipelines.bounds.propagation import Propagation

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]


def mlp(act: Callable[[], nn.Module], classes: int = 3) -> Network:
    return Network("mlp", widths(4, 8, 8, classes, activation=act), (4,), classes)


def test_crown_lies_within_intervals_everywhere() -> None:
    propagation = Propagation(mlp(nn.ReLU))
    for eps in (0.01, 0.3, 1.0):
        properties = boxes((4,), eps, 6)
        ibp, crown = propagation.bounds(properties, "ibp"), propagation.bounds(properties, "crown")
        assert (crown.margins >= ibp.margins).all()
        assert (crown.lower >= ibp.lower).all()
        assert (crown.upper <= ibp.upper).all()
        for (low, high), (least, most) in zip(crown.inputs, ibp.inputs, strict=True):
            assert (low >= least - 1e-12).all()
            assert (high <= most + 1e-12).all()


def test_forward_bounds_and_crown_ibp_by_hand() -> None:
    # y = relu(x) on [-1, 2]: the chord 2 (x + 1) / 3 above, x below as 2 > 1; out = -y lies in [-2,
    # 1]; CROWN-IBP knows by intervals that it is not above 0.
    module = nn.Sequential(
        affine([[1.0]], [0.0]), nn.ReLU(), affine([[-1.0], [0.0]], [0.0, 0.0])
    ).eval()
    box = Property(0, 0, 0.0, torch.tensor([-1.0]).double(), torch.tensor([2.0]).double())
    propagation = Propagation(Network("n", module, (1,), 2))
    for method, most in (("forward", 1.0), ("crown-ibp", 0.0)):
        found = propagation.bounds([box], method)
        assert found.lower[0].tolist() == pytest.approx([-2.0, 0.0], abs=1e-8)
        assert found.upper[0].tolist() == pytest.approx([most, 0.0], abs=1e-8)
        assert found.inputs[0][0].item() == pytest.approx(-1.0, abs=1e-8)
    assert propagation.bounds([box], "crown").upper[0, 0].item() == pytest.approx(0.0, abs=1e-8)


def test_an_unknown_method_and_no_properties_are_refused() -> None:
    propagation = Propagation(mlp(nn.ReLU))
    with pytest.raises(ValueError, match=r"method must be one of ibp, .* got 'crwn'"):
        propagation.bounds(boxes((4,), 0.1, 1), "crwn")
    with pytest.raises(ValueError, match="bounds of no properties"):
        propagation.bounds([], "crown")


def test_what_forward_bounds_do_not_manage_is_told_and_harms_nothing() -> None:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 2, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 3),
    ]
    propagation = Propagation(Network("pooled", nn.Sequential(*layers).eval(), (1, 4, 4), 3))
    properties = boxes((1, 4, 4), 0.1, 2)
    before = propagation.bounds(properties, "crown")
    with pytest.raises(Unsupported, match="by forward"):
        propagation.bounds(properties, "forward")
    assert torch.equal(propagation.bounds(properties, "crown").margins, before.margins)


def test_no_time_gives_crown_and_little_time_something_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    propagation = Propagation(mlp(nn.GELU), iterations=40)
    properties = boxes((4,), 0.6, 4)
    crown = propagation.bounds(properties, "crown")
    assert torch.equal(
        propagation.bounds(properties, "alpha-crown", crown, seconds=0.0).margins, crown.margins
    )
    whole = propagation.bounds(properties, "alpha-crown", crown)
    ticks = itertools.count()
    # A clock by which each look takes a second: three iterations are all that fits.
    monkeypatch.setattr(propagation_module.time, "monotonic", lambda: float(next(ticks)))
    short = propagation.bounds(properties, "alpha-crown", crown, seconds=4.0)
    assert next(ticks) < 9
    assert (crown.margins <= short.margins).all()
    assert short.margins.sum() < whole.margins.sum() - 1e-4
    assert (short.margins > crown.margins + 1e-6).any()


def test_time_is_shared_by_the_batches() -> None:
    propagation = Propagation(mlp(nn.GELU), iterations=2000)
    propagation.batch = 1
    properties = boxes((4,), 0.6, 6)
    crown = propagation.bounds(properties, "crown")
    found = propagation.bounds(properties, "alpha-crown", crown, seconds=0.3)
    assert (found.margins[0] > crown.margins[0]).any()
    assert torch.equal(found.margins[-1], crown.margins[-1])


def test_memory_bounds_the_batch() -> None:
    batches = [Propagation(mlp(nn.GELU), memory=memory).batch for memory in (1, 2**14, 2**30)]
    assert batches[0] == 1
    assert 1 < batches[1] < batches[2]
    with pytest.raises(ValueError, match="memory must be >= 1 byte, got 0"):
        Propagation(mlp(nn.GELU), memory=0)
    with pytest.raises(ValueError, match="iterations must be >= 1, got 0"):
        Propagation(mlp(nn.GELU), iterations=0)


class Named(nn.Module):
    """Activations as modules, one of them twice, and as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 5)])
        self.act, self.gate, self.last = LambdaGELU(hardness=3.0), nn.Sigmoid(), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.body[0](x))
        x = torch.relu(self.body[1](x)) + x
        y: torch.Tensor = self.last(self.gate(self.act(self.body[2](x))))
        return y


def test_layers_are_named_by_their_modules() -> None:
    torch.manual_seed(0)
    propagation = Propagation(Network("named", Named().eval(), (4,), 3))
    assert propagation.layers == ("act", "relu", "act call 2", "gate")
    assert len(propagation.bounds(boxes((4,), 0.1, 2), "crown").inputs) == 4
    module = nn.Sequential(
        ResidualBlock(1, 2, lambda _: nn.GELU()), nn.Flatten(), nn.Linear(32, 3)
    ).eval()
    propagation = Propagation(Network("block", module, (1, 4, 4), 3))
    assert propagation.layers == ("0.residual.2", "0.activation")


def powers() -> nn.Module:
    """A layer whose activation auto_LiRPA's engine has no sound line for."""
    return Written(
        lambda net, x: net.last(net.first(x.flatten(1)).exp()),
        first=nn.Linear(64, 8),
        last=nn.Linear(8, 10),
    )


def test_rows_name_the_engine_so_that_no_two_are_compared(bench: MakeBench) -> None:
    torch.manual_seed(0)
    stage = Bounds(eps=(0.001,), samples=2, methods=("ibp", "crown"))
    by_graph, by_layers = (
        {
            each.setting["method"]: each
            for each in stage.run(
                Network("subject", module.eval(), (64,), 10), bench("digits-mlp")
            ).metrics
            if each.name == "certified_accuracy"
        }
        for module in (powers(), nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)))
    )
    assert by_layers.keys() == {"ibp", "crown"}
    assert {method for method, each in by_graph.items() if each.value is not None} == {
        "graph-ibp",
        "graph-crown",
    }
    for method in ("ibp", "crown"):
        assert "no bound of the rounding of exp" in by_graph[method].reason
