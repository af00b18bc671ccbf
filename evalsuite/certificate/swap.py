"""The swap certificate: what replacing the activations by ReLU can change, at the most, over a box of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

from evalsuite.certificate.propagation import Propagation, Rows
from evalsuite.certificate.routes import Twins, read_twins

# Bytes of the largest array of coefficients of the boxes that are bounded at once.
_BYTES = 2**24
# Beyond these, lambda times a value, or its inverse, could overflow.
_SOFTEST, _HARDEST = 1e-100, 1e100


@dataclass(frozen=True, slots=True)
class SwapCertificate:
    """Proven bounds over boxes; d = smooth network's outputs - ReLU network's, both of real arithmetic.

    Args:
        difference_lower: (boxes, outputs) float64, below every d in the box.
        difference_upper: (boxes, outputs), above every d.
        labels: (boxes,) int64, the class that the margins are of.
        margin_before: (boxes, outputs - 1), below every margin of the smooth network: the label's logit minus the
            others', in ascending order.
        margin_after: (boxes, outputs - 1), the same of the ReLU network.

    Example: docs/reference.md#certify-a-swap
    """

    difference_lower: torch.Tensor
    difference_upper: torch.Tensor
    labels: torch.Tensor
    margin_before: torch.Tensor
    margin_after: torch.Tensor

    @property
    def disruption(self) -> torch.Tensor:
        """(boxes,) the greatest |d| that is possible, of any output."""
        return torch.maximum(self.difference_lower.abs(), self.difference_upper.abs()).amax(1)

    @property
    def certified_before(self) -> torch.Tensor:
        """(boxes,) bool: the smooth network provably gives the label the greatest logit, everywhere in the box."""
        return (self.margin_before > 0).all(1)

    @property
    def kept(self) -> torch.Tensor:
        """(boxes,) bool: both networks provably do; the swap changes no prediction in the box."""
        return self.certified_before & (self.margin_after > 0).all(1)


def certify_swap(
    module: nn.Module,
    lower: torch.Tensor,
    upper: torch.Tensor,
    *,
    swapped: nn.Module | None = None,
    hardness: float | None = None,
    labels: torch.Tensor | None = None,
) -> SwapCertificate:
    """What the swap to ReLU can change of the outputs of `module` over boxes.

    The statement is about the real functions of the float32 parameters; float64 rounding here is accounted for.

    Args:
        module: affine layers and activations, one behind the other, in any mode: eval mode is meant.
        lower: (boxes, *input_shape), float32 or float64.
        upper: of the same shape, >= lower.
        swapped: the network after the swap; by default the same weights with ReLU in each activation's place.
        hardness: a lambda for all activations in the place of their own.
        labels: (boxes,); by default the class that `module` predicts at each box's middle.

    Raises:
        Unsupported: a layer or an activation without a rule, named by its dotted path; values beyond 1e100.
        ValueError: boxes that are no boxes; labels or a hardness out of range.

    Example: docs/reference.md#certify-a-swap
    """
    return SwapBounds(module, tuple(lower.shape[1:]), swapped=swapped).certify(
        lower, upper, hardness=hardness, labels=labels
    )


class SwapBounds:
    """Certificates of one network and its swap, for several sets of boxes or hardnesses: the network is read once.

    Arguments and errors are those of `certify_swap`.

    Example: docs/reference.md#certify-a-swap
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...], *, swapped: nn.Module | None = None) -> None:
        self._shape = input_shape
        self._twins = read_twins(module, input_shape, swapped)
        self.batch = max(1, _BYTES // (8 * self._twins.largest))
        """How many boxes are bounded at once."""

    @torch.no_grad()
    def certify(
        self,
        lower: torch.Tensor,
        upper: torch.Tensor,
        *,
        hardness: float | None = None,
        labels: torch.Tensor | None = None,
    ) -> SwapCertificate:
        """The certificate of each box, of the network with its own hardness or the given one."""
        lower, upper = _checked(lower, upper, self._shape)
        twins = self._twins if hardness is None else _hardened(self._twins, hardness)
        if labels is None:
            labels = twins.smooth.value((lower + upper) / 2).argmax(1)
        outputs = len(twins.relu[-1].bias)
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(f"labels must be integers, got {labels.dtype}")
        labels = labels.long()
        if labels.shape != lower.shape[:1] or not bool(((labels >= 0) & (labels < outputs)).all()):
            raise ValueError(f"labels must be {len(lower)} classes in [0, {outputs}), got {labels}")
        parts = [
            _certified(twins, *(each[at : at + self.batch] for each in (lower, upper, labels)))
            for at in range(0, len(lower), self.batch)
        ]
        names = SwapCertificate.__dataclass_fields__
        return SwapCertificate(**{name: torch.cat([getattr(each, name) for each in parts]) for name in names})

    def difference(self, x: torch.Tensor, *, hardness: float | None = None) -> torch.Tensor:
        """d at inputs (batch, *input_shape), (batch, outputs): evaluated in float64, not bounded; differentiable."""
        twins = self._twins if hardness is None else _hardened(self._twins, hardness)
        values = x.double().flatten(1)
        for map_ in twins.relu[:-1]:
            values = functional.linear(values, map_.weight, map_.bias).relu()
        before, after = twins.smooth.maps[-1], twins.relu[-1]
        moved = functional.linear(twins.smooth.hidden(x.double()), before.weight) - functional.linear(
            values, after.weight
        )
        # Added to each, a large bias that both have in common would leave its rounding errors.
        return moved + (before.bias - after.bias)

    def disruption(self, lower: torch.Tensor, upper: torch.Tensor) -> Callable[[float], float]:
        """lambda -> the greatest |d| possible in any of the boxes, of any output, if every activation has that lambda.

        A sound bound for each lambda by itself; it tends to 0 like 1 / lambda where the boxes are points.
        """
        return lambda hardness: float(self.certify(lower, upper, hardness=hardness).disruption.max())


def _checked(lower: torch.Tensor, upper: torch.Tensor, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    if lower.shape != upper.shape or tuple(lower.shape[1:]) != shape or not len(lower):
        raise ValueError(f"boxes must be (boxes, {shape}), got {tuple(lower.shape)} and {tuple(upper.shape)}")
    if not bool((lower.isfinite() & upper.isfinite() & (lower <= upper)).all()):
        raise ValueError("a box is reversed, or has an end that is NaN or infinite")
    return lower.double(), upper.double()


def _hardened(twins: Twins, hardness: float) -> Twins:
    if not 0 < hardness < float("inf"):
        raise ValueError(f"hardness must be finite and > 0, got {hardness}")
    if not _SOFTEST <= hardness <= _HARDEST:
        raise ValueError(f"hardness must be in [{_SOFTEST:g}, {_HARDEST:g}], got {hardness}")
    places = [replace(place, hardness=torch.full_like(place.hardness, hardness)) for place in twins.smooth.places]
    return replace(twins, smooth=replace(twins.smooth, places=places))


def _margin_rows(labels: torch.Tensor, outputs: int) -> torch.Tensor:
    """(batch, outputs - 1, outputs): label minus other."""
    identity = torch.eye(outputs, dtype=torch.float64)
    others = torch.stack([identity[torch.arange(outputs) != label] for label in labels])
    return identity[labels][:, None] - others


def _certified(twins: Twins, lower: torch.Tensor, upper: torch.Tensor, labels: torch.Tensor) -> SwapCertificate:
    propagation = Propagation(twins, lower.flatten(1), upper.flatten(1))
    outputs = len(twins.relu[-1].bias)
    eye = torch.eye(outputs, dtype=torch.float64)
    both = torch.cat([eye, -eye])
    found = torch.maximum(propagation.bounds(Rows(d=both)), propagation.bounds(Rows(a=both, b=-both)))
    known = propagation.outputs.d
    rows = _margin_rows(labels, outputs)
    before = propagation.bounds(Rows(a=rows))
    after = torch.maximum(propagation.bounds(Rows(b=rows)), propagation.bounds(Rows(a=rows, d=-rows)))
    return SwapCertificate(
        torch.maximum(found[:, :outputs], known[0]),
        torch.minimum(-found[:, outputs:], known[1]),
        labels,
        before,
        after,
    )
