"""Hardening: from the learnt lambda to one at which the swap to ReLU changes nothing that
matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lambda_gelu.activations.hardenable import Hardenable
from lambda_gelu.parameters import HARDNESS_STEP, parameter_groups
from lambda_gelu.plugins import did_you_mean
from lambda_gelu.schedules import Curve, next_share, schedule_named, windows


@dataclass
class _Way:
    """Where a layer's lambda comes from and is: float64 on the CPU, 0-d or (channels,).

    `current` is the lambda meant, `written` what the layer's s made of it, `share` how much of the
    way is gone.
    """

    start: torch.Tensor
    current: torch.Tensor
    written: torch.Tensor
    share: float = 0.0


@dataclass
class _Layer:
    """One layer that hardens from progress `opens` to `closes`; its way is None before."""

    path: str
    module: Hardenable
    target: float
    opens: float
    closes: float
    way: _Way | None = None
    frozen: bool = False

    def hardness(self) -> torch.Tensor:
        return self.module.hardness.detach().cpu().double()

    def slack(self) -> float:
        """The relative error of a lambda that is written to s and read again."""
        return 4 * torch.finfo(self.module.s.dtype).eps

    def set_out(self) -> _Way:
        start = self.hardness()
        if not bool((start <= self.target * (1 + self.slack())).all()):
            raise ValueError(
                f"{self.path}: its lambda, {start.max().item():.4g}, is above the target"
                f" {self.target:g} already; raise `target`, or start hardening earlier"
            )
        return _Way(start, start, start)

    def freeze(self) -> None:
        """s leaves the optimizer: without a gradient neither momentum nor weight decay moves it."""
        self.frozen = self.frozen or self.module.s.requires_grad
        self.module.s.requires_grad_(False)
        self.module.s.grad = None

    def thaw(self) -> None:
        """s learns again, where `freeze` stopped it."""
        if self.frozen:
            self.module.s.requires_grad_(True)
            self.frozen = False


@dataclass
class Hardening:
    """Raises every lambda to its target over the last part of training; call it before each
    optimizer step.

    s is frozen when its layer's hardening begins (arXiv 2603.21991), unless `learn`: then each call
    moves the present lambda the share of its *remaining* way that the schedule asks for, so that
    what the optimizer learnt in between stays, fading, until the target is reached. Without a step
    in between both forms give the same lambdas.

    Under DistributedDataParallel use find_unused_parameters=True: s stops taking part in the
    backward pass.

    Args:
        module: the network in training, with lambda-GELU or Swish in it (`harden` puts them in).
        start: the share of training after which hardening begins (arXiv 2603.21991: 0.25).
        target: the final lambda, or one for each layer by its dotted path; sup |f - ReLU| is then
            0.17 / target.
        schedule: "linear", "geometric" (log lambda is linear), "reciprocal" (1 / lambda is linear),
            or your own function: share of the hardening span in [0, 1] to share of the way to the
            target, never decreasing.
        learn: s keeps learning while it is hardened.
        order: "together", "forward" (a window for each layer, the first registered first) or
            "backward".
        steps: how many optimizer steps training has, for `step`.
    """

    module: nn.Module
    start: float = 0.25
    target: float | Mapping[str, float] = 160.0
    schedule: str | Curve = "linear"
    learn: bool = False
    order: str = "together"
    steps: int | None = None
    _layers: list[_Layer] = field(default_factory=list, init=False, repr=False)
    _progress: float = field(default=0.0, init=False, repr=False)
    _taken: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1:
            raise ValueError(f"start must be in [0, 1), got {self.start}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        self._schedule = schedule_named(self.schedule)
        layers = {
            path: layer
            for path, layer in self.module.named_modules()
            if isinstance(layer, Hardenable)
        }
        # Each layer has a target of its own, and a span of progress in which it gets there.
        targets = _targets(self.target, list(layers))
        spans = windows(len(layers), self.order, self.start)
        if not layers:
            raise ValueError(
                "nothing to harden: no activation with a learnable hardness in"
                f" {type(self.module).__name__}; call harden(module), which puts them in for GELU"
                " and SiLU; where they are called as functions, harden(module, in_place=False,"
                " example=inputs)"
            )
        self._layers = [
            _Layer(path or type(layer).__name__, layer, targets[path], *span)
            for (path, layer), span in zip(layers.items(), spans, strict=True)
        ]

    @property
    def progress(self) -> float:
        """The share of training at the last call; 0 before the first."""
        return self._progress

    @property
    def hardness(self) -> dict[str, torch.Tensor]:
        """The present lambda of each layer by its path, float64: 0-d, or (channels,)."""
        return {layer.path: layer.hardness() for layer in self._layers}

    def __call__(self, progress: float) -> None:
        """Set the hardness due at `progress`, the share of training that the coming step completes,
        in (0, 1].

        Raises:
            ValueError: progress is out of range or goes back; the schedule decreases; a lambda is
                above its target.
        """
        if not 0 <= progress <= 1:
            raise ValueError(f"progress must be in [0, 1], got {progress}")
        if progress < self._progress:
            raise ValueError(f"progress must not go back: {progress:g} after {self._progress:g}")
        for layer in self._layers:
            if progress > layer.opens:
                self._harden(
                    layer, min(1.0, (progress - layer.opens) / (layer.closes - layer.opens))
                )
        self._progress = progress

    def _harden(self, layer: _Layer, span: float) -> None:
        # 1. How far along its way the schedule wants this layer now.
        way = layer.way = layer.way or layer.set_out()
        before, way.share = way.share, next_share(self._schedule.curve, span, way.share)
        target = torch.full_like(way.start, layer.target)
        if self.learn:
            # What was learnt is added to the float64 lambda, so that no rounding of s builds up
            # over the steps.
            present = way.current + (layer.hardness() - way.written)
            # lambda moves by that share of what remains, so that it arrives at the target
            # wherever learning has carried it meanwhile.
            remaining = (way.share - before) / (1 - before) if before < 1 else 1.0
            way.current = self._schedule.between(present, target, remaining)
        else:
            way.current = self._schedule.between(way.start, target, way.share)
        # 2. s learns no more once the target is reached, or at all where `learn` is off.
        if not self.learn or way.share >= 1:
            layer.freeze()
        # 3. Write lambda into s, and note what it became: the next step reads from the difference
        # what was learnt since. A float32 lambda may be 1 itself, which s cannot say.
        layer.module.set_hardness(way.current.clamp(min=1 + 1e-9))
        way.written = layer.hardness()

    def step(self) -> None:
        """The hook of a training loop: call it before each optimizer step, `steps` times in all.

        Raises:
            ValueError: `steps` was not given, or is used up.
        """
        if self.steps is None:
            raise ValueError(
                "step() needs the number of optimizer steps: harden(module, steps=len(loader) *"
                " epochs)"
            )
        if self._taken >= self.steps:
            raise ValueError(
                f"step {self._taken + 1} of {self.steps}: `steps` must count every optimizer step"
            )
        self(max((self._taken + 1) / self.steps, self._progress))
        self._taken += 1

    def parameter_groups(
        self,
        learning_rate: float,
        *,
        optimizer: str = "adamw",
        momentum: float = 0.0,
        weight_decay: float = 0.01,
        step: float = HARDNESS_STEP,
    ) -> list[dict[str, Any]]:
        """The optimizer's groups, in which s has a rate of its own and no weight decay; see
        `parameter_groups`.
        """
        return parameter_groups(
            self.module,
            learning_rate=learning_rate,
            optimizer=optimizer,
            momentum=momentum,
            weight_decay=weight_decay,
            step=step,
        )

    def swap(self) -> nn.Module:
        """A copy of the hardened network with ReLU in place of each activation, in eval mode.

        Raises:
            ValueError: a lambda has not reached its target, or there is an activation that was not
                hardened or cannot be swapped.
        """
        from lambda_gelu.swapping import swap_to_relu

        # 1. Every lambda is at its target, but for what its dtype cannot tell apart.
        for layer in self._layers:
            reached = layer.hardness()
            if bool((reached < layer.target * (1 - layer.slack())).any()):
                raise ValueError(
                    f"{layer.path}: lambda is {reached.min().item():.4g}, not yet {layer.target:g},"
                    f" at progress {self._progress:g}; train to the end, or swap as it is by"
                    " swap_to_relu(hardening.module)"
                )
        # 2. No activation is replaced that was never hardened.
        if smooth := self._not_hardened():
            raise ValueError(
                f"not hardened, so that ReLU in its place changes the network: {', '.join(smooth)};"
                " leave it by swap_to_relu(hardening.module, keep=[path]), or swap it as it is by"
                " swap_to_relu(hardening.module)"
            )
        return swap_to_relu(self.module)

    def _not_hardened(self) -> list[str]:
        """The activations other than ReLU that the swap would replace without any hardening
        before.
        """
        from lambda_gelu.activations import RELU, census
        from lambda_gelu.activations.census import stays
        from lambda_gelu.swapping import expose

        hardened = {
            path for path, layer in self.module.named_modules() if isinstance(layer, Hardenable)
        }
        activations = census(expose(self.module))
        return [
            f"{activation.traits.name} at {activation.path}"
            for activation in activations
            if activation.traits.swaps
            and activation.traits.name != RELU.name
            and activation.path not in hardened
            and not stays(activation.module)
        ]

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs besides the module's and the optimizer's states."""
        ways = {
            layer.path: vars(layer.way).copy() for layer in self._layers if layer.way is not None
        }
        return {"progress": self._progress, "taken": self._taken, "layers": ways}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; load the module's own state as well.

        Raises:
            ValueError: the state is of a network with other layers; nothing is changed then.
        """
        # 1. Check all names before anything is changed.
        known = {layer.path: layer for layer in self._layers}
        for path in state["layers"]:
            if path not in known:
                raise ValueError(
                    f"the state is of another network: no layer {path!r}{did_you_mean(path, known)}"
                )
        # 2. Take over progress and each layer's way, and freeze the layers whose s learns no more
        # there.
        self._progress, self._taken = float(state["progress"]), int(state["taken"])
        for path, layer in known.items():
            layer.way = _Way(**state["layers"][path]) if path in state["layers"] else None
            layer.thaw()  # back in time, it may be learning still
            if layer.way is not None and (not self.learn or layer.way.share >= 1):
                layer.freeze()


def _targets(target: float | Mapping[str, float], paths: list[str]) -> dict[str, float]:
    if not isinstance(target, Mapping):
        if not 1 < target < math.inf:
            raise ValueError(f"target must be > 1 and finite (lambda must be > 1), got {target}")
        return dict.fromkeys(paths, target)
    for path, value in target.items():
        if path not in paths:
            raise ValueError(
                f"target names {path!r}, which is no layer to harden{did_you_mean(path, paths)}"
            )
        if not 1 < value < math.inf:
            raise ValueError(f"target of {path!r}: lambda must be > 1 and finite, got {value}")
    if missing := [path for path in paths if path not in target]:
        raise ValueError(
            f"target has no lambda for {', '.join(map(repr, missing))}; give one for every layer"
        )
    return dict(target)
