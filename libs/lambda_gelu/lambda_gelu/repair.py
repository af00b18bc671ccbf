"""Repairs after a direct swap: closed-form ones from unlabeled inputs, and the loss of
distillation.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from lambda_gelu.activations.runs import as_call

Inputs = torch.Tensor | Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...]

_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# transformers' name for a Linear with its weight transposed, as GPT-2 has it
_FEATURES_LAST = ("Conv1D",)


class NothingToRefit(ValueError):
    """No layer behind a replaced activation gives other outputs than before: a bias could mend
    nothing.
    """


@dataclass(frozen=True)
class Refit:
    """A repaired copy and what was done: the layers re-fitted, and those that could not be, each
    with its reason.
    """

    module: nn.Module
    changed: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)


def refit_bias(
    swapped: nn.Module, original: nn.Module, inputs: Inputs, *, scale: bool = False
) -> nn.Module:
    """A repaired copy of the swapped network: what `refit` gives, without the report."""
    return refit(swapped, original, inputs, scale=scale).module


def refit(swapped: nn.Module, original: nn.Module, inputs: Inputs, *, scale: bool = False) -> Refit:
    """Shift the biases of the swapped network so that each layer's outputs have the original's mean
    again.

    One pass over all inputs as a single batch: in the order of the forward pass each affine layer
    (linear, convolution, BatchNorm) behind a replaced activation gets, per feature or channel, the
    mean difference of its outputs between the original and the swapped network, as repaired up to
    there. That is bias correction as in post-training quantization (arXiv 1906.04721, section 4.2),
    measured instead of derived. Deterministic.

    A linear or convolutional layer without a bias gets one, unless BatchNorm comes next, which has
    its own.

    Args:
        swapped: the network after the swap; not changed.
        original: the same network before it.
        inputs: calibration inputs, as the networks take them: a tensor (samples, ...), a tuple of
            arguments or a mapping of named ones. All positions count, padding included.
        scale: also multiply each output unit by the factor that fits the original's best (least
            squares). Layers that share their weight with another are only shifted.

    Raises:
        NothingToRefit: no affine layer of `swapped` is in `original` and gives other outputs there.
        ValueError: values are not finite.
    """
    repaired = copy.deepcopy(swapped).eval()
    wanted = _outputs_of(original, inputs, keep=scale)
    repair = _Repair(repaired, wanted, scale)
    with torch.no_grad():
        repair.run(inputs)
    if not repair.changed:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in repair.skipped.items())
        raise NothingToRefit(
            f"nothing to re-fit in {type(swapped).__name__}: no affine layer gives other outputs"
            " than in the original" + (f" ({reasons})" if reasons else "")
        )
    return Refit(repaired, tuple(repair.changed), repair.skipped)


def _axis(layer: nn.Module) -> int | None:
    """The dimension of an affine layer's output that holds its features or channels; None for
    another layer.
    """
    if isinstance(layer, nn.Linear) or type(layer).__name__ in _FEATURES_LAST:
        return -1
    return 1 if isinstance(layer, (*_CONVOLUTION, *_TRANSPOSED, *_BATCH_NORM)) else None


def _flat(output: torch.Tensor, axis: int) -> torch.Tensor:
    """An output with its features last and all else in rows: (samples and positions, features),
    float64, detached.
    """
    return output.detach().movedim(axis, -1).flatten(0, -2).double()


def _outputs_of(
    original: nn.Module, inputs: Inputs, *, keep: bool
) -> dict[str, list[torch.Tensor]]:
    """Each affine layer's outputs by path, one entry a call: flat where `keep`, else their mean,
    (features,).
    """
    # One run of a copy, whose hooks note what each affine layer gives: the repair brings the
    # swapped network's layers to these outputs.
    observed = copy.deepcopy(original).eval()
    outputs: dict[str, list[torch.Tensor]] = {}

    def watch(path: str, axis: int) -> Callable[[nn.Module, object, torch.Tensor], None]:
        def hook(_: nn.Module, __: object, output: torch.Tensor) -> None:
            flat = _flat(output, axis)
            outputs.setdefault(path, []).append(flat if keep else flat.mean(0))

        return hook

    for path, layer in observed.named_modules():
        if (axis := _axis(layer)) is not None:
            layer.register_forward_hook(watch(path, axis))
    args, kwargs = as_call(inputs)
    with torch.no_grad():
        observed(*args, **kwargs)
    return outputs


@dataclass
class _Repair:
    """One pass through `module` in which each layer is repaired as soon as it has been called."""

    module: nn.Module
    wanted: dict[str, list[torch.Tensor]]
    scale: bool
    changed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def run(self, inputs: Inputs) -> None:
        # 1. Choose the layers that can be repaired, and note why others cannot.
        layers = {
            path: layer for path, layer in self.module.named_modules() if _axis(layer) is not None
        }
        uses = Counter(
            id(parameter)
            for layer in self.module.modules()
            for parameter in layer._parameters.values()
        )
        handles = []
        for path, layer in layers.items():
            if reason := self._obstacle(path, layer, layers):
                self.skipped[path] = reason
                continue
            # A computed weight (weight_norm) is no parameter, and a shared one is not this layer's
            # alone to scale.
            weight = layer._parameters.get("weight")
            alone = (
                weight is not None and uses[id(weight)] == 1 and not isinstance(layer, _TRANSPOSED)
            )
            handles.append(layer.register_forward_hook(self._hook(path, self.scale and alone)))
        # 2. Run once. Each hook repairs its layer and hands the repaired output on, so that a
        # layer behind is fitted to the inputs that it will get.
        args, kwargs = as_call(inputs)
        self.module(*args, **kwargs)
        for handle in handles:
            handle.remove()

    def _obstacle(self, path: str, layer: nn.Module, layers: dict[str, nn.Module]) -> str:
        """Why the layer cannot be repaired; empty where it can."""
        # A weight that is shared or called several times has several outputs to be fitted to.
        calls = len(self.wanted.get(path, []))
        if calls != 1:
            return (
                f"called {calls} times"
                if calls
                else "not called as a module of that path in the original"
            )
        if layer._parameters.get("bias") is not None:
            return ""
        if isinstance(layer, _BATCH_NORM):
            return "BatchNorm without a bias"
        # Without a bias there is nothing to shift, but a BatchNorm right behind has one that does
        # the same.
        called = list(self.wanted)
        following = called[called.index(path) + 1 : called.index(path) + 2]
        left = following and isinstance(layers.get(following[0]), _BATCH_NORM)
        return "no bias: left to the BatchNorm behind" if left else ""

    def _hook(
        self, path: str, scale: bool
    ) -> Callable[[nn.Module, object, torch.Tensor], torch.Tensor | None]:
        def hook(layer: nn.Module, _: object, output: torch.Tensor) -> torch.Tensor | None:
            axis = _axis(layer)
            assert axis is not None
            # 1. Fit, for each channel, the affine map from the swapped network's output to the
            # original's: by least squares, or by the means alone where the weight may not be
            # scaled.
            flat, wanted = _flat(output, axis), self.wanted[path][0]
            factor = _slope(flat, wanted) if scale else None
            mean = wanted.mean(0) if wanted.ndim == 2 else wanted
            shift = mean - flat.mean(0) * (1 if factor is None else factor)
            if not bool(shift.isfinite().all()):
                raise ValueError(f"{path}: outputs on the calibration inputs are not finite")
            # 2. Nothing to repair: before the first swapped activation both networks compute the
            # same.
            if torch.equal(flat, wanted) or (factor is None and not bool(shift.any())):
                return None
            # 3. Move the map into weight and bias, and apply it to this output, which was
            # computed before the weights changed.
            self.changed.append(path)
            _transform(layer, factor, shift)
            moved = output.movedim(axis, -1)
            moved = (moved if factor is None else moved * factor.to(moved)) + shift.to(moved)
            return moved.movedim(-1, axis)

        return hook


def _slope(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Per feature, the least-squares factor from `outputs` to `wanted`, both (samples,
    features); 1 where constant.
    """
    centred = outputs - outputs.mean(0)
    variance = centred.square().sum(0)
    covariance = (centred * (wanted - wanted.mean(0))).sum(0)
    varies = variance > 1e-12 * outputs.square().sum(0)
    return torch.where(varies, covariance / variance.where(varies, torch.ones_like(variance)), 1.0)


