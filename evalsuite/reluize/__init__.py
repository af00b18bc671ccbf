"""From a GELU network to a ReLU network: hardening, the swap, folding lambda away, and the
variants made of them.
"""
