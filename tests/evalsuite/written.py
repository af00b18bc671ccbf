"""A network that a test writes in one expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Written(nn.Module):
    """Layers by their names, and what is done with them and the input."""

    def __init__(self, call: Callable[[Any, Any], Any], /, **layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Any) -> Any:
        return self.call(self, x)
