"""Language models as networks of real inputs: what follows the embedding of their tokens."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from evalsuite import Network, Unsupported

_COMPARED = 4  # sequences of tokens
UNBOUNDED = (-math.inf, math.inf)  # the domain of an embedding's output


def embedded(network: Network, tokens: torch.Tensor) -> tuple[Network, torch.Tensor]:
    """The network from the token embedding's output (positions, width) on, and that output for
    `tokens`.

    Its logits are those of the last position where the network's are (batch, positions, classes).
    Weights are copied.

    Raises:
        Unsupported: not exactly one `nn.Embedding` is given the tokens, or the tokens go another
            way too.
    """
    name = _embedding_of_tokens(network)
    whole = copy.deepcopy(network.module).eval()
    table = whole.get_submodule(name)
    # 1. The vectors of the samples, and those of an example to compare by.
    with torch.no_grad():
        vectors: torch.Tensor = table(tokens)
        example = network.example(_COMPARED)
        expected, actual = whole(example), table(example)
    # 2. Cut the embedding out: the rest of the network takes its output.
    rest: nn.Module = nn.Identity()
    if name:
        whole.set_submodule(name, nn.Identity())
        rest = whole
    # 3. The rest must give the same logits: else tokens go into it by another way too, as for a
    # mask.
    try:
        with torch.no_grad():
            logits = rest(actual)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise Unsupported(
            f"the network needs its tokens beside the output of {name!r}: {error}"
        ) from error
    if logits.shape != expected.shape or not torch.equal(logits, expected):
        raise Unsupported(
            f"the network computes something else from the output of {name!r} than from its tokens"
        )
    if logits.ndim == 3:
        rest = nn.Sequential(rest, _LastPosition())
    return Network(network.name, rest.eval(), tuple(vectors.shape[1:]), network.classes), vectors


def _embedding_of_tokens(network: Network) -> str:
    """The dotted path of the embedding that is given the tokens."""
    module, tokens = copy.deepcopy(network.module).eval(), network.example(_COMPARED)
    named = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Embedding)
    }
    uses: list[str] = []

    def note(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if inputs and inputs[0].shape == tokens.shape and torch.equal(inputs[0], tokens):
                uses.append(name)

        return hook

    # Run it once, and see which embeddings are given the tokens themselves.
    for name, table_layer in named.items():
        table_layer.register_forward_pre_hook(note(name))
    with torch.no_grad():
        module(tokens)
    if not uses:
        kinds = ", ".join(named) or "none"
        raise Unsupported(
            f"no nn.Embedding is given the tokens, so nothing to perturb; embeddings here: {kinds}"
        )
    if len(uses) > 1:
        raise Unsupported(
            f"tokens are embedded more than once, by {', '.join(uses)}: perturb which?"
        )
    return uses[0]


class _LastPosition(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """(batch, classes) of (batch, positions, classes)."""
        return logits[:, -1]
