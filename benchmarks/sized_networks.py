"""Networks of the sizes of known ones, with random weights: what `benchmarks.sizes` measures.

ConvNeXt, GPT-2 and Llama are the modules of transformers from configurations; the others are
written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from evalsuite.workloads.transformer import Block, VisionTransformer, feed_forwards


@dataclass(frozen=True, slots=True)
class Sized:
    """How a network is made, and what goes in and comes out.

    Args:
        make: the module, of random weights.
        input_shape: of one sample.
        vocabulary: tokens that an input may be; 0 where it is real numbers.
        outputs: classes; of a language model as many as the vocabulary.
    """

    make: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    vocabulary: int
    outputs: int


class _Residual(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18 (arXiv 1512.03385)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.GELU(),
            nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        same = channels_in == channels_out and stride == 1
        self.shortcut: nn.Module = nn.Identity()
        if not same:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )
        self.activation = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.body(x) + self.shortcut(x))  # type: ignore[no-any-return]


def _resnet18() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.GELU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for channels_out in (64, 128, 256, 512):
        stride = 1 if channels_out == 64 else 2
        layers += [
            _Residual(channels, channels_out, stride),
            _Residual(channels_out, channels_out, 1),
        ]
        channels = channels_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class _Excitation(nn.Module):
    """Squeeze-and-excitation of MobileNetV3: channels scaled by a function of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, (channels // 4 + 4) // 8 * 8)
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.activation, self.gate = nn.ReLU(), nn.Hardsigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.activation(self.down(x.mean((2, 3), keepdim=True)))
        return x * self.gate(self.up(inner))  # type: ignore[no-any-return]


class _Inverted(nn.Module):
    """An inverted residual of MobileNetV3 (arXiv 1905.02244)."""

    def __init__(
        self,
        channels: int,
        inner: int,
        channels_out: int,
        kernel: int,
        stride: int,
        *,
        excited: bool,
        hard: bool,
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if hard else nn.ReLU
        layers: list[nn.Module] = []
        if inner != channels:
            layers += [
                nn.Conv2d(channels, inner, 1, bias=False),
                nn.BatchNorm2d(inner),
                activation(),
            ]
        layers += [
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            activation(),
        ]
        if excited:
            layers.append(_Excitation(inner))
        layers += [nn.Conv2d(inner, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out)]
        self.body = nn.Sequential(*layers)
        self.same = channels == channels_out and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.body(x)
        return x + changed if self.same else changed


# Inner width, width, kernel and stride of each block, whether it is excited, and whether its
# activations are Hardswish: arXiv 1905.02244, table 1.
_MOBILE = (
    (16, 16, 3, 1, False, False),
    (64, 24, 3, 2, False, False),
    (72, 24, 3, 1, False, False),
    (72, 40, 5, 2, True, False),
    (120, 40, 5, 1, True, False),
    (120, 40, 5, 1, True, False),
    (240, 80, 3, 2, False, True),
    (200, 80, 3, 1, False, True),
    (184, 80, 3, 1, False, True),
    (184, 80, 3, 1, False, True),
    (480, 112, 3, 1, True, True),
    (672, 112, 3, 1, True, True),
    (672, 160, 5, 2, True, True),
    (960, 160, 5, 1, True, True),
    (960, 160, 5, 1, True, True),
)


def _mobilenet() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.Hardswish(),
    ]
    channels = 16
    for inner, channels_out, kernel, stride, excited, hard in _MOBILE:
        layers.append(
            _Inverted(channels, inner, channels_out, kernel, stride, excited=excited, hard=hard)
        )
        channels = channels_out
    return nn.Sequential(
        *layers,
        nn.Conv2d(160, 960, 1, bias=False),
        nn.BatchNorm2d(960),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(960, 1280),
        nn.Hardswish(),
        nn.Linear(1280, 1000),
    )


class _Encoder(nn.Module):
    """Tokens to two classes, by blocks of attention and the mean over the positions."""

    def __init__(
        self, vocabulary: int, positions: int, width: int, heads: int, blocks: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width))
        layers = feed_forwards(blocks, width, 4 * width, lambda _: nn.GELU())
        self.blocks = nn.Sequential(*(Block(width, heads, x, causal=False) for x in layers))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.blocks(self.embedding(tokens) + self.positions)
        return self.head(states.mean(1))  # type: ignore[no-any-return]


def _deit() -> nn.Module:
    layers = feed_forwards(12, 192, 768, lambda _: nn.GELU())
    return VisionTransformer(224, 16, 192, 3, layers, 1000, channels=3)


class _Logits(nn.Module):
    """A model of transformers called with one tensor, giving its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch).logits  # type: ignore[no-any-return]


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(depths=[2, 2, 6, 2], hidden_sizes=[40, 80, 160, 320], num_labels=1000)
    return _Logits(ConvNextForImageClassification(config))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _Logits(GPT2LMHeadModel(GPT2Config(use_cache=False)))


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=640,
        intermediate_size=1712,
        num_hidden_layers=12,
        num_attention_heads=10,
        num_key_value_heads=5,
        use_cache=False,
    )
    return _Logits(LlamaForCausalLM(config))


NETWORKS: dict[str, Sized] = {
    "resnet18": Sized(_resnet18, (3, 224, 224), 0, 1000),
    "deit-tiny": Sized(_deit, (3, 224, 224), 0, 1000),
    "mobilenetv3-large": Sized(_mobilenet, (3, 224, 224), 0, 1000),
    "convnext-atto": Sized(_convnext, (3, 224, 224), 0, 1000),
    "minilm": Sized(lambda: _Encoder(30522, 128, 384, 12, 6), (128,), 30522, 2),
    "distilbert": Sized(lambda: _Encoder(30522, 128, 768, 12, 6), (128,), 30522, 2),
    "gpt2-small": Sized(_gpt2, (1024,), 50257, 50257),
    "llama-100m": Sized(_llama, (512,), 32000, 32000),
}
