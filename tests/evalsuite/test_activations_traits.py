"""Every row of traits against independent references of 60 digits."""

from __future__ import annotations

import functools
import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import onnxruntime
import pytest
import torch
from mpmath import mpf
from torch import nn

from evalsuite import census
from evalsuite.plugins import load_all
from evalsuite.testing import check_activation
from lambda_gelu.activations import Activation, Hardenable, LambdaGELU, Swish
from lambda_gelu.activations.expanded import XSiLU
from lambda_gelu.activations.integrated import XIELU, XIPReLU

Real = Callable[[mpf], mpf]
FAR = [sign * size for size in (1e30, 1e18, 1e10, 1e4, 800.0, 120.0) for sign in (-1, 1)]
NEAR = [
    -38.0,
    -25.5,
    -12.0,
    -8.1,
    -5.3,
    -3.01,
    -2.9,
    -2.2,
    -1.3,
    -0.7,
    -0.1,
    -1e-3,
    -1e-9,
    1e-9,
    1e-3,
    0.1,
    0.55,
    1.3,
    1.9,
    2.9,
    3.01,
    5.3,
    9.7,
    40.0,
]


def _exactly(number: float | torch.Tensor) -> mpf:
    return mpf(float(number.detach()) if isinstance(number, torch.Tensor) else number)


def _sigmoid(x: mpf) -> mpf:
    return 1 / (1 + mpmath.exp(-x))


def _softplus(x: mpf) -> mpf:
    return mpmath.log1p(mpmath.exp(x))


def _gelu(x: mpf) -> mpf:
    return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def _gelu_tanh(x: mpf) -> mpf:
    # (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), which sixty digits don't round to zero.
    return x * _sigmoid(2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpf("0.044715") * x**3))


def _leaky(a: mpf) -> Real:
    return lambda x: x if x > 0 else a * x


def _elu(a: mpf) -> Real:
    return lambda x: x if x > 0 else a * mpmath.expm1(x)


def _xsilu(a: mpf) -> Real:
    return lambda x: x * (_sigmoid(x) * (1 + 2 * a) - a)


def _xielu(p: mpf, n: mpf) -> Real:
    return lambda x: p * x**2 + x / 2 if x > 0 else n * (mpmath.expm1(x) - x) + x / 2


def _xiprelu(p: mpf, n: mpf) -> Real:
    return lambda x: (p if x > 0 else n) * x**2 + x / 2


def _hardened(g: Real, hardness: mpf) -> Real:
    return lambda x: g(hardness * x) / hardness


