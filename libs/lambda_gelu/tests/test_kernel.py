"""The lambda-GELU kernel against mpmath, at its edges, in every layout, and what it saves."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import torch
from torch import nn
from torch.nn import functional

from lambda_gelu import LambdaGELU, Swish
from lambda_gelu.activations.kernel import _fused, composed, lambda_gelu

try:
    import numba
except ImportError:
    numba = None

needs_numba = pytest.mark.skipif(numba is None, reason="the compiled kernel needs numba")
PATHS = [pytest.param(False, id="torch"), pytest.param(True, id="compiled", marks=needs_numba)]
HARDNESSES = [1.0, 1.6931471824645996, 160.0, 1e6]


def exact(x: float, hardness: float) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """Value, df/dx, df/dlambda, and Phi + |z| phi, of numbers taken as they are."""
    with mpmath.workdps(60):
        x, hardness = mpmath.mpf(x), mpmath.mpf(hardness)
        z = hardness * x
        phi, below = mpmath.npdf(z), mpmath.erfc(-z / mpmath.sqrt(2)) / 2
        return x * below, below + z * phi, x * x * phi, below + abs(z) * phi


def computed(x: torch.Tensor, hardness: float, compiled: bool | None) -> tuple[torch.Tensor, ...]:
    """Value, df/dx and df/dlambda of each element."""
    x = x.detach().requires_grad_()
    scale = torch.tensor(hardness, dtype=x.dtype, requires_grad=True)
    value = lambda_gelu(x, scale, compiled=compiled)
    value.sum().backward()
    of_hardness = torch.stack(
        [
            torch.autograd.grad(lambda_gelu(each, scale, compiled=compiled), scale)[0]
            for each in x.detach().reshape(-1)
        ]
    )
    assert x.grad is not None
    return value.detach(), x.grad, of_hardness


def points(hardness: float, dtype: torch.dtype, reach: float) -> torch.Tensor:
    """Points with |lambda x| up to `reach`: spread, near 0, and around the zero of df/dx."""
    generator = torch.Generator().manual_seed(0)
    spread = (torch.rand(150, generator=generator, dtype=torch.float64) * 2 - 1) * reach
    tiny = torch.tensor(
        [0.0, 1e-12, -1e-12, 1e-3, -1e-3, -0.7518, 1.4142, -1.4142], dtype=torch.float64
    )
    return (torch.cat([spread, tiny]) / hardness).to(dtype)


@pytest.mark.parametrize("hardness", HARDNESSES)
@pytest.mark.parametrize(
    ("dtype", "compiled", "reach", "step"),
    [
        pytest.param(torch.float64, False, 37.0, 1e-12, id="float64"),
        pytest.param(torch.float32, False, 13.0, 1e-6, id="float32"),
        pytest.param(
            torch.float32, True, 13.0, 1e-6, id="compiled", marks=[needs_numba, pytest.mark.slow]
        ),
    ],
)
def test_it_is_relatively_exact_down_to_the_underflow_and_float32_by_torch_to_its_scale(
    dtype: torch.dtype, compiled: bool, reach: float, step: float, hardness: float
) -> None:
    x, least = points(hardness, dtype, reach), 1e-300 if dtype == torch.float64 else 1e-37
    for each, *found in zip(
        x.tolist(), *(part.tolist() for part in computed(x, hardness, compiled)), strict=True
    ):
        value, slope, of_hardness, scale = exact(each, hardness)
        sizes = [abs(value), scale, of_hardness]
        if dtype == torch.float32 and not compiled:
            sizes = [abs(each), 1, each * each]
        assert abs(found[0] - value) <= step * sizes[0] + least
        assert abs(found[1] - slope) <= step * sizes[1]
        assert abs(found[2] - of_hardness) <= step * sizes[2] + least


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "large",
    [
        None,
        *(
            pytest.param(each, marks=needs_numba)
            for each in (torch.contiguous_format, torch.channels_last)
        ),
    ],
    ids=str,
)
def test_half_precision_is_float32_rounded_once_where_large_by_the_compiled_kernel(
    dtype: torch.dtype, large: torch.memory_format | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    asked: list[torch.dtype] = []
    if large is None:
        x = (
            torch.cat([torch.linspace(-6, 6, 301), torch.randn(300)])
            .to(dtype)
            .reshape(-1, 1, 1)
            .expand(-1, 3, 2)
        )
    else:
        x = torch.randn(8, 3, 50, 50).to(dtype).contiguous(memory_format=large)
        fused = _fused()
        plain = fused.value
        monkeypatch.setattr(
            fused, "value", lambda x, *rest: asked.append(x.dtype) or plain(x, *rest)
        )
    upstream = torch.randn(x.shape).to(dtype)
    for hardness in (torch.tensor(1.7), torch.tensor([1.2, 3.0, 30.0])):
        half, full = x.clone().requires_grad_(), x.float().requires_grad_()
        scale, same = hardness.clone().requires_grad_(), hardness.clone().requires_grad_()
        value, wide = lambda_gelu(half, scale), lambda_gelu(full, same, compiled=large is not None)
        value.backward(upstream)
        wide.backward(upstream.float())
        assert value.dtype == half.grad.dtype == dtype
        assert torch.equal(value, wide.to(dtype))
        assert torch.equal(half.grad, full.grad.to(dtype))
        step = 1e-5 if large is None else 0
        torch.testing.assert_close(scale.grad, same.grad, rtol=step, atol=step)
    assert large is None or asked == [torch.float32] * 4


def test_autocast_keeps_the_dtype_of_what_comes_in() -> None:
    network = nn.Sequential(nn.Linear(8, 16), LambdaGELU(16), nn.Linear(16, 4))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = network[1](network[0](torch.randn(5, 8)))
        loss = network[2](hidden).float().square().sum()
    loss.backward()
    assert hidden.dtype == torch.bfloat16
    assert network[1].s.grad.dtype == torch.float32
    assert network[1].s.grad.isfinite().all()


@pytest.mark.parametrize("compiled", PATHS)
@pytest.mark.parametrize("hardness", [1.0, 1.7, 160.0, 1e6])
@pytest.mark.parametrize("shape", ["one", "per channel"])
def test_no_nan_at_the_ends_of_float32(compiled: bool, hardness: float, shape: str) -> None:
    ends = [
        0.0,
        -0.0,
        1e30,
        -1e30,
        1e-45,
        -1e-45,
        1e-38,
        -1e-38,
        1e19,
        -1e19,
        14.4,
        -14.4,
        float("inf"),
        -float("inf"),
    ]
    x = torch.tensor(ends).reshape(1, -1).requires_grad_()
    scale = torch.full((len(ends),) if shape == "per channel" else (), hardness, requires_grad=True)
    value = lambda_gelu(x, scale, compiled=compiled)
    value.sum().backward()
    relu = functional.relu(x.detach())
    large = x.detach().abs() > 14
    assert torch.equal(value[large], relu[large])
    torch.testing.assert_close(value[~large], x[~large] * 0.5, rtol=1, atol=1e-44)
    assert torch.equal(x.grad[large], (x.detach()[large] > 0).float())
    torch.testing.assert_close(x.grad[~large], torch.full_like(x.grad[~large], 0.5))
    assert scale.grad.isfinite().all()
    assert scale.grad.abs().max() < 1e-37


@pytest.mark.parametrize("compiled", PATHS)
def test_nan_stays_nan_where_it_is(compiled: bool) -> None:
    x = torch.tensor([1.0, float("nan"), -1.0], requires_grad=True)
    scale = torch.tensor(2.0, requires_grad=True)
    value = lambda_gelu(x, scale, compiled=compiled)
    value.sum().backward()
    assert value.isnan().tolist() == x.grad.isnan().tolist() == [False, True, False]
    assert scale.grad.isnan()


def layouts() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(4, 6, 5, 3, generator=generator)
    return {
        "rows": torch.randn(7, 6, generator=generator),
        "image": image,
        "channels last": image.to(memory_format=torch.channels_last),
        "transposed": torch.randn(6, 4, 9, generator=generator).transpose(0, 1),
        "every second": torch.randn(8, 6, 10, generator=generator)[::2, :, ::2],
        "expanded": torch.randn(1, 6, 1, generator=generator).expand(3, 6, 4),
        "one wide": torch.randn(5, 6, 1, generator=generator),
        "empty": torch.empty(0, 6, 2),
        "large": torch.randn(70, 6, 1001, generator=generator),
    }


@pytest.mark.parametrize("compiled", PATHS)
@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("upstream_like", ["sum", "dense", "transposed"])
def test_layouts_agree_with_autograd_on_the_plain_formula(
    compiled: bool, name: str, upstream_like: str
) -> None:
    source = layouts()[name]
    generator = torch.Generator().manual_seed(2)
    upstream = torch.randn(source.shape, generator=generator)
    if upstream_like == "transposed":
        upstream = torch.randn(source.mT.shape, generator=generator).mT
    elif upstream_like == "sum":
        upstream = torch.tensor(1.5).expand(source.shape)
    for hardness in (torch.tensor(1.7), torch.linspace(1, 4, 6)):
        x, scale = source.detach().requires_grad_(), hardness.clone().requires_grad_()
        other, same = source.double().detach().requires_grad_(), hardness.double().requires_grad_()
        value, expected = lambda_gelu(x, scale, compiled=compiled), composed(other, same)
        value.backward(upstream)
        expected.backward(upstream.double())
        torch.testing.assert_close(value, expected.float(), rtol=2e-6, atol=1e-6)
        torch.testing.assert_close(x.grad, other.grad.float(), rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(
            scale.grad, same.grad.float(), rtol=2e-6, atol=1e-6 * max(1, len(x))
        )
        if name == "channels last":
            assert value.is_contiguous(memory_format=torch.channels_last)


def test_zero_dimensions() -> None:
    x = torch.tensor(-0.3, requires_grad=True)
    value = lambda_gelu(x, torch.tensor(2.0))
    assert value.shape == ()
    assert value.item() == pytest.approx(float(exact(-0.3, 2.0)[0]), rel=1e-6)


@pytest.mark.parametrize("channels", [(), (3,)], ids=["one", "per channel"])
def test_gradcheck_twice(channels: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    hardness = (1 + torch.rand(channels, generator=generator, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda_gelu, (x, hardness))
    assert torch.autograd.gradgradcheck(lambda_gelu, (x, hardness))


@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("learns", [True, False])
def test_transforms_and_forward_mode_see_through_the_kernel(
    channels: int | None, learns: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, tangent = torch.randn(2, 5, 3, generator=generator)
    layer = LambdaGELU(channels, hardness=2.0).requires_grad_(learns)
    reference = x.clone().requires_grad_()
    composed(reference, layer.hardness).sum().backward()
    slope = reference.grad
    with torch.autograd.forward_ad.dual_level():
        dual = layer(torch.autograd.forward_ad.make_dual(x, tangent))
        by_dual = torch.autograd.forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(by_dual, slope * tangent)
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (tangent,))[1], slope * tangent)
    torch.testing.assert_close(torch.func.grad(lambda each: layer(each).sum())(x), slope)
    torch.testing.assert_close(torch.func.vmap(layer)(x[:, None])[:, 0], layer(x))
    by_batch = torch.autograd.functional.jacobian(layer, x, vectorize=True)
    torch.testing.assert_close(by_batch.sum((0, 1)), slope)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_to_be_differentiated_again_are_those_that_are_not(dtype: torch.dtype) -> None:
    ends = [3e38, -3e38, torch.inf, -torch.inf, 6e4, -6e4, 0.0]
    x = torch.cat([torch.tensor(ends), torch.linspace(-3, 3, 3000)]).to(dtype).requires_grad_()
    hardness = torch.tensor(160.0, requires_grad=True)
    loss = lambda_gelu(x, hardness, compiled=False).nan_to_num(0, 0, 0).double().sum()
    plain = torch.autograd.grad(loss, (x, hardness), retain_graph=True)
    again = torch.autograd.grad(loss, (x, hardness), create_graph=True)
    step = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6, torch.float64: 1e-12}[
        dtype
    ]
    torch.testing.assert_close(again[0], plain[0], rtol=step, atol=1e-6)
    torch.testing.assert_close(again[1], plain[1], rtol=1e-5, atol=0)
    second = torch.autograd.grad(again[0].double().sum() + again[1], (x, hardness))
    assert all(bool(each.isfinite().all()) for each in second)


def test_a_large_sum_of_half_precision_gradients_does_not_overflow() -> None:
    x = torch.full((400_000,), 0.5, dtype=torch.float16, requires_grad=True)
    hardness = torch.tensor(1.0, requires_grad=True)
    (found,) = torch.autograd.grad(
        lambda_gelu(x, hardness).double().sum(), hardness, create_graph=True
    )
    assert found.item() == pytest.approx(400_000 * float(exact(0.5, 1.0)[2]), rel=1e-4)


@pytest.mark.parametrize("compiled", PATHS)
@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("channels", [None, 8])
def test_gradients_are_the_same_bits_each_time_and_for_any_number_of_threads(
    compiled: bool, threads: int, channels: int | None
) -> None:
    x = torch.randn(512, 8, 150, generator=torch.Generator().manual_seed(3))

    def gradients() -> tuple[torch.Tensor, torch.Tensor]:
        inputs, scale = (
            x.clone().requires_grad_(),
            torch.full((channels,) if channels else (), 1.7, requires_grad=True),
        )
        return torch.autograd.grad(
            lambda_gelu(inputs, scale, compiled=compiled).square().sum(), (inputs, scale)
        )

    one, again = gradients(), gradients()
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    if not compiled:
        return  # torch's own reductions depend on the number of threads
    torch.set_num_threads(threads)
    try:
        assert all(torch.equal(a, b) for a, b in zip(one, gradients(), strict=True))
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("compiled", PATHS)
@pytest.mark.parametrize("channels", [None, 64])
def test_it_saves_what_gelu_saves_besides_lambda(compiled: bool, channels: int | None) -> None:
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    x = torch.randn(1000, 64, requires_grad=True)
    layer = LambdaGELU(channels)
    hardness = layer.hardness  # what softplus saves is of the size of lambda too
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        lambda_gelu(x, hardness, compiled=compiled)
    assert [tensor.data_ptr() for tensor in saved] == [x.data_ptr(), hardness.data_ptr()]
    assert sum(tensor.nbytes for tensor in saved) == x.nbytes + hardness.nbytes


def test_a_frozen_hardness_gets_no_gradient_and_the_input_the_same() -> None:
    x = torch.randn(50, requires_grad=True)
    learns, frozen = LambdaGELU(hardness=3.0), LambdaGELU(hardness=3.0)
    frozen.s.requires_grad_(False)
    gradients = [torch.autograd.grad(layer(x).sum(), x)[0] for layer in (learns, frozen)]
    assert torch.equal(*gradients)
    (layer_gradient,) = torch.autograd.grad(learns(x.detach()).sum(), learns.s)
    assert layer_gradient.abs() > 0


def test_an_evaluation_does_not_depend_on_numba() -> None:
    x = torch.randn(64, 2000)
    layer = LambdaGELU(hardness=2.5).eval()
    with torch.no_grad():
        assert torch.equal(layer(x), lambda_gelu(x, layer.hardness, compiled=False))
        torch.testing.assert_close(layer(x), composed(x, layer.hardness), rtol=1e-6, atol=1e-7)


def test_compile_export_and_copy() -> None:
    layer = LambdaGELU(4, hardness=2.0).eval()
    x = torch.randn(3, 4, 2)
    program = torch.export.export(layer, (x,))
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "aten.gelu.default" in operators
    torch.testing.assert_close(program.module()(x), layer(x))
    traced = torch.jit.trace(layer, (x,))
    torch.testing.assert_close(traced(x[:2]), layer(x[:2]))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


ZEROS, TWO = torch.zeros(3), torch.tensor(2.0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: lambda_gelu(torch.zeros(3, 4), torch.ones(3)),
            r"shape \(3,\) for an input of shape \(3, 4\)",
        ),
        (lambda: lambda_gelu(ZEROS, torch.ones(3)), "channels being dimension 1"),
        (lambda: lambda_gelu(torch.zeros(3, 4), torch.ones(1, 4)), "one value per channel"),
        (lambda: lambda_gelu(ZEROS.long(), TWO), r"floating-point input, got torch\.int64"),
        (
            lambda: lambda_gelu(ZEROS.double(), TWO, compiled=True),
            r"takes float32 on the CPU, got torch\.float64",
        ),
        (
            lambda: lambda_gelu(ZEROS.bfloat16(), TWO, compiled=True),
            r"takes float32 on the CPU, got torch\.bfloat16",
        ),
        (lambda: LambdaGELU(hardness=float("inf")), "hardness must be > 1 and finite, got inf"),
        (lambda: LambdaGELU(hardness=float("nan")), "hardness must be > 1"),
        (lambda: LambdaGELU(hardness=1.0), "hardness must be > 1"),
        (lambda: Swish(hardness=1.0), "hardness must be > 1"),
        (
            lambda: LambdaGELU(temperature=float("inf")),
            "temperature must be > 0 and finite, got inf",
        ),
        (lambda: LambdaGELU(channels=0), "channels must be >= 1, got 0"),
        (lambda: LambdaGELU(dimension=2), "dimension must be 1 or -1"),
        (lambda: Swish(dimension=2), "dimension must be 1 or -1"),
    ],
)
def test_bad_input_and_options(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


STEP = """
import multiprocessing, torch
from lambda_gelu import LambdaGELU
x = torch.linspace(-3, 2, 1_000_000)
layer = LambdaGELU()
def step():  # without torch's own parallel operators, which do not survive a fork
    return torch.autograd.grad(layer(x), layer.s, torch.ones(()).expand(x.shape))[0].item()
