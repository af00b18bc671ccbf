"""What torch's operators mean, one row each: those that move entries, make constants, or do
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


def _dropout(c: Call, x: Value, share: float, train: bool) -> Value:
    if train and share:
        c.refuse(
            "has dropout in evaluation mode, so that it is no function of its input: pass"
            " training=self.training"
        )
    return x


def _split(c: Call, x: Value, size: Any, dim: int = 0) -> tuple[Value, ...]:
    whole = c.node(x).shape[c.axis(x, dim)]
    if whole < 0:
        c.refuse("splits the batch")
    sizes = [size] * -(-whole // size) if isinstance(size, int) else list(size)
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return tuple(c.sliced(x, dim, at, at + each) for at, each in zip(starts, sizes, strict=True))


def _stack(c: Call, parts: list[Any], dim: int = 0) -> Value:
    axis = dim % len(c.shape)
    each = (*c.shape[:axis], 1, *c.shape[axis + 1 :])
    return c.joined([c.reshaped(part, each) for part in c.alike(*parts)], axis)


def _pad(c: Call, x: Value, pad: list[int], mode: Any = 0.0, value: float | None = None) -> Value:
    """constant_pad_nd(x, pad, value), or pad(x, pad, mode, value)."""
    # torch gives pairs from the last axis to the first.
    fill = mode if isinstance(mode, (int, float)) else (value or 0.0)
    count = len(c.node(x).shape)
    pairs = [(pad[place], pad[place + 1]) for place in range(0, len(pad), 2)]
    widths = ([(0, 0)] * (count - len(pairs)) + pairs[::-1]) if pairs else []
    if isinstance(mode, str) and mode != "constant":
        for axis, width in enumerate(widths):
            if any(width):  # each entry is one of the axis, which has a fixed size
                places = torch.arange(c.node(x).shape[axis], dtype=torch.float64)[None, None]
                x = c.gathered(x, axis, functional.pad(places, width, mode)[0, 0].long())
        return x
    # Negative padding cuts entries off.
    for axis, (before, behind) in enumerate(widths):
        if before < 0 or behind < 0:
            size = c.node(x).shape[axis]
            x = c.sliced(x, axis, max(-before, 0), size - max(-behind, 0) if behind < 0 else None)
    kept = tuple((max(before, 0), max(behind, 0)) for before, behind in widths)
    return c.add(Pad(kept, float(fill)), x) if any(map(any, kept)) else x


def _index(c: Call, x: Value, indices: list[Any]) -> Value:
    axes = tuple(axis for axis, each in enumerate(indices) if each is not None)
    given = [c.value(index) for index in indices if index is not None]
    if any(c.node(each).dtype == torch.bool for each in given):
        c.refuse(
            "indexes by truth values, so that the number of entries depends on the input: use"
            " torch.where"
        )
    return c.add(Gather(axes), x, *given)


def _full(c: Call, fill: Any) -> Value:
    value = c.known(fill, "fill")
    return c.expanded(value.to(torch.float64 if c.dtype == torch.float32 else c.dtype), c.shape)


def _arange(c: Call, *ends: Any, **kwargs: Any) -> Value:
    start, stop, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1)[:3]
    if isinstance(stop, Times) and (start, step) == (0, 1):
        return c.as_kind(c.add(Positions(stop.times), *c.batch((-1,))), c.dtype)
    if any(isinstance(each, Times) for each in (start, stop, step)):
        c.refuse(f"counts from {start} to {stop} by {step}, which depends on the batch")
    return c.as_kind(torch.arange(start, stop, step), c.dtype)


def _flipped(c: Call, x: Value, dims: list[int]) -> Value:
    for dim in dims:
        axis = c.axis(x, dim)
        size = c.node(x).shape[axis]
        x = c.gathered(x, axis, torch.arange(size - 1, -1, -1))
    return x


def _rolled(c: Call, x: Value, shifts: list[int], dims: Any = ()) -> Value:
    for shift, dim in zip(shifts, dims or c.refuse("rolls the flattened tensor"), strict=True):
        axis = c.axis(x, dim)
        x = c.gathered(x, axis, torch.arange(c.node(x).shape[axis]).roll(shift))
    return x


def _difference(
    c: Call, x: Value, n: int = 1, dim: int = -1, before: Any = None, behind: Any = None
) -> Value:
    if n != 1:
        c.refuse("takes differences of differences")
    x = c.joined([each for each in (before, x, behind) if each is not None], c.axis(x, dim))
    return c.summed(
        c.sliced(x, dim, 1, None), c.sliced(x, dim, 0, c.node(x).shape[c.axis(x, dim)] - 1), -1
    )


def _repeat(c: Call, x: Value, times: list[int]) -> Value:
    """Tiled: by new axes, which are joined with the old."""
    shape = (1,) * (len(times) - len(c.node(x).shape)) + c.node(x).shape
    apart = tuple(each for size in shape for each in (1, size))
    wide = tuple(each for count, size in zip(times, shape, strict=True) for each in (count, size))
    if any(isinstance(time, Times) for time in times):
        # Only what has no batch of its own is repeated along one.
        return c.expanded(c.reshaped(x, shape), c.shape)
    return c.reshaped(c.expanded(c.reshaped(x, apart), wide), c.shape)


def _repeat_interleave(
    c: Call, x: Value, count: int, dim: int | None = None, **kwargs: Any
) -> Value:
    if dim is None:
        x, dim = c.reshaped(x, (prod(c.node(x).shape),)), 0
    axis, shape = c.axis(x, dim), c.node(x).shape
    apart = c.reshaped(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    return c.reshaped(c.expanded(apart, (*shape[: axis + 1], count, *shape[axis + 1 :])), c.shape)


def _moved(c: Call, x: Value, source: Any, target: Any) -> Value:
    # Sizes that all differ tell where each axis goes.
    probe = torch.empty(tuple(range(2, 2 + len(c.node(x).shape))), device="meta").movedim(
        source, target
    )
    return c.permuted(x, tuple(each - 2 for each in probe.shape))


def _written(
    c: Call, x: Value, part: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    """x with a slice of it replaced by `part`: entries of one behind the other."""
    axis = c.axis(x, dim)
    size = c.node(x).shape[axis]
    if c.node(x).shape == c.node(part).shape:
        return c.as_kind(part, c.dtype)
    if size < 0:
        c.refuse("writes into a part of the batch")
    index = torch.arange(size)
    places = index[slice(start, end, step)]
    index[places.clone()] = size + torch.arange(len(places))
    return c.gathered(c.joined([x, part], axis), axis, index)


def _written_at(c: Call, x: Value, part: Value, dim: int, index: int) -> Value:
    axis = c.axis(x, dim)
    shape, place = c.node(x).shape, index % max(c.node(x).shape[axis], 1)
    return _written(
        c, x, c.reshaped(part, (*shape[:axis], 1, *shape[axis + 1 :])), axis, place, place + 1
    )


MOVING: dict[str, Reader] = {
    **dict.fromkeys(
        ("alias", "clone", "contiguous", "detach", "detach_", "lift_fresh_copy"),
        lambda c, x, *_, **given: x,
    ),
    # To the kind of the result; to another precision of real numbers is nothing.
    **dict.fromkeys(
        ("_to_copy", "to", "type_as", "float"), lambda c, x, *_, **given: c.as_kind(x, c.dtype)
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
        lambda c, x, *_, **given: c.reshaped(x, c.shape),
    ),
    **dict.fromkeys(
        ("broadcast_to", "expand", "expand_as"), lambda c, x, *_, **given: c.expanded(x, c.shape)
    ),
    **dict.fromkeys(("cat", "concat"), lambda c, parts, dim=0: c.joined(parts, dim)),
    **dict.fromkeys(("dropout", "dropout_", "feature_dropout"), _dropout),
    **dict.fromkeys(("full", "full_like"), lambda c, like, fill, **given: _full(c, fill)),
    **dict.fromkeys(("movedim", "moveaxis"), _moved),
    **dict.fromkeys(("new_ones", "ones", "ones_like"), lambda c, *_, **given: _full(c, 1)),
    **dict.fromkeys(("new_zeros", "zeros", "zeros_like"), lambda c, *_, **given: _full(c, 0)),
    **dict.fromkeys(("numpy_T", "t"), lambda c, x: c.transposed(x, 0, 1)),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("swapaxes", "transpose"), lambda c, x, one, two: c.transposed(x, one, two)),
    "arange": _arange,
    "chunk": lambda c, x, count, dim=0: _split(
        c, x, -(-c.node(x).shape[c.axis(x, dim)] // count), dim
    ),
    "constant_pad_nd": _pad,
    "copy": lambda c, x, source, *_: c.expanded(c.as_kind(source, c.dtype), c.shape),
    "diff": _difference,
    "embedding": lambda c, weight, index, *_, **given: c.add(Gather((0,)), weight, index),
    "fill": lambda c, x, fill: _full(c, fill),
    "flip": _flipped,
    "gather": lambda c, x, dim, index, **given: c.add(GatherAlong(c.axis(x, dim)), x, index),
    "index": _index,
    "index_select": lambda c, x, dim, index: c.gathered(x, dim, index),
    "new_full": lambda c, x, size, fill, **given: _full(c, fill),
    "outer": lambda c, x, y: c.add(Product(), c.reshaped(x, (*c.node(x).shape, 1)), y),
    "pad": _pad,
    "permute": lambda c, x, order: c.permuted(x, tuple(c.axis(x, each) for each in order)),
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "roll": _rolled,
    "scalar_tensor": lambda c, fill, **given: _full(c, fill),
    "select": lambda c, x, dim, index: c.picked(x, dim, index),
    "select_scatter": _written_at,
    "slice": lambda c, x, dim=0, start=None, end=None, step=1: c.sliced(x, dim, start, end, step),
    "slice_scatter": _written,
    "stack": _stack,
    "tril": lambda c, x, diagonal=0: triangle(c, x, diagonal, upper=False),
    "triu": lambda c, x, diagonal=0: triangle(c, x, diagonal, upper=True),
    "unbind": lambda c, x, dim=0: tuple(
        c.picked(x, dim, at) for at in range(c.node(x).shape[c.axis(x, dim)])
    ),
}


def adaptive(c: Call, x: Value, size: Any) -> Value:
    """The mean over as many windows as asked for, of spatial axes of a fixed size."""
    count = len(size) if isinstance(size, (list, tuple)) else 1
    inputs = c.node(x).shape[-count:]
    outputs = c.shape[-count:]
    if all(output == 1 for output in outputs):
        axes = tuple(range(len(c.node(x).shape) - count, len(c.node(x).shape)))
        return c.add(Reduction("mean", axes, True), x)
    if min(inputs) < 1:
        c.refuse("pools an axis that has no fixed size")
    # 1. Windows of one size: an average pool.
    if all(before % after == 0 for before, after in zip(inputs, outputs, strict=True)):
        kernel = tuple(before // after for before, after in zip(inputs, outputs, strict=True))
        return c.add(AveragePool(kernel, kernel, (0,) * count), x)
    # 2. Windows of different sizes are linear all the same: torch's own matrix, axis by axis.
    matrices = [
        functional.adaptive_avg_pool1d(torch.eye(before, dtype=torch.float64), after).T
        for before, after in zip(inputs, outputs, strict=True)
    ]
    return c.add(Resample(tuple(matrices)), x)


def adaptive_maximum(c: Call, x: Value, size: Any) -> tuple[Value, None]:
    """The greatest of each of as many windows of one size as asked for; their places are not
    read.
    """
    before, after = c.node(x).shape[2:], c.shape[2:]
    if min(before) < 1 or any(of % parts for of, parts in zip(before, after, strict=True)):
        c.refuse(
            f"makes {size} of {before} places by windows of different sizes: take a size that"
            " divides them"
        )
    kernel = tuple(of // parts for of, parts in zip(before, after, strict=True))
    return c.add(MaxPool(kernel, kernel, (0,) * len(kernel), (1,) * len(kernel), False), x), None


def nearest(c: Call, x: Value, size: Any, *scales: Any) -> Value:
    """Each output entry is one input entry."""
    for axis, before, asked in _axes(c, x, size, scales):
        line = torch.arange(before, dtype=torch.float64)[None, None]
        index = functional.interpolate(line, mode="nearest", **asked)[0, 0].long()
        x = c.gathered(x, axis, index)
    return x


def linear_interpolation(c: Call, x: Value, size: Any, align: bool, *scales: Any) -> Value:
    """Linear interpolation along the spatial axes, a matrix for each; refused where one has no
    fixed size.
    """
    matrices = []
    for _, before, asked in _axes(c, x, size, scales):
        points = torch.eye(before, dtype=torch.float64)[None]
        matrices.append(
            functional.interpolate(points, mode="linear", align_corners=align, **asked)[0].T
        )
    return c.add(Resample(tuple(matrices)), x)


def _axes(
    c: Call, x: Value, size: Any, scales: tuple[Any, ...]
) -> list[tuple[int, int, dict[str, Any]]]:
    """Each spatial axis with its size, and the size or the scale that is asked of torch."""
    shape = c.node(x).shape
    count = len(shape) - 2
    given = (
        list(scales[0] or ()) if scales and isinstance(scales[0], (list, tuple)) else list(scales)
    )
    found: list[tuple[int, int, dict[str, Any]]] = []
    for place in range(count):
        before, after = shape[2 + place], c.shape[2 + place]
        if before < 1 or after < 1:
            c.refuse("interpolates along an axis that has no fixed size")
        # A size that was asked for as a scale is interpolated by that scale, which need not be the
        # sizes' ratio.
        by_scale = len(given) == count and given[place] is not None
        asked: dict[str, Any] = {"scale_factor": given[place]} if by_scale else {"size": after}
        found.append((2 + place, before, asked))
    return found
