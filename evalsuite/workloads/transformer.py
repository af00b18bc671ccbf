"""Blocks of networks: a residual block, and the pre-norm transformers of the ViT and the GPTs.

In transformers, activations stand in the feed-forward parts only. They are plain modules without
dropout, so that variants differ in their activation alone and quantizers find their layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from evalsuite.workloads.layers import convolution
from lambda_gelu.activations import Hardenable

_POSITION_DEVIATION = 0.02
_GPT2_DEVIATION, _GPT2_WIDTH = 0.02, 768


class Attention(nn.Module):
    """Multi-head self-attention, arXiv 1706.03762: (batch, positions, width) to the same shape.

    The number of heads follows from the layers' sizes and the size of a head, which never changes:
    where whole heads are removed from the layers, the others stay what they were, and so does their
    scale.

    Args:
        width: of a token; a multiple of `heads`.
        heads: their number.
        causal: whether a position sees only itself and those before it.
    """

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads = {heads}, got {width}")
        self.head_size = width // heads
        self.causal = causal
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each position of x takes from those that it sees, of the shape of x (batch,
        positions, width).
        """
        query, key, value = self.project_in(x).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(
            self._by_head(query), self._by_head(key), self._by_head(value), is_causal=self.causal
        )
        return self.project_out(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, positions, heads * head_size) to (batch, heads, positions, head_size)."""
        parts: torch.Tensor = x.unflatten(-1, (-1, self.head_size))  # type: ignore[no-untyped-call]
        return parts.transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with an activation between: (batch, positions, width) to the same shape."""

    def __init__(self, width: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.activation = activation
        if isinstance(activation, Hardenable):
            activation.dimension = -1
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layers applied to each position of x alone, of the shape of x (batch, positions,
        width).
        """
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, width: int, heads: int, feed_forward: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = feed_forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, positions, width) to the same shape."""
        x = x + self.attention(self.norm_attention(x))
        return x + self.feed_forward(self.norm_feed_forward(x))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Images as sequences of patches, arXiv 2010.11929, with mean pooling instead of a class token.

    Args:
        size: pixels along each side of the image; a multiple of `patch`.
        patch: pixels along each side of a patch.
        width: of a token.
        heads: of each attention.
        feed_forwards: one for each block.
        classes: number of logits.
        channels: of the image.
    """

    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        heads: int,
        feed_forwards: list[nn.Module],
        classes: int,
        *,
        channels: int = 1,
    ) -> None:
        super().__init__()
        if size % patch:
            raise ValueError(f"size must be a multiple of patch = {patch}, got {size}")
        self.embedding = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(
            torch.randn((size // patch) ** 2, width) * _POSITION_DEVIATION
        )
        self.blocks = nn.Sequential(
            *(Block(width, heads, feed_forward, causal=False) for feed_forward in feed_forwards)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def tokens(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, channels, size, size) to (batch, patches, width), row by row: what the first
        block sees.
        """
        return self.embedding(images).flatten(2).transpose(1, 2) + self.positions  # type: ignore[no-any-return]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, channels, size, size) to logits (batch, classes)."""
        return self.head(self.norm(self.blocks(self.tokens(images))).mean(1))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """A causal language model with learned positions, as GPT-2; the output layer has weights of its
    own.

    Args:
        vocabulary: number of tokens.
        context: the most positions that it takes.
        width: of a token.
        heads: of each attention.
        feed_forwards: one for each block.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int, heads: int, feed_forwards: list[nn.Module]
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(
            *(Block(width, heads, feed_forward, causal=True) for feed_forward in feed_forwards)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self._initialise()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token indices (batch, positions) to the logits of each next token (batch, positions,
        vocabulary).
        """
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]

    @torch.no_grad()
    def _initialise(self) -> None:
        """GPT-2's initialisation: what is added to the residual stream shrinks with the number of
        additions.

        Its deviation of 0.02 belongs to width 768. It goes with 1 / sqrt(width), as the sums over
        the width do: at 0.02, a model of width 128 starts so flat that a short training is spent on
        leaving the start.
        """
        deviation = _GPT2_DEVIATION * math.sqrt(_GPT2_WIDTH / self.positions.shape[1])
        self.positions.normal_(std=deviation)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.normal_(std=deviation)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
        for path, module in self.named_modules():
            if path.endswith((".project_out", ".down")) and isinstance(module, nn.Linear):
                module.weight.div_(math.sqrt(2 * len(self.blocks)))


def feed_forwards(
    blocks: int, width: int, hidden: int, activation: Callable[[int], nn.Module]
) -> list[nn.Module]:
    """The `FeedForward` of each block, in the network's order."""
    return [FeedForward(width, hidden, activation(hidden)) for _ in range(blocks)]


class ResidualBlock(nn.Module):
    """activation(x + two 3 x 3 convolutions of x), each with BatchNorm: arXiv 1512.03385, figure 2.

    Where the block changes the shape, a 1 x 1 convolution with BatchNorm projects x. Maps (batch,
    channels_in, height, width) to (batch, channels_out, height / stride, width / stride), rounded
    up.

    Args:
        channels_in: of the input.
        channels_out: of the output.
        activation: makes each of the two activations from its number of channels.
        stride: of the first convolution and of the projection.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        activation: Callable[[int], nn.Module],
        *,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolution(channels_in, channels_out, activation, stride=stride),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )
        self.activation = activation(channels_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output for x, of the shape that the class states."""
        return self.activation(self.residual(x) + self.shortcut(x))  # type: ignore[no-any-return]
