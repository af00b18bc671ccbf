"""Which units provably do nothing, and of which kind each is."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import nn

from netverify.certificate import UnitBounds
from pipelines.prune.exact.layers import NUMBERS, Hidden, norm, weighted

# What float32 weights say of a row is relative to it by about 1e-7; a remainder below is none.
_REMAINDER = 1e-7
# Greater multiples would amplify the rounding of what they multiply.
_GREATEST = 100.0


def dependent_rows(rows: torch.Tensor) -> dict[int, dict[int, float]]:
    """Rows that depend on others -> the multiple of each of these; none of these depends itself.

    Gram-Schmidt with the longest remainder first: those that stay are as independent as can be.

    Args:
        rows: (rows, columns) float64.
    """
    basis = _independent(rows)
    dependent = [row for row in range(len(rows)) if row not in set(basis)]
    if not basis or not dependent:
        return {}
    # Least squares give the shares. A row depends on the others if they leave nothing of it, and if
    # no share is so great that it would amplify rounding.
    kept = rows[basis]
    shares = torch.linalg.lstsq(kept.T, rows[dependent].T, driver="gelsd").solution.T
    remainders = (rows[dependent] - shares @ kept).norm(dim=1)
    fine = (remainders <= _REMAINDER * rows[dependent].norm(dim=1)) & (
        shares.abs().amax(1) <= _GREATEST
    )
    return {
        row: {
            other: float(share)
            for other, share in zip(basis, shares[place], strict=True)
            if share != 0
        }
        for place, row in enumerate(dependent)
        if bool(fine[place])
    }


def _independent(rows: torch.Tensor) -> list[int]:
    """Rows that span all of them, to float32's precision."""
    left, lengths = rows.clone(), rows.norm(dim=1)
    basis: list[int] = []
    for _ in range(min(rows.shape)):
        remainders = left.norm(dim=1)
        farthest = int((remainders / lengths.clamp(min=1e-300)).argmax())
        if not float(remainders[farthest]) > _REMAINDER * float(lengths[farthest]):
            break
        basis.append(farthest)
        direction = left[farthest] / remainders[farthest]
        for _again in range(2):  # once leaves what rounding lost
            left = left - (left @ direction)[:, None] * direction
        left[farthest] = 0.0
    return basis


class Kind(str, Enum):
    """Why a unit is removed; a unit of several kinds is of the first."""

    CONSTANT = "constant"
    UNUSED = "unused"
    OFF = "off"
    DUPLICATE = "duplicate"
    MERGED = "merged"


@dataclass(frozen=True, slots=True)
class Removal:
    """One unit of a hidden layer, by its index there.

    Args:
        value: what it contributes instead: the output of a constant unit, 0 of an off or unused
            one; of a duplicate or merged one the constant that is left beside `shares`.
        shares: other units -> how many times their output is in this unit's.
    """

    unit: int
    kind: Kind
    value: float = 0.0
    shares: dict[int, float] = field(default_factory=dict)


@torch.no_grad()
def removable(module: nn.Module, hidden: Hidden, bounds: UnitBounds) -> list[Removal]:
    """The units of a hidden layer of `module`, float64 in eval mode, that can go, in ascending
    order.

    Args:
        bounds: of the activation's inputs over the input domain, one box.
    """
    lower, upper = (end.reshape(hidden.units, -1) for end in (bounds.lower, bounds.upper))
    removals: dict[int, Removal] = {}
    # 1. Units of one value, units that nothing reads, and ReLUs that are never above 0. The first
    # kind that fits counts.
    for unit, value in _constants(module, hidden).items():
        removals[unit] = Removal(unit, Kind.CONSTANT, value)
    for unit in _unused(module, hidden):
        removals.setdefault(unit, Removal(unit, Kind.UNUSED))
    if hidden.relu:
        for unit in torch.nonzero((upper <= 0).all(1))[:, 0].tolist():
            removals.setdefault(unit, Removal(unit, Kind.OFF))
    if len(removals) == hidden.units:
        # Layers without any unit run in torch, but not in what networks are exported to.
        del removals[min(removals)]
    # 2. Units whose part others can take over, where no norm stands between them and the weights
    # that read them: duplicates, and ReLUs that are never off, so that their outputs depend on each
    # other as their inputs do.
    if hidden.plain:
        others = [unit for unit in range(hidden.units) if unit not in removals]
        removals |= _duplicates(module, hidden, others)
        # A unit that took over a duplicate's part can leave in the next round only.
        heirs = {other for removal in removals.values() for other in removal.shares}
        always_on = [
            unit
            for unit in others
            if unit not in removals and unit not in heirs and bool((lower[unit] >= 0).all())
        ]
        if hidden.relu and isinstance(weighted(module, hidden.producer), nn.Linear):
            removals |= _merged(module, hidden, always_on)
    return [removals[unit] for unit in sorted(removals)]


