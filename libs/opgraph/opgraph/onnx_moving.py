"""Define what ONNX's operators mean, one row each: those that move entries."""

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


def _dropout(call: OnnxCall, operand: Any, share: Any = None, training: Any = None) -> Value:
    if training is not None and bool(call.known(training, "training_mode").any()):
        call.refuse("training_mode is set")
    return call.value(operand)


def _cast(call: OnnxCall, operand: Any) -> Value:
    kind = call.attributes["to"]
    if kind not in _KINDS:
        call.refuse(
            f"casts to the type {kind} of ONNX, and only float32, float64, int64, int32 and bool"
            " are read"
        )
    held = call.node(operand).operation if isinstance(operand, Value) else None
    if (
        _KINDS[kind] == torch.float32
        and isinstance(held, Constant)
        and held.exact
        and held.value.is_floating_point()
    ):
        # What a file holds in a finer precision, it means as rounded.
        return call.value(held.value.float())
    return call.as_kind(operand, kind_of(_KINDS[kind]))


def _reshape(call: OnnxCall, operand: Any, target: Any = None) -> Value:
    operand = call.value(operand)
    whole = call.node(operand).shape
    if target is None:
        return _reshaped_to(call, operand, [int(extent) for extent in call.attributes["shape"]], [])
    if not isinstance(target, Known):
        call.refuse("takes a shape that depends on the input's values")
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
        if call.attributes.get("allowzero", 0)
        else [place for place, extent in enumerate(first) if extent == 0]
    )
    known = Known(
        np.array(
            [1 if place in (*open_, *copied) else extent for place, extent in enumerate(first)]
        ),
        np.array(
            [1 if place in (*open_, *copied) else extent for place, extent in enumerate(second)]
        ),
    )
    sizes = list(call.sizes(known))
    for place in copied:
        sizes[place] = whole[place]
    return _reshaped_to(call, operand, sizes, open_)


def _reshaped_to(call: OnnxCall, operand: Value, sizes: list[int], open_: list[int]) -> Value:
    whole = call.node(operand).shape
    if len(open_) > 1:
        call.refuse("its shape leaves more than one dimension open")
    for place in open_:
        # The open size is what is left of the number of entries; it is along the batch where no
        # other size is.
        others = [extent for index, extent in enumerate(sizes) if index != place]
        rest = prod(map(abs, whole)) // max(prod(map(abs, others)), 1)
        along = sum(extent < 0 for extent in whole) - sum(other < 0 for other in others)
        sizes[place] = -rest if along else rest
    return call.reshaped(operand, tuple(sizes))


def _flatten(call: OnnxCall, operand: Any) -> Value:
    operand = call.value(operand)
    sizes, axis = call.node(operand).shape, int(call.attributes.get("axis", 1))
    axis = axis + len(sizes) if axis < 0 else axis
    return call.reshaped(
        operand, tuple(_product(extents) for extents in (sizes[:axis], sizes[axis:]))
    )


def _product(sizes: Shape) -> int:
    return prod(map(abs, sizes)) * (-1 if any(size < 0 for size in sizes) else 1)


def _squeeze(call: OnnxCall, operand: Any, axes: Any = None) -> Value:
    operand = call.value(operand)
    sizes, dims = call.node(operand).shape, call.axes_of(axes, operand)
    dims = [place for place, extent in enumerate(sizes) if extent == 1] if dims is None else dims
    return call.reshaped(
        operand, tuple(extent for place, extent in enumerate(sizes) if place not in dims)
    )


def _unsqueeze(call: OnnxCall, operand: Any, axes: Any = None) -> Value:
    operand = call.value(operand)
    sizes = list(call.node(operand).shape)
    dims = call.attributes.get("axes")
    dims = call.numbers(axes) if dims is None else dims
    count = len(sizes) + len(dims)
    for axis in sorted(dim % count for dim in dims):
        sizes.insert(axis, 1)
    return call.reshaped(operand, tuple(sizes))


def _transpose(call: OnnxCall, operand: Any) -> Value:
    operand = call.value(operand)
    order = call.attributes.get("perm", list(reversed(range(len(call.node(operand).shape)))))
    return call.permuted(operand, tuple(order))


def _slice(
    call: OnnxCall,
    operand: Any,
    starts: Any = None,
    ends: Any = None,
    axes: Any = None,
    steps: Any = None,
) -> Value:
    value = call.value(operand)
    if starts is None:
        firsts, lasts = [list(call.attributes[name]) for name in ("starts", "ends")]
    else:
        firsts, lasts = [_ends(call, source) for source in (starts, ends)]
    # Old opsets give ends and axes as attributes, newer ones as inputs.
    default = list(call.attributes.get("axes", range(len(firsts))))
    along = call.numbers(axes, default)
    for axis, start, stop, step in zip(
        along, firsts, lasts, call.numbers(steps, [1] * len(firsts)), strict=True
    ):
        size = call.node(value).shape[call.axis(value, axis)]
        if step < 0 and isinstance(stop, int) and stop >= _BEYOND:
            call.refuse(
                f"ends at {stop} in steps of {step}, which ONNX and ONNX Runtime read differently"
            )
        if step < 0 < size and not isinstance(start, Times) and not isinstance(stop, Times):
            value = call.gathered(
                value, axis, torch.arange(size)[_backwards(size, start, stop, step)]
            )
        else:
            value = call.sliced(value, axis, start, stop, step)
    return value


