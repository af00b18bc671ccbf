"""Activations called as functions of torch, and in place: bounded as their modules are, and
checked by sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from bounds_sampled import Sampled, around_0, check_each
from bounds_sampled import boxes as boxes_around
from cases import slow
from torch import nn
from torch.nn import functional
from written import Written

from evalsuite import Network, Property, Unsupported
from lambda_gelu.activations.integrated import XIELU
from opgraph.modules import in_modules
from pipelines.bounds.options import METHODS
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.rounding import Rounding

Function = Callable[[torch.Tensor], torch.Tensor]
POINTS = 1000


def calls(function: Function) -> nn.Module:
    """Two layers with `function` between them."""
    first, last = nn.Linear(3, 6), nn.Linear(6, 3)
    return Written(
        lambda net, x: net.last(net.function(net.first(x))),
        first=first,
        function=function,
        last=last,
    )


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
    "softplus, cut later": (
        lambda x: functional.softplus(x, threshold=30.0),
        nn.Softplus(threshold=30.0),
    ),
    "softplus, bent": (lambda x: functional.softplus(x, 3.0), nn.Softplus(3.0)),
    "relu6": (functional.relu6, nn.ReLU6()),
    "clamp 0 to 6": (lambda x: x.clamp(0, 6), nn.ReLU6()),
    "clamp -1 to 0.5": (lambda x: torch.clamp(x, min=-1, max=0.5), nn.Hardtanh(-1.0, 0.5)),
    "clamp from 0": (lambda x: torch.clamp(x, min=0), nn.ReLU()),
    "clamp from 0.2": (lambda x: x.clamp_min(0.2), nn.Hardtanh(0.2, torch.inf)),
    "clamp to 1": (lambda x: x.clip(None, 1.0), nn.Hardtanh(-torch.inf, 1.0)),
    "max of a number": (lambda x: torch.max(x, torch.tensor(0.0)), nn.ReLU()),
    "max of zeros": (lambda x: torch.maximum(x, torch.zeros_like(x)), nn.ReLU()),
    "max from zeros": (lambda x: torch.maximum(torch.zeros_like(x), x), nn.ReLU()),
    "min of max": (
        lambda x: torch.max(x, torch.tensor(0.0)).minimum(torch.tensor(6.0)),
        nn.ReLU6(),
    ),
    "torch.relu": (torch.relu, nn.ReLU()),
    "x.relu()": (lambda x: x.relu(), nn.ReLU()),
    "relu in place": (lambda x: functional.relu(x, inplace=True), nn.ReLU()),
    "x.relu_()": (lambda x: x.relu_(), nn.ReLU()),
    "module in place": (nn.ReLU6(inplace=True), nn.ReLU6()),
}


# One of each way to call a function, and of each way that its numbers are given.
QUICK = (
    "gelu",
    "gelu by tanh",
    "silu",
    "leaky",
    "softplus, bent",
    "clamp -1 to 0.5",
    "clamp from 0",
    "clamp to 1",
    "max of a number",
    "max from zeros",
    "torch.relu",
    "relu in place",
    "module in place",
)


@pytest.mark.parametrize("name", [each if each in QUICK else slow(each) for each in FUNCTIONS])
def test_a_function_is_bounded_as_its_module_is(name: str) -> None:
    function, module = FUNCTIONS[name]
    called, layered = (network(lambda f=each: calls(f)) for each in (function, module))  # type: ignore[misc]
    properties = boxes()
    one, other = Propagation(called, iterations=2), Propagation(layered, iterations=2)
    sampled = Sampled(called, properties, POINTS)
    # What is read as the module is bounded as it is by one method as by the others; "min of max" is
    # read as two.
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
        self.block = calls(lambda x: functional.silu(x) + x.tanh())
        self.block.first, self.block.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(functional.gelu(self.block(self.block(self.first(x)))))
        return y


def test_calls_of_nested_and_shared_modules_have_names() -> None:
    subject, properties = network(Nested), boxes(eps=0.05)
    before = {name: value.clone() for name, value in subject.module.state_dict().items()}
    propagation = Propagation(subject, iterations=2)
    assert propagation.layers == (
        "block.silu",
        "block.tanh",
        "block.silu_1",
        "block.tanh_1",
        "gelu",
    )
    check_each(propagation, Sampled(subject, properties, POINTS))
    assert type(subject.module) is Nested
    assert all(
        torch.equal(before[name], value) for name, value in subject.module.state_dict().items()
    )


def dropped(x: torch.Tensor, act: Function) -> torch.Tensor:
    act(x)
    return x


def added(x: torch.Tensor, act: Function) -> torch.Tensor:
    return x + act(x)


def viewed(x: torch.Tensor, act: Function) -> torch.Tensor:
    act(x.view(len(x), 2, 3))
    return x


def rereads(read: Callable[[torch.Tensor, Function], torch.Tensor], act: Function) -> nn.Module:
    """Reads, under another name, what `act` overwrites; a GELU behind it, whose slope depends on
    what it is given.
    """
    return Written(
        lambda net, x: net.last(net.smooth(read(net.first(x), net.act))),
        first=nn.Linear(3, 6),
        act=act,
        last=nn.Linear(6, 3),
        smooth=nn.GELU(),
    )


RELUS = {
    "module": nn.ReLU(inplace=True),
    "function": lambda x: functional.relu(x, inplace=True),
    "_": torch.relu_,
}
IN_PLACE = {**RELUS, "relu6": nn.ReLU6(inplace=True), "silu": nn.SiLU(inplace=True)}


@pytest.mark.parametrize("read", [dropped, added, viewed])
@pytest.mark.parametrize("way", ["function", *(slow(way) for way in IN_PLACE if way != "function")])
def test_an_input_that_is_overwritten_and_read_again_is_read_as_it_is_then(
    read: Callable[..., torch.Tensor], way: str
) -> None:
    subject, properties = network(lambda: rereads(read, IN_PLACE[way])), boxes()
    # A step of our own has no forward bounds.
    methods = METHODS if way in RELUS and read is not viewed else ("ibp", "crown")
    check_each(Propagation(subject, iterations=2), Sampled(subject, properties, POINTS), methods)


@pytest.mark.parametrize("way", RELUS)
def test_the_rounding_bound_is_of_what_a_relu_in_place_leaves(way: str) -> None:
    # What follows reads 0, not -30.
    subject = network(lambda: rereads(dropped, RELUS[way]))
    with torch.no_grad():
        subject.module.first.bias.fill_(-30.0)
    again = Network("again", rereads(lambda x, act: act(x), torch.relu).eval(), (3,), 3)
    again.module.load_state_dict(subject.module.state_dict())
    found, expected = (
        Propagation(each).bounds(boxes(), "ibp").allowance for each in (subject, again)
    )
    assert torch.allclose(found, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x.clamp(0, float(x.max())), r"the network \(item\)"),
        (lambda x: torch.minimum(x, 2 * x), "pair: no bound of the rounding of minimum"),
        (lambda x: torch.maximum(x, torch.rand(())), r"the network \(rand\)"),
        (lambda x: x.clamp(max=torch.arange(6.0)), "its bounds are several numbers"),
        (lambda x: x.clamp(3, 1), "clamp: no bound of the rounding of clamp"),
    ],
)
def test_what_is_no_function_of_one_tensor_with_known_numbers_is_refused(
    function: Function, told: str
) -> None:
    with pytest.raises(Unsupported, match=told):
        Propagation(network(lambda: calls(function)))


class Shifted(nn.Module):
    """w with as many digits as w + 1e4 has in float32."""

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return (w + 1e4) - 1e4


def test_learnt_numbers_that_are_computed_from_others_are_refused() -> None:
    # Its p is 3e-4, and float32's is another by 2e-4 of it: for inputs like the example's that is
    # not seen.
    act = XIELU()
    nn.init.constant_(act.raw_p, -8.0003)
    subject = network(lambda: calls(act))
    check_each(Propagation(subject), Sampled(subject, boxes(), POINTS), ("ibp", "crown"))
    nn.utils.parametrize.register_parametrization(act, "raw_p", Shifted())
    with pytest.raises(Unsupported, match="computed from numbers that are rounded"):
        Propagation(subject)


def assert_calls_sound(function: Function) -> None:
    subject = network(lambda: calls(function))
    check_each(Propagation(subject), Sampled(subject, boxes(), POINTS), ("ibp", "crown"))


# With numbers that float32 rounds, which are bounded as they are written; written out; in place.
WRITTEN: dict[str, Function] = {
    "sum": lambda x: x + 0.1,
    "differences": lambda x: 0.1 - (x - 0.7),
    "product": lambda x: 0.1 * x,
    "quotient": lambda x: x / 0.3,
    "activation": lambda x: 1.7 * functional.gelu(0.3 * x),
    "silu": lambda x: x * torch.sigmoid(x),
    "in place": lambda x: x.clamp_(0, 1),
    "square": lambda x: x * x,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_out_is_bounded_soundly(name: str) -> None:
    assert_calls_sound(WRITTEN[name])


@pytest.mark.parametrize(("name", "slope", "reach"), [("sum", 1.0, 2.1), ("product", 0.1, 0.2)])
def test_the_rounding_bound_has_that_of_a_number(name: str, slope: float, reach: float) -> None:
    module = calls(WRITTEN[name])
    module.first, module.last = nn.Identity(), nn.Identity()
    inputs = torch.tensor([[1.0], [2.0]]).double()
    found, _ = Rounding(in_modules(module.eval(), inputs.float(), exact=True)).errors(
        inputs[:1], inputs[1:]
    )
    rounded = abs(0.1 - torch.tensor(0.1).double().item())
    assert found.item() == pytest.approx(
        rounded * (2.0 if slope < 1 else 1.0) + 2.0**-24 * reach, rel=1e-6
    )


@pytest.mark.parametrize("number", [1e-40, 1e39])
def test_a_number_beyond_float32_is_refused(number: float) -> None:
    with pytest.raises(Unsupported, match="rounding of weights that are computed"):
        Propagation(network(lambda: calls(lambda x: x * number)))


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a clip's end": lambda x, number: torch.maximum(x, number),
    "clamp's end": lambda x, number: x.clamp(min=number),
    "one hardness": lambda x, number: x * torch.sigmoid(number * x),
    "a hardness per channel": lambda x, number: x * torch.sigmoid(number.expand(6) * x),
    "a GELU's hardness": lambda x, number: functional.gelu(number * x) / number,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_number_that_float32_computes_with_a_loss_of_digits_is_refused(name: str) -> None:
    # float32 makes 9.5e-7 of it: for numbers of other sizes than the example's, that is more than
    # rounding.
    few = torch.tensor(1e-6)
    with pytest.raises(
        Unsupported, match=r"computed from numbers that are rounded|a loss of digits"
    ):
        Propagation(network(lambda: calls(lambda x: LOSSES[name](x, (few + 1) - 1))))
    assert_calls_sound(lambda x: LOSSES[name](x, few))


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
}
SCRIPTED = torch.jit.trace(torch.relu, torch.zeros(2, 6))


def half_dead(function: Callable[..., torch.Tensor]) -> nn.Module:
    """`function` of two layers, of which the second is dead but in a corner."""
    first, second, last = nn.Linear(3, 6), nn.Linear(3, 6), nn.Linear(6, 3)
    nn.init.constant_(second.bias, -40.0)
    return Written(
        lambda net, x: net.last(function(net.first(x), functional.relu(net.second(x)))),
        first=first,
        second=second,
        last=last,
    )


@pytest.mark.filterwarnings("ignore")  # of numbers that are read from tensors
@pytest.mark.parametrize("name", [each for each in DEPENDENT if each != "overwritten"])
def test_what_depends_on_the_input_is_no_constant_even_if_no_probe_shows_it(name: str) -> None:
    with pytest.raises(Unsupported):
        Propagation(network(lambda: half_dead(DEPENDENT[name])))


def test_a_constant_that_is_overwritten_is_what_it_was_when_it_was_read() -> None:
    subject = network(lambda: half_dead(overwritten))
    whole = [Property.robustness(torch.zeros(3), sample=0, label=0, eps=9.0, domain=(-9.0, 9.0))]
    check_each(Propagation(subject), Sampled(subject, whole, POINTS), ("ibp", "crown"))


CONSTANTS: list[Callable[[nn.Module, torch.Tensor], torch.Tensor]] = [
    lambda net, y: torch.maximum(y, net.zeros),
    lambda net, y: y.clamp(min=net.zeros, max=net.least),
    lambda _, y: torch.maximum(y.relu_().sub_(1), y.new_full((), 0.5)),
]


@pytest.mark.parametrize("function", CONSTANTS)
def test_constants_of_the_network_or_made_in_forward_are_numbers(
    function: Callable[..., torch.Tensor],
) -> None:
    subject = network(
        lambda: Written(
            lambda net, x: net.last(function(net, net.first(x))),
            first=nn.Linear(3, 6),
            last=nn.Linear(6, 3),
            zeros=nn.Parameter(torch.zeros(6)),
            least=nn.Parameter(torch.full((6,), 0.25)),
        )
    )
    check_each(Propagation(subject), Sampled(subject, boxes(), POINTS), ("ibp", "crown"))
