"""lambda-GELU as one autograd function that saves its input and lambda alone (arXiv 2603.21991, eq.
1).

f(x; lambda) = x Phi(z), z = lambda x; df/dx = Phi(z) + z phi(z); df/dlambda = x^2 phi(z).

The error is at most, for results above the smallest normal number (below it they may be 0):

| dtype | value | df/dx | df/dlambda |
|---|---|---|---|
| float64 | 1e-12 abs(f) | 1e-12 (Phi + abs(z) phi) | 1e-12 of itself |
| float32, compiled (`fused`) | 1e-6 abs(f) | 1e-6 (Phi + abs(z) phi) | 1e-6 of itself |
| float32, otherwise | 1e-6 abs(x) | 1e-6 | 1e-6 x^2 |
| bfloat16, float16 | that of float32, then one rounding | | |

df/dx has a zero at z = -0.7518, near which nothing has a relative accuracy. At x = plus or minus
infinity the value is infinity or 0, df/dx is 1 or 0, and df/dlambda 0; NaN stays NaN.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.nn import functional

# Elements at once: scratch memory stays small, and the calls cost little against the work.
_PIECE = 1 << 19
_WORTH_COMPILING = 1 << 15  # Below, loading the compiled kernel costs more than it saves.
_SATURATED = 40.0  # Beyond this |z|, phi is 0 in float64 too.
_DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)


def lambda_gelu(
    x: torch.Tensor, hardness: torch.Tensor, *, compiled: bool | None = None
) -> torch.Tensor:
    """x Phi(lambda x), of the shape and dtype of x; differentiable twice.

    Args:
        x: any shape, strides and floating-point dtype; two dimensions at least where lambda is per
            channel.
        hardness: lambda, 0-d, or (channels,) for dimension 1 of x.
        compiled: whether to use the compiled kernel; by default it serves the training of large
            tensors on the CPU where numba is installed, in bfloat16 and float16 by way of float32,
            so that what an evaluation computes does not depend on numba.

    Raises:
        ValueError: `hardness` does not fit x, or x is not floating-point.
    """
    if not x.is_floating_point():
        raise ValueError(f"lambda-GELU needs a floating-point input, got {x.dtype}")
    if hardness.ndim and (x.ndim < 2 or hardness.shape != x.shape[1:2]):
        raise ValueError(
            f"a hardness of shape {tuple(hardness.shape)} for an input of shape {tuple(x.shape)}:"
            " it must be 0-d, or have one value per channel, channels being dimension 1"
        )
    # 1. Under vmap, jvp and the like, composed operators, for which torch has the rules.
    if _is_transformed(x) or _is_transformed(hardness):
        return composed(x, hardness)
    if compiled and (x.dtype != torch.float32 or x.device.type != "cpu"):
        raise ValueError(
            f"the compiled kernel takes float32 on the CPU, got {x.dtype} on {x.device.type}"
        )
    # 2. Whether the compiled kernel serves: only where gradients are asked for, since evaluation
    # must not depend on numba.
    learns = torch.is_grad_enabled() and (x.requires_grad or hardness.requires_grad)
    if compiled is None:
        fits = x.dtype != torch.float64 and x.device.type == "cpu" and x.numel() >= _WORTH_COMPILING
        compiled = learns and fits and _fused() is not None
        if compiled and x.dtype != torch.float32:
            return lambda_gelu(x.float(), hardness, compiled=True).to(x.dtype)
    # 3. Without gradients nothing need be saved for a backward pass.
    if not learns:
        return _value(x, hardness, compiled)
    result: torch.Tensor = _LambdaGELU.apply(x, hardness, compiled)  # type: ignore[no-untyped-call]
    return result


def composed(x: torch.Tensor, hardness: torch.Tensor) -> torch.Tensor:
    """The kernel's gelu(lambda x) / lambda, lambda 0-d or (channels,), in operators that tracing
    and export know.
    """
    if hardness.ndim:
        hardness = hardness.reshape(-1, *[1] * (x.ndim - 2))
    return functional.gelu(hardness * x) / hardness


def is_traced(x: object) -> bool:
    """Whether a forward pass on x is being recorded rather than computed: as by torch.compile,
    export and jit.trace.
    """
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or torch.compiler.is_compiling():
        return True
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def _is_transformed(x: torch.Tensor) -> bool:
    """Whether x is under a transform of torch.func (vmap, jvp, grad), or has a tangent of
    forward-mode autograd.

    Both live outside of what the kernel's function sees: it would refuse them, or lose the tangent
    in silence.
    """
    if is_functorch_wrapped_tensor(x):
        return True
    return forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


@cache
def _fused() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    from lambda_gelu.activations import fused

    return fused


class _LambdaGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, hardness: torch.Tensor, compiled: bool) -> torch.Tensor:
        ctx.save_for_backward(x, hardness)
        ctx.compiled = compiled
        return _value(x, hardness, compiled)

    @staticmethod
    def backward(
        ctx: Any, upstream: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        x, hardness = ctx.saved_tensors
        learns_x, learns_hardness, _ = ctx.needs_input_grad
        of_hardness: torch.Tensor | None
        # create_graph: the gradients are to be differentiated in turn; or a batch of them is asked
        # for at once (vmap)
        if (
            torch.is_grad_enabled()
            or is_functorch_wrapped_tensor(upstream)
            or is_legacy_batchedtensor(upstream)
        ):
            of_x, of_hardness = _differentiable_slopes(x, hardness, upstream)
        else:
            of_x, of_hardness = _slopes(x, hardness, upstream, learns_hardness, ctx.compiled)
        return of_x if learns_x else None, of_hardness if learns_hardness else None, None


class _Layout:
    """x as (n,), or as (rows, columns) where lambda is per channel, in the order in which it
    lies in memory.
    """

    def __init__(self, x: torch.Tensor, hardness: torch.Tensor) -> None:
        # 1. The order of dimensions in which x lies in memory: elementwise work needs no copy of
        # a channels-last tensor. What has gaps or overlaps is copied.
        order = sorted(range(x.ndim), key=x.stride, reverse=True)
        if not x.permute(order).is_contiguous():
            order, x = list(range(x.ndim)), x.contiguous()
        self.dense = x
        self.order = order
        self.dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        self.hardness = hardness.detach().to(self.dtype)
        self.per_channel = hardness.ndim > 0
        # 2. For lambda per channel, a table whose columns are the channel and all that lies
        # inside it, with one lambda for each column.
        if self.per_channel:
            place = order.index(1)
            self.inner = math.prod(x.shape[dimension] for dimension in order[place + 1 :])
            self.hardness = self.hardness.repeat_interleave(self.inner)
        self.flat = self.flatten(x.detach())

    def flatten(self, like_x: torch.Tensor) -> torch.Tensor:
        """A tensor of the shape of x, laid out as x: a view if it lies in memory as x does."""
        ordered = like_x.permute(self.order)
        return ordered.reshape(-1, len(self.hardness)) if self.per_channel else ordered.reshape(-1)

    def sum_to_hardness(self, sums: torch.Tensor, hardness: torch.Tensor) -> torch.Tensor:
        """Sums per column as the gradient of `hardness`, in its dtype."""
        if self.per_channel:
            sums = sums.view(len(hardness), self.inner).sum(1)
        return sums.to(hardness)

    def pieces(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Some rows at once (all, elsewhere than on the CPU), and three scratch tensors of their
        size.
        """
        rows = len(self.flat)
        at_once = (
            _PIECE * torch.get_num_threads()
            if self.flat.device.type == "cpu"
            else self.flat.numel()
        )
        step = min(rows, max(1, at_once * rows // self.flat.numel()))
        scratch = torch.empty(
            (3, step, *self.flat.shape[1:]), dtype=self.dtype, device=self.flat.device
        )
        for start in range(0, rows, step):
            piece = slice(start, min(start + step, rows))
            first, second, third = scratch[:, : piece.stop - start]
            yield piece, first, second, third


@torch.no_grad()
def _value(x: torch.Tensor, hardness: torch.Tensor, compiled: bool) -> torch.Tensor:
    if x.numel() == 0:
        return torch.empty_like(x)
    layout = _Layout(x, hardness)
    result = torch.empty_like(layout.dense)
    flat = layout.flatten(result)
    fused = _fused() if compiled else None
    if fused is not None:
        fused.value(layout.flat, layout.hardness, flat)
        return result
    for piece, z, w, v in layout.pieces():
        here = _load(layout.flat[piece], v)
        torch.mul(here, layout.hardness, out=z)
        if z.dtype == torch.float64:
            # Minus infinity times Phi = 0 would be NaN; the least finite number gives 0.
            flat[piece] = here.clamp(min=torch.finfo(z.dtype).min).mul_(_distribution(z))
            continue
        # x Phi(lambda x) = gelu(lambda x) / lambda, by torch's own kernel. Its gelu of infinity is
        # NaN: what x has beyond saturation is added to f there.
        torch.ops.aten.gelu.out(z.clamp_(-_SATURATED, _SATURATED), out=w).div_(layout.hardness)
        torch.add(w, torch.sub(here, _SATURATED / layout.hardness, out=z).relu_(), out=flat[piece])
    return result


def _load(source: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """`source`, contiguous and in the dtype of `scratch`, copied there if it has to be."""
    return (
        source
        if source.dtype == scratch.dtype and source.is_contiguous()
        else scratch.copy_(source)
    )


def _distribution(z: torch.Tensor) -> torch.Tensor:
    """Phi, by erfc: accurate relative to itself in the left tail too."""
    doubled: torch.Tensor = torch.special.erfc(z * -math.sqrt(0.5))
    return doubled * 0.5


def _slopes(
    x: torch.Tensor,
    hardness: torch.Tensor,
    upstream: torch.Tensor,
    learns_hardness: bool,
    compiled: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradients of x and, where it learns, of lambda, in one pass."""
    if x.numel() == 0:
        return torch.empty_like(x), torch.zeros_like(hardness)
    layout = _Layout(x, hardness)
    result = torch.empty_like(layout.dense)
    gradient, flat = layout.flatten(upstream), layout.flatten(result)
    fused = _fused() if compiled else None
    if fused is not None:
        return result, layout.sum_to_hardness(
            fused.slopes(layout.flat, layout.hardness, gradient, flat), hardness
        )
    sums = torch.zeros(layout.hardness.shape, dtype=torch.float64, device=x.device)
    # Some rows at a time, so that the scratch tensors stay in the cache.
    for piece, z, w, v in layout.pieces():
        torch.mul(_load(layout.flat[piece], w), layout.hardness, out=z)
        z.clamp_(-_SATURATED, _SATURATED)
        here = _load(gradient[piece], v)
        if z.dtype == torch.float64:
            # df/dx = Phi(z) + z phi(z).
            slope = torch.exp(-0.5 * z * z).mul_(z).mul_(_DENSITY_AT_0).add_(_distribution(z))
            torch.mul(slope, here, out=flat[piece])
        else:
            # The same, by torch's derivative of GELU at z.
            flat[piece] = torch.ops.aten.gelu_backward.grad_input(here, z, grad_input=w)
        if learns_hardness:
            # df/dlambda = x^2 phi(z) = z^2 phi(z) / lambda^2. Constants and lambda are taken out
            # of the sum, which is in float64.
            z.mul_(z)
            # By exp2, which takes a third of the time of exp.
            torch.mul(z, -0.5 / math.log(2), out=w).exp2_().mul_(z).mul_(here)
            sums += w.sum(0) if layout.per_channel else w.sum()
    if not learns_hardness:
        return result, None
    return result, layout.sum_to_hardness(
        sums * _DENSITY_AT_0 / layout.hardness.double() ** 2, hardness
    )


def _differentiable_slopes(
    x: torch.Tensor, hardness: torch.Tensor, upstream: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    # In operators that can be differentiated again. Saturation clamps x to both sides, where the
    # slopes are constant.
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    scale = (hardness.reshape(-1, *[1] * (x.ndim - 2)) if hardness.ndim else hardness).to(dtype)
    limit = (_SATURATED / scale).detach()
    near = torch.clamp(x.to(dtype), -limit, limit)  # beyond, infinity times 0 would be NaN
    z = scale * near
    density = _DENSITY_AT_0 * torch.exp(-0.5 * z * z)
    of_x = upstream * (_distribution(z) + z * density)
    of_hardness = upstream * near * (density * near)
    return of_x.to(x.dtype), of_hardness.sum_to_size(scale.shape).reshape(hardness.shape).to(
        hardness.dtype
    )
