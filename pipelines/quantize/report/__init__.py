"""Declare what the stage brings to a report: quantized networks."""
