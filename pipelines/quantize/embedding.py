"""Tables of real rows, as embeddings are, in 8-bit integers with a scale for each row."""

from __future__ import annotations

import torch
from torch import fx, nn

from opgraph import moving
from pipelines.quantize.tracing import layer_of

_MOST = 127
_LEAST_SCALE = 1e-10


class IntegerRows(nn.Module):
    """Rows of a table that is kept in signed 8-bit integers; each row has a scale."""

    integers: torch.Tensor
    scale: torch.Tensor

    def __init__(self, table: torch.Tensor, *, power_of_two: bool) -> None:
        """Round `table`, (rows, features), to nearest; `power_of_two` asks so of the scales."""
        super().__init__()
        scale = (table.detach().abs().amax(1, keepdim=True) / _MOST).clamp(min=_LEAST_SCALE)
        scale = torch.exp2(scale.log2().ceil()) if power_of_two else scale
        self.register_buffer(
            "integers", (table.detach() / scale).round().clamp(-_MOST, _MOST).to(torch.int8)
        )
        self.register_buffer("scale", scale)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """The real rows, (*indices.shape, features)."""
        return self.integers[indices].to(self.scale.dtype) * self.scale[indices]


def table_of(traced: fx.GraphModule, node: fx.Node) -> torch.Tensor | None:
    """The constant (rows, features) of whose rows `node` takes some; None if it does not."""
    operation = getattr(layer_of(traced, node), "operation", None)
    if not isinstance(operation, moving.Gather) or operation.axes != (0,):
        return None
    table = node.args[0]
    if not isinstance(table, fx.Node) or table.op != "get_attr":
        return None
    constant = getattr(traced, str(table.target))
    return constant if constant.ndim == 2 and constant.is_floating_point() else None
