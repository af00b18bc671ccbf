"""Proven bounds over boxes of inputs: of what the swap to ReLU changes, and of what reaches the
activations.
"""

from netverify.certificate.reach import UnitBounds, preactivation_bounds
from netverify.certificate.swap import SwapBounds, SwapCertificate, certify_swap

__all__ = ["SwapBounds", "SwapCertificate", "UnitBounds", "certify_swap", "preactivation_bounds"]
