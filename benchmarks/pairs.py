"""Two networks: how many questions `verify --against` decides, and whether sampled points
contradict an answer.

python -m benchmarks.pairs [--limit 10] [--samples 4] [--workloads iris-mlp ...]

Pairs of small networks that are trained here: pruned against whole, GELU swapped to ReLU against
the original, and 8-bit ONNX files against float ones. Each is asked for the same class and for
outputs within three distances.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from evalsuite import Answer, Network, export_onnx, open_onnx, swap_to_relu, verify
from evalsuite.plugins import load
from evalsuite.run.making import make_network
from evalsuite.variants import standing
from evalsuite.workloads.workload import Data
from opgraph import run_onnx
from pipelines.prune.channels import prune
from pipelines.prune.selection import Probe, Selection
from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.qcdq import export_qcdq
from pipelines.quantize.treatment import quantize

WORKLOADS: dict[str, tuple[str, dict[str, str], tuple[float, ...]]] = {
    "iris": ("iris-mlp", {}, (0.05, 0.15)),
    "moons": ("moons-mlp", {}, (0.05, 0.1)),
    "tiny": ("digits-tiny-mlp", {"hidden": "16-16"}, (1 / 64, 1 / 16)),
    "wide": ("digits-tiny-mlp", {"hidden": "32-32"}, (1 / 64, 1 / 16)),
    "digits": ("digits-mlp", {}, (1 / 128, 1 / 64)),
}
_DISTANCES = (Fraction(1, 10), Fraction(1), Fraction(10))
_POINTS = 20_000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two files, and the data whose samples boxes lie around."""

    kind: str
    first: Path
    second: Path
    data: Data


def pairs(workload_name: str, options: dict[str, str], folder: Path) -> Iterator[Pair]:
    """The pairs of one workload, with its networks trained here."""
    workload = load("workloads", workload_name).target(**options)
    data = workload.data()
    made: dict[str, Network] = {
        name: make_network(workload, data, standing(name), 0, name=workload_name)[0]
        for name in ("gelu", "relu")
    }
    files = {
        name: _exported(network.module, data, folder / f"{name}.onnx")
        for name, network in made.items()
    }
    for name, network in made.items():
        module = network.module
        less = prune(
            module, Probe(lambda each: each(data.calibration.inputs[:2])), Selection(0.125)
        ).module
        yield Pair(
            f"pruned {name}",
            files[name],
            _exported(less, data, folder / f"{name}-pruned.onnx"),
            data,
        )
        quantized = folder / f"{name}-quantized.onnx"
        scheme = Scheme(Bits(8, 8))
        export_qcdq(
            quantize(module, data.input_shape, scheme, data.calibration.inputs),
            data.input_shape,
            quantized,
        )
        yield Pair(f"quantized {name}", files[name], quantized, data)
    swapped = swap_to_relu(made["gelu"].module, data.calibration.inputs[:2])
    yield Pair("swapped", files["gelu"], _exported(swapped, data, folder / "swapped.onnx"), data)


def _exported(module: nn.Module, data: Data, path: Path) -> Path:
    export_onnx(module, data.input_shape, path)
    return path


def write_property(
    lower: torch.Tensor, upper: torch.Tensor, path: Path, outputs: int = 1, *asserted: str
) -> Path:
    """A VNN-LIB property of this box, exactly, and of what is asserted about Y_0 to Y_(outputs -
    1).
    """
    lines = [f"(declare-const X_{i} Real)" for i in range(lower.numel())]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i, (low, high) in enumerate(
        zip(lower.flatten().tolist(), upper.flatten().tolist(), strict=True)
    ):
        lines += [f"(assert (>= X_{i} {Decimal(low):f}))", f"(assert (<= X_{i} {Decimal(high):f}))"]
    path.write_text("\n".join([*lines, *(f"(assert {each})" for each in asserted)]))
    return path


def _contradicts(
    pair: Pair, lower: torch.Tensor, upper: torch.Tensor, within: Fraction | None
) -> bool:
    """Whether any of 20,000 points of the box shows what is said not to be."""
    share = torch.rand(_POINTS, *lower.shape, generator=torch.Generator().manual_seed(0))
    points = (lower + share * (upper - lower)).clamp(lower, upper)
    ours, theirs = (
        run_onnx(open_onnx(each), points).double() for each in (pair.first, pair.second)
    )
    if within is None:
        return bool((ours.argmax(1) != theirs.argmax(1)).any())
    return float((ours - theirs).abs().max()) > within


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, default=10.0)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--workloads", nargs="*", default=[*WORKLOADS], choices=[*WORKLOADS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    answers: dict[str, Counter[str]] = {}
    wrong = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        for workload, options, radii in (WORKLOADS[each] for each in given.workloads):
            for pair in pairs(workload, options, folder):
                for place, radius in (
                    (i, radius) for radius in radii for i in range(given.samples)
                ):
                    center = pair.data.test.inputs[place]
                    lower, upper = center - radius, center + radius
                    file = write_property(lower, upper, folder / "p.vnnlib")
                    for within in (None, *_DISTANCES):
                        started = time.process_time()
                        found = verify(
                            pair.first,
                            file,
                            against=pair.second,
                            within=within,
                            timeout=given.limit,
                        )
                        taken = time.process_time() - started
                        said = f"{workload}, {pair.kind}"
                        asked = "same class" if within is None else f"within {float(within):g}"
                        answers.setdefault(said, Counter())[found.answer.value] += 1
                        answers.setdefault(asked, Counter())[found.answer.value] += 1
                        if found.answer is Answer.UNSAT and _contradicts(
                            pair, lower, upper, within
                        ):
                            wrong += 1
                            print(f"CONTRADICTED {said} {radius} {place} {within}")
                        print(
                            f"{said} {radius:.4f} {place} {asked}: {found.answer.value},"
                            f" {found.reason}, {found.boxes} boxes, {taken:.2f} s",
                            flush=True,
                        )
    _report(answers, wrong)


def _report(answers: dict[str, Counter[str]], wrong: int) -> None:
    asked = [answer for answer in answers if "," not in answer]
    for name, each in answers.items():
        print(
            f"{name}: {each['sat'] + each['unsat']} of {each.total()} decided, {each['unsat']} of"
            " them unsat"
        )
    total = sum((answers[each] for each in asked), Counter[str]())
    decided = total["sat"] + total["unsat"]
    print(
        f"{decided} of {total.total()} decided ({decided / total.total():.1%}); {wrong} answers"
        " contradicted"
    )


if __name__ == "__main__":
    main()
