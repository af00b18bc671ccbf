"""What ONNX's operators mean, one row each: those that move entries."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from opgraph.call import Known, OnnxCall, Times, Value
from opgraph.graph import kind_of
from opgraph.moving import Gather, GatherAlong, Pad, Positions
from opgraph.operations import Constant, Resample
from opgraph.operators import Reader, triangle
from opgraph.sizes import Shape

_KINDS = {
    1: torch.float32,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    11: torch.float64,
    10: torch.float16,
}


_BEYOND = 2**31 - 1


def _dropout(c: OnnxCall, x: Any, share: Any = None, training: Any = None) -> Value:
    if training is not None and bool(c.known(training, "training_mode").any()):
        c.refuse("training_mode is set")
    return c.value(x)


def _cast(c: OnnxCall, x: Any) -> Value:
    to = c.attributes["to"]
    if to not in _KINDS:
        c.refuse(
            f"casts to the type {to} of ONNX, and only float32, float64, int64, int32 and bool are"
            " read"
        )
    held = c.node(x).operation if isinstance(x, Value) else None
    if (
        _KINDS[to] == torch.float32
        and isinstance(held, Constant)
        and held.exact
        and held.value.is_floating_point()
    ):
        # What a file holds in a finer precision, it means as rounded.
        return c.value(held.value.float())
    return c.as_kind(x, kind_of(_KINDS[to]))


def _reshape(c: OnnxCall, x: Any, target: Any = None) -> Value:
    x = c.value(x)
    whole = c.node(x).shape
    if target is None:
        return _reshaped_to(c, x, [int(each) for each in c.attributes["shape"]], [])
    if not isinstance(target, Known):
        c.refuse("takes a shape that depends on the input's values")
    # A shape is known for two batches. -1 is left open, and 0 copies the old size: both stand as 1
    # while the rest is read as sizes, and are filled in then.
    first, second = target.first.ravel().tolist(), target.second.ravel().tolist()
    open_ = [
        place
        for place, (one, two) in enumerate(zip(first, second, strict=True))
        if one == two == -1
    ]
    copied = (
        []
        if c.attributes.get("allowzero", 0)
        else [place for place, each in enumerate(first) if each == 0]
    )
    known = Known(
        np.array([1 if place in (*open_, *copied) else each for place, each in enumerate(first)]),
        np.array([1 if place in (*open_, *copied) else each for place, each in enumerate(second)]),
    )
    sizes = list(c.sizes(known))
    for place in copied:
        sizes[place] = whole[place]
    return _reshaped_to(c, x, sizes, open_)


def _reshaped_to(c: OnnxCall, x: Value, sizes: list[int], open_: list[int]) -> Value:
    whole = c.node(x).shape
    if len(open_) > 1:
        c.refuse("its shape leaves more than one dimension open")
    for place in open_:
        # The open size is what is left of the number of entries; it is along the batch where no
        # other size is.
        others = [each for index, each in enumerate(sizes) if index != place]
        rest = prod(map(abs, whole)) // max(prod(map(abs, others)), 1)
        along = sum(each < 0 for each in whole) - sum(other < 0 for other in others)
        sizes[place] = -rest if along else rest
    return c.reshaped(x, tuple(sizes))


def _flatten(c: OnnxCall, x: Any) -> Value:
    x = c.value(x)
    sizes, axis = c.node(x).shape, int(c.attributes.get("axis", 1))
    axis = axis + len(sizes) if axis < 0 else axis
    return c.reshaped(x, tuple(_product(each) for each in (sizes[:axis], sizes[axis:])))


def _product(sizes: Shape) -> int:
    return prod(map(abs, sizes)) * (-1 if any(size < 0 for size in sizes) else 1)


def _squeeze(c: OnnxCall, x: Any, axes: Any = None) -> Value:
    x = c.value(x)
    sizes, given = c.node(x).shape, c.axes_of(axes, x)
    given = [place for place, each in enumerate(sizes) if each == 1] if given is None else given
    return c.reshaped(x, tuple(each for place, each in enumerate(sizes) if place not in given))


def _unsqueeze(c: OnnxCall, x: Any, axes: Any = None) -> Value:
    x = c.value(x)
    sizes = list(c.node(x).shape)
    given = c.attributes.get("axes")
    given = c.numbers(axes) if given is None else given
    count = len(sizes) + len(given)
    for axis in sorted(each % count for each in given):
        sizes.insert(axis, 1)
    return c.reshaped(x, tuple(sizes))


def _transpose(c: OnnxCall, x: Any) -> Value:
    x = c.value(x)
    order = c.attributes.get("perm", list(reversed(range(len(c.node(x).shape)))))
    return c.permuted(x, tuple(order))


def _slice(
    c: OnnxCall,
    given: Any,
    starts: Any = None,
    ends: Any = None,
    axes: Any = None,
    steps: Any = None,
) -> Value:
    x = c.value(given)
    if starts is None:
        firsts, lasts = [list(c.attributes[each]) for each in ("starts", "ends")]
    else:
        firsts, lasts = [_ends(c, each) for each in (starts, ends)]
    # Old opsets give ends and axes as attributes, newer ones as inputs.
    default = list(c.attributes.get("axes", range(len(firsts))))
    along = c.numbers(axes, default)
    for axis, start, stop, step in zip(
        along, firsts, lasts, c.numbers(steps, [1] * len(firsts)), strict=True
    ):
        size = c.node(x).shape[c.axis(x, axis)]
        if step < 0 and isinstance(stop, int) and stop >= _BEYOND:
            c.refuse(
                f"ends at {stop} in steps of {step}, which ONNX and ONNX Runtime read differently"
            )
        if step < 0 < size and not isinstance(start, Times) and not isinstance(stop, Times):
            x = c.gathered(x, axis, torch.arange(size)[_backwards(size, start, stop, step)])
        else:
            x = c.sliced(x, axis, start, stop, step)
    return x


def _backwards(size: int, start: int, stop: int, step: int) -> torch.Tensor:
    """The places that a slice with a step below 0 takes: as ONNX clamps its ends, and not as
    Python does.
    """
    first = min(max(start + size if start < 0 else start, 0), size - 1)
    last = min(max(stop + size if stop < 0 else stop, -1), size - 1)
    return torch.arange(first, last, step) if first > last else torch.arange(0)


def _ends(c: OnnxCall, source: Any) -> list[Any]:
    found = c.sizes(source) if isinstance(source, Known) and not source.fixed else c.numbers(source)
    fixed = isinstance(source, Known) and source.fixed
    return [each if fixed or each >= 0 else Times(-each) for each in found]


def _split(c: OnnxCall, x: Any, sizes: Any = None) -> tuple[Value, ...]:
    x = c.value(x)
    axis = c.axis(x, int(c.attributes.get("axis", 0)))
    whole, given = c.node(x).shape[axis], c.attributes.get("split")
    if whole < 0:
        c.refuse("splits the batch")
    count = int(c.attributes.get("num_outputs", c.outputs))
    # By default parts of equal size, of which the last may be smaller.
    each = -(-whole // count)
    default = [min(each, whole - each * place) for place in range(count)]
    parts = list(given) if given is not None else c.numbers(sizes, default)
    starts = [sum(parts[:place]) for place in range(len(parts))]
    return tuple(
        c.sliced(x, axis, start, start + size) for start, size in zip(starts, parts, strict=True)
    )


def _gather(c: OnnxCall, x: Any, index: Any) -> Value:
    x, axis = c.value(x), int(c.attributes.get("axis", 0))
    if isinstance(index, Known) and index.fixed and index.first.ndim == 0:
        return c.picked(x, axis, int(index.first))
    return c.gathered(x, axis, index)


def _gather_along(c: OnnxCall, x: Any, index: Any) -> Value:
    axis = c.axis(c.value(x), int(c.attributes.get("axis", 0)))
    size, found = c.node(c.value(x)).shape[axis], c.known(index, "index")
    if size < 0 and bool((found < 0).any()):
        c.refuse("counts from the end of an axis along the batch")
    return c.add(GatherAlong(axis), x, torch.where(found < 0, found + size, found))


def _gather_nd(c: OnnxCall, x: Any, index: Any) -> Value:
    c.expect(batch_dims=0)
    x, index = c.value(x), c.value(index)
    count = c.node(index).shape[-1]
    return c.add(
        Gather(tuple(range(count))), x, *(c.picked(index, -1, place) for place in range(count))
    )


def _expand(c: OnnxCall, x: Any, target: Any) -> Value:
    x = c.value(x)
    sizes, wanted = c.node(x).shape, c.sizes(target)
    count = max(len(sizes), len(wanted))
    both = zip(
        (1,) * (count - len(sizes)) + sizes, (1,) * (count - len(wanted)) + wanted, strict=True
    )
    return c.expanded(x, tuple(wide if size == 1 else size for size, wide in both))


def _tile(c: OnnxCall, x: Any, times: Any) -> Value:
    x = c.value(x)
    sizes, counts = c.node(x).shape, c.sizes(times)
    # Each axis gets one before it, along which it is expanded; then both become one axis.
    apart = tuple(each for size in sizes for each in (1, size))
    wide = tuple(each for count, size in zip(counts, sizes, strict=True) for each in (count, size))
    joined = tuple(_product((count, size)) for count, size in zip(counts, sizes, strict=True))
    return c.reshaped(c.expanded(c.reshaped(x, apart), wide), joined)


def _pad(c: OnnxCall, x: Any, pads: Any = None, fill: Any = None, axes: Any = None) -> Value:
    c.expect(mode=b"constant")
    x = c.value(x)
    given = c.attributes.get("pads")
    widths = list(given) if given is not None else c.numbers(pads)
    value = c.attributes.get("value", 0.0) if fill is None else float(c.known(fill, "fill"))
    count = len(c.node(x).shape)
    along = [number % count for number in c.numbers(axes, list(range(count)))]
    if min(widths) < 0:
        c.refuse(f"pads = {widths}: negative padding is not read")
    # ONNX gives all starts, then all ends; here each axis has its pair.
    pairs = dict(
        zip(along, zip(widths[: len(along)], widths[len(along) :], strict=True), strict=True)
    )
    return (
        c.add(Pad(tuple(pairs.get(axis, (0, 0)) for axis in range(count)), float(value)), x)
        if any(widths)
        else x
    )


def _positions(c: OnnxCall, start: Any, stop: Any, step: Any) -> Value:
    first, last, by = (each if isinstance(each, Known) else None for each in (start, stop, step))
    if (
        first is None
        or last is None
        or by is None
        or c.numbers(start) != [0]
        or c.numbers(step) != [1]
    ):
        c.refuse("counts by numbers that depend on the input")
    return c.add(Positions(-c.sizes(stop)[0]), *c.batch((-1,)))


def _resize(
    c: OnnxCall, given: Any, region: Any = None, scales: Any = None, sizes: Any = None
) -> Value:
    """Read a Resize of spatial axes, as torch exports its interpolation. `region` belongs to a mode
    that is not read.
    """
    del region
    x, mode = c.value(given), c.attributes.get("mode", b"nearest")
    way = c.attributes.get("coordinate_transformation_mode", b"half_pixel")
    c.expect(antialias=0, exclude_outside=0, keep_aspect_ratio_policy=b"stretch")
    if c.opset < 11:
        c.refuse(f"of opset {c.opset} is not read: convert the file to opset 11 or above")
    if "axes" in c.attributes:
        c.refuse("axes are not read: give the scales or the sizes of all axes")
    shape = c.node(x).shape
    after = _resized(c, shape, scales, sizes)
    if len(shape) < 3 or after[:2] != list(shape[:2]):
        c.refuse(
            f"resizes {list(shape)} to {after}; only axes behind the batch and the channels are"
            " resized here"
        )
    spatial = list(zip(range(2, len(shape)), shape[2:], after[2:], strict=True))
    if mode == b"nearest" and way == b"asymmetric" and c.attributes.get("nearest_mode") == b"floor":
        # The nearest entries are a choice: which, torch's own interpolation of a line of numbers
        # says.
        for axis, before, behind in spatial:
            line = torch.arange(before, dtype=torch.float64)[None, None]
            x = c.gathered(x, axis, functional.interpolate(line, size=behind)[0, 0].long())
        return x
    if mode == b"linear" and way in (b"half_pixel", b"pytorch_half_pixel", b"align_corners"):
        return c.add(
            Resample(tuple(_interpolation(before, to, way) for _, before, to in spatial)), x
        )
    return c.refuse(f"mode {mode!r} with {way!r} is not read")


def _resized(c: OnnxCall, shape: Shape, scales: Any, sizes: Any) -> list[int]:
    """The sizes that are asked for, by themselves or by factors that are exactly ratios of
    sizes.
    """
    if scales is None or (isinstance(scales, Value) and not c.node(scales).shape[0]):
        return list(c.sizes(sizes))
    factors = [float(each) for each in c.known(scales, "scales")]
    after = [
        int(size * factor) if size > 0 else size
        for size, factor in zip(shape, factors, strict=True)
    ]
    if any(
        factor != (to / size if size > 0 else 1)
        for factor, to, size in zip(factors, after, shape, strict=True)
    ):
        c.refuse("scales that are not the ratio of two sizes are not read")
    return after


def _interpolation(before: int, to: int, way: bytes) -> torch.Tensor:
    """The matrix (to, before) of a linear interpolation. pytorch_half_pixel takes the first
    entry for a size of 1.
    """
    # What a linear map makes of unit vectors is its matrix.
    eye = torch.eye(before, dtype=torch.float64)
    if to == 1 and way == b"pytorch_half_pixel":
        return eye[:1]
    return functional.interpolate(
        eye[None], size=to, mode="linear", align_corners=way == b"align_corners"
    )[0].T


def _triangle(c: OnnxCall, x: Any, diagonal: Any = None) -> Value:
    return triangle(
        c, c.value(x), c.numbers(diagonal, [0])[0], upper=bool(c.attributes.get("upper", 1))
    )


MOVING: dict[str, Reader] = {
    "Cast": _cast,
    "CastLike": lambda c, x, like: c.as_kind(x, c.node(c.value(like)).dtype),
    "Concat": lambda c, *parts: c.joined(parts, int(c.attributes["axis"])),
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_along,
    "GatherND": _gather_nd,
    "Identity": lambda c, x: c.value(x),
    "Pad": _pad,
    "Range": _positions,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
}
