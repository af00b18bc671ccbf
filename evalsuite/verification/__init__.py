"""What verifiers share: properties' margins, a falsifier, the replay of counterexamples, ONNX
and VNN-LIB files.
"""

from evalsuite.verification.cascade import verify
from evalsuite.verification.falsifier import falsify, float32_box, margin
from evalsuite.verification.onnx_reader import read_onnx
from evalsuite.verification.question import Answer, Verification
from evalsuite.verification.vnnlib import read_vnnlib
from evalsuite.verification.witness import Replay

__all__ = [
    "Answer",
    "Replay",
    "Verification",
    "falsify",
    "float32_box",
    "margin",
    "read_onnx",
    "read_vnnlib",
    "verify",
]
