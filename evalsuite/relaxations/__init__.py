"""Sound relaxations of activations on intervals, derived from their traits: what bounds, smt and
certificates share.
"""

from evalsuite.relaxations.intervals import Lines
from evalsuite.relaxations.lines import Envelope, envelope, interval, relax
from evalsuite.relaxations.products import Planes, gated, product
from lambda_gelu.activations.gates import SIGMOID, SOFTPLUS, TANH
from lambda_gelu.activations.mish import MISH

__all__ = [
    "MISH",
    "SIGMOID",
    "SOFTPLUS",
    "TANH",
    "Envelope",
    "Lines",
    "Planes",
    "envelope",
    "gated",
    "interval",
    "product",
    "relax",
]
