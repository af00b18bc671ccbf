"""Sound relaxations of activations on intervals, derived from their traits: what bounds, smt and
certificates share.
"""

from evalsuite.activations.gates import SIGMOID, SOFTPLUS, TANH
from evalsuite.activations.mish import MISH
from evalsuite.relaxations.intervals import Lines
from evalsuite.relaxations.lines import Envelope, envelope, interval, relax
from evalsuite.relaxations.products import Planes, gated, product

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