def _backwards(size: int, start: int, stop: int, step: int) -> torch.Tensor:
    """The places that a slice with a step below 0 takes: as ONNX clamps its ends, and not as
    Python does.
    """
    first = min(max(start + size if start < 0 else start, 0), size - 1)
    last = min(max(stop + size if stop < 0 else stop, -1), size - 1)
    return torch.arange(first, last, step) if first > last else torch.arange(0)


def _ends(call: OnnxCall, source: Any) -> list[Any]:
    numbers = (
        call.sizes(source)
        if isinstance(source, Known) and not source.fixed
        else call.numbers(source)
    )
    fixed = isinstance(source, Known) and source.fixed
    return [number if fixed or number >= 0 else Times(-number) for number in numbers]


def _split(call: OnnxCall, operand: Any, sizes: Any = None) -> tuple[Value, ...]:
    operand = call.value(operand)
    axis = call.axis(operand, int(call.attributes.get("axis", 0)))
    whole, lengths = call.node(operand).shape[axis], call.attributes.get("split")
    if whole < 0:
        call.refuse("splits the batch")
    count = int(call.attributes.get("num_outputs", call.outputs))
    # By default parts of equal size, of which the last may be smaller.
    length = -(-whole // count)
    default = [min(length, whole - length * place) for place in range(count)]
    parts = list(lengths) if lengths is not None else call.numbers(sizes, default)
    starts = [sum(parts[:place]) for place in range(len(parts))]
    return tuple(
        call.sliced(operand, axis, start, start + size)
        for start, size in zip(starts, parts, strict=True)
    )


def _gather(call: OnnxCall, operand: Any, index: Any) -> Value:
    operand, axis = call.value(operand), int(call.attributes.get("axis", 0))
    if isinstance(index, Known) and index.fixed and index.first.ndim == 0:
        return call.picked(operand, axis, int(index.first))
    return call.gathered(operand, axis, index)


def _gather_along(call: OnnxCall, operand: Any, index: Any) -> Value:
    axis = call.axis(call.value(operand), int(call.attributes.get("axis", 0)))
    size, places = call.node(call.value(operand)).shape[axis], call.known(index, "index")
    if size < 0 and bool((places < 0).any()):
        call.refuse("counts from the end of an axis along the batch")
    return call.add(GatherAlong(axis), operand, torch.where(places < 0, places + size, places))


def _gather_nd(call: OnnxCall, operand: Any, index: Any) -> Value:
    call.expect(batch_dims=0)
    operand, index = call.value(operand), call.value(index)
    count = call.node(index).shape[-1]
    return call.add(
        Gather(tuple(range(count))),
        operand,
        *(call.picked(index, -1, place) for place in range(count)),
    )


def _expand(call: OnnxCall, operand: Any, target: Any) -> Value:
    operand = call.value(operand)
    sizes, wanted = call.node(operand).shape, call.sizes(target)
    count = max(len(sizes), len(wanted))
    both = zip(
        (1,) * (count - len(sizes)) + sizes, (1,) * (count - len(wanted)) + wanted, strict=True
    )
    return call.expanded(operand, tuple(wide if size == 1 else size for size, wide in both))


def _tile(call: OnnxCall, operand: Any, times: Any) -> Value:
    operand = call.value(operand)
    sizes, counts = call.node(operand).shape, call.sizes(times)
    # Each axis gets one before it, along which it is expanded; then both become one axis.
    apart = tuple(extent for size in sizes for extent in (1, size))
    wide = tuple(
        extent for count, size in zip(counts, sizes, strict=True) for extent in (count, size)
    )
    joined = tuple(_product((count, size)) for count, size in zip(counts, sizes, strict=True))
    return call.reshaped(call.expanded(call.reshaped(operand, apart), wide), joined)


def _pad(
    call: OnnxCall, operand: Any, pads: Any = None, fill: Any = None, axes: Any = None
) -> Value:
    call.expect(mode=b"constant")
    operand = call.value(operand)
    attribute = call.attributes.get("pads")
    widths = list(attribute) if attribute is not None else call.numbers(pads)
    value = call.attributes.get("value", 0.0) if fill is None else float(call.known(fill, "fill"))
    count = len(call.node(operand).shape)
    along = [number % count for number in call.numbers(axes, list(range(count)))]
    if min(widths) < 0:
        call.refuse(f"pads = {widths}: negative padding is not read")
    # ONNX gives all starts, then all ends; here each axis has its pair.
    pairs = dict(
        zip(along, zip(widths[: len(along)], widths[len(along) :], strict=True), strict=True)
    )
    return (
        call.add(
            Pad(tuple(pairs.get(axis, (0, 0)) for axis in range(count)), float(value)), operand
        )
        if any(widths)
        else operand
    )


def _positions(call: OnnxCall, start: Any, stop: Any, step: Any) -> Value:
    first, last, stride = (end if isinstance(end, Known) else None for end in (start, stop, step))
    if (
        first is None
        or last is None
        or stride is None
        or call.numbers(start) != [0]
        or call.numbers(step) != [1]
    ):
        call.refuse("counts by numbers that depend on the input")
    return call.add(Positions(-call.sizes(stop)[0]), *call.batch((-1,)))


def _resize(
    call: OnnxCall, operand: Any, region: Any = None, scales: Any = None, sizes: Any = None
) -> Value:
    """Read a Resize of spatial axes, as torch exports its interpolation. `region` belongs to a mode
    that is not read.
    """
    del region
    value, mode = call.value(operand), call.attributes.get("mode", b"nearest")
    way = call.attributes.get("coordinate_transformation_mode", b"half_pixel")
    call.expect(antialias=0, exclude_outside=0, keep_aspect_ratio_policy=b"stretch")
    if call.opset < 11:
        call.refuse(f"of opset {call.opset} is not read: convert the file to opset 11 or above")
    if "axes" in call.attributes:
        call.refuse("axes are not read: give the scales or the sizes of all axes")
    shape = call.node(value).shape
    after = _resized(call, shape, scales, sizes)
    if len(shape) < 3 or after[:2] != list(shape[:2]):
        call.refuse(
            f"resizes {list(shape)} to {after}; only axes behind the batch and the channels are"
            " resized here"
        )
    spatial = list(zip(range(2, len(shape)), shape[2:], after[2:], strict=True))
    if (
        mode == b"nearest"
        and way == b"asymmetric"
        and call.attributes.get("nearest_mode") == b"floor"
    ):
        # The nearest entries are a choice: which, torch's own interpolation of a line of numbers
        # says.
        for axis, before, behind in spatial:
            line = torch.arange(before, dtype=torch.float64)[None, None]
            value = call.gathered(
                value, axis, functional.interpolate(line, size=behind)[0, 0].long()
            )
        return value
    if mode == b"linear" and way in (b"half_pixel", b"pytorch_half_pixel", b"align_corners"):
        return call.add(
            Resample(tuple(_interpolation(before, after, way) for _, before, after in spatial)),
            value,
        )
    return call.refuse(f"mode {mode!r} with {way!r} is not read")


def _resized(call: OnnxCall, shape: Shape, scales: Any, sizes: Any) -> list[int]:
    """The sizes that are asked for, by themselves or by factors that are exactly ratios of
    sizes.
    """
    if scales is None or (isinstance(scales, Value) and not call.node(scales).shape[0]):
        return list(call.sizes(sizes))
    factors = [float(factor) for factor in call.known(scales, "scales")]
    after = [
        int(size * factor) if size > 0 else size
        for size, factor in zip(shape, factors, strict=True)
    ]
    if any(
        factor != (extent / size if size > 0 else 1)
        for factor, extent, size in zip(factors, after, shape, strict=True)
    ):
        call.refuse("scales that are not the ratio of two sizes are not read")
    return after


def _interpolation(before: int, after: int, way: bytes) -> torch.Tensor:
    """The matrix (to, before) of a linear interpolation. pytorch_half_pixel takes the first
    entry for a size of 1.
    """
    # What a linear map makes of unit vectors is its matrix.
    eye = torch.eye(before, dtype=torch.float64)
    if after == 1 and way == b"pytorch_half_pixel":
        return eye[:1]
    return functional.interpolate(
        eye[None], size=after, mode="linear", align_corners=way == b"align_corners"
    )[0].T


def _triangle(call: OnnxCall, operand: Any, diagonal: Any = None) -> Value:
    return triangle(
        call,
        call.value(operand),
        call.numbers(diagonal, [0])[0],
        upper=bool(call.attributes.get("upper", 1)),
    )


MOVING: dict[str, Reader] = {
    "Cast": _cast,
    "CastLike": lambda call, operand, like: call.as_kind(
        operand, call.node(call.value(like)).dtype
    ),
    "Concat": lambda call, *parts: call.joined(parts, int(call.attributes["axis"])),
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_along,
    "GatherND": _gather_nd,
    "Identity": lambda call, operand: call.value(operand),
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