def _constants(module: nn.Module, hidden: Hidden) -> dict[int, float]:
    """Units whose incoming weights are 0, perhaps by a BatchNorm's weight that is 0, and their
    outputs.
    """
    producer = weighted(module, hidden.producer)
    zero = (producer.weight.flatten(1) == 0).all(1)
    for path in hidden.norms:
        scale = norm(module, path).weight
        zero = zero if scale is None else zero | (scale == 0)
    if not bool(zero.any()):
        return {}
    # Without weights the bias is left: norms and activation make the unit's constant of it.
    shape = (1, producer.weight.shape[0], *[1] * (len(hidden.shape) - 1))
    values = torch.zeros(shape, dtype=torch.float64)
    if producer.bias is not None:
        values = values + producer.bias.reshape(shape)
    for path in hidden.norms:
        values = module.get_submodule(path)(values)
    outputs = module.get_submodule(hidden.activation)(values).flatten()
    return {unit: float(outputs[unit]) for unit in torch.nonzero(zero)[:, 0].tolist()}


def _unused(module: nn.Module, hidden: Hidden) -> list[int]:
    """Units whose outgoing weights are all 0."""
    weight = weighted(module, hidden.consumer).weight
    per_unit = weight.reshape(len(weight), hidden.units, -1)
    return torch.nonzero((per_unit == 0).all(2).all(0))[:, 0].tolist()


def _duplicates(module: nn.Module, hidden: Hidden, units: list[int]) -> dict[int, Removal]:
    """Return a removal for each of `units` that has the weights, bias and BatchNorm of another one
    before it.
    """
    producer = weighted(module, hidden.producer)
    columns = [producer.weight.flatten(1)]
    columns += [] if producer.bias is None else [producer.bias[:, None]]
    for path in hidden.norms:
        tensors = [getattr(norm(module, path), name) for name in NUMBERS]
        columns += [tensor[:, None] for tensor in tensors if tensor is not None]
    rows = torch.cat(columns, 1) + 0.0  # -0.0 becomes 0.0
    first: dict[bytes, int] = {}
    removals = {}
    for unit in units:
        other = first.setdefault(rows[unit].numpy().tobytes(), unit)
        if other != unit:
            removals[unit] = Removal(unit, Kind.DUPLICATE, shares={other: 1.0})
    return removals


def _merged(module: nn.Module, hidden: Hidden, always_on: list[int]) -> dict[int, Removal]:
    """Return a removal for each of the units `always_on` that is a sum of multiples of others and a
    constant.
    """
    rows, offsets = preactivation(module, hidden)
    removals = {}
    for unit, shares in dependent_rows(rows[always_on]).items():
        named = {always_on[other]: share for other, share in shares.items()}
        constant = float(offsets[always_on[unit]]) - sum(
            share * float(offsets[other]) for other, share in named.items()
        )
        removals[always_on[unit]] = Removal(always_on[unit], Kind.MERGED, constant, named)
    return removals


def preactivation(module: nn.Module, hidden: Hidden) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (units, inputs) and offsets (units,) of what a Linear and the BatchNorms behind it
    compute.
    """
    producer = weighted(module, hidden.producer)
    rows = producer.weight.detach().double()
    offsets = (
        torch.zeros(len(rows), dtype=torch.float64)
        if producer.bias is None
        else producer.bias.detach().double()
    )
    for path in hidden.norms:
        layer = copy.deepcopy(norm(module, path)).double().eval()
        assert layer.running_var is not None
        scale = (layer.running_var + layer.eps).rsqrt()
        scale = scale if layer.weight is None else scale * layer.weight.detach()
        rows, offsets = rows * scale[:, None], layer(offsets[None])[0].detach()
    return rows, offsets
