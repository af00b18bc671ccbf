"""The oracle of pruning: removing a channel must equal zeroing it in the unpruned network."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from evalsuite import Unsupported
from opgraph.inputs import leaves, mapped
from pipelines.prune.selection import Pruned

TOLERANCE = 1e-6
# Layers whose channels are dimension 1; those of all others (Linear, embeddings) come last.
_CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
)


@torch.no_grad()
def equality_error(
    unpruned: nn.Module, pruned: Pruned, outputs: Callable[[nn.Module], torch.Tensor]
) -> float:
    """Max |pruned - zeroed| / max(1, |zeroed|) over all outputs, or if greater, over the greatest
    output; in float64.

    The zeroed network multiplies the removed output channels of each layer by 0, which knows
    nothing of how the dependency graph maps channels to the layers behind them. In float64, so that
    the order of summation does not hide, or fake, a wrongly removed channel. Units that are 0 on
    all inputs would hide one too, so both networks are also compared with each channel that these
    layers keep raised by its own amount, of the size of their outputs.

    Args:
        unpruned: the module that was pruned; it is copied.
        pruned: what is left of it, and the channels of `unpruned` that are gone.
        outputs: a module -> its outputs, of any shape, as `Probe.outputs`. It is called with
            float64 copies in eval mode, which cast every real tensor that is handed to them or to
            their layers: it may hand float32 inputs to the module; token indices stay as they are.

    Returns:
        The error of the networks as they are.

    Raises:
        Unsupported: a network does not run, or the pruned one has outputs of another shape or
            value.
    """
    zeroed, narrow = _in_double(unpruned), _in_double(pruned.module)
    sizes: dict[str, tuple[int, float]] = {}
    # 1. Zero the removed channels where they are made, and compare the outputs.
    for path, channels in pruned.removed.items():
        zeroed.get_submodule(path).register_forward_hook(_zero(channels, sizes, path))
    error = _error(zeroed, narrow, outputs)
    # 2. Raise all channels that stay, in both networks alike, so that units that are always 0 hide
    # nothing.
    generator = torch.Generator().manual_seed(0)
    for path, (width, greatest) in sizes.items():
        amounts = (1 + torch.rand(width, generator=generator, dtype=torch.float64)) * (
            greatest or 1.0
        )
        gone = torch.tensor(pruned.removed[path], dtype=torch.long)
        kept = torch.ones(width, dtype=torch.bool).index_fill(0, gone, False)
        zeroed.get_submodule(path).register_forward_hook(_raise(amounts * kept))
        narrow.get_submodule(path).register_forward_hook(_raise(amounts[kept]))
    if sizes:
        _error(zeroed, narrow, outputs)
    return error


def _error(
    zeroed: nn.Module, narrow: nn.Module, outputs: Callable[[nn.Module], torch.Tensor]
) -> float:
    expected = _run("the network does not run in float64", outputs, zeroed)
    actual = _run("the pruned network does not run", outputs, narrow)
    if actual.shape != expected.shape:
        raise Unsupported(
            f"pruning changed the outputs: shape {tuple(actual.shape)} instead of"
            f" {tuple(expected.shape)}"
        )
    # Where both are the same infinity, as masked logits are, their difference would be NaN.
    differences = torch.where(actual == expected, 0.0, (actual - expected).abs())
    greatest = expected.abs().where(expected.isfinite(), 0.0).max().item()
    # An absolute error for outputs below 1, else a relative one.
    error: float = (differences / expected.abs().clamp(min=1.0)).max().item()
    # Of a network whose outputs are tiny, any other output would be near enough to 1.
    if differences.any():
        error = max(error, differences.max().item() / greatest if greatest else math.inf)
    if not error <= TOLERANCE:
        raise Unsupported(
            f"removing channels changed what the network computes by {error:.3g} (outputs up to"
            f" {expected.abs().max().item():.3g}); an operation mixes channels, or maps 0 to"
            " something else"
        )
    return error


def _in_double(module: nn.Module) -> nn.Module:
    copied = copy.deepcopy(module).double().eval()
    for layer in copied.modules():
        layer.register_forward_pre_hook(_cast, with_kwargs=True)
    return copied


def _cast(
    _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(map(_double, inputs)), {name: _double(value) for name, value in named.items()}


def _double(value: Any) -> Any:
    if isinstance(value, (tuple, dict)) and all(
        isinstance(leaf, torch.Tensor) for leaf in leaves(value)
    ):
        return mapped(value, _double)
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


def _run(
    what: str, outputs: Callable[[nn.Module], torch.Tensor], module: nn.Module
) -> torch.Tensor:
    try:
        return outputs(module)
    except (MemoryError, OSError):  # the machine's limit, not the network's
        raise
    except Exception as error:  # whatever a module's own code says of sizes that it did not expect
        raise Unsupported(
            f"{what}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        ) from error


_Hook = Callable[[nn.Module, object, torch.Tensor], torch.Tensor]


def _zero(channels: list[int], sizes: dict[str, tuple[int, float]], path: str) -> _Hook:
    """Also notes under `path` the number of channels and the greatest of their absolute values."""

    def hook(layer: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        sizes[path] = output.shape[_dimension(layer)], output.abs().max().item()
        return output.index_fill(_dimension(layer), torch.tensor(channels, dtype=torch.long), 0.0)

    return hook


def _raise(amounts: torch.Tensor) -> _Hook:
    def hook(layer: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        return (
            output + amounts.view(-1, *[1] * (output.ndim - 2))
            if _dimension(layer) == 1
            else output + amounts
        )

    return hook


def _dimension(layer: nn.Module) -> int:
    return 1 if isinstance(layer, _CHANNELS_FIRST) else -1
