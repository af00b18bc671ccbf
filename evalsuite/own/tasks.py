"""A task as a user names it: a registered one, one of their own, and with another loss or other
metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Task
from evalsuite.own.asked_model import Arguments
from evalsuite.plugins import PluginError, did_you_mean, load
from evalsuite.references import blame, is_reference, resolve
from evalsuite.tasks.amended import Amended
from opgraph.errors import OwnError

if TYPE_CHECKING:
    pass

HEADS = "heads"  # what several outputs with a task each are called
_NEEDED = ("asks", "loss", "imitation", "decisions", "tally", "metrics")


@dataclass(frozen=True)
class TaskChoice:
    """A task by its name, or by the class `my.py:MyTask`, and its options."""

    use: str
    options: Mapping[str, Any] = field(default_factory=lambda: Arguments({}))

    @classmethod
    def of(cls, choice: str | dict[str, Any]) -> TaskChoice:
        """A name, or a mapping with `use` and options; of several outputs NAME=TASK with commas
        between, or a mapping of the outputs' names to tasks. Raises ValueError: `use` is missing.
        """
        if isinstance(choice, str) and "=" in choice:
            pairs = [pair.partition("=") for pair in choice.split(",")]
            choice = {name.strip(): task.strip() for name, _, task in pairs}
        if isinstance(choice, str):
            return cls(choice)
        if "use" not in choice and len(choice) > 1:
            return cls._of_outputs(choice)
        options = {name: value for name, value in choice.items() if name != "use"}
        if choice.get("use") == HEADS and isinstance(options.get("of"), Mapping):
            return cls._of_outputs(options["of"])
        if not isinstance(choice.get("use"), str):
            raise ValueError("task: `use` is missing: which task?")
        return cls(choice["use"], Arguments(options))

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
            [option.name for option in fields(kind)]
            if hasattr(kind, "__dataclass_fields__")
            else []
        )
        for name in self.options:
            if name not in known:
                hint = did_you_mean(name, known) if known else "; it has no options"
                raise OwnError(f"task {self.use!r} has no option {name!r}{hint}")
        try:
            task = kind(**self.options)
        except (Exception, SystemExit) as error:  # a user's class may raise anything
            if is_reference(self.use):
                raise blame(error, f"making the task {self.use!r}", self.use) from error
            raise OwnError(f"task {self.use!r}: {error}") from error
        missing = [name for name in ("version", *_NEEDED) if not hasattr(task, name)]
        if missing:
            raise OwnError(
                f"task {self.use!r} lacks {', '.join(missing)}: write it as evalsuite.Task says"
            )
        return task  # type: ignore[no-any-return]

    def _heads(self) -> Task:
        """A task for each named output."""
        from evalsuite.tasks import Heads

        of = self.options.get("of")
        if len(self.options) != 1 or not isinstance(of, list):
            raise OwnError("task: write one for each output, as {digit: classification, ...}")
        try:
            tasks = tuple((name, TaskChoice.of(task).make()) for name, task in of)
            return Heads(tasks)
        except OwnError:
            raise
        except (ValueError, AttributeError) as error:
            raise OwnError(f"task: {error}") from error

    def _kind(self) -> Any:
        if is_reference(self.use):
            kind = resolve(self.use, what="the task")
            if not isinstance(kind, type):
                raise OwnError(
                    f"the task: {self.use!r} is no class; write one as evalsuite.Task says"
                )
            return kind
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
    amended: Any = object.__new__(type(type(task).__name__, (Amended, type(task)), {}))
    vars(amended).update({**vars(task), "task": task, "own_loss": loss, "chosen": metrics})
    return amended  # type: ignore[no-any-return]
