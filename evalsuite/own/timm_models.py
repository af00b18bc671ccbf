"""Models by their names in timm, which imports torchvision, whichever there is."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from evalsuite.own.vision import make_importable
from evalsuite.plugins import did_you_mean
from evalsuite.references import fitting_torchvision
from opgraph.errors import OwnError

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.own.asked_model import Model


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
    make_importable()
    try:
        return importlib.import_module("timm")
    # it imports torchvision, which raises errors of its own where it does not fit torch
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        cure = f"pip install {absent}" if absent == "timm" else fitting_torchvision()
        said = " ".join(str(error).split())[:200]
        raise OwnError(
            f"the model: {wanted} needs timm, which cannot be imported ({said}): {cure}"
        ) from error
