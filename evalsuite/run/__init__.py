"""Running a plan: making networks, executing jobs in killable children, cache, journal, resume.

The package can be called: `evalsuite.run("recipe.yaml")` in a script or a notebook, see
`evalsuite.run.console`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *given: Any, **named: Any) -> Any:
        # By name: what an import statement reaches from here is taken for the source of every job.
        return import_module("evalsuite.run.console").run(*given, **named)


sys.modules[__name__].__class__ = _Callable
