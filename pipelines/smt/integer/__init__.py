"""Exact verification of integer-only networks, read from an ONNX file that holds no float."""
