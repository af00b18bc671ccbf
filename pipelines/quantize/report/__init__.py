"""What the stage brings to a report: quantized networks."""
