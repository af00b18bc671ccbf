"""Activations as operators of auto_LiRPA: every row, its hardness and its rounding; against
sampling.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from functools import partial

import pytest
import torch
from bounds_sampled import Sampled, around_0, check_each
from bounds_sampled import boxes as boxes_around
from torch import nn

from evalsuite import Activation, LambdaGELU, Network, Property, Unsupported, census
from evalsuite.plugins import load_all
from lambda_gelu import GELU, Found, Swish
from opgraph.modules import in_modules
from pipelines.bounds import curved
from pipelines.bounds.options import METHODS
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.rounding import Rounding

ROWS = {
    each.target.name: each.target
    for each in load_all("activations")
    if isinstance(each.target, Activation)
}
OTHERS = {"hard-tanh": nn.Hardtanh, "clip 0.2 to 1": partial(nn.Hardtanh, 0.2, 1.0)}
POINTS = 1000


def make(name: str) -> nn.Module:
    return OTHERS[name]() if name in OTHERS else ROWS[name].make(6)


def network(first: nn.Module, second: nn.Module, scale: float, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 6), first, nn.Linear(6, 6), second, nn.Linear(6, 3)).eval()
    with torch.no_grad():
        module[0].weight.mul_(scale)
    return Network("row", module, (3,), 3)


boxes = partial(boxes_around, (3,), centers=around_0, domain=(-9.0, 9.0))


NAMES = [*(each for each in ROWS if each not in ("relu", "identity")), *OTHERS]


@pytest.mark.parametrize(
    ("first", "second"),
    list(zip(NAMES[::2], [*NAMES[1::2], NAMES[0]][: len(NAMES[::2])], strict=True)),
)
def test_every_row_is_bounded_soundly(first: str, second: str) -> None:
    subject = network(make(first), make(second), 4.0)
    propagation = Propagation(subject, iterations=3)
    assert not propagation.second.unoptimized
    assert propagation.layers == ("1", "3")
    properties = [*boxes(0.01), *boxes(0.5)]
    found = check_each(propagation, Sampled(subject, properties, POINTS))
    assert (found["crown"].margins >= found["ibp"].margins).all()
    assert (found["alpha-crown"].margins >= found["crown"].margins).all()
    widths = {
        method: (each.upper - each.lower).unflatten(0, (2, 3)).mean((1, 2))
        for method, each in found.items()
    }
    assert (widths["crown"] < 0.9 * widths["ibp"]).all()


@pytest.mark.parametrize("kind", [LambdaGELU, Swish])
def test_hardness_per_channel_and_per_feature(kind: Callable[..., nn.Module]) -> None:
    act, last = kind(6), kind(3, dimension=-1)
    act.set_hardness(torch.tensor([1.1, 2.0, 5.0, 20.0, 100.0, 1000.0]))
    last.set_hardness(torch.tensor([1.1, 5.0, 100.0]))
    of_images = nn.Sequential(nn.Conv2d(1, 6, 2), act, nn.Flatten(), nn.Linear(24, 3)).eval()
    of_tokens = nn.Sequential(nn.Linear(3, 3), last, nn.Flatten(), nn.Linear(6, 3)).eval()
    tokens = Network("tokens", of_tokens, (2, 3), 3)
    for subject in (
        network(act, kind(hardness=3.0), 2.0),
        Network("images", of_images, (1, 3, 3), 3),
        tokens,
    ):
        properties = boxes_around(subject.input_shape, 0.2, centers=around_0, domain=(-9.0, 9.0))
        propagation, sampled = (
            Propagation(subject, iterations=3),
            Sampled(subject, properties, POINTS),
        )
        if subject is not tokens:
            check_each(propagation, sampled)
            continue
        for method in ("ibp", "crown"):
            sampled.check(propagation.bounds(properties, method))


@pytest.mark.parametrize(
    "acts",
    [
        *((nn.LeakyReLU(slope), nn.PReLU(init=slope)) for slope in (-0.5, 0.0, 0.3, 1.0, 2.0)),
        # Beyond the threshold the module is the identity, log(1 + exp(-threshold)) / beta below the
        # function.
        *((nn.Softplus(*numbers),) * 2 for numbers in ((1.0, 20.0), (3.0, 20.0), (0.5, 60.0))),
    ],
    ids=lambda acts: str(acts[0]),
)
def test_leaky_relus_of_any_slope_and_softplus_with_its_threshold(
    acts: tuple[nn.Module, nn.Module],
) -> None:
    soft = isinstance(acts[0], nn.Softplus)
    subject = network(*acts, 12.0 if soft else 2.0)
    check_each(
        Propagation(subject, iterations=3), Sampled(subject, boxes(0.4 if soft else 0.3), POINTS)
    )


def errors(module: nn.Module) -> torch.Tensor:
    """How far float32 can be off on [0, 1]."""
    rounding = Rounding(in_modules(module, torch.rand(2, 1), exact=True))
    return rounding.errors(torch.zeros(1, 1).double(), torch.ones(1, 1).double())[0]


def test_the_rounding_of_an_activation_by_hand() -> None:
    # tanh(x), x in [0, 1]: tanh is off by 32 units of tanh(1) + 1 (1 + 1), plus what no product
    # follows.
    module = nn.Sequential(nn.Tanh(), nn.Linear(1, 1, bias=False)).eval()
    nn.init.ones_(module[1].weight)
    single = errors(module)
    own = 32 * 2.0**-24 * (math.tanh(1) + 2)
    assert own < single.item() < own + 4 * 2.0**-24


def test_errors_pass_through_the_steepest_slope() -> None:
    # After a sum that is off by 3 units of 2049, sigmoid is off by a quarter of that, relu2 by the
    # slope 2 x.
    for act, steepest in ((nn.Sigmoid(), 0.25), (ROWS["relu2"].make(1), 2.0)):
        module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), act, nn.Linear(1, 1)).eval()
        for layer, bias in ((module[0], 2048.0), (module[1], -2048.0), (module[3], 0.0)):
            nn.init.ones_(layer.weight)
            nn.init.constant_(layer.bias, bias)
        single = errors(module)
        moved = 3 * 2.0**-24 * (2049 + 2049 + 2048) * steepest
        assert moved < single.item() < 1.1 * moved


class Counterexample(nn.Module):
    """x to gelu(x) - 1.01 x."""

    def __init__(self) -> None:
        super().__init__()
        self.spread, self.act, self.join = nn.Linear(1, 2), nn.GELU(), nn.Linear(2, 1)
        with torch.no_grad():
            self.spread.weight.fill_(1.0)
            self.spread.bias.zero_()
            self.join.weight.copy_(torch.tensor([[1.0, 0.0]]))
            self.join.bias.zero_()
        self.line = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.line.weight, -1.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.join(self.act(self.spread(x))) + self.line(x)
        return y


def true_maximum(low: float, high: float) -> float:
    # the weight as float32 holds it; maths by the standard library
    slope = float(torch.tensor(1.01).double())
    step = (high - low) / 200_000
    return max(
        x * (0.5 * math.erfc(-x / math.sqrt(2)) - slope)
        for x in (low + i * step for i in range(200_001))
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_line_that_upstream_gets_wrong(method: str) -> None:
    """gelu(x) - 1.01 x on [0.0001, 6]: auto_LiRPA 0.7.1's own GELU gives at most -0.00497;
    -0.00005 is taken.
    """
    subject = Network("counterexample", Counterexample().eval(), (1,), 1)
    box = Property(0, 0, 0.0, torch.tensor([1e-4]).double(), torch.tensor([6.0]).double())
    greatest = true_maximum(1e-4, 6.0)
    assert greatest == pytest.approx(-5.1e-5, rel=0.02)
    found = Propagation(subject).bounds([box], method)
    assert found.upper.item() >= greatest
    assert found.upper.item() < 1.0 or method == "ibp"


def test_a_row_that_is_wrong_for_its_module_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(layer: nn.Module, *, gates: bool) -> list[Found]:
        found = census(layer, gates=gates)
        return [Found("", layer, GELU)] if isinstance(layer, nn.Tanh) else found

    monkeypatch.setattr(curved, "census", wrong)
    monkeypatch.setattr(Activation, "of", lambda row, _: row)
    with pytest.raises(Unsupported, match="computes another function"):
        Propagation(network(nn.Tanh(), nn.Tanh(), 1.0))


class Clipped(nn.GELU):
    """GELU by inheritance alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(max=1.05)


