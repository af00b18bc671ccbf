"""Layers that a network's input goes into as it is: what they can be over the parts of balls inside boxes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipelines.bounds.regions import Regions

_UNIT = 2.0**-52


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """weight.x + bias, where each row has few weights.

    Args:
        name: of auto_LiRPA's node.
        weight: (outputs, n) float64, the weights of a row that are not 0.
        columns: (outputs, n) int64, the inputs that they are for.
        bias: (outputs,) float64.
        inputs: how many there are.
        shape: of the outputs.
    """

    name: str
    weight: torch.Tensor
    columns: torch.Tensor
    bias: torch.Tensor
    inputs: int
    shape: tuple[int, ...]

    @staticmethod
    def of(name: str, values: torch.Tensor) -> FirstLayer:
        """From the values (1 + inputs, *shape) at zero and at each unit vector."""
        whole = values.flatten(1)
        weight, bias = (whole[1:] - whole[0]).T.contiguous(), whole[0]
        count = max(1, int((weight != 0).sum(1).max()))
        columns = weight.abs().topk(count, dim=1).indices
        return FirstLayer(name, weight.gather(1, columns), columns, bias, weight.shape[1], tuple(values.shape[1:]))

    def bounds(self, regions: Regions, rows: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the outputs (properties, *shape), or of `rows` (properties, k, outputs) times the outputs."""
        slack = self._slack(regions)
        if rows is None:
            low = regions.least(self.weight[None], self.columns) + self.bias - slack
            high = self.bias - regions.least(-self.weight[None], self.columns) + slack
            return low.reshape(-1, *self.shape), high.reshape(-1, *self.shape)
        dense = torch.zeros(len(self.weight), self.inputs, dtype=torch.float64).scatter(1, self.columns, self.weight)
        whole, shift = rows @ dense, rows @ self.bias
        moved = torch.einsum("bkc,bc->bk", rows.abs(), slack)
        return regions.least(whole) + shift - moved, shift - regions.least(-whole) + moved

    def _slack(self, regions: Regions) -> torch.Tensor:
        """(properties, outputs): what rounding does to weights that are differences, and to bounds made of them."""
        reach = torch.maximum(regions.lower.abs(), regions.upper.abs()).flatten(1)
        # The bias may have absorbed the weight of any input, also of those that seem to have none.
        absorbed = self.bias.abs() * (2 * reach.sum(1, keepdim=True) + 1)
        sums = (reach[:, self.columns] * self.weight.abs()).sum(2) + absorbed
        return (2 * self.inputs + 16) * _UNIT * sums
