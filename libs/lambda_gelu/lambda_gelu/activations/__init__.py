"""Activations: one table row of traits each, from which every toolchain's treatment is derived."""

from lambda_gelu.activations.census import Found, census, replace
from lambda_gelu.activations.gated import GATED, Gated, GatedUnit, matched_hidden
from lambda_gelu.activations.gelu import GELU, LAMBDA_GELU, LambdaGELU
from lambda_gelu.activations.hardenable import Hardenable
from lambda_gelu.activations.relu import RELU
from lambda_gelu.activations.silu import Swish
from lambda_gelu.activations.traits import Activation

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