@dataclass(frozen=True)
class Case:
    """A module, and the independent reference given its parameters as numbers."""

    id: str
    make: Callable[[], nn.Module]
    reference: Callable[..., Real]
    parameters: tuple[str, ...] = ()

    @functools.cached_property
    def _of(self) -> dict[torch.dtype, tuple[nn.Module, Real]]:
        found = {}
        for dtype in (torch.float32, torch.float64):
            module = self.make().to(dtype)
            numbers = [getattr(module, name) for name in self.parameters]
            found[dtype] = module, self.reference(*(_exactly(number) for number in numbers))
        return found

    def module(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        return self._of[dtype][0]

    def f(self, dtype: torch.dtype = torch.float64) -> Real:
        return self._of[dtype][1]

    @property
    def row(self) -> Activation:
        (found,) = census(self.module(), gates=True)
        assert found.traits.name == self.id.split("(")[0]
        return found.traits.of(self.module())

    def normal(self) -> Real:
        """g, for which the traits speak."""
        if not isinstance(self.module(), Hardenable):
            return self.f()
        hardness = _exactly(self.module().hardness)
        return lambda z: hardness * self.f()(z / hardness)


def _row(name: str) -> Activation:
    return next(plugin.target for plugin in load_all("activations") if plugin.name == name)


def _made(name: str) -> Callable[[], nn.Module]:
    return lambda: _row(name).make(4)


def _with(make: Callable[[], nn.Module], **values: float) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        module = make()
        with torch.no_grad():
            for name, value in values.items():
                getattr(module, name).fill_(value)
        return module

    return made


def _hard_swish(x: mpf) -> mpf:
    return x * min(max(x + 3, 0), 6) / 6


def _mish(x: mpf) -> mpf:
    return x * mpmath.tanh(_softplus(x))


CASES = [
    Case("elu", _made("elu"), _elu, ("alpha",)),
    Case("elu(2.5)", lambda: nn.ELU(2.5), _elu, ("alpha",)),
    Case("gelu", _made("gelu"), lambda: _gelu),
    Case("gelu-tanh", _made("gelu-tanh"), lambda: _gelu_tanh),
    Case(
        "hard-sigmoid", _made("hard-sigmoid"), lambda: lambda x: min(max(x + 3, mpf(0)), mpf(6)) / 6
    ),
    Case("hard-swish", _made("hard-swish"), lambda: _hard_swish),
    Case("identity", _made("identity"), lambda: lambda x: x),
    Case("lambda-gelu", _made("lambda-gelu"), lambda h: _hardened(_gelu, h), ("hardness",)),
    Case(
        "lambda-gelu(hard)",
        _with(_made("lambda-gelu"), s=0.9),
        lambda h: _hardened(_gelu, h),
        ("hardness",),
    ),
    Case("lambda-elu", _made("lambda-elu"), lambda h: _hardened(_elu(1), h), ("hardness",)),
    Case(
        "lambda-hard-swish",
        _made("lambda-hard-swish"),
        lambda h: _hardened(_hard_swish, h),
        ("hardness",),
    ),
    Case("lambda-mish", _made("lambda-mish"), lambda h: _hardened(_mish, h), ("hardness",)),
    Case("leaky-relu", _made("leaky-relu"), _leaky, ("negative_slope",)),
    Case("leaky-relu(0.3)", lambda: nn.LeakyReLU(0.3), _leaky, ("negative_slope",)),
    Case("mish", _made("mish"), lambda: _mish),
    Case("prelu", _made("prelu"), _leaky, ("weight",)),
    Case("prelu(-0.4)", lambda: nn.PReLU(init=-0.4), _leaky, ("weight",)),
    Case("quick-gelu", _made("quick-gelu"), lambda: lambda x: x * _sigmoid(mpf(1.702) * x)),
    Case("relu", _made("relu"), lambda: lambda x: max(x, mpf(0))),
    Case("relu2", _made("relu2"), lambda: lambda x: max(x, mpf(0)) ** 2),
    Case("relu6", _made("relu6"), lambda: lambda x: min(max(x, mpf(0)), mpf(6))),
    Case("sigmoid", _made("sigmoid"), lambda: _sigmoid),
    Case("silu", _made("silu"), lambda: lambda x: x * _sigmoid(x)),
    Case("softplus", _made("softplus"), lambda: _softplus),
    Case("swish", _made("swish"), lambda b: lambda x: x * _sigmoid(b * x), ("hardness",)),
    Case(
        "swish(hard)",
        _with(_made("swish"), s=0.9),
        lambda b: lambda x: x * _sigmoid(b * x),
        ("hardness",),
    ),
    Case("tanh", _made("tanh"), lambda: mpmath.tanh),
    Case("xielu", _made("xielu"), _xielu, ("p", "n")),
    Case("xielu(1.7, 0.6)", _with(XIELU, raw_p=1.5, raw_n=-2.3), _xielu, ("p", "n")),
    Case("xiprelu", _made("xiprelu"), _xiprelu, ("p", "n")),
    Case("xiprelu(0.1, 1.3)", _with(XIPReLU, raw_p=-2.0, raw_n=1.0), _xiprelu, ("p", "n")),
    Case("xsilu", _made("xsilu"), _xsilu, ("a",)),
    Case("xsilu(0.3)", _with(XSiLU, a=0.3), _xsilu, ("a",)),
    Case("xsilu(-0.8)", _with(XSiLU, a=-0.8), _xsilu, ("a",)),
]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def _slope(f: Real, x: float, order: int = 1) -> mpf:
    if f == mpmath.tanh and order == 1:
        return mpmath.sech(x) ** 2  # 1e-103 where sixty digits of tanh are 1
    return mpmath.diff(f, mpf(x), order)


@pytest.fixture(autouse=True)
def _sixty_digits() -> object:
    with mpmath.workdps(60):
        yield


def assert_close(found: torch.Tensor, exact: list[mpf], scale: list[mpf], tolerance: float) -> None:
    """|found - exact| <= tolerance * scale; where the exact value overflows, the infinity of its
    sign.
    """
    finfo = torch.finfo(found.dtype)
    assert not found.isnan().any()
    for got, true, size in zip(found.tolist(), exact, scale, strict=True):
        if abs(true) > finfo.max:
            assert got == math.copysign(math.inf, true)
        else:
            # Below the smallest normal number the spacing of floating-point numbers is absolute.
            assert abs(got - true) <= tolerance * size + finfo.tiny, (got, true)


def test_every_registered_row_is_tested_here() -> None:
    assert {case.id for case in CASES} >= {
        each.name for each in load_all("activations") if each.origin == "lambda-gelu"
    }


@cases
def test_value_and_slope_are_relatively_exact_in_float64(case: Case) -> None:
    points = [*NEAR, *FAR]
    row, g, z = case.row, case.normal(), torch.tensor(points, dtype=torch.float64)
    exact, slope = [g(mpf(x)) for x in points], [_slope(g, x) for x in points]
    # Near a zero of g or g' in the middle, what counts is the error that a rounded input makes
    # anyway.
    bend = [_slope(g, x, 2) if abs(x) < 4 else mpf(0) for x in points]
    crosses = case.id.startswith("x")
    scale = [
        abs(f) + (abs(x * d) if crosses else 0)
        for x, f, d in zip(points, exact, slope, strict=True)
    ]
    assert_close(row.value(z), exact, scale, 1e-12)
    assert_close(
        row.slope(z),
        slope,
        [abs(d) + abs(x * b) for x, d, b in zip(points, slope, bend, strict=True)],
        1e-12,
    )


# torch's kernels of GELU form 1 + erf or 1 + tanh in the input's precision, so that on the left
# their error is relative to |x|, not to the value. xSiLU is a difference of two terms of the size
# of |x|, xIELU and xIPReLU cross 0.
RELATIVE_TO_INPUT = ("gelu", "gelu-tanh", "lambda-gelu", "xsilu", "xielu", "xiprelu")


# torch's gradient of hard-sigmoid is 1/6 as float32 has it, in float64 too.
GRADIENTS = {"hard-sigmoid": 5e-8}


def _scale(case: Case, points: list[float], exact: list[mpf], slope: list[mpf]) -> list[mpf]:
    if case.id.split("(")[0] in RELATIVE_TO_INPUT:
        return [max(abs(f), abs(x)) for x, f in zip(points, exact, strict=True)]
    # What a rounded input (beta x, or x + 3) makes of the value.
    return [abs(f) + abs(x * d) for x, f, d in zip(points, exact, slope, strict=True)]


@cases
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_modules_compute_value_and_gradient(
    case: Case, dtype: torch.dtype, tolerance: float
) -> None:
    # torch's gradient of it is NaN beyond 1e19
    far = [x for x in FAR if abs(x) <= 1e10 or case.id != "gelu-tanh"]
    x = torch.tensor([*NEAR, *far], dtype=dtype, requires_grad=True)
    points, f = x.tolist(), case.f(dtype)
    value = case.module(dtype)(x)
    gradients = torch.autograd.grad(value.sum(), [x, *case.module(dtype).parameters()])
    exact, slope = [f(mpf(each)) for each in points], [_slope(f, each) for each in points]
    assert_close(value.detach(), exact, _scale(case, points, exact, slope), tolerance)
    # Gradients are of the order of one; kernels form them by differences of such numbers.
    near = max(tolerance, GRADIENTS.get(case.id, 0))
    assert_close(gradients[0], slope, [max(abs(d), mpf(1)) for d in slope], near)
    assert not any(each.isnan().any() for each in gradients[1:])


@cases
def test_gradients_agree_with_finite_differences(case: Case) -> None:
    module = case.make().double()
    x = torch.tensor(
        [-5.0, -2.1, -0.6, -0.2, 0.3, 0.9, 2.2, 4.4], dtype=torch.float64, requires_grad=True
    )
    names = [name for name, _ in module.named_parameters()]
    assert len(names) == len(case.row.parameters)
    assert torch.autograd.gradcheck(
        lambda x, *values: torch.func.functional_call(
            module, dict(zip(names, values, strict=True)), (x,)
        ),
        (x, *(each.detach().clone().requires_grad_() for each in module.parameters())),
    )
    assert tuple(names) == case.row.parameters


@cases
def test_slope_is_the_gradient_that_torch_takes_also_at_kinks(case: Case) -> None:
    module, row = case.module(), case.row
    z = torch.tensor(
        [-3.5, -1.0, 0.5, 3.5, *row.kinks, *row.inflections, 0.0],
        dtype=torch.float64,
        requires_grad=True,
    )
    hardness = row.hardness(module).double()
    (gradient,) = torch.autograd.grad((hardness * module(z / hardness)).sum(), z)
    assert torch.allclose(
        row.slope(z.detach()), gradient, rtol=GRADIENTS.get(case.id, 1e-12), atol=1e-14
    )


@cases
def test_bfloat16_forward_is_finite_and_within_four_units(case: Case) -> None:
    """bf16 has 8 bits: the error is at most four units, 2^-6, of the value or, where it cancels,
    of the input.
    """
    module = case.make().bfloat16()
    x = torch.tensor([*NEAR, 300.0, -300.0]).bfloat16()
    f = case.reference(*(_exactly(getattr(module, name)) for name in case.parameters))
    exact = [f(mpf(each)) for each in x.tolist()]
    value = module(x)
    assert value.dtype == torch.bfloat16
    assert value.isfinite().all()
    assert_close(
        value.detach(),
        exact,
        [max(abs(v), abs(p)) for v, p in zip(exact, x.tolist(), strict=True)],
        2**-6,
    )


def _signs(row: Activation, g: Real, z: float) -> str:
    bend = _slope(g, z, 2)
    # Second differences of sixty digits leave no more than this of a straight line.
    return "0" if abs(bend) < mpf(10) ** -20 * mpmath.exp(-z * z) else "+" if bend > 0 else "-"


@cases
def test_the_second_derivative_changes_sign_at_the_inflections_and_nowhere_else(case: Case) -> None:
    row, g = case.row, case.normal()
    edges = [-9.0, *row.inflections, 9.0]
    shape = row.shape or "0"
    assert len(shape) == len(row.inflections) + 1
    for sign, first, last in zip(shape, edges, edges[1:], strict=False):
        inside = [
            first + (last - first) * share
            for share in (1e-9, 1e-3, *(i / 29 for i in range(1, 29)), 1 - 1e-9)
        ]
        points = [
            z for z in inside if min(abs(z - kink) for kink in (math.inf, *row.kinks)) > 1e-12
        ]
        assert {_signs(row, g, z) for z in points} == {sign}
    for z in row.inflections:
        if "0" not in shape:
            assert z == pytest.approx(
                float(mpmath.findroot(lambda at: _slope(g, at, 2), z)), rel=2.3e-16, abs=1e-50
            )


@cases
def test_slopes_jump_at_the_kinks_and_only_there(case: Case) -> None:
    row, g, step = case.row, case.normal(), mpf(10) ** -12
    for at in sorted({*row.kinks, *row.inflections, 0.0, 1.0}):
        jump = abs(_slope(g, mpf(at) + step) - _slope(g, mpf(at) - step))
        assert (jump > 1e-3) == (at in row.kinks)


def _distance(g: Real, z: mpf) -> mpf:
    return abs(g(z) - max(z, mpf(0)))


@cases
def test_the_distance_to_relu(case: Case) -> None:
    """g(lambda x) / lambda is as far away by 1 / lambda, so that what is at a distance hardens
    to it.
    """
    row, g = case.row, case.normal()
    if case.id != "xsilu":  # at its initial parameters it is SiLU
        assert (row.hardens_to == "relu") == math.isfinite(row.relu_distance)
    if math.isinf(row.relu_distance):
        assert _distance(g, mpf(-(10**6))) + _distance(g, mpf(10**6)) > 1e3
        return
    grid = [mpf(i) / 8 for i in range(-320, 321)]
    worst = max(grid, key=lambda z: _distance(g, z))
    found = _distance(g, worst)
    if abs(worst) < 30 and worst:
        found = _distance(g, mpmath.findroot(lambda z: mpmath.diff(g, z) - (z > 0), worst))
    assert row.relu_distance == pytest.approx(float(found), rel=2.3e-16, abs=0)


@cases
def test_the_limits_of_the_slope(case: Case) -> None:
    for limit, end in zip(case.row.limits, (-1e6, 1e6), strict=True):
        slope = _slope(case.normal(), end)
        if math.isinf(limit):
            assert slope * math.copysign(1, limit) > 1e3
        else:
            assert float(slope) == pytest.approx(limit, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("plugin", load_all("activations"), ids=lambda plugin: plugin.name)
def test_every_registered_row_passes_the_kit_and_has_an_onnx_form(plugin) -> None:
    assert plugin.target.name == plugin.name
    assert check_activation(plugin.target)[0] == "make"
    module, x = plugin.target.make(4), torch.linspace(-6, 6, 24).reshape(6, 4)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter that Brevitas has
        torch.onnx.export(module, (x,), file, input_names=["x"], opset_version=20, dynamo=False)
    (made,) = onnxruntime.InferenceSession(file.getvalue()).run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(made), module(x).detach(), atol=1e-5, rtol=1e-5)


def test_modules_start_at_the_published_parameters() -> None:
    start = {
        case.id: [
            float(_exactly(getattr(case.module(torch.float32), name))) for name in case.parameters
        ]
        for case in CASES
        if "(" not in case.id and case.parameters
    }
    soft = 1 + math.log(2)
    assert start == {
        name: pytest.approx(values, abs=1e-6)
        for name, values in {
            "elu": [1.0],
            "leaky-relu": [0.01],
            "prelu": [0.25],
            "xsilu": [0.0],
            "xielu": [0.8, 0.8],
            "xiprelu": [0.8, 0.8],
            "lambda-gelu": [soft],
            "swish": [soft],
            "lambda-elu": [soft],
            "lambda-hard-swish": [soft],
            "lambda-mish": [soft],
        }.items()
    }


def test_the_curvatures_of_xielu_and_xiprelu_stay_above_their_bounds() -> None:
    for make, least in ((XIELU, 0.5), (XIPReLU, 0.0)):
        module = _with(make, raw_p=-60.0, raw_n=-60.0)()
        assert module.p.item() == pytest.approx(0.0, abs=1e-20)
        assert module.n.item() == pytest.approx(least, abs=1e-20)


@pytest.mark.parametrize(
    ("kind", "g"), [(Swish, _sigmoid), (LambdaGELU, mpmath.ncdf)], ids=lambda each: each.__name__
)
def test_a_hardness_per_channel_acts_on_dimension_one(
    kind: type[Swish | LambdaGELU], g: Real
) -> None:
    layer = kind(channels=2).double()
    layer.set_hardness(torch.tensor([2.0, 160.0]))
    x = torch.tensor([[[-0.5, 1.0], [-0.01, 3.0]]], dtype=torch.float64)
    expected = [
        [float(x * g(mpf(b) * x)) for x in row]
        for b, row in ((2, [-0.5, 1.0]), (160, [-0.01, 3.0]))
    ]
    assert torch.allclose(layer(x)[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-12)
    assert repr(layer) == f"{kind.__name__}(lambda=2..160)"


def test_a_row_refuses_what_it_can_not_speak_for() -> None:
    with pytest.raises(ValueError, match="prelu: the slope has 3 values, one per channel"):
        _row("prelu").of(nn.PReLU(3))
    with pytest.raises(ValueError, match="SiLU does not compute 'gelu'"):
        _row("gelu").of(nn.SiLU())


def test_learnt_parameters_change_the_row() -> None:
    module = XSiLU()
    base = _row("xsilu").of(module)
    assert base.relu_distance == pytest.approx(0.27846454276107380)
    with torch.no_grad():
        module.a.fill_(-0.5)
    linear = _row("xsilu").of(module)
    assert (linear.inflections, linear.shape, linear.limits, linear.relu_distance) == (
        (),
        "",
        (0.5, 0.5),
        math.inf,
    )
    assert _row("prelu").of(nn.PReLU(init=0.0)).relu_distance == 0
    assert _row("prelu").of(nn.PReLU(init=1.0)).kinks == ()
    assert _row("elu").of(nn.ELU(0.0)).shape == ""
    assert _row("elu").of(nn.ELU(-1.0)).shape == "-0"
