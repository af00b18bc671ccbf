"""Ways to write activations by hand, and a network whose forward calls one of them."""

from __future__ import annotations

import math

import torch
from torch import nn

SQRT2 = math.sqrt(2)
TANH = math.sqrt(2 / math.pi)


def erf_gelu(x, constant=SQRT2):
    return 0.5 * x * (1 + torch.erf(x / constant))


FORMS = {
    "gelu": [
        erf_gelu,
        lambda x: x * 0.5 * (torch.erf(x * math.sqrt(0.5)) + 1.0),
        lambda x: 0.5 * (x * (1 + torch.erf(x / SQRT2))),
        lambda x: x * (torch.erf(x / SQRT2) + 1) / 2,
        lambda x: 0.5 * x + 0.5 * x * torch.erf(x / SQRT2),
        lambda x: (0.5 + 0.5 * torch.erf(x / SQRT2)) * x,
        lambda x: x * 0.5 * torch.erfc(-x / SQRT2),
        lambda x: x - x * 0.5 * torch.erfc(x / SQRT2),
        lambda x: x * torch.special.ndtr(x),
        lambda x: x.mul(0.5).mul(1 + torch.erf(x.div(torch.tensor(SQRT2)))),
    ],
    "gelu-tanh": [
        lambda x: 0.5 * x * (1 + torch.tanh(TANH * (x + 0.044715 * torch.pow(x, 3)))),
        lambda x: 0.5 * x * (torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)) + 1),
    ],
    "silu": [
        lambda x: x * torch.sigmoid(x),
        lambda x: x / (1 + torch.exp(-x)),
        lambda x: torch.sigmoid(x).mul_(x),
        lambda x: 0.5 * x * (1 + torch.tanh(0.5 * x)),
    ],
}
ALL_FORMS = [(name, form) for name, forms in FORMS.items() for form in forms]


class Calls(nn.Module):
    """A linear layer, then what `form` does in this module's own forward."""

    def __init__(self, form) -> None:
        super().__init__()
        self.linear, self.form, self.last = nn.Linear(4, 6), form, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.form(self.linear(x)))
