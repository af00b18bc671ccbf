"""Activations called as functions of torch, and in place: bounded as their modules are, and checked by sampling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from bounds_sampled import Sampled, around_0, check_each
from bounds_sampled import boxes as boxes_around
from torch import nn
from torch.nn import functional

from evalsuite import Network, Unsupported
from pipelines.bounds import METHODS
from pipelines.bounds.functions import with_modules
from pipelines.bounds.preparing import refuse_overwritten
from pipelines.bounds.propagation import Propagation

Function = Callable[[torch.Tensor], torch.Tensor]
POINTS = 1000


class Calls(nn.Module):
    """Two layers with `function` between them."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.first, self.function, self.last = nn.Linear(3, 6), function, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.function(self.first(x)))
        return y


def network(module: Callable[[], nn.Module]) -> Network:
    torch.manual_seed(0)
    made = module().eval()
    with torch.no_grad():
        for each in made.modules():
            if isinstance(each, nn.Linear):
                each.weight.mul_(4)
    return Network("calls", made, (3,), 3)


boxes = partial(boxes_around, (3,), eps=0.4, centers=around_0, domain=(-9.0, 9.0))
FUNCTIONS: dict[str, tuple[Function, nn.Module]] = {
    "gelu": (functional.gelu, nn.GELU()),
    "gelu by tanh": (lambda x: functional.gelu(x, approximate="tanh"), nn.GELU(approximate="tanh")),
    "silu": (functional.silu, nn.SiLU()),
    "mish": (functional.mish, nn.Mish()),
    "elu": (lambda x: functional.elu(x, 0.7), nn.ELU(0.7)),
    "leaky": (lambda x: functional.leaky_relu(x, negative_slope=0.3), nn.LeakyReLU(0.3)),
    "hard-swish": (functional.hardswish, nn.Hardswish()),
    "sigmoid": (torch.sigmoid, nn.Sigmoid()),
    "x.sigmoid()": (lambda x: x.sigmoid(), nn.Sigmoid()),
    "tanh": (torch.tanh, nn.Tanh()),
    "hard-sigmoid": (functional.hardsigmoid, nn.Hardsigmoid()),
    "softplus": (functional.softplus, nn.Softplus()),
    "softplus, bent": (lambda x: functional.softplus(x, 3.0, threshold=2.0), nn.Softplus(3.0, 2.0)),
    "relu6": (functional.relu6, nn.ReLU6()),
    "clamp 0 to 6": (lambda x: x.clamp(0, 6), nn.ReLU6()),
    "clamp -1 to 0.5": (lambda x: torch.clamp(x, min=-1, max=0.5), nn.Hardtanh(-1.0, 0.5)),
    "clamp from 0": (lambda x: torch.clamp(x, min=0), nn.ReLU()),
    "clamp from 0.2": (lambda x: x.clamp_min(0.2), nn.Hardtanh(0.2, torch.inf)),
    "clamp to 1": (lambda x: x.clip(None, 1.0), nn.Hardtanh(-torch.inf, 1.0)),
    "max of a number": (lambda x: torch.max(x, torch.tensor(0.0)), nn.ReLU()),
    "max of zeros": (lambda x: torch.maximum(x, torch.zeros_like(x)), nn.ReLU()),
    "min of max": (lambda x: torch.max(x, torch.tensor(0.0)).minimum(torch.tensor(6.0)), nn.ReLU6()),
    "torch.relu": (torch.relu, nn.ReLU()),
    "x.relu()": (lambda x: x.relu(), nn.ReLU()),
    "relu in place": (lambda x: functional.relu(x, inplace=True), nn.ReLU()),
    "x.relu_()": (lambda x: x.relu_(), nn.ReLU()),
    "module in place": (nn.ReLU6(inplace=True), nn.ReLU6()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_bounded_as_its_module_is(name: str) -> None:
    function, module = FUNCTIONS[name]
    called, layered = (network(lambda f=each: Calls(f)) for each in (function, module))  # type: ignore[misc]
    properties = boxes()
    one, other = Propagation(called, iterations=2), Propagation(layered, iterations=2)
    sampled = Sampled(called, properties, POINTS)
    # What is read as the module is bounded as it is by one method as by the others; "min of max" is read as two.
    for method in METHODS if name in ("gelu", "min of max") else ("crown",):
        found, expected = one.bounds(properties, method), other.bounds(properties, method)
        sampled.check(found)
        if name != "min of max":
            assert torch.allclose(found.margins, expected.margins, rtol=1e-9, atol=1e-9)
            assert torch.allclose(found.allowance, expected.allowance, rtol=1e-6)


class Nested(nn.Module):
    """A block that calls two functions, used twice, and one of the network's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)
        self.block = Calls(lambda x: functional.silu(x) + x.tanh())
        self.block.first, self.block.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(functional.gelu(self.block(self.block(self.first(x)))))
        return y


def test_calls_of_nested_and_shared_modules_have_names() -> None:
    subject, properties = network(Nested), boxes(eps=0.05)
    before = {name: value.clone() for name, value in subject.module.state_dict().items()}
    propagation = Propagation(subject, iterations=2)
    assert propagation.layers == (
        "block.activation_0", "block.activation_1", "block.activation_0 call 2", "block.activation_1 call 2",
        "activation_0",
    )  # fmt: skip
    check_each(propagation, Sampled(subject, properties, POINTS))
    assert type(subject.module) is Nested
    assert all(torch.equal(before[name], value) for name, value in subject.module.state_dict().items())


def dropped(x: torch.Tensor, act: Function) -> torch.Tensor:
    act(x)
    return x


def added(x: torch.Tensor, act: Function) -> torch.Tensor:
    return x + act(x)


def viewed(x: torch.Tensor, act: Function) -> torch.Tensor:
    act(x.view(len(x), 2, 3))
    return x


class Rereads(nn.Module):
    """Reads, under another name, what `act` overwrites; a GELU behind it, whose slope depends on what it is given."""

    def __init__(self, read: Callable[[torch.Tensor, Function], torch.Tensor], act: Function) -> None:
        super().__init__()
        self.first, self.act, self.read, self.last = nn.Linear(3, 6), act, read, nn.Linear(6, 3)
        self.smooth = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.smooth(self.read(self.first(x), self.act)))
        return y


RELUS = {"module": nn.ReLU(inplace=True), "function": lambda x: functional.relu(x, inplace=True), "_": torch.relu_}


@pytest.mark.parametrize("read", [dropped, added, viewed])
@pytest.mark.parametrize("way", RELUS)
def test_a_relu_in_place_whose_input_is_read_again(read: Callable[..., torch.Tensor], way: str) -> None:
    subject, properties = network(lambda: Rereads(read, RELUS[way])), boxes()
    try:
        propagation = Propagation(subject, iterations=2)
    except Unsupported:
        assert read is viewed
        return
    check_each(propagation, Sampled(subject, properties, POINTS))


@pytest.mark.parametrize("way", RELUS)
def test_the_rounding_bound_is_of_what_a_relu_in_place_leaves(way: str) -> None:
    # What follows reads 0, not -30.
    subject = network(lambda: Rereads(dropped, RELUS[way]))
    with torch.no_grad():
        subject.module.first.bias.fill_(-30.0)
    again = Network("again", Rereads(lambda x, act: act(x), torch.relu).eval(), (3,), 3)
    again.module.load_state_dict(subject.module.state_dict())
    found, expected = (Propagation(each).bounds(boxes(), "ibp").allowance for each in (subject, again))
    assert torch.allclose(found, expected, rtol=1e-9, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("read", [dropped, added, viewed])
@pytest.mark.parametrize("act", [nn.ReLU6(inplace=True), nn.SiLU(inplace=True)], ids=lambda act: type(act).__name__)
def test_an_input_that_is_overwritten_and_read_again_is_read_as_it_is_then(
    read: Callable[..., torch.Tensor], act: nn.Module
) -> None:
    subject, properties = network(lambda: Rereads(read, act)), boxes()
    with pytest.raises(Unsupported, match=rf"^act \({type(act).__name__}\) overwrites its input, which is read again"):
        refuse_overwritten(subject.module, (3,))
    propagation = Propagation(subject)
    check_each(propagation, Sampled(subject, properties, POINTS), ("ibp", "crown"))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x.clamp(0, float(x.max())), "Clip"),
        (lambda x: torch.minimum(x, x.flip(1)), "Min|ScatterND|Slice"),
        (lambda x: torch.maximum(torch.zeros_like(x), x), r"Max in the network \(Calls\)"),
        (lambda x: torch.maximum(x, torch.rand(())), "Max"),
        (lambda x: x.clamp(3, 1), "Clip"),
    ],
)
def test_what_is_no_function_of_one_tensor_with_known_numbers_is_refused(function: Function, told: str) -> None:
    with pytest.raises(Unsupported, match=told):
        Propagation(network(lambda: Calls(function)))


@pytest.mark.parametrize("function", [lambda x: x * torch.sigmoid(x), lambda x: x.clamp_(0, 1), lambda x: x * x])
def test_what_is_written_out_or_in_place_is_bounded_soundly(function: Function) -> None:
    subject, properties = network(lambda: Calls(function)), boxes()
    propagation = Propagation(subject)
    check_each(propagation, Sampled(subject, properties, POINTS), ("ibp", "crown"))


class Sleeping(torch.autograd.Function):
    """ReLU, as an extension's."""

    @staticmethod
    def forward(_: object, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


def written(y: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
    least = torch.zeros_like(y)
    least.data[:] = dead
    return torch.maximum(y, least)


def overwritten(y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    least = torch.ones(())
    z = torch.maximum(y, least)
    least.zero_()
    return z


def branched(y: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
    return y.clamp(min=0) if bool((dead == 0).all()) else y.clamp(min=-9)


# Of y, and of what is 0 wherever the input is not near one corner of its box.
DEPENDENT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "tensor": torch.maximum,
    "bound": lambda y, dead: y.clamp(min=dead),
    "other bound": lambda y, dead: torch.clamp(y, max=6 - dead),
    "detached": lambda y, dead: torch.max(y, dead.detach()),
    "parameter": lambda y, dead: torch.max(y, nn.Parameter(dead)),
    "compared": lambda y, dead: torch.max(y, (dead > 0).to(y)),
    "rounded": lambda y, dead: torch.max(y, dead.round()),
    "place": lambda y, dead: torch.max(y, dead.argmax().to(y)),
    "item": lambda y, dead: y.clamp(min=dead.max().item()),
    "float": lambda y, dead: functional.elu(y, 1 + float(dead.max())),
    "count": lambda y, dead: y.clamp(min=len(dead[dead > 0])),
    "list": lambda y, dead: torch.max(y, torch.tensor(dead.tolist())),
    "array": lambda y, dead: torch.max(y, torch.from_numpy(dead.numpy())),
    "copied": lambda y, dead: torch.max(y, torch.tensor([dead.max()])),
    "filled": lambda y, dead: torch.max(y, torch.full_like(y, dead.max())),
    "extension": lambda y, dead: torch.max(y, Sleeping.apply(dead)),
    "scripted": lambda y, dead: torch.max(y, SCRIPTED(dead)),
    "written": written,
    "overwritten": overwritten,
    "branched": branched,
}  # fmt: skip
SCRIPTED = torch.jit.trace(torch.relu, torch.zeros(2, 6))


class Dead(nn.Module):
    """`function` of two layers, of which the second is dead but in a corner; `least` is a constant of the network."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 6), nn.Linear(3, 6), nn.Linear(6, 3)
        self.function = function
        self.least = nn.Parameter(torch.full((6,), 0.25))
        self.register_buffer("zeros", torch.zeros(6))
        with torch.no_grad():
            self.second.bias.fill_(-50.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.function(self.first(x), functional.relu(self.second(x))))
        return y


@pytest.mark.filterwarnings("ignore")  # of numbers that are read from tensors
@pytest.mark.parametrize("name", DEPENDENT)
def test_what_depends_on_the_input_is_no_constant_even_if_no_probe_shows_it(name: str) -> None:
    module = Dead(DEPENDENT[name]).eval()
    assert with_modules(module, (3,)) is module


def test_a_maximum_with_what_is_dead_at_the_probes_is_refused_by_path() -> None:
    with pytest.raises(Unsupported, match=r"no sound bounds for Max in the network \(Dead\)"):
        Propagation(network(lambda: Dead(torch.maximum)))


def test_constants_of_the_network_or_made_in_forward_are_numbers() -> None:
    module = Dead(torch.maximum).eval()
    ends = {
        lambda y, _: torch.maximum(y, module.zeros): "ReLU()",
        lambda y, _: y.clamp(min=module.zeros, max=module.least): "Hardtanh(min_val=0.0, max_val=0.25)",
        lambda y, _: y[:, [1, 0, 2, 3, 4, 5]].clamp(float(module.least[0])): "Hardtanh(min_val=0.25, max_val=inf)",
        lambda y, _: torch.maximum(y.relu_().sub_(1), y.new_full((), 0.5)): "Hardtanh(min_val=0.5, max_val=inf)",
    }
    for function, expected in ends.items():
        module.function = function
        assert str(with_modules(module, (3,)).get_submodule("activation_0")) == expected


class Steps(nn.Module):
    """Clips at another number of `ends` in every pass."""

    def __init__(self, ends: list[float]) -> None:
        super().__init__()
        self.ends, self.at = ends, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.at = 1 - self.at
        return torch.maximum(x, torch.tensor(self.ends[self.at]))


@pytest.mark.parametrize(("ends", "alike"), [([0.5, 0.5], True), ([0.5, 0.500001], False)])
def test_a_shared_module_is_told_by_all_digits_of_what_it_clips_at(ends: list[float], alike: bool) -> None:
    block = Steps(ends)
    module = nn.Sequential(nn.Linear(3, 6), block, nn.Linear(6, 6), block).eval()
    assert (with_modules(module, (3,)) is not module) == alike


class Mobile(nn.Module):
    """A block of MobileNetV2 (arXiv 1801.04381) between a stem and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 2, 3, 2, 1, bias=False), nn.BatchNorm2d(2), nn.ReLU6(inplace=True))
        self.block = nn.Sequential(
            nn.Conv2d(2, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU6(inplace=True),
            nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU6(inplace=True),
            nn.Conv2d(4, 2, 1, bias=False), nn.BatchNorm2d(2),
        )  # fmt: skip
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(2, 3)
        with torch.no_grad():
            for each in (self.stem[1], self.block[1], self.block[4]):
                each.weight.fill_(6.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y: torch.Tensor = self.head(self.pool(x + self.block(x)).flatten(1))
        return y


def test_a_mobilenet_is_bounded() -> None:
    torch.manual_seed(0)
    subject, properties = (
        Network("mobile", Mobile().eval(), (1, 6, 6), 3),
        boxes_around((1, 6, 6), 0.1, centers=around_0, domain=(-9.0, 9.0)),
    )
    propagation = Propagation(subject, iterations=2)
    assert propagation.layers == ("stem.2", "block.2", "block.5")
    # upstream's forward bounds have no average over all pixels
    check_each(propagation, Sampled(subject, properties, POINTS), ("ibp", "crown", "alpha-crown"))
