"""The ONNX operators on images: convolutions, batch normalization and pooling."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from evalsuite.verification.graph import Maximum
from evalsuite.verification.linear import Convolution, Same, Scale, Select
from evalsuite.verification.onnx_call import Array, Call, Tensor

# The scale of a batch normalization takes a sum, a root and a quotient.
_NORM_TERMS = 16


def _images(call: Call) -> Tensor:
    source = call.tensor()
    if not 3 <= len(source.shape) <= 5:
        call.refuse(f"takes images (samples, channels, *spatial), got shape {source.shape}")
    return source


def _window(call: Call, kernel: tuple[int, ...]) -> tuple[dict[str, Any], list[int]]:
    """Stride and dilation as torch takes them, and the padding: all beginnings, then all ends."""
    call.expect(auto_pad=b"NOTSET", ceil_mode=0, storage_order=0)
    dims = len(kernel)
    pads = [int(each) for each in call.attributes.get("pads", [0] * 2 * dims)]
    if min(pads) < 0:
        call.refuse(f"pads = {pads}: negative padding is not read")
    names = {"strides": "stride", "dilations": "dilation"}
    return {torch_: tuple(call.attributes.get(onnx_, [1] * dims)) for onnx_, torch_ in names.items()}, pads


def _padded_indices(shape: tuple[int, ...], pads: list[int]) -> Array:
    """The index of each entry of an image after padding, -1 for padding."""
    dims = len(shape) - 2
    index = np.arange(prod(shape), dtype=np.int64).reshape(shape)
    widths = [(0, 0), (0, 0), *zip(pads[:dims], pads[dims:], strict=True)]
    return np.pad(index, widths, constant_values=-1)


def _padded(call: Call, source: Tensor, pads: list[int]) -> Tensor:
    if not any(pads):
        return source
    index = _padded_indices(source.shape, pads)
    return call.affine(source, Select(torch.from_numpy(index.flatten()), prod(source.shape)), index.shape)


def _convolved(
    call: Call, source: Tensor, weight: torch.Tensor, window: dict[str, Any], bias: Array | None = None
) -> Tensor:
    """A convolution of an image that is already padded."""
    spatial = [
        (size - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, stride, dilation in zip(
            source.shape[2:], weight.shape[2:], window["stride"], window["dilation"], strict=True
        )
    ]
    shape = (source.shape[0], len(weight), *spatial)
    if min(shape) < 1:
        call.refuse(f"its kernel {tuple(weight.shape[2:])} is larger than its padded input {source.shape[2:]}")
    if bias is not None:
        bias = np.broadcast_to(bias.reshape(-1, *[1] * len(spatial)), shape)
    return call.affine(source, Convolution(weight, source.shape, shape, {**window, "padding": 0}), shape, bias)


def _conv(call: Call) -> Tensor:
    source, weight = _images(call), call.needed(1).astype(np.float64)
    groups = int(call.attributes.get("group", 1))
    if weight.ndim != len(source.shape) or weight.shape[1] * groups != source.shape[1]:
        call.refuse(f"its weight {weight.shape} in {groups} groups does not fit its input {source.shape}")
    window, pads = _window(call, weight.shape[2:])
    padded = _padded(call, source, pads)
    return _convolved(call, padded, torch.from_numpy(weight), {**window, "groups": groups}, call.constant(2))


def _norm(call: Call) -> Tensor:
    call.expect(training_mode=0, spatial=1)
    source = call.tensor()
    scale, shift, mean, variance = (call.needed(at).astype(np.float64) for at in range(1, 5))
    spread = variance + float(np.float32(call.attributes.get("epsilon", 1e-5)))
    if not (spread > 0).all():
        call.refuse("a variance plus epsilon is not above 0")
    factor = scale / np.sqrt(spread)
    across = (1, -1, *[1] * (len(source.shape) - 2))
    wide = np.broadcast_to(factor.reshape(across), source.shape)
    # Moved before it is scaled: the mean is exact, where the product mean * factor would be rounded apart from it.
    moved = np.broadcast_to(-mean.reshape(across), source.shape)
    bias = np.broadcast_to(shift.reshape(across), source.shape)
    centered = call.affine(source, Same(), source.shape, moved)
    map_ = Scale(torch.from_numpy(np.array(wide)).flatten(), _NORM_TERMS)
    return call.affine(centered, map_, source.shape, bias)


def _averaged(call: Call, source: Tensor, kernel: tuple[int, ...], window: dict[str, Any], pads: list[int]) -> Tensor:
    channels = source.shape[1]
    ones = torch.ones((channels, 1, *kernel), dtype=torch.float64)
    total = _convolved(call, _padded(call, source, pads), ones, {**window, "groups": channels})
    divisor = np.full(prod(total.shape), float(prod(kernel)))
    if any(pads) and not call.attributes.get("count_include_pad", 0):
        # What the windows count of an image of ones.
        kept = torch.from_numpy((_padded_indices(source.shape, pads) >= 0).astype(np.float64)).flatten()
        padded = (*source.shape[:2], *np.add(source.shape[2:], np.add(*np.split(np.array(pads), 2))).tolist())
        counted = Convolution(ones, padded, total.shape, {**window, "groups": channels, "padding": 0})
        divisor = counted(kept[None])[0].numpy()
        if not divisor.all():
            call.refuse("a window lies in the padding alone")
    return call.affine(total, Scale(torch.from_numpy(1 / divisor)), total.shape)


def _average_pool(call: Call) -> Tensor:
    kernel = tuple(call.attributes["kernel_shape"])
    window, pads = _window(call, kernel)
    return _averaged(call, _images(call), kernel, window, pads)


def _global_average(call: Call) -> Tensor:
    source = _images(call)
    dims = len(source.shape) - 2
    return _averaged(call, source, source.shape[2:], {"stride": (1,) * dims, "dilation": (1,) * dims}, [0] * 2 * dims)


def _max_pool(call: Call) -> Tensor:
    source, kernel = _images(call), tuple(call.attributes["kernel_shape"])
    window, pads = _window(call, kernel)
    index = _padded_indices(source.shape, pads)
    reach = tuple((size - 1) * dilation + 1 for size, dilation in zip(kernel, window["dilation"], strict=True))
    if any(size < each for size, each in zip(index.shape[2:], reach, strict=True)):
        call.refuse(f"its kernel {kernel} is larger than its padded input {index.shape[2:]}")
    axes = tuple(range(2, index.ndim))
    views = sliding_window_view(index, reach, axis=axes)
    steps = (1, 1, *window["stride"], *window["dilation"])
    views = views[tuple(slice(None, None, step) for step in steps)]
    shape = views.shape[: index.ndim]
    windows = np.array(views.reshape(prod(shape), -1))
    if (windows < 0).all(1).any():
        call.refuse("a window lies in the padding alone")
    return call.reading.append(Maximum(source.value, torch.from_numpy(windows)), call.name, shape)


WINDOWED: dict[str, Callable[[Call], Tensor]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _norm,
    "Conv": _conv,
    "GlobalAveragePool": _global_average,
    "MaxPool": _max_pool,
}
