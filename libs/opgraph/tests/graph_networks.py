"""Small networks of the kinds that users have, from local configurations: what the graph is
tested on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from networks_by_hand import Written
from own_networks import hugging
from torch import nn
from torch.nn import functional

from opgraph.inputs import Inputs


@dataclass(frozen=True)
class Kind:
    """A network with a batch of inputs, and how many of which operations and attentions its
    graph has.
    """

    make: Callable[[], tuple[nn.Module, Inputs]]
    found: dict[str, int] = field(default_factory=dict)
    attentions: int = 0


class Logits(nn.Module):
    """A model of Hugging Face called with one argument: the batch."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, batch: Any) -> torch.Tensor:
        given = batch if isinstance(batch, dict) else {self.names[0]: batch}
        return self.model(**given).logits  # type: ignore[no-any-return]


def _tokens(batch: int = 2, length: int = 7, vocabulary: int = 50) -> torch.Tensor:
    return torch.randint(1, vocabulary, (batch, length))


def _mask() -> torch.Tensor:
    return torch.tensor([[1] * 7, [1] * 4 + [0] * 3])


def _vit() -> tuple[nn.Module, Inputs]:
    make = hugging("vit", "ViTForImageClassification", image_size=16, patch_size=8, num_labels=5)
    return Logits(make(), "pixel_values"), torch.rand(2, 3, 16, 16)


def _of_texts(kind: str, name: str) -> tuple[nn.Module, Inputs]:
    model = hugging(kind, f"{name}ForSequenceClassification")()
    return Logits(model), {"input_ids": _tokens(), "attention_mask": _mask()}


def _gpt2() -> tuple[nn.Module, Inputs]:
    return Logits(hugging("gpt2", "GPT2LMHeadModel", use_cache=False)(), "input_ids"), _tokens()


def _llama() -> tuple[nn.Module, Inputs]:
    sizes = {"intermediate_size": 24, "num_attention_heads": 4, "use_cache": False}
    return Logits(hugging("llama", "LlamaForCausalLM", **sizes)(), "input_ids"), _tokens()


def _convnext_block() -> nn.Module:
    def call(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.norm(net.depthwise(x).permute(0, 2, 3, 1))
        y = net.narrow(functional.gelu(net.wide(y))) * net.scale
        return x + y.permute(0, 3, 1, 2)  # type: ignore[no-any-return]

    depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
    linear = {"wide": nn.Linear(8, 32), "narrow": nn.Linear(32, 8)}
    return Written(
        call,
        depthwise=depthwise,
        norm=nn.LayerNorm(8),
        **linear,
        scale=nn.Parameter(torch.full((8,), 0.5)),
    )


def _convnext() -> tuple[nn.Module, Inputs]:
    stem = nn.Conv2d(3, 8, 4, stride=4)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 5))
    return nn.Sequential(stem, _convnext_block(), _convnext_block(), head), torch.rand(2, 3, 16, 16)


def _excite(act: nn.Module, gate: nn.Module) -> nn.Module:
    layers = {"down": nn.Conv2d(16, 4, 1), "up": nn.Conv2d(4, 16, 1), "act": act, "gate": gate}
    return Written(
        lambda net, x: x * net.gate(net.up(net.act(net.down(x.mean((2, 3), keepdim=True))))),
        **layers,
    )


def _inverted(act: Callable[[], nn.Module], excite: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        _norm(8),
        act(),
        nn.Conv2d(8, 16, 1, bias=False),
        _norm(16),
        act(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
        _norm(16),
        act(),
        excite,
        nn.Conv2d(16, 8, 1, bias=False),
        _norm(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(8, 5),
    )


def _norm(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    norm.running_mean, norm.running_var = torch.randn(channels), torch.rand(channels) + 0.5
    return norm


def _mobilenet() -> tuple[nn.Module, Inputs]:
    def act() -> nn.Module:
        return nn.Hardswish(inplace=True)

    return _inverted(act, _excite(nn.ReLU(inplace=True), nn.Hardsigmoid())), torch.rand(
        2, 3, 16, 16
    )


def _efficientnet() -> tuple[nn.Module, Inputs]:
    return _inverted(nn.SiLU, _excite(nn.SiLU(), nn.Sigmoid())), torch.rand(2, 3, 16, 16)


def _mixer() -> tuple[nn.Module, Inputs]:
    def mixed(net: Any, x: torch.Tensor) -> torch.Tensor:
        x = x + net.tokens(net.first(x).transpose(1, 2)).transpose(1, 2)
        return x + net.channels(net.second(x))  # type: ignore[no-any-return]

    tokens = nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 16))
    channels = nn.Sequential(nn.Linear(8, 20), nn.GELU(approximate="tanh"), nn.Linear(20, 8))
    block = Written(
        mixed, first=nn.LayerNorm(8), second=nn.LayerNorm(8), tokens=tokens, channels=channels
    )
    layers = {"stem": nn.Conv2d(3, 8, 4, stride=4), "block": block, "head": nn.Linear(8, 5)}
    whole = Written(
        lambda net, x: net.head(net.block(net.stem(x).flatten(2).transpose(1, 2)).mean(1)), **layers
    )
    return whole, torch.rand(2, 3, 16, 16)


def _residual(net: Any, x: torch.Tensor) -> torch.Tensor:
    out = functional.relu(net.bn1(net.conv1(x)))
    out = net.bn2(net.conv2(out))
    out += x
    return functional.relu_(out)


def _resnet() -> tuple[nn.Module, Inputs]:
    stem = [nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), _norm(8), nn.ReLU(inplace=True)]
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    head = [nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(8, 5)]
    first, second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
    block = Written(_residual, conv1=first, bn1=_norm(8), conv2=second, bn2=_norm(8))
    return nn.Sequential(*stem, pool, block, *head), torch.rand(2, 3, 16, 16)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.middle, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 4, 3, padding=1)
        self.smooth, self.head = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.first(x))
        deep = torch.relu(self.deep(functional.max_pool2d(first, 2)))
        low = functional.interpolate(
            torch.relu(self.middle(functional.avg_pool2d(deep, 2))), scale_factor=2
        )
        joined = torch.cat([first, self.up(low + deep)], 1)
        return self.head(self.smooth(torch.relu(self.last(joined))))  # type: ignore[no-any-return]


