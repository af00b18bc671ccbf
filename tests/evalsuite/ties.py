"""Tiny networks whose outputs come within a few float32 ulps of a property's threshold,
somewhere in a small box.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from files_of_mlps import network, property_of


@dataclass(frozen=True)
class Tie:
    """The files of a question, and its layers: weight (outputs, inputs) and bias of each."""

    model: Path
    property: Path
    layers: list[tuple[np.ndarray, np.ndarray]]
    lower: list[float]
    upper: list[float]


def tie(folder: Path, seed: int) -> Tie:
    """An MLP of one or two inputs; the threshold is a few ulps from a value in its box, or the box
    is a few ulps wide.

    Some have a large bias that is added and taken away again, as in a sum that float32 rounds
    coarsely; of some the box holds no float32 point.
    """
    random = np.random.default_rng(seed)
    inputs, hidden = int(random.integers(1, 3)), int(random.integers(1, 5))
    first = random.standard_normal((hidden, inputs)).astype(np.float32)
    shift = random.standard_normal(hidden).astype(np.float32)
    last = random.standard_normal((1, hidden)).astype(np.float32)
    great = np.float32(random.choice([0.0, 2.0**10, 2.0**20, 2.0**24]))
    layers = [
        (first, shift),
        (last, np.array([great], np.float32)),
        (np.eye(1, dtype=np.float32), -np.array([great])),
    ]
    center = random.uniform(-1, 1, inputs).astype(np.float32)
    width = random.choice([0.0, 2.0**-24, 2.0**-10, 0.5])
    lower, upper = center.astype(float) - width, center.astype(float) + width
    if random.random() < 0.1:
        lower = upper = np.round(center.astype(float), 3)
    corners = np.array([lower, upper, (lower + upper) / 2])
    value = float(random.choice(evaluated(layers, corners)))
    ulps = (
        int(random.integers(-4, 5))
        * float(np.spacing(np.float32(abs(value))))
        * float(random.choice([0.25, 1, 8, 64, 512]))
    )
    threshold = value + ulps * float(random.choice([1.0, 1.0, max(float(great), 1.0)]))
    path, ends = (
        folder / f"tie{seed}",
        [(f"{a:.60f}", f"{b:.60f}") for a, b in zip(lower, upper, strict=True)],
    )
    sign = random.choice([">=", "<="])
    return Tie(
        network(path.with_suffix(".onnx"), layers),
        property_of(path.with_suffix(".vnnlib"), ends, 1, f"({sign} Y_0 {threshold:.60f})"),
        layers,
        lower.tolist(),
        upper.tolist(),
    )


def evaluated(layers: list[tuple[np.ndarray, np.ndarray]], points: np.ndarray) -> np.ndarray:
    """The outputs at points (points, inputs) in float64, (points,)."""
    for number, (weight, bias) in enumerate(layers):
        points = (np.maximum(points, 0) if number else points) @ weight.T.astype(float) + bias
    return points[:, 0]


def exact(layers: list[tuple[np.ndarray, np.ndarray]], point: list[Fraction]) -> Fraction:
    """The output at a rational point."""
    for number, (weight, bias) in enumerate(layers):
        point = [max(each, Fraction(0)) for each in point] if number else point
        rows = zip(weight.tolist(), bias.tolist(), strict=True)
        point = [
            sum((Fraction(w) * x for w, x in zip(row, point, strict=True)), Fraction(b))
            for row, b in rows
        ]
    return point[0]
