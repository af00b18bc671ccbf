"""From a GELU network to a ReLU network: hardening, the swap, folding lambda away, and the variants made of them."""

from evalsuite.reluize.folding import fold_hardness
from evalsuite.reluize.hardening import Hardening
from evalsuite.reluize.swap import swap_to_relu

__all__ = ["Hardening", "fold_hardness", "swap_to_relu"]
