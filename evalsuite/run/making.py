"""Making what a stage receives: the network of a workload x variant x seed, and its bench."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from evalsuite.contract import Bench, Data, Network
from evalsuite.reluize.variants import VARIANTS, Made, Variant
from evalsuite.workloads import Workload


def make_network(
    workload: Workload, data: Data, variant: Variant, seed: int, *, name: str, base: nn.Module | None = None
) -> tuple[Network, Made]:
    """Train or treat; the base network is made first where the variant starts from one and none is given."""
    if variant.base and base is None:
        base = VARIANTS[variant.base]().make(workload, data.train, seed, None).module
    made = variant.make(workload, data.train, seed, base)
    return Network(name, made.module.eval(), data.input_shape, data.classes, made.unswapped), made


def make_bench(workload: Workload, data: Data, *, seed: int, folder: Path, time_limit: float) -> Bench:
    """The bench of one job; `folder` is created."""
    from evalsuite.workloads.training import fit

    def fine_tune(module: nn.Module, epochs: int) -> None:
        fit(
            module,
            data.train,
            epochs=epochs,
            batch_size=workload.batch_size,
            learning_rate=workload.learning_rate / 10,
            seed=seed,
        )

    folder.mkdir(parents=True, exist_ok=True)
    return Bench(data, seed, folder, time_limit, fine_tune)
