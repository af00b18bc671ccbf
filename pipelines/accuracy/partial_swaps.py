"""The rows of networks with ReLU in some layers, by the order in which layers are replaced."""

from __future__ import annotations

AT, OVER = "{}_of_partial_swap", "{}_over_partial_swaps"
ORDERS = ("hardness", "sensitivity", "random")
