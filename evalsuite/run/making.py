"""Making what a stage receives: data with disjoint parts, the network of a workload x variant x
seed, and its bench.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import nn

from evalsuite.contract import Bench, Data, Network, Split
from evalsuite.networks import check_savable, network_of
from evalsuite.variants import Made, Setup, Variant, standing
from evalsuite.workloads import Workload
from evalsuite.workloads.workload import DataError, unreadable
from lambda_gelu.swapping import check_executes
from opgraph.inputs import contents
from opgraph.onnx_network import OnnxNetwork

_BATCH = 256
PARTS = ("train", "calibration", "validation", "test")
_CURE = (
    "what is trained on or chosen by must not be measured on: give each sample to one part alone, "
    "and drop equal samples before the data are split"
)


def check_disjoint(data: Data) -> None:
    """Refuse parts that share samples, equal in targets and in inputs, as they were before they
    were encoded.

    Real data hold a few equal rows: 17 of Adult's 10,000 test rows are training rows too, 1 of
    Iris's 60, and 2 of the 100 moons to calibrate with are in the test part. So 2 samples and 1 %
    of the smaller part pass, unless they are the whole of it or lie in the same memory. 70,000
    images of 784 numbers take 0.3 s.

    Raises:
        ValueError: two parts share more; the text names them and how many.
    """
    hashes = {name: _hashes(getattr(data, name)) for name in PARTS}
    for pair in combinations(PARTS, 2):
        smaller, larger = sorted(pair, key=lambda name: len(hashes[name]))
        known = set(hashes[larger])
        shared, size = sum(digest in known for digest in hashes[smaller]), len(hashes[smaller])
        if shared and (shared > 2 + size / 100 or shared == size or _same_memory(data, pair)):
            raise ValueError(
                f"the parts {pair[0]} and {pair[1]} share {shared} of {size} samples: {_CURE}"
            )


def _hashes(split: Split) -> list[int]:
    targets = [target.tobytes() for target in split.targets.detach().numpy()]
    known: Sequence[object] | None = split.keys
    if known is None and not isinstance(split.inputs, torch.Tensor):
        known = split.inputs.identities()
    inputs_of_samples = known or (
        content for inputs, _ in split.batches(_BATCH) for content in contents(inputs)
    )
    return [hash(pair) for pair in zip(inputs_of_samples, targets, strict=True)]


def _same_memory(data: Data, pair: tuple[str, str]) -> bool:
    one, other = (getattr(data, name).inputs for name in pair)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return np.shares_memory(one.detach().numpy(), other.detach().numpy())
    return one is other


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
    workload: Workload,
    data: Data,
    variant: Variant,
    seed: int,
    *,
    name: str,
    base: nn.Module | None = None,
) -> tuple[Network, Made]:
    """Train or treat; the base network is made first where the variant starts from one and none is
    given.

    Raises:
        Unsupported: the variant does not apply to the workload.
        ValueError: its network could not be saved, or does not execute the activation that the
            variant names.
    """
    from evalsuite.run.validation import errors_of

    keeps = bool(getattr(workload, "keep_best", False))
    validate = partial(errors_of, split=data.validation) if keeps else None
    check = partial(check_savable, workload, data)
    setup = Setup(workload, data.train, data.calibration, seed, check, validate)
    if variant.base and base is None:
        base = make_network(workload, data, standing(variant.base), seed, name=name)[0].module
    made_network = variant.make(setup, base)
    if variant.executes:
        check_executes(made_network.module, variant.executes, (data.train.first(2),))
    module = made_network.module.eval()
    deployed = module.path if isinstance(module, OnnxNetwork) else None
    return network_of(name, module, data, made_network.unswapped, deployed=deployed), made_network


def make_bench(
    workload: Workload, data: Data, *, seed: int, folder: Path, time_limit: float
) -> Bench:
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
        # The same data order as in training and a tenth of its rate: fine-tuning must not undo
        # what was trained.
        if epochs > 0:
            loss = None if teacher is None else distilled(data.task, teacher)
            share = epochs / workload.epochs
            fit(
                module,
                data.train,
                workload,
                seed=seed,
                share=share,
                rate=0.1,
                loss=loss,
                after_step=after_step,
            )

    folder.mkdir(parents=True, exist_ok=True)
    return Bench(data, seed, folder, time_limit, fine_tune)
