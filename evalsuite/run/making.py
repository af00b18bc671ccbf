"""Making what a stage receives: the network of a workload x variant x seed, and its bench."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from evalsuite.contract import Bench, Data, Network
from evalsuite.networks import check_savable, network_of
from evalsuite.onnx_network import OnnxNetwork
from evalsuite.reluize.swap import check_executes
from evalsuite.run.disjoint import check_disjoint
from evalsuite.variants import Made, Setup, Variant, standing
from evalsuite.workloads import Workload
from evalsuite.workloads.workload import DataError, unreadable


def data_of(workload: Workload) -> Data:
    """The workload's data.

    Raises:
        DataError: a file is missing.
        ValueError: two of its parts share samples.
    """
    try:
        data = workload.data()
    except FileNotFoundError as error:
        raise DataError(f"the data cannot be read: {unreadable(error)}") from error
    check_disjoint(data)
    return data


def make_network(
    workload: Workload, data: Data, variant: Variant, seed: int, *, name: str, base: nn.Module | None = None
) -> tuple[Network, Made]:
    """Train or treat; the base network is made first where the variant starts from one and none is given.

    Raises:
        Unsupported: the variant does not apply to the workload.
        ValueError: its network could not be saved, or does not execute the activation that the variant names.
    """
    setup = Setup(workload, data.train, data.calibration, seed, partial(check_savable, workload, data))
    if variant.base and base is None:
        base = make_network(workload, data, standing(variant.base), seed, name=name)[0].module
    made = variant.make(setup, base)
    if variant.executes:
        check_executes(made.module, variant.executes, (data.train.first(2),))
    module = made.module.eval()
    deployed = module.path if isinstance(module, OnnxNetwork) else None
    return network_of(name, module, data, made.unswapped, deployed=deployed), made


def make_bench(workload: Workload, data: Data, *, seed: int, folder: Path, time_limit: float) -> Bench:
    """The bench of one job; `folder` is created."""
    from evalsuite.reluize.training import distilled, fit

    def fine_tune(
        module: nn.Module,
        epochs: int,
        /,
        *,
        teacher: nn.Module | None = None,
        after_step: Callable[[float], None] | None = None,
    ) -> None:
        if epochs > 0:
            loss = None if teacher is None else distilled(data.task, teacher)
            share = epochs / workload.epochs
            fit(module, data.train, workload, seed=seed, share=share, rate=0.1, loss=loss, after_step=after_step)

    folder.mkdir(parents=True, exist_ok=True)
    return Bench(data, seed, folder, time_limit, fine_tune)
