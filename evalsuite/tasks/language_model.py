"""Language modelling: the next token at each position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Direction, Metric
from evalsuite.tasks.classification import Classification

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LanguageModel(Classification):
    """The next token at each position: cross-entropy, in bits and as perplexity, and accuracy.

    Args:
        per: "token" or "byte": what bits and perplexity are counted by.
        tokens_per_byte: of the text that is measured, where bits are counted by bytes and tokens
            are longer than one. It is a mean over the whole text: what is measured on a part of the
            text is counted by it too.
    """

    asks: ClassVar[str] = "margin"  # of the next token behind the last position
    consecutive: ClassVar[bool] = True  # samples are windows of one text
    per: str = "token"
    tokens_per_byte: float = 1.0

    def __post_init__(self) -> None:
        if self.per not in ("token", "byte"):
            raise ValueError(f"per must be 'token' or 'byte', got {self.per!r}")
        if self.per == "token" and self.tokens_per_byte != 1:
            raise ValueError(
                f"tokens_per_byte belongs to per='byte', got {self.tokens_per_byte} with"
                " per='token'"
            )
        if not 0 < self.tokens_per_byte <= 1:
            raise ValueError(f"tokens_per_byte must be in (0, 1], got {self.tokens_per_byte}")

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The metrics of a tally (3,): bits first, then accuracy, mean loss and perplexity."""
        nats = float(tally[2] / tally[0]) * self.tokens_per_byte
        bits = Metric(f"bits_per_{self.per}", nats / math.log(2), "bits", Direction.LOWER)
        perplexity = math.exp(nats) if nats < 700 else None
        reason = (
            ""
            if perplexity is not None
            else f"a loss of {nats:.4g} nats gives more than a float holds"
        )
        return [
            bits,
            *super().metrics(tally),
            Metric(
                "perplexity", perplexity, "ratio", Direction.LOWER, {"per": self.per}, reason=reason
            ),
        ]
