"""Activations: one table row of traits each, from which every toolchain's treatment is derived."""

from evalsuite.activations.census import Found, census, replace
from evalsuite.activations.gelu import GELU, LAMBDA_GELU, LambdaGELU
from evalsuite.activations.relu import RELU
from evalsuite.activations.traits import Activation

__all__ = ["GELU", "LAMBDA_GELU", "RELU", "Activation", "Found", "LambdaGELU", "census", "replace"]
