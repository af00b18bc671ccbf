"""`@evalsuite.workload(...)`: a function that makes a model says itself which data and which task belong to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from evalsuite.references import DECLARED, OwnError

Make = TypeVar("Make", bound=Callable[..., Any])


def workload(**options: Any) -> Callable[[Make], Make]:
    """Declare a function that makes a model as a workload, with the options of `own`: data, task, epochs, ...

        @evalsuite.workload(data="reviews.jsonl", task="text-classification")
        def net(): ...

    Then `evalsuite assess my.py:net`, and `use: my.py:net` in a recipe. A function may stand where a reference does.

    Example: docs/own-models.md#in-a-recipe-and-in-python
    """

    def mark(make: Make) -> Make:
        setattr(make, DECLARED, {name: reference_of(each) for name, each in options.items()})
        return make

    return mark


def reference_of(given: Any) -> Any:
    """A function or class as the reference `file.py:name`; anything else as it is.

    Raises:
        OwnError: it cannot be found by its name, as a lambda cannot: networks are made in processes of their own.
    """
    if not callable(given):
        return given
    name, file = getattr(given, "__qualname__", ""), inspect.getsourcefile(given)
    if not name.isidentifier() or file is None:
        raise OwnError(f"{name or given!r} has no name in a file: define it by `def` or `class` at the top of a module")
    path = Path(file).resolve()
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{name}"
