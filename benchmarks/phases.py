"""Branching over neurons against halving inputs: networks of 30 inputs and 128 ReLU neurons,
trained here.

`python -m benchmarks.phases --queries 20 --limit 10` asks whether a margin can fall below its least
value that an attack found, less a share of how far the attack came: mostly it cannot, and both
answers are hard. A line for each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from benchmarks.pairs import write_property
from benchmarks.subjects import fitted
from evalsuite import export_onnx, verify

_RADII, _SHARES = ("0.1", "0.2"), (0.05, 0.01)
_ATTACK = 256, 150  # points and steps


def _trained(width: int = 64) -> tuple[nn.Module, torch.Tensor]:
    """Two hidden layers on scikit-learn's breast cancer data, and its inputs, each in [0, 1]."""
    from sklearn.datasets import load_breast_cancer

    torch.manual_seed(0)
    values, labels = (torch.from_numpy(each) for each in load_breast_cancer(return_X_y=True))
    inputs = ((values - values.amin(0)) / (values.amax(0) - values.amin(0))).float()
    module = nn.Sequential(
        nn.Linear(30, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )
    return fitted(module, inputs, labels, rate=3e-3, epochs=60, batch=32), inputs


def _least(module: nn.Module, low: torch.Tensor, high: torch.Tensor, label: int) -> float:
    """The least margin of the label that descent from random points finds."""
    count, steps = _ATTACK
    points = low + torch.rand(count, 30, generator=torch.Generator().manual_seed(0)) * (high - low)
    sign = torch.tensor([1.0, -1.0]) * (1 if label == 0 else -1)
    for step in range(steps):
        points = points.detach().requires_grad_()
        (slope,) = torch.autograd.grad((module(points) @ sign).sum(), points)
        size = (high - low) * (0.25 * (1 - step / steps) + 0.002)
        points = torch.minimum(torch.maximum(points - size * slope.sign(), low), high)
    return float((module(points) @ sign).min())


def main() -> None:
    """Ask each query of both engines."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--queries", type=int, default=20)
    asked.add_argument("--limit", type=float, default=10.0)
    asked.add_argument("--engines", nargs="+", default=["auto", "inputs"])
    given = asked.parse_args()
    torch.set_num_threads(1)
    module, inputs = _trained()
    seconds: dict[str, list[float]] = {each: [] for each in given.engines}
    decided = dict.fromkeys(given.engines, 0)
    with TemporaryDirectory() as folder:
        network, file = Path(folder) / "network.onnx", Path(folder) / "property.vnnlib"
        export_onnx(module, (30,), network)
        for number in range(given.queries):
            sample = inputs[7 * number]
            label = int(module(sample[None]).argmax())
            radius, share = float(_RADII[number % 2]), _SHARES[number // 2 % 2]
            low, high = (sample - radius).clamp(min=0), (sample + radius).clamp(max=1)
            least, clean = _least(module, low, high, label), float(module(sample[None]).abs().sum())
            bound = least - share * (clean - least)
            ends = (each.double().round(decimals=6) for each in (low, high))
            write_property(*ends, file, 2, f"(<= (- Y_{label} Y_{1 - label}) {bound:.6f})")
            said = []
            for engine in given.engines:
                begun = time.process_time()
                found = verify(network, file, engine=engine, timeout=given.limit)
                seconds[engine].append(time.process_time() - begun)
                decided[engine] += found.answer.value in ("sat", "unsat")
                said.append(
                    f"{engine} {found.answer.value} {seconds[engine][-1]:.1f} s, {found.boxes}"
                    " parts"
                )
            print(f"{number}: radius {radius}, {'; '.join(said)}", flush=True)
    for engine, each in seconds.items():
        print(
            f"{engine}: {decided[engine]} of {given.queries} decided; processor time median "
            f"{statistics.median(each):.1f} s, greatest {max(each):.1f} s"
        )


if __name__ == "__main__":
    main()
