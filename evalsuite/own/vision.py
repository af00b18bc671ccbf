"""torchvision, which timm and transformers import, beside a torch that its operators do not fit."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from evalsuite.references import WITHOUT_TORCHVISION

_FAKES = re.compile(r"register_fake\(\"(torchvision::\w+)\"\)")


def make_importable() -> None:
    """Import torchvision, where there is one, also beside a torch that its compiled operators do
    not fit, as PyPI's do not fit a torch for the CPU alone.

    No classifier calls these operators; torchvision needs their names to be imported at all. What
    else it raises is left to whoever needs it.
    """
    if "torchvision" in sys.modules or (spec := find_spec("torchvision")) is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if not str(error).startswith(WITHOUT_TORCHVISION):
            return
    # whoever needs it meets the same error, and says what it was needed for
    except Exception:
        return
    else:
        return
    # 1. The names of which it describes the shapes, without asking whether they are there.
    folder = Path(spec.origin).parent if spec.origin else Path()
    text = (folder / "_meta_registrations.py").read_text(encoding="utf-8")
    for name in _FAKES.findall(text):
        if not hasattr(torch.ops.torchvision, name.partition("::")[2]):
            torch.library.define(name, "() -> ()")
    # 2. Anew: what was half imported stays behind.
    for module in [*sys.modules]:
        if module.partition(".")[0] == "torchvision":
            del sys.modules[module]
    importlib.import_module("torchvision")
