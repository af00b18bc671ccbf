"""Cures where a user's forward raises on a batch of the data: at which layer, what it takes and
what it gets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from evalsuite.references import line_of
from opgraph.inputs import Inputs, leaves

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
_SIZES = re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")
_ELSE = (
    "call the model on zeros of that shape to find the line; the options `inputs` and `data` say"
    " what it is given"
)


@dataclass(frozen=True)
class _Failed:
    """The innermost module that did not return, and the first tensor that it was given."""

    name: str
    layer: nn.Module
    given: torch.Tensor

    @property
    def said(self) -> str:
        return f"its {type(self.layer).__name__}{f' {self.name!r}' if self.name else ''}"


def cure_of(module: nn.Module, network: nn.Module, inputs: Inputs, error: BaseException) -> str:
    """One sentence, what the layer at which the module fails takes and what to write; of what is
    not known, how to find it, or "" where the error names a line of the user's. The module is
    called once more; `network` is the user's own inside.
    """
    failed = _failed(module, network, inputs)
    cure = (_of_layer(failed, inputs) if failed else "") or _of_positions(error, inputs)
    return cure or ("" if line_of(error) else _ELSE)


def _of_layer(failed: _Failed, inputs: Inputs) -> str:
    layer, received, cure = failed.layer, failed.given, ""
    known = (nn.Linear, nn.RNNBase, *_CONVOLUTIONS)
    if isinstance(layer, known) and received.dtype != (kind := next(layer.parameters()).dtype):
        cure = _of_dtype(failed, kind)
    elif isinstance(layer, nn.Embedding):
        cure = _of_embedding(failed, layer)
    elif isinstance(layer, nn.Linear):
        cure = _of_width(failed, layer.in_features, inputs)
    elif isinstance(layer, nn.RNNBase):
        cure = _of_width(failed, layer.input_size, inputs)
    elif isinstance(layer, _CONVOLUTIONS):
        cure = _of_convolution(failed, layer)
    elif isinstance(layer, _NORMS):
        channels = layer.num_channels if isinstance(layer, nn.GroupNorm) else layer.num_features
        cure = f"{failed.said} takes {channels} channels, and gets {tuple(received.shape)}"
    return cure


def _failed(module: nn.Module, network: nn.Module, inputs: Inputs) -> _Failed | None:
    """Where a second call fails; None where it does not."""
    # A stack of the modules that were entered and not left: at an error the last is the innermost.
    names = {module: "", **{layer: name for name, layer in network.named_modules()}}
    stack: list[tuple[nn.Module, list[Any]]] = []

    def enter(layer: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        stack.append((layer, [*positional, *named.values()]))

    def leave(*_: Any) -> None:
        stack.pop()

    handles = [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in names]
    handles += [layer.register_forward_hook(leave) for layer in names]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(inputs)
    except (Exception, SystemExit):  # a user's forward may raise anything
        if stack:
            layer, parts = stack[-1]
            tensors = [part for part in parts if isinstance(part, torch.Tensor)]
            return _Failed(names[layer], layer, tensors[0]) if tensors else None
    finally:
        for handle in handles:
            handle.remove()
    return None


def _of_embedding(failed: _Failed, layer: nn.Embedding) -> str:
    received, count = failed.given, layer.num_embeddings
    if received.is_floating_point():
        return f"{failed.said} takes tokens, and gets real numbers: give whole ones, int64"
    if not received.numel() or int(received.max()) < count:
        return ""
    # Positions count up along a sample, whatever its tokens are.
    row = received.reshape(-1, received.shape[-1])[0]
    if len(row) > count and bool((row.diff() == 1).all()):
        return (
            f"{failed.said} has {count} positions, and a sample {len(row)} tokens: write"
            f" `data.length: {count - int(row[0])}`, or give shorter samples"
        )
    return (
        f"{failed.said} knows {count} tokens, and the data have the token {int(received.max())}:"
        " name the model's tokenizer by `data.tokenizer`, or make it larger"
    )


def _of_dtype(failed: _Failed, wanted: torch.dtype) -> str:
    kinds = [str(kind).removeprefix("torch.") for kind in (failed.given.dtype, wanted)]
    if not failed.given.is_floating_point():
        return (
            f"{failed.said} takes {kinds[1]}, and gets {kinds[0]}: whole numbers are taken for"
            " tokens: give real ones as float32"
        )
    return (
        f"{failed.said} takes {kinds[1]}, and gets {kinds[0]}: networks are measured in float32, so"
        f" leave out what casts to {kinds[0]}"
    )


def _of_width(failed: _Failed, wanted: int, inputs: Inputs) -> str:
    width, sample = failed.given.shape[-1], leaves(inputs)[0]
    if width == wanted:
        return ""
    said = f"{failed.said} takes {wanted} values, and gets {width}"
    if sample.ndim > 2 and sample[0].numel() == wanted:
        return f"{said}: begin with nn.Flatten(), or give samples of shape ({wanted},)"
    if sample.ndim == 4:
        size = "x".join(map(str, sample.shape[-2:]))
        return (
            f"{said}: pictures of {size} are of another size than it was made for; write"
            f" `data.size`, or make the layer for {width}"
        )
    if sample.ndim == 2 and sample.shape[1] == width:
        return (
            f"{said}: choose the columns that it was made for by `data.features`, or make it for"
            f" {width}, as nn.LazyLinear does by itself"
        )
    return f"{said}: make it for {width}, or give samples of the shape that it was made for"


def _of_convolution(failed: _Failed, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> str:
    received, wanted = failed.given, layer.in_channels
    ndim = len(layer.kernel_size) + 2
    if received.ndim != ndim:
        return (
            f"{failed.said} takes {ndim} dimensions, samples and channels among them, and gets"
            f" {tuple(received.shape)}: give samples of {ndim - 1} dimensions, channels first, as"
            " x[:, None] of one channel"
        )
    channels = received.shape[1]
    said = f"{failed.said} takes {wanted} channels, and gets {channels}"
    if channels == wanted:
        return ""
    if received.shape[-1] == wanted:
        return f"{said}: put channels first, as x.permute(0, 3, 1, 2) of pictures"
    if {channels, wanted} == {1, 3} and isinstance(layer, nn.Conv2d):
        arrays = "x.repeat(1, 3, 1, 1)" if wanted == 3 else "x.mean(1, keepdim=True)"
        return f"{said}: write `data.channels: {wanted}` of files, or {arrays} of arrays"
    return f"{said}: give samples of {wanted} channels, or make it for {channels}"


def _of_positions(error: BaseException, inputs: Inputs) -> str:
    """Name the cure where the table of positions has fewer places than the sample has tokens."""
    sample, sizes = leaves(inputs)[0], _SIZES.search(str(error))
    if sizes is None or sample.ndim < 2:
        return ""
    longer, shorter = sorted(map(int, sizes.groups()), reverse=True)
    if longer != sample.shape[1] or sample.is_floating_point():
        return ""
    return f"a sample has {longer} tokens, and the model {shorter} places: `data.length: {shorter}`"
