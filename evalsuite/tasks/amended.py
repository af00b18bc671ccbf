"""Tasks that a user has amended: with another loss, or with chosen metrics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from evalsuite.contract import Direction, Metric, Task
from evalsuite.plugins import did_you_mean
from evalsuite.references import blame, is_reference, resolve
from evalsuite.tasks.samples import sample_tallies
from opgraph.errors import OwnError

if TYPE_CHECKING:
    import torch


def shaped(task: Task, **shapes: Any) -> Task:
    """The task of several outputs with the shapes of these or of their targets, amended as it was;
    see `Heads`.
    """
    if not isinstance(task, Amended):
        return replace(task, **shapes)  # type: ignore[type-var]
    inner: Any = shaped(task.task, **shapes)
    amended = copy.copy(task)
    vars(amended).update({**vars(inner), "task": inner})
    return amended


class Amended:
    """A task with another loss, or with chosen metrics; `task_of` makes it an instance of the
    task's own class, too.
    """

    version: ClassVar[str] = "1"
    task: Task
    own_loss: str
    chosen: tuple[str, ...]

    @property
    def asks(self) -> str:
        return self.task.asks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amended) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    @property
    def _known(self) -> tuple[Task, str, tuple[str, ...]]:
        return self.task, self.own_loss, self.chosen

    @cached_property
    def _functions(self) -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
        return {name: resolve(name, what="a metric") for name in self.chosen if is_reference(name)}

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        import torch

        if not self.own_loss:
            return self.task.loss(outputs, targets)
        try:
            tensor: torch.Tensor = resolve(self.own_loss, what="the loss")(outputs, targets)
        except Exception as error:  # a user's function may raise anything
            raise blame(error, "the loss", self.own_loss) from error
        learns = torch.is_grad_enabled() and outputs.requires_grad
        if getattr(tensor, "ndim", None) != 0 or (learns and not tensor.requires_grad):
            raise OwnError(
                f"{self.own_loss} must give one number that depends on the outputs, a 0-d tensor;"
                f" got {tensor!r:.80}"
            )
        return tensor

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        return self.task.imitation(outputs, teacher, targets)

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        return self.task.decisions(outputs)

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        import torch

        sums = [values.sum() for values in self._values(outputs, targets)]
        count = torch.tensor(float(len(outputs)), dtype=torch.float64)
        return torch.cat([self.task.tally(outputs, targets), torch.stack([*sums, count])])

    def tallies(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The tally of each sample, float64 (samples, k)."""
        import torch

        inner = sample_tallies(self.task, outputs, targets)
        if inner is None:
            raise ValueError(f"{type(self.task).__name__} takes no tally of single samples")
        values = self._values(outputs, targets)
        count = torch.ones(len(outputs), dtype=torch.float64)
        return torch.cat([inner, torch.stack([*values, count], 1)], 1)

    def _values(self, outputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Compute the user's metrics, a value for each sample: float64 (samples,) each."""
        import torch

        values_of_metrics = []
        for name, function in self._functions.items():
            try:
                values = torch.as_tensor(function(outputs, targets)).double()
            except Exception as error:  # a user's function may raise anything
                raise blame(error, "the metric", name) from error
            if values.shape != (len(outputs),):
                raise OwnError(
                    f"{name} must give a value for each of {len(outputs)} samples, got shape"
                    f" {tuple(values.shape)}"
                )
            values_of_metrics.append(values)
        return values_of_metrics

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The chosen ones in their order. Raises OwnError: the task has no metric of a chosen
        name.
        """
        # The tally holds the task's own sums, then the sums of the user's functions and the
        # number of samples.
        count = len(self._functions)
        inner = self.task.metrics(tally[: len(tally) - count - 1])
        means = dict(
            zip(self._functions, (tally[-count - 1 : -1] / tally[-1]).tolist(), strict=True)
        )
        if not self.chosen:
            return inner
        named = {metric.name: metric for metric in inner}
        metrics = []
        for name in self.chosen:
            if name in means:
                lower = getattr(self._functions[name], "direction", "higher") == "lower"
                direction = Direction.LOWER if lower else Direction.HIGHER
                metrics.append(Metric(name.rpartition(":")[2], means[name], "value", direction))
            elif name in named:
                metrics.append(named[name])
            else:
                raise OwnError(f"the task has no metric {name!r}{did_you_mean(name, named)}")
        return metrics
