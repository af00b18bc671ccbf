"""Sound relaxations of activations on intervals, derived from their traits: what bounds, smt and certificates share."""

from evalsuite.relaxations.lines import Lines, interval, relax
from evalsuite.relaxations.tangents import Windows, windows

__all__ = ["Lines", "Windows", "interval", "relax", "windows"]
