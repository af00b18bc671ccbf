"""What verifiers share: the margin of a property, a falsifier, and the replay of counterexamples."""

from evalsuite.verification.falsifier import falsify, float32_box, margin
from evalsuite.verification.replay import Replay

__all__ = ["Replay", "falsify", "float32_box", "margin"]