class HandWritten(nn.Module):
    """fc2(act(fc1(x))) in a class, with a function for the activation."""

    def __init__(
        self, act: Callable[[torch.Tensor], torch.Tensor] = functional.relu, inputs: int = 6
    ) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(inputs, 9), nn.Linear(9, 4)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


class RMSNorm(nn.Module):
    """As Llama's code writes it."""

    def __init__(self, size: int, eps: float = 1e-4) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(size) + 0.5), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class LayerNorm(nn.Module):
    """Written out, along any one axis."""

    def __init__(self, size: tuple[int, ...], axis: int = -1, eps: float = 1e-3) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.rand(size) + 0.5),
            nn.Parameter(torch.randn(size)),
        )
        self.axis, self.eps = axis, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centered = x - x.mean(self.axis, keepdim=True)
        spread = (centered * centered).mean(self.axis, keepdim=True)
        return self.weight * (centered / torch.sqrt(spread + self.eps)) + self.bias


def beside(*parts: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """What each part makes of the input: one network is read faster than many."""

    def call(net: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([each(x).flatten(1) for each in net.parts], 1)

    def written(part: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
        return part if isinstance(part, nn.Module) else Written(lambda _, x: part(x))

    return Written(call, parts=nn.ModuleList(map(written, parts)))


KINDS: dict[str, Kind] = {
    "vit": Kind(_vit, {"gelu": 2, "LayerNorm": 5}, attentions=2),
    "bert": Kind(partial(_of_texts, "bert", "Bert"), {"gelu": 2, "LayerNorm": 5}, attentions=2),
    "distilbert": Kind(
        partial(_of_texts, "distilbert", "DistilBert"),
        {"gelu": 2, "LayerNorm": 5, "relu": 1},
        attentions=2,
    ),
    "gpt2": Kind(_gpt2, {"gelu-tanh": 2, "LayerNorm": 5}, attentions=2),
    "llama": Kind(_llama, {"silu": 2, "RMSNorm": 5}, attentions=2),
    "convnext": Kind(_convnext, {"gelu": 2, "LayerNorm": 3}),
    "mobilenet": Kind(_mobilenet, {"hard-swish": 3, "hard-sigmoid": 1, "relu": 1, "BatchNorm": 4}),
    "efficientnet": Kind(_efficientnet, {"silu": 4, "sigmoid": 1, "BatchNorm": 4}),
    "mixer": Kind(_mixer, {"gelu": 1, "gelu-tanh": 1, "LayerNorm": 2}),
    "resnet": Kind(_resnet, {"relu": 3, "BatchNorm": 3, "MaxPool": 1}),
    "unet": Kind(
        lambda: (_UNet(), torch.rand(2, 3, 16, 16)),
        {"relu": 4, "MaxPool": 1, "AveragePool": 1, "Concat": 1},
    ),
    "hand-written": Kind(lambda: (HandWritten(), torch.rand(2, 6)), {"relu": 1, "Linear": 2}),
}


def made(name: str) -> tuple[nn.Module, Inputs]:
    """The network in eval mode and two samples, the same at every call."""
    torch.manual_seed(0)
    module, inputs = KINDS[name].make()
    for each in module.modules():
        if isinstance(each, nn.LayerNorm):
            nn.init.normal_(each.weight, 1.0, 0.2)
            nn.init.normal_(each.bias, 0.0, 0.2)
    return module.eval(), inputs
