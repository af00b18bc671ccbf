"""The swap certificate: proven bounds of what the swap to ReLU changes, over boxes of inputs."""

from evalsuite.certificate.swap import SwapBounds, SwapCertificate, certify_swap

__all__ = ["SwapBounds", "SwapCertificate", "certify_swap"]
