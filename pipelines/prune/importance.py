"""How much each channel matters: the scores by which pruning chooses, each a formula of one line.

Importances of weights are sums, over all that is tied to a channel, of a number per weight.
torch-pruning's classes for them are not used: its Taylor leaves out BatchNorm's gamma, and its
Hessian squares the gradient of the last sample only, as it looks for names in a dictionary whose
keys are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import nn

from evalsuite import Unsupported
from lambda_gelu import census
from pipelines.prune.graph import BATCH_NORM, CONVOLUTION, Graph, Group, Part
from pipelines.prune.options import IMPORTANCES
from pipelines.prune.selection import Probe, Selection

_Quantity = Callable[[nn.Parameter], torch.Tensor]
_Losses = Callable[[nn.Module], "Iterator[torch.Tensor]"]


def channel_scores(
    module: nn.Module, graph: Graph, probe: Probe, selection: Selection
) -> list[torch.Tensor]:
    """The importance of each channel, (channels,) float64 for each group; the least important go
    first.

    - "l1", "l2": the norm of the channel's own filters, arXiv 1608.08710 (section 3.1).
    - "group_norm": the L2 norm of all weights tied to it: its own, BatchNorm's, and the next
      layers' for its input, arXiv 2301.12900 (section 3.3).
    - "taylor": the sum of |w dL/dw| over the same weights and their biases, L the mean loss of the
      calibration data: arXiv 1906.10771, equation 8 with |.| for the square, summed over the
      channel.
    - "hessian": the sum of w^2 times the mean over the samples of (dL_sample/dw)^2, the empirical
      Fisher's diagonal in place of the Hessian's: Optimal Brain Damage (LeCun et al., 1989),
      equation 5, arXiv 1801.05787, equation 6.
    - "bn_scale": |gamma| of its BatchNorm, their mean where there are several: arXiv 1708.06519.
    - "activation": the mean over samples and positions of |output of the activation|. For ReLU it
      is the mean activation of arXiv 1611.06440 (section 2.2); the average percentage of zeros
      (arXiv 1607.03250) says nothing of GELU, which is zero at 0 alone, whereas this is the same
      definition for both.
    - "random": drawn from the seed; the control.

    Args:
        module: in eval mode, all parameters trainable; nothing of it is changed.
        graph: of `module`.
        probe: whose losses "taylor", "hessian" and "activation" need.
        selection: importance and seed.

    Raises:
        Unsupported: no calibration data, a group without BatchNorm for "bn_scale", or scores that
            are not finite.
    """
    scores = _raw_scores(module, graph, probe, selection)
    for group, score in zip(graph.groups, scores, strict=True):
        if not bool(score.isfinite().all()):
            raise Unsupported(
                f"importance {selection.importance!r} of {group.root} is not finite: NaN or"
                " overflow"
            )
    return scores


def _raw_scores(
    module: nn.Module, graph: Graph, probe: Probe, selection: Selection
) -> list[torch.Tensor]:
    groups, importance = graph.groups, selection.importance
    match importance:
        case "l1":
            scores = [_total(group, attrgetter("filters"), torch.Tensor.abs) for group in groups]
        case "l2":
            scores = [
                _total(group, attrgetter("filters"), torch.Tensor.square).sqrt() for group in groups
            ]
        case "group_norm":
            scores = [
                _total(group, lambda member: member.name == "weight", torch.Tensor.square).sqrt()
                for group in groups
            ]
        case "taylor" | "hessian":
            quantity = _by_gradients(
                module, groups, _losses(probe, importance), 1 if importance == "taylor" else 2
            )
            scores = [_total(group, lambda _: True, quantity) for group in groups]
        case "bn_scale":
            scores = _scales(groups)
        case "activation":
            scores = _mean_activations(module, graph, _losses(probe, importance))
        case "random":
            generator = torch.Generator().manual_seed(selection.seed)
            scores = [
                torch.rand(group.size, generator=generator, dtype=torch.float64) for group in groups
            ]
        case _:
            raise ValueError(f"unknown importance {importance!r}; one of {', '.join(IMPORTANCES)}")
    return scores


def _losses(probe: Probe, importance: str) -> _Losses:
    """The losses, checked.

    Raises:
        Unsupported: there are no data, or no sample.
    """
    losses = probe.losses
    if losses is None:
        raise Unsupported(
            f"importance {importance!r} needs calibration data, and there are none; use l1, l2, ..."
        )

    def run(module: nn.Module) -> Iterator[torch.Tensor]:
        samples = 0
        for loss in losses(module):
            if loss.ndim != 1:
                raise ValueError(f"losses must be (samples,), got the shape {tuple(loss.shape)}")
            samples += len(loss)
            yield loss
        if not samples:
            raise Unsupported(
                f"importance {importance!r} needs calibration data, and there is no sample"
            )

    return run


@dataclass(frozen=True, slots=True)
class _Member:
    """A tensor that loses a slice of `dimension` with each channel of the part of a group."""

    part: Part
    name: str
    parameter: nn.Parameter
    dimension: int

    @property
    def filters(self) -> bool:
        """Whether it is the weight of a layer that makes the channels."""
        return (
            self.name == "weight"
            and self.part.output
            and not isinstance(self.part.layer, BATCH_NORM)
        )

    @property
    def scale(self) -> bool:
        """Whether it is a BatchNorm's gamma."""
        return self.name == "weight" and isinstance(self.part.layer, BATCH_NORM)


