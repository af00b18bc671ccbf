"""Define what torch's operators mean, one row each: those that move entries, make constants, or do
nothing.

Windows and weights of adaptive means and of interpolation are found by asking torch, an axis at a
time.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.nn import functional

from opgraph.call import Call, Times, Value
from opgraph.moving import Gather, GatherAlong, Pad, Positions
from opgraph.operations import AveragePool, MaxPool, Product, Reduction, Resample
from opgraph.operators import Reader, triangle


def _dropout(call: Call, operand: Value, share: float, train: bool) -> Value:
    if train and share:
        call.refuse(
            "has dropout in evaluation mode, so that it is no function of its input: pass"
            " training=self.training"
        )
    return operand


def _split(call: Call, operand: Value, size: Any, dim: int = 0) -> tuple[Value, ...]:
    whole = call.node(operand).shape[call.axis(operand, dim)]
    if whole < 0:
        call.refuse("splits the batch")
    sizes = [size] * -(-whole // size) if isinstance(size, int) else list(size)
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return tuple(
        call.sliced(operand, dim, start, start + length)
        for start, length in zip(starts, sizes, strict=True)
    )


def _stack(call: Call, parts: list[Any], dim: int = 0) -> Value:
    axis = dim % len(call.shape)
    widened = (*call.shape[:axis], 1, *call.shape[axis + 1 :])
    return call.joined([call.reshaped(part, widened) for part in call.alike(*parts)], axis)


def _pad(
    call: Call, operand: Value, pad: list[int], mode: Any = 0.0, value: float | None = None
) -> Value:
    """constant_pad_nd(x, pad, value), or pad(x, pad, mode, value)."""
    # torch gives pairs from the last axis to the first.
    fill = mode if isinstance(mode, (int, float)) else (value or 0.0)
    count = len(call.node(operand).shape)
    pairs = [(pad[place], pad[place + 1]) for place in range(0, len(pad), 2)]
    widths = ([(0, 0)] * (count - len(pairs)) + pairs[::-1]) if pairs else []
    if isinstance(mode, str) and mode != "constant":
        for axis, width in enumerate(widths):
            if any(width):  # each entry is one of the axis, which has a fixed size
                places = torch.arange(call.node(operand).shape[axis], dtype=torch.float64)[
                    None, None
                ]
                operand = call.gathered(
                    operand, axis, functional.pad(places, width, mode)[0, 0].long()
                )
        return operand
    # Negative padding cuts entries off.
    for axis, (before, behind) in enumerate(widths):
        if before < 0 or behind < 0:
            size = call.node(operand).shape[axis]
            operand = call.sliced(
                operand, axis, max(-before, 0), size - max(-behind, 0) if behind < 0 else None
            )
    kept = tuple((max(before, 0), max(behind, 0)) for before, behind in widths)
    return call.add(Pad(kept, float(fill)), operand) if any(map(any, kept)) else operand


def _index(call: Call, operand: Value, indices: list[Any]) -> Value:
    axes = tuple(axis for axis, index in enumerate(indices) if index is not None)
    places = [call.value(index) for index in indices if index is not None]
    if any(call.node(place).dtype == torch.bool for place in places):
        call.refuse(
            "indexes by truth values, so that the number of entries depends on the input: use"
            " torch.where"
        )
    return call.add(Gather(axes), operand, *places)


def _full(call: Call, fill: Any) -> Value:
    value = call.known(fill, "fill")
    return call.expanded(
        value.to(torch.float64 if call.dtype == torch.float32 else call.dtype), call.shape
    )


def _arange(call: Call, *ends: Any, **kwargs: Any) -> Value:
    start, stop, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1)[:3]
    if isinstance(stop, Times) and (start, step) == (0, 1):
        return call.as_kind(call.add(Positions(stop.times), *call.batch((-1,))), call.dtype)
    if any(isinstance(end, Times) for end in (start, stop, step)):
        call.refuse(f"counts from {start} to {stop} by {step}, which depends on the batch")
    return call.as_kind(torch.arange(start, stop, step), call.dtype)


def _flipped(call: Call, operand: Value, dims: list[int]) -> Value:
    for dim in dims:
        axis = call.axis(operand, dim)
        size = call.node(operand).shape[axis]
        operand = call.gathered(operand, axis, torch.arange(size - 1, -1, -1))
    return operand


def _rolled(call: Call, operand: Value, shifts: list[int], dims: Any = ()) -> Value:
    for shift, dim in zip(shifts, dims or call.refuse("rolls the flattened tensor"), strict=True):
        axis = call.axis(operand, dim)
        operand = call.gathered(
            operand, axis, torch.arange(call.node(operand).shape[axis]).roll(shift)
        )
    return operand


def _difference(
    call: Call, operand: Value, n: int = 1, dim: int = -1, before: Any = None, behind: Any = None
) -> Value:
    if n != 1:
        call.refuse("takes differences of differences")
    operand = call.joined(
        [part for part in (before, operand, behind) if part is not None], call.axis(operand, dim)
    )
    return call.summed(
        call.sliced(operand, dim, 1, None),
        call.sliced(operand, dim, 0, call.node(operand).shape[call.axis(operand, dim)] - 1),
        -1,
    )


def _repeat(call: Call, operand: Value, times: list[int]) -> Value:
    """Tiled: by new axes, which are joined with the old."""
    shape = (1,) * (len(times) - len(call.node(operand).shape)) + call.node(operand).shape
    apart = tuple(extent for size in shape for extent in (1, size))
    wide = tuple(
        extent for count, size in zip(times, shape, strict=True) for extent in (count, size)
    )
    if any(isinstance(time, Times) for time in times):
        # Only what has no batch of its own is repeated along one.
        return call.expanded(call.reshaped(operand, shape), call.shape)
    return call.reshaped(call.expanded(call.reshaped(operand, apart), wide), call.shape)


def _repeat_interleave(
    call: Call, operand: Value, count: int, dim: int | None = None, **kwargs: Any
) -> Value:
    if dim is None:
        operand, dim = call.reshaped(operand, (prod(call.node(operand).shape),)), 0
    axis, shape = call.axis(operand, dim), call.node(operand).shape
    apart = call.reshaped(operand, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    return call.reshaped(
        call.expanded(apart, (*shape[: axis + 1], count, *shape[axis + 1 :])), call.shape
    )


def _moved(call: Call, operand: Value, source: Any, target: Any) -> Value:
    # Sizes that all differ tell where each axis goes.
    probe = torch.empty(tuple(range(2, 2 + len(call.node(operand).shape))), device="meta").movedim(
        source, target
    )
    return call.permuted(operand, tuple(extent - 2 for extent in probe.shape))


def _written(
    call: Call,
    operand: Value,
    part: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    """The operand with a slice of it replaced by `part`: entries of one behind the other."""
    axis = call.axis(operand, dim)
    size = call.node(operand).shape[axis]
    if call.node(operand).shape == call.node(part).shape:
        return call.as_kind(part, call.dtype)
    if size < 0:
        call.refuse("writes into a part of the batch")
    index = torch.arange(size)
    places = index[slice(start, end, step)]
    index[places.clone()] = size + torch.arange(len(places))
    return call.gathered(call.joined([operand, part], axis), axis, index)


def _written_at(call: Call, operand: Value, part: Value, dim: int, index: int) -> Value:
    axis = call.axis(operand, dim)
    shape, place = call.node(operand).shape, index % max(call.node(operand).shape[axis], 1)
    return _written(
        call,
        operand,
        call.reshaped(part, (*shape[:axis], 1, *shape[axis + 1 :])),
        axis,
        place,
        place + 1,
    )


MOVING: dict[str, Reader] = {
    **dict.fromkeys(
        ("alias", "clone", "contiguous", "detach", "detach_", "lift_fresh_copy"),
        lambda call, operand, *_, **options: operand,
    ),
    # To the kind of the result; to another precision of real numbers is nothing.
    **dict.fromkeys(
        ("_to_copy", "to", "type_as", "float"),
        lambda call, operand, *_, **options: call.as_kind(operand, call.dtype),
    ),
    **dict.fromkeys(
        (
            "_unsafe_view",
            "flatten",
            "reshape",
            "squeeze",
            "unflatten",
            "unsqueeze",
            "view",
            "view_as",
            "reshape_as",
        ),
        lambda call, operand, *_, **options: call.reshaped(operand, call.shape),
    ),
    **dict.fromkeys(
        ("broadcast_to", "expand", "expand_as"),
        lambda call, operand, *_, **options: call.expanded(operand, call.shape),
    ),
    **dict.fromkeys(("cat", "concat"), lambda call, parts, dim=0: call.joined(parts, dim)),
    **dict.fromkeys(("dropout", "dropout_", "feature_dropout"), _dropout),
    **dict.fromkeys(("full", "full_like"), lambda call, like, fill, **options: _full(call, fill)),
    **dict.fromkeys(("movedim", "moveaxis"), _moved),
    **dict.fromkeys(("new_ones", "ones", "ones_like"), lambda call, *_, **options: _full(call, 1)),
    **dict.fromkeys(
        ("new_zeros", "zeros", "zeros_like"), lambda call, *_, **options: _full(call, 0)
    ),
    **dict.fromkeys(("numpy_T", "t"), lambda call, operand: call.transposed(operand, 0, 1)),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(
        ("swapaxes", "transpose"),
        lambda call, operand, one, two: call.transposed(operand, one, two),
    ),
    "arange": _arange,
    "chunk": lambda call, operand, count, dim=0: _split(
        call, operand, -(-call.node(operand).shape[call.axis(operand, dim)] // count), dim
    ),
    "constant_pad_nd": _pad,
    "copy": lambda call, operand, source, *_: call.expanded(
        call.as_kind(source, call.dtype), call.shape
    ),
    "diff": _difference,
    "embedding": lambda call, weight, index, *_, **options: call.add(Gather((0,)), weight, index),
    "fill": lambda call, operand, fill: _full(call, fill),
    "flip": _flipped,
    "gather": lambda call, operand, dim, index, **options: call.add(
        GatherAlong(call.axis(operand, dim)), operand, index
    ),
    "index": _index,
    "index_select": lambda call, operand, dim, index: call.gathered(operand, dim, index),
    "new_full": lambda call, operand, size, fill, **options: _full(call, fill),
    "outer": lambda call, operand, other: call.add(
        Product(), call.reshaped(operand, (*call.node(operand).shape, 1)), other
    ),
    "pad": _pad,
    "permute": lambda call, operand, order: call.permuted(
        operand, tuple(call.axis(operand, dim) for dim in order)
    ),
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "roll": _rolled,
    "scalar_tensor": lambda call, fill, **options: _full(call, fill),
    "select": lambda call, operand, dim, index: call.picked(operand, dim, index),
    "select_scatter": _written_at,
    "slice": lambda call, operand, dim=0, start=None, end=None, step=1: call.sliced(
        operand, dim, start, end, step
    ),
    "slice_scatter": _written,
    "stack": _stack,
    "tril": lambda call, operand, diagonal=0: triangle(call, operand, diagonal, upper=False),
    "triu": lambda call, operand, diagonal=0: triangle(call, operand, diagonal, upper=True),
    "unbind": lambda call, operand, dim=0: tuple(
        call.picked(operand, dim, index)
        for index in range(call.node(operand).shape[call.axis(operand, dim)])
    ),
}


def adaptive(call: Call, operand: Value, size: Any) -> Value:
    """The mean over as many windows as asked for, of spatial axes of a fixed size."""
    count = len(size) if isinstance(size, (list, tuple)) else 1
    inputs = call.node(operand).shape[-count:]
    outputs = call.shape[-count:]
    if all(output == 1 for output in outputs):
        axes = tuple(range(len(call.node(operand).shape) - count, len(call.node(operand).shape)))
        return call.add(Reduction("mean", axes, True), operand)
    if min(inputs) < 1:
        call.refuse("pools an axis that has no fixed size")
    # 1. Windows of one size: an average pool.
    if all(before % after == 0 for before, after in zip(inputs, outputs, strict=True)):
        kernel = tuple(before // after for before, after in zip(inputs, outputs, strict=True))
        return call.add(AveragePool(kernel, kernel, (0,) * count), operand)
    # 2. Windows of different sizes are linear all the same: torch's own matrix, axis by axis.
    matrices = [
        functional.adaptive_avg_pool1d(torch.eye(before, dtype=torch.float64), after).T
        for before, after in zip(inputs, outputs, strict=True)
    ]
    return call.add(Resample(tuple(matrices)), operand)


def adaptive_maximum(call: Call, operand: Value, size: Any) -> tuple[Value, None]:
    """The greatest of each of as many windows of one size as asked for; their places are not
    read.
    """
    before, after = call.node(operand).shape[2:], call.shape[2:]
    if min(before) < 1 or any(extent % parts for extent, parts in zip(before, after, strict=True)):
        call.refuse(
            f"makes {size} of {before} places by windows of different sizes: take a size that"
            " divides them"
        )
    kernel = tuple(extent // parts for extent, parts in zip(before, after, strict=True))
    return call.add(
        MaxPool(kernel, kernel, (0,) * len(kernel), (1,) * len(kernel), False), operand
    ), None


def nearest(call: Call, operand: Value, size: Any, *scales: Any) -> Value:
    """Each output entry is one input entry."""
    for axis, before, asked in _axes(call, operand, size, scales):
        line = torch.arange(before, dtype=torch.float64)[None, None]
        index = functional.interpolate(line, mode="nearest", **asked)[0, 0].long()
        operand = call.gathered(operand, axis, index)
    return operand


def linear_interpolation(call: Call, operand: Value, size: Any, align: bool, *scales: Any) -> Value:
    """Linear interpolation along the spatial axes, a matrix for each; refused where one has no
    fixed size.
    """
    matrices = []
    for _, before, asked in _axes(call, operand, size, scales):
        points = torch.eye(before, dtype=torch.float64)[None]
        matrices.append(
            functional.interpolate(points, mode="linear", align_corners=align, **asked)[0].T
        )
    return call.add(Resample(tuple(matrices)), operand)


def _axes(
    call: Call, operand: Value, size: Any, scales: tuple[Any, ...]
) -> list[tuple[int, int, dict[str, Any]]]:
    """Each spatial axis with its size, and the size or the scale that is asked of torch."""
    shape = call.node(operand).shape
    count = len(shape) - 2
    factors = (
        list(scales[0] or ()) if scales and isinstance(scales[0], (list, tuple)) else list(scales)
    )
    axes: list[tuple[int, int, dict[str, Any]]] = []
    for place in range(count):
        before, after = shape[2 + place], call.shape[2 + place]
        if before < 1 or after < 1:
            call.refuse("interpolates along an axis that has no fixed size")
        # A size that was asked for as a scale is interpolated by that scale, which need not be the
        # sizes' ratio.
        by_scale = len(factors) == count and factors[place] is not None
        asked: dict[str, Any] = {"scale_factor": factors[place]} if by_scale else {"size": after}
        axes.append((2 + place, before, asked))
    return axes
