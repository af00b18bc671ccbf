"""What each stage takes of networks of real sizes: processor time, peak memory, and how it ends.

    python -m benchmarks.sizes                           # every network and stage: hours
    python -m benchmarks.sizes resnet18 --stage export   # one cell
    python -m benchmarks.sizes --table                   # the table of what was measured so far

Networks have the sizes of known ones and random weights; inputs are random, and few. Each cell is a
process of its own with one thread, which is killed at 12 GB or at its time limit. Results are kept
in build/sizes.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from evalsuite import Bench, Data, Network, Split, Unsupported
from evalsuite.tasks import Classification, LanguageModel
from evalsuite.workloads.transformer import Block, VisionTransformer, feed_forwards
from evalsuite.workloads.transformer import LanguageModel as Causal
from opgraph import estimates

MEMORY, SECONDS = 12 * 10**9, 1200.0
_PLACE = Path("build/sizes.json")
_SAMPLES = 8
_TICK = 0.1  # seconds between two looks at a cell's memory
_STAGES: dict[str, dict[str, Any]] = {
    "accuracy": {},
    "export": {},
    "quantize": {"calibration_samples": 8, "compared_samples": 2},
    "prune": {"sparsity": 0.3, "fine_tune_epochs": 0},
    "bounds": {"eps": (1e-4,), "samples": 2, "methods": ("ibp",), "restarts": 0},
    "swap-certificate": {},
    "exact-prune": {},
    "smt": {"eps": (1e-4,), "samples": 2},
}


class _Residual(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18 (arXiv 1512.03385)."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, made, 3, stride, 1, bias=False),
            nn.BatchNorm2d(made),
            nn.GELU(),
            nn.Conv2d(made, made, 3, 1, 1, bias=False),
            nn.BatchNorm2d(made),
        )
        same = given == made and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))
        )
        self.activation = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.activation(self.body(x) + self.shortcut(x))
        return made


def _resnet18() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.GELU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for made in (64, 128, 256, 512):
        layers += [_Residual(width, made, 1 if made == 64 else 2), _Residual(made, made, 1)]
        width = made
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class _Inverted(nn.Module):
    """An inverted residual of MobileNetV3 (arXiv 1905.02244), without squeeze-and-excitation."""

    def __init__(self, given: int, inner: int, made: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.GELU(),
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.GELU(),
            nn.Conv2d(inner, made, 1, bias=False),
            nn.BatchNorm2d(made),
        )
        self.same = given == made and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(x)
        return x + made if self.same else made


# Inner width, width, kernel and stride of each block: arXiv 1905.02244, table 1.
_MOBILE = (
    (16, 16, 3, 1),
    (64, 24, 3, 2),
    (72, 24, 3, 1),
    (72, 40, 5, 2),
    (120, 40, 5, 1),
    (120, 40, 5, 1),
    (240, 80, 3, 2),
    (200, 80, 3, 1),
    (184, 80, 3, 1),
    (184, 80, 3, 1),
    (480, 112, 3, 1),
    (672, 112, 3, 1),
    (672, 160, 5, 2),
    (960, 160, 5, 1),
    (960, 160, 5, 1),
)


def _mobilenet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.GELU()]
    width = 16
    for inner, made, kernel, stride in _MOBILE:
        layers.append(_Inverted(width, inner, made, kernel, stride))
        width = made
    return nn.Sequential(
        *layers,
        nn.Conv2d(160, 960, 1, bias=False),
        nn.BatchNorm2d(960),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(960, 1280),
        nn.GELU(),
        nn.Linear(1280, 1000),
    )


class _Encoder(nn.Module):
    """Tokens to two classes, by blocks of attention and the mean over the positions."""

    def __init__(
        self, vocabulary: int, positions: int, width: int, heads: int, blocks: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width))
        layers = feed_forwards(blocks, width, 4 * width, lambda _: nn.GELU())
        self.blocks = nn.Sequential(*(Block(width, heads, x, causal=False) for x in layers))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.blocks(self.embedding(tokens) + self.positions).mean(1))
        return made


def _deit() -> nn.Module:
    layers = feed_forwards(12, 192, 768, lambda _: nn.GELU())
    return VisionTransformer(224, 16, 192, 3, layers, 1000, channels=3)


def _gpt2() -> nn.Module:
    layers = feed_forwards(12, 768, 3072, lambda _: nn.GELU())
    return Causal(50257, 1024, 768, 12, layers)


# What makes the network, the shape of an input, the size of its vocabulary, 0 for images, and
# outputs.
_NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "resnet18": (_resnet18, (3, 224, 224), 0, 1000),
    "deit-tiny": (_deit, (3, 224, 224), 0, 1000),
    "mobilenetv3-large": (_mobilenet, (3, 224, 224), 0, 1000),
    "minilm": (lambda: _Encoder(30522, 128, 384, 12, 6), (128,), 30522, 2),
    "distilbert": (lambda: _Encoder(30522, 128, 768, 12, 6), (128,), 30522, 2),
    "gpt2-small": (_gpt2, (1024,), 50257, 50257),
}


def _case(name: str, folder: Path, seconds: float) -> tuple[Network, Bench]:
    make, shape, vocabulary, outputs = _NETWORKS[name]
    torch.manual_seed(0)
    module, drawn = make().eval(), (_SAMPLES, *shape)
    inputs = torch.randint(vocabulary, drawn) if vocabulary else torch.rand(drawn)
    causal = outputs == vocabulary
    targets = inputs.roll(-1, 1) if causal else torch.arange(_SAMPLES) % outputs
    split = Split(inputs, targets, LanguageModel() if causal else Classification())
    words = vocabulary or None
    data = Data(split, split, split, split, (0.0, 1.0), outputs, "0" * 64, words)
    network = Network(name, module, shape, outputs, None, words, given=inputs[:2])
    return network, Bench(data, 0, folder, seconds, lambda *_, **__: None)


def _run(name: str, stage: str, place: Path, seconds: float) -> None:
    """Run one cell in this process, and write how it ended."""
    from evalsuite.plugins import load

    torch.set_num_threads(1)
    estimates.allow(MEMORY)
    with tempfile.TemporaryDirectory() as folder:
        network, bench = _case(name, Path(folder), seconds)
        began, wall = time.process_time(), time.monotonic()
        try:
            made = load("stages", stage).target(**_STAGES[stage]).run(network, bench)
            rows = [x for each in made.metrics for x in (each() if callable(each) else [each])]
            valued = sum(row.value is not None for row in rows)
            reasons = {row.reason for row in rows if row.value is None}
            estimated = sorted(reason for reason in reasons if "by estimate" in reason)
            ended = f"{valued} of {len(rows)} rows have values" if valued else min(reasons)
            said = {"ended": ended, "untaken": estimated[:2]}
        except Unsupported as error:
            said = {"ended": f"refused: {error}"}
        except Exception as error:  # the table shows it
            said = {"ended": f"failed: {type(error).__name__}: {error}"}
        spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    wall = time.monotonic() - wall
    place.write_text(json.dumps({**said, "cpu": spent, "seconds": wall, "peak": peak}))


def _cell(name: str, stage: str, seconds: float) -> dict[str, Any]:
    """How one cell ends in a child process, which is watched."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.sizes", name, "--stage", stage]
        child = subprocess.Popen(
            [*command, "--into", str(place), "--seconds", str(seconds)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        watched, began, peak = psutil.Process(child.pid), time.monotonic(), 0
        killed = ""
        while child.poll() is None and not killed:
            time.sleep(_TICK)
            try:
                peak = max(peak, watched.memory_info().rss)
                spent = sum(watched.cpu_times()[:2])
            except psutil.Error:
                continue
            if peak > MEMORY:
                killed = "killed at 12 GB"
            elif time.monotonic() - began > seconds:
                killed = f"killed after {seconds:g} s"
        if killed:
            child.kill()
            child.wait()
            return {"ended": killed, "cpu": spent, "peak": peak}
        if not place.exists():
            return {"ended": f"died with {child.returncode}", "cpu": 0.0, "peak": peak}
        found: dict[str, Any] = json.loads(place.read_text())
        return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """The cells as a table: seconds of the processor, peak memory, and how it ended."""
    lines = ["| network | stage | processor s | peak GB | ended |", "|---|---|---|---|---|"]
    for name in _NETWORKS:
        for stage in _STAGES:
            if (cell := found.get(f"{name} {stage}")) is not None:
                said = "; ".join([cell["ended"], *cell.get("untaken", [])]).replace("|", "/")
                size = f"{cell['cpu']:.1f} | {cell['peak'] / 1e9:.1f}"
                lines.append(f"| {name} | {stage} | {size} | {said[:400]} |")
    return "\n".join(lines)


def main() -> None:
    """Run the cells that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[])
    parser.add_argument("--stage", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.into is not None:
        _run(asked.networks[0], asked.stage[0], asked.into, asked.seconds)
        return
    found: dict[str, dict[str, Any]] = {}
    if _PLACE.exists():
        found = json.loads(_PLACE.read_text())
    if not asked.table:
        for name in asked.networks or _NETWORKS:
            for stage in asked.stage or _STAGES:
                found[f"{name} {stage}"] = _cell(name, stage, asked.seconds)
                _PLACE.parent.mkdir(exist_ok=True)
                _PLACE.write_text(json.dumps(found, indent=1))
                print(name, stage, found[f"{name} {stage}"], flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
