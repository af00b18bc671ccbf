"""A network that a test writes in one expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Written(nn.Module):
    """Layers, parameters and buffers by their names, and what is done with them and the input."""

    def __init__(self, call: Callable[[Any, Any], Any], /, **parts: Any) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            if type(part) is torch.Tensor:
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.call(self, x)
