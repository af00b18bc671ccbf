"""Measure what each stage takes of networks of real sizes: processor time, peak memory, and how it
ends.

    python -m benchmarks.sizes                           # every network and stage: hours
    python -m benchmarks.sizes resnet18 --stage export   # one cell
    python -m benchmarks.sizes --table                   # the table of what was measured so far

Networks have the sizes of known ones and random weights; inputs are random, and few. Each cell is a
process of its own with one thread, which is killed at 12 GB or when it has used its time limit of
the processor. Results are kept in build/sizes.json. Integers are a part of `quantize`, with its
seconds.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from textwrap import shorten
from typing import Any

import psutil
import torch

from benchmarks.sized_networks import NETWORKS
from evalsuite import Bench, Data, Metric, Network, Split, Unsupported
from evalsuite.tasks import Classification, LanguageModel
from opgraph import estimates

MEMORY, SECONDS = 12 * 10**9, 1200.0
_PLACE = Path("build/sizes.json")
_SAMPLES = 8
_TICK = 0.1  # seconds between two looks at a cell's memory
_EXECUTED = ("integer_kernels", "integer_mac", "integer_node")
_LONGEST = 400  # characters of a reason in the table
_WALL = 3  # seconds of the clock for one of the processor, at most
_STAGES: dict[str, dict[str, Any]] = {
    "accuracy": {},
    "export": {},
    "quantize": {"calibration_samples": 8, "compared_samples": 2},
    "prune": {"sparsity": 0.3, "fine_tune_epochs": 0},
    "bounds": {"eps": (1e-4,), "samples": 2, "methods": ("ibp",), "restarts": 0},
    "swap-certificate": {
        "eps": (1e-4,),
        "samples": 2,
        "hardness": (10.0,),
        "sweep_samples": 2,
    },
    "exact-prune": {},
    "smt": {"eps": (1e-4,), "samples": 2},
}


def _case(name: str, folder: Path) -> tuple[Network, Bench]:
    sized = NETWORKS[name]
    torch.manual_seed(0)
    module, drawn = sized.make().eval(), (_SAMPLES, *sized.input_shape)
    words = sized.vocabulary or None
    inputs = torch.randint(words, drawn) if words else torch.rand(drawn)
    causal = sized.outputs == words
    targets = inputs.roll(-1, 1) if causal else torch.arange(_SAMPLES) % sized.outputs
    split = Split(inputs, targets, LanguageModel() if causal else Classification())
    data = Data(split, split, split, split, (0.0, 1.0), sized.outputs, "0" * 64, words)
    network = Network(name, module, sized.input_shape, sized.outputs, None, words, given=inputs[:2])
    return network, Bench(data, 0, folder, SECONDS, lambda *_, **__: None)


def _run(name: str, stage: str, place: Path) -> None:
    """Run one cell in this process, and write how it ended."""
    from evalsuite.plugins import load

    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    estimates.allow(MEMORY)
    with tempfile.TemporaryDirectory() as folder:
        network, bench = _case(name, Path(folder))
        start, wall = time.process_time(), time.monotonic()
        integers: dict[str, Any] = {}
        try:
            outcome = load("stages", stage).target(**_STAGES[stage]).run(network, bench)
            rows = [
                row
                for metric in outcome.metrics
                for row in (metric() if callable(metric) else [metric])
            ]
            result = _ended(rows)
            if stage == "quantize":
                integers = _ended([row for row in rows if _of_integers(row.name)])
        except Unsupported as error:
            result = {"ended": f"refused: {error}"}
            integers = dict(result) if stage == "quantize" else {}
        except Exception as error:  # the table shows it
            result = {"ended": f"failed: {type(error).__name__}: {error}"}
        cpu = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    used = {"cpu": cpu, "seconds": time.monotonic() - wall, "peak": peak}
    if integers:
        result["integers"] = integers
    place.write_text(json.dumps({**result, **used}))


def _of_integers(name: str) -> bool:
    """Whether a row of `quantize` is of the integer-only network, and not of how a file runs."""
    return name.startswith("integer_") and not name.startswith(_EXECUTED)


def _ended(rows: list[Metric]) -> dict[str, Any]:
    """How many rows have values, and what was not begun by an estimate."""
    valued = sum(row.value is not None for row in rows)
    reasons = {row.reason for row in rows if row.value is None}
    estimated = sorted(reason for reason in reasons if "by estimate" in reason)
    if valued:
        return {"ended": f"{valued} of {len(rows)} rows have values", "untaken": estimated[:2]}
    return {"ended": f"refused: {min(reasons, default='no row')}", "untaken": []}


def _cell(name: str, stage: str, seconds: float) -> dict[str, Any]:
    """How one cell ends in a child process, which is watched; where that is killed, its stack."""
    with tempfile.TemporaryDirectory() as folder:
        place, log = Path(folder) / "found.json", Path(folder) / "log.txt"
        command = [sys.executable, "-m", "benchmarks.sizes", name, "--stage", stage]
        with log.open("w") as stream:
            child = subprocess.Popen(
                [*command, "--into", str(place)], stdout=subprocess.DEVNULL, stderr=stream
            )
        watched, start, peak, spent = psutil.Process(child.pid), time.monotonic(), 0, 0.0
        killed = ""
        while child.poll() is None and not killed:
            time.sleep(_TICK)
            try:
                peak = max(peak, watched.memory_info().rss)
                spent = sum(watched.cpu_times()[:4])
            except psutil.Error:
                continue
            if peak > MEMORY:
                killed = "killed at 12 GB"
            elif spent > seconds or time.monotonic() - start > _WALL * seconds:
                killed = f"killed after {seconds:g} s"
        if killed:
            child.send_signal(signal.SIGUSR1)  # writes its stack
            time.sleep(1)
            child.kill()
            child.wait()
            return {"ended": killed, "cpu": spent, "peak": peak, "log": log.read_text()[-3000:]}
        if not place.exists():
            died = f"died with {child.returncode}"
            return {"ended": died, "cpu": spent, "peak": peak, "log": log.read_text()[-3000:]}
        result: dict[str, Any] = json.loads(place.read_text())
        return result


def table(results: dict[str, dict[str, Any]]) -> str:
    """The cells as a table: seconds of the processor, peak memory, and how it ended."""
    lines = ["| network | stage | processor s | peak GB | ended |", "|---|---|---|---|---|"]
    for name in NETWORKS:
        for stage in _STAGES:
            if (cell := results.get(f"{name} {stage}")) is None:
                continue
            lines.append(_line(name, stage, cell, cell))
            if integers := cell.get("integers"):
                lines.append(_line(name, "integers", integers, cell))
    return "\n".join(lines)


def _line(name: str, stage: str, ended: dict[str, Any], used: dict[str, Any]) -> str:
    said = "; ".join([ended["ended"], *ended.get("untaken", [])]).replace("|", "/")
    size = f"{used['cpu']:.1f} | {used['peak'] / 1e9:.1f}"
    return f"| {name} | {stage} | {size} | {shorten(said, _LONGEST, placeholder=' ...')} |"


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
        _run(asked.networks[0], asked.stage[0], asked.into)
        return
    results: dict[str, dict[str, Any]] = {}
    if _PLACE.exists():
        results = json.loads(_PLACE.read_text())
    if not asked.table:
        for name in asked.networks or NETWORKS:
            for stage in asked.stage or _STAGES:
                results[f"{name} {stage}"] = _cell(name, stage, asked.seconds)
                _PLACE.parent.mkdir(exist_ok=True)
                _PLACE.write_text(json.dumps(results, indent=1))
                print(name, stage, results[f"{name} {stage}"], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