def _members(group: Group) -> Iterator[_Member]:
    """All weights and biases that vanish with a channel."""
    for part in group.parts:
        layer = part.layer
        transposed = isinstance(layer, CONVOLUTION) and layer.transposed and layer.groups == 1
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if weight is not None:
            yield _Member(
                part, "weight", weight, int(part.output == transposed) if weight.ndim > 1 else 0
            )
        if bias is not None and part.output:
            yield _Member(part, "bias", bias, 0)


@torch.no_grad()
def _total(group: Group, wanted: Callable[[_Member], bool], quantity: _Quantity) -> torch.Tensor:
    """The sum of `quantity`, a number per weight, over the wanted members of each channel."""
    total = torch.zeros(group.size, dtype=torch.float64)
    for member in filter(wanted, _members(group)):
        along = quantity(member.parameter).double().movedim(member.dimension, 0)
        sums = along.reshape(along.shape[0], -1).sum(1)
        total.index_add_(
            0, torch.tensor(member.part.roots), sums[torch.tensor(member.part.channels)]
        )
    return total


def _scales(groups: list[Group]) -> list[torch.Tensor]:
    counts = [sum(member.scale for member in _members(group)) for group in groups]
    without = [group.root for group, count in zip(groups, counts, strict=True) if not count]
    if without:
        raise Unsupported(
            "importance 'bn_scale' needs a BatchNorm with a scale behind each layer; none behind"
            f" {', '.join(without)}"
        )
    scale = attrgetter("scale")
    return [
        _total(group, scale, torch.Tensor.abs) / count
        for group, count in zip(groups, counts, strict=True)
    ]


@torch.enable_grad()
def _by_gradients(module: nn.Module, groups: list[Group], losses: _Losses, order: int) -> _Quantity:
    """|w dL/dw|, L the mean loss over all samples; or of `order` 2, w^2 times the mean of
    (dL_sample/dw)^2.

    For the second each sample costs one backward pass of its batch: small batches are faster.
    """
    # Once each: gradients of others would only take time.
    parameters = list(
        dict.fromkeys(member.parameter for group in groups for member in _members(group))
    )
    totals = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    samples = 0
    for batch in losses(module):
        samples += len(batch)
        parts = [batch.sum()] if order == 1 else batch.unbind()
        for place, loss in enumerate(parts, start=1):
            # No `.grad` changes; 0 for what the loss does not depend on.
            gradients = torch.autograd.grad(
                loss, parameters, retain_graph=place < len(parts), materialize_grads=True
            )
            totals = [
                total + gradient.double() ** order
                for total, gradient in zip(totals, gradients, strict=True)
            ]
    mean = {parameter: total / samples for parameter, total in zip(parameters, totals, strict=True)}
    return lambda parameter: (parameter**order * mean[parameter]).abs()


@torch.no_grad()
def _mean_activations(module: nn.Module, graph: Graph, losses: _Losses) -> list[torch.Tensor]:
    """Mean |output| of the activations that each group feeds; calls are told apart by their
    order, as when tracing.
    """
    dimensions = graph.channel_dimensions
    totals: list[torch.Tensor] = []
    counts: list[int] = []
    call = 0

    # Outputs are told apart by the order of calls, which tracing saw as well.
    def record(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal call
        dimension = dimensions[call % len(dimensions)]
        if dimension is not None:
            rows = output.detach().double().abs().movedim(dimension, 0).flatten(1)
            place = call % len(dimensions)
            totals[place] = totals[place] + rows.sum(1)
            counts[place] += rows.shape[1]
        call += 1

    totals, counts = [torch.zeros(()) for _ in dimensions], [0 for _ in dimensions]
    handles = [activation.module.register_forward_hook(record) for activation in census(module)]
    try:
        for _ in losses(module):
            if call % len(dimensions):
                raise Unsupported(
                    "the losses call the activations another number of times than the outputs do"
                )
    finally:
        for handle in handles:
            handle.remove()
    # A group may feed several calls: its score is the mean of all.
    return [_mean_of(group, totals, counts) for group in graph.groups]


def _mean_of(group: Group, totals: list[torch.Tensor], counts: list[int]) -> torch.Tensor:
    means = []
    for call in group.activations:
        if totals[call].shape != (group.size,):
            raise Unsupported(
                f"importance 'activation': an activation behind {group.root} does not keep its"
                " channels"
            )
        means.append(totals[call] / counts[call])
    return torch.stack(means).mean(0)
