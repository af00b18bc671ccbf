"""A task as a user names it: a registered one, one of their own, and with another loss or other
metrics.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from evalsuite.contract import Direction, Metric, Task
from evalsuite.own.asked_model import Arguments
from evalsuite.plugins import PluginError, did_you_mean, load
from evalsuite.references import blame, is_reference, resolve
from evalsuite.tasks.samples import sample_tallies
from opgraph.errors import OwnError

if TYPE_CHECKING:
    import torch

HEADS = "heads"  # what several outputs with a task each are called
_NEEDED = ("asks", "loss", "imitation", "decisions", "tally", "metrics")


@dataclass(frozen=True)
class TaskChoice:
    """A task by its name, or by the class `my.py:MyTask`, and its options."""

    use: str
    options: Mapping[str, Any] = field(default_factory=lambda: Arguments({}))

    @classmethod
    def of(cls, given: str | dict[str, Any]) -> TaskChoice:
        """A name, or a mapping with `use` and options; of several outputs NAME=TASK with commas
        between, or a mapping of the outputs' names to tasks. Raises ValueError: `use` is missing.
        """
        if isinstance(given, str) and "=" in given:
            pairs = [pair.partition("=") for pair in given.split(",")]
            given = {name.strip(): task.strip() for name, _, task in pairs}
        if isinstance(given, str):
            return cls(given)
        if "use" not in given and len(given) > 1:
            return cls._of_outputs(given)
        options = {name: value for name, value in given.items() if name != "use"}
        if given.get("use") == HEADS and isinstance(options.get("of"), Mapping):
            return cls._of_outputs(options["of"])
        if not isinstance(given.get("use"), str):
            raise ValueError("task: `use` is missing: which task?")
        return cls(given["use"], Arguments(options))

    @classmethod
    def _of_outputs(cls, tasks: Mapping[str, Any]) -> TaskChoice:
        """A task for each output. Kept as pairs, for the order matters: outputs that have no names
        are those of the tasks in their order, and a mapping of arguments is sorted.
        """
        return cls(HEADS, Arguments({"of": [[name, task] for name, task in tasks.items()]}))

    def told_of_bytes(self) -> TaskChoice:
        """The choice of this task where tokens are bytes: a language model counts by bytes, unless
        its `per` was chosen.
        """
        if self.use != "language-model" or "per" in self.options:
            return self
        return TaskChoice(self.use, Arguments({**self.options, "per": "byte"}))

    def make(self) -> Task:
        """The task. Raises OwnError: there is none of that name, an option is unknown or refused,
        or the class lacks something.
        """
        if self.use == HEADS:
            return self._heads()
        kind = self._kind()
        known = (
            [each.name for each in fields(kind)] if hasattr(kind, "__dataclass_fields__") else []
        )
        for name in self.options:
            if name not in known:
                hint = did_you_mean(name, known) if known else "; it has no options"
                raise OwnError(f"task {self.use!r} has no option {name!r}{hint}")
        try:
            made = kind(**self.options)
        except (Exception, SystemExit) as error:  # a user's class may raise anything
            if is_reference(self.use):
                raise blame(error, f"making the task {self.use!r}", self.use) from error
            raise OwnError(f"task {self.use!r}: {error}") from error
        missing = [name for name in ("version", *_NEEDED) if not hasattr(made, name)]
        if missing:
            raise OwnError(
                f"task {self.use!r} lacks {', '.join(missing)}: write it as evalsuite.Task says"
            )
        return made  # type: ignore[no-any-return]

    def _heads(self) -> Task:
        """A task for each named output."""
        from evalsuite.tasks import Heads

        of = self.options.get("of")
        if len(self.options) != 1 or not isinstance(of, list):
            raise OwnError("task: write one for each output, as {digit: classification, ...}")
        try:
            made = tuple((name, TaskChoice.of(task).make()) for name, task in of)
            return Heads(made)
        except OwnError:
            raise
        except (ValueError, AttributeError) as error:
            raise OwnError(f"task: {error}") from error

    def _kind(self) -> Any:
        if is_reference(self.use):
            found = resolve(self.use, what="the task")
            if not isinstance(found, type):
                raise OwnError(
                    f"the task: {self.use!r} is no class; write one as evalsuite.Task says"
                )
            return found
        try:
            return load("tasks", self.use).target
        except PluginError as error:
            raise OwnError(f"{error}; or name a class of your own as my.py:MyTask") from error


def task_of(choice: TaskChoice, loss: str = "", metrics: tuple[str, ...] = ()) -> Task:
    """The chosen task, with the user's loss and metrics where they are given.

    Args:
        choice: the task.
        loss: `my.py:loss`, of (outputs, targets), 0-d; "" for the task's own.
        metrics: names of the task's, or `my.py:metric`, of (outputs, targets), one value for each
            sample, whose mean is reported; the first is the headline. A user's metric gets better
            as it grows, unless the function has an attribute `direction = "lower"`. Empty for the
            task's own.

    Raises:
        OwnError: see `TaskChoice.make`; or a loss or metric is no function.
    """
    task = choice.make()
    if loss and choice.use == HEADS:
        raise OwnError(f"loss: {loss} is of one output, and the tasks are of several: leave it out")
    if not loss and not metrics:
        return task
    named = {name: resolve(name, what="a metric") for name in metrics if is_reference(name)}
    functions = {**({loss: resolve(loss, what="the loss")} if loss else {}), **named}
    for name in named:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name.rpartition(":")[2]):
            raise OwnError(f"{name}: a metric is named in snake_case, as top_5_accuracy")
    for name, function in functions.items():
        if not callable(function):
            raise OwnError(f"{name} is no function of (outputs, targets)")
    # Readers and stages ask what class a task is of: it stays one of that class, with its options.
    made: Any = object.__new__(type(type(task).__name__, (_Amended, type(task)), {}))
    vars(made).update({**vars(task), "task": task, "own_loss": loss, "chosen": metrics})
    return made  # type: ignore[no-any-return]


def shaped(task: Task, **shapes: Any) -> Task:
    """The task of several outputs with the shapes of these or of their targets, amended as it was;
    see `Heads`.
    """
    if not isinstance(task, _Amended):
        return replace(task, **shapes)  # type: ignore[type-var]
    inner: Any = shaped(task.task, **shapes)
    made = copy.copy(task)
    vars(made).update({**vars(inner), "task": inner})
    return made


class _Amended:
    """A task with another loss, or with chosen metrics; `amended` makes it an instance of the
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
        return isinstance(other, _Amended) and self._known == other._known

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

        own = [values.sum() for values in self._values(outputs, targets)]
        count = torch.tensor(float(len(outputs)), dtype=torch.float64)
        return torch.cat([self.task.tally(outputs, targets), torch.stack([*own, count])])

    def tallies(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The tally of each sample, float64 (samples, k)."""
        import torch

        inner = sample_tallies(self.task, outputs, targets)
        if inner is None:
            raise ValueError(f"{type(self.task).__name__} takes no tally of single samples")
        own = self._values(outputs, targets)
        count = torch.ones(len(outputs), dtype=torch.float64)
        return torch.cat([inner, torch.stack([*own, count], 1)], 1)

    def _values(self, outputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """What the user's metrics give, a value for each sample: float64 (samples,) each."""
        import torch

        own = []
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
            own.append(values)
        return own

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The chosen ones in their order. Raises OwnError: the task has no metric of a chosen
        name.
        """
        # The tally holds the task's own sums, then the sums of the user's functions and the
        # number of samples.
        own = len(self._functions)
        inner = self.task.metrics(tally[: len(tally) - own - 1])
        means = dict(zip(self._functions, (tally[-own - 1 : -1] / tally[-1]).tolist(), strict=True))
        if not self.chosen:
            return inner
        named = {each.name: each for each in inner}
        found = []
        for name in self.chosen:
            if name in means:
                lower = getattr(self._functions[name], "direction", "higher") == "lower"
                direction = Direction.LOWER if lower else Direction.HIGHER
                found.append(Metric(name.rpartition(":")[2], means[name], "value", direction))
            elif name in named:
                found.append(named[name])
            else:
                raise OwnError(f"the task has no metric {name!r}{did_you_mean(name, named)}")
        return found
