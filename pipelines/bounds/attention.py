"""Scaled dot-product attention for auto_LiRPA 0.7: its softmax by our own operator, its products by theirs.

Their softmax is unsound: a constant in its denominators makes ranges too small, and in its logarithms upper lines too
low, by any amount where logits range widely. Their product of two activations is McCormick's envelope.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pipelines.bounds.softmax import PRODUCT, SOFTMAX, softmax_lines, softmax_range, through, visible
from pipelines.bounds.surroundings import at_home

with at_home():
    from auto_LiRPA.bound_ops import Bound, BoundMatMul


class _Product(torch.autograd.Function):
    """x @ y, which exporters write as one operator: constants are told from activations by auto_LiRPA."""

    @staticmethod
    def symbolic(graph: Any, x: Any, y: Any, sizes: tuple[int, ...]) -> Any:
        made = graph.op(PRODUCT, x, y)
        made.setType(x.type().with_sizes(list(sizes)))
        return made

    @staticmethod
    def forward(_: Any, x: torch.Tensor, y: torch.Tensor, __: tuple[int, ...]) -> torch.Tensor:
        return x @ y


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _Product.apply(x, y, (*_sizes(x, 0, x.ndim - 1), int(y.shape[-1])))  # type: ignore[no-untyped-call]
    return made


class _Softmax(torch.autograd.Function):
    """softmax(scale x) over the last dimension; where causal, row i has i + 1 entries, and the others are 0."""

    @staticmethod
    def symbolic(graph: Any, x: Any, scale: float, causal: bool) -> Any:
        made = graph.op(SOFTMAX, x, scale_f=scale, causal_i=int(causal))
        made.setType(x.type())
        return made

    @staticmethod
    def forward(_: Any, x: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        return _softmax(x, scale, visible(x) if causal else None)


def _softmax(x: torch.Tensor, scale: float, seen: torch.Tensor | None) -> torch.Tensor:
    scores = scale * x
    return (scores if seen is None else scores.masked_fill(~seen, -torch.inf)).softmax(-1)


class BoundSoftmax(Bound):  # type: ignore[misc]
    """softmax(scale x) as an operator of auto_LiRPA."""

    def __init__(self, attr: Any = None, inputs: Any = None, output_index: int = 0, options: Any = None) -> None:
        super().__init__(attr, inputs, output_index, options)
        self._scale, self._causal = float(attr["scale"]), bool(attr["causal"])
        self.requires_input_bounds = [0]
        # Its range over a box is exact, and no line through it is better.
        self.ibp_intermediate = True

    def _seen(self, x: torch.Tensor) -> torch.Tensor | None:
        return visible(x) if self._causal else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _softmax(x, self._scale, self._seen(x))

    def interval_propagate(self, *bounds: Any) -> tuple[torch.Tensor, torch.Tensor]:
        lower, upper = bounds[0][0], bounds[0][1]
        return softmax_range(self._scale * lower, self._scale * upper, self._seen(lower))

    def bound_backward(self, last_lA: Any, last_uA: Any, *x: Any, **_: Any) -> Any:
        lower, upper = x[0].lower, x[0].upper
        below, above = softmax_lines(self._scale * lower, self._scale * upper, self._seen(lower))
        low, low_bias = (None, 0) if last_lA is None else through(last_lA, below, above)
        high, high_bias = (None, 0) if last_uA is None else through(last_uA, above, below)
        scaled = (None if each is None else self._scale * each for each in (low, high))
        return [tuple(scaled)], low_bias, high_bias


OPERATORS: dict[str, Any] = {PRODUCT: BoundMatMul, SOFTMAX: BoundSoftmax}


class Spelling(TorchFunctionMode):
    """While a network is traced: what exporters have no operators for, in terms of those that have bounds here."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if tracing and function in _SPELLED:
            found = _SPELLED[function](*args, **named)
            if found is not NotImplemented:
                return found
        return function(*args, **named)


def attention_scale(query: torch.Tensor, scale: float | None) -> float:
    """The factor of the scores: `scale` where it is given, else 1 / sqrt(the last dimension of `query`)."""
    return 1 / math.sqrt(int(query.shape[-1])) if scale is None else float(scale)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    times = attention_scale(query, scale)
    square = int(query.shape[-2]) == int(key.shape[-2])
    if attn_mask is not None or dropout_p or enable_gqa or not times > 0 or (is_causal and not square):
        return NotImplemented
    shares = _Softmax.apply(_product(query, key.transpose(-1, -2)), times, is_causal)  # type: ignore[no-untyped-call]
    return _product(shares, value)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    if x.ndim < 3:
        return NotImplemented
    y = _product(x, weight.t())
    return y if bias is None else y + bias


def _unflatten(x: torch.Tensor, dim: int, sizes: Any) -> Any:
    dim %= x.ndim
    if dim == 0 or not all(isinstance(each, int) for each in sizes):
        return NotImplemented
    missing = int(x.shape[dim]) // -math.prod(sizes) if -1 in sizes else 0
    given = [missing if each == -1 else each for each in sizes]
    return x.reshape(-1, *_sizes(x, 1, dim), *given, *_sizes(x, dim + 1, x.ndim))


def _flatten(x: torch.Tensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    start, end = start_dim % x.ndim, end_dim % x.ndim
    if start < 2:
        return NotImplemented
    joined = math.prod(_sizes(x, start, end + 1))
    return x.reshape(-1, *_sizes(x, 1, start), joined, *_sizes(x, end + 1, x.ndim))


def _chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    return x.split(-(-int(x.shape[dim]) // chunks), dim)  # type: ignore[no-untyped-call]


def _sizes(x: torch.Tensor, first: int, last: int) -> list[int]:
    return [int(x.shape[at]) for at in range(first, last)]


def _taken(x: torch.Tensor, index: Any) -> Any:
    """All rows of a parameter, as of positions."""
    plain = isinstance(x, nn.Parameter) and isinstance(index, slice) and index.start is None and index.step is None
    return x if plain and index.stop is not None and int(index.stop) >= int(x.shape[0]) else NotImplemented


_SPELLED: dict[Any, Any] = {
    functional.scaled_dot_product_attention: _attention,
    functional.linear: _linear,
    torch.Tensor.unflatten: _unflatten,
    torch.Tensor.__getitem__: _taken,
    **dict.fromkeys((torch.chunk, torch.Tensor.chunk), _chunk),
    **dict.fromkeys((torch.flatten, torch.Tensor.flatten), _flatten),
}
