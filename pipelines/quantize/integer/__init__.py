"""The integer-only network: what a quantized network becomes where no operation may see a float."""
