"""The callback of `lambda_gelu.callbacks.huggingface`, under its former name."""

from lambda_gelu.callbacks.huggingface import HardeningCallback

__all__ = ["HardeningCallback"]
