"""The variants: how the activation is treated. Same initial weights, data order and budget for one seed.

Importing this module imports no heavy library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.contract import Split
    from evalsuite.workloads import Workload


@dataclass(frozen=True)
class Made:
    """A variant's module, the one before its swap if it was swapped, and the loss at the end of training (nats)."""

    module: nn.Module
    unswapped: nn.Module | None = None
    train_loss: float | None = None
    hardness: dict[str, float] = field(default_factory=dict)


class Variant(Protocol):
    """A treatment of the activation. `base` names the variant whose network it starts from; empty: it trains."""

    version: ClassVar[str]
    base: ClassVar[str]

    def make(self, workload: Workload, split: Split, seed: int, base: nn.Module | None) -> Made:
        """Train on `split`, or treat `base`."""
        ...


def _train(
    activation: str,
    workload: Workload,
    split: Split,
    seed: int,
    hook: Callable[[nn.Module], Callable[[float], None]] | None,
) -> Made:
    import torch

    from evalsuite.activations import LambdaGELU, census
    from evalsuite.plugins import load
    from evalsuite.workloads.training import fit

    torch.manual_seed(seed)
    module = workload.build(load("activations", activation).target.make)
    loss = fit(
        module,
        split,
        epochs=workload.epochs,
        batch_size=workload.batch_size,
        learning_rate=workload.learning_rate,
        seed=seed,
        before_step=hook(module) if hook else None,
    )
    hardness = {
        found.path: float(found.traits.hardness(found.module).mean())
        for found in census(module)
        if isinstance(found.module, LambdaGELU)
    }
    return Made(module, train_loss=loss, hardness=hardness)


@dataclass(frozen=True)
class Gelu:
    """Trained with GELU: the baseline."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""

    def make(self, workload: Workload, split: Split, seed: int, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return _train("gelu", workload, split, seed, None)


@dataclass(frozen=True)
class GeluSwap:
    """The GELU network with ReLU put in directly: no hardening, no repair."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = "gelu"

    def make(self, workload: Workload, split: Split, seed: int, base: nn.Module | None) -> Made:
        """See `Variant`."""
        from evalsuite.reluize.swap import swap_to_relu

        if base is None:
            raise ValueError("gelu-swap starts from the network of 'gelu'")
        return Made(swap_to_relu(base), unswapped=base)


@dataclass(frozen=True)
class Learnt:
    """Trained with lambda-GELU, lambda learnt and not hardened."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""

    def make(self, workload: Workload, split: Split, seed: int, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return _train("lambda-gelu", workload, split, seed, None)


@dataclass(frozen=True)
class Annealed:
    """lambda-GELU learnt, then hardened during training, then swapped to ReLU."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""
    start: float = 0.25
    target: float = 160.0

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1:
            raise ValueError(f"start must be in [0, 1), got {self.start}")
        if not self.target > 1:
            raise ValueError(f"target must be > 1, got {self.target}")

    def make(self, workload: Workload, split: Split, seed: int, base: nn.Module | None) -> Made:
        """See `Variant`."""
        from evalsuite.reluize.hardening import Hardening
        from evalsuite.reluize.swap import swap_to_relu

        made = _train("lambda-gelu", workload, split, seed, lambda module: Hardening(module, self.start, self.target))
        return Made(swap_to_relu(made.module), made.module, made.train_loss, made.hardness)


@dataclass(frozen=True)
class Relu:
    """Trained with ReLU from scratch."""

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""

    def make(self, workload: Workload, split: Split, seed: int, base: nn.Module | None) -> Made:
        """See `Variant`."""
        return _train("relu", workload, split, seed, None)


VARIANTS: dict[str, type[Variant]] = {
    "gelu": Gelu,
    "gelu-swap": GeluSwap,
    "lambda-gelu": Learnt,
    "annealed": Annealed,
    "relu": Relu,
}
