"""Recurrent layers, of which stages treat none: see `refuse_recurrent`."""

from __future__ import annotations

from torch import nn

from opgraph.errors import Unsupported


def refuse_recurrent(module: nn.Module, treated: str) -> None:
    """Raise Unsupported where a layer of the module is recurrent (RNN, GRU or LSTM).

    It would be unrolled into as many layers as the sample has steps, of a batch of one size. Cells,
    as GRUCell, that forward calls step by step are layers like others.

    Args:
        module: the network.
        treated: what is not done with such layers, as "quantized".
    """
    for path, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase):
            raise Unsupported(
                f"{path or 'the network'} ({type(layer).__name__}): recurrent layers are not"
                f" {treated}"
            )
