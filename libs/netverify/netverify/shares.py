"""The interval of a softmax's shares, by sums over its rows: no pair of entries is listed.

A share is 1 / (1 + exp(E - x)), where E is the log-sum-exp of the other entries of its row. It is
least where its own entry is least and all others are greatest, and greatest the other way round, so
that both ends are exact but for rounding. The log-sum-exp of all entries but one is joined from
those before it and those behind it: nothing is subtracted, so nothing cancels.
"""

from __future__ import annotations

import math

import torch

from netverify.graph import Shares
from netverify.rounding import TINY, units

Interval = tuple[torch.Tensor, torch.Tensor]


def shares_interval(operation: Shares, lower: torch.Tensor, upper: torch.Tensor) -> Interval:
    """The least and the greatest shares for entries in [lower, upper], (batch, entries) float64."""
    low, high = operation.rows(lower), operation.rows(upper)
    hidden = low.isneginf()
    # 1. What rounding can move E - x by. Each of n steps of a scan rounds a logarithm of at most
    # reach + log n, and what it adds to it; two scans are joined, and the entries are sums
    # themselves.
    reach = torch.maximum(low.abs(), high.abs()).masked_fill(hidden, 0.0).amax(-1, keepdim=True)
    entries = low.shape[-1]
    slack = 3 * units(entries) * (1 + reach + math.log(entries))
    # 2. Both ends.
    least = torch.sigmoid(low - _others(high) - slack) * (1 - units(1)) - TINY
    most = torch.sigmoid(high - _others(low) + slack) * (1 + units(1)) + TINY
    return (
        operation.flat(least.clamp(min=0.0).masked_fill(hidden, 0.0)),
        operation.flat(most.clamp(max=1.0).masked_fill(hidden, 0.0)),
    )


def _others(rows: torch.Tensor) -> torch.Tensor:
    """The log-sum-exp of all entries of a row but each one; -inf where there are no others."""
    nothing = torch.full_like(rows[..., :1], -torch.inf)
    before = torch.cat([nothing, rows[..., :-1]], -1).logcumsumexp(-1)
    behind = torch.cat([rows[..., 1:], nothing], -1).flip(-1).logcumsumexp(-1).flip(-1)
    return torch.logaddexp(before, behind)
