"""Models by their names in timm, which imports torchvision, whichever there is."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evalsuite.plugins import did_you_mean
from evalsuite.references import WITHOUT_TORCHVISION, fitting_torchvision
from opgraph.errors import OwnError

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.own.models import Model

_FAKES = re.compile(r"register_fake\(\"(torchvision::\w+)\"\)")


def load_timm(model: Model, classes: int | None) -> nn.Module:
    """The model of that name, with random weights and as many outputs as there are classes.

    Raises OwnError: timm or its torchvision is missing, or there is no such model.
    """
    name, timm = model.path.removeprefix("timm:"), import_timm(model.path)
    if not timm.is_model(name):
        raise OwnError(f"the model: timm has no {name!r}{did_you_mean(name, timm.list_models())}")
    head = {} if classes is None else {"num_classes": classes}
    try:
        module: nn.Module = timm.create_model(name, pretrained=False, **{**head, **model.args})
    except Exception as error:
        raise OwnError(
            f"the model: {model.path} cannot be made: {type(error).__name__}: {error}"
        ) from error
    return module


def import_timm(wanted: str) -> Any:
    """The library, also beside a torchvision whose operators do not fit this torch.

    Raises OwnError: it, or its torchvision, is missing; the text says what was wanted of it.
    """
    try:
        try:
            return importlib.import_module("timm")
        except RuntimeError as error:
            if not str(error).startswith(WITHOUT_TORCHVISION):
                raise
            return _without_operators()
    # it imports torchvision, which raises errors of its own where it does not fit torch
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        cure = f"pip install {absent}" if absent == "timm" else fitting_torchvision()
        said = " ".join(str(error).split())[:200]
        raise OwnError(
            f"the model: {wanted} needs timm, which cannot be imported ({said}): {cure}"
        ) from error


def _without_operators() -> Any:
    """Import timm beside a torchvision whose compiled operators do not fit this torch, as PyPI's
    do not fit a torch for the CPU alone.

    None of timm's models calls these; torchvision needs their names to be imported at all.
    """
    # 1. The names of which torchvision describes the shapes, without asking whether they are there.
    spec = find_spec("torchvision")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    text = (folder / "_meta_registrations.py").read_text(encoding="utf-8")
    for name in _FAKES.findall(text):
        if not hasattr(torch.ops.torchvision, name.partition("::")[2]):
            torch.library.define(name, "() -> ()")
    # 2. Both libraries anew: what was half imported stays behind.
    for module in [*sys.modules]:
        if module.partition(".")[0] in ("timm", "torchvision"):
            del sys.modules[module]
    return importlib.import_module("timm")