def _transform(layer: nn.Module, factor: torch.Tensor | None, shift: torch.Tensor) -> None:
    """Make `layer` give factor * output + shift, per feature."""
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    old = torch.zeros_like(shift) if bias is None else bias.double()
    new = (old if factor is None else old * factor) + shift
    like = bias if bias is not None else next(layer.parameters())
    layer.bias = nn.Parameter(new.to(like), requires_grad=like.requires_grad)
    if factor is not None and weight is not None:
        last = type(layer).__name__ in _FEATURES_LAST
        weight.mul_((factor if last else factor.reshape(-1, *[1] * (weight.ndim - 1))).to(weight))


def recalibrate_batchnorm(module: nn.Module, inputs: Inputs) -> nn.Module:
    """A copy whose BatchNorm layers have the running statistics of `inputs`, taken as a single
    batch.

    Mean and (unbiased) variance, each behind the layers recomputed before it; all else is in eval
    mode. In eval mode.

    Args:
        module: the network after the swap; not changed.
        inputs: at least two calibration samples; a tensor, a tuple of arguments or a mapping of
            named ones.

    Raises:
        ValueError: no BatchNorm with running statistics, or statistics that are not finite.
    """
    recalibrated = copy.deepcopy(module).eval()
    layers = {
        path: layer
        for path, layer in recalibrated.named_modules()
        if isinstance(layer, _BATCH_NORM) and layer.track_running_stats
    }
    if not layers:
        raise ValueError(
            f"no BatchNorm with running statistics in {type(module).__name__}; use refit_bias"
            " instead"
        )
    # 1. Let BatchNorm layers, and these alone, normalise by the batch and record it: dropout and
    # the like stay in evaluation mode.
    momentum = {path: layer.momentum for path, layer in layers.items()}
    for layer in layers.values():
        layer.reset_running_stats()
        layer.momentum = None  # cumulative average: of one batch, the batch itself
        layer.train()
    # 2. One pass in the order of the layers: each is recorded behind the ones that already
    # normalise by their new statistics.
    args, kwargs = as_call(inputs)
    with torch.no_grad():
        recalibrated(*args, **kwargs)
    # 3. Give each its own momentum back, for later training.
    for path, layer in layers.items():
        layer.momentum = momentum[path]
        if not all(bool(statistic.isfinite().all()) for _, statistic in layer.named_buffers()):
            raise ValueError(f"{path}: the statistics on the calibration inputs are not finite")
    return recalibrated.eval()


def distill_loss(
    student_logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float = 2.0
) -> torch.Tensor:
    """The distillation loss T^2 KL(teacher || student), in nats: the mean over samples and
    positions, 0-d.

    The factor T^2 keeps the gradient's size independent of the temperature T (arXiv 1503.02531,
    section 2.1). The teacher gets no gradient.

    Args:
        student_logits, teacher_logits: (samples, classes) or (samples, positions, classes).
        temperature: T > 0; the logits are divided by it.

    Raises:
        ValueError: the shapes differ or are empty, or the temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"student logits have shape {tuple(student_logits.shape)}, but the teacher's"
            f" {tuple(teacher_logits.shape)}"
        )
    if student_logits.ndim < 2 or student_logits.numel() == 0:
        raise ValueError(
            "logits must be (samples, ..., classes) and not empty, got"
            f" {tuple(student_logits.shape)}"
        )
    # The KL divergence over classes of each position, then the mean: "batchmean" of torch would
    # sum over the positions of a sequence.
    student = functional.log_softmax(student_logits / temperature, dim=-1)
    teacher = functional.log_softmax(teacher_logits.detach() / temperature, dim=-1)
    divergence = (
        functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1).mean()
    )
    return temperature**2 * divergence
