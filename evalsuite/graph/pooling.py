"""Adaptive means and interpolation: their windows and weights are found by asking torch, an axis at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from evalsuite.graph.call import Call, Value
from evalsuite.graph.operations import AveragePool, MaxPool, Reduction, Resample


def adaptive(c: Call, x: Value, size: Any) -> Value:
    """The mean over as many windows as asked for, of spatial axes of a fixed size."""
    count = len(size) if isinstance(size, (list, tuple)) else 1
    inputs = c.node(x).shape[-count:]
    outputs = c.shape[-count:]
    if all(each == 1 for each in outputs):
        axes = tuple(range(len(c.node(x).shape) - count, len(c.node(x).shape)))
        return c.add(Reduction("mean", axes, True), x)
    if min(inputs) < 1:
        c.refuse("pools an axis that has no fixed size")
    if all(before % after == 0 for before, after in zip(inputs, outputs, strict=True)):
        kernel = tuple(before // after for before, after in zip(inputs, outputs, strict=True))
        return c.add(AveragePool(kernel, kernel, (0,) * count), x)
    matrices = [
        functional.adaptive_avg_pool1d(torch.eye(before, dtype=torch.float64), after).T
        for before, after in zip(inputs, outputs, strict=True)
    ]
    return c.add(Resample(tuple(matrices)), x)


def adaptive_maximum(c: Call, x: Value, size: Any) -> tuple[Value, None]:
    """The greatest of each of as many windows of one size as asked for; their places are not read."""
    before, after = c.node(x).shape[2:], c.shape[2:]
    if min(before) < 1 or any(of % parts for of, parts in zip(before, after, strict=True)):
        c.refuse(f"makes {size} of {before} places by windows of different sizes: take a size that divides them")
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
    """Linear interpolation along the spatial axes, a matrix for each; refused where one has no fixed size."""
    matrices = []
    for _, before, asked in _axes(c, x, size, scales):
        points = torch.eye(before, dtype=torch.float64)[None]
        matrices.append(functional.interpolate(points, mode="linear", align_corners=align, **asked)[0].T)
    return c.add(Resample(tuple(matrices)), x)


def _axes(c: Call, x: Value, size: Any, scales: tuple[Any, ...]) -> list[tuple[int, int, dict[str, Any]]]:
    """Each spatial axis with its size, and the size or the scale that is asked of torch."""
    shape = c.node(x).shape
    count = len(shape) - 2
    given = list(scales[0] or ()) if scales and isinstance(scales[0], (list, tuple)) else list(scales)
    found: list[tuple[int, int, dict[str, Any]]] = []
    for place in range(count):
        before, after = shape[2 + place], c.shape[2 + place]
        if before < 1 or after < 1:
            c.refuse("interpolates along an axis that has no fixed size")
        # A size that was asked for as a scale is interpolated by that scale, which need not be the sizes' ratio.
        by_scale = len(given) == count and given[place] is not None
        asked: dict[str, Any] = {"scale_factor": given[place]} if by_scale else {"size": after}
        found.append((2 + place, before, asked))
    return found
