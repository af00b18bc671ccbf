"""Activations: one table row of traits each, from which every toolchain's treatment is derived."""

from evalsuite.activations.census import Found, census, replace
from evalsuite.activations.gated import GATED, Gated, GatedUnit, matched_hidden
from evalsuite.activations.gelu import GELU, LAMBDA_GELU, LambdaGELU
from evalsuite.activations.hardenable import Hardenable
from evalsuite.activations.relu import RELU
from evalsuite.activations.silu import Swish
from evalsuite.activations.traits import Activation

__all__ = [
    "GATED",
    "GELU",
    "LAMBDA_GELU",
    "RELU",
    "Activation",
    "Found",
    "Gated",
    "GatedUnit",
    "Hardenable",
    "LambdaGELU",
    "Swish",
    "census",
    "matched_hidden",
    "replace",
]
