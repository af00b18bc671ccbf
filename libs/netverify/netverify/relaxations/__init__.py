"""Sound relaxations of activations on intervals, derived from their traits: what bounds, smt and
certificates share.
"""

from lambda_gelu.activations.gates import SIGMOID, SOFTPLUS, TANH
from lambda_gelu.activations.mish import MISH
from netverify.relaxations.intervals import Lines
from netverify.relaxations.lines import Envelope, envelope, interval, relax
from netverify.relaxations.products import Planes, gated, product

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