def child(to):
    to.send(step())
torch.set_num_threads(2)
here = step()
ours, theirs = multiprocessing.get_context("fork").Pipe()
forked = multiprocessing.get_context("fork").Process(target=child, args=(theirs,), daemon=True)
forked.start()
assert ours.poll(20) and ours.recv() == here
forked.join()
assert forked.exitcode == 0
print(here)
"""


@needs_numba
@pytest.mark.slow
def test_processes_may_compile_at_once_and_fork_afterwards(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", STEP], env=environment, stdout=-1, stderr=-1, text=True
        )
        for _ in range(2)
    ]
    done = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], done
    assert len({out for out, _ in done}) == 1
    assert list(tmp_path.rglob("*.nbc"))


@pytest.mark.parametrize("kind", [LambdaGELU, Swish])
def test_one_lambda_per_feature_of_the_last_dimension(kind: type) -> None:
    torch.manual_seed(0)
    first, last = kind(channels=4).double(), kind(channels=4, dimension=-1).double()
    for each in (first, last):
        each.set_hardness(torch.tensor([1.5, 2.0, 8.0, 40.0]))
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    assert torch.equal(last(x), first(x.transpose(1, 2)).transpose(1, 2))
    assert torch.autograd.gradcheck(last, x.requires_grad_())
    with pytest.raises(
        ValueError, match=r"4 lambdas, .* of shape \(3, 4, 5\), whose channels are dimension -1"
    ):
        last(torch.zeros(3, 4, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"shape \(3,\), this activation's \(4,\)"):
        last.set_hardness(torch.tensor([2.0, 3.0, 4.0]))
