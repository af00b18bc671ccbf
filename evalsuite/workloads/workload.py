"""Workloads: where their data lie, and the split that all of them share."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from evalsuite.contract import Data, Split

if TYPE_CHECKING:
    import numpy as np
    from torch import nn


# Of split 0, which all seeds share: an interval then speaks of training, not of the test data.
SPLIT_SEED = 20260321


class Workload(Protocol):
    """Data, architecture and training budget. A frozen dataclass: its fields may be set in a
    recipe.

    `version` enters the cache key: raise it when data or architecture change.
    """

    version: ClassVar[str]

    @property
    def epochs(self) -> int:
        """Passes over the training data, for every variant."""
        ...

    @property
    def batch_size(self) -> int:
        """The number of samples that each optimizer step is taken on."""
        ...

    @property
    def learning_rate(self) -> float:
        """The highest learning rate of the schedule, of all parameters but a hardness."""
        ...

    @property
    def optimizer(self) -> str:
        """The optimizer that trains every variant, "adamw" or "sgd"."""
        ...

    @property
    def momentum(self) -> float:
        """The momentum of SGD; AdamW does not use it."""
        ...

    @property
    def weight_decay(self) -> float:
        """The weight decay of all parameters but a hardness lambda."""
        ...

    def fingerprint(self) -> str:
        """The SHA-256 of the raw data, without importing the library that reads it."""
        ...

    def data(self) -> Data:
        """The data, split; the same at every call."""
        ...

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """A freshly initialised module; `activation(channels)` makes each activation, drawing no
        random number.
        """
        ...


class DataError(Exception):
    """A workload's data cannot be read; the text is for the user."""


def unreadable(error: BaseException) -> str:
    """Why data cannot be read, in one line: a text of one's own gives the cure, the file
    system's does not.
    """
    if isinstance(error, OSError) and error.errno is not None:
        cure = "put it there, or name another place in the workload's options"
        return f"{error.filename or 'a file'}: {error.strerror}; {cure}"
    text = " ".join(str(error).split())
    return (
        text
        if text and isinstance(error, OSError | ValueError)
        else f"{type(error).__name__}: {text}"
    )


def packaged_file(package: str, path: str) -> Path:
    """The path of a data file inside an installed package, found without importing it.

    Raises:
        FileNotFoundError: the package or the file is missing; the text says what to install.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the data needs the package {package!r}: pip install {package}")
    file = Path(spec.origin).parent / path
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: reinstall {package!r}")
    return file


def sha256(file: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def partition(targets: np.ndarray, sizes: Sequence[int], number: int = 0) -> list[np.ndarray]:
    """Disjoint index arrays, stratified by class: one of each size, then one of all that is left.

    Args:
        targets: (samples,) class indices.
        sizes: their numbers of samples.
        number: of the fixed shuffle that chooses them.
    """
    import numpy as np
    from sklearn.model_selection import train_test_split

    rest = np.arange(len(targets))
    seed = SPLIT_SEED + number
    parts = []
    for size in sizes:
        rest, part = train_test_split(
            rest, test_size=size, random_state=seed, stratify=targets[rest]
        )
        parts.append(part)
    return [*parts, rest]


def labelled(inputs: np.ndarray, targets: np.ndarray) -> Split:
    """A split of arrays: inputs (samples, *input_shape) as float32, and class indices (samples,) as
    int64.
    """
    import torch

    return Split(
        torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.int64)
    )


def split(
    inputs: np.ndarray,
    targets: np.ndarray,
    sizes: tuple[int, int, int],
    *,
    fingerprint: str,
    rescale: bool = False,
    number: int = 0,
) -> Data:
    """The data of a workload, cut into training, calibration, validation and test parts, disjoint
    and stratified by class.

    Args:
        inputs: (samples, *input_shape), values in [0, 1] unless they are rescaled.
        targets: (samples,) class indices.
        sizes: of calibration, validation and test; the rest is for training.
        fingerprint: the digest of the raw data.
        rescale: each feature by its range in the training part; what lies outside of it is clipped
            to [0, 1].
        number: of the fixed shuffle that cuts them, see `partition`.
    """
    import numpy as np

    parts = partition(targets, sizes, number)
    if rescale:
        train = inputs[parts[-1]]
        lowest, widths = train.min(0), np.ptp(train, 0)
        inputs = ((inputs - lowest) / np.where(widths > 0, widths, 1)).clip(0, 1)
    calibration, validation, test, training = (
        labelled(inputs[part], targets[part]) for part in parts
    )
    return Data(
        training, calibration, validation, test, (0.0, 1.0), int(targets.max()) + 1, fingerprint
    )


def data_folder() -> Path:
    """The folder in which workloads look for data files, which need not exist: $EVALSUITE_DATA,
    else the user's own.
    """
    named = os.environ.get("EVALSUITE_DATA")
    return Path(named).expanduser() if named else Path.home() / ".local" / "share" / "evalsuite"
