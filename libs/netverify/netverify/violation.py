"""How far outputs are from violating properties, and which do."""

from __future__ import annotations

import torch

from netverify.properties import Property


def margin(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The label's logit minus the greatest other one, (batch,): the property is violated where it
    is not > 0.

    It is NaN where a logit is NaN, or the label's and another are the same infinity: no class is
    the greatest then.
    """
    label_logit = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return label_logit - others.amax(1)


def slack(outputs: torch.Tensor, properties: list[Property]) -> torch.Tensor:
    """How far outputs (batch, outputs) are from violating each its property: the margin, or the
    least distance to an end of the interval, (batch,). NaN where the property says nothing can be
    compared.
    """
    margins = [prop for prop in properties if prop.ends is None]
    if len(margins) == len(properties):
        return margin(outputs, torch.tensor([prop.label for prop in properties]))
    if margins:
        raise ValueError("properties of margins and of intervals are not compared at once")
    low, high = (
        torch.stack([prop.ends[end] for prop in properties if prop.ends is not None])
        for end in (0, 1)
    )
    values = outputs.double()
    return torch.minimum(values - low, high - values).amin(1)


def violated(outputs: torch.Tensor, properties: list[Property]) -> torch.Tensor:
    """Where outputs violate their property, (batch,) bool: a tie violates a margin, but the end of
    an interval is in.

    NaN violates both.
    """
    return broken(slack(outputs, properties), properties)


def broken(slacks: torch.Tensor, properties: list[Property]) -> torch.Tensor:
    """Where such distances violate their property, (batch,) bool: see `violated`."""
    closed = torch.tensor([prop.ends is not None for prop in properties])
    return ~((slacks > 0) | (closed & (slacks == 0)))