class Dented(nn.Module):
    """GELU wherever a census looks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # what float32 holds: no rounded number is bounded
        down, up = x.clamp(12.03125, 13), x.clamp(13, 13.96875)
        return nn.functional.gelu(x) - 4 * (down - 12.03125) + 4 * (up - 13)


def hooked() -> nn.Module:
    module = nn.GELU()
    module.register_forward_hook(lambda _module, _inputs, y: y.clamp(max=1.05))
    return module


def patched() -> nn.Module:
    module = nn.GELU()
    module.forward = lambda x: nn.functional.gelu(x).clamp(max=1.05)  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize("activation", [Clipped(), patched(), hooked(), Dented()])
def test_an_activation_that_does_more_than_its_row_is_bounded_as_what_it_does(
    activation: nn.Module,
) -> None:
    subject, properties = network(activation, nn.ReLU(), 4.0), boxes(2.0)
    check_each(Propagation(subject), Sampled(subject, properties, POINTS), ("ibp", "crown"))


def test_a_subclass_that_only_has_another_name_is_taken() -> None:
    subject = network(type("Plain", (nn.GELU,), {})(), nn.ReLU(), 1.0)
    check_each(Propagation(subject), Sampled(subject, boxes(0.1), POINTS), ("crown",))


def bent(output: torch.Tensor) -> torch.Tensor:
    """The identity up to 3.5, and falling steeply behind."""
    over = (output - 3.5).relu()
    return output - 8 * over


class BentNorm(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return bent(nn.BatchNorm2d.forward(self, x))


class BentDropout(nn.Dropout):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return bent(x)


@pytest.mark.parametrize(
    "kind", ["norm hook", "dropout hook", "norm subclass", "dropout subclass", "norm forward"]
)
def test_what_hangs_on_norms_and_dropout_is_not_lost(kind: str) -> None:
    norm = BentNorm(1) if kind == "norm subclass" else nn.BatchNorm2d(1)
    drop = BentDropout() if kind == "dropout subclass" else nn.Dropout()
    module = nn.Sequential(
        nn.Conv2d(1, 1, 4, bias=False), norm, nn.Flatten(), drop, nn.Linear(1, 2)
    ).eval()
    signs = torch.tensor([1.0, -1.0]).repeat(8).reshape(1, 1, 4, 4)
    with torch.no_grad():
        module[0].weight.copy_(signs)
        module[4].weight.copy_(torch.tensor([[1.0], [0.0]]))
        module[4].bias.copy_(torch.tensor([5.0, 0.0]))
    if kind.endswith("hook"):
        module[1 if kind == "norm hook" else 3].register_forward_hook(
            lambda _, __, output: bent(output)
        )
    if kind == "norm forward":
        norm.forward = types.MethodType(BentNorm.forward, norm)  # type: ignore[method-assign]
    point = 0.2999 * signs
    logits = module(point)[0]
    assert logits[0] < logits[1]  # in the box, and not of class 0
    box = Property.robustness(torch.zeros(1, 4, 4), sample=0, label=0, eps=0.3, domain=(-1.0, 1.0))
    try:
        bounds = Propagation(Network("bent", module, (1, 4, 4), 2)).bounds([box], "crown")
    except Unsupported:
        return
    assert float(bounds.margins.min()) <= float(logits[0] - logits[1])


def test_tiny_inputs_are_those_of_their_own_activation() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        # All units of the first ReLU are off, and all of the second on, by 1e-9; the logits are
        # of usual size.
        for layer, weight, bias in ((module[0], 1e-10, -1e-9), (module[2], 1.0, 1e-9)):
            layer.weight.mul_(weight)
            layer.bias.fill_(bias)
        module[4].weight.mul_(1e10)
    subject = Network("tiny", module.eval(), (4,), 3)
    found = Propagation(subject, iterations=2).bounds(boxes_around((4,), 0.1), "crown")
    (first, second) = found.inputs
    assert (first[1] < 0).all()
    assert (second[0] > 0).all()


def test_an_input_that_is_clipped_in_the_box_alone_has_the_bounds_of_the_clip() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(-30.0, 30.0), nn.GELU(), nn.Linear(4, 3))
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(4))
        module[0].bias.zero_()
    subject = Network("bytes", module.eval(), (4,), 3)
    box = Property.robustness(
        torch.full((4,), 200.0), sample=0, label=0, eps=2.0, domain=(0.0, 255.0)
    )
    clip, gelu = Propagation(subject, iterations=2).bounds([box], "crown").inputs
    assert (clip[0] > 190).all()
    assert (gelu[1] < 31).all()


def test_calls_with_tiny_inputs_are_calls_of_their_own() -> None:
    first, second = torch.tensor([[1e-10, 2e-10]]), torch.tensor([[3e-10, -1e-10]])
    assert list(curved.layer_names([("relu", first), ("relu", second)])) == [0, 1]
