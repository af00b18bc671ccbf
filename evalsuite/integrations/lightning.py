"""The callback of `lambda_gelu.callbacks.lightning`, under its former name."""

from lambda_gelu.callbacks.lightning import HardeningCallback

__all__ = ["HardeningCallback"]
