"""Bounds by zonotopes, which keep what values have in common: for attention and norms."""
